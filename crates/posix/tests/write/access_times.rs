//! When the times of reads get to the objects.
//!
//! Invariant: a read never waits for its time to be stored, and what is noted of reads stays small.

use std::time::Duration;

use cenote_engine::{Error, ErrorKind};
use cenote_format::ObjectId;
use cenote_posix::tree::{NodeId, ROOT, Tree};
use cenote_posix::write::SyncMode;
use cenote_posix::{View, WriteProperties};

use super::rig::{Rig, Setup, plain};

/// Files that are read, of which few may be noted only.
const FILES: usize = 10_000;
/// How many may be noted only.
const NOTED: usize = 1_024;

/// Whether the object of a file says when it was read.
fn is_stored(rig: &Rig, node: NodeId) -> bool {
    let stored = View::open(rig.objects.clone(), 0).unwrap().file(ObjectId(node)).unwrap();
    stored.facts.accessed > stored.facts.created
}

fn files(rig: &Rig, count: usize) -> Vec<NodeId> {
    let made = (0..count).map(|number| rig.file(ROOT, &format!("f{number}")));
    let made: Vec<NodeId> = made.collect();
    std::thread::sleep(Duration::from_millis(2));
    made
}

fn read_all(rig: &Rig, files: &[NodeId]) {
    files.iter().for_each(|node| drop(rig.read(*node, 0, 1)));
}

#[test]
fn an_fsync_stores_when_the_file_was_read() {
    let properties =
        WriteProperties { sync_mode: SyncMode::Disabled, ..WriteProperties::default() };
    let rig = Setup { properties, ..Setup::default() }.make();
    let files = files(&rig, 2);
    read_all(&rig, &files);
    let shown = rig.tree.attributes(files[0]).unwrap().accessed;
    rig.tree.sync(files[0], false).unwrap();
    assert!(is_stored(&rig, files[0]), "the file that was synced");
    assert!(!is_stored(&rig, files[1]), "another");
    assert_eq!(rig.tree.attributes(files[0]).unwrap().accessed, shown);
}

#[test]
fn of_very_many_files_read_few_are_only_noted() {
    let rig = plain();
    let files = files(&rig, FILES);
    read_all(&rig, &files);
    let noted = files.iter().filter(|node| !is_stored(&rig, **node)).count();
    assert!(noted <= NOTED, "{noted}");
    rig.tree.writer().unwrap().store_access_times();
    assert!(files.iter().all(|node| is_stored(&rig, *node)));
}

#[test]
fn only_what_was_noted_some_time_ago_goes_with_an_ordinary_group() {
    let rig = plain();
    let files = files(&rig, 3);
    let writer = rig.tree.writer().unwrap();
    read_all(&rig, &files);
    writer.store_old_access_times(Duration::from_secs(3600));
    assert!(!files.iter().any(|node| is_stored(&rig, *node)));
    writer.store_old_access_times(Duration::ZERO);
    assert!(files.iter().all(|node| is_stored(&rig, *node)));
    // Nobody reads: nothing is changed any more.
    let dirty = rig.gate.dirty_bytes();
    writer.store_old_access_times(Duration::ZERO);
    assert_eq!(rig.gate.dirty_bytes(), dirty);
}

#[test]
fn nobody_waits_for_a_suspended_pool_to_take_access_times() {
    let rig = plain();
    let files = files(&rig, FILES);
    rig.gate.suspend(Error::new(ErrorKind::Io, "no device"), false);
    read_all(&rig, &files);
    let writer = rig.tree.writer().unwrap();
    writer.store_old_access_times(Duration::ZERO);
    writer.store_access_times();
    assert!(!files.iter().any(|node| is_stored(&rig, *node)));
    rig.gate.resume();
    writer.store_access_times();
    assert!(is_stored(&rig, files[0]), "what was noted meanwhile is kept");
}
