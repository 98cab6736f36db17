//! The pools of OpenZFS's own test suite: versions 1 to 15, and what later releases stumbled over.
//!
//! Invariant: each is verified without a fault, or refused for the reason OpenZFS gives.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

const SUITE: &str = "/usr/share/zfs/zfs-tests/tests/functional/cli_root";

fn cenote(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_cenote")).args(arguments).output().unwrap()
}

/// Unpacks every image into `to`; how many there were.
fn unpack(to: &Path) -> usize {
    let mut count = 0;
    for command in ["zpool_upgrade", "zpool_import"] {
        let Ok(entries) = fs::read_dir(format!("{SUITE}/{command}/blockfiles")) else { continue };
        for path in entries.flatten().map(|entry| entry.path()) {
            let name = path.file_stem().unwrap().to_owned();
            let Ok(plain) = Command::new("bzip2").arg("-dc").arg(&path).output() else { continue };
            assert!(plain.status.success(), "{}", path.display());
            fs::write(to.join(name), plain.stdout).unwrap();
            count += 1;
        }
    }
    count
}

#[test]
fn pools_of_the_test_suite_of_openzfs_are_sound() {
    let directory = tempfile::tempdir().unwrap();
    if unpack(directory.path()) == 0 {
        eprintln!("skipped: no {SUITE} (Debian package zfs-test), or no bzip2");
        return;
    }
    let place = directory.path().display().to_string();
    let listed = cenote(&["zpool", "import", "-d", &place]);
    let listed = String::from_utf8(listed.stdout).unwrap();
    let mut pools = Vec::new();
    for line in listed.lines() {
        match line.trim_start().split_once(": ") {
            Some(("pool", name)) => pools.push((name.trim(), "")),
            Some(("id", id)) => pools.last_mut().unwrap().1 = id.trim(),
            _ => {}
        }
    }
    assert!(pools.len() > 30, "{listed}");
    for (name, id) in pools {
        let output = cenote(&["zdb", "-e", "-p", &place, "-cc", id]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if name == "v999-pool" {
            assert!(said.contains("pool version 999"), "{said}");
            continue;
        }
        let found = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{name}: {found}{said}");
        assert!(found.contains("No leaks"), "{name}: {found}");
    }
}
