//! Orders that move what is charged already, and sums, deadlists and tables of properties as others left
//! them.

use cenote_format::dsl_directory::{DslDirectory, KEY_FILESYSTEM_COUNT, KEY_SNAPSHOT_COUNT};

use super::*;
use crate::dataset::{DatasetKind, DatasetName};

fn set(world: &World, txg: u64, head: ObjectId, name: &str, value: u64) {
    let input = PropertyInput::number(name, value);
    world.change(txg, |change| change.set_property(head, &input)).unwrap();
    world.audit(txg);
}

fn snapshot(world: &World, txg: u64, head: ObjectId, name: &str) -> ObjectId {
    world.change(txg, |change| change.create_snapshot(head, name, &[])).unwrap()
}

fn directory(world: &World, id: ObjectId) -> DslDirectory {
    world.change(9, |change| change.directory(id)).unwrap()
}

fn make(world: &World, txg: u64, new: &NewDataset<'_>) -> MadeDataset {
    world.change(txg, |change| change.create_dataset(new)).unwrap()
}

#[test]
fn a_received_value_that_shows_again_counts() {
    let world = World::full();
    let fs = world.filesystem(5, "fs");
    let inherit = |txg, head, name: &str| {
        let done = world.change(txg, |change| change.inherit_property(head, name, true));
        world.audit(txg);
        done
    };
    let sizes = [("refreservation", 100 << 12), ("reservation", 300 << 12), ("quota", 1 << 30)];
    let inputs = sizes.map(|(name, size)| PropertyInput::number(name, size));
    let kind = DatasetKind::Filesystem;
    let refused = world.change(6, |change| change.set_received(fs.dataset, kind, &inputs));
    assert!(refused.unwrap().is_empty());
    world.audit(6);
    sizes.iter().for_each(|(name, _)| set(&world, 7, fs.dataset, name, 0));
    sizes.iter().for_each(|(name, _)| inherit(8, fs.dataset, name).unwrap());
    let phys = directory(&world, fs.directory);
    assert_eq!((phys.quota, phys.reserved), (1 << 30, 300 << 12));
    assert_eq!(phys.used_breakdown.refreservation, 100 << 12);
    world.write(9, fs.dataset, &[block(1, 9)], &[]).unwrap();
    world.audit(9);
    // Without one nothing is held back any more.
    let other = world.filesystem(10, "other");
    sizes.iter().for_each(|(name, size)| set(&world, 10, other.dataset, name, *size));
    sizes.iter().for_each(|(name, _)| inherit(11, other.dataset, name).unwrap());
    let phys = directory(&world, other.directory);
    assert_eq!((phys.quota, phys.reserved, phys.used_bytes), (0, 0, 0));
    // What there is no room for does not come back.
    set(&world, 12, fs.dataset, "refreservation", 0);
    set(&world, 12, fs.dataset, "reservation", 0);
    set(&world, 12, other.dataset, "quota", 0);
    set(&world, 12, other.dataset, "reservation", ROOM - (50 << 12));
    let error = inherit(13, fs.dataset, "refreservation").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
}

#[test]
fn a_full_dataset_goes_back() {
    let world = World::full();
    let deepest = (0..49).map(|_| "d").collect::<Vec<_>>();
    let long = "x".repeat(240);
    let paths = [vec!["fs"], vec![long.as_str(), "e"], deepest];
    for (txg, path) in (5..).step_by(10).zip(paths) {
        let mut at = world.skeleton.root;
        for name in path {
            let parent = at.directory;
            at = make(&world, txg, &NewDataset { parent, name, ..NewDataset::default() });
        }
        let [old, new] = [block(txg, txg + 1), block(txg + 1, txg + 2)];
        world.write(txg + 1, at.dataset, &[old], &[]).unwrap();
        snapshot(&world, txg + 1, at.dataset, "s");
        world.write(txg + 2, at.dataset, &[new], &[old]).unwrap();
        set(&world, txg + 2, at.dataset, "quota", 8192);
        let left = world.change(txg + 3, |change| change.available_to(at.directory)).unwrap();
        assert_eq!(left, 0);
        let back = |change: &MosChange<'_>| change.begin_rollback(at.dataset);
        let clone = world.change(txg + 3, back).unwrap();
        world.audit(txg + 3);
        // What is thrown away goes one by one: there is no tree to walk.
        world.write(txg + 3, clone, &[], &[new]).unwrap();
        world.change(txg + 3, |change| change.destroy_head(clone)).unwrap();
        world.audit(txg + 3);
        assert_eq!(directory(&world, at.directory).used_bytes, 4096);
    }
}
