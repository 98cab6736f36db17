//! Synced writes so large that their data goes where it is to stay, and the log only says where.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::process::Command;

use super::{Bench, noise};

const MIB: usize = 1 << 20;

/// A file and what it must hold.
struct Model {
    file: File,
    holds: Vec<u8>,
}

impl Model {
    fn write(&mut self, at: usize, data: &[u8]) {
        self.file.write_all_at(data, at as u64).unwrap();
        let end = at + data.len();
        self.holds.resize(self.holds.len().max(end), 0);
        self.holds[at..end].copy_from_slice(data);
    }

    fn cut(&mut self, length: usize) {
        self.file.set_len(length as u64).unwrap();
        self.holds.resize(length, 0);
    }
}

fn place_and_kill(layout: &[&str], count: usize) {
    let Some((bench, devices)) = Bench::mounting(count) else { return };
    let mut all = layout.to_vec();
    all.extend(devices.iter().map(String::as_str));
    bench.create(&all);
    bench.cenote(&["zfs", "create", "-o", "recordsize=64K", "-o", "compression=zstd", "tank/a"]);
    bench.cenote(&["zfs", "create", "-o", "copies=2", "-o", "checksum=sha256", "tank/b"]);
    let mut models = Vec::new();
    for (number, set) in ["tank", "tank/a", "tank/b"].into_iter().enumerate() {
        let path = bench.at("mnt").join(set).join("big");
        let open = OpenOptions::new().read(true).write(true).create_new(true).open(&path);
        let mut model = Model { file: open.unwrap(), holds: Vec::new() };
        for round in 0..12 {
            let seed = (number * 100 + round) as u32;
            let at = (round * 5 % 4) * MIB + round % 3 * 4096;
            model.write(at, &noise(MIB / (1 + round % 2), seed));
            // Zeros, what halves, and a part of a block that was just synced.
            model.write(at + MIB / 4, &vec![0; 200_000]);
            model.write(at + 3 * MIB / 8, &b"some text ".repeat(15_000));
            model.file.sync_all().unwrap();
            model.write(at + 100, b"changed after it was synced");
            if round == 7 {
                model.cut(2 * MIB + 77_777);
                bench.cenote(&["zfs", "set", "compression=gzip", set]);
            }
            // Gone, with what was placed.
            let passing = path.with_file_name(format!("passing{round}"));
            let file = File::create(&passing).unwrap();
            (&file).write_all(&noise(300_000, seed)).unwrap();
            file.sync_all().unwrap();
            std::fs::remove_file(passing).unwrap();
        }
        model.file.sync_all().unwrap();
        models.push((path, model.holds));
    }
    bench.kill();
    let logs = Command::new("zdb")
        .args(["-e", "-iiiii", "-p"])
        .args([bench.at("d").as_os_str(), "tank".as_ref()])
        .output();
    bench.import();
    for (path, holds) in &models {
        assert!(std::fs::read(path).unwrap() == *holds, "{} differs", path.display());
    }
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
    match logs {
        Ok(logs) => {
            let logs = String::from_utf8_lossy(&logs.stdout).into_owned();
            assert!(logs.contains("has blkptr, will claim"), "nothing was placed: {logs}");
        }
        Err(_) => eprintln!("zdb is not installed: not asked"),
    }
}

#[test]
fn what_was_placed_on_a_stripe_survives_a_kill() {
    place_and_kill(&[], 2);
}

#[test]
fn what_was_placed_on_raidz_survives_a_kill() {
    place_and_kill(&["raidz1"], 3);
}
