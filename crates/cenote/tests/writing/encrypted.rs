//! Encrypted datasets through the program: keys given, changed, refused; a kill after fsync.
//!
//! Invariant: what needs a key is not shown without it, and all of it is there with it.

use rustix::fs::{XattrFlags, getxattr, setxattr};
use std::io::Write;

use super::{Bench, fill, noise};

#[test]
fn encrypted_datasets_keep_their_secrets_and_survive_a_kill() {
    let Some((bench, devices)) = Bench::mounting(2) else { return };
    let key = |name: &str, material: &[u8]| {
        std::fs::write(bench.at(name), material).unwrap();
        format!("keylocation=file://{}", bench.at(name).display())
    };
    let passphrase = key("passphrase", b"a passphrase for tests\n");
    let raw = key("raw", &noise(32, 3));
    bench.create(&["mirror", &devices[0], &devices[1]]);
    bench.cenote(&[
        "zfs",
        "create",
        "-o",
        "encryption=on",
        "-o",
        "keyformat=passphrase",
        "-o",
        "pbkdf2iters=100000",
        "-o",
        &passphrase,
        "tank/secret",
    ]);
    bench.cenote(&["zfs", "create", "-o", "encryption=aes-192-ccm", "tank/secret/below"]);
    let (top, below) = (bench.at("mnt/tank/secret"), bench.at("mnt/tank/secret/below"));
    fill(&top);
    fill(&below);
    bench.cenote(&["zfs", "snapshot", "-r", "tank/secret@one"]);
    let refused = bench.output(&["zfs", "unload-key", "tank/secret"]);
    let words = "Key unload error: 'tank/secret' is busy.\n";
    assert_eq!(String::from_utf8_lossy(&refused.stderr), words);
    bench.cenote(&["zfs", "change-key", "-o", "keyformat=raw", "-o", &raw, "tank/secret"]);
    let refused = bench.output(&["zfs", "rename", "tank/secret/below", "tank/below"]);
    let words = "cannot rename 'tank/secret/below': cannot move encrypted child outside of its \
                 encryption root\n";
    assert_eq!(String::from_utf8_lossy(&refused.stderr), words);
    bench.cenote(&["zpool", "sync", "tank"]);
    let before = bench.manifest();
    for (number, directory) in (0..20u32).flat_map(|n| [(n, &top), (n, &below)]) {
        let file = std::fs::File::create(directory.join(format!("late{number}"))).unwrap();
        (&file).write_all(&noise(5000 * number as usize, number)).unwrap();
        file.sync_all().unwrap();
    }
    bench.kill();
    bench.import();
    assert_eq!(std::fs::read_dir(&top).map_or(0, Iterator::count), 0, "mounted without its key");
    let refused = bench.output(&["zfs", "create", "tank/secret/more"]);
    assert!(!refused.status.success());
    bench.cenote(&["zfs", "load-key", "tank/secret"]);
    bench.cenote(&["zfs", "mount", "-a"]);
    for (number, directory) in (0..20u32).flat_map(|n| [(n, &top), (n, &below)]) {
        let path = directory.join(format!("late{number}"));
        let found = std::fs::read(&path).unwrap();
        assert!(found == noise(5000 * number as usize, number), "{} differs", path.display());
        std::fs::remove_file(path).unwrap();
    }
    // The two roots, which come first, were changed since.
    let after = bench.manifest();
    for (now, then) in after.lines().zip(before.lines()).skip(2) {
        assert_eq!(now, then);
    }
    assert_eq!(after.lines().count(), before.lines().count());
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
}

#[test]
fn a_key_that_was_changed_is_that_of_all_below_where_it_is_received() {
    let Some((bench, devices)) = Bench::mounting(1) else { return };
    bench.create(&[&devices[0]]);
    let key = |name: &str, words: &str| {
        std::fs::write(bench.at(name), words).unwrap();
        format!("file://{}", bench.at(name).display())
    };
    let [first, second, third] =
        ["first", "second", "third"].map(|name| key(name, &format!("the {name} passphrase\n")));
    let how = ["-o", "keyformat=passphrase", "-o", "pbkdf2iters=100000", "-o"];
    let with = |location: &str| format!("keylocation={location}");
    let options = [&["zfs", "create", "-o", "encryption=on"], &how[..]].concat();
    bench.cenote(&[&options[..], &[&with(&first), "tank/e"]].concat());
    let names = ["e", "e/below", "e/other", "e/other/deep"];
    for name in names {
        let at = bench.at("mnt/tank").join(name);
        if name != "e" {
            bench.cenote(&["zfs", "create", &format!("tank/{name}")]);
        }
        std::fs::write(at.join("file"), name).unwrap();
    }
    bench.cenote(&["zfs", "snapshot", "-r", "tank/e@one"]);
    bench.received(&["-u", "tank/got"], &bench.stream(&["-Rw", "tank/e@one"]));
    let there = |name: &str| format!("tank/{}", name.replacen('e', "got", 1));
    bench.cenote(&["zfs", "load-key", "-L", &first, "tank/got"]);
    // Here below another root than there.
    bench.cenote(&[&["zfs", "change-key"], &how[..], &[&with(&third), "tank/got/other"]].concat());
    bench.cenote(&["zfs", "change-key", "-o", &with(&second), "tank/e"]);
    bench.cenote(&["zfs", "snapshot", "-r", "tank/e@two"]);
    for name in ["e", "e/below", "e/other/deep"] {
        let since = bench.stream(&["-w", "-i", "@one", &format!("tank/{name}@two")]);
        bench.received(&["-F", "-u", &there(name)], &since);
    }
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
    bench.import();
    bench.cenote(&["zfs", "load-key", "-L", &second, "tank/got"]);
    bench.cenote(&["zfs", "load-key", "-L", &third, "tank/got/other"]);
    bench.cenote(&["zfs", "mount", "-a"]);
    for name in names {
        let at = bench.at("mnt").join(there(name)).join("file");
        assert_eq!(std::fs::read_to_string(&at).unwrap(), name, "{}", at.display());
    }
}

#[test]
fn attributes_stay_where_blocks_that_come_sealed_grow() {
    let Some((bench, devices)) = Bench::mounting(1) else { return };
    bench.create(&[&devices[0]]);
    std::fs::write(bench.at("key"), [7; 32]).unwrap();
    let location = format!("keylocation=file://{}", bench.at("key").display());
    let options = ["-o", "encryption=on", "-o", "keyformat=raw", "-o", &location];
    bench.cenote(&[&["zfs", "create"], &options[..], &["tank/e"]].concat());
    // Of one block, with attributes in a block of their own.
    let value = noise(3000, 1);
    let files = bench.at("mnt/tank/e");
    std::fs::write(files.join("file"), noise(100, 2)).unwrap();
    setxattr(files.join("file"), "user.big", &value, XattrFlags::empty()).unwrap();
    bench.cenote(&["zfs", "snapshot", "tank/e@one"]);
    std::fs::write(files.join("file"), noise(200_000, 3)).unwrap();
    bench.cenote(&["zfs", "snapshot", "tank/e@two"]);
    bench.received(&["-u", "tank/got"], &bench.stream(&["-w", "tank/e@one"]));
    bench.received(&["-u", "tank/got"], &bench.stream(&["-w", "-i", "@one", "tank/e@two"]));
    bench.cenote(&["zfs", "load-key", "-L", &location["keylocation=".len()..], "tank/got"]);
    bench.cenote(&["zfs", "mount", "tank/got"]);
    let file = bench.at("mnt/tank/got/file");
    assert!(std::fs::read(&file).unwrap() == noise(200_000, 3));
    let mut found = vec![0; 4000];
    let len = getxattr(&file, "user.big", &mut found).unwrap();
    assert!(found[..len] == value);
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
}

#[test]
fn what_is_received_may_become_encrypted() {
    let Some((bench, devices)) = Bench::mounting(1) else { return };
    bench.create(&[&devices[0]]);
    std::fs::write(bench.at("key"), [7; 32]).unwrap();
    let location = format!("keylocation=file://{}", bench.at("key").display());
    let how = ["-o", "encryption=on", "-o", "keyformat=raw", "-o", &location];
    let to = |target| [&how[..], &[target]].concat();
    let [full, next] = bench.two_streams();
    let shown = |name: &str| {
        let names = "encryption,keyformat,encryptionroot,keystatus,keylocation";
        let said = bench.cenote(&["zfs", "get", "-H", "-o", "value", names, name]);
        said.lines().collect::<Vec<_>>().join(" ")
    };
    let own = |root: &str| {
        let location = &location["keylocation=".len()..];
        format!("aes-256-gcm raw {root} available {location}")
    };
    bench.received(&to("tank/e"), &full);
    assert_eq!(shown("tank/e"), own("tank/e"));
    bench.received(&["tank/e"], &next);
    let refused = |words: &[&str], stream: &[u8], what: &str, reason: &str| {
        let output = bench.receive(words, stream);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(said.trim_end(), format!("cannot receive {what} stream: {reason}"), "{words:?}");
    };
    let (new, more) = ("new filesystem", "incremental");
    let set = "encryption property 'encryption' cannot be set";
    bench.cenote(&["zfs", "rollback", "-r", "tank/e@one"]);
    refused(&to("tank/e"), &next, more, &format!("{set} for incremental streams."));
    bench.received(&["tank/e"], &next);
    let raw = bench.stream(&["-w", "tank/e@two"]);
    refused(&to("tank/f"), &raw, new, &format!("{set} or excluded for raw streams."));
    let no_format = "Keyformat required for new encryption root.";
    refused(&["-o", "encryption=on", "tank/f"], &full, new, no_format);
    let typed = "Cannot use 'prompt' keylocation because stdin is in use.";
    refused(&["-o", "encryption=on", "-o", "keyformat=passphrase", "tank/f"], &full, new, typed);

    // Below what is encrypted the key is that of the place, also for all of a package.
    bench.received(&["-o", "encryption=on", "tank/e/below"], &full);
    assert!(shown("tank/e/below").starts_with("aes-256-gcm raw tank/e available"));
    bench.cenote(&["zfs", "create", "tank/a/b"]);
    std::fs::write(bench.at("mnt/tank/a/b/file"), noise(200_000, 5)).unwrap();
    bench.cenote(&["zfs", "snapshot", "-r", "tank/a@three"]);
    bench.received(&to("tank/p"), &bench.stream(&["-R", "tank/a@three"]));
    assert_eq!(shown("tank/p"), own("tank/p"));
    assert!(shown("tank/p/b").starts_with("aes-256-gcm raw tank/p available"));

    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
    bench.import();
    assert!(shown("tank/e").contains(" unavailable "));
    bench.cenote(&["zfs", "load-key", "-a"]);
    bench.cenote(&["zfs", "mount", "-a"]);
    let files =
        [("e", 500_000, 2), ("e/below", 300_000, 1), ("p", 500_000, 2), ("p/b", 200_000, 5)];
    for (name, size, seed) in files {
        let found = std::fs::read(bench.at("mnt/tank").join(name).join("file")).unwrap();
        assert!(found == noise(size, seed), "{name}");
    }
    bench.cenote(&["zpool", "destroy", "tank"]);
}

/// What OpenZFS 2.1.11 leaves after the same packages.
#[test]
fn what_is_received_raw_has_the_encryption_roots_of_its_source() {
    let Some((bench, devices)) = Bench::mounting(1) else { return };
    bench.create(&[&devices[0]]);
    std::fs::write(bench.at("key"), [7; 32]).unwrap();
    std::fs::write(bench.at("other"), [8; 32]).unwrap();
    let location = |name: &str| format!("keylocation=file://{}", bench.at(name).display());
    let (key, other) = (location("key"), location("other"));
    let own = ["-o", "encryption=on", "-o", "keyformat=raw", "-o", &key];
    let create =
        |more: &[&str], name: &str| bench.cenote(&[&["zfs", "create"], more, &[name]].concat());
    create(&own, "tank/e");
    create(&own, "tank/e/own");
    for (name, seed) in [("c1", 1), ("c2", 2)] {
        create(&[], &format!("tank/e/{name}"));
        std::fs::write(bench.at("mnt/tank/e").join(name).join("file"), noise(200_000, seed))
            .unwrap();
    }
    let snapshot = |name: &str| bench.cenote(&["zfs", "snapshot", "-r", &format!("tank/e@{name}")]);
    let roots = || {
        let get = [
            "zfs",
            "get",
            "-H",
            "-r",
            "-t",
            "filesystem",
            "-o",
            "name,value",
            "encryptionroot",
            "tank/got",
        ];
        let said = bench.cenote(&get);
        said.lines()
            .map(|line| line.replace("tank/got", "").replace('\t', " of /"))
            .collect::<Vec<_>>()
    };
    let equal = |names: [&str; 2]| {
        bench.cenote(&["zfs", "mount", "-a"]);
        for (name, seed) in names.into_iter().zip([1, 2]) {
            let file = bench.at("mnt/tank/got").join(name).join("file");
            assert!(std::fs::read(file).unwrap() == noise(200_000, seed), "{name}");
        }
    };
    snapshot("1");
    bench.received(&["-u", "tank/got"], &bench.stream(&["-Rw", "tank/e@1"]));
    assert_eq!(roots(), [" of /", "/c1 of /", "/c2 of /", "/own of //own"]);
    let place = |of: &str| bench.value("keylocation", of);
    assert_eq!(
        (place("tank/got/c1"), place("tank/got")),
        ("none".into(), key["keylocation=".len()..].into())
    );
    bench.cenote(&["zfs", "load-key", "-r", "tank/got"]);
    assert_eq!(bench.value("keystatus", "tank/got/c1"), "available");
    equal(["c1", "c2"]);
    // One moves below another of the same root, in use as it is.
    bench.cenote(&["zfs", "rename", "tank/e/c2", "tank/e/c1/c2"]);
    create(&[], "tank/e/new");
    snapshot("2");
    bench.received(&["-F", "tank/got"], &bench.stream(&["-Rw", "-i", "@1", "tank/e@2"]));
    assert_eq!(roots(), [" of /", "/c1 of /", "/c1/c2 of /", "/new of /", "/own of //own"]);
    equal(["c1", "c1/c2"]);
    // One becomes a root with another key, one is no root any more, one moves out of the way of both.
    bench.cenote(&["zfs", "change-key", "-o", "keyformat=raw", "-o", &other, "tank/e/c1"]);
    bench.cenote(&["zfs", "change-key", "-i", "tank/e/own"]);
    bench.cenote(&["zfs", "rename", "tank/e/new", "tank/e/own/new"]);
    snapshot("3");
    bench.received(&["-F", "-u", "tank/got"], &bench.stream(&["-Rw", "-I", "@2", "tank/e@3"]));
    assert_eq!(roots(), [" of /", "/c1 of //c1", "/c1/c2 of //c1", "/own of /", "/own/new of /"]);
    assert_eq!(place("tank/got/c1"), other["keylocation=".len()..]);
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
    bench.import();
    bench.cenote(&["zfs", "load-key", "-a"]);
    for name in ["tank/got", "tank/got/c1", "tank/got/c1/c2", "tank/got/own", "tank/got/own/new"] {
        assert_eq!(bench.value("keystatus", name), "available", "{name}");
    }
    equal(["c1", "c1/c2"]);
    bench.cenote(&["zpool", "destroy", "tank"]);
}
