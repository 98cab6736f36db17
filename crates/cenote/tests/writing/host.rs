//! Hosts that behave badly: few descriptors, a clock that jumps, a log that grows, labels whose newest state is gone.
//!
//! Invariant: the pool goes on, and what was synced is there.

use std::path::{Path, PathBuf};
use std::process::Command;

use cenote_format::uberblock::MAGIC;

use super::{Bench, fill, noise, write_synced};

/// Bytes after which a log becomes the old one.
const MOST: usize = 4 << 20;

impl Bench {
    /// Imports the pool by a shell that first does what `prepare` says.
    pub(super) fn import_after(&self, prepare: &str, env: &[(&str, &Path)]) {
        let (place, mount) = (self.at("d"), self.at("mnt"));
        let (place, mount) = (place.to_str().unwrap(), mount.to_str().unwrap());
        let command = self.command(&["zpool", "import", "-d", place, "-R", mount, "tank"]);
        let mut import = Command::new("sh");
        import.args(["-c", &format!("{prepare} && exec \"$@\""), "sh"]);
        import.arg(command.get_program()).args(command.get_args());
        import.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let output = import.envs(env.iter().copied()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

/// What a file holds, read by another process: what other tests start inherits for a moment what is open in this one,
/// and what is mounted is in use then.
fn read_apart(path: &Path) -> Vec<u8> {
    let output = Command::new("cat").arg(path).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

#[test]
fn few_descriptors_are_enough() {
    let Some((bench, devices)) = Bench::mounting(3) else { return };
    bench.create(&["raidz1", &devices[0], &devices[1], &devices[2]]);
    let root = bench.at("mnt/tank");
    fill(&root);
    bench.cenote(&["zpool", "export", "tank"]);
    bench.import_after("ulimit -n 64", &[]);
    let before = bench.manifest();
    std::thread::scope(|scope| {
        for number in 0..48 {
            let path = root.join("file8");
            scope.spawn(move || assert!(std::fs::read(path).unwrap() == noise(3_000_000, 8)));
            let path = root.join(format!("synced{number}"));
            scope.spawn(move || write_synced(&path, &noise(10_000, number)));
            scope.spawn(|| bench.cenote(&["zpool", "status", "tank"]));
        }
    });
    let state = bench.cenote(&["zpool", "status", "-x"]);
    assert_eq!(state, "all pools are healthy\n");
    // As many as there are descriptors for; the others are refused, not half made.
    let made = (0..40).filter(|number| {
        let output = bench.output(&["zfs", "create", &format!("tank/n{number}")]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() || said.contains("Too many open files"), "{said}");
        output.status.success()
    });
    assert!(made.count() > 0);
    for number in 0..48 {
        let path = root.join(format!("synced{number}"));
        assert!(std::fs::read(&path).unwrap() == noise(10_000, number));
        std::fs::remove_file(path).unwrap();
    }
    for line in bench.cenote(&["zfs", "list", "-H", "-o", "name", "-r", "tank"]).lines().skip(1) {
        bench.cenote(&["zfs", "destroy", line]);
    }
    assert_eq!(bench.manifest(), before);
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
}

/// The library that plays another clock to a program.
fn faketime() -> Option<PathBuf> {
    let places = std::fs::read_dir("/usr/lib").ok()?.flatten();
    places.map(|place| place.path().join("faketime/libfaketimeMT.so.1")).find(|path| path.exists())
}

#[test]
fn a_clock_that_jumps_loses_nothing() {
    let Some(library) = faketime() else { return println!("skipped: no libfaketime") };
    let Some((bench, devices)) = Bench::mounting(2) else { return };
    bench.create(&["mirror", &devices[0], &devices[1]]);
    bench.cenote(&["zpool", "export", "tank"]);
    let (clock, yes) = (bench.at("clock"), Path::new("1"));
    std::fs::write(&clock, "+0").unwrap();
    let env = [
        ("LD_PRELOAD", library.as_path()),
        ("FAKETIME_TIMESTAMP_FILE", &clock),
        ("FAKETIME_NO_CACHE", yes),
        ("FAKETIME_DONT_FAKE_MONOTONIC", yes),
        ("FAKETIME_DONT_RESET", yes),
    ];
    bench.import_after("true", &env);
    let root = bench.at("mnt/tank");
    for (number, jump) in (0..).zip(["+365d", "-3650d", "-46y", "+0", "-1h"]) {
        std::fs::write(&clock, jump).unwrap();
        write_synced(&root.join(format!("f{number}")), &noise(50_000, number));
        bench.cenote(&["zpool", "sync", "tank"]);
        bench.cenote(&["zfs", "snapshot", &format!("tank@s{number}")]);
        // In the log only.
        write_synced(&root.join(format!("late{number}")), &noise(5_000, number));
    }
    let created = bench.value("creation", "tank@s0").parse::<u64>().unwrap();
    let later = bench.value("creation", "tank@s1").parse::<u64>().unwrap();
    assert!(later + (10 * 365 * 86_400) < created, "{created} and ten years before: {later}");
    bench.kill();
    bench.import();
    for number in 0..5 {
        let found = read_apart(&root.join(format!("f{number}")));
        assert!(found == noise(50_000, number), "f{number}");
        let found = read_apart(&root.join(format!("late{number}")));
        assert!(found == noise(5_000, number), "late{number}");
    }
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
}

#[test]
fn a_log_that_grows_is_exchanged() {
    let Some((bench, devices)) = Bench::mounting(1) else { return };
    bench.create(&[&devices[0]]);
    bench.cenote(&["zpool", "export", "tank"]);
    let (log, old) = (bench.at("run/tank.log"), bench.at("run/tank.log.old"));
    let read = |path: &Path| std::fs::read_to_string(path).unwrap();
    // Twice: the second one takes the place of the first.
    for filler in ["first", "second"] {
        std::fs::write(&log, format!("{filler}\n").repeat(MOST / filler.len())).unwrap();
        bench.import();
        let (long, short) = (read(&old), read(&log));
        assert!(long.starts_with(filler) && long.trim_end().ends_with("opening pool=tank"));
        assert!(short.len() < 65_536, "{} bytes", short.len());
        bench.cenote(&["zpool", "export", "tank"]);
        assert!(read(&log).contains(" ended ") && read(&old) == long);
    }
}

/// Scribbles over the uberblocks of the newest `count` groups in all labels of the device at `path`.
fn lose_newest(path: &str, count: usize) {
    let mut data = std::fs::read(path).unwrap();
    let label = 256 << 10;
    let labels = [0, label, data.len() - 2 * label, data.len() - label];
    let slots = labels
        .into_iter()
        .flat_map(|label| (0..128).map(move |slot| label + (128 << 10) + slot * 1024));
    let group = |data: &[u8], at: usize| {
        (data[at..at + 8] == MAGIC.to_le_bytes())
            .then(|| u64::from_le_bytes(data[at + 16..at + 24].try_into().unwrap()))
    };
    let slots: Vec<usize> = slots.filter(|at| group(&data, *at).is_some()).collect();
    let mut groups: Vec<u64> = slots.iter().filter_map(|at| group(&data, *at)).collect();
    groups.sort_unstable();
    groups.dedup();
    let kept = groups[groups.len() - 1 - count];
    for at in slots {
        if group(&data, at).is_some_and(|group| group > kept) {
            data[at..at + 1024].copy_from_slice(&noise(1024, at as u32));
        }
    }
    std::fs::write(path, data).unwrap();
}

#[test]
fn a_pool_whose_newest_states_are_gone_is_gone_back_in() {
    let Some((bench, devices)) = Bench::mounting(1) else { return };
    bench.create(&[&devices[0]]);
    let root = bench.at("mnt/tank");
    for number in 0..6 {
        std::fs::write(root.join(number.to_string()), noise(20_000, number)).unwrap();
        bench.cenote(&["zpool", "sync", "tank"]);
    }
    bench.cenote(&["zpool", "export", "tank"]);
    let sound = std::fs::read(&devices[0]).unwrap();
    let place = bench.at("d").display().to_string();
    let mount = bench.at("mnt").display().to_string();
    let import = ["zpool", "import", "-d", &place, "-R", &mount];
    for lost in [1, 2, 4] {
        std::fs::write(&devices[0], &sound).unwrap();
        lose_newest(&devices[0], lost);
        let scribbled = std::fs::read(&devices[0]).unwrap();
        // As long as a label is of that state or an older one it opens; else it says how it does.
        let output = bench.output(&[&import[..], &["-N", "tank"]].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() || said.contains("-F"), "{lost} lost: {said}");
        if output.status.success() {
            bench.cenote(&["zpool", "export", "tank"]);
            std::fs::write(&devices[0], &scribbled).unwrap();
        }
        bench.output(&[&import[..], &["-F", "-n", "tank"]].concat());
        assert!(std::fs::read(&devices[0]).unwrap() == scribbled, "-n has written");
        bench.cenote(&[&import[..], &["-F", "tank"]].concat());
        let there: Vec<u32> = (0..6).filter(|n| root.join(n.to_string()).exists()).collect();
        assert!(there.len() + lost >= 6, "{lost} lost: {there:?}");
        for number in there {
            let found = read_apart(&root.join(number.to_string()));
            assert!(found == noise(20_000, number), "{lost} lost: {number}");
        }
        bench.cenote(&["zpool", "export", "tank"]);
        bench.zdb();
    }
}
