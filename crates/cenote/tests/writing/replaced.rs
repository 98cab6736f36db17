//! Programs that write by path while mounts are replaced: what they are told is written is in the
//! filesystem they meant, and nowhere below a mount.

use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use super::Bench;

/// Files in a directory and below it.
fn files_in(directory: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(directory) else { return 0 };
    let count = |entry: std::io::Result<std::fs::DirEntry>| match entry {
        Ok(entry) if entry.file_type().is_ok_and(|kind| kind.is_dir()) => files_in(&entry.path()),
        Ok(_) => 1,
        Err(_) => 0,
    };
    entries.map(count).sum()
}

/// A file that was synced, and when, in milliseconds since the writer began.
type Synced = (String, u128);

/// Writes files into `directory`, one after the other, until told to stop; tells which were synced.
fn write_files(directory: &Path, prefix: &str, stop: &AtomicBool) -> Vec<Synced> {
    let mut synced = Vec::new();
    // Not for ever, should the test fail meanwhile.
    let start = Instant::now();
    for number in 1_u64.. {
        if stop.load(Relaxed) || start.elapsed() > Duration::from_secs(60) {
            break;
        }
        let name = format!("{prefix}{number}");
        let one = || -> std::io::Result<()> {
            let mut file = std::fs::File::create(directory.join(&name))?;
            file.write_all(b"x")?;
            file.sync_all()
        };
        if one().is_ok() {
            synced.push((name, start.elapsed().as_millis()));
        }
    }
    synced
}

/// All that was synced is in the directory.
#[track_caller]
fn all_there(directory: &Path, synced: &[Synced]) {
    assert!(!synced.is_empty());
    let missing: Vec<&Synced> =
        synced.iter().filter(|(name, _)| !directory.join(name).exists()).collect();
    assert!(
        missing.is_empty(),
        "{}: {} of {} synced files are missing: {missing:?}",
        directory.display(),
        missing.len(),
        synced.len()
    );
}

#[test]
fn nobody_writes_beside_a_mount_that_is_replaced() {
    let Some((bench, devices)) = Bench::mounting(1) else { return };
    bench.create(&[&devices[0]]);
    bench.cenote(&["zfs", "create", "tank/fs"]);
    bench.cenote(&["zfs", "create", "tank/fs/deep"]);
    let (fs, deep) = (bench.at("mnt/tank/fs"), bench.at("mnt/tank/fs/deep"));
    // An export leaves the directory of the whole tree bare, which a dead process must not.
    let (top, stop) = (bench.at("mnt/tank"), AtomicBool::new(false));
    let (in_fs, in_deep, in_top) = std::thread::scope(|scope| {
        let in_fs = scope.spawn(|| write_files(&fs, "a", &stop));
        let in_deep = scope.spawn(|| write_files(&deep, "b", &stop));
        let ended = AtomicBool::new(false);
        let (ended, top) = (&ended, &top);
        let in_top = std::thread::scope(|scope| {
            let writer = scope.spawn(|| write_files(top, "c", ended));
            for _ in 0..3 {
                std::thread::sleep(Duration::from_millis(200));
                bench.kill();
                bench.import();
            }
            ended.store(true, Relaxed);
            writer.join().unwrap()
        });
        for round in 0..4 {
            std::thread::sleep(Duration::from_millis(200));
            if round % 2 == 0 {
                bench.kill();
            } else {
                bench.cenote(&["zpool", "export", "-f", "tank"]);
            }
            bench.import();
        }
        std::thread::sleep(Duration::from_millis(200));
        stop.store(true, Relaxed);
        (in_fs.join().unwrap(), in_deep.join().unwrap(), in_top)
    });
    let table = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let at = bench.at("mnt/tank").display().to_string();
    assert_eq!(table.matches(&format!(" {at} ")).count(), 1, "dead mounts are gone");
    all_there(&deep, &in_deep);
    bench.cenote(&["zfs", "unmount", "tank/fs/deep"]);
    assert_eq!(files_in(&deep), 0, "below tank/fs/deep");
    all_there(&fs, &in_fs);
    bench.cenote(&["zfs", "unmount", "tank/fs"]);
    assert_eq!(files_in(&fs), 0, "below tank/fs");
    all_there(&top, &in_top);
    bench.cenote(&["zpool", "export", "tank"]);
    assert_eq!(files_in(&bench.at("mnt")), 0, "below tank");
    bench.zdb();
}

#[test]
fn dead_mounts_of_another_pool_of_the_name_stay() {
    let Some((one, devices)) = Bench::mounting(1) else { return };
    one.create(&[&devices[0]]);
    let Some((other, devices)) = Bench::mounting(1) else { return };
    other.create(&[&devices[0]]);
    one.kill();
    other.kill();
    other.import();
    // Nobody may write beside them meanwhile.
    let error = std::fs::write(one.at("mnt/tank/file"), b"x").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::NOTCONN.raw_os_error()));
    std::fs::write(other.at("mnt/tank/file"), b"x").unwrap();
    one.import();
    std::fs::write(one.at("mnt/tank/file"), b"x").unwrap();
    for bench in [&one, &other] {
        bench.cenote(&["zpool", "export", "tank"]);
        assert_eq!(files_in(&bench.at("mnt")), 0);
        assert!(!bench.at("run/tank.mounts").exists());
    }
}

#[test]
fn where_nothing_comes_back_directories_are_made_at_once() {
    let Some((bench, devices)) = Bench::mounting(1) else { return };
    bench.create(&[&devices[0]]);
    for name in ["tank/fs", "tank/fs/inner", "tank/fs/inner/most"] {
        bench.cenote(&["zfs", "create", name]);
    }
    // What is mounted below must get its place in the filesystem above.
    bench.cenote(&["zfs", "set", "canmount=off", "tank/fs/inner"]);
    let mounted = bench.cenote(&["zfs", "get", "-Hr", "-o", "value", "mounted", "tank/fs"]);
    assert_eq!(mounted, "yes\nno\nyes\n");
    std::fs::write(bench.at("mnt/tank/fs/inner/beside"), b"x").unwrap();
    bench.cenote(&["zfs", "destroy", "-r", "tank/fs/inner"]);
    std::fs::create_dir_all(bench.at("mnt/tank/fs/inner/most")).unwrap();
    std::fs::write(bench.at("mnt/tank/fs/inner/most/file"), b"x").unwrap();
    bench.cenote(&["zfs", "create", "tank/fs/other"]);
    bench.cenote(&["zfs", "set", "mountpoint=none", "tank/fs/other"]);
    std::fs::create_dir_all(bench.at("mnt/tank/fs/other")).unwrap();
    std::fs::write(bench.at("mnt/tank/fs/other/file"), b"x").unwrap();
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
}
