//! What a mounted filesystem does not let its users do, or see: an in-memory tree behind a real mount.
//!
//! These need `/dev/fuse` and the right to mount (root); without, they say so and pass, unless
//! `CENOTE_NEED_FUSE` is set.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod memory;
mod support;

use std::fs;

use memory::{MemoryTree, ROOT_INO};
use rustix::fs::XattrFlags;
use support::{as_nobody, can_mount, serve, until};

#[test]
fn trusted_attributes_are_listed_to_root_only() {
    if !can_mount() {
        return;
    }
    let (dir, _mounted, _tree) = serve(MemoryTree::writable());
    let path = dir.path().join("f");
    fs::write(&path, b"").unwrap();
    for name in ["trusted.overlay.origin", "user.seen"] {
        rustix::fs::setxattr(&path, name, b"1", XattrFlags::empty()).unwrap();
    }
    let mut names = vec![0; 100];
    let len = rustix::fs::listxattr(&path, &mut names).unwrap();
    assert_eq!(&names[..len], b"trusted.overlay.origin\0user.seen\0");
    let lists = |name: &str| {
        let shown = path.display();
        let list =
            format!("python3 -c 'import os; exit(\"{name}\" not in os.listxattr(\"{shown}\"))'");
        as_nobody(&list)
    };
    assert!(lists("user.seen"), "what everybody sees (python3 is needed)");
    assert!(!lists("trusted.overlay.origin"));
}

/// What another process does to the first page of a file through a shared mapping; what its `msync` says.
const MAPS: &str = "import mmap, sys\n\
    file = open(sys.argv[1], 'r+b')\n\
    pages = mmap.mmap(file.fileno(), 4096)\n\
    pages[:4] = b'evil'\n\
    pages.flush()\n";

#[test]
fn what_was_mapped_and_refused_is_not_seen_by_others() {
    if !can_mount() {
        return;
    }
    let mut start = MemoryTree::writable();
    let fixed = start.file(ROOT_INO, "fixed", "data".repeat(1024));
    start.fixed = Some(fixed);
    let (dir, _mounted, _tree) = serve(start);
    let path = dir.path().join("fixed");
    assert_eq!(&fs::read(&path).unwrap()[..4], b"data");
    // Never the process that serves: it would wait for itself.
    let mut mapping = std::process::Command::new("python3");
    let mapped = mapping.arg("-c").arg(MAPS).arg(&path).output().unwrap();
    assert!(!mapped.status.success(), "the write is refused");
    let said = String::from_utf8_lossy(&mapped.stderr).into_owned();
    assert!(said.contains("Errno"), "{said}");
    until("others see what is stored", || fs::read(&path).unwrap()[..4] == *b"data");
}
