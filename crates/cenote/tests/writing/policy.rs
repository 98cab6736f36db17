//! `cenote snap`: what a policy written for sanoid takes, destroys and complains of.

use std::fs;

use super::Bench;

#[test]
fn snapshots_come_and_go_by_a_policy() {
    let Some((bench, devices)) = Bench::mounting(1) else { return };
    bench.create(&[&devices[0]]);
    for name in ["tank/a", "tank/a/b", "tank/a/own", "tank/other"] {
        bench.cenote(&["zfs", "create", name]);
    }
    let policy = |hourly: u32| {
        let text = format!(
            "[tank/a]\nuse_template = some\nrecursive = yes\n[tank/a/own]\nuse_template = some\nhourly = 0\n\
             [template_some]\nhourly = {hourly}\ndaily = 1\nmonthly = 0\n"
        );
        fs::write(bench.at("policy"), text).unwrap();
    };
    let policy_file = bench.at("policy").display().to_string();
    let snap = |more: &[&str]| {
        let output = bench.output(&[&["snap", "--policy", &policy_file], more].concat());
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        (output.status.code(), said, String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let left = || {
        let all = bench.cenote(&["zfs", "list", "-H", "-t", "snapshot", "-o", "name"]);
        all.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    policy(2);
    let (code, said, _) = snap(&["--monitor"]);
    assert_eq!(code, Some(2));
    assert!(said.starts_with("CRIT: tank/a has no hourly snapshots at all!"), "{said}");
    let (code, said, _) = snap(&["-n"]);
    assert_eq!((code, said.lines().count()), (Some(0), 5), "{said}");
    assert!(left().is_empty());
    let (code, said, wrong) = snap(&["-v"]);
    assert_eq!((code, wrong.as_str()), (Some(0), ""), "{said}");
    let taken = left();
    assert_eq!(taken.len(), 5, "{taken:?}");
    assert!(taken.iter().filter(|name| name.ends_with("_hourly")).count() == 2, "{taken:?}");
    assert!(!taken.iter().any(|name| name.starts_with("tank/other@")), "{taken:?}");
    // Nothing more is due, and nothing is missing.
    let (code, said, _) = snap(&["--json"]);
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!((code, said["taken"].as_array().unwrap().len()), (Some(0), 0), "{said}");
    let (code, said, _) = snap(&["--monitor"]);
    assert_eq!(code, Some(0));
    assert_eq!(
        said,
        "OK: all monitored datasets (tank/a, tank/a/b, tank/a/own) have fresh snapshots\n"
    );
    // Too many and too old: they go, but for what is held, which is told. Others' are left alone.
    policy(0);
    std::thread::sleep(std::time::Duration::from_millis(1100));
    bench.cenote(&["zfs", "snapshot", "-r", "tank@autosnap_2020-01-01_00:00:00_hourly"]);
    bench.cenote(&["zfs", "snapshot", "-r", "tank@by-hand"]);
    let held = taken.iter().find(|name| name.starts_with("tank/a/b@") && name.ends_with("_hourly"));
    bench.cenote(&["zfs", "hold", "tag", held.unwrap()]);
    std::thread::sleep(std::time::Duration::from_millis(1100));
    let before = left();
    let (code, _, wrong) = snap(&["--prune"]);
    assert_eq!(code, Some(1));
    assert!(wrong.contains("dataset is busy"), "{wrong}");
    let after = left();
    let gone: Vec<&String> = before.iter().filter(|name| !after.contains(name)).collect();
    let is_due = |name: &&String| name.starts_with("tank/a") && name.ends_with("_hourly");
    assert!(gone.len() == 4 && gone.iter().all(is_due), "{gone:?}");
    assert!(after.contains(held.unwrap()), "{after:?}");
    let (code, _, wrong) = snap(&["--policy", "/nowhere"]);
    assert!(code == Some(3) && wrong.contains("cannot read /nowhere"), "{wrong}");
}
