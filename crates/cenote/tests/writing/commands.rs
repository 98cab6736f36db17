//! Commands on pools in use: devices that leave, names for a while, mounts over mounts, projects.

use std::process::Command;

use super::{Bench, noise};

#[test]
fn logs_spares_and_cache_devices_leave_the_pool() {
    let Some((bench, d)) = Bench::mounting(6) else { return };
    bench.create(&[&d[0], "log", "mirror", &d[1], &d[2], "cache", &d[3], "spare", &d[4]]);
    bench.cenote(&["zfs", "set", "sync=always", "tank"]);
    let write = |name: &str| std::fs::write(bench.at("mnt/tank").join(name), noise(50_000, 1));
    write("before").unwrap();
    let said = bench.refused(&["zpool", "remove", "tank", "nosuch"]);
    assert_eq!(said, "cannot remove nosuch: no such device in pool\n");
    let said = bench.refused(&["zpool", "remove", "tank", &d[0]]);
    assert!(said.ends_with("out of space\n"), "{said}");
    let said = bench.refused(&["zpool", "remove", "tank", &d[1]]);
    assert!(said.ends_with("operation not supported on this type of pool\n"), "{said}");
    let said = bench.refused(&["zpool", "remove", "-s", "tank"]);
    assert_eq!(said, "cannot cancel removal: operation is not in progress\n");
    // The pool process knows where its devices are.
    let guid = bench.cenote(&["zpool", "get", "-Hp", "-o", "value", "guid", "tank"]);
    let shown = bench.cenote(&["zdb", "-C", "tank"]);
    assert!(shown.contains(&format!("pool_guid: {}", guid.trim())), "{shown}");
    let estimate = bench.cenote(&["zpool", "remove", "-n", "tank", "mirror-1"]);
    assert_eq!(estimate, "Memory that will be used after removing mirror-1: 0\n");
    bench.cenote(&["zpool", "remove", "tank", "mirror-1", &d[3], &d[4]]);
    let status = bench.cenote(&["zpool", "status", "tank"]);
    for gone in ["logs", "cache", "spares", "hole"] {
        assert!(!status.contains(gone), "{status}");
    }
    let layout = bench.cenote(&["zpool", "add", "-n", "tank", "log", &d[1]]);
    assert!(layout.contains("logs") && !layout.contains("hole"), "{layout}");
    write("between").unwrap();
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
    bench.import();
    bench.cenote(&["zpool", "add", "tank", "log", &d[1]]);
    write("after").unwrap();
    let status = bench.cenote(&["zpool", "status", "tank"]);
    assert!(status.contains("logs"), "{status}");
    let history = bench.cenote(&["zpool", "history", "-i", "tank"]);
    assert!(history.contains("vdev remove"), "{history}");
    assert!(history.contains("zpool remove tank mirror-1"), "{history}");
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
}

/// For filesystems, volumes, clones and what is renamed, and where the name is taken already.
#[test]
fn parents_are_made_with_what_lies_below_them() {
    let Some((bench, d)) = Bench::mounting(1) else { return };
    bench.create(&[&d[0]]);
    let said = bench.refused(&["zfs", "unmount", "tank/a"]);
    assert_eq!(said, "cannot open 'tank/a': dataset does not exist\n");
    bench.cenote(&["zfs", "create", "-p", "tank/a/b/c"]);
    bench.cenote(&["zfs", "create", "-p", "tank/a/b/c"]);
    std::fs::write(bench.at("mnt/tank/a/b/c/file"), noise(50_000, 1)).unwrap();
    bench.cenote(&["zfs", "create", "-p", "-V", "10M", "tank/v/w/volume"]);
    bench.cenote(&["zfs", "snapshot", "tank/a/b/c@s"]);
    bench.cenote(&["zfs", "clone", "-p", "tank/a/b/c@s", "tank/k/l/clone"]);
    assert!(bench.at("mnt/tank/k/l/clone/file").exists());
    bench.cenote(&["zfs", "rename", "-p", "tank/a/b/c", "tank/m/n/c"]);
    assert!(bench.at("mnt/tank/m/n/c/file").exists());
    let said = bench.refused(&["zfs", "create", "-p", "-o", "reservation=1P", "tank/x/y"]);
    assert_eq!(said, "cannot create 'tank/x/y': out of space\n");
    let said = bench.refused(&["zfs", "create", "-p", "tank/v/w/volume/x/y"]);
    assert_eq!(said, "cannot create 'tank/v/w/volume/x/y': parent is not a filesystem\n");
    let names = bench.cenote(&["zfs", "list", "-H", "-o", "name", "-r", "tank"]);
    assert!(!names.contains("tank/x"), "{names}");
    // One group and one line for each.
    let history = bench.cenote(&["zpool", "history", "-i", "tank"]);
    for names in [
        &["create tank/a (", "create tank/a/b (", "create tank/a/b/c ("][..],
        &["create tank/v (", "create tank/v/w (", "create tank/v/w/volume ("],
        &["create tank/k (", "create tank/k/l (", "clone tank/k/l/clone ("],
        &["create tank/m (", "create tank/m/n (", "rename tank/a/b/c ("],
    ] {
        let line = |name: &&str| history.lines().find(|line| line.contains(*name)).unwrap();
        let group = |line: &str| line.split(['[', ']']).nth(1).unwrap().to_owned();
        let groups: Vec<String> = names.iter().map(|name| group(line(name))).collect();
        assert!(groups.iter().all(|one| *one == groups[0]), "{groups:?}\n{history}");
    }
    assert_eq!(history.matches("zfs rename -p tank/a/b/c tank/m/n/c").count(), 1, "{history}");
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
}

#[test]
fn names_for_a_while_are_not_kept() {
    let Some((bench, _)) = Bench::mounting(1) else { return };
    let (device, mnt) = (bench.devices(1).remove(0), bench.at("mnt").display().to_string());
    let place = bench.at("d").display().to_string();
    bench.cenote(&["zpool", "create", "-R", &mnt, "-t", "for-now", "tank", &device]);
    assert_eq!(bench.cenote(&["zfs", "list", "-H", "-o", "name"]), "for-now\n");
    bench.cenote(&["zpool", "export", "for-now"]);
    assert!(bench.cenote(&["zpool", "import", "-d", &place]).contains("pool: tank\n"));
    for (new, problem) in [
        ("mirror", "name is reserved"),
        ("raidz2x", "name is reserved"),
        ("1st", "name must begin with a letter"),
        ("a%b", "invalid character '%' in pool name"),
    ] {
        let said = bench.refused(&["zpool", "import", "-d", &place, "tank", new]);
        assert_eq!(said, format!("cannot import '{new}': {problem}\n"));
    }
    bench.cenote(&["zpool", "import", "-d", &place, "-R", &mnt, "-t", "tank", "other"]);
    bench.cenote(&["zfs", "create", "other/a"]);
    bench.cenote(&["zpool", "reguid", "-g", "1234567890123", "other"]);
    bench.cenote(&["zpool", "export", "other"]);
    bench.zdb();
    let list = bench.cenote(&["zpool", "import", "-d", &place]);
    assert!(list.contains("pool: tank\n") && list.contains("id: 1234567890123\n"), "{list}");
    bench.cenote(&["zpool", "import", "-d", &place, "-R", &mnt, "-o", "comment=hi", "tank"]);
    let value = bench.cenote(&["zpool", "get", "-H", "-o", "value", "comment,guid", "tank"]);
    assert_eq!(value, "hi\n1234567890123\n");
    assert_eq!(bench.cenote(&["zfs", "list", "-H", "-o", "name"]), "tank\ntank/a\n");
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
}

#[test]
fn mounts_in_use_may_be_mounted_over() {
    let Some((bench, _)) = Bench::mounting(1) else { return };
    bench.create(&[&bench.devices(1)[0]]);
    for name in ["tank/a", "tank/a/b"] {
        bench.cenote(&["zfs", "create", name]);
    }
    std::fs::write(bench.at("mnt/tank/a/b/inner"), "x").unwrap();
    let open = std::fs::File::open(bench.at("mnt/tank/a/b/inner")).unwrap();
    bench.cenote(&["zfs", "create", "-o", "mountpoint=/tank/a", "tank/over"]);
    assert!(!bench.at("mnt/tank/a/b/inner").exists());
    std::fs::write(bench.at("mnt/tank/a/outer"), "y").unwrap();
    assert_eq!(bench.value("mounted", "tank/a/b"), "yes");
    let said = bench.refused(&["zfs", "unmount", "tank/a/b"]);
    assert!(said.contains("unmount failed"), "{said}");
    bench.cenote(&["zfs", "unmount", "tank/over"]);
    assert!(bench.at("mnt/tank/a/b/inner").exists());
    bench.cenote(&["zfs", "mount", "tank/over"]);
    assert!(bench.at("mnt/tank/a/outer").exists());
    drop(open);
    bench.cenote(&["zpool", "export", "tank"]);
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains(&bench.at("mnt").display().to_string()), "{mounts}");
    bench.zdb();
}

#[test]
fn files_belong_to_projects() {
    let Some((bench, _)) = Bench::mounting(1) else { return };
    bench.create(&[&bench.devices(1)[0]]);
    let at = |name: &str| bench.at("mnt/tank").join(name).display().to_string();
    std::fs::create_dir_all(at("d/e")).unwrap();
    std::fs::write(at("d/f"), noise(200_000, 3)).unwrap();
    assert_eq!(bench.cenote(&["zfs", "project", "-d", &at("d")]), format!("    0 - {}\n", at("d")));
    bench.cenote(&["zfs", "project", "-p", "7", "-r", "-s", &at("d")]);
    std::fs::write(at("d/e/new"), noise(300_000, 4)).unwrap();
    assert_eq!(
        bench.cenote(&["zfs", "project", &at("d/e/new")]),
        format!("    7 P {}\n", at("d/e/new"))
    );
    assert_eq!(bench.cenote(&["zfs", "project", "-c", "-r", &at("d")]), "");
    bench.cenote(&["zfs", "project", "-C", &at("d/f")]);
    let said = bench.cenote(&["zfs", "project", "-c", &at("d")]);
    let f = at("d/f");
    assert_eq!(
        said,
        format!(
            "{f} - project ID is not set properly (0/7)\n{f} - project inherit flag is not set\n"
        )
    );
    bench.cenote(&["zpool", "sync", "tank"]);
    let used = bench.cenote(&["zfs", "projectspace", "-Hp", "-o", "name,used,objused", "tank"]);
    let of_seven = used.lines().find(|line| line.starts_with("7\t")).unwrap_or_default();
    assert!(of_seven.ends_with("\t3"), "{used}");
    // A move out of the tree is refused, as if it were another filesystem: mv copies.
    assert!(std::fs::rename(at("d/f"), at("d/e/f")).is_err());
    let lsattr = Command::new("lsattr").args(["-p", "-d", &at("d")]).output();
    if let Ok(output) = lsattr {
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(text.trim_start().starts_with('7') && text.contains('P'), "{text}");
    }
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
}

#[test]
fn orders_given_at_once_are_all_done() {
    let Some((bench, _)) = Bench::mounting(1) else { return };
    bench.create(&[&bench.devices(1)[0]]);
    bench.cenote(&["zfs", "create", "tank/a"]);
    let at_once = |orders: Vec<Vec<String>>| {
        std::thread::scope(|scope| {
            for order in &orders {
                let words: Vec<&str> = order.iter().map(String::as_str).collect();
                let bench = &bench;
                scope.spawn(move || bench.cenote(&words));
            }
        });
    };
    let words = |line: String| line.split(' ').map(str::to_owned).collect::<Vec<String>>();
    let orders = (0..24).map(|n| {
        words(match n % 4 {
            0 => format!("zfs create -p tank/deep/d{}/n{n}", n % 3),
            1 => format!("zfs create tank/n{n}"),
            2 => format!("zfs set test:n{n}=x readonly=off tank/a"),
            _ => format!("zfs snapshot tank@s{n} tank/a@s{n}"),
        })
    });
    at_once(orders.collect());
    for n in 0..24 {
        match n % 4 {
            0 => assert!(bench.at(&format!("mnt/tank/deep/d{}/n{n}", n % 3)).exists()),
            1 => assert_eq!(bench.value("mounted", &format!("tank/n{n}")), "yes"),
            2 => assert_eq!(bench.value(&format!("test:n{n}"), "tank/a"), "x"),
            _ => assert_eq!(bench.value("type", &format!("tank/a@s{n}")), "snapshot"),
        }
    }
    let orders = (0..24).map(|n| {
        words(match n % 4 {
            0 => format!("zfs rename tank/deep/d{}/n{n} tank/r{n}", n % 3),
            1 => format!("zfs destroy tank/n{n}"),
            2 => format!("zfs inherit test:n{n} tank/a"),
            _ => format!("zfs destroy tank@s{n}"),
        })
    });
    at_once(orders.collect());
    let left = bench.cenote(&["zfs", "list", "-H", "-o", "name", "-t", "filesystem"]);
    assert_eq!(left.lines().count(), 2 + 4 + 6, "{left}");
    assert_eq!(
        bench.cenote(&["zfs", "get", "-H", "-s", "local", "all", "tank/a"]).lines().count(),
        1
    );
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
}

#[test]
fn what_is_no_device_is_refused_by_its_name() {
    let bench = Bench::new(1);
    let directory = bench.at("d").display().to_string();
    let refused = |word: &str| bench.refused(&["zpool", "create", "tank", word]);
    let words = "must be a block device or regular file";
    assert_eq!(refused(&directory), format!("cannot use '{directory}': {words}\n"));
    assert_eq!(refused("/d/nope"), "cannot resolve path '/d/nope'\n");
    let words = "no such device in /dev\nmust be a full path or shorthand device name\n";
    for word in ["no-such-disk", "./d0", "../dev/null"] {
        assert_eq!(refused(word), format!("cannot open '{word}': {words}"));
    }
}

#[test]
fn a_rollback_that_is_refused_destroys_nothing() {
    let Some((bench, devices)) = Bench::mounting(1) else { return };
    bench.create(&[&devices[0]]);
    bench.cenote(&["zfs", "create", "tank/a"]);
    let file = bench.at("mnt/tank/a/file");
    std::fs::write(&file, "one").unwrap();
    bench.cenote(&["zfs", "snapshot", "tank/a@one"]);
    std::fs::write(&file, "two").unwrap();
    bench.cenote(&["zfs", "snapshot", "tank/a@two"]);
    bench.cenote(&["zfs", "clone", "tank/a@two", "tank/c"]);
    let before = bench.names();
    // The dataset itself may be in use, what is to be destroyed may not.
    let own = std::fs::File::open(&file).unwrap();
    let open = std::fs::File::open(bench.at("mnt/tank/c/file")).unwrap();
    let said = bench.refused(&["zfs", "rollback", "-R", "tank/a@one"]);
    assert!(said.contains("busy"), "{said}");
    assert_eq!(bench.names(), before);
    assert_eq!(std::fs::read(bench.at("mnt/tank/c/file")).unwrap(), b"two");
    assert_eq!(std::fs::read(&file).unwrap(), b"two");
    drop(open);
    bench.cenote(&["zfs", "hold", "tag", "tank/a@two"]);
    let said = bench.refused(&["zfs", "rollback", "-R", "tank/a@one"]);
    assert_eq!(said, "cannot destroy 'tank/a@two': dataset is busy\n");
    assert_eq!(bench.names(), before);
    bench.cenote(&["zfs", "release", "tag", "tank/a@two"]);
    bench.cenote(&["zfs", "rollback", "-R", "tank/a@one"]);
    assert_eq!(bench.names(), "tank\ntank/a\ntank/a@one\n");
    assert_eq!(std::fs::read(&file).unwrap(), b"one");
    assert_eq!(std::io::read_to_string(own).unwrap(), "one");
    // The one that is held is named, and all is as before.
    bench.cenote(&["zfs", "hold", "tag", "tank/a@one"]);
    let said = bench.refused(&["zfs", "destroy", "-r", "tank/a"]);
    assert_eq!(said, "cannot destroy snapshot tank/a@one: dataset is busy\n");
    assert_eq!(std::fs::read(&file).unwrap(), b"one");
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
}

#[test]
fn snapshots_are_held_and_released_one_by_one() {
    let Some((bench, devices)) = Bench::mounting(1) else { return };
    bench.create(&[&devices[0]]);
    bench.cenote(&["zfs", "create", "-p", "tank/a/b"]);
    let all = ["tank/a@1", "tank/a@2", "tank/a@3"];
    for name in ["tank/a/b@1"].iter().chain(&all) {
        bench.cenote(&["zfs", "snapshot", name]);
    }
    let held =
        || bench.cenote(&[&["zfs", "get", "-H", "-o", "value", "userrefs"], &all[..]].concat());
    bench.cenote(&["zfs", "hold", "tag", "tank/a@2"]);
    let said = bench.refused(&[&["zfs", "hold", "tag"], &all[..]].concat());
    let words = "cannot hold snapshot 'tank/a@2': tag already exists on this dataset\n";
    assert_eq!((said.as_str(), held().as_str()), (words, "1\n1\n1\n"));
    bench.cenote(&["zfs", "release", "tag", "tank/a@2"]);
    let said = bench.refused(&[&["zfs", "release", "tag"], &all[..]].concat());
    let none = |name: &str| {
        format!("cannot release hold from snapshot '{name}': no such tag on this dataset\n")
    };
    assert_eq!((said, held().as_str()), (none("tank/a@2"), "0\n0\n0\n"));
    // With what is below, one that has the tag is enough.
    bench.cenote(&["zfs", "hold", "tag", "tank/a/b@1"]);
    let said = bench.refused(&["zfs", "hold", "-r", "tag", "tank/a@1"]);
    assert_eq!(
        (said.as_str(), held().as_str()),
        (words.replace("a@2", "a/b@1").as_str(), "0\n0\n0\n")
    );
    bench.cenote(&["zfs", "release", "-r", "tag", "tank/a@1"]);
    assert_eq!(bench.value("userrefs", "tank/a/b@1"), "0");
    assert_eq!(bench.refused(&["zfs", "release", "-r", "tag", "tank/a@1"]), none("tank/a@1"));
}
