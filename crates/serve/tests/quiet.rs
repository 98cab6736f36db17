//! Mounts that nobody uses.
//!
//! Invariant: they take no thread, and answer at once all the same.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use cenote_serve::fuse::{MountOptions, mount};

mod memory;
mod support;
use memory::{MemoryTree, ROOT_INO};
use support::{can_mount, directory, until_within};

const MOUNTS: usize = 100;
/// The watcher, and threads it may lend.
const FEW: usize = 10;

/// Threads of this process that serve mounts.
fn threads() -> usize {
    let serves = |entry: &std::io::Result<fs::DirEntry>| {
        let place = entry.as_ref().unwrap().path().join("comm");
        fs::read_to_string(place).unwrap_or_default().starts_with("fuse")
    };
    fs::read_dir("/proc/self/task").unwrap().filter(serves).count()
}

#[test]
fn mounts_that_nobody_uses_take_no_threads() {
    if !can_mount() {
        return;
    }
    let mounts: Vec<_> = (0..MOUNTS)
        .map(|number| {
            let mut tree = MemoryTree::new();
            tree.file(ROOT_INO, "number", number.to_string().into_bytes());
            let directory = directory();
            let options = MountOptions {
                validity: Duration::ZERO,
                ..MountOptions::new(directory.path(), "tank/test")
            };
            (mount(Arc::new(tree), options).unwrap(), directory)
        })
        .collect();
    let quiet = || {
        until_within(Duration::from_secs(10), "few threads are left", || threads() <= FEW);
    };
    quiet();
    for round in 0..3 {
        std::thread::scope(|scope| {
            for (number, (_, directory)) in mounts.iter().enumerate() {
                let look = move || {
                    let read = fs::read_to_string(directory.path().join("number")).unwrap();
                    assert_eq!(read, number.to_string());
                };
                // One after another, all at once, and again after they were quiet.
                if round == 1 { drop(scope.spawn(look)) } else { look() }
            }
        });
        quiet();
    }
    for (mounted, _) in &mounts {
        mounted.unmount().unwrap();
        assert!(!mounted.is_alive());
    }
}
