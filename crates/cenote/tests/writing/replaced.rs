//! Programs that write by path while mounts are replaced: what they are told is written is in the
//! filesystem they meant, and nowhere below a mount.

use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
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

/// Writes files into `directory`, one after the other, until told to stop; how many were synced.
fn write_files(directory: &Path, prefix: &str, stop: &AtomicBool, written: &AtomicU64) {
    let mut number = 0_u64;
    // Not for ever, should the test fail meanwhile.
    let start = Instant::now();
    while !stop.load(Relaxed) && start.elapsed() < Duration::from_secs(60) {
        number += 1;
        let path = directory.join(format!("{prefix}{number}"));
        let one = || -> std::io::Result<()> {
            let mut file = std::fs::File::create(&path)?;
            file.write_all(b"x")?;
            file.sync_all()
        };
        if one().is_ok() {
            written.fetch_add(1, Relaxed);
        }
    }
}

#[test]
fn nobody_writes_beside_a_mount_that_is_replaced() {
    let Some((bench, devices)) = Bench::mounting(1) else { return };
    bench.create(&[&devices[0]]);
    bench.cenote(&["zfs", "create", "tank/fs"]);
    bench.cenote(&["zfs", "create", "tank/fs/deep"]);
    let (fs, deep) = (bench.at("mnt/tank/fs"), bench.at("mnt/tank/fs/deep"));
    // An export leaves the directory of the whole tree bare, which a dead process must not.
    let (top, in_top) = (bench.at("mnt/tank"), AtomicU64::new(0));
    let (stop, in_fs, in_deep) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| write_files(&fs, "a", &stop, &in_fs));
        scope.spawn(|| write_files(&deep, "b", &stop, &in_deep));
        let ended = AtomicBool::new(false);
        let (ended, in_top, top) = (&ended, &in_top, &top);
        let first = std::thread::scope(|scope| {
            let writer = scope.spawn(|| write_files(top, "c", ended, in_top));
            for _ in 0..3 {
                std::thread::sleep(Duration::from_millis(200));
                bench.kill();
                bench.import();
            }
            ended.store(true, Relaxed);
            writer.join()
        });
        first.unwrap();
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
    });
    let table = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let at = bench.at("mnt/tank").display().to_string();
    assert_eq!(table.matches(&format!(" {at} ")).count(), 1, "dead mounts are gone");
    let (in_fs, in_deep) = (in_fs.into_inner(), in_deep.into_inner());
    assert!(in_fs > 0 && in_deep > 0);
    assert!(files_in(&deep) >= in_deep, "{} of {in_deep}", files_in(&deep));
    bench.cenote(&["zfs", "unmount", "tank/fs/deep"]);
    assert_eq!(files_in(&deep), 0, "below tank/fs/deep");
    assert!(files_in(&fs) >= in_fs, "{} of {in_fs}", files_in(&fs));
    bench.cenote(&["zfs", "unmount", "tank/fs"]);
    assert_eq!(files_in(&fs), 0, "below tank/fs");
    let in_top = in_top.into_inner();
    assert!(in_top > 0 && files_in(&top) >= in_top, "{} of {in_top}", files_in(&top));
    bench.cenote(&["zpool", "export", "tank"]);
    assert_eq!(files_in(&bench.at("mnt")), 0, "below tank");
    bench.zdb();
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
