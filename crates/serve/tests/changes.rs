//! Changing a mounted filesystem by ordinary system calls: an in-memory tree behind a real mount.
//!
//! These need `/dev/fuse` and the right to mount (root); without, they say so and pass, unless
//! `CENOTE_NEED_FUSE` is set.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod memory;
mod support;

use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use cenote_posix::tree::{Caller, NewNode, ROOT, Tree};
use cenote_serve::fuse::{AccessTimes, MountOptions, Mounted, mount};
use memory::{MemoryTree, ROOT_INO};
use rustix::fs::{AtFlags, CWD, RenameFlags, Timespec, Timestamps, XattrFlags};
use support::{
    acl, as_nobody, can_mount, directory, pattern, serve, soonest, unmount, until, xattr,
};

const ROOT_CALLER: Caller = Caller { uid: 0, gid: 0, pid: 0 };

/// The same tree, mounted anew: what is seen comes from the tree, not from the kernel's memory.
fn again(directory: &Path, mounted: Mounted, tree: &Arc<MemoryTree>, write_back: bool) -> Mounted {
    unmount(&mounted);
    let options = MountOptions { write_back, ..MountOptions::new(directory, "tank/test") };
    mount(tree.clone(), options).unwrap()
}

fn errno<T: std::fmt::Debug>(result: std::io::Result<T>) -> i32 {
    result.unwrap_err().raw_os_error().unwrap()
}

/// Waits until something is so.
/// Lets the clock go on, so that times differ.
fn tick() {
    std::thread::sleep(Duration::from_millis(15));
}

fn times(path: &Path) -> (i64, i64, i64) {
    let meta = fs::symlink_metadata(path).unwrap();
    let nanos = |seconds: i64, nanos: i64| seconds * 1_000_000_000 + nanos;
    (
        nanos(meta.atime(), meta.atime_nsec()),
        nanos(meta.mtime(), meta.mtime_nsec()),
        nanos(meta.ctime(), meta.ctime_nsec()),
    )
}

fn content_survives(write_back: bool) {
    let dir = directory();
    let tree = Arc::new(MemoryTree::writable());
    let options = MountOptions { write_back, ..MountOptions::new(dir.path(), "tank/test") };
    let mounted = mount(tree.clone(), options).unwrap();
    let at = |name: &str| dir.path().join(name);
    for size in [0, 1, 1000, 4096, 131_073, 5_000_001] {
        fs::write(at(&format!("f{size}")), pattern(size)).unwrap();
    }
    // Two that append, in turns.
    let mut first = OpenOptions::new().append(true).create(true).open(at("log")).unwrap();
    let mut second = OpenOptions::new().append(true).open(at("log")).unwrap();
    for _ in 0..100 {
        first.write_all(b"first ").unwrap();
        second.write_all(b"second ").unwrap();
    }
    assert_eq!(fs::read(at("log")).unwrap(), b"first second ".repeat(100));
    // Over the end, into the middle, shorter, longer.
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(at("holes"));
    let file = file.unwrap();
    file.write_all_at(b"end", 1_000_000).unwrap();
    file.write_all_at(&pattern(10_000), 3_333).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 1_000_003);
    file.set_len(500_000).unwrap();
    file.set_len(600_000).unwrap();
    let mut holes = vec![0; 600_000];
    holes[3_333..13_333].copy_from_slice(&pattern(10_000));
    assert_eq!(fs::read(at("holes")).unwrap(), holes);
    // Truncated by opening; a file without write permission is still written by who makes it.
    fs::write(at("short"), pattern(100_000)).unwrap();
    fs::write(at("short"), "new").unwrap();
    let mut sealed =
        OpenOptions::new().write(true).create_new(true).mode(0o400).open(at("sealed")).unwrap();
    sealed.write_all(b"sealed").unwrap();
    assert_eq!(
        errno(OpenOptions::new().write(true).create_new(true).open(at("sealed"))),
        libc::EEXIST
    );
    // Past the page cache.
    let direct =
        OpenOptions::new().write(true).create(true).custom_flags(libc::O_DIRECT).open(at("direct"));
    let page = vec![7u8; 3 << 20];
    let aligned = page.as_ptr().align_offset(4096);
    let direct = direct.unwrap();
    direct.write_all_at(&page[aligned..][..2 << 20], 4096).unwrap();
    assert_eq!(fs::metadata(at("direct")).unwrap().len(), (2 << 20) + 4096);
    drop((first, second, file, sealed, direct));
    let mounted = again(dir.path(), mounted, &tree, write_back);
    for size in [0, 1, 1000, 4096, 131_073, 5_000_001] {
        assert_eq!(fs::read(at(&format!("f{size}"))).unwrap(), pattern(size), "{size}");
    }
    assert_eq!(fs::read(at("log")).unwrap(), b"first second ".repeat(100));
    assert_eq!(fs::read(at("holes")).unwrap(), holes);
    assert_eq!(fs::read(at("short")).unwrap(), b"new");
    assert_eq!(fs::read(at("sealed")).unwrap(), b"sealed");
    let direct = fs::read(at("direct")).unwrap();
    assert!(direct[..4096].iter().all(|&b| b == 0) && direct[4096..].iter().all(|&b| b == 7));
    drop(mounted);
}

#[test]
fn what_is_written_is_read_and_survives_a_remount() {
    if can_mount() {
        content_survives(false);
    }
}

#[test]
fn so_does_what_the_kernel_collects() {
    if can_mount() {
        content_survives(true);
    }
}

#[test]
fn names_come_go_and_move() {
    if !can_mount() {
        return;
    }
    let (dir, mounted, tree) = serve(MemoryTree::writable());
    let at = |name: &str| dir.path().join(name);
    let links = |name: &str| fs::symlink_metadata(at(name)).unwrap().nlink();
    let move_with = |from: &str, to: &str, flags| {
        rustix::fs::renameat_with(CWD, at(from), CWD, at(to), flags).map_err(|e| e.raw_os_error())
    };
    assert_eq!(errno(File::open(at("d/x"))), libc::ENOENT);
    fs::create_dir(at("d")).unwrap();
    fs::create_dir(at("d/e")).unwrap();
    assert_eq!((links("."), links("d")), (3, 3));
    assert_eq!(errno(fs::create_dir(at("d"))), libc::EEXIST);
    fs::write(at("d/x"), "x").unwrap();
    assert_eq!(errno(fs::remove_dir(at("d"))), libc::ENOTEMPTY);
    assert_eq!(errno(fs::remove_file(at("d/e"))), libc::EISDIR);
    // Links.
    fs::hard_link(at("d/x"), at("y")).unwrap();
    assert_eq!((links("d/x"), links("y")), (2, 2));
    assert_eq!(fs::metadata(at("y")).unwrap().ino(), fs::metadata(at("d/x")).unwrap().ino());
    fs::remove_file(at("d/x")).unwrap();
    assert_eq!(links("y"), 1);
    std::os::unix::fs::symlink("target of the link", at("s")).unwrap();
    assert_eq!(fs::read_link(at("s")).unwrap(), Path::new("target of the link"));
    assert_eq!(fs::symlink_metadata(at("s")).unwrap().len(), 18);
    // Renames.
    fs::rename(at("y"), at("z")).unwrap();
    assert_eq!(errno(File::open(at("y"))), libc::ENOENT);
    fs::write(at("w"), "w").unwrap();
    fs::rename(at("z"), at("w")).unwrap();
    assert_eq!(fs::read(at("w")).unwrap(), b"x");
    fs::rename(at("d/e"), at("e")).unwrap();
    assert_eq!((links("."), links("d")), (4, 2));
    assert_eq!(errno(fs::rename(at("e"), at("e/below"))), libc::EINVAL);
    assert_eq!(errno(fs::rename(at("e"), at("w"))), libc::ENOTDIR);
    assert_eq!(errno(fs::rename(at("w"), at("e"))), libc::EISDIR);
    assert_eq!(move_with("w", "s", RenameFlags::NOREPLACE), Err(libc::EEXIST));
    move_with("w", "d/w", RenameFlags::NOREPLACE).unwrap();
    move_with("d/w", "e", RenameFlags::EXCHANGE).unwrap();
    assert!(fs::metadata(at("d/w")).unwrap().is_dir());
    assert_eq!(fs::read(at("e")).unwrap(), b"x");
    assert_eq!((links("."), links("d")), (3, 3));
    move_with("e", "moved", RenameFlags::WHITEOUT).unwrap();
    let white = fs::symlink_metadata(at("e")).unwrap();
    assert!(white.file_type().is_char_device() && white.rdev() == 0);
    // Special files.
    for (name, kind, device) in [
        ("fifo", libc::S_IFIFO, 0),
        ("socket", libc::S_IFSOCK, 0),
        ("null", libc::S_IFCHR, libc::makedev(1, 3)),
        ("disk", libc::S_IFBLK, libc::makedev(259, 70_000)),
    ] {
        let kind = rustix::fs::FileType::from_raw_mode(kind);
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(CWD, at(name), kind, mode, device).unwrap();
    }
    let disk = fs::symlink_metadata(at("disk")).unwrap();
    assert!(disk.file_type().is_block_device());
    assert_eq!((libc::major(disk.rdev()), libc::minor(disk.rdev())), (259, 70_000));
    assert!(fs::symlink_metadata(at("fifo")).unwrap().file_type().is_fifo());
    assert!(fs::symlink_metadata(at("socket")).unwrap().file_type().is_socket());
    assert_eq!(fs::read(at("null")).unwrap(), b"");
    let long = "n".repeat(256);
    assert_eq!(errno(fs::write(at(&long), "")), libc::ENAMETOOLONG);
    fs::write(at(&long[1..]), "").unwrap();
    // The listing follows.
    let list = || -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    };
    fs::remove_file(at(&long[1..])).unwrap();
    assert_eq!(list(), ["d", "disk", "e", "fifo", "moved", "null", "s", "socket"]);
    fs::write(at("a"), "").unwrap();
    fs::remove_file(at("s")).unwrap();
    assert_eq!(list(), ["a", "d", "disk", "e", "fifo", "moved", "null", "socket"]);
    let before = list();
    let mounted = again(dir.path(), mounted, &tree, false);
    assert_eq!(list(), before);
    assert_eq!(links("d"), 3);
    drop(mounted);
}

#[test]
fn side_effects_show_at_once() {
    if !can_mount() {
        return;
    }
    let (dir, _mounted, _) = serve(MemoryTree::writable());
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("d")).unwrap();
    fs::write(at("d/f"), "f").unwrap();
    fs::write(at("d/victim"), "f").unwrap();
    fs::hard_link(at("d/victim"), at("witness")).unwrap();
    // Whether a step moves (the directory's mtime, the file's ctime).
    let moves = |step: &dyn Fn()| {
        let file = || if at("d/f").exists() { times(&at("d/f")).2 } else { times(&at("d/g")).2 };
        let before = (times(&at("d")).1, file());
        tick();
        step();
        let after = (times(&at("d")).1, file());
        (after.0 > before.0, after.1 > before.1)
    };
    assert_eq!(moves(&|| fs::write(at("d/new"), "").unwrap()), (true, false));
    assert_eq!(moves(&|| fs::remove_file(at("d/new")).unwrap()), (true, false));
    assert_eq!(moves(&|| fs::create_dir(at("d/n")).unwrap()), (true, false));
    assert_eq!(moves(&|| fs::remove_dir(at("d/n")).unwrap()), (true, false));
    assert_eq!(moves(&|| fs::hard_link(at("d/f"), at("l")).unwrap()), (false, true));
    assert_eq!(fs::metadata(at("d/f")).unwrap().nlink(), 2);
    assert_eq!(moves(&|| fs::remove_file(at("l")).unwrap()), (false, true));
    assert_eq!(fs::metadata(at("d/f")).unwrap().nlink(), 1);
    assert_eq!(moves(&|| fs::rename(at("d/f"), at("d/g")).unwrap()), (true, true));
    assert_eq!(moves(&|| fs::rename(at("d/g"), at("d/f")).unwrap()), (true, true));
    let mode = fs::Permissions::from_mode(0o600);
    assert_eq!(moves(&|| fs::set_permissions(at("d/f"), mode.clone()).unwrap()), (false, true));
    let xattr = || rustix::fs::setxattr(at("d/f"), "user.x", b"1", XattrFlags::empty()).unwrap();
    assert_eq!(moves(&xattr), (false, true));
    assert_eq!(moves(&|| rustix::fs::removexattr(at("d/f"), "user.x").unwrap()), (false, true));
    assert_eq!(moves(&|| fs::write(at("d/f"), "more").unwrap()), (false, true));
    // What a rename replaces loses a name.
    let before = times(&at("witness")).2;
    tick();
    fs::rename(at("d/f"), at("d/victim")).unwrap();
    assert_eq!(fs::metadata(at("witness")).unwrap().nlink(), 1);
    assert!(times(&at("witness")).2 > before);
    // Size, blocks and mtime after writing and truncating.
    let file = OpenOptions::new().write(true).open(at("witness")).unwrap();
    let before = times(&at("witness")).1;
    tick();
    file.write_all_at(&pattern(100_000), 0).unwrap();
    let meta = fs::metadata(at("witness")).unwrap();
    assert_eq!((meta.len(), meta.blocks()), (100_000, 196));
    assert!(times(&at("witness")).1 > before);
    let before = times(&at("witness")).1;
    tick();
    file.set_len(1000).unwrap();
    assert_eq!(fs::metadata(at("witness")).unwrap().blocks(), 2);
    assert!(times(&at("witness")).1 > before);
    let before = times(&at("witness")).1;
    tick();
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, 5000).unwrap();
    assert_eq!(fs::metadata(at("witness")).unwrap().len(), 5000);
    assert!(times(&at("witness")).1 > before);
}

#[test]
fn files_without_names_live_as_long_as_they_are_open() {
    if !can_mount() {
        return;
    }
    let (dir, mounted, tree) = serve(MemoryTree::writable());
    let at = |name: &str| dir.path().join(name);
    let start = tree.count();
    let mut file =
        OpenOptions::new().read(true).write(true).create_new(true).open(at("f")).unwrap();
    file.write_all(b"data").unwrap();
    fs::remove_file(at("f")).unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    file.write_all(b" and more").unwrap();
    file.set_len(11).unwrap();
    let mut text = String::new();
    file.sync_all().unwrap();
    std::io::Seek::rewind(&mut file).unwrap();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "data and mo");
    assert_eq!(tree.nameless(), 1);
    drop(file);
    until("forgotten", || tree.count() == start);
    // Made without a name, and given one.
    let unnamed =
        || OpenOptions::new().read(true).write(true).custom_flags(libc::O_TMPFILE).open(dir.path());
    let mut file = unnamed().unwrap();
    file.write_all(b"no name").unwrap();
    assert_eq!((tree.nameless(), tree.count()), (1, start + 1));
    drop(file);
    until("forgotten", || tree.count() == start);
    let mut file = unnamed().unwrap();
    file.write_all(b"named").unwrap();
    let old = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::linkat(CWD, old, CWD, at("named"), AtFlags::SYMLINK_FOLLOW).unwrap();
    drop(file);
    assert_eq!(fs::read(at("named")).unwrap(), b"named");
    assert_eq!(fs::metadata(at("named")).unwrap().nlink(), 1);
    // A removed directory somebody is in.
    fs::create_dir(at("d")).unwrap();
    let inside = File::open(at("d")).unwrap();
    fs::remove_dir(at("d")).unwrap();
    let path = PathBuf::from(format!("/proc/self/fd/{}", inside.as_raw_fd()));
    assert_eq!(errno(fs::write(path.join("x"), "")), libc::ENOENT);
    assert_eq!(fs::read_dir(&path).unwrap().count(), 0);
    drop(inside);
    until("forgotten", || tree.count() == start + 1);
    // Many, listed and looked up in between; nothing stays, and nothing goes too early.
    fs::create_dir(at("many")).unwrap();
    for number in 0..2000 {
        fs::write(at(&format!("many/{number}")), "").unwrap();
    }
    let count = || {
        fs::read_dir(at("many")).unwrap().filter(|e| e.as_ref().unwrap().metadata().is_ok()).count()
    };
    assert_eq!(count(), 2000);
    fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
    assert_eq!(count(), 2000);
    fs::remove_dir_all(at("many")).unwrap();
    until("forgotten", || tree.count() == start + 1);
    // What is left when the mount goes is forgotten then.
    let file = File::create(at("held")).unwrap();
    fs::remove_file(at("held")).unwrap();
    assert_eq!(tree.nameless(), 1);
    mounted.unmount_forced().unwrap();
    drop(file);
    until("forgotten", || tree.nameless() == 0);
    assert_eq!(tree.count(), start + 1);
}

#[test]
fn modes_owners_and_set_id_bits() {
    if !can_mount() {
        return;
    }
    let mut start = MemoryTree::writable();
    start.change(ROOT_INO).attributes.mode = libc::S_IFDIR | 0o777;
    let (dir, _mounted, _) = serve(start);
    let at = |name: &str| dir.path().join(name);
    let mode = |name: &str| fs::symlink_metadata(at(name)).unwrap().mode() & 0o7777;
    let chmod = |name: &str, mode| fs::set_permissions(at(name), fs::Permissions::from_mode(mode));
    let here = dir.path().display();
    // The umask counts, once.
    assert!(as_nobody(&format!(
        "cd {here}; umask 027; touch f; mkdir d; mkfifo p; umask 0; touch g"
    )));
    assert_eq!((mode("f"), mode("d"), mode("p"), mode("g")), (0o640, 0o750, 0o640, 0o666));
    let meta = fs::metadata(at("f")).unwrap();
    assert_eq!((meta.uid(), meta.gid()), (65534, 65534));
    // A set-group-id directory gives its group.
    fs::create_dir(at("s")).unwrap();
    std::os::unix::fs::chown(at("s"), None, Some(1000)).unwrap();
    chmod("s", 0o2777).unwrap();
    assert!(as_nobody(&format!("cd {here}/s; touch f; mkdir d")));
    assert_eq!(fs::metadata(at("s/f")).unwrap().gid(), 1000);
    assert_eq!((mode("s/d") & 0o2000, fs::metadata(at("s/d")).unwrap().gid()), (0o2000, 1000));
    // Writing and truncating by a user drop set-id bits; by root they stay.
    for (step, dropped) in [
        ("echo x >> w", true),
        // Who asks for the mode alone is not told what it was.
        ("echo x >> w && test $(stat -c %a w) = 777", true),
        (": > w", true),
        ("truncate -s 5 w", true),
        ("chmod u+w w", false),
        ("fallocate -l 10 w", true),
        ("cat w", false),
    ] {
        fs::write(at("w"), "data").unwrap();
        std::os::unix::fs::chown(at("w"), Some(65534), Some(65534)).unwrap();
        chmod("w", 0o6777).unwrap();
        assert_eq!(mode("w"), 0o6777);
        assert!(as_nobody(&format!("cd {here}; {step}")), "{step}");
        assert_eq!(mode("w"), if dropped { 0o777 } else { 0o6777 }, "{step}");
    }
    chmod("w", 0o6777).unwrap();
    OpenOptions::new().append(true).open(at("w")).unwrap().write_all(b"x").unwrap();
    assert_eq!(mode("w"), 0o6777);
    // Set-group-id without execution is something else and stays.
    chmod("w", 0o2767).unwrap();
    assert!(as_nobody(&format!("cd {here}; echo x >> w")));
    assert_eq!(mode("w"), 0o2767);
    // A new owner drops them, whoever does it.
    chmod("w", 0o6777).unwrap();
    std::os::unix::fs::chown(at("w"), Some(1), None).unwrap();
    assert_eq!(mode("w"), 0o777);
    assert_eq!(fs::metadata(at("w")).unwrap().uid(), 1);
    // Not one's own.
    assert!(!as_nobody(&format!("cd {here}; chmod 777 w")));
    assert!(!as_nobody(&format!("cd {here}; chown 65534 w")));
    // Sticky directories.
    fs::create_dir(at("t")).unwrap();
    chmod("t", 0o1777).unwrap();
    fs::write(at("t/mine"), "").unwrap();
    assert!(!as_nobody(&format!("rm -f {here}/t/mine")));
    assert!(as_nobody(&format!("cd {here}/t; touch x && mv x y && rm y")));
}

#[test]
fn times_are_set_to_the_nanosecond() {
    if !can_mount() {
        return;
    }
    let (dir, mounted, tree) = serve(MemoryTree::writable());
    let path = dir.path().join("f");
    fs::write(&path, "").unwrap();
    let set = |atime: (i64, i64), mtime: (i64, i64)| {
        let time = |(tv_sec, tv_nsec): (i64, i64)| Timespec { tv_sec, tv_nsec: tv_nsec as _ };
        let both = Timestamps { last_access: time(atime), last_modification: time(mtime) };
        let before = times(&path).2;
        tick();
        rustix::fs::utimensat(CWD, &path, &both, AtFlags::SYMLINK_NOFOLLOW).unwrap();
        assert!(times(&path).2 > before);
    };
    const OMIT: i64 = rustix::fs::UTIME_OMIT;
    const NOW: i64 = rustix::fs::UTIME_NOW;
    set((-5, 1), (5_000_000_000, 999_999_999));
    let meta = fs::metadata(&path).unwrap();
    assert_eq!((meta.atime(), meta.atime_nsec()), (-5, 1));
    assert_eq!((meta.mtime(), meta.mtime_nsec()), (5_000_000_000, 999_999_999));
    set((0, OMIT), (7, 8));
    assert_eq!((times(&path).0, times(&path).1), (-4_999_999_999, 7_000_000_008));
    set((0, NOW), (0, OMIT));
    assert_eq!(times(&path).1, 7_000_000_008);
    assert!(times(&path).0 > 1_700_000_000_000_000_000);
    set((1, 0), (0, NOW));
    let seen = times(&path);
    let mounted = again(dir.path(), mounted, &tree, false);
    assert_eq!(times(&path), seen);
    drop(mounted);
}

#[test]
fn extended_attributes_and_acls() {
    if !can_mount() {
        return;
    }
    const NONE: u32 = u32::MAX;
    const ACCESS: &str = "system.posix_acl_access";
    const DEFAULT: &str = "system.posix_acl_default";
    let mut start = MemoryTree::writable();
    start.change(ROOT_INO).attributes.mode = libc::S_IFDIR | 0o777;
    let (dir, _mounted, _) = serve(start);
    let at = |name: &str| dir.path().join(name);
    let mode = |name: &str| fs::metadata(at(name)).unwrap().mode() & 0o7777;
    fs::write(at("f"), "").unwrap();
    let set = |path: &str, name: &str, value: &[u8], flags| {
        rustix::fs::setxattr(at(path), name, value, flags).map_err(|error| error.raw_os_error())
    };
    let any = XattrFlags::empty();
    set("f", "user.a", b"1", any).unwrap();
    assert_eq!(set("f", "user.a", b"2", XattrFlags::CREATE), Err(libc::EEXIST));
    assert_eq!(set("f", "user.b", b"2", XattrFlags::REPLACE), Err(libc::ENODATA));
    set("f", "user.a", b"", XattrFlags::REPLACE).unwrap();
    set("f", "user.b", &pattern(65_536), XattrFlags::CREATE).unwrap();
    set("f", "trusted.t", b"t", any).unwrap();
    assert_eq!(xattr(&at("f"), "user.a", 10).unwrap(), b"");
    assert_eq!(xattr(&at("f"), "user.b", 65_536).unwrap(), pattern(65_536));
    rustix::fs::removexattr(at("f"), "user.a").unwrap();
    assert_eq!(xattr(&at("f"), "user.a", 10), Err(libc::ENODATA));
    let gone = rustix::fs::removexattr(at("f"), "user.a");
    assert_eq!(gone.unwrap_err(), rustix::io::Errno::NODATA);
    // An ACL sets the mode, a mode the ACL's mask.
    let five = |mask| [(1, 6, NONE), (2, 6, 65534), (4, 4, NONE), (16, mask, NONE), (32, 0, NONE)];
    set("f", ACCESS, &acl(&five(6)), any).unwrap();
    assert_eq!(mode("f"), 0o660);
    let write = format!("echo x >> {}", at("f").display());
    assert!(as_nobody(&write));
    fs::set_permissions(at("f"), fs::Permissions::from_mode(0o640)).unwrap();
    assert_eq!(xattr(&at("f"), ACCESS, 100).unwrap(), acl(&five(4)));
    assert!(!as_nobody(&write));
    assert!(as_nobody(&format!("cat {}", at("f").display())));
    rustix::fs::removexattr(at("f"), ACCESS).unwrap();
    rustix::fs::removexattr(at("f"), ACCESS).unwrap();
    assert!(!as_nobody(&format!("cat {}", at("f").display())));
    // A default ACL takes the umask's place.
    fs::create_dir(at("d")).unwrap();
    set("d", DEFAULT, &acl(&five(6)), any).unwrap();
    assert_eq!(set("f", DEFAULT, &acl(&five(6)), any), Err(libc::EACCES));
    let made =
        "cd $0; umask 077; touch d/f; mkdir d/d".replace("$0", &dir.path().display().to_string());
    let shell = std::process::Command::new("sh").args(["-c", &made]).status().unwrap();
    assert!(shell.success());
    assert_eq!((mode("d/f"), mode("d/d")), (0o660, 0o660));
    assert_eq!(xattr(&at("d/f"), ACCESS, 100).unwrap(), acl(&five(6)));
    assert_eq!(xattr(&at("d/d"), DEFAULT, 100).unwrap(), acl(&five(6)));
    // Who is not of the group loses set-group-id with an ACL.
    fs::write(at("g"), "").unwrap();
    std::os::unix::fs::chown(at("g"), Some(65534), Some(1000)).unwrap();
    fs::set_permissions(at("g"), fs::Permissions::from_mode(0o2755)).unwrap();
    if as_nobody("command -v setfacl") {
        assert!(as_nobody(&format!("setfacl -m u:1:r {}", at("g").display())));
        assert_eq!(mode("g"), 0o755);
    } else {
        eprintln!("not tested: needs setfacl");
    }
}

#[test]
fn fsync_reaches_the_tree() {
    if !can_mount() {
        return;
    }
    let (dir, _mounted, tree) = serve(MemoryTree::writable());
    let path = dir.path().join("f");
    let syncs = || tree.syncs.load(Ordering::Relaxed);
    let file = File::create(&path).unwrap();
    (&file).write_all(b"x").unwrap();
    assert_eq!(syncs(), 0);
    file.sync_all().unwrap();
    file.sync_data().unwrap();
    assert_eq!(syncs(), 2);
    File::open(dir.path()).unwrap().sync_all().unwrap();
    assert_eq!(syncs(), 3);
    for flag in [libc::O_SYNC, libc::O_DSYNC, libc::O_DSYNC | libc::O_DIRECT] {
        let before = syncs();
        let file = OpenOptions::new().write(true).custom_flags(flag).open(&path).unwrap();
        let page = vec![1u8; 8192];
        let aligned = page.as_ptr().align_offset(4096);
        file.write_all_at(&page[aligned..][..4096], 0).unwrap();
        assert_eq!(syncs(), before + 1, "{flag:o}");
    }
}

#[test]
fn ranges_are_allocated_punched_and_copied() {
    if !can_mount() {
        return;
    }
    use rustix::fs::FallocateFlags as Flags;
    let (dir, _mounted, _) = serve(MemoryTree::writable());
    let at = |name: &str| dir.path().join(name);
    fs::write(at("f"), pattern(1_000_000)).unwrap();
    let file = OpenOptions::new().read(true).write(true).open(at("f")).unwrap();
    let mut want = pattern(1_000_000);
    // So that cached pages are there.
    assert_eq!(fs::read(at("f")).unwrap(), want);
    let keep = Flags::KEEP_SIZE;
    rustix::fs::fallocate(&file, Flags::PUNCH_HOLE | keep, 5_000, 300_000).unwrap();
    want[5_000..305_000].fill(0);
    assert_eq!(fs::read(at("f")).unwrap(), want);
    rustix::fs::fallocate(&file, Flags::ZERO_RANGE, 999_000, 2_000).unwrap();
    want.resize(1_001_000, 0);
    want[999_000..].fill(0);
    assert_eq!(fs::read(at("f")).unwrap(), want);
    rustix::fs::fallocate(&file, keep, 0, 5_000_000).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 1_001_000);
    let collapse = rustix::fs::fallocate(&file, Flags::COLLAPSE_RANGE, 0, 4096);
    assert_eq!(collapse.unwrap_err(), rustix::io::Errno::OPNOTSUPP);
    let copy = File::create(at("copy")).unwrap();
    let mut done = 0;
    while done < want.len() {
        let (mut from, mut to) = (done as u64, done as u64);
        let left = want.len() - done;
        let now = rustix::fs::copy_file_range(&file, Some(&mut from), &copy, Some(&mut to), left);
        done += now.unwrap();
    }
    assert_eq!(fs::read(at("copy")).unwrap(), want);
    let (mut from, mut to) = (0, 50);
    rustix::fs::copy_file_range(&file, Some(&mut from), &copy, Some(&mut to), 1000).unwrap();
    assert_eq!(fs::read(at("copy")).unwrap()[50..1050], want[..1000]);
}

#[test]
fn shared_mappings_are_written_back() {
    if !can_mount() {
        return;
    }
    let (dir, mounted, tree) = serve(MemoryTree::writable());
    let path = dir.path().join("f");
    fs::write(&path, pattern(20_000)).unwrap();
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let before = times(&path).1;
    tick();
    // SAFETY: the mapping is used only within its length and before it is unmapped.
    unsafe {
        let (read_write, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        let start =
            libc::mmap(std::ptr::null_mut(), 20_000, read_write, shared, file.as_raw_fd(), 0);
        assert_ne!(start, libc::MAP_FAILED);
        let bytes = std::slice::from_raw_parts_mut(start.cast::<u8>(), 20_000);
        assert_eq!(bytes, pattern(20_000));
        bytes[5_000..15_000].fill(9);
        assert_eq!(libc::msync(start, 20_000, libc::MS_SYNC), 0);
        libc::munmap(start, 20_000);
    }
    assert!(times(&path).1 > before);
    drop(file);
    let mut want = pattern(20_000);
    want[5_000..15_000].fill(9);
    assert_eq!(fs::read(&path).unwrap(), want);
    let mounted = again(dir.path(), mounted, &tree, false);
    assert_eq!(fs::read(&path).unwrap(), want);
    drop(mounted);
}

#[test]
fn blocked_writers_leave_room_for_readers() {
    if !can_mount() {
        return;
    }
    let mut start = MemoryTree::writable();
    start.file(ROOT_INO, "quick", "data");
    start.directory(ROOT_INO, "other");
    let (dir, _mounted, tree) = serve(start);
    let path = |index: u8| dir.path().join(format!("f{index}"));
    let files: Vec<File> = (0..100).map(|index| File::create(path(index)).unwrap()).collect();
    tree.stopped.store(true, Ordering::Relaxed);
    std::thread::scope(|scope| {
        for (index, file) in (0..100u8).zip(&files) {
            scope.spawn(move || file.write_all_at(&vec![index; 300_000], 0).unwrap());
        }
        let begin = Instant::now();
        while tree.writing.load(Ordering::Relaxed) < 32 && begin.elapsed().as_secs() < 10 {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(100));
        let writing = tree.writing.load(Ordering::Relaxed);
        let mut failed = 0;
        let worst = soonest(Duration::from_millis(100), |round| {
            let mut worst = Duration::ZERO;
            for index in 0..20 {
                let begin = Instant::now();
                let new = dir.path().join(format!("other/{round}.{index}"));
                failed += usize::from(File::open(&new).is_ok());
                failed += usize::from(File::create(&new).is_err());
                failed +=
                    usize::from(fs::read(dir.path().join("quick")).unwrap_or_default() != b"data");
                worst = worst.max(begin.elapsed());
            }
            worst
        });
        // Whatever was seen, the writers must come to their end.
        tree.stopped.store(false, Ordering::Relaxed);
        assert_eq!((writing, failed), (32, 0));
        assert!(worst < Duration::from_millis(100), "{worst:?}");
    });
    for index in 0..100 {
        assert_eq!(fs::read(path(index)).unwrap(), vec![index; 300_000]);
    }
}

#[test]
fn mount_options_are_those_asked_for() {
    if !can_mount() {
        return;
    }
    let line = |dir: &Path| {
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
        table.lines().find(|line| line.contains(dir.to_str().unwrap())).unwrap().to_owned()
    };
    let dir = directory();
    let mut start = MemoryTree::writable();
    start.file(ROOT_INO, "f", "data");
    let tree = Arc::new(start);
    let options = MountOptions {
        read_only: true,
        access_times: AccessTimes::Never,
        set_id: false,
        ..MountOptions::new(dir.path(), "tank/test")
    };
    let mounted = mount(tree.clone(), options).unwrap();
    assert!(line(dir.path()).contains(" ro,nosuid,noatime "), "{}", line(dir.path()));
    assert_eq!(errno(fs::write(dir.path().join("f"), "x")), libc::EROFS);
    // Even if root lifts the flag.
    let flags = rustix::mount::MountFlags::empty();
    rustix::mount::mount_remount(dir.path(), flags, "").unwrap();
    assert_eq!(errno(fs::write(dir.path().join("f"), "x")), libc::EROFS);
    drop(mounted);
    let options = MountOptions {
        access_times: AccessTimes::Always,
        devices: false,
        execute: false,
        ..MountOptions::new(dir.path(), "tank/test")
    };
    let _mounted = mount(tree, options).unwrap();
    assert!(line(dir.path()).contains(" rw,nodev,noexec "), "{}", line(dir.path()));
    fs::write(dir.path().join("f"), "#!/bin/sh\n").unwrap();
    fs::set_permissions(dir.path().join("f"), fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(errno(std::process::Command::new(dir.path().join("f")).status()), libc::EACCES);
}

#[test]
fn the_kernel_is_told_what_changed_without_it() {
    if !can_mount() {
        return;
    }
    let (dir, mounted, tree) = serve(MemoryTree::writable());
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("d")).unwrap();
    fs::write(at("f"), "old").unwrap();
    let node = fs::metadata(at("f")).unwrap().ino();
    let directory = fs::metadata(at("d")).unwrap().ino();
    let asked = std::time::Instant::now();
    assert_eq!(fs::read(at("f")).unwrap(), b"old");
    assert_eq!(errno(File::open(at("d/new"))), libc::ENOENT);
    let list = || fs::read_dir(at("d")).unwrap().count();
    assert_eq!((list(), list()), (0, 0));
    let make = |name: &[u8]| {
        let new = NewNode { mode: libc::S_IFREG | 0o644, umask: 0, rdev: 0, target: &[] };
        tree.create(ROOT_CALLER, directory, name, new).unwrap();
    };
    tree.write(ROOT_CALLER, node, 0, b"new", false).unwrap();
    make(b"new");
    // What it knows it asks for again after a second, which may have gone by on a busy machine.
    let kept = fs::read(at("f")).unwrap();
    assert!(kept == b"old" || asked.elapsed().as_millis() > 500);
    mounted.invalidate_node(node).unwrap();
    mounted.invalidate_node(directory).unwrap();
    mounted.invalidate_name(directory, b"new").unwrap();
    assert_eq!(fs::read(at("f")).unwrap(), b"new");
    assert_eq!(list(), 1);
    File::open(at("d/new")).unwrap();
    // What the kernel does not know need not be told.
    mounted.invalidate_node(4711).unwrap();
    mounted.invalidate_name(4711, b"x").unwrap();
    assert!(tree.lookup(ROOT, b"f").is_ok());
}

#[test]
fn many_at_once_leave_a_consistent_tree() {
    if !can_mount() {
        return;
    }
    let (dir, mounted, tree) = serve(MemoryTree::writable());
    let start = tree.count();
    std::thread::scope(|scope| {
        for thread in 0..8u32 {
            let at = move |base: &Path, name: u32| base.join(format!("n{}", name % 20));
            let base = dir.path();
            scope.spawn(move || {
                let mut state = thread + 1;
                for _ in 0..2000 {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    let (a, b) = (at(base, state >> 8), at(base, state >> 16));
                    let _ = match state >> 28 {
                        0..4 => fs::write(&a, state.to_le_bytes()),
                        4..7 => fs::remove_file(&a),
                        7..10 => fs::rename(&a, &b),
                        10..12 => fs::hard_link(&a, &b),
                        12 => fs::read(&a).map(drop),
                        13 => fs::read_dir(base).map(|entries| entries.count()).map(drop),
                        _ => File::open(&a).and_then(|file| {
                            fs::remove_file(&a)?;
                            assert!(file.metadata().is_ok());
                            let mut bytes = Vec::new();
                            (&file).read_to_end(&mut bytes).map(drop)
                        }),
                    };
                }
            });
        }
    });
    for entry in fs::read_dir(dir.path()).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    until("forgotten", || tree.count() == start);
    unmount(&mounted);
}
