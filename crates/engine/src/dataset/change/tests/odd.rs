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

/// A filesystem of ten blocks below `a`, its snapshot, and a clone of that below `parent`.
fn cloned(world: &World, parent: ObjectId) -> (MadeDataset, ObjectId, MadeDataset) {
    let fs = world.filesystem(5, "fs");
    let blocks: Vec<BlockPointer> = (0..10).map(|number| block(number, 6)).collect();
    world.write(6, fs.dataset, &blocks, &[]).unwrap();
    let s = snapshot(world, 6, fs.dataset, "s");
    let new = NewDataset { parent, name: "c", origin: Some(s), ..NewDataset::default() };
    (fs, s, make(world, 7, &new))
}

#[test]
fn promoting_needs_no_room_that_it_leaves_behind() {
    let world = World::full();
    let root = world.skeleton.root;
    let (fs, _, clone) = cloned(&world, root.directory);
    let used = directory(&world, root.directory).used_bytes;
    set(&world, 8, root.dataset, "quota", used + 4096);
    world.change(9, |change| change.promote(clone.dataset)).unwrap();
    world.audit(9);
    assert_eq!(directory(&world, clone.directory).used_bytes, 10 << 12);
    assert_eq!(directory(&world, fs.directory).used_bytes, 0);
    // What is reserved for the one that gives stays reserved: the other needs room of its own.
    set(&world, 10, root.dataset, "quota", 0);
    set(&world, 10, clone.dataset, "reservation", 10 << 12);
    set(&world, 10, root.dataset, "quota", used + 4096);
    let refused = world.change(11, |change| change.promote(fs.dataset)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NoSpace);
    set(&world, 12, clone.dataset, "reservation", 0);
    // A quota of its own counts.
    set(&world, 12, fs.dataset, "quota", 9 << 12);
    let refused = world.change(13, |change| change.promote(fs.dataset)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NoSpace);
}

#[test]
fn renaming_counts_what_stays_reserved() {
    let world = World::full();
    let root = world.skeleton.root;
    let (from, to) = (world.filesystem(5, "from"), world.filesystem(5, "to"));
    let parent = from.directory;
    let x = make(&world, 5, &NewDataset { parent, name: "x", ..NewDataset::default() });
    let blocks: Vec<BlockPointer> = (0..10).map(|number| block(number, 6)).collect();
    world.write(6, x.dataset, &blocks, &[]).unwrap();
    set(&world, 7, from.dataset, "reservation", 10 << 12);
    let used = directory(&world, root.directory).used_bytes;
    set(&world, 7, root.dataset, "quota", used + 4096);
    let rename =
        |txg| world.change(txg, |change| change.rename_directory(x.directory, to.directory, "x"));
    assert_eq!(rename(8).unwrap_err().kind(), ErrorKind::NoSpace);
    set(&world, 9, from.dataset, "reservation", 0);
    rename(10).unwrap();
    world.audit(10);
}

#[test]
fn promoting_keeps_the_bookmarks_of_both() {
    let world = World::full();
    let (fs, s, clone) = cloned(&world, world.skeleton.root.directory);
    let own = snapshot(&world, 8, clone.dataset, "own");
    for (head, name, of) in [(fs, "m", s), (fs, "n", s), (clone, "m", own)] {
        world.change(9, |change| change.create_bookmark(head.dataset, name, of)).unwrap();
    }
    let refused = world.change(10, |change| change.promote(clone.dataset)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Exists);
    assert!(refused.to_string().contains("'m'"), "{refused}");
    world.change(11, |change| change.destroy_bookmark(clone.dataset, "m")).unwrap();
    world.change(12, |change| change.promote(clone.dataset)).unwrap();
    let of_clone = world.change(12, |change| change.bookmarks(clone.dataset)).unwrap();
    let mut names: Vec<&str> = of_clone.iter().map(|(name, _)| name.as_str()).collect();
    names.sort();
    assert_eq!(names, ["m", "n"]);
}

#[test]
fn written_since_a_bookmark_after_which_nothing_was_freed() {
    let world = World::full();
    let fs = world.filesystem(5, "fs");
    let [a, b, c] = [block(1, 6), block(2, 6), block(3, 9)];
    world.write(6, fs.dataset, &[a, b], &[]).unwrap();
    snapshot(&world, 6, fs.dataset, "first");
    world.write(7, fs.dataset, &[], &[a]).unwrap();
    let marked = snapshot(&world, 7, fs.dataset, "marked");
    world.change(8, |change| change.create_bookmark(fs.dataset, "m", marked)).unwrap();
    world.change(8, |change| change.destroy_snapshot(marked, false)).unwrap();
    let written = || {
        let catalog = world.catalog();
        let head = catalog.dataset_named("tank/fs").unwrap();
        let bookmark = catalog.bookmark(&DatasetName::parse("tank/fs#m").unwrap()).unwrap();
        catalog.written_since_bookmark(&head, &bookmark).unwrap().used
    };
    // What the deadlist has died before the bookmark was made.
    assert_eq!(written(), 0);
    world.write(9, fs.dataset, &[c], &[]).unwrap();
    assert_eq!(written(), 4096);
    world.write(10, fs.dataset, &[], &[b]).unwrap();
    assert_eq!(written(), 4096);
}

#[test]
fn a_tree_without_counts_is_counted_where_it_comes_to() {
    let world = World::full();
    let (tree, counted) = (world.filesystem(5, "tree"), world.filesystem(5, "counted"));
    let parent = tree.directory;
    let a = make(&world, 5, &NewDataset { parent, name: "a", ..NewDataset::default() });
    snapshot(&world, 6, tree.dataset, "s");
    snapshot(&world, 6, a.dataset, "s");
    let limit = |txg, name, most| set(&world, txg, counted.dataset, name, most);
    limit(7, "filesystem_limit", 1);
    let rename = |txg| {
        world.change(txg, |change| change.rename_directory(tree.directory, counted.directory, "t"))
    };
    assert_eq!(rename(8).unwrap_err().kind(), ErrorKind::Quota);
    limit(9, "filesystem_limit", 2);
    limit(9, "snapshot_limit", 1);
    assert_eq!(rename(10).unwrap_err().kind(), ErrorKind::Quota);
    limit(11, "snapshot_limit", 2);
    rename(12).unwrap();
    let counts = |directory| {
        let count = |key| world.change(12, |change| change.number_field(directory, key)).unwrap();
        (count(KEY_FILESYSTEM_COUNT), count(KEY_SNAPSHOT_COUNT))
    };
    assert_eq!(counts(counted.directory), (Some(2), Some(2)));
    assert_eq!(counts(tree.directory), (Some(1), Some(2)));
    assert_eq!(counts(world.skeleton.root.directory), (None, None));
}

#[test]
fn shares_that_were_left_wrong_do_not_stop_the_pool() {
    let world = World::full();
    let fs = world.filesystem(5, "fs");
    let [a, b, c, d] = [block(1, 6), block(2, 6), block(3, 8), block(4, 9)];
    world.write(6, fs.dataset, &[a, b], &[]).unwrap();
    snapshot(&world, 6, fs.dataset, "s");
    let wrap = |txg, head: u64, snapshots: u64| {
        let alter = |phys: &mut DslDirectory| {
            (phys.used_breakdown.head, phys.used_breakdown.snapshots) = (head, snapshots);
        };
        world.change(txg, |change| change.alter_directory(fs.directory, alter)).unwrap();
    };
    let shares = || {
        let phys = directory(&world, fs.directory);
        (phys.used_bytes, phys.used_breakdown.head, phys.used_breakdown.snapshots)
    };
    // The head is said to have less than nothing, the snapshots too much.
    wrap(7, 4096_u64.wrapping_neg(), 3 << 12);
    world.write(8, fs.dataset, &[c], &[]).unwrap();
    assert_eq!(shares(), (3 << 12, 0, 3 << 12));
    world.write(9, fs.dataset, &[d], &[a]).unwrap();
    let unique = world.change(9, |change| change.dataset(fs.dataset)).unwrap().unique_bytes;
    assert_eq!((unique, shares()), (2 << 12, (4 << 12, 0, 4 << 12)));
    // The other way round.
    wrap(10, 5 << 12, 4096_u64.wrapping_neg());
    world.write(10, fs.dataset, &[], &[b]).unwrap();
    assert_eq!(shares(), (4 << 12, 4 << 12, 0));
    wrap(11, 6 << 12, 8192_u64.wrapping_neg());
    let s = world.catalog().dataset_named("tank/fs@s").unwrap().id;
    let parent = world.skeleton.root.directory;
    let new = NewDataset { parent, name: "c", origin: Some(s), ..NewDataset::default() };
    let clone = make(&world, 11, &new);
    world.change(12, |change| change.promote(clone.dataset)).unwrap();
    world.audit(12);
    assert_eq!(directory(&world, clone.directory).used_bytes, 2 << 12);
    assert_eq!(directory(&world, fs.directory).used_bytes, 2 << 12);
}
