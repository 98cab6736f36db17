//! Reading the files of a dataset, within bounds of our own.
//!
//! Invariant: as in the walk of the pool, every loop here is bounded by a count.

use std::collections::VecDeque;
use std::sync::Arc;

use cenote_engine::dataset::{Dataset, DatasetKind, Keys};
use cenote_engine::pool::Pool;
use cenote_posix::dataset_files;
use cenote_posix::tree::{Caller, ROOT, Seek, Timestamp, Tree};
use cenote_posix::volume::Volume;

use crate::tally::Tally;

/// Most nodes of one dataset, entries of one directory, and steps through one file.
const NODES: usize = 120;
const ENTRIES: usize = 300;
const STEPS: usize = 20;

/// Reads the files or the volume of one dataset.
pub fn walk(pool: &Arc<Pool>, head: &Dataset, keys: &Arc<dyn Keys>, tally: &mut Tally) {
    let Ok(space) = pool.space() else { return };
    if let Ok(DatasetKind::Volume) = pool.catalog().kind(head) {
        volume(pool, head, &**keys, tally);
    }
    let (time, capacity) = (Timestamp::default(), space.capacity());
    let opened = dataset_files::open(&pool.catalog(), head, keys, capacity, time);
    if let Some(tree) = tally.of(opened) {
        files(&tree, tally);
    }
}

fn volume(pool: &Arc<Pool>, head: &Dataset, keys: &dyn Keys, tally: &mut Tally) {
    let opened = pool.catalog().object_set(head, keys).map(|set| Volume::open(&set));
    let Some(Ok(volume)) = tally.of(opened) else { return };
    for offset in [0, volume.size() / 2, volume.size().saturating_sub(1), u64::MAX - 5] {
        tally.of(volume.read_at(offset, 70_000));
        tally.of(volume.next_stored(offset));
    }
}

fn files(tree: &dyn Tree, tally: &mut Tally) {
    tally.of(tree.space());
    let mut rest = VecDeque::from([ROOT]);
    tally.of(tree.lookup(ROOT, b".zfs"));
    let mut looked = 0;
    while let Some(node) = rest.pop_front() {
        looked += 1;
        if looked > NODES {
            break;
        }
        let attributes = tally.of(tree.attributes(node));
        tally.of(tree.access(node, Caller { uid: 1000, gid: 7, pid: 0 }, 7));
        tally.of(tree.read_link(node));
        for name in tally.of(tree.list_xattr(node)).unwrap_or_default().iter().take(STEPS) {
            tally.of(tree.get_xattr(node, name));
        }
        tally.of(tree.get_xattr(node, b"user.n1"));
        tally.of(tree.get_xattr(node, b"system.posix_acl_access"));
        let mut found = Vec::new();
        let result = tree.read_directory(node, 0, &mut |entry| {
            found.push(entry);
            found.len() < ENTRIES
        });
        tally.of(result);
        for entry in found {
            tally.of(tree.lookup(node, &entry.name));
            let _ = tree.read_directory(node, entry.next, &mut |_| false);
            if entry.name != b"." && entry.name != b".." {
                rest.push_back(entry.node);
            }
        }
        let size = attributes.map_or(0, |attributes| attributes.size);
        for offset in [0, size / 2, size.saturating_sub(100), u64::MAX - 3] {
            tally.of(tree.read(node, offset, 200_000));
        }
        let mut at = 0;
        for step in 0..STEPS {
            let what = if step % 2 == 0 { Seek::Data } else { Seek::Hole };
            let Some(next) = tally.of(tree.seek(node, at, what)) else { break };
            assert!(next >= at, "seeking goes forward");
            at = next;
        }
    }
}
