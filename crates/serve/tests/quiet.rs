//! Mounts that nobody uses.
//!
//! Invariant: they take no thread, and answer at once all the same.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cenote_serve::fuse::{MountOptions, mount};

mod memory;
mod support;
use memory::{MemoryTree, ROOT_INO};
use support::{can_mount, directory};

const MOUNTS: usize = 100;
/// The watcher, and threads it may lend.
const FEW: usize = 10;

/// Threads of this process that serve mounts.
fn threads() -> usize {
    let of = |entry: std::io::Result<fs::DirEntry>| {
        let name = fs::read_to_string(entry.unwrap().path().join("comm")).unwrap_or_default();
        name.starts_with("fuse")
    };
    fs::read_dir("/proc/self/task").unwrap().map(of).filter(|is| *is).count()
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
        let start = Instant::now();
        while threads() > FEW {
            assert!(start.elapsed() < Duration::from_secs(10), "{} threads", threads());
            std::thread::sleep(Duration::from_millis(10));
        }
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
