//! Trees exchanged under a mount that is in use: in-memory trees behind a real mount.
//!
//! These need `/dev/fuse` and the right to mount (root); without, they say so and pass, unless
//! `CENOTE_NEED_FUSE` is set.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod memory;
mod support;

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cenote_serve::fuse::{Exchanged, MountOptions, Mounted, Next, mount};
use memory::{MemoryTree, ROOT_INO};
use support::{as_nobody, can_mount, serve, until};

/// What a tree holds at the beginning: nodes follow from the order.
fn start() -> MemoryTree {
    let mut tree = MemoryTree::writable();
    tree.file(ROOT_INO, "stays", "old"); // 101
    tree.file(ROOT_INO, "goes", "goes"); // 102
    let directory = tree.directory(ROOT_INO, "d"); // 103
    tree.file(directory, "moves", "moves"); // 104
    tree.directory(ROOT_INO, "inside"); // 105
    tree
}

/// What comes in its place.
fn other() -> MemoryTree {
    let mut tree = MemoryTree::writable();
    tree.file(ROOT_INO, "stays", "newer");
    let taken = tree.file(ROOT_INO, "came", "came");
    // The number of a file that is gone, and even its generation.
    tree.change(taken).attributes.created.seconds += 1;
    tree.directory(ROOT_INO, "d");
    tree.file(ROOT_INO, "moved", "moves");
    tree.directory(ROOT_INO, "inside");
    tree
}

fn exchange(mounted: &Mounted, tree: MemoryTree) -> Arc<MemoryTree> {
    let tree = Arc::new(tree);
    let next = tree.clone();
    assert_eq!(mounted.exchange(|| Next::Other(next)), Exchanged::Done);
    tree
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}

fn errno<T: std::fmt::Debug>(result: std::io::Result<T>) -> i32 {
    result.unwrap_err().raw_os_error().unwrap()
}

#[test]
fn what_is_open_and_still_there_goes_on_and_the_rest_is_stale() {
    if !can_mount() {
        return;
    }
    let (dir, mounted, old) = serve(start());
    let at = |name: &str| dir.path().join(name);
    let open = |name: &str| File::options().read(true).write(true).open(at(name)).unwrap();
    let (stays, goes, moves) = (open("stays"), open("goes"), open("d/moves"));
    for name in ["stays", "goes", "d/moves"] {
        text(&at(name));
    }
    assert_eq!(errno(fs::metadata(at("came"))), libc::ENOENT);
    let read = |file: &File| {
        let mut bytes = [0; 16];
        file.read_at(&mut bytes, 0).map(|len| String::from_utf8_lossy(&bytes[..len]).into_owned())
    };
    let new = exchange(&mounted, other());
    assert_eq!(Arc::strong_count(&old), 1, "the old tree is let go");
    assert_eq!((read(&stays).unwrap(), read(&moves).unwrap()), ("newer".into(), "moves".into()));
    stays.write_all_at(b"NEWER", 0).unwrap();
    assert_eq!(text(&at("stays")), "NEWER");
    // Names that came, went and mean something else.
    let mut names: Vec<_> =
        fs::read_dir(dir.path()).unwrap().map(|one| one.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["came", "d", "inside", "moved", "stays"]);
    for gone in ["goes", "d/moves"] {
        assert_eq!(errno(File::open(at(gone))), libc::ENOENT);
    }
    // One number, two files: the old never shows or changes the new.
    assert_eq!(text(&at("came")), "came");
    assert_eq!(fs::metadata(at("came")).unwrap().ino(), 102);
    assert_eq!(errno(read(&goes)), libc::ESTALE);
    assert_eq!(errno(goes.write_at(b"evil", 0)), libc::ESTALE);
    assert_eq!(errno(goes.metadata()), libc::ESTALE);
    assert_eq!(text(&at("came")), "came");
    fs::write(at("came"), "came back").unwrap();
    assert_eq!(text(&at("moved")), "moves");
    drop(goes);
    fs::remove_file(at("came")).unwrap();
    until("forgotten", || new.count() == 5);
}

#[test]
fn what_is_mounted_and_worked_in_inside_stays() {
    if !can_mount() {
        return;
    }
    let (dir, mounted, _old) = serve(start());
    let place = dir.path().join("inside");
    let child = Arc::new(start());
    let inside = mount(child, MountOptions::new(&place, "tank/test/inside")).unwrap();
    let open = File::open(place.join("stays")).unwrap();
    let directory = File::open(dir.path().join("d")).unwrap();
    for _ in 0..5 {
        exchange(&mounted, other());
        assert_eq!(text(&place.join("stays")), "old");
        assert_eq!(errno(File::open(place.join("came"))), libc::ENOENT);
        exchange(&mounted, start());
        assert_eq!(text(&dir.path().join("d/moves")), "moves");
    }
    let mut bytes = [0; 3];
    open.read_exact_at(&mut bytes, 0).unwrap();
    let link = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&directory));
    assert_eq!(fs::read_link(link).unwrap(), dir.path().join("d"));
    assert!(inside.is_alive() && !as_nobody(&format!("mountpoint -q {}/no", place.display())));
    assert!(as_nobody(&format!("mountpoint -q {}", place.display())));
    drop((open, directory));
}

#[test]
fn who_comes_meanwhile_waits_and_goes_on() {
    if !can_mount() {
        return;
    }
    let (dir, mounted, _old) = serve(start());
    let path = dir.path().join("stays");
    text(&path);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (path, done) = (&path, &done);
        let exchanged = mounted.exchange(|| {
            scope.spawn(move || {
                let mut file = File::options().append(true).open(path).unwrap();
                file.write_all(b"!").unwrap();
                assert!(done.load(Ordering::SeqCst));
            });
            std::thread::sleep(Duration::from_millis(300));
            done.store(true, Ordering::SeqCst);
            Next::Other(Arc::new(other()))
        });
        assert_eq!(exchanged, Exchanged::Done);
    });
    until("at the end, wherever the kernel took that to be", || text(&path) == "newer!");
}

#[test]
fn what_is_appended_goes_to_the_end_of_the_file_that_is_there() {
    if !can_mount() {
        return;
    }
    let (dir, mounted, _old) = serve(start());
    let path = dir.path().join("stays");
    let mut log = File::options().append(true).open(&path).unwrap();
    log.write_all(b", and more").unwrap();
    exchange(&mounted, other());
    log.write_all(b" + one").unwrap();
    log.write_all(b" + two").unwrap();
    until("shorter than before", || text(&path) == "newer + one + two");
    exchange(&mounted, start());
    log.write_all(b"!").unwrap();
    until("shorter again", || text(&path) == "old!");
    let mut long = start();
    long.change(101).attributes.size = 5000;
    exchange(&mounted, long);
    log.write_all(b"!").unwrap();
    until("longer", || fs::metadata(&path).unwrap().len() == 5001);
    assert_eq!(fs::read(&path).unwrap().last(), Some(&b'!'));
}

#[test]
fn a_mount_that_gets_nothing_is_cut_off_and_one_that_cannot_stop_stays() {
    if !can_mount() {
        return;
    }
    let (dir, mounted, old) = serve(start());
    let path = dir.path().join("stays");
    let file = File::options().write(true).open(&path).unwrap();
    old.stopped.store(true, Ordering::Relaxed);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| file.write_all_at(b"OLD", 0));
        until("a write is under way", || old.writing.load(Ordering::Relaxed) == 1);
        let exchanged = mounted.exchange(|| Next::Nothing);
        old.stopped.store(false, Ordering::Relaxed);
        assert_eq!(exchanged, Exchanged::NotBegun);
        writer.join().unwrap().unwrap();
    });
    assert_eq!(text(&path), "OLD");
    assert_eq!(mounted.exchange(|| Next::Same(Arc::new(start()))), Exchanged::Done);
    // What can only be read is no tree for a mount that could be written.
    let read_only = || Next::Other(Arc::new(MemoryTree::new()));
    assert_eq!(mounted.exchange(read_only), Exchanged::CutOff);
    assert_eq!(errno(fs::write(dir.path().join("new"), "")), libc::ENOTCONN);
    mounted.unmount_forced().unwrap();
}

/// Changes a file through a shared mapping, says so, and writes that out when it is told to; what that said.
const MAPS: &str = "import mmap, sys\n\
    file = open(sys.argv[1], 'r+b')\n\
    pages = mmap.mmap(file.fileno(), 4096)\n\
    print(pages[:4].decode(), flush=True)\n\
    for line in sys.stdin:\n\
    \x20   pages[:4] = line[:4].encode()\n\
    \x20   print('set', flush=True)\n";

#[test]
fn what_was_mapped_before_does_not_get_into_the_new_tree() {
    if !can_mount() {
        return;
    }
    let page = || {
        let mut tree = MemoryTree::writable();
        tree.file(ROOT_INO, "mapped", "page".repeat(1024));
        tree
    };
    let (dir, mounted, _old) = serve(page());
    let path = dir.path().join("mapped");
    // Never the process that serves: it would wait for itself.
    let mut mapping = std::process::Command::new("python3");
    let mapping = mapping.arg("-c").arg(MAPS).arg(&path);
    let mapping = mapping.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
    let mut mapping = mapping.spawn().unwrap();
    let mut said = std::io::BufReader::new(mapping.stdout.take().unwrap());
    let mut says = move || {
        let mut line = String::new();
        std::io::BufRead::read_line(&mut said, &mut line).unwrap();
        line
    };
    let mut tell = mapping.stdin.take().unwrap();
    assert_eq!(says(), "page\n");
    let mut told = None;
    let new = Arc::new(page());
    let next = new.clone();
    let exchanged = mounted.exchange(|| {
        // After all was written that there was to write.
        tell.write_all(b"evil\n").unwrap();
        told = Some(says());
        Next::Other(next)
    });
    assert_eq!((exchanged, told.as_deref()), (Exchanged::Done, Some("set\n")));
    assert_eq!(&fs::read(&path).unwrap()[..4], b"page");
    // Later changes are taken.
    tell.write_all(b"good\n").unwrap();
    assert_eq!(says(), "set\n");
    drop(tell);
    assert!(mapping.wait().unwrap().success());
    // That something was refused is said once.
    let synced = File::open(&path).unwrap().sync_all();
    assert!(synced.is_ok() || File::open(&path).unwrap().sync_all().is_ok());
    assert_eq!(&fs::read(&path).unwrap()[..4], b"good");
    assert_eq!(new.writes.load(Ordering::SeqCst), 1);
}
