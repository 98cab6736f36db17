//! Quotas of users, groups and projects that come with a new filesystem.
//!
//! Invariant: they are there from the filesystem's first group on, or it is not.

use super::Bench;

#[test]
fn quotas_come_with_a_new_filesystem() {
    let Some((bench, devices)) = Bench::mounting(1) else { return };
    let options = ["-O", "userquota@9=5M"];
    bench.create_with(&options, &[&devices[0]]);
    assert_eq!(bench.value("userquota@9", "tank"), (5 << 20).to_string());
    let quotas = ["-o", "userquota@root=1M", "-o", "userquota@7=3M", "-o", "groupobjquota@8=5"];
    let more = ["-o", "projectquota@4=none", "-o", "atime=off", "tank/new/a"];
    bench.cenote(&[&["zfs", "create", "-p"], &quotas[..], &more].concat());
    for (property, wanted) in [
        ("userquota@0", 1 << 20),
        ("userquota@7", 3 << 20),
        ("groupobjquota@8", 5),
        ("projectquota@4", 0),
    ] {
        assert_eq!(bench.value(property, "tank/new/a"), wanted.to_string(), "{property}");
        assert_eq!(bench.value(property, "tank/new"), "0", "{property} of the parent");
    }
    // What is written before anything is set once more is held to them.
    let file = bench.at("mnt/tank/new/a/file");
    std::fs::write(&file, super::noise(2 << 20, 1)).unwrap();
    bench.cenote(&["zpool", "sync", "tank"]);
    let error = std::fs::write(bench.at("mnt/tank/new/a/more"), [1; 4096]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::QuotaExceeded, "{error}");
    // They were made in the group of the filesystem, and stand nowhere else.
    let history = bench.cenote(&["zpool", "history", "-i", "tank"]);
    let events =
        history.lines().filter(|line| line.contains("txg:") && line.contains("tank/new/a"));
    let mut groups: Vec<_> = events.filter_map(|line| line.split(['[', ']']).nth(1)).collect();
    groups.dedup();
    assert_eq!(groups.len(), 1, "{history}");
    assert!(!history.contains("userquota@7=3145728"), "{history}");
    for (arguments, words) in [
        (
            &["-o", "userquota@nosuchuser=1M", "tank/b"][..],
            "cannot create 'tank/b': 'userquota@nosuchuser' has an invalid user/group name\n",
        ),
        (
            &["-V", "8M", "-o", "userquota@7=1M", "tank/v"],
            "cannot create 'tank/v': 'userquota@7' does not apply to datasets of this type\n",
        ),
        (
            &["-o", "userquota@7=1X", "tank/b"],
            "cannot create 'tank/b': invalid numeric suffix 'X'\n",
        ),
    ] {
        let said = bench.refused(&[&["zfs", "create"], arguments].concat());
        assert_eq!(said, words);
    }
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
    bench.import();
    assert_eq!(bench.value("userquota@7", "tank/new/a"), (3 << 20).to_string());
}

/// All that a clone is to have, or no clone.
#[test]
fn quotas_come_with_a_clone() {
    let Some((bench, devices)) = Bench::mounting(1) else { return };
    bench.create(&[&devices[0]]);
    bench.cenote(&["zfs", "create", "tank/a"]);
    bench.cenote(&["zfs", "create", "-s", "-V", "8M", "tank/v"]);
    bench.cenote(&["zfs", "snapshot", "tank/a@one", "tank/v@one"]);
    let quotas = ["-o", "userquota@7=3M", "-o", "atime=off", "-o", "groupquota@8=4M"];
    bench.cenote(&[&["zfs", "clone"], &quotas[..], &["tank/a@one", "tank/b"]].concat());
    for (property, wanted) in
        [("userquota@7", "3145728"), ("groupquota@8", "4194304"), ("atime", "off")]
    {
        assert_eq!(bench.value(property, "tank/b"), wanted);
    }
    bench.cenote(&["zfs", "clone", "-o", "volsize=16M", "tank/v@one", "tank/w"]);
    assert_eq!(bench.value("volsize", "tank/w"), (16 << 20).to_string());
    assert_eq!(bench.value("volsize", "tank/v"), (8 << 20).to_string());
    bench.refused(&[
        "zfs",
        "clone",
        "-o",
        "volsize=1T",
        "-o",
        "refreservation=1T",
        "tank/v@one",
        "tank/no",
    ]);
    let names = bench.cenote(&["zfs", "list", "-H", "-o", "name", "-r", "tank"]);
    assert_eq!(names, "tank\ntank/a\ntank/b\ntank/v\ntank/w\n");
    // They come along, and are seen at once.
    bench.cenote(&["zfs", "snapshot", "tank/b@two"]);
    bench.received(&["tank/got"], &bench.stream(&["tank/b@two"]));
    assert_eq!(bench.value("userquota@7", "tank/got"), "3145728");
    // Nobody named is the user 0, as in OpenZFS.
    assert_eq!(bench.value("userused@", "tank/b"), bench.value("userused@0", "tank/b"));
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
}
