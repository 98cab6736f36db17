//! Every stream that the kernel module's `zfs send` left in `../shared/pools`, received: each snapshot is the tree
//! that was recorded beside it.
//!
//! Invariant: entries are compared as the module listed them, times and extended attributes included.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{Bench, manifest};

/// What was recorded of a pool; `None`, said why, where that is not to be had.
fn pool(name: &str) -> Option<PathBuf> {
    let pools = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/pools").join(name);
    pools.exists().then_some(pools).or_else(|| {
        eprintln!("skipped: the recorded pools are not here");
        None
    })
}

/// Entries by their paths.
fn entries(listed: &str) -> BTreeMap<String, serde_json::Value> {
    let parsed =
        listed.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    parsed.map(|entry| (entry["path"].as_str().unwrap().to_owned(), entry)).collect()
}

/// Of a whole pool's entries those of one of its filesystems, none below it.
fn filesystem(all: &str, name: &str, below: &[&str]) -> BTreeMap<String, serde_json::Value> {
    let mut own = BTreeMap::new();
    for (path, mut entry) in entries(all) {
        let Some(path) = path.strip_prefix(&format!("{name}/")) else { continue };
        let top = path.split('/').next().unwrap();
        if !below.contains(&top) {
            entry["path"] = path.into();
            own.insert(path.to_owned(), entry);
        }
    }
    own
}

impl Bench {
    /// Receives a recorded stream.
    fn take(&self, stream: &Path, arguments: &[&str]) {
        let bytes = zstd::decode_all(std::fs::File::open(stream).unwrap()).unwrap();
        self.received(arguments, &bytes);
    }

    /// What a snapshot of a filesystem holds.
    fn snapshot_entries(
        &self,
        dataset: &str,
        snapshot: &str,
    ) -> BTreeMap<String, serde_json::Value> {
        let place = self.at("mnt").join(dataset).join(".zfs/snapshot").join(snapshot);
        entries(&manifest(&place))
    }

    #[track_caller]
    fn holds(&self, dataset: &str, snapshots: &[&str], recorded: &Path) {
        for snapshot in snapshots {
            let path = recorded.join(format!("manifest/a_at_{snapshot}.jsonl"));
            let expected = entries(&std::fs::read_to_string(path).unwrap());
            assert!(expected.len() > 15);
            let found = self.snapshot_entries(dataset, snapshot);
            let odd = |path: &&String| expected.get(*path) != found.get(*path);
            let odd: Vec<_> = expected.keys().chain(found.keys()).filter(odd).collect();
            assert!(odd.is_empty(), "{dataset}@{snapshot}: {odd:?}");
        }
    }
}

#[test]
fn filesystems_are_what_was_recorded() {
    let Some((bench, devices)) = Bench::mounting(1) else { return };
    let Some(recorded) = pool("snaps") else { return };
    bench.create(&[&devices[0]]);
    let stream = |name: &str| recorded.join("streams").join(name);
    for name in ["tank/increment", "tank/many"] {
        bench.take(&stream("full-one.zst"), &[name]);
        bench.holds(name, &["one"], &recorded);
    }
    bench.take(&stream("incr-one-s5.zst"), &["tank/increment"]);
    bench.holds("tank/increment", &["one", "s5"], &recorded);
    bench.take(&stream("intermediate-one-s5.zst"), &["tank/many"]);
    bench.holds("tank/many", &["one", "two", "s1", "s3", "s5"], &recorded);
    // The bookmark is of `two`, which is what the stream goes on from.
    bench.take(&stream("R-cel-two.zst"), &["-u", "-x", "mountpoint", "tank/mark"]);
    bench.cenote(&["zfs", "mount", "-a"]);
    bench.holds("tank/mark/a", &["one", "two"], &recorded);
    bench.take(&stream("incr-bookmark.zst"), &["tank/mark/a"]);
    bench.holds("tank/mark/a", &["one", "two", "s5"], &recorded);
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
}

#[test]
fn a_volume_is_what_was_recorded() {
    let Some((bench, devices)) = Bench::mounting(1) else { return };
    let Some(recorded) = pool("snaps") else { return };
    bench.create(&[&devices[0]]);
    bench.take(&recorded.join("streams/vol.zst"), &["tank/vol"]);
    bench.cenote(&["zpool", "export", "tank"]);
    let directory = bench.at("d").display().to_string();
    let mut cat = bench.command(&["cat", "-d", &directory, "tank/vol"]);
    let mut cat = cat.stdout(Stdio::piped()).spawn().unwrap();
    let hash = Command::new("sha256sum").stdin(cat.stdout.take().unwrap()).output().unwrap();
    assert!(cat.wait().unwrap().success());
    let expected = std::fs::read_to_string(recorded.join("vol.sha256")).unwrap();
    assert_eq!(String::from_utf8(hash.stdout).unwrap(), expected);
    bench.zdb();
}

#[test]
fn what_came_sealed_is_what_was_recorded() {
    let Some((bench, devices)) = Bench::mounting(1) else { return };
    let Some(recorded) = pool("crypt") else { return };
    bench.create(&[&devices[0]]);
    bench.take(&recorded.join("streams/raw-gcm-s.zst"), &["-u", "tank/gcm"]);
    bench.take(&recorded.join("streams/raw-gcm-s-t.zst"), &["-u", "tank/gcm"]);
    let key = format!("file://{}", recorded.join("pp").canonicalize().unwrap().display());
    bench.cenote(&["zfs", "load-key", "-L", &key, "tank/gcm"]);
    bench.cenote(&["zfs", "mount", "tank/gcm"]);
    // Nothing was changed after `t`.
    let all = std::fs::read_to_string(recorded.join("manifest/g101.jsonl")).unwrap();
    let expected = filesystem(&all, "gcm", &["child", "cl", "xa"]);
    let mut found = bench.snapshot_entries("tank/gcm", "t");
    // There the others are mounted.
    for place in ["child", "cl", "xa"] {
        found.remove(place);
    }
    assert!(expected.len() > 100 && found == expected, "{} {}", expected.len(), found.len());
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
}

#[test]
fn what_was_not_redacted_is_what_was_recorded() {
    let Some((bench, devices)) = Bench::mounting(1) else { return };
    let Some(recorded) = pool("modern") else { return };
    bench.create(&[&devices[0]]);
    bench.take(&recorded.join("streams/redacted.zst"), &["-u", "tank/part"]);
    bench.cenote(&["zfs", "mount", "-f", "tank/part"]);
    let all = std::fs::read_to_string(recorded.join("manifest/g101.jsonl")).unwrap();
    // The clone whose snapshot says what is kept.
    let kept = filesystem(&all, "redacted", &[]);
    let mut same = 0;
    for (path, entry) in kept.iter().filter(|(_, entry)| entry.get("sha256").is_some()) {
        let hash = Command::new("sha256sum").arg(bench.at("mnt/tank/part").join(path)).output();
        let hash = String::from_utf8(hash.unwrap().stdout).unwrap();
        assert!(hash.starts_with(entry["sha256"].as_str().unwrap()), "{path}");
        same += 1;
    }
    assert!(same >= 5, "{same}");
    // What the clone had removed is there by name, and nothing of it.
    assert!(!kept.contains_key("data/random"));
    let secret = std::fs::read(bench.at("mnt/tank/part/data/random")).unwrap();
    assert!(secret.len() == 524_288 && secret.iter().all(|byte| *byte == 0));
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
}
