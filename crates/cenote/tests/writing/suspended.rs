//! A pool whose only disk fails: what is shown, who can be killed, and that it goes on.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use cenote_posix::tree::{
    Attributes, Caller, DirectoryEntry, Errno, NodeId, Pieces, ROOT, Result, Seek, SetAttributes,
    Space, Timestamp, Tree,
};
use cenote_serve::fuse::{MountOptions, Mounted, mount};

use super::{Bench, SIZE, may_not_run};

const DISK: NodeId = 2;
const EIO: i32 = 5;
const ENOENT: i32 = 2;
const DIRECTORY: u32 = 0o040_755;
const FILE: u32 = 0o100_644;

/// A filesystem of one file, a disk that fails, or does not answer, while it is told to.
pub(super) struct FailingDisk {
    back: std::fs::File,
    fails: AtomicBool,
    is_frozen: Mutex<bool>,
    /// What is not answered while it is frozen are flushes; reads and writes are.
    pub(super) in_flushes: AtomicBool,
    thawed: Condvar,
    /// Milliseconds that every answer takes.
    pub(super) takes: AtomicU64,
}

fn fail<T>(code: i32) -> Result<T> {
    Err(Errno::new(code, "test"))
}

impl FailingDisk {
    /// Nothing is answered from now on, or is again.
    pub(super) fn freeze(&self, frozen: bool) {
        *self.is_frozen.lock().unwrap() = frozen;
        self.thawed.notify_all();
    }

    fn check(&self, is_flush: bool) -> Result<()> {
        std::thread::sleep(std::time::Duration::from_millis(self.takes.load(Relaxed)));
        if !is_flush && self.in_flushes.load(Relaxed) {
            return Ok(());
        }
        let frozen = self.is_frozen.lock().unwrap();
        drop(self.thawed.wait_while(frozen, |frozen| *frozen).unwrap());
        if self.fails.load(Relaxed) { fail(EIO) } else { Ok(()) }
    }
}

impl Tree for FailingDisk {
    fn lookup(&self, _parent: NodeId, name: &[u8]) -> Result<Attributes> {
        if name == b"disk" { self.attributes(DISK) } else { fail(ENOENT) }
    }
    fn attributes(&self, node: NodeId) -> Result<Attributes> {
        let (mode, size) = if node == DISK { (FILE, SIZE) } else { (DIRECTORY, 0) };
        let time = Timestamp::default();
        Ok(Attributes {
            node,
            generation: 0,
            mode,
            links: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size,
            sectors: size / 512,
            block_size: 4096,
            accessed: time,
            modified: time,
            changed: time,
            created: time,
        })
    }
    fn access(&self, _node: NodeId, _caller: Caller, _mask: u32) -> Result<()> {
        Ok(())
    }
    fn read_link(&self, _node: NodeId) -> Result<Vec<u8>> {
        fail(EIO)
    }
    fn read(&self, _node: NodeId, offset: u64, len: usize) -> Result<Pieces> {
        self.check(false)?;
        let mut bytes = vec![0; len];
        let read = self.back.read_at(&mut bytes, offset).or_else(|_| fail(EIO))?;
        bytes.truncate(read);
        Ok([bytes::Bytes::from(bytes)].into_iter().collect())
    }
    fn read_directory(
        &self,
        _node: NodeId,
        _cursor: u64,
        _each: &mut dyn FnMut(DirectoryEntry) -> bool,
    ) -> Result<()> {
        Ok(())
    }
    fn seek(&self, _node: NodeId, offset: u64, _what: Seek) -> Result<u64> {
        Ok(offset)
    }
    fn get_xattr(&self, _node: NodeId, _name: &[u8]) -> Result<Vec<u8>> {
        fail(61)
    }
    fn list_xattr(&self, _node: NodeId) -> Result<Vec<Vec<u8>>> {
        Ok(Vec::new())
    }
    fn space(&self) -> Result<Space> {
        Ok(Space { block_size: 4096, name_max: 255, ..Space::default() })
    }
    fn is_writable(&self) -> bool {
        true
    }
    fn set_attributes(
        &self,
        _caller: Caller,
        node: NodeId,
        _change: &SetAttributes,
    ) -> Result<Attributes> {
        self.attributes(node)
    }
    fn write(
        &self,
        _caller: Caller,
        _node: NodeId,
        offset: u64,
        data: &[u8],
        _kill_set_id: bool,
    ) -> Result<()> {
        self.check(false)?;
        self.back.write_all_at(data, offset).or_else(|_| fail(EIO))
    }
    fn sync(&self, node: NodeId, _data_only: bool) -> Result<()> {
        if node == ROOT { Ok(()) } else { self.check(true) }
    }
}

/// Such a disk at `failing/disk`, whose bytes are in the first device of `bench`.
pub(super) fn failing_disk(bench: &Bench) -> (Arc<FailingDisk>, Mounted) {
    let back = std::fs::File::options().read(true).write(true).open(&bench.devices(1)[0]).unwrap();
    let disk = Arc::new(FailingDisk {
        back,
        fails: AtomicBool::new(false),
        is_frozen: Mutex::new(false),
        in_flushes: AtomicBool::new(false),
        thawed: Condvar::new(),
        takes: AtomicU64::new(0),
    });
    std::fs::create_dir(bench.at("failing")).unwrap();
    let mounted = mount(disk.clone(), MountOptions::new(bench.at("failing"), "failing")).unwrap();
    (disk, mounted)
}

/// Whether such disks can be made here.
pub(super) fn may_not_fail() -> bool {
    may_not_run() || !rustix::process::geteuid().is_root()
}

/// A pool on such a disk; the mount goes after the pool has.
pub(super) fn bench() -> Option<(Bench, Arc<FailingDisk>, Mounted)> {
    if may_not_fail() {
        return None;
    }
    let bench = Bench::new(1);
    let (disk, mounted) = failing_disk(&bench);
    bench.create(&["-f", &bench.at("failing/disk").display().to_string()]);
    Some((bench, disk, mounted))
}

fn dd(file: &Path, options: &[&str]) -> Child {
    Command::new("dd")
        .args(["if=/dev/zero".to_owned(), format!("of={}", file.display())])
        .args(["bs=64k", "count=4"])
        .args(options)
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Waits for the end of a process; false if it takes longer than so.
fn ends(child: &mut Child, patience: Duration) -> bool {
    let start = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if start.elapsed() > patience {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    true
}

fn within<T>(patience: u64, what: &str, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let done = work();
    assert!(start.elapsed() < Duration::from_secs(patience), "{what}: {:?}", start.elapsed());
    done
}

#[test]
fn a_pool_that_cannot_write_says_so_and_keeps_nobody() {
    let Some((bench, disk, mounted)) = bench() else { return };
    let at = |name: &str| bench.at("mnt/tank").join(name);
    std::fs::write(at("before"), b"before").unwrap();
    bench.cenote(&["zpool", "sync", "tank"]);
    disk.fails.store(true, Relaxed);
    let mut waiting = vec![dd(&at("synced"), &["conv=fsync"])];
    let start = Instant::now();
    loop {
        let status = within(5, "status", || bench.cenote(&["zpool", "status", "tank"]));
        let shows = |line: &&str| line.contains("failing/disk") && line.contains("FAULTED");
        if status.contains("state: SUSPENDED") && status.lines().any(|line| shows(&line)) {
            break;
        }
        assert!(start.elapsed() < Duration::from_secs(30), "{status}");
        std::thread::sleep(Duration::from_millis(100));
    }
    waiting.push(dd(&at("written"), &[]));
    waiting.push(Command::new("mv").args([at("before"), at("after")]).spawn().unwrap());
    std::thread::sleep(Duration::from_millis(500));
    // All, for one who waits holds the kernel's lock of the directory, and others wait for that.
    for (number, child) in waiting.iter_mut().enumerate() {
        assert!(child.try_wait().unwrap().is_none(), "{number} does not wait");
        let pid = rustix::process::Pid::from_child(child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    }
    for (number, child) in waiting.iter_mut().enumerate() {
        assert!(ends(child, Duration::from_secs(4)), "{number} cannot be killed");
    }
    let list = bench.cenote(&["zpool", "list", "tank"]);
    let lines: Vec<&str> = list.lines().collect();
    assert_eq!(
        lines[0].find("HEALTH").map(|at| at + 6),
        lines[1].find("SUSPENDED").map(|at| at + 9)
    );
    assert!(!bench.cenote(&["zpool", "status", "-x"]).contains("healthy"));
    for order in [&["zpool", "sync", "tank"][..], &["zfs", "set", "a:b=c", "tank"]] {
        let output = within(5, "an order", || bench.output(order));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains("pool I/O is currently suspended"), "{order:?}: {said}");
    }
    let said = within(8, "clear", || bench.refused(&["zpool", "clear", "tank"]));
    let words = "cannot clear errors for tank: pool I/O is currently suspended: ";
    assert!(said.starts_with(words) && said.len() > words.len() + 10, "{said}");
    disk.fails.store(false, Relaxed);
    within(5, "clear", || bench.cenote(&["zpool", "clear", "tank"]));
    assert!(!bench.cenote(&["zpool", "list", "tank"]).contains("SUSPENDED"));
    assert!(ends(&mut dd(&at("goes on"), &["conv=fsync"]), Duration::from_secs(15)));
    assert!(at("before").exists() && !at("after").exists(), "taken back is taken back");

    disk.fails.store(true, Relaxed);
    let mut again = dd(&at("again"), &["conv=fsync"]);
    std::thread::sleep(Duration::from_secs(1));
    let log = std::fs::read_to_string(bench.at("run/tank.log")).unwrap();
    let failures = log.lines().filter(|line| line.contains("a write failed")).count();
    assert!(failures <= 4, "{failures} times the same:\n{log}");
    within(5, "export -f", || bench.cenote(&["zpool", "export", "-f", "tank"]));
    assert!(ends(&mut again, Duration::from_secs(4)));
    disk.fails.store(false, Relaxed);
    let place = bench.at("failing/disk").display().to_string();
    bench.cenote(&[
        "zpool",
        "import",
        "-d",
        &place,
        "-R",
        &bench.at("mnt").display().to_string(),
        "tank",
    ]);
    assert_eq!(std::fs::read(at("before")).unwrap(), b"before");
    disk.fails.store(true, Relaxed);
    let mut last = dd(&at("last"), &["conv=fsync"]);
    std::thread::sleep(Duration::from_secs(1));
    within(5, "destroy -f", || bench.cenote(&["zpool", "destroy", "-f", "tank"]));
    assert!(ends(&mut last, Duration::from_secs(4)));
    mounted.unmount_forced().unwrap();
}

/// Waits until `is` so.
fn until(what: &str, is: impl Fn() -> bool) {
    let start = Instant::now();
    while !is() {
        assert!(start.elapsed() < Duration::from_secs(40), "not in time: {what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_rename_that_is_made_when_the_pool_goes_on_takes_its_mount_with_it() {
    let Some((bench, disk, mounted)) = bench() else { return };
    bench.cenote(&["zfs", "create", "tank/a"]);
    let file = bench.at("mnt/tank/a/file");
    std::fs::write(&file, b"one").unwrap();
    bench.cenote(&["zpool", "sync", "tank"]);
    disk.fails.store(true, Relaxed);
    let late = bench.output(&["zfs", "rename", "-u", "tank/a", "tank/b"]);
    assert!(!late.status.success());
    disk.fails.store(false, Relaxed);
    bench.cenote(&["zpool", "clear", "tank"]);
    until("it has its name", || {
        bench.cenote(&["zfs", "list", "-H", "-o", "name"]).contains("tank/b")
    });
    assert_eq!(
        bench.cenote(&["zfs", "get", "-H", "-o", "value", "mounted", "tank/b"]).trim(),
        "yes"
    );
    let again = bench.output(&["zfs", "mount", "tank/b"]);
    assert!(String::from_utf8_lossy(&again.stderr).contains("already mounted"));
    // Nobody takes it back from under its mount, or loses what is written there.
    std::fs::write(&file, b"two").unwrap();
    bench.cenote(&["zfs", "snapshot", "tank/b@s"]);
    std::fs::write(&file, b"three").unwrap();
    bench.cenote(&["zfs", "rollback", "tank/b@s"]);
    bench.cenote(&["zfs", "unmount", "tank/b"]);
    bench.cenote(&["zfs", "mount", "tank/b"]);
    assert_eq!(std::fs::read(bench.at("mnt/tank/b/file")).unwrap(), b"two");
    bench.cenote(&["zpool", "export", "tank"]);
    mounted.unmount_forced().unwrap();
}

#[test]
fn what_is_unmounted_while_the_pool_is_suspended_is_closed_when_it_goes_on() {
    let Some((bench, disk, mounted)) = bench() else { return };
    bench.cenote(&["zfs", "create", "tank/a"]);
    let file = bench.at("mnt/tank/a/file");
    std::fs::write(&file, b"safe").unwrap();
    bench.cenote(&["zpool", "sync", "tank"]);
    disk.fails.store(true, Relaxed);
    let mut waits = dd(&bench.at("mnt/tank/a/waits"), &["conv=fsync"]);
    until("it is suspended", || {
        bench.cenote(&["zpool", "list", "-H", "-o", "health"]).contains("SUSPENDED")
    });
    let said = within(5, "unmount", || bench.refused(&["zfs", "unmount", "tank/a"]));
    assert!(said.contains("pool I/O is currently suspended; -f cuts it off"), "{said}");
    // Its threads that wait for the pool are waited for in vain.
    within(5, "unmount -f", || bench.cenote(&["zfs", "unmount", "-f", "tank/a"]));
    assert!(ends(&mut waits, Duration::from_secs(4)) && !file.exists());
    // Others are not held up, and it is not mounted a second time.
    let again = within(5, "mount", || bench.output(&["zfs", "mount", "tank/a"]));
    assert!(!again.status.success() && !file.exists());
    within(5, "look", || bench.cenote(&["zfs", "list", "-H", "-o", "name,mounted"]));
    disk.fails.store(false, Relaxed);
    bench.cenote(&["zpool", "clear", "tank"]);
    until("it is closed", || bench.output(&["zfs", "mount", "tank/a"]).status.success());
    assert_eq!(std::fs::read(&file).unwrap(), b"safe");
    std::fs::write(&file, b"goes on").unwrap();
    bench.cenote(&["zpool", "export", "tank"]);
    mounted.unmount_forced().unwrap();
}

#[test]
fn a_pool_that_has_stopped_is_not_synced() {
    let Some((bench, disk, mounted)) = bench() else { return };
    bench.cenote(&["zpool", "set", "failmode=panic", "tank"]);
    std::fs::write(bench.at("mnt/tank/file"), b"not safe").unwrap();
    disk.fails.store(true, Relaxed);
    // The first finds out.
    bench.output(&["zpool", "sync", "tank"]);
    for order in [&["zpool", "sync", "tank"][..], &["zfs", "unmount", "tank"]] {
        let output = within(10, "an order", || bench.output(order));
        assert!(!output.status.success(), "{order:?} says that all is well");
    }
    bench.kill();
    disk.fails.store(false, Relaxed);
    mounted.unmount_forced().unwrap();
}
