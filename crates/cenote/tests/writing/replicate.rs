//! `cenote replicate` between two pools: the first time, again, cut off, with a limit, and what it refuses.

use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant};

use super::{Bench, noise};

fn two() -> Option<Bench> {
    let (bench, devices) = Bench::mounting(2)?;
    bench.create(&[&devices[0]]);
    bench.cenote(&[
        "zpool",
        "create",
        "-R",
        &bench.at("mnt").display().to_string(),
        "back",
        &devices[1],
    ]);
    // Looking at the copy changes nothing in it.
    bench.cenote(&["zfs", "set", "atime=off", "back"]);
    for name in ["tank/a", "tank/a/b", "tank/a/c"] {
        bench.cenote(&["zfs", "create", name]);
        fs::write(bench.at("mnt").join(name).join("file"), noise(2_000_000, 3)).unwrap();
    }
    Some(bench)
}

impl Bench {
    fn replicated(&self, more: &[&str]) -> serde_json::Value {
        let said =
            self.cenote(&[&["replicate", "--json", "-r"], more, &["tank/a", "back/a"]].concat());
        serde_json::from_str(&said).unwrap()
    }

    fn are_equal(&self) {
        self.cenote(&["zfs", "mount", "-a"]);
        let (from, to) = (self.at("mnt/tank/a"), self.at("mnt/back/a"));
        let output =
            std::process::Command::new("diff").arg("-r").args([from, to]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
}

#[test]
fn datasets_are_brought_over_and_kept_up() {
    let Some(bench) = two() else { return };
    bench.cenote(&["zfs", "snapshot", "-r", "tank/a@one"]);
    bench.cenote(&["zfs", "snapshot", "-r", "tank/a@two"]);
    let dry = bench.cenote(&["replicate", "-rn", "tank/a", "back/a"]);
    assert!(dry.starts_with("would run: zfs send -Lc tank/a@one into back/a\n"), "{dry}");
    let told = bench.replicated(&["--jobs", "2"]);
    let all = told["datasets"].as_array().unwrap();
    assert_eq!(all.len(), 3);
    for one in all {
        assert_eq!(one["snapshot"], "@two", "{told}");
        let target = format!("{}@two", one["target"].as_str().unwrap());
        let guid = bench.cenote(&["zfs", "get", "-Hp", "-o", "value", "guid", &target]);
        assert_eq!(one["guid"], guid.trim());
    }
    bench.are_equal();
    // Only what is new goes, also when what came before is left as a bookmark only.
    bench.cenote(&["zfs", "bookmark", "tank/a/b@two", "tank/a/b#two"]);
    bench.cenote(&["zfs", "destroy", "tank/a/b@one,two"]);
    fs::write(bench.at("mnt/tank/a/b/more"), noise(50_000, 4)).unwrap();
    let told = bench.replicated(&["--snapshot"]);
    let b = told["datasets"].as_array().unwrap().iter().find(|one| one["source"] == "tank/a/b");
    assert!(b.unwrap()["bytes"].as_u64().unwrap() < 200_000, "{told}");
    assert!(b.unwrap()["snapshot"].as_str().unwrap().starts_with("@cenote_2"), "{told}");
    bench.are_equal();
    let told = bench.replicated(&[]);
    assert!(told["datasets"].as_array().unwrap().iter().all(|one| one["bytes"] == 0), "{told}");
    // What is not from here stays, unless told otherwise.
    bench.cenote(&["zfs", "snapshot", "back/a/c@own"]);
    bench.cenote(&["zfs", "snapshot", "-r", "tank/a@three"]);
    let said = bench.refused(&["replicate", "-r", "tank/a", "back/a"]);
    assert!(
        said.contains("tank/a/c -> back/a/c: the target has changed since @cenote_2"),
        "{said}"
    );
    bench.replicated(&["--force"]);
    let left = bench.cenote(&["zfs", "list", "-H", "-o", "name", "-t", "snapshot", "back/a/c"]);
    assert!(left.contains("back/a/c@three") && !left.contains("@own"), "{left}");
    let said = bench.refused(&["replicate", "tank/no", "back/no"]);
    assert!(said.contains("dataset does not exist"), "{said}");
    bench.cenote(&["zpool", "export", "back"]);
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
}

#[test]
fn what_was_killed_goes_on_where_it_was() {
    let Some(bench) = two() else { return };
    bench.cenote(&["zfs", "snapshot", "tank/a@one"]);
    fs::write(bench.at("mnt/tank/a/large"), noise(12_000_000, 5)).unwrap();
    bench.cenote(&["zfs", "snapshot", "tank/a@two"]);
    let mut command = bench.command(&["replicate", "--bandwidth", "4M", "tank/a", "back/a"]);
    let mut running = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let begun = Instant::now();
    let token = || {
        let output =
            bench.output(&["zfs", "get", "-H", "-o", "value", "receive_resume_token", "back/a"]);
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    };
    // In the middle of the second stream: the first snapshot is there.
    while !bench.output(&["zfs", "list", "back/a@one"]).status.success() {
        assert!(begun.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(50));
    }
    std::thread::sleep(Duration::from_millis(1200));
    running.kill().unwrap();
    running.wait().unwrap();
    let begun = Instant::now();
    while token() == "-" && begun.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(token().starts_with("1-"), "{}", token());
    let said = bench.cenote(&["replicate", "--json", "tank/a", "back/a"]);
    let told: serde_json::Value = serde_json::from_str(&said).unwrap();
    let bytes = told["datasets"][0]["bytes"].as_u64().unwrap();
    assert!(told["datasets"][0]["snapshot"] == "@two" && bytes < 11_500_000, "{told}");
    let (one, other) = ("mnt/tank/a/large", "mnt/back/a/large");
    bench.cenote(&["zfs", "mount", "back/a"]);
    assert!(fs::read(bench.at(one)).unwrap() == fs::read(bench.at(other)).unwrap());
}

#[test]
fn what_the_source_has_no_more_is_given_up_and_begun_anew() {
    let Some(bench) = two() else { return };
    let token = || {
        let said =
            bench.cenote(&["zfs", "get", "-H", "-o", "value", "receive_resume_token", "back/a"]);
        said.trim().to_owned()
    };
    let cut = |stream: &[&str]| {
        let stream = bench.stream(stream);
        assert!(
            !bench.receive(&["-s", "-u", "back/a"], &stream[..stream.len() / 2]).status.success()
        );
        assert!(token().starts_with("1-"));
    };
    let bring = |snapshot: &str, words: &str| {
        let output = bench.output(&["replicate", "tank/a", "back/a"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() && said.contains(words), "{said}");
        assert_eq!(token(), "-");
        let guid = |of: &str| {
            bench.cenote(&["zfs", "get", "-Hp", "-o", "value", "guid", &format!("{of}@{snapshot}")])
        };
        assert_eq!(guid("tank/a"), guid("back/a"));
    };
    // A new filesystem, of which nothing else is there.
    bench.cenote(&["zfs", "snapshot", "tank/a@gone"]);
    cut(&["tank/a@gone"]);
    bench.cenote(&["zfs", "destroy", "tank/a@gone"]);
    bench.cenote(&["zfs", "snapshot", "tank/a@one"]);
    let dry = bench.cenote(&["replicate", "-n", "tank/a", "back/a"]);
    assert!(dry.starts_with("would run: zfs receive -A back/a\n"), "{dry}");
    assert!(token().starts_with("1-"));
    let words = "tank/a: what back/a has received in part cannot be gone on with ('tank/a@gone' used in the initial \
                 send no longer exists): begins anew";
    bring("one", words);
    // An increment; a snapshot of the same name is not the one that was sent.
    fs::write(bench.at("mnt/tank/a/more"), noise(2_000_000, 9)).unwrap();
    bench.cenote(&["zfs", "snapshot", "tank/a@two"]);
    cut(&["-i", "@one", "tank/a@two"]);
    bench.cenote(&["zfs", "destroy", "tank/a@two"]);
    bench.cenote(&["zfs", "snapshot", "tank/a@two"]);
    bring("two", "'tank/a@two' is no longer the same snapshot used in the initial send");
    // What comes from elsewhere is not given up.
    bench.cenote(&["zfs", "rename", "tank/a", "tank/z"]);
    bench.cenote(&["zfs", "snapshot", "tank/z@three"]);
    cut(&["-i", "@two", "tank/z@three"]);
    bench.cenote(&["zfs", "destroy", "tank/z@three"]);
    bench.cenote(&["zfs", "rename", "tank/z", "tank/a"]);
    bench.cenote(&["zfs", "snapshot", "tank/a@four"]);
    let said = bench.refused(&["replicate", "tank/a", "back/a"]);
    assert!(said.contains("'tank/z@three' used in the initial send no longer exists"), "{said}");
    assert!(said.contains("zfs receive -A back/a"), "{said}");
    assert!(token().starts_with("1-"));
}
