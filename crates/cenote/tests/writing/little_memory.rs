//! A pool whose process may use little memory.
//!
//! Invariant: it gets slower and is never killed, and what was synced is there.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use super::{Bench, noise};

/// Bytes that the pool process may use.
const LIMIT: u64 = 300 << 20;
/// Who writes at once, what each writes between two syncs, and how often.
const WRITERS: u32 = 64;
const PIECE: usize = 1 << 20;
const PIECES: u32 = 6;
/// Mounted filesystems, each of which is written into.
const MOUNTS: u32 = 300;

/// A control group; gone at the end.
pub(super) struct Group(PathBuf);

impl Group {
    fn new(name: &str) -> Option<Self> {
        let files = [("memory", "memory.limit_in_bytes"), ("", "memory.max")];
        Self::limited(name, &files, &LIMIT.to_string())
    }

    /// The first that can be made: its hierarchy, and the file in which it has that limit.
    pub(super) fn limited(name: &str, files: &[(&str, &str)], limit: &str) -> Option<Self> {
        let name = format!("cenote-{name}-{}", std::process::id());
        let group = files.iter().find_map(|(hierarchy, file)| {
            let group = Self(Path::new("/sys/fs/cgroup").join(hierarchy).join(&name));
            std::fs::create_dir(&group.0).ok()?;
            std::fs::write(group.0.join(file), limit).ok()?;
            Some(group)
        });
        if group.is_none() {
            eprintln!("not tested: no control group with such a limit can be made");
        }
        group
    }

    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// Has the pool exported, and imported by a process in `group`. What its file of the process says.
pub(super) fn import_into(group: &Group, bench: &Bench) -> String {
    bench.cenote(&["zpool", "export", "tank"]);
    let join = format!("echo $$ > '{}/cgroup.procs'", group.0.display());
    bench.import_after(&join, &[]);
    let pid = std::fs::read_to_string(bench.at("run/tank.pid")).unwrap();
    let members = std::fs::read_to_string(group.0.join("cgroup.procs")).unwrap();
    let first = pid.split_whitespace().next().unwrap();
    assert!(members.lines().any(|member| member == first), "{first} is not in {members}");
    pid
}

#[test]
fn many_mounts_take_little_memory() {
    let Some((bench, devices)) = Bench::mounting(1) else { return };
    let Some(group) = Group::new("mounts") else { return };
    bench.create(&[&devices[0]]);
    for number in 0..MOUNTS {
        bench.cenote(&["zfs", "create", &format!("tank/m{number}")]);
    }
    let pid = import_into(&group, &bench);
    let place = |number: u32| bench.at("mnt/tank").join(format!("m{number}/file"));
    let content = |number: u32| noise(100_000, number);
    for number in 0..MOUNTS {
        std::fs::write(place(number), content(number)).unwrap();
    }
    // And all at once.
    std::thread::scope(|scope| {
        for number in 0..MOUNTS {
            scope.spawn(move || {
                let file = File::options().append(true).open(place(number)).unwrap();
                (&file).write_all(b"more").unwrap();
                file.sync_all().unwrap();
            });
        }
    });
    assert_eq!(std::fs::read_to_string(bench.at("run/tank.pid")).unwrap(), pid);
    for number in 0..MOUNTS {
        let written = [content(number), b"more".to_vec()].concat();
        assert!(std::fs::read(place(number)).unwrap() == written, "m{number}");
    }
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
}

#[test]
fn a_pool_with_little_memory_is_slower_and_goes_on() {
    let Some((bench, devices)) = Bench::mounting(2) else { return };
    let Some(group) = Group::new("writers") else { return };
    for device in &devices {
        File::options().write(true).open(device).unwrap().set_len(2 << 30).unwrap();
    }
    bench.create(&["mirror", &devices[0], &devices[1]]);
    let pid = import_into(&group, &bench);

    let content = |writer: u32, piece: u32| noise(PIECE, writer * 100 + piece);
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let path = bench.at("mnt/tank").join(format!("w{writer}"));
            scope.spawn(move || {
                let mut file = File::create(path).unwrap();
                for piece in 0..PIECES {
                    file.write_all(&content(writer, piece)).unwrap();
                    file.sync_all().unwrap();
                }
            });
        }
    });
    assert_eq!(std::fs::read_to_string(bench.at("run/tank.pid")).unwrap(), pid);
    for writer in 0..WRITERS {
        let found = std::fs::read(bench.at("mnt/tank").join(format!("w{writer}"))).unwrap();
        let written: Vec<u8> = (0..PIECES).flat_map(|piece| content(writer, piece)).collect();
        assert!(found == written, "w{writer}");
    }
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
}
