//! What commands leave mounted, which directories they leave, and what they say.
//!
//! Recorded from OpenZFS 2.1.11 in a virtual machine; invariant: as in `super`.

use std::fs;

use super::Bench;

impl Bench {
    fn refusal(&self, command: &str) -> String {
        let words: Vec<&str> = command.split(' ').collect();
        let output = self.output(&words);
        assert!(!output.status.success(), "{command}");
        String::from_utf8_lossy(&output.stderr).trim_end().to_owned()
    }

    fn orders(&self, commands: &[&str]) {
        for command in commands {
            self.cenote(&command.split(' ').collect::<Vec<_>>());
        }
    }

    fn is_mounted(&self, dataset: &str) -> bool {
        self.cenote(&["zfs", "get", "-H", "-o", "value", "mounted", dataset]) == "yes\n"
    }
}

#[test]
fn mounts_follow_only_what_concerns_them() {
    let Some((bench, devices)) = Bench::mounting(1) else { return };
    bench.create(&[&devices[0]]);
    bench.orders(&[
        "zfs create tank/a",
        "zfs create tank/b",
        "zfs create -o canmount=noauto tank/c",
        "zfs set canmount=noauto tank/a",
    ]);
    assert!(bench.is_mounted("tank/a"));
    bench.orders(&["zfs set canmount=on tank/c"]);
    assert!(!bench.is_mounted("tank/c"));
    bench.orders(&["zfs set canmount=off tank/b"]);
    assert!(!bench.is_mounted("tank/b"));
    bench.orders(&["zfs set canmount=on tank/b", "zfs mount tank/b", "zfs mount tank/c"]);
    // What has a place again is mounted, with all below.
    bench.orders(&[
        "zfs create -o mountpoint=none tank/n",
        "zfs create tank/n/child",
        "zfs create tank/n/child/grandchild",
        "zfs create -o mountpoint=none tank/n/other",
        "zfs create -o canmount=noauto tank/n/hand",
        "zfs inherit mountpoint tank/n",
    ]);
    for (name, mounted) in [
        ("", true),
        ("/child", true),
        ("/child/grandchild", true),
        ("/other", false),
        ("/hand", false),
    ] {
        assert_eq!(bench.is_mounted(&format!("tank/n{name}")), mounted, "{name}");
    }
    // The root would be in use by what stays.
    bench.orders(&["zfs unmount tank", "zfs set canmount=off tank", "zfs mount -a"]);
    bench.orders(&["zfs mount tank/a", "zfs unmount -a"]);
    for (name, mounted) in [("a", true), ("b", false), ("c", false), ("n", false)] {
        assert_eq!(bench.is_mounted(&format!("tank/{name}")), mounted, "{name}");
    }
}

#[test]
fn directories_of_mounts_are_removed_again() {
    let Some((bench, devices)) = Bench::mounting(1) else { return };
    bench.create(&[&devices[0]]);
    bench.orders(&[
        "zfs create -p tank/a/b/c",
        "zfs create tank/d",
        "zfs create -o mountpoint=/chosen tank/e",
    ]);
    let there = |name: &str| fs::exists(bench.at("mnt").join(name)).unwrap();
    bench.orders(&["zfs unmount tank/d"]);
    assert!(there("tank/d"), "unmounting leaves it");
    bench.orders(&["zfs mount tank/d", "zfs rename tank/d tank/f"]);
    assert!(!there("tank/d") && there("tank/f"));
    bench.orders(&["zfs set mountpoint=/elsewhere tank/f"]);
    assert!(!there("tank/f") && there("elsewhere"));
    bench.orders(&["zfs destroy -r tank/a"]);
    assert!(!there("tank/a"));
    // A directory of the parent with something in it stays.
    bench.orders(&["zfs create tank/g", "zfs unmount tank/g"]);
    fs::write(bench.at("mnt/tank/g/file"), "x").unwrap();
    bench.orders(&["zfs destroy tank/g"]);
    assert!(there("tank/g/file"));
    bench.orders(&["zpool export tank"]);
    assert!(!there("tank") && there("chosen") && there("elsewhere"));
    bench.import();
    assert!(there("tank/g/file"));
}

#[test]
fn unmounting_all_goes_on_after_what_is_busy() {
    let Some((bench, devices)) = Bench::mounting(1) else { return };
    bench.create(&[&devices[0]]);
    fs::write(bench.at("key"), [7; 32]).unwrap();
    let key = format!("keylocation=file://{}", bench.at("key").display());
    let root = |name: &str| {
        bench.orders(&[&format!("zfs create -o encryption=on -o keyformat=raw -o {key} {name}")]);
    };
    ["tank/a", "tank/b", "tank/e"].iter().for_each(|name| root(name));
    bench.orders(&["zfs create tank/b/in", "zfs create tank/c"]);
    let busy = fs::File::create(bench.at("mnt/tank/b/in/file")).unwrap();
    let at = |name: &str| bench.at("mnt").join(name).display().to_string();
    let words = |name: &str| format!("cannot unmount '{}': pool or dataset is busy", at(name));
    let all = ["tank/b/in", "tank/b", "tank"].map(words).join("\n");
    assert_eq!(bench.refusal("zfs unmount -a"), all);
    let mounted = |name: &str| bench.is_mounted(name);
    let stay = ["tank", "tank/b", "tank/b/in"];
    assert!(stay.iter().all(|name| mounted(name)));
    assert!(["tank/a", "tank/c", "tank/e"].iter().all(|name| !mounted(name)));
    // Keys go with what was unmounted, and with nothing else.
    bench.orders(&["zfs mount -a"]);
    assert_eq!(bench.refusal("zfs unmount -u -a"), all);
    for (root, status) in
        [("tank/a", "unavailable"), ("tank/b", "available"), ("tank/e", "unavailable")]
    {
        assert_eq!(bench.value("keystatus", root), status, "{root}");
    }
    drop(busy);
    bench.orders(&["zfs unmount -a"]);
    assert!(stay.iter().all(|name| !mounted(name)));
}

#[test]
fn unmounting_unloads_keys_if_nothing_else_needs_them() {
    let Some((bench, devices)) = Bench::mounting(1) else { return };
    bench.create(&[&devices[0]]);
    let key = bench.at("key");
    fs::write(&key, [7; 32]).unwrap();
    let key = format!("keylocation=file://{}", key.display());
    let root = |name: &str| {
        let encrypted = format!("zfs create -o encryption=on -o keyformat=raw -o {key} {name}");
        bench.orders(&[&encrypted]);
    };
    root("tank/e");
    root("tank/e/own");
    bench.orders(&["zfs create tank/e/child"]);
    let status = |name: &str| bench.cenote(&["zfs", "get", "-H", "-o", "value", "keystatus", name]);
    bench.orders(&["zfs unmount -u tank/e/own"]);
    assert_eq!(
        (status("tank/e/own"), status("tank/e")),
        ("unavailable\n".into(), "available\n".into())
    );
    bench.orders(&["zfs mount -l tank/e/own", "zfs unmount -u tank/e"]);
    for name in ["tank/e", "tank/e/own", "tank/e/child"] {
        assert_eq!(status(name), "unavailable\n", "{name}");
    }
    bench.orders(&[
        "zfs mount -l tank/e",
        "zfs mount -l tank/e/own",
        "zfs snapshot tank/e/own@1",
        "zfs clone tank/e/own@1 tank/clone",
    ]);
    assert!(bench.refusal("zfs unmount -u tank/e/own").contains("is busy"));
    assert!(bench.is_mounted("tank/e/own") && status("tank/e/own") == "available\n");
}

#[test]
fn a_removed_file_is_removed_in_every_spelling() {
    let Some((bench, devices)) = Bench::mounting(1) else { return };
    for (options, one, other) in [
        (vec!["-O", "casesensitivity=insensitive"], "ABC", "Abc"),
        (
            vec!["-O", "casesensitivity=mixed", "-O", "normalization=formD"],
            "caf\u{e9}",
            "cafe\u{301}",
        ),
    ] {
        bench.create_with(&options, &[&devices[0]]);
        let at = |name: &str| bench.at("mnt/tank").join(name);
        for _ in 0..3 {
            fs::write(at(one), "one").unwrap();
            assert_eq!(fs::read_to_string(at(other)).unwrap(), "one");
            assert_eq!(fs::read_to_string(at(one)).unwrap(), "one");
            fs::remove_file(at(other)).unwrap();
            assert!(!fs::exists(at(one)).unwrap());
            // What does not exist under one name may be made under another.
            fs::write(at(one), "two").unwrap();
            assert_eq!(fs::read_to_string(at(other)).unwrap(), "two");
            assert_eq!(fs::read_dir(bench.at("mnt/tank")).unwrap().count(), 1);
            fs::rename(at(other), at("elsewhere")).unwrap();
            assert!(!fs::exists(at(one)).unwrap() && !fs::exists(at(other)).unwrap());
            fs::remove_file(at("elsewhere")).unwrap();
        }
        bench.orders(&["zpool destroy tank"]);
    }
}

#[test]
fn allocated_sizes_are_known_right_after_a_sync() {
    use std::os::unix::fs::MetadataExt;
    let Some((bench, devices)) = Bench::mounting(1) else { return };
    bench.create_with(&["-O", "copies=2"], &[&devices[0]]);
    let file = bench.at("mnt/tank/file");
    for round in 1..4 {
        fs::write(&file, super::noise(round << 17, 7)).unwrap();
        fs::metadata(&file).unwrap();
        bench.orders(&["zpool sync tank"]);
        let blocks = fs::metadata(&file).unwrap().blocks() as usize;
        assert!(blocks >= round * 512, "{round}: {blocks} blocks of 512 bytes");
    }
}

#[test]
fn spares_of_pools_that_are_gone_can_be_taken() {
    let Some((bench, devices)) = Bench::mounting(3) else { return };
    bench.create(&[&devices[0], "spare", &devices[1]]);
    let said = bench.refusal(&format!("zpool create -f other {}", devices[1]));
    assert!(said.contains("is reserved as a hot spare for pool tank"), "{said}");
    bench.orders(&["zpool destroy tank"]);
    bench.create(&[&devices[1]]);
    bench.orders(&["zpool destroy tank"]);
    bench.create(&[&devices[0], "cache", &devices[1]]);
    bench.orders(&["zpool destroy tank"]);
    bench.create(&[&devices[1], &devices[0]]);
}

#[test]
fn what_is_so_already_is_no_error() {
    let Some((bench, devices)) = Bench::mounting(1) else { return };
    bench.create(&[&devices[0]]);
    bench.orders(&["zfs create -p tank", "zfs create -p tank/a", "zfs create -p tank/a"]);
    assert!(bench.refusal("zfs create tank").contains("missing dataset name"));
    bench.orders(&["zfs set version=5 tank/a", "zfs set version=current tank/a"]);
    let words = "cannot set property for 'tank/a': Can not downgrade; already at version 5";
    assert_eq!(bench.refusal("zfs set version=4 tank/a"), words);
    bench.orders(&["zfs snapshot tank/a@held", "zfs snapshot tank/a@free"]);
    bench.orders(&["zfs hold tag tank/a@held"]);
    let words = "cannot destroy snapshot tank/a@held: dataset is busy";
    for names in ["held", "held,free", "%"] {
        assert_eq!(bench.refusal(&format!("zfs destroy tank/a@{names}")), words, "{names}");
    }
    for (command, word) in [("--version", "zfs-2."), ("--help", "zpool")] {
        assert!(bench.cenote(&[command]).contains(word), "{command}");
    }
}

#[test]
fn the_pool_boots_from_a_filesystem_or_snapshot() {
    let Some((bench, devices)) = Bench::mounting(1) else { return };
    bench.create(&[&devices[0]]);
    bench.orders(&[
        "zfs create tank/root",
        "zfs create -V 8M tank/vol",
        "zfs snapshot tank/root@s",
    ]);
    let cannot = "cannot set property for 'tank': ";
    for (value, words) in [
        ("tank/vol", "operation not supported on this type of pool"),
        ("tank/none", "no such pool or dataset"),
        ("tank/root@none", "no such pool or dataset"),
        ("other/root", "'other/root' is an invalid name"),
        ("tank/root#b", "'tank/root#b' is an invalid name"),
    ] {
        let said = bench.refusal(&format!("zpool set bootfs={value} tank"));
        assert_eq!(said, format!("{cannot}{words}"));
    }
    let is = |expected: &str| {
        let value = bench.cenote(&["zpool", "get", "-H", "-o", "value", "bootfs", "tank"]);
        assert_eq!(value.trim_end(), expected);
    };
    bench.orders(&["zpool set bootfs=tank/root@s tank"]);
    is("tank/root@s");
    bench.orders(&["zfs rename tank/root tank/r2"]);
    is("tank/r2@s");
    bench.orders(&["zfs destroy tank/r2@s"]);
    is("-");
    bench.orders(&["zpool set bootfs=tank/r2 tank", "zpool export tank"]);
    bench.zdb();
    bench.import();
    is("tank/r2");
    bench.orders(&["zpool set bootfs= tank"]);
    is("-");
    bench.orders(&["zpool set bootfs=tank tank"]);
    is("tank");
}

#[test]
fn where_nothing_could_be_mounted_files_can_be_made() {
    let Some((bench, devices)) = Bench::mounting(1) else { return };
    bench.create(&[&devices[0]]);
    bench.cenote(&["zfs", "create", "-o", "overlay=off", "tank/a"]);
    bench.cenote(&["zfs", "unmount", "tank/a"]);
    std::fs::write(bench.at("mnt/tank/a/first"), "1").unwrap();
    let said = bench.refused(&["zfs", "mount", "tank/a"]);
    assert!(said.contains("directory is not empty"), "{said}");
    std::fs::write(bench.at("mnt/tank/a/second"), "2").unwrap();
}
