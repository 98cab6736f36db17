//! What users may do to whom `zfs allow` gave permissions, and what they may not.
//!
//! Needs root, to be somebody else, and `setpriv`; else skipped with the reason.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::process::{Command, Output};

use super::Bench;

/// Somebody who has nothing here but what he is given.
pub(crate) const ALICE: u32 = 4321;
/// One of her groups.
const GROUP: u32 = 4400;
const BOB: u32 = 4322;

/// A pool with a home of Alice's.
pub(crate) fn home() -> Option<Bench> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: needs root");
        return None;
    }
    if Command::new("setpriv").arg("--version").output().is_err() {
        eprintln!("skipped: setpriv is not installed");
        return None;
    }
    let (bench, devices) = Bench::mounting(1)?;
    fs::set_permissions(bench.directory.path(), PermissionsExt::from_mode(0o755)).unwrap();
    bench.create(&[&devices[0]]);
    bench.cenote(&["zfs", "create", "-p", "tank/home/alice"]);
    chown(bench.at("mnt/tank/home/alice"), Some(ALICE), None).unwrap();
    Some(bench)
}

impl Bench {
    fn output_as(&self, user: u32, arguments: &[&str]) -> Output {
        let known = self.command(arguments);
        let mut command = Command::new("setpriv");
        let user = user.to_string();
        command.args(["--reuid", &user, "--regid", &user, "--groups", &GROUP.to_string()]);
        command.arg("--").arg(known.get_program()).args(known.get_args());
        for (name, value) in known.get_envs() {
            command.env(name, value.unwrap_or_default());
        }
        command.output().unwrap()
    }

    /// Whether a stream was received, and what was said.
    fn receive_as(&self, user: u32, arguments: &[&str], stream: &[u8]) -> (bool, String) {
        let known = self.command(&[&["zfs", "receive"], arguments].concat());
        let mut command = Command::new("setpriv");
        let user = user.to_string();
        command.args(["--reuid", &user, "--regid", &user, "--clear-groups", "--"]);
        command.arg(known.get_program()).args(known.get_args());
        for (name, value) in known.get_envs() {
            command.env(name, value.unwrap_or_default());
        }
        fs::write(self.at("stream"), stream).unwrap();
        let output = command.stdin(fs::File::open(self.at("stream")).unwrap()).output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    }

    pub(crate) fn as_alice(&self, arguments: &[&str]) -> String {
        let output = self.output_as(ALICE, arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {said}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    pub(crate) fn denied_to(&self, user: u32, arguments: &[&str]) -> String {
        let output = self.output_as(user, arguments);
        assert!(!output.status.success(), "{arguments:?} was not denied");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    /// Words, and that nothing else is said.
    fn denied(&self, arguments: &[&str], words: &str) {
        assert_eq!(self.denied_to(ALICE, arguments), format!("{words}: permission denied\n"));
    }
}

#[test]
fn orders_are_denied_until_they_are_allowed() {
    let Some(bench) = home() else { return };
    let (fs, alice) = ("tank/home/alice", ALICE.to_string());
    bench.cenote(&["zfs", "snapshot", "tank/home/alice@old"]);
    // Looking is open to all.
    assert!(bench.as_alice(&["zfs", "list", "-H", "-o", "name", fs]).contains(fs));
    let deny = |bench: &Bench| {
        bench.denied(&["zfs", "snapshot", "tank/home/alice@a"], "cannot create snapshots ");
        bench.denied(&["zfs", "destroy", "tank/home/alice@old"], "cannot destroy snapshots");
        bench.denied(
            &["zfs", "set", "compression=off", fs],
            "cannot set property for 'tank/home/alice'",
        );
        bench.denied(&["zfs", "hold", "tag", "tank/home/alice@old"], "cannot hold");
        bench.denied(&["zfs", "create", "tank/home/alice/x"], "cannot create 'tank/home/alice/x'");
        bench.denied(
            &["zfs", "rollback", "tank/home/alice@old"],
            "cannot rollback 'tank/home/alice'",
        );
        bench.denied(&["zfs", "unmount", fs], "cannot unmount 'tank/home/alice'");
        let said = bench.denied_to(ALICE, &["zfs", "mount", fs]);
        assert_eq!(said, "cannot mount 'tank/home/alice': Insufficient privileges\n");
        let said = bench.denied_to(ALICE, &["zfs", "diff", "tank/home/alice@old"]);
        assert!(said.starts_with("The diff delegated permission is needed in order\n"), "{said}");
        bench.denied(
            &["zfs", "bookmark", "tank/home/alice@old", "tank/home/alice#b"],
            "cannot create bookmark 'tank/home/alice#b'",
        );
        bench.denied(
            &["zfs", "send", "tank/home/alice@old"],
            "warning: cannot send 'tank/home/alice@old'",
        );
        bench.denied(
            &["zfs", "allow", "-u", &alice, "mount", fs],
            "cannot set permissions on 'tank/home/alice'",
        );
    };
    deny(&bench);
    let all =
        "snapshot,destroy,compression,hold,release,create,rollback,mount,bookmark,send,allow,diff";
    bench.cenote(&["zfs", "allow", "-u", &alice, all, fs]);
    bench.cenote(&["zpool", "set", "delegation=off", "tank"]);
    deny(&bench);
    bench.cenote(&["zpool", "set", "delegation=on", "tank"]);
    bench.as_alice(&["zfs", "snapshot", "-r", "tank/home/alice@a"]);
    bench.as_alice(&["zfs", "set", "compression=off", fs]);
    bench.as_alice(&["zfs", "hold", "tag", "tank/home/alice@old"]);
    bench.as_alice(&["zfs", "release", "tag", "tank/home/alice@old"]);
    bench.as_alice(&["zfs", "rollback", "-r", "tank/home/alice@old"]);
    bench.as_alice(&["zfs", "bookmark", "tank/home/alice@old", "tank/home/alice#b"]);
    // Waiting is everybody's, redacting nobody's but root's.
    bench.as_alice(&["zfs", "wait", "tank/home"]);
    let redacts = ["zfs", "redact", "tank/home/alice@old", "redacted", "tank/home/alice@old"];
    let said = bench.output_as(ALICE, &redacts);
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.contains("permission denied"), "{said}");
    bench.as_alice(&["zfs", "destroy", "tank/home/alice#b"]);
    bench.as_alice(&["zfs", "send", "tank/home/alice@old"]);
    bench.as_alice(&["zfs", "diff", "tank/home/alice@old"]);
    bench.as_alice(&["zfs", "destroy", "tank/home/alice@old"]);
    // Here only, and she only; and nothing about the pool.
    for denied in [
        &["zfs", "snapshot", "tank/home@no"][..],
        &["zfs", "rename", fs, "tank/home/other"],
        &["zfs", "set", "atime=off", fs],
        &["zpool", "scrub", "tank"],
        &["zpool", "export", "tank"],
        &["zpool", "set", "comment=x", "tank"],
    ] {
        let said = bench.denied_to(ALICE, denied);
        assert!(said.ends_with("permission denied\n"), "{denied:?}: {said}");
    }
    assert!(bench.denied_to(BOB, &["zfs", "snapshot", "tank/home/alice@no"]).contains("denied"));
    let history = bench.cenote(&["zpool", "history", "-l", "tank"]);
    assert!(
        history
            .contains(&format!("zfs bookmark tank/home/alice@old tank/home/alice#b [user {ALICE}")),
        "{history}"
    );
    // What she has she may hand on, but no right to hand on, and nothing else.
    let bob = BOB.to_string();
    bench.as_alice(&["zfs", "allow", "-u", &bob, "snapshot", fs]);
    let output = bench.output_as(BOB, &["zfs", "snapshot", "tank/home/alice@bob"]);
    assert!(output.status.success());
    let words = "cannot set permissions on 'tank/home/alice'";
    bench.denied(&["zfs", "allow", "-u", &bob, "allow", fs], words);
    bench.denied(&["zfs", "allow", "-u", &bob, "atime", fs], words);
    bench.denied(&["zfs", "unallow", "-u", &bob, "snapshot", fs], words);
    bench.denied(&["zfs", "allow", "-u", &bob, "@set", fs], words);
    bench.as_alice(&["zfs", "unallow", "-u", &alice, "hold", fs]);
    bench.denied(&["zfs", "hold", "tag", "tank/home/alice@bob"], "cannot hold");
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
}

#[test]
fn groups_sets_creators_and_where() {
    let Some(bench) = home() else { return };
    let (fs, alice, group) = ("tank/home/alice", ALICE.to_string(), GROUP.to_string());
    // Below, by a group: not on itself.
    bench.cenote(&["zfs", "allow", "-d", "-g", &group, "snapshot", fs]);
    bench.denied(&["zfs", "snapshot", "tank/home/alice@a"], "cannot create snapshots ");
    bench.cenote(&["zfs", "create", "tank/home/alice/by-root"]);
    bench.as_alice(&["zfs", "snapshot", "tank/home/alice/by-root@a"]);
    // Everyone, here only; a snapshot is below.
    bench.cenote(&["zfs", "allow", "-l", "-e", "destroy,mount", fs]);
    bench.denied(&["zfs", "destroy", "tank/home/alice/by-root@a"], "cannot destroy snapshots");
    // A set, defined above where it is given; what it gets later counts at once.
    bench.cenote(&["zfs", "allow", "-s", "@some", "create,mount", "tank"]);
    bench.cenote(&["zfs", "allow", "-u", &alice, "@some", fs]);
    bench.as_alice(&["zfs", "create", "tank/home/alice/x"]);
    bench.denied(
        &["zfs", "set", "quota=10M", "tank/home/alice/x"],
        "cannot set property for 'tank/home/alice/x'",
    );
    bench.cenote(&["zfs", "allow", "-s", "@some", "quota", "tank"]);
    bench.as_alice(&["zfs", "set", "quota=10M", "tank/home/alice/x"]);
    // What who makes something gets on it; also while he makes it.
    bench.cenote(&["zfs", "allow", "-c", "compression,destroy", "tank/home"]);
    bench.denied(
        &["zfs", "set", "compression=off", "tank/home/alice/x"],
        "cannot set property for 'tank/home/alice/x'",
    );
    bench.as_alice(&["zfs", "create", "-o", "compression=off", "tank/home/alice/y"]);
    bench.denied(
        &["zfs", "create", "-o", "atime=off", "tank/home/alice/z"],
        "cannot create 'tank/home/alice/z'",
    );
    bench.as_alice(&["zfs", "set", "compression=lz4", "tank/home/alice/y"]);
    let said = bench.cenote(&["zfs", "allow", "tank/home/alice/y"]);
    assert!(said.contains("Local permissions:") && said.contains("compression,destroy"), "{said}");
    bench.as_alice(&["zfs", "destroy", "tank/home/alice/y"]);
    bench.denied(&["zfs", "destroy", "tank/home/alice/x"], "cannot destroy 'tank/home/alice/x'");
}

#[test]
fn what_a_user_makes_is_his_and_mounted_only_where_he_may() {
    let Some(bench) = home() else { return };
    let (fs, alice) = ("tank/home/alice", ALICE.to_string());
    let all = "create,mount,destroy,mountpoint,rename,canmount,receive,send,snapshot,setuid";
    bench.cenote(&["zfs", "allow", "-u", &alice, all, fs]);
    bench.as_alice(&["zfs", "create", "-p", "tank/home/alice/x/deep"]);
    let place = bench.at("mnt/tank/home/alice/x/deep");
    assert_eq!(fs::metadata(&place).unwrap().uid(), ALICE);
    let line = |at: &std::path::Path| {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let at = at.canonicalize().unwrap().display().to_string();
        mounts.lines().find(|line| line.split(' ').nth(1) == Some(&at)).map(str::to_owned)
    };
    let shown = line(&place).unwrap();
    assert!(shown.contains("nosuid") && shown.contains("nodev"), "{shown}");
    bench.as_alice(&["zfs", "unmount", "tank/home/alice/x/deep"]);
    bench.as_alice(&["zfs", "mount", "-o", "suid,dev", "tank/home/alice/x/deep"]);
    bench.as_alice(&["zfs", "set", "setuid=on", "tank/home/alice/x/deep"]);
    let shown = line(&place).unwrap();
    assert!(shown.contains("nosuid") && shown.contains("nodev"), "{shown}");
    // Over what is not his, nothing is mounted.
    let etc = bench.at("mnt/etc");
    fs::create_dir(&etc).unwrap();
    let target = "mountpoint=/etc";
    let output = bench.output_as(ALICE, &["zfs", "set", target, "tank/home/alice/x/deep"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("permission denied"), "{said}");
    assert_eq!(line(&etc), None);
    let said = bench.denied_to(ALICE, &["zfs", "mount", "tank/home/alice/x/deep"]);
    assert!(said.contains("permission denied: the directory belongs to somebody else"), "{said}");
    bench.as_alice(&["zfs", "rename", "tank/home/alice/x/deep", "tank/home/alice/moved"]);
    assert_eq!(line(&etc), None);
    // What lies above is mounted again where it was, by whomever it was mounted.
    bench.as_alice(&["zfs", "snapshot", "tank/home/alice@s"]);
    let said = bench.denied_to(ALICE, &["zfs", "create", "-o", target, "tank/home/alice/etc"]);
    assert_eq!(said, "filesystem successfully created, but it may only be mounted by root\n");
    // Streams, of which she may not set all.
    bench.cenote(&["zfs", "set", "com.example:x=y", "tank/home/alice/x"]);
    bench.cenote(&["zfs", "snapshot", "tank/home/alice/x@s"]);
    let sent = bench.output_as(ALICE, &["zfs", "send", "-p", "tank/home/alice/x@s"]);
    assert!(sent.status.success());
    let receive = |user: u32, to: &str| bench.receive_as(user, &[to], &sent.stdout);
    let (well, said) = receive(BOB, "tank/home/alice/bob");
    assert!(!well && said.contains("permission denied"), "{said}");
    assert!(!receive(ALICE, "tank/home/other").0);
    let (_, said) = receive(ALICE, "tank/home/alice/again");
    assert!(
        said.contains(
            "cannot receive com.example:x property on tank/home/alice/again: permission denied"
        ),
        "{said}"
    );
    assert_eq!(bench.value("com.example:x", "tank/home/alice/again"), "-");
    assert!(line(&bench.at("mnt/tank/home/alice/again")).is_some());
    bench.as_alice(&["zfs", "destroy", "-r", "tank/home/alice/again"]);
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
}

impl Bench {
    /// What a program of Alice's says that is run without Cenote; an error is what it failed with.
    fn run_as(&self, user: u32, words: &[&str]) -> Result<(), String> {
        let user = user.to_string();
        let output = Command::new("setpriv")
            .args(["--reuid", &user, "--regid", &user, "--clear-groups", "--"])
            .args(words)
            .output()
            .unwrap();
        match output.status.success() {
            true => Ok(()),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    }

    fn snapshots(&self, of: &str) -> Vec<String> {
        let listed = self.cenote(&["zfs", "list", "-H", "-o", "name", "-t", "snapshot", of]);
        listed.lines().map(str::to_owned).collect()
    }
}

#[test]
fn snapshots_are_directories_that_can_be_made_moved_and_removed() {
    let Some(bench) = home() else { return };
    let fs = "tank/home/alice";
    let place = bench.at("mnt/tank/home/alice/.zfs/snapshot");
    let at = |name: &str| place.join(name).to_str().unwrap().to_owned();
    let file = bench.at("mnt/tank/home/alice/file");
    fs::write(&file, "before").unwrap();
    fs::create_dir(at("one")).unwrap();
    fs::write(&file, "after").unwrap();
    assert_eq!(fs::read_to_string(place.join("one/file")).unwrap(), "before");
    assert_eq!(bench.snapshots(fs), ["tank/home/alice@one"]);
    assert_eq!(fs::create_dir(at("one")).unwrap_err().raw_os_error(), Some(17));
    assert_eq!(fs::create_dir(at("a@b")).unwrap_err().raw_os_error(), Some(84));
    assert_eq!(fs::create_dir(place.join("one/x")).unwrap_err().raw_os_error(), Some(30));
    assert!(fs::write(at("plain"), "x").is_err());
    fs::rename(at("one"), at("two")).unwrap();
    assert_eq!(bench.snapshots(fs), ["tank/home/alice@two"]);
    assert_eq!(fs::read_to_string(place.join("two/file")).unwrap(), "before");
    assert!(!place.join("one").exists());
    // Not out of here, and not what is held.
    assert!(fs::rename(at("two"), bench.at("mnt/tank/home/alice/two")).is_err());
    bench.cenote(&["zfs", "hold", "kept", "tank/home/alice@two"]);
    assert_eq!(fs::remove_dir(at("two")).unwrap_err().raw_os_error(), Some(16));
    bench.cenote(&["zfs", "release", "kept", "tank/home/alice@two"]);
    // Who may not, may not; each needs what the order needs.
    let refused = |words: &[&str]| {
        let said = bench.run_as(ALICE, words).unwrap_err();
        assert!(said.contains("Operation not permitted"), "{words:?}: {said}");
    };
    let alice = ALICE.to_string();
    refused(&["mkdir", &at("three")]);
    refused(&["rmdir", &at("two")]);
    refused(&["mv", "-T", &at("two"), &at("three")]);
    bench.cenote(&["zfs", "allow", "-u", &alice, "snapshot", fs]);
    bench.run_as(ALICE, &["mkdir", &at("three")]).unwrap();
    refused(&["rmdir", &at("two")]);
    bench.cenote(&["zfs", "allow", "-u", &alice, "destroy,mount", fs]);
    bench.run_as(ALICE, &["rmdir", &at("two")]).unwrap();
    refused(&["mv", "-T", &at("three"), &at("four")]);
    bench.cenote(&["zfs", "allow", "-u", &alice, "rename,create", fs]);
    bench.run_as(ALICE, &["mv", "-T", &at("three"), &at("four")]).unwrap();
    assert_eq!(bench.snapshots(fs), ["tank/home/alice@four"]);
    // What goes by a command is gone here at once, and what comes is here.
    bench.cenote(&["zfs", "destroy", "tank/home/alice@four"]);
    bench.cenote(&["zfs", "snapshot", "tank/home/alice@five"]);
    let names: Vec<_> = fs::read_dir(&place).unwrap().map(|one| one.unwrap().file_name()).collect();
    assert_eq!(names, ["five"]);
    bench.cenote(&["zfs", "set", "snapdir=disabled", fs]);
    assert!(fs::create_dir(at("six")).is_err());
}

#[test]
fn who_may_only_append_takes_nothing_back() {
    let Some(bench) = home() else { return };
    let (fs, alice) = ("tank/home/alice", ALICE.to_string());
    bench.cenote(&["zfs", "allow", "-u", &alice, "receive:append,mount,create", fs]);
    bench.cenote(&["zfs", "create", "tank/home/alice/x"]);
    bench.cenote(&["zfs", "snapshot", "tank/home/alice/x@one"]);
    bench.cenote(&["zfs", "snapshot", "tank/home/alice/x@two"]);
    let full = bench.output(&["zfs", "send", "tank/home/alice/x@one"]).stdout;
    let since = bench.output(&["zfs", "send", "-i", "@one", "tank/home/alice/x@two"]).stdout;
    let y = "tank/home/alice/y";
    for (arguments, stream, is_allowed) in [
        (&["-F", y][..], &full, false),
        (&[y], &full, true),
        (&["-F", y], &since, false),
        (&[y], &since, true),
        (&["-F", "-e", y], &full, false),
        (&["-e", y], &full, true),
    ] {
        let (well, said) = bench.receive_as(ALICE, arguments, stream);
        assert_eq!(well, is_allowed, "{arguments:?}: {said}");
        assert!(well || said.contains("permission denied"), "{arguments:?}: {said}");
    }
}

#[test]
fn limits_on_numbers_do_not_bind_root() {
    let Some(bench) = home() else { return };
    let user = ALICE.to_string();
    let all = "create,mount,snapshot";
    bench.cenote(&["zfs", "allow", "-u", &user, all, "tank/home/alice"]);
    let limits = ["zfs", "set", "filesystem_limit=1", "snapshot_limit=1"];
    bench.cenote(&[&limits[..], &["tank/home/alice"]].concat());
    bench.as_alice(&["zfs", "snapshot", "tank/home/alice@one"]);
    bench.as_alice(&["zfs", "create", "tank/home/alice/one"]);
    for order in
        [["zfs", "snapshot", "tank/home/alice@two"], ["zfs", "create", "tank/home/alice/two"]]
    {
        bench.denied_to(ALICE, &order);
        bench.cenote(&order);
    }
    let counts = ["zfs", "get", "-Hp", "-o", "value", "filesystem_count,snapshot_count"];
    assert_eq!(bench.cenote(&[&counts[..], &["tank/home/alice"]].concat()), "2\n2\n");
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
}
