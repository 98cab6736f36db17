//! Random histories: filesystems that are changed, snapshotted, cloned and renamed, and follow each other from
//! one pool to another by full, incremental, recursive and raw streams.
//!
//! `HISTORIES=n` runs so many instead of one, from seed 0 on or from `HISTORY=seed` on, which alone runs one. Invariant: each snapshot that was sent is
//! the same on both sides: names, attributes, extended attributes, every byte.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Stdio;

use rustix::fs::{FallocateFlags, XattrFlags, fallocate, setxattr};

use super::{Bench, manifest, noise};

/// The history without `HISTORIES`: one that takes little time.
const ONE: u64 = 3;

struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }

    fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}

/// A history under way.
struct History {
    bench: Bench,
    random: Random,
    /// Filesystems of the source below `tank/src`, as paths after it ("" is itself).
    sets: Vec<String>,
    /// Options of every stream.
    forms: Vec<&'static str>,
    round: u64,
}

impl History {
    fn begin(bench: Bench, seed: u64) -> Self {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        for _ in 0..8 {
            random.below(2);
        }
        let devices = bench.devices(2);
        bench.create_with(&["-o", "ashift=12"], &[&devices[0]]);
        let other = bench.at("other").display().to_string();
        bench.cenote(&["zpool", "create", "-R", &other, "back", &devices[1]]);
        let encrypted = random.percent(40);
        let mut options: Vec<String> = vec![
            format!("recordsize={}", random.pick(&["4K", "16K", "128K", "128K", "1M"])),
            format!("compression={}", random.pick(&["off", "lz4", "zstd"])),
            format!("xattr={}", random.pick(&["on", "sa"])),
            format!("dnodesize={}", random.pick(&["legacy", "auto", "1k"])),
        ];
        if encrypted {
            fs::write(bench.at("key"), [7; 32]).unwrap();
            let key = bench.at("key").display().to_string();
            options.push("encryption=on".into());
            options.push("keyformat=raw".into());
            options.push(format!("keylocation=file://{key}"));
        }
        let mut create = vec!["zfs", "create"];
        options.iter().for_each(|option| create.extend(["-o", option]));
        create.push("tank/src");
        bench.cenote(&create);
        // Properties of what is encrypted are sent raw only.
        let raw = encrypted;
        let mut forms = vec!["-R"];
        // What splits large blocks once does so for ever.
        forms.extend(random.percent(60).then_some("-L"));
        forms.extend(random.percent(40).then_some("-e"));
        forms.extend(random.percent(40).then_some("-c"));
        if raw {
            forms = vec!["-R", "-w"];
        }
        Self { bench, random, sets: vec![String::new()], forms, round: 0 }
    }

    fn root(&self, set: &str) -> PathBuf {
        self.bench.at("mnt").join(format!("tank/src{set}"))
    }

    fn zfs(&self, words: &[&str]) {
        self.bench.cenote(&[&["zfs"], words].concat());
    }

    /// Changes a file of a filesystem.
    fn change(&mut self) {
        let set = self.random.below(self.sets.len() as u64) as usize;
        let root = self.root(&self.sets[set].clone());
        let random = &mut self.random;
        let path = root.join(format!("f{}", random.below(9)));
        let len = random.pick(&[1_usize, 600, 5_000, 40_000, 140_000, 700_000, 2_500_000]);
        let at = random.pick(&[0, 0, 1, 4_096, 131_072, 300_000]);
        let fill = random.below(1 << 30) as u32;
        let open = || {
            let options = fs::File::options().write(true).create(true).truncate(false).clone();
            options.open(&path).unwrap()
        };
        match random.below(15) {
            0..=4 => open().write_all_at(&noise(len, fill), at).unwrap(),
            5 => open().write_all_at(&b"a text that repeats ".repeat(len / 20 + 1), at).unwrap(),
            6 => open().set_len(at + len as u64 / 2).unwrap(),
            7 => {
                let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                let _ = fallocate(open(), how, at, len as u64);
            }
            8 => drop(fs::remove_file(&path)),
            9 => drop(fs::rename(&path, root.join(format!("f{}", fill % 9)))),
            10 => drop(fs::hard_link(&path, root.join(format!("l{}", fill % 5)))),
            11 => {
                let directory = root.join(format!("d{}", fill % 3));
                drop(fs::create_dir(&directory));
                fs::write(directory.join(format!("n{}", fill % 40)), noise(300, fill)).unwrap();
            }
            12 => drop(std::os::unix::fs::symlink(
                "to/somewhere/".repeat(1 + fill as usize % 9),
                root.join(format!("s{}", fill % 6)),
            )),
            13 => {
                let value = noise(fill as usize % 3_000, fill);
                let _file = open();
                let name = format!("user.x{}", fill % 4);
                setxattr(&path, name.as_str(), &value, XattrFlags::empty()).unwrap();
            }
            _ => drop(fs::remove_dir_all(root.join(format!("d{}", fill % 3)))),
        }
    }

    /// Changes what filesystems there are.
    fn rearrange(&mut self) {
        let number = self.sets.len();
        let last = self.round - 1;
        match self.random.below(6) {
            0 | 1 => {
                let name = format!("/n{number}-{last}");
                self.zfs(&["create", &format!("tank/src{name}")]);
                self.sets.push(name);
            }
            2 | 3 => {
                let from = self.random.below(number as u64) as usize;
                let origin = format!("tank/src{}@r{last}", self.sets[from]);
                // A filesystem younger than the last snapshot has none.
                let name = format!("/c{number}-{last}");
                if self.bench.output(&["zfs", "list", &origin]).status.success() {
                    self.zfs(&["clone", &origin, &format!("tank/src{name}")]);
                    self.sets.push(name);
                }
            }
            4 if number > 1 => {
                let at = 1 + self.random.below(number as u64 - 1) as usize;
                let name = format!("/m{number}-{last}");
                let from = format!("tank/src{}", self.sets[at]);
                self.zfs(&["rename", &from, &format!("tank/src{name}")]);
                self.sets[at] = name;
            }
            _ => {
                let set = self.sets[0].clone();
                let size = self.random.pick(&["4K", "64K", "128K"]);
                let option = format!("recordsize={size}");
                self.zfs(&["set", &option, &format!("tank/src{set}")]);
            }
        }
    }

    /// Takes a snapshot of everything and sends what is new.
    fn send(&mut self) {
        let now = format!("tank/src@r{}", self.round);
        let before = format!("@r{}", self.round.saturating_sub(1));
        let mut send: Vec<&str> = vec!["zfs", "send"];
        send.extend(&self.forms);
        if self.round > 0 {
            let how = if self.random.percent(50) { "-i" } else { "-I" };
            send.extend([how, before.as_str()]);
        }
        send.push(&now);
        self.zfs(&["snapshot", "-r", &now]);
        let mut sender = self.bench.command(&send).stdout(Stdio::piped()).spawn().unwrap();
        let mut receive = vec!["zfs", "receive", "-F", "-u", "back/dst"];
        if self.round == 0 {
            receive.retain(|word| *word != "-F");
        }
        let stream = sender.stdout.take().unwrap();
        let received = self.bench.command(&receive).stdin(stream).output().unwrap();
        let said = String::from_utf8_lossy(&received.stderr);
        assert!(received.status.success(), "{send:?} to {receive:?}: {said}");
        assert!(sender.wait().unwrap().success(), "{send:?}");
        self.round += 1;
    }

    /// Both sides of every snapshot are the same.
    fn compare(&self) {
        let all = self.bench.cenote(&["zfs", "list", "-H", "-o", "name", "-r", "back/dst"]);
        for name in all.lines() {
            // Each comes with its own key, if it is encrypted.
            if self.bench.value("keystatus", name) == "unavailable" {
                let key = format!("file://{}", self.bench.at("key").display());
                self.zfs(&["load-key", "-L", &key, name]);
            }
            if self.bench.value("mounted", name) == "no" {
                self.zfs(&["mount", name]);
            }
        }
        let mut compared = 0;
        for set in &self.sets {
            let source = self.root(set).join(".zfs/snapshot");
            let target = self.bench.at("other").join(format!("back/dst{set}/.zfs/snapshot"));
            for snapshot in fs::read_dir(&source).unwrap() {
                let name = snapshot.unwrap().file_name();
                let (one, other) = (manifest(&source.join(&name)), manifest(&target.join(&name)));
                let differs = one.lines().zip(other.lines()).find(|(one, other)| one != other);
                let lines = (one.lines().count(), other.lines().count());
                assert!(one == other, "{set}@{name:?} differs, {lines:?} lines: {differs:?}");
                compared += 1;
            }
        }
        assert!(compared >= self.round, "{compared} snapshots were compared");
    }
}

fn run(seed: u64) -> bool {
    let Some((bench, _)) = Bench::mounting(2) else { return false };
    let mut history = History::begin(bench, seed);
    let rounds = 3 + history.random.below(3);
    for _ in 0..rounds {
        for _ in 0..3 + history.random.below(20) {
            history.change();
        }
        if history.round > 0 && history.random.percent(70) {
            history.rearrange();
        }
        if history.random.percent(20) {
            history.bench.cenote(&["zpool", "sync"]);
        }
        history.send();
    }
    history.compare();
    let bench = history.bench;
    bench.cenote(&["zpool", "export", "back"]);
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
    true
}

#[test]
fn what_is_sent_again_and_again_is_the_same_on_both_sides() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let several = number("HISTORIES");
    let first = number("HISTORY").unwrap_or(if several.is_some() { 0 } else { ONE });
    for seed in first..first + several.unwrap_or(1) {
        eprintln!("history {seed}");
        if !run(seed) {
            return;
        }
    }
}
