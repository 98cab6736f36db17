//! Killing who waits for a mounted tree that does not answer.
//!
//! These need `/dev/fuse` and the right to mount (root); without, they say so and pass, unless
//! `CENOTE_NEED_FUSE` is set.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod memory;
mod support;

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use cenote_serve::fuse::{MountOptions, mount};
use memory::{MemoryTree, ROOT_INO};
use support::{can_mount, directory, until};

/// Longest time a killed process may take to be gone.
const AT_ONCE: Duration = Duration::from_secs(3);

fn dd(input: &Path, output: &Path) -> Child {
    let file = |word: &str, path: &Path| format!("{word}={}", path.display());
    Command::new("dd")
        .args([file("if", input), file("of", output)])
        .args(["bs=64k", "count=1", "conv=notrunc,nocreat"])
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

fn kill(child: &Child, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(pid, signal).unwrap();
}

fn is_gone_at_once(child: &mut Child) -> bool {
    let start = Instant::now();
    while start.elapsed() < AT_ONCE {
        if child.try_wait().unwrap().is_some() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    false
}

#[test]
fn writers_beyond_all_threads_are_killed_while_others_look() {
    if !can_mount() {
        return;
    }
    let mut tree = MemoryTree::new();
    tree.writable = true;
    let names: Vec<String> = (0..20).map(|n| format!("f{n}")).collect();
    for name in &names {
        tree.file(ROOT_INO, name, b"old".to_vec());
    }
    let (tree, directory) = (Arc::new(tree), directory());
    let options = MountOptions {
        max_threads: 4,
        validity: Duration::ZERO,
        ..MountOptions::new(directory.path(), "tank/test")
    };
    let mounted = mount(tree.clone(), options).unwrap();
    tree.stopped.store(true, Relaxed);
    let zero = Path::new("/dev/zero");
    let start = |name: &String| dd(zero, &directory.path().join(name));
    let mut writers: Vec<Child> = names.iter().map(start).collect();
    until("writes wait", || tree.writing.load(Relaxed) >= 2);
    std::thread::sleep(Duration::from_millis(200));
    // Who only looks is answered, and a signal that kills nobody lets nobody go.
    assert_eq!(fs::metadata(directory.path().join("f7")).unwrap().len(), 3);
    kill(&writers[0], rustix::process::Signal::CHILD);
    std::thread::sleep(Duration::from_millis(300));
    assert!(writers[0].try_wait().unwrap().is_none());

    for (number, writer) in writers.iter_mut().enumerate() {
        kill(writer, rustix::process::Signal::TERM);
        assert!(is_gone_at_once(writer), "writer {number} waits on");
    }
    tree.stopped.store(false, Relaxed);
    until("the threads are free", || tree.writing.load(Relaxed) == 0);
    fs::write(directory.path().join("f3"), b"new").unwrap();
    assert_eq!(fs::read(directory.path().join("f3")).unwrap(), b"new");
    mounted.unmount().unwrap();
}

#[test]
fn a_reader_of_a_silent_disk_is_killed() {
    if !can_mount() {
        return;
    }
    let mut tree = MemoryTree::new();
    let node = tree.file(ROOT_INO, "silent", vec![7; 1 << 20]);
    tree.slow = Some((node, Duration::from_secs(6)));
    let (tree, directory) = (Arc::new(tree), directory());
    let options = MountOptions::new(directory.path(), "tank/test");
    let mounted = mount(tree.clone(), options).unwrap();
    let mut reader = dd(&directory.path().join("silent"), Path::new("/dev/null"));
    until("it reads", || tree.reading.load(Relaxed) > 0);
    kill(&reader, rustix::process::Signal::KILL);
    assert!(is_gone_at_once(&mut reader));
    until("the thread is free", || tree.reading.load(Relaxed) == 0);
    mounted.unmount().unwrap();
}
