//! Topologies follow the rules of the format, whatever is done to them.

use super::*;
use cenote_format::config::{Draid, TopLevel};
use proptest::prelude::*;

const T: Txg = Txg(77);

fn device(guid: u64) -> VdevConfig {
    VdevConfig {
        kind: VdevKind::File,
        guid: Guid(guid),
        path: Some(format!("/d/{guid}")),
        whole_disk: Some(false),
        create_txg: Some(Txg(4)),
        leaf_zap: Some(ObjectId(1000 + guid)),
        ..VdevConfig::default()
    }
}

fn spare(guid: u64) -> VdevConfig {
    VdevConfig { is_spare: true, ..device(guid) }
}

fn group(kind: VdevKind, guid: u64, children: Vec<VdevConfig>) -> VdevConfig {
    let create_txg = Some(Txg(4));
    VdevConfig {
        kind,
        guid: Guid(guid),
        children: Some(children),
        create_txg,
        ..Default::default()
    }
}

fn raidz(guid: u64, children: Vec<VdevConfig>) -> VdevConfig {
    VdevConfig { nparity: Some(1), ..group(VdevKind::Raidz, guid, children) }
}

fn mirror(guid: u64, children: Vec<VdevConfig>) -> VdevConfig {
    group(VdevKind::Mirror, guid, children)
}

/// What only top-level vdevs have.
fn facts(guid: u64) -> Option<TopLevel> {
    Some(TopLevel {
        metaslab_array: ObjectId(guid),
        ashift: 12,
        asize: 1 << 30,
        ..Default::default()
    })
}

fn pool(tops: Vec<VdevConfig>) -> Topology {
    let top = |(id, top): (usize, VdevConfig)| {
        let mut top = VdevConfig {
            id: Some(id as u64),
            top: top.top.or(facts(top.guid.0)),
            top_zap: Some(ObjectId(2000 + top.guid.0)),
            ..top
        };
        number(top.children.as_deref_mut().unwrap_or_default());
        top
    };
    let tops = tops.into_iter().enumerate().map(top).collect();
    Topology::of(group(VdevKind::Root, 1 << 40, tops)).unwrap()
}

fn log(top: VdevConfig) -> VdevConfig {
    VdevConfig { top: Some(TopLevel { is_log: true, ..facts(top.guid.0).unwrap() }), ..top }
}

/// A node in short: `mirror 9 (11, 12)`.
fn shape(node: &VdevConfig) -> String {
    let children: Vec<String> = node.children().iter().map(shape).collect();
    let name = match node.kind {
        VdevKind::File if node.is_spare => format!("*{}", node.guid.0),
        VdevKind::File => node.guid.0.to_string(),
        kind => format!("{} {}", kind.name(), node.guid.0),
    };
    if children.is_empty() { name } else { format!("{name} ({})", children.join(", ")) }
}

fn shapes(topology: &Topology) -> Vec<String> {
    topology.tops().iter().map(shape).collect()
}

fn refused<T: std::fmt::Debug>(answer: Result<T, VdevError>) {
    assert!(matches!(answer, Err(VdevError::Unfit(_))), "{answer:?}");
}

#[test]
fn a_mirror_comes_and_goes() {
    let before = pool(vec![device(11), device(21)]);
    let two = before.attach(Guid(11), device(12), Guid(9), T).unwrap();
    assert_eq!(shapes(&two), ["mirror 9 (11, 12)", "21"]);
    assert_eq!((two.changed(), before.changed()), (T, Txg(0)));
    let [top, old, new] = [9, 11, 12].map(|guid| two.find(Guid(guid)).unwrap());
    assert_eq!((top.top, top.top_zap), (facts(11), Some(ObjectId(2011))));
    assert_eq!((top.whole_disk, top.create_txg, top.id), (Some(false), Some(Txg(4)), Some(0)));
    assert_eq!((old.top, old.top_zap, old.leaf_zap), (None, None, Some(ObjectId(1011))));
    assert_eq!((old.id, new.id, new.create_txg), (Some(0), Some(1), Some(Txg(4))));
    let three = two.attach(Guid(12), device(13), Guid(8), T).unwrap();
    assert_eq!(shapes(&three)[0], "mirror 9 (11, 12, 13)");

    let left = three.detach(Guid(11), T).unwrap();
    assert_eq!((left.leaf.guid, left.unspared), (Guid(11), None));
    assert_eq!(shapes(&left.topology)[0], "mirror 9 (12, 13)");
    assert_eq!(left.topology.find(Guid(12)).unwrap().id, Some(0));
    // The last one has the place of the mirror, and its guid.
    let last = left.topology.detach(Guid(13), T).unwrap().topology;
    assert_eq!(shapes(&last), ["9", "21"]);
    let node = last.find(Guid(9)).unwrap();
    assert_eq!((node.path.as_deref(), node.id), (Some("/d/12"), Some(0)));
    assert_eq!((node.top, node.top_zap), (facts(11), Some(ObjectId(2011))));
    assert_eq!(node.leaf_zap, Some(ObjectId(1012)));
    assert_eq!((last.guid_before(Guid(9)), last.guid_before(Guid(21))), (Guid(12), Guid(21)));
    assert_eq!(last.clone().settled().guid_before(Guid(9)), Guid(9));
    refused(last.detach(Guid(9), T));
    // Once more before anybody saw it.
    let again = last.attach(Guid(9), device(14), Guid(7), T).unwrap();
    let again = again.detach(Guid(14), T).unwrap().topology;
    assert_eq!((shapes(&again)[0].as_str(), again.guid_before(Guid(7))), ("7", Guid(12)));
}

#[test]
fn what_cannot_be_attached_to() {
    let pool = pool(vec![raidz(10, vec![device(11), device(12), device(13)]), log(device(21))]);
    refused(pool.attach(Guid(11), device(31), Guid(9), T));
    refused(pool.attach(Guid(10), device(31), Guid(9), T));
    refused(pool.attach(Guid(21), mirror(31, vec![device(32)]), Guid(9), T));
    refused(pool.detach(Guid(11), T));
    let unknown = pool.attach(Guid(5), device(31), Guid(9), T);
    assert!(matches!(unknown, Err(VdevError::NoSuchDevice(Guid(5)))));
    for guid in [0, 1 << 40] {
        assert!(pool.attach(Guid(guid), device(31), Guid(9), T).is_err());
    }
    // Nothing is there twice.
    let twice = pool.attach(Guid(21), device(11), Guid(9), T);
    assert!(matches!(twice, Err(VdevError::Config(_))));
    assert_eq!(
        shapes(&pool.attach(Guid(21), device(31), Guid(9), T).unwrap())[1],
        "mirror 9 (21, 31)"
    );
}

#[test]
fn one_device_replaces_another() {
    let before = pool(vec![mirror(10, vec![device(11), device(12)])]);
    let both = before.replace(Guid(12), device(13), Guid(9), T).unwrap();
    assert_eq!(shapes(&both), ["mirror 10 (11, replacing 9 (12, 13))"]);
    let parent = both.find(Guid(9)).unwrap();
    assert_eq!((parent.id, parent.top, parent.top_zap), (Some(1), None, None));
    // Below the top the one that stays keeps its guid.
    let done = both.detach(Guid(12), T).unwrap().topology;
    assert_eq!(shapes(&done), ["mirror 10 (11, 13)"]);
    assert_eq!(done.find(Guid(13)).unwrap().id, Some(1));
    assert_eq!(both.detach(Guid(13), T).unwrap().topology.root(), before.root());
    // A third one joins the two.
    let three = both.replace(Guid(13), device(14), Guid(8), T).unwrap();
    assert_eq!(shapes(&three), ["mirror 10 (11, replacing 9 (12, 13, 14))"]);
    refused(both.attach(Guid(13), device(14), Guid(8), T));
    // The mirror may go while the replacement lasts.
    let alone = both.detach(Guid(11), T).unwrap().topology;
    assert_eq!(shapes(&alone), ["replacing 10 (12, 13)"]);
    assert_eq!((alone.guid_before(Guid(10)), alone.tops()[0].top), (Guid(9), facts(10)));
}

#[test]
fn a_device_is_replaced_in_its_place() {
    let old = VdevConfig { devid: Some("serial".into()), ..device(12) };
    let before = pool(vec![raidz(10, vec![device(11), old, device(13)])]);
    let new = VdevConfig { path: Some("/d/12".into()), ..device(22) };
    let both = before.replace(Guid(12), new, Guid(9), T).unwrap();
    let path = |topology: &Topology, guid| topology.find(Guid(guid)).unwrap().path.clone();
    assert_eq!(path(&both, 12).as_deref(), Some("/d/12/old"));
    assert_eq!(both.find(Guid(12)).unwrap().devid, None);
    let back = both.detach(Guid(22), T).unwrap().topology;
    assert_eq!(path(&back, 12).as_deref(), Some("/d/12"));
    let done = both.detach(Guid(12), T).unwrap().topology;
    assert_eq!(path(&done, 22).as_deref(), Some("/d/12"));
}

#[test]
fn hot_spares_stand_in() {
    let before = pool(vec![raidz(10, vec![device(11), device(12), device(13)]), log(device(21))]);
    let one = before.replace(Guid(12), spare(31), Guid(9), T).unwrap();
    assert_eq!(shapes(&one)[0], "raidz 10 (11, spare 9 (12, *31), 13)");
    // The device that failed is replaced beside its spare.
    let both = one.replace(Guid(12), device(14), Guid(8), T).unwrap();
    assert_eq!(shapes(&both)[0], "raidz 10 (11, spare 9 (replacing 8 (12, 14), *31), 13)");
    let replaced = both.detach(Guid(12), T).unwrap().topology;
    assert_eq!(shapes(&replaced)[0], "raidz 10 (11, spare 9 (14, *31), 13)");
    let back = replaced.detach(Guid(31), T).unwrap();
    assert_eq!(
        (back.unspared, shapes(&back.topology)[0].as_str()),
        (None, "raidz 10 (11, 14, 13)")
    );
    // A spare takes the place of a spare; nothing else does.
    let two = one.replace(Guid(31), spare(32), Guid(8), T).unwrap();
    assert_eq!(shapes(&two)[0], "raidz 10 (11, spare 9 (12, *31, *32), 13)");
    refused(one.replace(Guid(31), device(14), Guid(8), T));
    refused(one.replace(Guid(12), spare(32), Guid(8), T));
    refused(before.replace(Guid(21), spare(31), Guid(8), T));
    // When the device goes for good, its spare is one no more.
    let stays = one.detach(Guid(12), T).unwrap();
    assert_eq!(stays.unspared, Some(Guid(31)));
    assert_eq!(shapes(&stays.topology)[0], "raidz 10 (11, 31, 13)");
    let stays = two.detach(Guid(12), T).unwrap();
    assert_eq!(stays.unspared, Some(Guid(32)));
    assert_eq!(shapes(&stays.topology)[0], "raidz 10 (11, spare 9 (*31, 32), 13)");
}

#[test]
fn distributed_spares_serve_their_own() {
    let draid = |guid, first| VdevConfig {
        nparity: Some(1),
        draid: Some(Draid { data: 1, spares: 1, groups: 1, children: None }),
        ..group(VdevKind::Draid, guid, (first..first + 3).map(device).collect())
    };
    let before = pool(vec![draid(10, 11), draid(20, 21)]);
    let spare = |top| VdevConfig {
        kind: VdevKind::DistributedSpare,
        top_guid: Some(Guid(top)),
        spare_id: Some(0),
        ..spare(31)
    };
    refused(before.replace(Guid(11), spare(20), Guid(9), T));
    let one = before.replace(Guid(11), spare(10), Guid(9), T).unwrap();
    assert_eq!(shapes(&one)[0], "draid 10 (spare 9 (11, dspare 31), 12, 13)");
    // It stays on the list of spares.
    assert_eq!(one.detach(Guid(11), T).unwrap().unspared, None);
    assert_eq!(one.detach(Guid(31), T).unwrap().topology.root(), before.root());
}

#[test]
fn raidz_grows_by_a_device_at_a_time() {
    let two =
        || vec![raidz(10, vec![device(11), device(12)]), raidz(20, vec![device(21), device(22)])];
    let before = pool(two());
    let more = before.expand(Guid(10), device(13), T).unwrap();
    assert_eq!(shapes(&more)[0], "raidz 10 (11, 12, 13)");
    assert!(more.tops()[0].raidz_expanding);
    refused(more.expand(Guid(10), device(14), T));
    refused(more.expand(Guid(20), device(23), T));
    refused(before.expand(Guid(11), device(13), T));
    refused(before.expanded(Guid(10), Txg(80), T));
    let replacing = before.replace(Guid(11), device(14), Guid(9), T).unwrap();
    refused(replacing.expand(Guid(10), device(13), T));
    let done = more.expanded(Guid(10), Txg(80), Txg(79)).unwrap();
    let top = done.find(Guid(10)).unwrap();
    assert_eq!((top.raidz_expanding, top.raidz_expand_txgs.clone()), (false, Some(vec![80])));
    let twice =
        done.expand(Guid(10), device(14), T).unwrap().expanded(Guid(10), Txg(90), T).unwrap();
    assert_eq!(twice.tops()[0].raidz_expand_txgs, Some(vec![80, 90]));
}

#[test]
fn top_level_vdevs_keep_their_ids() {
    let before = pool(vec![device(11), log(mirror(20, vec![device(21), device(22)])), device(31)]);
    let hole = before.leave_hole(1, T).unwrap();
    assert_eq!(shapes(&hole), ["11", "hole 0", "31"]);
    let place = &hole.tops()[1];
    assert_eq!((place.id, place.is_hole, place.top), (Some(1), true, Some(TopLevel::default())));
    assert_eq!((before.class(1), hole.class(1)), (AllocationClass::Log, AllocationClass::Normal));
    assert_eq!(before.guid_sum() - 20 - 21 - 22, hole.guid_sum());
    for id in [0, 1] {
        refused(hole.leave_hole(id, T));
    }
    assert!(matches!(hole.leave_hole(3, T), Err(VdevError::NoSuchVdev { vdev: 3, .. })));
    let more = [(device(41), AllocationClass::Special), (log(device(51)), AllocationClass::Log)];
    let grown = hole.add(more, T).unwrap();
    assert_eq!(shapes(&grown), ["11", "hole 0", "31", "41", "51"]);
    assert_eq!((grown.tops()[3].id, grown.tops()[3].create_txg), (Some(3), Some(T)));
    assert_eq!([3, 4].map(|id| grown.class(id)), [AllocationClass::Special, AllocationClass::Log]);
    assert_eq!((grown.top_of(Guid(51)), before.top_of(Guid(22))), (Some(4), Some(1)));
    assert!(grown.add([(device(11), AllocationClass::Normal)], T).is_err());
}

#[test]
fn a_pool_of_mirrors_is_split() {
    let pair = |guid: u64| mirror(guid, vec![device(guid + 1), device(guid + 2)]);
    let indirect = VdevConfig { children: None, ..group(VdevKind::Indirect, 40, Vec::new()) };
    let tops = vec![pair(10), log(device(20)), pair(30), indirect, pair(50), log(pair(60))];
    let before = pool(tops).with_classes(&[AllocationClass::Special]);
    let leg = |guid, new| Some(Leg { guid: Guid(guid), new: Guid(new) });
    let legs = [leg(12, 112), None, leg(31, 131), None, leg(52, 152)];
    let split = before.split(&legs, Guid(7), T).unwrap();
    assert_eq!(shapes(&split.leaves), ["112", "hole 0", "131", "indirect 40", "152"]);
    assert_eq!(split.leaves.class(0), AllocationClass::Special);
    assert_eq!(split.leaves.root().guid, Guid(7));
    let own = &split.leaves.tops()[2];
    assert_eq!((own.top, own.top_zap), (facts(30), Some(ObjectId(2030))));
    assert_eq!((own.leaf_zap, own.id), (Some(ObjectId(1031)), Some(2)));
    assert_eq!(shapes(&split.stays), ["10", "20", "30", "indirect 40", "50", "mirror 60 (61, 62)"]);
    let stays = &split.stays.tops()[0];
    assert_eq!((stays.original_guid, stays.path.as_deref()), (Some(Guid(11)), Some("/d/11")));
    for wrong in [
        &legs[..4],
        &[leg(12, 112), leg(20, 120), leg(31, 131), None, leg(52, 152)],
        &[None, None, leg(31, 131), None, leg(52, 152)],
        &[leg(12, 112), None, leg(31, 131), leg(40, 140), leg(52, 152)],
    ] {
        refused(before.split(wrong, Guid(7), T));
    }
    let swapped = [leg(31, 112), None, leg(12, 131), None, leg(52, 152)];
    assert!(matches!(before.split(&swapped, Guid(7), T), Err(VdevError::NoSuchDevice(_))));
    refused(pool(vec![device(11)]).split(&[leg(11, 111)], Guid(7), T));
}

#[test]
fn labels_and_the_whole_configuration() {
    let facts =
        PoolConfig { name: Some("p".into()), pool_guid: Some(Guid(1 << 40)), ..Default::default() };
    let before =
        pool(vec![mirror(10, vec![device(11), spare(12)]), log(device(20)), log(device(30))]);
    let hole = before.leave_hole(1, T).unwrap();
    let whole = hole.config(&facts);
    assert_eq!((whole.vdev_children, whole.vdev_tree.as_ref()), (Some(3), Some(hole.root())));
    let label = hole.label(&facts, Guid(12)).unwrap();
    assert_eq!((label.guid, label.top_guid), (Some(Guid(12)), Some(Guid(10))));
    assert_eq!((label.holes.as_slice(), label.vdev_children), (&[1][..], Some(3)));
    assert!(label.is_spare && !label.is_log && hole.label(&facts, Guid(30)).unwrap().is_log);
    let tree = label.vdev_tree.unwrap();
    assert!(tree.walk().all(|node| node.leaf_zap.is_none() && node.top_zap.is_none()));
    assert_eq!(hole.label(&facts, Guid(20)), None);
    let leaving =
        before.leaving(1).label(&facts, Guid(20)).unwrap().vdev_tree.unwrap().top.unwrap();
    assert_eq!((leaving.removing, leaving.metaslab_array), (Some(1), ObjectId(0)));
    let noted = hole.with_dirty_time_logs(&[(Guid(12), ObjectId(5)), (Guid(20), ObjectId(6))], T);
    assert_eq!(noted.find(Guid(12)).unwrap().dirty_time_log, Some(ObjectId(5)));
    assert_eq!(noted.root().walk().filter(|node| node.dirty_time_log.is_some()).count(), 1);
    let renamed = noted.with_guid(Guid(99), T).unwrap();
    assert_eq!(renamed.guid_sum(), noted.guid_sum() - (1 << 40) + 99);
    assert!(noted.with_guid(Guid(11), T).is_err());
}

proptest! {
    /// Whatever is done one after the other, what comes out can be read back from its configuration,
    /// only what an operation is about changes, and top-level ids and guids stay.
    #[test]
    fn any_order_of_operations(steps in prop::collection::vec((0_u8..6, any::<u16>()), 1..40)) {
        let mut now = pool(vec![
            device(11),
            mirror(20, vec![device(21), device(22)]),
            raidz(30, vec![device(31), device(32), device(33)]),
        ]);
        let mut next = 100;
        let mut fresh = || { next += 1; next };
        for (what, place) in steps {
            let all: Vec<Guid> = now.root().walk().map(|node| node.guid).collect();
            let guid = all[usize::from(place) % all.len()];
            let (new, parent) = (fresh(), Guid(fresh()));
            let after = match what {
                0 => now.attach(guid, device(new), parent, T),
                1 => now.replace(guid, device(new), parent, T),
                2 => now.replace(guid, spare(new), parent, T),
                3 => now.expand(guid, device(new), T),
                4 => now.add([(device(new), AllocationClass::Normal)], T),
                _ => now.detach(guid, T).map(|detached| detached.topology),
            };
            let Ok(after) = after else { continue };
            let leaves = |topology: &Topology| topology.root().devices().count();
            prop_assert_eq!(leaves(&after), leaves(&now) + usize::from(what < 5) - usize::from(what == 5));
            let list = after.root().to_nvlist();
            let read = VdevConfig::from_nvlist(&list).unwrap();
            prop_assert_eq!(&read, after.root());
            let read = Topology::of(read).unwrap();
            prop_assert_eq!(read.root(), after.root());
            for (id, (before, top)) in now.tops().iter().zip(after.tops()).enumerate() {
                prop_assert_eq!((top.id, top.top, top.top_zap), (Some(id as u64), before.top, before.top_zap));
                let inserted = top.guid == parent;
                prop_assert!(inserted || top.guid == before.guid);
                prop_assert!(top.walk().skip(1).all(|node| node.top.is_none() && node.top_zap.is_none()));
            }
            now = after;
        }
    }
}
