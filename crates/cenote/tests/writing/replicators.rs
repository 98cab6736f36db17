//! Unmodified programs of others that take, prune, check and replicate snapshots with our `zfs` and `zpool`.
//!
//! `.ci/tools` fetches them into `target/tools`; what is neither there nor installed is skipped, with the reason.
//! Invariant: what was replicated is equal, file by file, and `zdb` finds no fault in either pool.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use super::{ALONE, Bench, noise};

/// Two pools, `tank` with something in it and `back` with nothing.
struct Two(Bench);

/// Where `.ci/tools` puts what it fetches.
fn fetched() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../target/tools")
}

fn path() -> String {
    let fetched = fetched().display().to_string();
    let system = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    format!("{fetched}/usr/sbin:{fetched}/usr/bin:{fetched}/venv/bin:{system}")
}

/// Whether the programs are there; else says what is missing.
fn are_there(programs: &[&str]) -> bool {
    let all = path();
    let is_there =
        |program: &&&str| all.split(':').any(|at| PathBuf::from(at).join(program).exists());
    match programs.iter().find(|program| !is_there(program)) {
        Some(missing) => eprintln!("skipped: {missing} is not installed (.ci/tools fetches it)"),
        None => return true,
    }
    false
}

impl Two {
    fn with(programs: &[&str]) -> Option<Self> {
        if !are_there(programs) {
            return None;
        }
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: needs root");
            return None;
        }
        let (bench, devices) = Bench::mounting(2)?;
        fs::create_dir(bench.at("bin")).unwrap();
        for name in ["zfs", "zpool"] {
            std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_cenote"), bench.at("bin").join(name))
                .unwrap();
        }
        let root = bench.at("mnt").display().to_string();
        for (pool, device) in [("tank", &devices[0]), ("back", &devices[1])] {
            bench.cenote(&["zpool", "create", "-R", &root, pool, device]);
        }
        // Looking at the copies changes nothing in them.
        bench.cenote(&["zfs", "set", "atime=off", "back"]);
        for name in ["tank/data", "tank/data/x", "tank/data/y"] {
            bench.cenote(&["zfs", "create", name]);
        }
        let two = Self(bench);
        two.write("data/x/file", 3_000_000);
        two.write("data/y/small", 10);
        Some(two)
    }

    fn write(&self, name: &str, len: usize) {
        fs::write(self.0.at("mnt/tank").join(name), noise(len, len as u32)).unwrap();
    }

    /// Runs a line of a shell that has our programs first in its path.
    fn sh(&self, line: &str) -> Output {
        let fetched = fetched().display().to_string();
        let path = format!("{}:{}", self.0.at("bin").display(), path());
        let mut command = Command::new("sh");
        command.args(["-c", line]).current_dir(self.0.directory.path());
        command.env("PATH", path).env("CENOTE_RUN_DIR", self.0.at("run"));
        command.env("PERL5LIB", format!("{fetched}/usr/share/perl5"));
        command.env("LD_LIBRARY_PATH", format!("{fetched}/usr/lib/x86_64-linux-gnu"));
        command.env("HOME", self.0.directory.path()).env("TZ", "UTC").env("LC_ALL", "C.UTF-8");
        command.output().unwrap()
    }

    /// What it says, on both ways.
    fn ok(&self, line: &str) -> String {
        let output = self.sh(line);
        let said = format!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        assert!(output.status.success(), "{line}: {said}");
        said
    }

    fn snapshots(&self, of: &str) -> Vec<String> {
        let said = self.ok(&format!("zfs list -H -t snapshot -o name -s creation -r {of}"));
        said.lines().map(str::to_owned).collect()
    }

    /// Whether both places hold the same.
    fn are_equal(&self, source: &str, target: &str) {
        let said = self.ok(&format!("diff -r mnt/{source} mnt/{target} && echo equal"));
        assert_eq!(said, "equal\n");
    }

    fn end(self) {
        self.ok("zpool export tank && zpool export back");
        self.0.zdb();
        let mut zdb = Command::new("zdb");
        let found = zdb.args(["-e", "-bcc", "-p"]).arg(self.0.at("d")).arg("back").output();
        if let Ok(output) = found {
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && text.contains("No leaks"), "{text}");
        }
    }
}

/// Waits until names made of the time differ from those made before: the tools count seconds.
fn next_second() {
    std::thread::sleep(std::time::Duration::from_millis(1100));
}

/// As in the session of the articles: two pools, all below, clones, a touch-up in seconds, and then the copy
/// takes the other's name.
#[test]
fn syncoid_replicates_clones_resumes_and_the_copy_takes_over() {
    let Some(two) = Two::with(&["syncoid", "mbuffer", "pv"]) else { return };
    two.ok("zfs snapshot tank/data/x@base && zfs clone tank/data/x@base tank/data/clone");
    two.write("data/clone/own", 1000);
    let said = two.ok("syncoid -r tank/data back/data");
    assert!(
        said.contains("Clone is recreated on target back/data/clone based on tank/data/x@base"),
        "{said}"
    );
    assert_eq!(two.ok("zfs get -H -o value origin back/data/clone"), "back/data/x@base\n");
    two.are_equal("tank/data", "back/data");
    // Cut off, and gone on with.
    two.write("data/x/more", 6_000_000);
    two.ok("zfs snapshot tank/data/x@more");
    let last = "$(zfs list -Ht snapshot -o name -s creation tank/data/x | grep syncoid | tail -1)";
    let cut = two.sh(&format!(
        "zfs send -I {last} tank/data/x@more | head -c 3000000 | zfs receive -s -F back/data/x"
    ));
    assert!(!cut.status.success());
    next_second();
    let said = two.ok("syncoid --debug -r tank/data back/data");
    assert!(said.contains("Resuming interrupted zfs send/receive"), "{said}");
    let before = said.split("Resuming interrupted").next().unwrap();
    let remaining = before.rsplit("sendsize = ").next().and_then(|rest| rest.lines().next());
    let remaining: u64 = remaining.unwrap().parse().unwrap();
    assert!((2_000_000..4_500_000).contains(&remaining), "{remaining} bytes remain");
    two.are_equal("tank/data", "back/data");
    // A touch-up; the one before is not needed any more.
    two.write("data/y/late", 100);
    next_second();
    two.ok("syncoid -r tank/data back/data");
    two.are_equal("tank/data", "back/data");
    let left = two.snapshots("back/data/y");
    assert_eq!(left.len(), 1, "{left:?}");
    two.ok("syncoid --no-sync-snap --create-bookmark tank/data/y back/y2");
    assert!(
        two.ok("zfs list -H -t bookmark -o name -r tank/data/y").contains("tank/data/y#syncoid_")
    );
    // The copy takes the other's name.
    two.ok("zpool export tank && zpool export back");
    two.ok("zpool import -d d -R $PWD/mnt2 back tank");
    assert!(two.0.at("mnt2/tank/data/y/late").exists());
    // The old one has the same name.
    two.ok("zpool export tank && rm d/f0");
    two.0.zdb();
}

#[test]
fn sanoid_takes_prunes_and_monitors() {
    let Some(two) = Two::with(&["sanoid"]) else { return };
    if !PathBuf::from("/usr/share/sanoid/sanoid.defaults.conf").exists() {
        eprintln!("skipped: sanoid.defaults.conf is not in /usr/share/sanoid");
        return;
    }
    fs::create_dir(two.0.at("conf")).unwrap();
    let defaults = "/usr/share/sanoid/sanoid.defaults.conf";
    fs::copy(defaults, two.0.at("conf/sanoid.defaults.conf")).unwrap();
    let policy = |hourly: u32| {
        let text = format!(
            "[tank/data]\n\tuse_template = some\n\trecursive = yes\n[template_some]\n\tfrequently = 0\n\t\
             hourly = {hourly}\n\tdaily = 1\n\tmonthly = 1\n\tyearly = 0\n\tautosnap = yes\n\tautoprune = yes\n"
        );
        fs::write(two.0.at("conf/sanoid.conf"), text).unwrap();
    };
    let sanoid = |arguments: &str| {
        two.ok(&format!("sanoid --configdir=conf --cache-dir=cache --run-dir=cache {arguments}"))
    };
    policy(2);
    sanoid("--cron --verbose");
    assert_eq!(two.snapshots("tank/data").len(), 9);
    assert!(sanoid("--monitor-snapshots").starts_with("OK: all monitored datasets"));
    assert!(sanoid("--monitor-health").starts_with("OK ZPOOL tank : ONLINE {Size:"));
    assert!(sanoid("--monitor-capacity").starts_with("OK ZPOOL tank : "));
    // One more than is kept, and older than is kept, is destroyed: the one that was taken first.
    policy(0);
    let extra = "autosnap_2020-01-01_00:00:00_hourly";
    next_second();
    two.ok(&format!("zfs snapshot -r tank/data@{extra}"));
    next_second();
    sanoid("--force-update --prune-snapshots --force-prune");
    let left = two.snapshots("tank/data");
    let hourly: Vec<&String> = left.iter().filter(|name| name.ends_with("_hourly")).collect();
    assert!(left.len() == 9 && hourly.iter().all(|name| name.ends_with(extra)), "{left:?}");
    two.end();
}

#[test]
fn zfs_auto_snapshot_takes_and_rotates() {
    let Some(two) = Two::with(&["zfs-auto-snapshot"]) else { return };
    two.ok("zfs set com.sun:auto-snapshot=false tank/data/y");
    let said = two.ok("zfs-auto-snapshot --verbose --label=daily --keep=1 //");
    assert!(said.contains("created, 0 destroyed, 0 warnings."), "{said}");
    let taken = two.snapshots("tank");
    assert!(
        taken.iter().any(|name| name.starts_with("tank/data/x@zfs-auto-snap_daily-")),
        "{taken:?}"
    );
    assert!(!taken.iter().any(|name| name.starts_with("tank/data/y@")), "{taken:?}");
    // As if it were older.
    let old = "zfs-auto-snap_daily-2020-01-01-0000";
    two.ok(&format!("zfs snapshot tank/data/x@{old}"));
    let said = two.ok("zfs-auto-snapshot --destroy-only --label=daily --keep=2 tank/data/x");
    assert!(said.contains("1 destroyed"), "{said}");
    assert_eq!(two.snapshots("tank/data/x").len(), 1);
    two.end();
}

#[test]
fn zfsnap_takes_and_destroys_what_is_too_old() {
    let Some(two) = Two::with(&["zfSnap", "unshare"]) else { return };
    if !PathBuf::from("/sbin/zfs").exists() {
        eprintln!("skipped: zfSnap asks /sbin/zfs, which is not there to be replaced");
        return;
    }
    let ours = env!("CARGO_BIN_EXE_cenote");
    let zfsnap = |arguments: &str| {
        let bind = |name: &str| format!("mount --bind {ours} $(readlink -f /sbin/{name})");
        two.ok(&format!(
            "HERE=/none unshare -m sh -c '{ALONE} {} && {} && zfSnap {arguments}'",
            bind("zfs"),
            bind("zpool")
        ))
    };
    let said = zfsnap("-v -a 1y -r tank/data -a 1s tank/data/y");
    assert!(said.matches("DONE").count() == 2, "{said}");
    assert_eq!(two.snapshots("tank/data").len(), 4);
    std::thread::sleep(std::time::Duration::from_secs(2));
    let said = zfsnap("-v -d");
    assert!(said.contains("DONE"), "{said}");
    assert_eq!(two.snapshots("tank/data").len(), 3);
    two.end();
}

#[test]
fn zfs_autobackup_selects_replicates_and_thins() {
    let Some(two) = Two::with(&["zfs-autobackup"]) else { return };
    two.ok("zfs set autobackup:offsite=true tank/data && zfs create back/backup");
    let run = "zfs-autobackup -v --rollback --clear-mountpoint --zfs-compressed --keep-source=1 --keep-target=2 offsite back/backup";
    let said = two.ok(run);
    assert!(said.contains("All operations completed successfully"), "{said}");
    for turn in 0..3 {
        two.write("data/x/turn", 100 + turn);
        // What is not on the disks yet is not seen as a change.
        two.ok("zpool sync tank");
        next_second();
        two.ok(run);
    }
    assert_eq!(two.snapshots("tank/data/x").len(), 1);
    assert_eq!(two.snapshots("back/backup/tank/data/x").len(), 2);
    let held = two.ok("zfs holds -r -H $(zfs list -Ht snapshot -o name tank/data/x)");
    assert!(held.contains("zfs_autobackup:offsite"), "{held}");
    two.ok("zfs set mountpoint=/copy back/backup/tank/data && zfs mount back/backup/tank/data/x");
    two.are_equal("tank/data/x", "copy/x");
    two.end();
}

#[test]
fn bzfs_replicates_takes_compares_and_deletes() {
    let Some(two) = Two::with(&["bzfs"]) else { return };
    // Not where syncoid's test sends: it looks for receives of all processes.
    let bzfs = |arguments: &str| {
        two.ok(&format!(
            "bzfs tank/data back/other --recursive --log-dir=$PWD/bzfs-logs {arguments}"
        ))
    };
    two.ok("zfs snapshot -r tank/data@s1");
    bzfs("");
    // It mounts nothing.
    two.ok("zfs mount -a");
    two.are_equal("tank/data", "back/other");
    two.write("data/x/more", 5000);
    bzfs("--create-src-snapshots --create-src-snapshots-plan \"{'z':{'onsite':{'hourly':2}}}\"");
    two.are_equal("tank/data", "back/other");
    assert_eq!(two.snapshots("back/other/x").len(), 2);
    // It left bookmarks of what it had sent.
    assert!(two.ok("zfs list -H -t bookmark -o name -r tank/data/x").contains("tank/data/x#"));
    two.ok("zfs list -H -t bookmark -o name -r tank/data | xargs -n 1 zfs destroy && zfs destroy -r tank/data@s1 && zfs snapshot back/other/x@foreign && zfs create back/other/gone");
    bzfs("--force --delete-dst-snapshots --delete-dst-datasets");
    let left = two.snapshots("back/other");
    assert!(left.len() == 3 && left.iter().all(|name| name.contains("@z_onsite_")), "{left:?}");
    assert!(!two.sh("zfs list back/other/gone").status.success());
    two.end();
}
