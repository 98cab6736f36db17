//! Directories that other mounts are about to cover take no names.
//!
//! These need `/dev/fuse` and the right to mount (root); without, they say so and pass, unless
//! `CENOTE_NEED_FUSE` is set.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod memory;
mod support;

use std::fs;
use std::path::Path;
use std::sync::Arc;

use cenote_serve::fuse::{MountOptions, mount};
use memory::MemoryTree;
use support::{can_mount, directory};

#[test]
fn nothing_gets_a_name_where_it_would_be_hidden() {
    if !can_mount() {
        return;
    }
    let mut tree = MemoryTree::new();
    tree.writable = true;
    let (tree, directory) = (Arc::new(tree), directory());
    let at = |name: &str| directory.path().join(name);
    let mounted = mount(tree.clone(), MountOptions::new(directory.path(), "tank/test")).unwrap();
    fs::create_dir_all(at("child/inner")).unwrap();
    fs::create_dir(at("free")).unwrap();
    mounted.unmount().unwrap();

    let options = MountOptions {
        covered: vec!["child".into(), "not/there".into()],
        ..MountOptions::new(directory.path(), "tank/test")
    };
    let mounted = mount(tree, options).unwrap();
    let stale = |made: std::io::Result<()>| {
        assert_eq!(made.unwrap_err().raw_os_error(), Some(libc::ESTALE));
    };
    stale(fs::write(at("child/file"), b"x"));
    stale(fs::create_dir(at("child/directory")));
    stale(fs::write(at("child/inner/file"), b"x"));
    fs::write(at("free/file"), b"x").unwrap();
    stale(fs::rename(at("free/file"), at("child/file")));
    fs::rename(at("free/file"), at("free/other")).unwrap();
    mounted.covers().uncover(Path::new("child"));
    fs::write(at("child/file"), b"x").unwrap();
    mounted.covers().cover(Path::new("child"));
    mounted.covers().end_soon();
    stale(fs::write(at("child/late"), b"x"));
    assert_eq!(fs::read(at("child/file")).unwrap(), b"x");
    mounted.unmount().unwrap();
}
