//! What users of a dataset and of those below it see of a rollback, and of a receive into it: the mounts stay.
//!
//! Invariant: what is open and still there goes on; what is gone says so, and shows nothing of another file.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use super::{Bench, manifest, noise};

/// What is said of a file that is gone.
const ESTALE: i32 = 116;
const EIO: i32 = 5;

/// A shell that works in a directory.
struct Shell {
    process: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Shell {
    fn at(place: &Path) -> Self {
        let mut shell = std::process::Command::new("sh");
        let shell = shell.current_dir(place).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = shell.spawn().unwrap();
        let (to, from) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
        Self { process, to, from: BufReader::new(from) }
    }

    /// The one line that a command says.
    fn says(&mut self, command: &str) -> String {
        writeln!(self.to, "{command}").unwrap();
        let mut line = String::new();
        self.from.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// It works in that directory.
    #[track_caller]
    fn is_at(&mut self, place: &Path) {
        let place = fs::canonicalize(place).unwrap();
        assert_eq!(self.says("pwd -P"), place.to_str().unwrap());
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

fn open(path: &Path) -> File {
    File::options().read(true).write(true).open(path).unwrap()
}

fn read(file: &File) -> std::io::Result<String> {
    let mut bytes = vec![0; 100];
    let len = file.read_at(&mut bytes, 0)?;
    bytes.truncate(len);
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[track_caller]
fn is_gone(file: &File) {
    for code in [read(file).map(drop), file.write_at(b"evil", 0).map(drop)] {
        let code = code.unwrap_err().raw_os_error();
        assert!(matches!(code, Some(ESTALE | EIO)), "{code:?}");
    }
}

/// Writes numbers to a file for as long as it is used; every write must go well, and be there.
fn while_written(path: &Path, work: impl FnOnce()) {
    let (file, ends, count) = (open(path), AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            while !ends.load(SeqCst) {
                let number = count.fetch_add(1, SeqCst);
                file.write_all_at(&number.to_le_bytes(), number % 1000 * 8).unwrap();
                let mut bytes = [0; 8];
                file.read_exact_at(&mut bytes, number % 1000 * 8).unwrap();
                assert_eq!(bytes, number.to_le_bytes());
            }
        });
        work();
        ends.store(true, SeqCst);
        writer.join().unwrap();
    });
    assert!(count.load(SeqCst) > 0);
}

#[test]
fn a_rollback_under_users_changes_what_they_see_and_nothing_below() {
    let Some((bench, devices)) = Bench::mounting(1) else { return };
    bench.create(&[&devices[0]]);
    bench.cenote(&["zfs", "create", "tank/a"]);
    let top = bench.at("mnt/tank/a");
    fs::create_dir(top.join("d")).unwrap();
    fs::write(top.join("d/kept"), "before").unwrap();
    fs::write(top.join("removed"), "is back").unwrap();
    bench.cenote(&["zfs", "create", "tank/a/child"]);
    fs::write(top.join("child/file"), [7; 8000]).unwrap();
    bench.cenote(&["zfs", "snapshot", "tank/a@one"]);
    let snapshot = open_snapshot(&top);
    // Numbers are given out from the beginning again.
    bench.cenote(&["zfs", "rollback", "tank/a@one"]);

    fs::write(top.join("d/kept"), "after, and longer").unwrap();
    fs::remove_file(top.join("removed")).unwrap();
    // The number of the first that is made goes to the place of `later`, which is not in the snapshot.
    fs::create_dir(top.join("gone")).unwrap();
    fs::write(top.join("late"), "late").unwrap();
    bench.cenote(&["zfs", "create", "tank/a/later"]);
    fs::write(top.join("later/file"), "stays").unwrap();
    let (kept, late) = (open(&top.join("d/kept")), open(&top.join("late")));
    let number = late.metadata().unwrap().ino();
    let unnamed = open(&top.join("late"));
    fs::rename(top.join("d/kept"), top.join("d/moved")).unwrap();
    let (mut shell, mut below) = (Shell::at(&top.join("d")), Shell::at(&top.join("child")));
    let mut lost = Shell::at(&top.join("gone"));
    assert_eq!(shell.says("cat moved; echo"), "after, and longer");

    while_written(&top.join("child/file"), || {
        bench.cenote(&["zfs", "rollback", "tank/a@one"]);
    });
    assert_eq!(read(&kept).unwrap(), "before");
    assert_eq!(fs::read_to_string(top.join("removed")).unwrap(), "is back");
    assert_eq!(fs::read_to_string(top.join("later/file")).unwrap(), "stays");
    for gone in ["d/moved", "late", "gone"] {
        assert!(!top.join(gone).exists(), "{gone}");
    }
    assert_eq!(shell.says("cat kept; echo"), "before");
    shell.is_at(&top.join("d"));
    below.is_at(&top.join("child"));
    assert_eq!(below.says("stat -c %s file"), "8000");
    assert_eq!(lost.says("touch x 2>/dev/null && echo made || echo gone"), "gone");
    assert_eq!(snapshot.read_dir().unwrap().count(), 3);

    // The number of what is gone is used again.
    is_gone(&late);
    for name in 0..20 {
        fs::write(top.join(format!("again{name}")), "again").unwrap();
    }
    let again = |name: &i32| fs::metadata(top.join(format!("again{name}"))).unwrap().ino();
    assert!((0..20).any(|name| again(&name) == number), "{number}");
    is_gone(&late);
    drop(late);
    is_gone(&unnamed);
    drop(unnamed);
    for name in 0..20 {
        assert_eq!(fs::read_to_string(top.join(format!("again{name}"))).unwrap(), "again");
    }
    kept.write_all_at(b"BE", 0).unwrap();
    drop((shell, below, lost, kept));
    let before = bench.manifest();
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
    bench.import();
    assert!(bench.manifest() == before);
}

/// A directory of the snapshot, which has a working directory in it.
fn open_snapshot(top: &Path) -> PathBuf {
    let place = top.join(".zfs/snapshot/one");
    assert_eq!(place.read_dir().unwrap().count(), 3);
    place
}

#[test]
fn a_receive_under_users_changes_what_they_see_and_nothing_below() {
    let Some((bench, devices)) = Bench::mounting(1) else { return };
    bench.create(&[&devices[0]]);
    let [one, two] = bench.two_streams();
    bench.received(&["tank/copy"], &one);
    bench.cenote(&["zfs", "set", "atime=off", "tank/copy"]);
    let top = bench.at("mnt/tank/copy");
    bench.cenote(&["zfs", "create", "tank/copy/child"]);
    fs::write(top.join("child/file"), [7; 8000]).unwrap();
    // The directory that the child is mounted on was not sent.
    bench.cenote(&["zfs", "rollback", "tank/copy@one"]);
    assert_eq!(fs::read(top.join("child/file")).unwrap(), [7; 8000]);
    let own = open(&top.join("file"));
    let (mut shell, mut below) = (Shell::at(&top), Shell::at(&top.join("child")));
    assert_eq!(shell.says("stat -c %s file"), "300000");
    bench.received(&["-F", "tank/copy"], &two);
    assert_eq!(shell.says("stat -c %s file"), "500000");
    assert_eq!(own.metadata().unwrap().len(), 500_000);
    let mut bytes = vec![0; 500_000];
    own.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes == noise(500_000, 2));
    drop(below.says("echo"));

    // What came with the stream is there now: a third one changes nothing below.
    let source = bench.at("mnt/tank/a");
    fs::create_dir(source.join("child")).unwrap();
    fs::write(source.join("new"), "new").unwrap();
    bench.cenote(&["zfs", "snapshot", "tank/a@three"]);
    bench.received(&["-F", "tank/copy"], &bench.stream(&["-i", "@two", "tank/a@three"]));
    assert_eq!(fs::read_to_string(top.join("new")).unwrap(), "new");
    fs::write(source.join("new"), "newer").unwrap();
    fs::remove_file(source.join("file")).unwrap();
    bench.cenote(&["zfs", "snapshot", "tank/a@four"]);
    let four = bench.stream(&["-i", "@three", "tank/a@four"]);
    let mut below = Shell::at(&top.join("child"));
    while_written(&top.join("child/file"), || {
        bench.received(&["tank/copy"], &four);
    });
    assert_eq!(below.says("stat -c %s file"), "8000");
    below.is_at(&top.join("child"));
    assert_eq!(fs::read_to_string(top.join("new")).unwrap(), "newer");
    assert!(!top.join("file").exists());
    is_gone(&own);
    drop((own, shell, below));
    bench.cenote(&["zfs", "destroy", "-r", "tank/copy"]);
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
}

#[test]
fn a_rollback_leaves_nothing_in_the_memory_of_the_kernel() {
    let Some((bench, devices)) = Bench::mounting(1) else { return };
    bench.create(&[&devices[0]]);
    bench.cenote(&["zfs", "create", "-o", "atime=off", "tank/a"]);
    let top = bench.at("mnt/tank/a");
    fs::write(top.join("file"), noise(300_000, 1)).unwrap();
    for name in 0..20 {
        fs::write(top.join(format!("f{name}")), "of the snapshot").unwrap();
    }
    bench.cenote(&["zfs", "snapshot", "tank/a@one"]);
    let (ends, count) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let file = open(&top.join("file"));
            while !ends.load(SeqCst) {
                let number = count.fetch_add(1, SeqCst);
                file.write_all_at(&noise(5000, number as u32), number % 70 * 4096).unwrap();
                let path = |number| top.join(format!("f{}", number % 30));
                // Names come and go, and rollbacks too.
                drop(fs::write(path(number), number.to_le_bytes()));
                drop(fs::remove_file(path(number + 7)));
                drop(fs::rename(path(number + 3), path(number + 11)));
            }
        });
        for _ in 0..20 {
            bench.cenote(&["zfs", "rollback", "tank/a@one"]);
        }
        ends.store(true, SeqCst);
    });
    assert!(count.load(SeqCst) > 100);
    // What the kernel shows is what is there.
    let shown = manifest(&top);
    bench.cenote(&["zfs", "unmount", "tank/a"]);
    bench.cenote(&["zfs", "mount", "tank/a"]);
    let is = manifest(&top);
    assert!(shown == is, "{shown}\n{is}");
    bench.cenote(&["zfs", "rollback", "tank/a@one"]);
    assert!(fs::read(top.join("file")).unwrap() == noise(300_000, 1));
    assert_eq!(fs::read_dir(&top).unwrap().count(), 21);
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
}

#[test]
fn mounts_follow_what_a_stream_says_of_them() {
    let Some((bench, devices)) = Bench::mounting(1) else { return };
    bench.create(&[&devices[0]]);
    let [one, two] = bench.two_streams();
    bench.received(&["tank/copy"], &one);
    bench.cenote(&["zfs", "create", "tank/copy/child"]);
    bench.received(&["-F", "-o", "exec=off", "tank/copy"], &two);
    let mounts = || fs::read_to_string("/proc/self/mounts").unwrap();
    // Other tests have pools of this name.
    let line = |name: &str| {
        let start = format!("{name} {}/", bench.at("mnt").display());
        mounts().lines().find(|line| line.starts_with(&start)).unwrap().to_owned()
    };
    for name in ["tank/copy", "tank/copy/child"] {
        assert!(line(name).contains("noexec"), "{}", line(name));
    }
    fs::write(bench.at("mnt/tank/a/file"), "three").unwrap();
    bench.cenote(&["zfs", "snapshot", "tank/a@three"]);
    let three = bench.stream(&["-i", "@two", "tank/a@three"]);
    bench.received(&["-F", "-o", "mountpoint=/elsewhere", "tank/copy"], &three);
    let elsewhere = bench.at("mnt/elsewhere");
    assert_eq!(fs::read_to_string(elsewhere.join("file")).unwrap(), "three");
    assert!(line("tank/copy/child").contains("mnt/elsewhere/child "), "{}", mounts());
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
}
