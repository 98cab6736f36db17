//! `cenote zdb` over pools made by OpenZFS, compared with the real `zdb` where it is installed.
//!
//! Invariant: facts, not formats, are compared: counts, sizes, addresses, free space.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

/// A fixture in a directory of its own.
struct Fixture {
    dir: TempDir,
    pool: String,
}

fn unpack(name: &str) -> Fixture {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures").join(name);
    let list = std::fs::read_to_string(root.join("list.txt")).unwrap();
    let pool = list.split(['\t', '/', '@']).next().unwrap().to_owned();
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let packed = std::fs::File::open(root.join("images.tar.zst")).unwrap();
    let mut tar = Command::new("tar")
        .args(["-S", "-xf", "-", "-C"])
        .arg(dir.path())
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = tar.stdin.take().unwrap();
    zstd::stream::copy_decode(packed, &mut input).unwrap();
    drop(input);
    assert!(tar.wait().unwrap().success());
    Fixture { dir, pool }
}

impl Fixture {
    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cenote"));
        command.arg("zdb").args(["-e", "-p"]).arg(self.dir.path()).args(arguments);
        command.output().unwrap()
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let mut all = vec!["--json"];
        all.extend(arguments);
        let done = self.run(&all);
        let errors = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{arguments:?}: {errors}");
        serde_json::from_slice(&done.stdout).unwrap()
    }

    fn text(&self, arguments: &[&str]) -> String {
        let done = self.run(arguments);
        let errors = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{arguments:?}: {errors}");
        String::from_utf8(done.stdout).unwrap()
    }

    /// What the real `zdb` says; `None` (and why) if it is not installed.
    fn real(&self, arguments: &[&str]) -> Option<String> {
        let mut command = Command::new("zdb");
        command.args(["-e", "-p"]).arg(self.dir.path()).args(arguments);
        match command.output() {
            Ok(done) => Some(String::from_utf8_lossy(&done.stdout).into_owned()),
            Err(error) => {
                eprintln!("not compared with zdb: {error}");
                None
            }
        }
    }

    fn device(&self) -> PathBuf {
        self.dir.path().join("d0")
    }
}

/// The lines of `text` that start with `prefix`, sorted.
fn lines<'a>(text: &'a str, prefix: &str) -> Vec<&'a str> {
    let mut found: Vec<&str> = text.lines().filter(|line| line.starts_with(prefix)).collect();
    found.sort_unstable();
    found
}

/// Words of the first line with `label`, after it.
fn number_after(text: &str, label: &str) -> u64 {
    let line = text.lines().find(|line| line.contains(label)).unwrap_or_else(|| panic!("{label}"));
    let rest = line.split(label).nth(1).unwrap();
    rest.split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn datasets_and_objects_are_those_of_zdb() {
    let fixture = unpack("snaps");
    let pool = fixture.pool.as_str();
    let ours = fixture.text(&["-d", pool]);
    assert!(lines(&ours, "Dataset ").len() > 5);
    let files = fixture.text(&["-dddd", &format!("{pool}/a"), "2"]);
    assert!(files.contains("\tpath\t/sizes"), "{files}");
    assert!(files.contains("f112 = 8 (type: Regular File)"), "{files}");
    let Some(real) = fixture.real(&["-d", pool]) else { return };
    assert_eq!(lines(&ours, "Dataset "), lines(&real, "Dataset "));
    // The rows of all objects of a filesystem, and of the pool's own.
    for target in [format!("{pool}/a"), format!("{pool}/vol")] {
        let rows = |text: &str| -> Vec<String> {
            let is_row = |line: &&str| {
                let first = line.split_whitespace().next();
                line.len() > 60 && first.is_some_and(|word| word.parse::<i64>().is_ok())
            };
            text.lines().filter(is_row).map(str::to_owned).collect()
        };
        let (ours, real) = (fixture.text(&["-dd", &target]), fixture.real(&["-dd", &target]));
        assert_eq!(rows(&ours), rows(&real.unwrap()), "{target}");
    }
}

#[test]
fn free_space_of_metaslabs_is_that_of_zdb() {
    let fixture = unpack("snaps");
    let json = fixture.json(&["-mm", &fixture.pool]);
    let slabs = json["vdevs"][0]["metaslabs"].as_array().unwrap();
    assert!(!slabs.is_empty());
    for slab in slabs {
        assert_eq!(slab["free"], slab["free_segments_bytes"], "{slab}");
    }
    let Some(real) = fixture.real(&["-m", &fixture.pool]) else { return };
    // What follows are the maps of the logs, which belong to no metaslab.
    let real = real.split("Log Space Maps").next().unwrap();
    let allocated: Vec<u64> = real
        .lines()
        .filter_map(|line| line.trim().strip_prefix("smp_alloc = 0x"))
        .map(|hex| u64::from_str_radix(hex, 16).unwrap())
        .collect();
    let ours: Vec<u64> = slabs.iter().filter_map(|slab| slab["smp_alloc"].as_u64()).collect();
    assert_eq!(ours, allocated);
}

#[test]
fn block_totals_are_those_of_zdb() {
    let fixture = unpack("snaps");
    let json = fixture.json(&["-bcc", &fixture.pool]);
    let blocks = &json["blocks"];
    assert_eq!((&blocks["clean"], &blocks["problems"]), (&true.into(), &0.into()));
    let Some(real) = fixture.real(&["-b", &fixture.pool]) else { return };
    for (label, name) in [
        ("bp count:", "count"),
        ("bp logical:", "logical"),
        ("bp physical:", "physical"),
        ("bp allocated:", "allocated"),
    ] {
        assert_eq!(blocks["total"][name].as_u64(), Some(number_after(&real, label)), "{label}");
    }
}

#[test]
fn labels_and_history_are_readable() {
    let fixture = unpack("snaps");
    let device = fixture.device();
    let labels = fixture.text(&["-lu", device.to_str().unwrap()]);
    assert!(labels.contains("LABEL 0") && labels.contains("labels = 0 1 2 3"), "{labels}");
    assert!(labels.contains("magic: '0000000000bab10c'"), "{labels}");
    let history = fixture.text(&["-h", &fixture.pool]);
    assert!(history.lines().any(|line| line.contains(" zpool create ")), "{history}");
}

#[test]
fn bad_usage_is_told_with_the_fix() {
    let fixture = unpack("snaps");
    let pool = fixture.pool.as_str();
    let missing = format!("{pool}/none");
    for (arguments, code, words) in [
        (vec!["-d", "nopool"], 1, "-p DIRECTORY"),
        (vec!["-d", &missing], 1, "lists all datasets"),
        (vec!["-dd", pool, "x"], 2, "'x' is not an object number"),
        (vec!["-S", pool], 2, "-S is not supported"),
        (vec!["-b"], 2, "no pool is named"),
        (vec!["-R", pool, "0:zz:200"], 2, "VDEV:OFFSET"),
    ] {
        let done = fixture.run(&arguments);
        let errors = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.code(), Some(code), "{arguments:?}: {errors}");
        assert!(errors.contains(words), "{arguments:?}: {errors}");
    }
}
