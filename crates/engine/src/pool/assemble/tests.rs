//! Pools put together from labels that are incomplete, stale or doubled.

use std::path::Path;

use super::*;
use crate::pool::testing::{POOL, Shelf, config, leaf, mirror, top, write_labels};

/// A pool of three top-level ids: a disk, a hole, a mirror; all labels of txg 20.
fn three() -> Shelf {
    let mut shelf = Shelf::default();
    let disk = top(VdevKind::File, 0, 0, vec![leaf(0, 21, "/d")]);
    let mirror = top(VdevKind::Mirror, 2, 30, vec![leaf(0, 31, "/m0"), leaf(1, 32, "/m1")]);
    for (tree, guid, path) in [(&disk, 21, "/d"), (&mirror, 31, "/m0"), (&mirror, 32, "/m1")] {
        let device = shelf.add(path);
        let mut config = config(tree, guid, 20, 3);
        config.holes = vec![1];
        config.comment = Some("a note".into());
        write_labels(&device, &config);
    }
    shelf
}

fn kinds(pool: &PoolCandidate) -> Vec<VdevKind> {
    pool.tree.children().iter().map(|child| child.kind).collect()
}

#[test]
fn every_id_has_a_node() {
    let pools = assemble(&three().scan());
    assert_eq!(pools.len(), 1);
    let pool = &pools[0];
    assert_eq!(kinds(pool), [VdevKind::File, VdevKind::Hole, VdevKind::Mirror]);
    assert_eq!((pool.guid, pool.name.as_str(), pool.version), (POOL, "tank", 5000));
    assert_eq!((pool.state, pool.txg), (PoolState::Exported, Txg(20)));
    assert_eq!(pool.comment.as_deref(), Some("a note"));
    assert_eq!(pool.leaves(&pool.tree).len(), 3);
}

#[test]
fn what_is_not_there_is_missing() {
    let mut shelf = three();
    shelf.devices.remove(Path::new("/d"));
    let pools = assemble(&shelf.scan());
    assert_eq!(kinds(&pools[0]), [VdevKind::Missing, VdevKind::Hole, VdevKind::Mirror]);
}

#[test]
fn renamed_devices_get_their_new_paths() {
    let mut shelf = three();
    let device = shelf.devices.remove(Path::new("/m1")).unwrap();
    shelf.devices.insert("/moved/x".into(), device);
    let pool = assemble(&shelf.scan()).pop().unwrap();
    let paths: Vec<_> = pool.tree.devices().filter_map(|node| node.path.clone()).collect();
    assert_eq!(paths, ["/d", "/m0", "/moved/x"]);
}

#[test]
fn a_copy_does_not_replace_the_device_at_its_place() {
    let mut shelf = three();
    let copy = shelf.devices[Path::new("/m1")].clone();
    shelf.devices.insert("/a-copy".into(), copy);
    let pool = assemble(&shelf.scan()).pop().unwrap();
    let paths: Vec<_> = pool.tree.devices().filter_map(|node| node.path.clone()).collect();
    assert_eq!(paths, ["/d", "/m0", "/m1"]);
}

#[test]
fn the_newest_label_of_a_top_level_wins() {
    let (mut shelf, tree) = mirror(7);
    let mut grown = tree.clone();
    grown.children.as_mut().unwrap().push(leaf(2, 13, "/c"));
    let device = shelf.add("/c");
    let mut newer = config(&grown, 13, 9, 1);
    newer.name = Some("renamed".into());
    write_labels(&device, &newer);
    let pool = assemble(&shelf.scan()).pop().unwrap();
    assert_eq!(pool.tree.children()[0].children().len(), 3);
    assert_eq!((pool.txg, pool.name.as_str()), (Txg(9), "renamed"));
}

#[test]
fn stale_ids_beyond_the_newest_count_are_dropped() {
    let (mut shelf, _) = mirror(7);
    let stale = top(VdevKind::File, 5, 0, vec![leaf(5, 51, "/s")]);
    let device = shelf.add("/s");
    write_labels(&device, &config(&stale, 51, 3, 6));
    let pool = assemble(&shelf.scan()).pop().unwrap();
    assert_eq!(kinds(&pool), [VdevKind::Mirror]);
}

#[test]
fn pools_of_one_name_stay_apart_and_spares_belong_to_none() {
    let (mut shelf, tree) = mirror(7);
    let mut other = config(&tree, 11, 7, 1);
    other.pool_guid = Some(Guid(2000));
    let device = shelf.add("/z");
    write_labels(&device, &other);
    let spare = PoolConfig {
        version: Some(5000),
        state: Some(PoolState::Spare),
        guid: Some(Guid(77)),
        ..PoolConfig::default()
    };
    let device = shelf.add("/spare");
    write_labels(&device, &spare);
    let pools = assemble(&shelf.scan());
    assert_eq!(pools.iter().map(|pool| pool.guid.0).collect::<Vec<_>>(), [1000, 2000]);
    assert!(pools[0].auxiliary.contains_key(&Guid(77)));
    assert_eq!(pools[1].devices.len(), 1);
}

#[test]
fn an_impossible_count_is_no_pool() {
    let (shelf, tree) = mirror(7);
    for (path, guid) in [("/a", 11), ("/b", 12)] {
        let hostile = config(&tree, guid, 8, u64::MAX);
        write_labels(&shelf.devices[Path::new(path)], &hostile);
    }
    assert!(assemble(&shelf.scan()).is_empty());
}

#[test]
fn withheld_leaves_are_not_read() {
    let (shelf, mut tree) = mirror(7);
    tree.children.as_mut().unwrap()[1].offline = true;
    write_labels(&shelf.devices[Path::new("/a")], &config(&tree, 11, 8, 1));
    let pool = assemble(&shelf.scan()).pop().unwrap();
    let leaves: Vec<_> = pool.leaves(&pool.tree).iter().map(|leaf| leaf.guid.0).collect();
    assert_eq!(leaves, [11]);
    assert!(pool.devices.contains_key(&Guid(12)));
}
