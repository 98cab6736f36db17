//! Labels written here are found, and no power loss leaves a pool without its root.

use std::path::PathBuf;

use cenote_device::{Health, Keep, SimDevice, SimEvent};
use cenote_format::config::{PoolState, VdevConfig, VdevKind};

use super::*;
use crate::pool::choose::{Leaf, choose, read_uberblocks};
use crate::pool::testing::{self, POOL, SIZE, leaf, top, uberblock};
use crate::vdev::{LeafUnavailable, VdevState};

struct Rig {
    disks: Vec<Arc<SimDevice>>,
    tree: VdevTree,
    config: PoolConfig,
}

/// A mirror of two disks and a single disk.
fn rig() -> Rig {
    rig_on(["/a", "/b", "/c"].map(|p| Arc::new(SimDevice::new(p, SIZE))).into())
}

/// The same on these disks.
fn rig_on(disks: Vec<Arc<SimDevice>>) -> Rig {
    let leaves = vec![leaf(0, 11, "/a"), leaf(1, 12, "/b")];
    let mirror = top(VdevKind::Mirror, 0, 10, leaves);
    let single = top(VdevKind::File, 1, 0, vec![leaf(0, 13, "/c")]);
    rig_of(vec![mirror, single], disks)
}

fn rig_of(tops: Vec<VdevConfig>, disks: Vec<Arc<SimDevice>>) -> Rig {
    let root = VdevConfig {
        kind: VdevKind::Root,
        guid: POOL,
        children: Some(tops),
        ..VdevConfig::default()
    };
    let shelf = disks.clone();
    let opener = move |leaf: &VdevConfig| {
        let path = leaf.path.clone().map(PathBuf::from);
        let disk = shelf.iter().find(|disk| Some(disk.path()) == path).cloned();
        disk.map(|disk| disk as Arc<dyn Device>)
            .ok_or_else(|| LeafUnavailable::open_failed("no such disk"))
    };
    let tree = VdevTree::build(&root, Arc::new(opener)).unwrap();
    let config = PoolConfig {
        version: Some(5000),
        name: Some("tank".into()),
        state: Some(PoolState::Active),
        pool_guid: Some(POOL),
        errata: Some(0),
        hostname: Some("here".into()),
        vdev_tree: Some(root),
        features_for_read: Some(vec!["com.delphix:hole_birth".into()]),
        has_per_vdev_zaps: true,
        ..PoolConfig::default()
    };
    Rig { disks, tree, config }
}

fn ub(rig: &Rig, txg: u64) -> Uberblock {
    uberblock(txg, rig.config.vdev_tree.as_ref().unwrap().guid_sum())
}

fn chosen(disks: &[Arc<SimDevice>]) -> super::super::choose::Choice {
    let leaves: Vec<Leaf> = disks
        .iter()
        .zip(11..)
        .map(|(disk, guid)| Leaf { guid: Guid(guid), ashift: Some(12), device: disk.clone() })
        .collect();
    choose(&leaves, None, DEFAULT_DEADLINE).unwrap()
}

#[test]
fn labels_and_uberblocks_are_found_again() {
    let rig = rig();
    initialise(&rig.tree).unwrap();
    write_labels(&rig.tree, &rig.config, &ub(&rig, 4)).unwrap();
    for txg in 5..40 {
        write_uberblock(&rig.tree, &ub(&rig, txg)).unwrap();
    }
    let choice = chosen(&rig.disks);
    assert_eq!(choice.best, ub(&rig, 39));
    let label = choice.label.unwrap();
    assert_eq!((label.txg, label.name.as_deref()), (Some(Txg(4)), Some("tank")));
    assert_eq!(label.vdev_children, Some(2));
    for disk in &rig.disks {
        let labels = read_labels(&**disk).unwrap();
        assert!(labels.len() == 4 && labels.iter().all(|label| label.verified));
        // 32 slots, four times.
        assert_eq!(read_uberblocks(&**disk, Some(12)).unwrap().len(), 128);
    }
    let shelf = testing::Shelf {
        devices: rig.disks.iter().map(|disk| (disk.path(), disk.clone())).collect(),
    };
    let pools = super::super::assemble::assemble(&shelf.scan());
    let tree = rig.config.vdev_tree.as_ref().unwrap();
    assert_eq!(pools[0].tree.children(), tree.children());
}

#[test]
fn one_healthy_leaf_of_each_vdev_is_enough() {
    let rig = rig();
    initialise(&rig.tree).unwrap();
    rig.disks[0].set_health(Health::FailsWrites);
    write_labels(&rig.tree, &rig.config, &ub(&rig, 4)).unwrap();
    rig.disks[2].set_health(Health::FailsWrites);
    let error = write_uberblock(&rig.tree, &ub(&rig, 5)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
    assert!(error.reason().contains("vdev 1") && error.reason().contains("/c"), "{error}");
    rig.disks[2].set_health(Health::Hangs);
    assert!(write_uberblock(&rig.tree, &ub(&rig, 5)).is_err());
    let state = |guid| rig.tree.status().unwrap().find(Guid(guid)).unwrap().condition.state;
    assert_eq!(state(13), VdevState::Unavailable);
    // A device that was given up is asked again where there is no other.
    rig.disks[2].set_health(Health::Well);
    write_labels(&rig.tree, &rig.config, &ub(&rig, 5)).unwrap();
    assert_eq!(chosen(&rig.disks[2..]).best.txg, Txg(5));
}

#[test]
fn power_loss_at_any_moment_leaves_a_root_and_its_label() {
    let rig = rig();
    initialise(&rig.tree).unwrap();
    write_labels(&rig.tree, &rig.config, &ub(&rig, 7)).unwrap();
    rig.disks.iter().for_each(|disk| disk.record());
    let renamed = PoolConfig { name: Some("renamed".into()), ..rig.config.clone() };
    write_labels(&rig.tree, &renamed, &ub(&rig, 8)).unwrap();
    let mut moments: Vec<u64> = rig
        .disks
        .iter()
        .flat_map(|disk| disk.recorded().into_iter().map(|recorded| recorded.order))
        .collect();
    moments.sort_unstable();
    moments.push(u64::MAX);
    assert!(moments.len() > 20);
    let mut seen = [0; 2];
    let mut random = 1u64;
    for &moment in &moments {
        for how in 0..3 {
            let mut keep = |recorded: &cenote_device::Recorded| {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let len = match &recorded.event {
                    SimEvent::Write { data, .. } => data.len(),
                    SimEvent::Flush => 0,
                };
                match (how, random >> 62) {
                    (0, _) | (2, 0) => Keep::Nothing,
                    (1, _) | (2, 1) => Keep::All,
                    (_, 2) => Keep::First(len / 512 / 2 * 512),
                    _ => Keep::AllBut(512),
                }
            };
            let disks: Vec<Arc<SimDevice>> = rig
                .disks
                .iter()
                .map(|disk| Arc::new(disk.after_crash(moment, &mut keep)))
                .collect();
            let choice = chosen(&disks);
            let label = choice.label.expect("a label goes with the uberblock");
            let expected = match choice.best.txg.0 {
                7 => "tank",
                8 => "renamed",
                other => panic!("uberblock of {other}"),
            };
            assert_eq!(label.name.as_deref(), Some(expected), "moment {moment}");
            seen[choice.best.txg.0 as usize - 7] += 1;
        }
    }
    assert!(seen[0] > 5 && seen[1] > 5, "{seen:?}");
}

#[test]
fn power_lost_twice_leaves_every_leaf_a_label() {
    let rig = rig();
    initialise(&rig.tree).unwrap();
    write_labels(&rig.tree, &rig.config, &ub(&rig, 7)).unwrap();
    let recorded = |rig: &Rig, txg| {
        rig.disks.iter().for_each(|disk| disk.record());
        write_labels(&rig.tree, &rig.config, &ub(rig, txg)).unwrap();
        let events = rig.disks.iter().flat_map(|disk| disk.recorded());
        events.map(|recorded| recorded.order).chain([u64::MAX]).collect::<Vec<_>>()
    };
    let mut torn = 0;
    for first in recorded(&rig, 8) {
        // What was not flushed is there by half.
        let mut half = |recorded: &cenote_device::Recorded| match &recorded.event {
            SimEvent::Write { data, .. } => Keep::First(data.len() / 1024 * 512),
            SimEvent::Flush => Keep::All,
        };
        let after = |disk: &Arc<SimDevice>| Arc::new(disk.after_crash(first, &mut half));
        let disks: Vec<_> = rig.disks.iter().map(after).collect();
        let labels = disks.iter().flat_map(|disk| read_labels(&**disk).unwrap());
        torn += labels.filter(|label| !label.verified).count();
        let again = rig_on(disks);
        for second in recorded(&again, 9) {
            let after = |disk: &Arc<SimDevice>| disk.after_crash(second, &mut |_| Keep::Nothing);
            let disks: Vec<_> = again.disks.iter().map(after).map(Arc::new).collect();
            let newest = chosen(&disks).best.txg;
            for disk in &disks {
                let labels = read_labels(&**disk).unwrap();
                let label = super::super::found_labels::best_label(&labels, Some(newest));
                assert!(label.is_some(), "{} after {first} and {second}", disk.path().display());
            }
        }
    }
    assert!(torn > 5, "{torn}");
}

#[test]
fn fresh_labels_cannot_be_loaded_and_clearing_forgets_them() {
    let size = SIZE + 100_000;
    let disk = Arc::new(SimDevice::from_bytes("/new", vec![0xa5; size]));
    let device: Arc<dyn Device> = disk.clone();
    let config = PoolConfig {
        version: Some(5000),
        state: Some(PoolState::Spare),
        guid: Some(Guid(77)),
        ..PoolConfig::default()
    };
    initialise_devices(&[(device.clone(), config)], &uberblock(9, 1)).unwrap();
    let labels = read_labels(&*device).unwrap();
    assert_eq!(labels.len(), 4);
    assert!(labels.iter().all(|label| label.verified && label.counts()));
    assert!(read_uberblocks(&*device, None).unwrap().is_empty());
    // The whole ring is one block, as OpenZFS leaves it.
    let ring = device.read(label::RING_OFFSET, label::RING_SIZE as usize).unwrap();
    assert!(super::super::found_labels::is_verified(&ring, label::RING_OFFSET));
    assert_eq!(Uberblock::decode(&ring).unwrap().txg, Txg(0));
    let first = device.read(0, 8192).unwrap();
    assert!(first.iter().all(|byte| *byte == 0));
    let boot = device.read(label::BOOT_ENV_OFFSET, label::BOOT_ENV_SIZE).unwrap();
    assert!(super::super::found_labels::is_verified(&boot, label::BOOT_ENV_OFFSET));
    // Neither the boot area nor data is touched; the unused tail is cleared.
    assert_eq!(device.read(label::BOOT_AREA_START, 1).unwrap()[0], 0xa5);
    assert_eq!(device.read(size as u64 - 1, 1).unwrap()[0], 0);
    assert_eq!(clear_labels(&device).unwrap(), 4);
    assert!(read_labels(&*device).unwrap().is_empty());
    assert_eq!(clear_labels(&device).unwrap(), 0);
    assert_eq!(device.read(label::BOOT_ENV_OFFSET, label::BOOT_ENV_SIZE).unwrap(), boot);
}
