//! The FUSE door for real: an in-memory tree, mounted, read by ordinary system calls.
//!
//! These need `/dev/fuse` and the right to mount (root); without, they say so and pass, unless
//! `CENOTE_NEED_FUSE` is set.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod memory;
mod support;

use std::collections::{BTreeMap, HashSet};
use std::ffi::{CStr, CString};
use std::fs;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use cenote_serve::fuse::{MountError, MountOptions, mount};
use memory::{MemoryTree, ROOT_INO};
use support::{acl, as_nobody, can_mount, pattern, serve, soonest, unmount, xattr};

#[test]
fn reads_files_of_every_size_and_alignment() {
    if !can_mount() {
        return;
    }
    let mut tree = MemoryTree::new();
    let sizes = [0, 1, 4095, 4096, 4097, 131_072, 1_048_576, 5_000_001];
    for size in sizes {
        tree.file(ROOT_INO, &format!("f{size}"), pattern(size));
    }
    let pieces = (0..3000).map(|i| (i * 100, Bytes::from(pattern(100)))).collect();
    tree.sparse(ROOT_INO, "pieces", 300_000, pieces);
    let (dir, mounted, tree) = serve(tree);
    for size in sizes {
        let path = dir.path().join(format!("f{size}"));
        assert_eq!(fs::read(&path).unwrap(), pattern(size), "{size}");
        assert_eq!(fs::metadata(&path).unwrap().len(), size as u64);
    }
    assert_eq!(fs::read(dir.path().join("pieces")).unwrap(), pattern(100).repeat(3000));
    // Again: from the kernel's cache.
    let reads = tree.reads.load(Ordering::Relaxed);
    assert_eq!(fs::read(dir.path().join("f5000001")).unwrap().len(), 5_000_001);
    assert_eq!(tree.reads.load(Ordering::Relaxed), reads);
    // Past the page cache, any size up to 1 MiB.
    let direct = fs::OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_DIRECT)
        .open(dir.path().join("f5000001"))
        .unwrap();
    for (offset, len) in [(0u64, 1usize), (7, 4096), (4096, 1 << 20), (4_999_000, 100_000)] {
        let mut buffer = vec![0; len];
        let got = direct.read_at(&mut buffer, offset).unwrap();
        let want = &pattern(5_000_001)[offset as usize..];
        assert_eq!(buffer[..got], want[..len.min(want.len())]);
    }
    drop(direct);
    unmount(&mounted);
    assert!(!mounted.is_alive());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn attributes_links_and_special_files() {
    if !can_mount() {
        return;
    }
    let mut tree = MemoryTree::new();
    let sub = tree.directory(ROOT_INO, "sub");
    let file = tree.file(sub, "file", "data");
    tree.put_name(ROOT_INO, b"hard link", file);
    {
        let attributes = &mut tree.change(file).attributes;
        attributes.links = 2;
        attributes.uid = 4_000_000_000;
        attributes.gid = 70_000;
        attributes.mode = libc::S_IFREG | 0o4751;
        attributes.accessed.seconds = -5;
        attributes.modified.nanoseconds = 999_999_999;
    }
    tree.symlink(ROOT_INO, "link", "sub/file");
    tree.symlink(ROOT_INO, "long", &"x".repeat(4095));
    tree.symlink(ROOT_INO, "too long", &"x".repeat(5000));
    tree.special(ROOT_INO, "fifo", libc::S_IFIFO | 0o600, 0);
    tree.special(ROOT_INO, "null", libc::S_IFCHR | 0o600, libc::makedev(1, 3));
    tree.special(ROOT_INO, "disk", libc::S_IFBLK | 0o600, libc::makedev(259, 70_000));
    let (dir, mounted, tree) = serve(tree);
    let at = |name: &str| dir.path().join(name);
    let root = fs::metadata(dir.path()).unwrap();
    assert_eq!(root.ino(), ROOT_INO);
    let stat = fs::metadata(at("sub/file")).unwrap();
    assert_eq!((stat.uid(), stat.gid(), stat.mode()), (4_000_000_000, 70_000, 0o104_751));
    assert_eq!((stat.nlink(), stat.ino(), stat.len()), (2, file, 4));
    assert_eq!((stat.atime(), stat.mtime_nsec()), (-5, 999_999_999));
    assert_eq!(fs::metadata(at("hard link")).unwrap().ino(), file);
    let created = stat.created().unwrap().duration_since(std::time::UNIX_EPOCH).unwrap();
    assert_eq!(created, Duration::new(1_700_000_000, 4));
    assert_eq!(fs::read_link(at("link")).unwrap(), Path::new("sub/file"));
    assert_eq!(fs::read(at("link")).unwrap(), b"data");
    assert_eq!(fs::read_link(at("long")).unwrap().as_os_str().len(), 4095);
    assert_eq!(fs::read_link(at("too long")).unwrap_err().raw_os_error(), Some(libc::ENAMETOOLONG));
    assert!(fs::symlink_metadata(at("fifo")).unwrap().file_type().is_fifo());
    let disk = fs::symlink_metadata(at("disk")).unwrap();
    assert!(disk.file_type().is_block_device());
    assert_eq!((libc::major(disk.rdev()), libc::minor(disk.rdev())), (259, 70_000));
    assert_eq!(fs::read(at("null")).unwrap(), b"");
    // What does not exist is remembered.
    assert_eq!(fs::metadata(at("none")).unwrap_err().raw_os_error(), Some(libc::ENOENT));
    let lookups = tree.lookups.load(Ordering::Relaxed);
    assert!(fs::metadata(at("none")).is_err());
    assert_eq!(tree.lookups.load(Ordering::Relaxed), lookups);
    let space = rustix::fs::statvfs(dir.path()).unwrap();
    assert_eq!((space.f_bsize, space.f_blocks, space.f_bfree), (131_072, 1000, 250));
    assert_eq!((space.f_files, space.f_ffree, space.f_namemax), (5000, 4000, 255));
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = table.lines().find(|line| line.contains(dir.path().to_str().unwrap())).unwrap();
    assert!(line.contains(" - fuse.cenote tank/test ro,"), "{line}");
    drop(mounted);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn nothing_can_be_changed() {
    if !can_mount() {
        return;
    }
    let mut tree = MemoryTree::new();
    tree.file(ROOT_INO, "file", "data");
    tree.directory(ROOT_INO, "dir");
    let (dir, _mounted, _) = serve(tree);
    let tries = |what: &str| {
        let at = |name: &str| dir.path().join(name);
        let refused = |error: std::io::Error| {
            assert_eq!(error.raw_os_error(), Some(libc::EROFS), "{what}: {error}");
        };
        refused(fs::write(at("new"), "x").unwrap_err());
        refused(fs::write(at("file"), "x").unwrap_err());
        refused(
            fs::OpenOptions::new()
                .append(true)
                .open(at("file"))
                .and_then(|mut f| f.write(b"x"))
                .unwrap_err(),
        );
        refused(fs::create_dir(at("d2")).unwrap_err());
        refused(fs::remove_file(at("file")).unwrap_err());
        refused(fs::remove_dir(at("dir")).unwrap_err());
        refused(fs::rename(at("file"), at("dir/file")).unwrap_err());
        refused(fs::hard_link(at("file"), at("file2")).unwrap_err());
        refused(std::os::unix::fs::symlink("x", at("l")).unwrap_err());
        refused(std::os::unix::fs::chown(at("file"), Some(1), None).unwrap_err());
        let set = rustix::fs::setxattr(at("file"), "user.x", b"1", rustix::fs::XattrFlags::empty());
        refused(set.unwrap_err().into());
    };
    tries("mounted read-only");
    // Even if root lifts the read-only flag, the server refuses.
    let flags = rustix::mount::MountFlags::empty();
    rustix::mount::mount_remount(dir.path(), flags, "").unwrap();
    tries("remounted");
    assert_eq!(fs::read(dir.path().join("file")).unwrap(), b"data");
}

#[test]
fn sparse_files_seek_and_read_as_zeros() {
    if !can_mount() {
        return;
    }
    let mut tree = MemoryTree::new();
    let extents = BTreeMap::from([
        (1 << 20, Bytes::from(pattern(4096))),
        (10 << 30, Bytes::from(pattern(10))),
    ]);
    tree.sparse(ROOT_INO, "sparse", 1 << 40, extents);
    let (dir, _mounted, _) = serve(tree);
    let mut file = fs::File::open(dir.path().join("sparse")).unwrap();
    let seek = |offset, what| {
        use rustix::fs::SeekFrom;
        let from = if what == "data" { SeekFrom::Data(offset) } else { SeekFrom::Hole(offset) };
        rustix::fs::seek(&file, from).map_err(|error| error.raw_os_error())
    };
    assert_eq!(seek(0, "data"), Ok(1 << 20));
    assert_eq!(seek(0, "hole"), Ok(0));
    assert_eq!(seek(1 << 20, "hole"), Ok((1 << 20) + 4096));
    assert_eq!(seek((1 << 20) + 4096, "data"), Ok(10 << 30));
    assert_eq!(seek(11 << 30, "data"), Err(libc::ENXIO));
    assert_eq!(seek(1 << 40, "hole"), Err(libc::ENXIO));
    file.seek(SeekFrom::Start((1 << 20) - 10)).unwrap();
    let mut buffer = [1; 20];
    file.read_exact(&mut buffer).unwrap();
    assert_eq!(buffer[..10], [0; 10]);
    assert_eq!(buffer[10..], pattern(10));
    file.seek(SeekFrom::End(-5)).unwrap();
    let mut end = Vec::new();
    assert_eq!(file.read_to_end(&mut end).unwrap(), 5);
}

#[test]
fn extended_attributes() {
    if !can_mount() {
        return;
    }
    let mut tree = MemoryTree::new();
    let file = tree.file(ROOT_INO, "file", "data");
    let xattrs = &mut tree.change(file).xattrs;
    xattrs.insert(b"user.small".to_vec(), b"value".to_vec());
    xattrs.insert(b"user.empty".to_vec(), Vec::new());
    xattrs.insert(b"user.big".to_vec(), pattern(65_536));
    xattrs.insert(b"security.capability".to_vec(), pattern(20));
    xattrs.insert(b"trusted.t".to_vec(), b"t".to_vec());
    tree.file(ROOT_INO, "plain", "");
    let (dir, _mounted, _) = serve(tree);
    let path = dir.path().join("file");
    assert_eq!(xattr(&path, "user.small", 100).unwrap(), b"value");
    assert_eq!(rustix::fs::lgetxattr_query(&path, "user.small").unwrap(), 5);
    assert_eq!(rustix::fs::llistxattr_query(&path).unwrap(), 61);
    assert_eq!(xattr(&path, "user.small", 4), Err(libc::ERANGE));
    assert_eq!(xattr(&path, "user.empty", 4).unwrap(), b"");
    assert_eq!(xattr(&path, "user.big", 65_536).unwrap(), pattern(65_536));
    assert_eq!(xattr(&path, "user.none", 4), Err(libc::ENODATA));
    assert_eq!(xattr(&path, "trusted.t", 4).unwrap(), b"t");
    assert_eq!(xattr(&path, "system.posix_acl_access", 100), Err(libc::ENODATA));
    let mut names = vec![0; 1000];
    let len = rustix::fs::listxattr(&path, &mut names[..]).unwrap();
    let mut names: Vec<&CStr> = names[..len]
        .split_inclusive(|&byte| byte == 0)
        .map(|name| CStr::from_bytes_with_nul(name).unwrap())
        .collect();
    names.sort();
    let want = ["security.capability", "trusted.t", "user.big", "user.empty", "user.small"];
    assert_eq!(
        names,
        want.map(|name| CString::new(name).unwrap()).each_ref().map(|n| n.as_c_str())
    );
    let mut few = [0; 10];
    let short = rustix::fs::listxattr(&path, &mut few[..]);
    assert_eq!(short.unwrap_err(), rustix::io::Errno::RANGE);
    let mut none = [0; 10];
    assert_eq!(rustix::fs::listxattr(dir.path().join("plain"), &mut none[..]).unwrap(), 0);
}

#[test]
fn lists_a_hundred_thousand_entries() {
    if !can_mount() {
        return;
    }
    let mut tree = MemoryTree::new();
    let many = tree.directory(ROOT_INO, "many");
    for number in 0..100_000 {
        tree.file(many, &format!("a file with the number {number}"), "");
    }
    tree.put_name(many, "ü".repeat(127).as_bytes(), many + 1);
    tree.put_name(many, b"bad/name", many + 1);
    tree.put_name(many, &[b'n'; 2000], many + 1);
    let (dir, _mounted, _) = serve(tree);
    for _ in 0..2 {
        let mut seen = HashSet::new();
        for entry in fs::read_dir(dir.path().join("many")).unwrap() {
            let entry = entry.unwrap();
            assert!(entry.file_type().unwrap().is_file());
            assert!(seen.insert(entry.file_name()), "twice: {:?}", entry.file_name());
        }
        assert_eq!(seen.len(), 100_001);
    }
    let counted = fs::read_dir(dir.path().join("many"))
        .unwrap()
        .filter(|entry| entry.as_ref().unwrap().metadata().unwrap().is_file())
        .count();
    assert_eq!(counted, 100_001);
    // "." and ".." are there too.
    let listing = Command::new("ls").arg("-a").arg(dir.path()).output().unwrap();
    assert_eq!(listing.stdout, b".\n..\nmany\n");
}

#[test]
fn the_kernel_enforces_modes_and_acls() {
    if !can_mount() {
        return;
    }
    const NONE: u32 = u32::MAX;
    let mut tree = MemoryTree::new();
    for (name, mode) in [("open", 0o644), ("closed", 0o640), ("given", 0o640), ("denied", 0o644)] {
        let node = tree.file(ROOT_INO, name, "data");
        tree.change(node).attributes.mode = libc::S_IFREG | mode;
        let acl = match name {
            // The group bits of a mode with an ACL are its mask.
            "given" => {
                acl(&[(1, 6, NONE), (2, 4, 65534), (4, 0, NONE), (16, 4, NONE), (32, 0, NONE)])
            }
            "denied" => {
                acl(&[(1, 6, NONE), (2, 0, 65534), (4, 4, NONE), (16, 4, NONE), (32, 4, NONE)])
            }
            _ => continue,
        };
        tree.change(node).xattrs.insert(b"system.posix_acl_access".to_vec(), acl);
    }
    let (dir, _mounted, _) = serve(tree);
    let cat = |name: &str| as_nobody(&format!("cat {}/{name}", dir.path().display()));
    assert!(cat("open"));
    assert!(!cat("closed"));
    assert!(cat("given"));
    assert!(!cat("denied"));
    assert_eq!(fs::read(dir.path().join("closed")).unwrap(), b"data");
    assert_eq!(xattr(&dir.path().join("given"), "system.posix_acl_access", 100).unwrap().len(), 44);
}

#[test]
fn a_busy_mount_stays_unless_forced() {
    if !can_mount() {
        return;
    }
    let mut tree = MemoryTree::new();
    tree.file(ROOT_INO, "file", pattern(1 << 20));
    let (dir, mounted, _) = serve(tree);
    let file = fs::File::open(dir.path().join("file")).unwrap();
    assert!(matches!(mounted.unmount(), Err(MountError::Busy)));
    assert!(mounted.is_alive());
    let mut byte = [0];
    file.read_at(&mut byte, 0).unwrap();
    mounted.unmount_forced().unwrap();
    assert!(!mounted.is_alive());
    let error = file.read_at(&mut byte, 900_000).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOTCONN));
    mounted.wait();
    mounted.unmount().unwrap();
}

#[test]
fn what_is_busy_for_a_moment_is_unmounted() {
    if !can_mount() {
        return;
    }
    let mut tree = MemoryTree::new();
    tree.file(ROOT_INO, "file", pattern(10));
    let (dir, mounted, _) = serve(tree);
    let file = fs::File::open(dir.path().join("file")).unwrap();
    let user = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        drop(file);
    });
    mounted.unmount().unwrap();
    user.join().unwrap();
}

#[test]
fn slow_reads_do_not_hold_up_others() {
    if !can_mount() {
        return;
    }
    let mut tree = MemoryTree::new();
    let slow = tree.file(ROOT_INO, "slow", pattern(64 << 20));
    // Each is read once: the kernel keeps what was.
    const QUICK: usize = 64;
    for number in 0..QUICK {
        tree.file(ROOT_INO, &format!("quick{number}"), "data");
    }
    tree.slow = Some((slow, Duration::ZERO));
    let (dir, _mounted, tree) = serve(tree);
    let file = fs::OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_DIRECT)
        .open(dir.path().join("slow"))
        .unwrap();
    tree.stopped.store(true, Ordering::Relaxed);
    std::thread::scope(|scope| {
        for index in 0..16 {
            let file = &file;
            scope.spawn(move || {
                let mut buffer = [0; 4096];
                file.read_exact_at(&mut buffer, index << 20).unwrap();
            });
        }
        let begin = Instant::now();
        while tree.reading.load(Ordering::Relaxed) < 16 && begin.elapsed().as_secs() < 10 {
            std::thread::sleep(Duration::from_millis(1));
        }
        // None of them goes on before these have been answered.
        let bound = Duration::from_millis(200);
        let mut answers = Vec::new();
        let soonest = soonest(bound, |round| {
            let quick = dir.path().join(format!("quick{round}"));
            let (read, answer) = std::sync::mpsc::channel();
            let start = Instant::now();
            scope.spawn(move || read.send(fs::read(quick)));
            answers.push(answer.recv_timeout(Duration::from_secs(10)));
            start.elapsed()
        });
        let reading = tree.reading.load(Ordering::Relaxed);
        tree.stopped.store(false, Ordering::Relaxed);
        for answer in answers {
            assert_eq!(answer.unwrap().unwrap(), b"data");
        }
        assert!(soonest < bound, "{soonest:?}");
        assert_eq!(reading, 16);
    });
}

#[test]
fn a_panic_in_the_tree_is_an_error_to_the_reader() {
    if !can_mount() {
        return;
    }
    let mut tree = MemoryTree::new();
    let bad = tree.file(ROOT_INO, "bad", "data");
    tree.file(ROOT_INO, "good", "data");
    tree.panics = Some(bad);
    let (dir, mounted, _) = serve(tree);
    let error = fs::read(dir.path().join("bad")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EIO));
    assert_eq!(fs::read(dir.path().join("good")).unwrap(), b"data");
    assert!(mounted.is_alive());
}

/// Not a test of its own: the server process of the next ones, when they start it.
#[test]
fn server_process() {
    let Some(directory) = std::env::var_os("CENOTE_TEST_SERVE") else { return };
    let mut tree = MemoryTree::writable();
    let slow = tree.file(ROOT_INO, "slow", "data");
    tree.file(ROOT_INO, "file", pattern(1 << 20));
    tree.slow = Some((slow, Duration::from_secs(600)));
    tree.change(ROOT_INO).attributes.mode = libc::S_IFDIR | 0o777;
    let mounted = mount(Arc::new(tree), MountOptions::new(directory, "tank, the test")).unwrap();
    println!("\nserving");
    mounted.wait();
}

/// Starts a server process, by way of `prefix`, and waits until it serves.
fn start_server(prefix: &[&str], directory: &Path) -> std::process::Child {
    let me = std::env::current_exe().unwrap();
    let mut words: Vec<&std::ffi::OsStr> = prefix.iter().map(std::ffi::OsStr::new).collect();
    words.push(me.as_os_str());
    let mut child = Command::new(words[0])
        .args(&words[1..])
        .args(["--exact", "server_process", "--nocapture"])
        .env("CENOTE_TEST_SERVE", directory)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = Vec::new();
    let out = child.stdout.as_mut().unwrap();
    while !said.ends_with(b"serving\n") {
        let mut byte = [0];
        assert_eq!(out.read(&mut byte).unwrap(), 1, "{}", String::from_utf8_lossy(&said));
        said.push(byte[0]);
    }
    child
}

#[test]
fn a_killed_server_leaves_errors_not_hangs() {
    if !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut server = start_server(&[], dir.path());
    let file = fs::File::open(dir.path().join("file")).unwrap();
    let mut byte = [0];
    file.read_at(&mut byte, 0).unwrap();
    let slow = dir.path().join("slow");
    let waiting = std::thread::spawn(move || fs::read(slow).unwrap_err().raw_os_error());
    std::thread::sleep(Duration::from_millis(100));
    assert!(!waiting.is_finished());
    server.kill().unwrap();
    server.wait().unwrap();
    let start = Instant::now();
    assert!(matches!(waiting.join().unwrap(), Some(libc::ENOTCONN | libc::ECONNABORTED)));
    let error = file.read_at(&mut byte, 900_000).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOTCONN));
    let error = fs::metadata(dir.path().join("other")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOTCONN));
    assert!(start.elapsed() < Duration::from_secs(5));
    drop(file);
    rustix::mount::unmount(dir.path(), rustix::mount::UnmountFlags::DETACH).unwrap();
}

#[test]
fn an_ordinary_user_mounts_through_the_helper() {
    if !can_mount() || !as_nobody("test -w /dev/fuse && command -v fusermount3") {
        eprintln!("not tested: needs fusermount3 and /dev/fuse open to all");
        return;
    }
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    std::os::unix::fs::chown(dir.path(), Some(65534), Some(65534)).unwrap();
    // The test program itself must be reachable for that user.
    let copy = dir.path().join("program");
    let place = dir.path().join("mnt");
    fs::create_dir(&place).unwrap();
    std::os::unix::fs::chown(&place, Some(65534), Some(65534)).unwrap();
    fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
    let prefix = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    let mut command = Command::new(prefix[0]);
    let mut server = command
        .args(&prefix[1..])
        .arg(&copy)
        .args(["--exact", "server_process", "--nocapture"])
        .env("CENOTE_TEST_SERVE", &place)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let seen = format!("cmp -n 1000 {0}/file {0}/file", place.display());
    let start = Instant::now();
    while !as_nobody(&seen) {
        assert!(start.elapsed() < Duration::from_secs(20), "never mounted");
        std::thread::sleep(Duration::from_millis(20));
    }
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let place_text = String::from_utf8(place.as_os_str().as_bytes().to_vec()).unwrap();
    let line = table.lines().find(|line| line.contains(&place_text)).unwrap();
    assert!(line.contains(" - fuse.cenote tank,\\040the\\040test rw,user_id=65534"), "{line}");
    assert!(line.contains("nosuid,nodev"), "{line}");
    let change = "cd $0; echo x > new; mv new newer; test $(cat newer) = x; ls; rm newer";
    assert!(as_nobody(&change.replace("$0", &place.display().to_string())));
    // Others stay out, root included.
    assert!(fs::metadata(place.join("file")).is_err());
    assert!(as_nobody(&format!("fusermount3 -u {}", place.display())));
    assert!(server.wait().unwrap().success());
}
