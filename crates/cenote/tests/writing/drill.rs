//! The scenarios of `cenote drill`, played without anybody.
//!
//! Invariant: nothing is left of them.

use super::Bench;

#[test]
fn every_scenario_ends_well() {
    let Some((bench, _)) = Bench::mounting(0) else { return };
    let at = bench.at("drill").display().to_string();
    let listed = bench.cenote(&["drill", "--list"]);
    let names: Vec<&str> =
        listed.lines().filter_map(|line| line.split_whitespace().next()).collect();
    for name in ["mirror", "copies", "raidz", "grow", "scrub-of-death"] {
        assert!(names.contains(&name), "{listed}");
    }
    let output = bench.output(&["drill", "all", "--auto", "-C", &at]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    for name in names {
        assert!(said.contains(&format!("\n'{name}' ended well.\n")), "{name} in\n{said}");
    }
    assert_eq!(std::fs::read_dir(&at).unwrap().count(), 0);
}

#[test]
fn disks_are_broken_by_single_words() {
    let Some((bench, _)) = Bench::mounting(0) else { return };
    let at = bench.at("own").display().to_string();
    fn with<'a>(at: &'a str, words: &[&'a str]) -> Vec<&'a str> {
        [&["drill", "-C", at], words].concat()
    }
    let said = bench.refused(&with(&at, &["zero", "disk0"]));
    assert!(said.starts_with("cenote drill: "), "{said}");
    bench.cenote(&with(&at, &["disks", "2", "64M"]));
    let run = |line: &str| {
        let program = format!("{at}/bin/{line}");
        let ran = std::process::Command::new("sh")
            .args(["-c", &program])
            .env("CENOTE_RUN_DIR", format!("{at}/run"))
            .output()
            .unwrap();
        assert!(ran.status.success(), "{line}: {}", String::from_utf8_lossy(&ran.stderr));
        String::from_utf8_lossy(&ran.stdout).into_owned()
    };
    run(&format!("zpool create -R {at}/mnt test mirror {at}/disks/disk0 {at}/disks/disk1"));
    for words in [
        &["unplug", "disk1"][..],
        &["plug", "disk1"],
        &["slow", "disk0", "1"],
        &["flip", "disk1", "10%"],
        &["tear", "disk1", "0.5"],
        &["cache", "disk1"],
        &["well", "disk1"],
        &["rot", "disk1", "0.1%", "-s", "7"],
        &["power"],
    ] {
        bench.cenote(&with(&at, words));
    }
    run(&format!("zpool import -d {at}/disks -R {at}/mnt test"));
    run("zpool scrub -w test");
    let said = bench.refused(&with(&at, &["rot", "disk1", "200"]));
    assert!(said.contains("200 %: is to be from 0 to 100"), "{said}");
    let said = bench.refused(&with(&at, &["unplug", "../disk1"]));
    assert!(said.contains("there is no disk '../disk1'"), "{said}");
    bench.cenote(&with(&at, &["clean"]));
    assert!(!bench.at("own").exists());
}
