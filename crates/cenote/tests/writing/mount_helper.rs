//! mount(8), umount(8) and fstab(5): legacy filesystems and snapshots, mounted by the helpers that
//! mount(8) runs.
//!
//! Invariant: words and exit codes are those of OpenZFS 2.1.11.

use std::path::Path;
use std::process::{Command, Output};

use super::{ALONE, Bench, may_not_run};

impl Bench {
    /// Runs this program under another name.
    fn called(&self, name: &str, arguments: &[&str]) -> Output {
        let mut command = Command::new(self.at("bin").join(name));
        command.args(arguments).env("CENOTE_RUN_DIR", self.at("run")).output().unwrap()
    }

    /// `mount.zfs`: its exit code, and what it says of errors.
    fn helper(&self, arguments: &[&str]) -> (i32, String) {
        let output = self.called("mount.zfs", arguments);
        let said = String::from_utf8_lossy(&output.stderr).trim_end().to_owned();
        (output.status.code().unwrap_or(-1), said)
    }

    fn expect_mounted(&self, arguments: &[&str]) {
        assert_eq!(self.helper(arguments), (0, String::new()), "{arguments:?}");
    }

    /// With a filesystem `tank/legacy`, links to this program in `bin`, a directory to mount at.
    fn with_legacy() -> (Bench, String) {
        let bench = Bench::new(1);
        std::fs::create_dir(bench.at("at")).unwrap();
        bench.cenote(&["install-links", &bench.at("bin").display().to_string()]);
        bench.create(&[&bench.devices(1)[0]]);
        bench.cenote(&["zfs", "create", "-o", "mountpoint=legacy", "tank/legacy"]);
        let at = bench.at("at").display().to_string();
        (bench, at)
    }

    fn values(&self, properties: &str, of: &str) -> String {
        let text = self.cenote(&["zfs", "get", "-H", "-o", "value,source", properties, of]);
        text.trim_end().replace(['\t', '\n'], " ")
    }
}

fn umount(at: &str) {
    let output = Command::new("umount").arg(at).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The options of the mount at `at`, those of the type aside.
fn flags(at: &str) -> Option<String> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let options = mounts.lines().rev().find_map(|line| {
        let mut fields = line.split(' ').skip(1);
        (fields.next() == Some(at)).then(|| fields.nth(1).map(str::to_owned)).flatten()
    })?;
    Some(options.split(",user_id=").next().unwrap_or_default().to_owned())
}

#[test]
fn a_legacy_filesystem_is_mounted_and_unmounted_by_hand() {
    if may_not_run() {
        return;
    }
    let (bench, at) = Bench::with_legacy();
    bench.expect_mounted(&["tank/legacy", &at, "-o", "ro,noexec,nosuid,nodev,noatime"]);
    assert_eq!(flags(&at).as_deref(), Some("ro,nosuid,nodev,noexec,noatime"));
    let shown = bench.values("readonly,exec,mounted,mountpoint", "tank/legacy");
    assert_eq!(shown, "on temporary off temporary yes - legacy local");
    let again = (128, "filesystem 'tank/legacy' is already mounted".to_owned());
    assert_eq!(bench.helper(&["tank/legacy", &at]), again);
    bench.expect_mounted(&["-o", "remount,rw,exec,suid,dev", "tank/legacy", &at]);
    assert_eq!(flags(&at).as_deref(), Some("rw,noatime"));
    let file = Path::new(&at).join("file");
    std::fs::write(&file, "written").unwrap();
    for operand in ["tank/legacy", &at] {
        let said = bench.refused(&["zfs", "unmount", operand]);
        let words = "cannot unmount 'tank/legacy': legacy mountpoint\n\
                     use umount(8) to unmount this filesystem";
        assert_eq!(said.trim_end(), words);
    }
    bench.cenote(&["zfs", "unmount", "-a"]);
    // stays where it is, whatever happens to it
    bench.cenote(&["zfs", "set", "xattr=dir", "tank/legacy"]);
    bench.cenote(&["zfs", "rename", "tank/legacy", "tank/other"]);
    assert!(bench.cenote(&["zfs", "mount"]).contains("tank/other"));
    assert_eq!(std::fs::read(&file).unwrap(), b"written");

    umount(&at);
    assert_eq!(bench.values("mounted", "tank/other"), "no -");
    assert!(!file.exists());
    // as mount.fuse3 calls it; at once after umount
    let words = ["tank/other", &at, "-o", "rw,dev,suid"];
    let output = bench.called("mount.fuse.cenote", &words);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    umount(&at);
    bench.cenote(&words);
    assert_eq!(std::fs::read(&file).unwrap(), b"written");
    umount(&at);
    bench.cenote(&["zfs", "snapshot", "tank/other@now"]);
    bench.expect_mounted(&["tank/other@now", &at]);
    assert_eq!(std::fs::read(&file).unwrap(), b"written");
    // Whatever it is called by now, it does not go from under who reads it.
    bench.cenote(&["zfs", "rename", "tank/other@now", "tank/other@then"]);
    assert_eq!(std::fs::read(&file).unwrap(), b"written");
    bench.cenote(&["zfs", "destroy", "tank/other@then"]);
    assert!(!file.exists());
    bench.cenote(&["zfs", "snapshot", "tank/other@now"]);
    bench.expect_mounted(&["tank/other@now", &at]);
    bench.cenote(&["zfs", "clone", "tank/other@now", "tank/clone"]);
    bench.cenote(&["zfs", "promote", "tank/clone"]);
    bench.cenote(&["zfs", "destroy", "tank/other"]);
    bench.cenote(&["zfs", "destroy", "-r", "tank/clone"]);
    assert!(!file.exists());
    bench.cenote(&["zfs", "create", "tank/other"]);
    bench.cenote(&["zfs", "destroy", "-r", "tank/other"]);
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
}

#[test]
fn what_mount_cannot_mount_is_refused_as_openzfs_does() {
    if may_not_run() {
        return;
    }
    let (bench, at) = Bench::with_legacy();
    bench.cenote(&["zfs", "create", "tank/own"]);
    bench.cenote(&["zfs", "create", "-s", "-V", "8M", "tank/volume"]);
    let usage = "\nusage: mount <dataset> <mountpoint>";
    let see = "See zfs(8) for more information.";
    let unopened =
        |name| format!("filesystem '{name}' cannot be mounted, unable to open the dataset");
    for (arguments, code, words) in [
        (vec![], 1, format!("missing dataset argument{usage}")),
        (vec!["tank/legacy"], 1, format!("missing mountpoint argument{usage}")),
        (vec!["a", "b", "c"], 1, format!("too many arguments{usage}")),
        (
            vec!["-x"],
            1,
            "Invalid option 'x'\nUsage: mount.zfs [-sfnvh] [-o options] <dataset> <mountpoint>"
                .to_owned(),
        ),
        (
            vec!["tank/legacy", "/no/such"],
            2,
            "filesystem 'tank/legacy' cannot be mounted at '/no/such' due to canonicalization \
             error: No such file or directory"
                .to_owned(),
        ),
        (vec!["tank/none", &at], 1, unopened("tank/none")),
        (vec!["nowhere", &at], 1, unopened("nowhere")),
        (vec!["tank/volume", &at], 1, unopened("tank/volume")),
        (
            vec!["tank/own", &at],
            1,
            format!(
                "filesystem 'tank/own' cannot be mounted using 'mount'.\n\
                 Use 'zfs set mountpoint=legacy' or 'zfs mount tank/own'.\n{see}"
            ),
        ),
        (
            vec!["-o", "zfsutil", "tank/legacy", &at],
            1,
            format!(
                "filesystem 'tank/legacy' cannot be mounted using 'zfs mount'.\nUse 'zfs set \
                 mountpoint={at}' or 'mount -t zfs tank/legacy {at}'.\n{see}"
            ),
        ),
        (
            vec!["-o", "bogus", "tank/legacy", &at],
            1,
            "filesystem 'tank/legacy' cannot be mounted due to invalid option 'bogus'.\n\
             Use the '-s' option to ignore the bad mount option."
                .to_owned(),
        ),
    ] {
        assert_eq!(bench.helper(&arguments), (code, words), "{arguments:?}");
    }
    // asked for, but not done
    bench.expect_mounted(&["-f", "tank/own", &at]);
    assert_eq!(flags(&at), None);
    bench.expect_mounted(&["-s", "-o", "bogus", "tank/legacy", &at]);
    // a pool takes what was mounted by hand with it
    bench.cenote(&["zpool", "export", "tank"]);
    assert_eq!(flags(&at), None);
    let refused = bench.called("zfs", &["mount", "tank/legacy"]);
    assert!(!refused.status.success());
}

/// With mount(8) itself, a line in fstab, and both helpers that it may find.
#[test]
fn fstab_knows_legacy_filesystems() {
    if may_not_run() {
        return;
    }
    let places = ["/sbin/mount.zfs", "/etc/fstab", "/usr/local/bin"];
    let is_there = places.iter().all(|place| Path::new(place).exists());
    let may = Command::new("unshare").args(["-m", "true"]).status();
    if !is_there || !may.is_ok_and(|status| status.success()) {
        eprintln!("skipped: no mounts of its own over {places:?}");
        return;
    }
    let (bench, at) = Bench::with_legacy();
    bench.cenote(&["zpool", "export", "tank"]);
    std::fs::write(bench.at("fstab"), format!("tank/legacy {at} zfs defaults 0 0\n")).unwrap();
    let script = r#"
        mount --bind "$PROGRAM" /sbin/mount.zfs
        mount --bind "$HERE/fstab" /etc/fstab
        ln -s "$PROGRAM" "$HERE/bin/cenote"
        PATH="$HERE/bin:$PATH"
        mount --bind "$HERE/bin" /usr/local/bin
        zpool import -d "$HERE/d" -R "$HERE/mnt" tank
        mount "$AT"
        echo first > "$AT/file"
        mount -o remount,ro "$AT"
        if echo second > "$AT/file"; then exit 9; fi
        zfs get -H -o value,source readonly tank/legacy
        mount -o remount,rw "$AT"
        zfs get -H -o value,source readonly tank/legacy
        echo third > "$AT/file"
        if mount "$AT"; then exit 10; fi
        umount "$AT"
        zfs get -H -o value mounted tank/legacy
        mount -t zfs -o noexec tank/legacy "$AT"
        cat "$AT/file"
        umount "$AT"
        if [ -x /sbin/mount.fuse3 ]; then
            mount -t fuse.cenote -o ro tank/legacy "$AT"
            cat "$AT/file"
            umount "$AT"
        else
            echo third
        fi
        zpool export tank
    "#;
    let output = Command::new("unshare")
        .args(["-m", "sh", "-ec", &format!("{ALONE}{script}")])
        .env("CENOTE_RUN_DIR", bench.at("run"))
        .env("PROGRAM", env!("CARGO_BIN_EXE_cenote"))
        .env("HERE", bench.at("."))
        .env("AT", &at)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let shown = String::from_utf8_lossy(&output.stdout);
    assert_eq!(shown, "on\ttemporary\noff\tdefault\nno\nthird\nthird\n", "{said}");
}
