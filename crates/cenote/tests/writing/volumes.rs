//! What volumes hold back, what does not fit, and what the history keeps of all that.
//!
//! Invariant: numbers, words and lines are those of OpenZFS 2.1.11.

use super::Bench;

impl Bench {
    fn reserved(&self, volume: &str) -> String {
        let text =
            self.cenote(&["zfs", "get", "-Hp", "-o", "value,source", "refreservation", volume]);
        text.trim_end().to_owned()
    }
}

#[test]
fn volumes_hold_back_their_size() {
    let Some((bench, devices)) = Bench::mounting(3) else { return };
    bench.create(&devices.iter().map(String::as_str).collect::<Vec<_>>());
    for (options, volume, expected) in [
        (vec!["-b", "8k"], "tank/v1", "23855104\tlocal"),
        (vec!["-b", "8k", "-s"], "tank/v2", "0\tdefault"),
        (vec!["-b", "64k"], "tank/v4", "23068672\tlocal"),
        (vec!["-b", "8k", "-o", "refreservation=5M"], "tank/v6", "5242880\tlocal"),
        (vec!["-b", "8k", "-o", "refreservation=auto"], "tank/v8", "23855104\tlocal"),
    ] {
        bench.cenote(&[&["zfs", "create", "-V", "20M"], options.as_slice(), &[volume]].concat());
        assert_eq!(bench.reserved(volume), expected, "{volume}");
    }
    for (setting, volume, expected) in [
        ("volsize=30M", "tank/v1", "34603008\tlocal"),
        ("volsize=30M", "tank/v2", "0\tdefault"),
        ("refreservation=auto", "tank/v2", "34603008\tlocal"),
        ("refreservation=none", "tank/v1", "0\tlocal"),
        ("volsize=24M", "tank/v6", "5242880\tlocal"),
    ] {
        bench.cenote(&["zfs", "set", setting, volume]);
        assert_eq!(bench.reserved(volume), expected, "{setting} {volume}");
    }
    for (arguments, words) in [
        (vec!["create", "-V", "100T", "tank/big"], "cannot create 'tank/big': out of space"),
        (
            vec!["create", "-o", "reservation=1T", "tank/big"],
            "cannot create 'tank/big': out of space",
        ),
        (
            vec!["set", "refreservation=1T", "tank/v1"],
            "cannot set property for 'tank/v1': size is greater than available space",
        ),
        (
            vec!["set", "volsize=1T", "tank/v2"],
            "cannot set property for 'tank/v2': size is greater than available space",
        ),
        (
            vec!["set", "checksum=blake3", "tank"],
            "cannot set property for 'tank': pool and or dataset must be upgraded to set this \
             property or value",
        ),
    ] {
        let said = bench.refused(&[&["zfs"], arguments.as_slice()].concat());
        assert_eq!(said.trim_end(), words);
    }
    bench.cenote(&["zfs", "create", "-s", "-V", "100T", "tank/thin"]);
    let history = bench.cenote(&["zpool", "history", "tank"]);
    assert!(history.contains("zfs set refreservation=auto tank/v2\n"), "{history}");
    assert!(!history.contains("big") && !history.contains("1T"), "{history}");
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
}

#[test]
fn properties_are_set_and_inherited_together() {
    let Some((bench, _)) = Bench::mounting(1) else { return };
    bench.create(&[&bench.devices(1)[0]]);
    for name in ["tank/a", "tank/a/b", "tank/c"] {
        bench.cenote(&["zfs", "create", name]);
    }
    bench.cenote(&["zfs", "create", "-s", "-V", "8M", "tank/v"]);
    let group = |line: &str| {
        let history = bench.cenote(&["zpool", "history", "-i", "tank"]);
        let lines = history.lines().filter(|one| one.contains("txg:") && one.contains(line));
        let of =
            |line: &str| line.split("txg:").nth(1).unwrap().split(']').next().unwrap().to_owned();
        lines.map(of).collect::<Vec<String>>()
    };
    bench.cenote(&["zfs", "set", "atime=off", "test:x=1", "tank/a", "tank/a/b", "tank/c"]);
    let groups = group("atime=0");
    assert!(groups.len() == 3 && groups.iter().all(|one| *one == groups[0]), "{groups:?}");
    assert_eq!(group("test:x=1"), groups);
    // What does not fit one is set on the others.
    let said = bench.refused(&["zfs", "set", "reservation=1T", "test:y=2", "tank/a", "tank/c"]);
    let words = |name: &str| {
        format!("cannot set property for '{name}': size is greater than available space\n")
    };
    assert_eq!(said, words("tank/a") + &words("tank/c"));
    let said = bench.refused(&["zfs", "set", "volsize=1M", "tank/v", "tank/c"]);
    assert!(said.starts_with("cannot set property for 'tank/c'"), "{said}");
    bench.cenote(&["zfs", "set", "userquota@7=3M", "groupquota@8=4M", "quota=5M", "tank/c"]);
    bench.cenote(&["zfs", "set", "userquota@7=none", "test:z=3", "tank/c"]);
    bench.cenote(&["zfs", "set", "volsize=16M", "test:z=3", "tank/v"]);
    for (name, property, value) in [
        ("tank/c", "userquota@7", "0"),
        ("tank/c", "groupquota@8", "4194304"),
        ("tank/c", "quota", "5242880"),
        ("tank/v", "volsize", "16777216"),
        ("tank/v", "test:z", "3"),
    ] {
        assert_eq!(
            bench.cenote(&["zfs", "get", "-Hp", "-o", "value", property, name]),
            format!("{value}\n")
        );
    }
    bench.cenote(&["zfs", "inherit", "-r", "atime", "tank"]);
    let groups = group("inherit");
    assert!(groups.len() == 4 && groups.iter().all(|one| *one == groups[0]), "{groups:?}");
    assert_eq!(bench.value("atime", "tank/a/b"), "on");
    let history = bench.cenote(&["zpool", "history", "tank"]);
    assert_eq!(history.matches("zfs inherit -r atime tank\n").count(), 1, "{history}");
    assert_eq!(history.matches("zfs set").count(), 5, "{history}");
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
}

#[test]
fn the_history_knows_of_keys() {
    let Some((bench, _)) = Bench::mounting(1) else { return };
    bench.create(&[&bench.devices(1)[0]]);
    std::fs::write(bench.at("key"), [7; 32]).unwrap();
    let location = format!("keylocation=file://{}", bench.at("key").display());
    let create = ["zfs", "create", "-o", "encryption=on", "-o", "keyformat=raw", "-o"];
    bench.cenote(&[&create[..], &[&location, "tank/secret"]].concat());
    bench.cenote(&["zfs", "unmount", "tank/secret"]);
    let lines = [
        "zfs unload-key tank/secret",
        "zfs load-key -n tank/secret",
        "zfs load-key -r tank",
        "zfs unload-key -a",
        "zfs load-key tank/secret",
        "zfs change-key tank/secret",
    ];
    for line in lines {
        bench.cenote(&line.split(' ').collect::<Vec<_>>());
    }
    // what is refused is not kept
    bench.refused(&["zfs", "load-key", "tank/secret"]);
    let history = bench.cenote(&["zpool", "history", "tank"]);
    let kept: Vec<&str> =
        history.lines().filter_map(|line| line.split_once(" ")).map(|(_, l)| l).collect();
    let end: Vec<&str> = kept.iter().rev().take(lines.len()).rev().copied().collect();
    assert_eq!(end, lines, "{history}");
    bench.cenote(&["zpool", "export", "tank"]);
}

#[test]
fn volumes_below_a_filesystem_are_listed() {
    let Some((bench, _)) = Bench::mounting(1) else { return };
    bench.create(&[&bench.devices(1)[0]]);
    bench.cenote(&["zfs", "create", "tank/a"]);
    bench.cenote(&["zfs", "create", "-s", "-V", "8M", "tank/a/v"]);
    let list = |depth: &str| {
        bench.cenote(&["zfs", "list", "-H", "-t", "volume", "-o", "name", depth, "tank"])
    };
    assert_eq!(list("-r"), "tank/a/v\n");
    assert_eq!(list("-d2"), "tank/a/v\n");
    assert_eq!(list("-d1"), "");
    let said = bench.refused(&["zfs", "list", "-t", "volume", "tank"]);
    let words = "operation not applicable to datasets of this type";
    assert_eq!(said, format!("cannot open 'tank': {words}\n"));
    bench.cenote(&["zpool", "export", "tank"]);
}

#[test]
fn a_tree_goes_with_what_was_cloned_in_it() {
    let Some((bench, _)) = Bench::mounting(1) else { return };
    bench.create(&[&bench.devices(1)[0]]);
    for name in ["tank/m", "tank/m/a"] {
        bench.cenote(&["zfs", "create", name]);
    }
    // No program could say this name.
    let snapshots = bench.at("mnt/tank/m/a/.zfs/snapshot");
    let refused = std::fs::create_dir(snapshots.join("%x")).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(84), "{refused}");
    std::fs::create_dir(snapshots.join("x")).unwrap();
    let refused = std::fs::rename(snapshots.join("x"), snapshots.join("b%d")).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(84), "{refused}");
    bench.cenote(&["zfs", "clone", "tank/m/a@x", "tank/m/z"]);
    let said = bench.cenote(&["zfs", "destroy", "-rnp", "tank/m"]);
    let order = ["tank/m/z", "tank/m/a@x", "tank/m/a", "tank/m"];
    assert_eq!(said, order.map(|name| format!("destroy\t{name}\n")).concat());
    bench.cenote(&["zfs", "destroy", "-r", "tank/m"]);
    assert_eq!(bench.cenote(&["zfs", "list", "-H", "-o", "name"]), "tank\n");
    let said = bench.refused(&["zfs", "send", "-R", "-X", "c", "tank@x"]);
    assert!(said.starts_with("-X c: not a valid non-root dataset name.\n"), "{said}");
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
}
