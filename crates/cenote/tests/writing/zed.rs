//! `zed`: scripts of a directory run for events of all pools, mails are sent, scrubs are begun.
//!
//! Invariant: what a script is told is what OpenZFS's scripts read; an event is handled once.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use super::{Bench, fill};

/// What is in a file, once `is` says that it is all.
fn content(path: &Path, is: impl Fn(&str) -> bool) -> String {
    let start = Instant::now();
    loop {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        if is(&text) {
            return text;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "{}:\n{text}", path.display());
        std::thread::sleep(Duration::from_millis(50));
    }
}

struct Zed(std::process::Child);

impl Drop for Zed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Bench {
    fn script(&self, name: &str, text: &str, mode: u32) {
        let path = self.at("zed.d").join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    fn zed(&self) -> Zed {
        let (directory, settings) = (self.at("zed.d"), self.at("zed.conf"));
        let mut command = self.command(&["zed", "-Fv", "-j", "2"]);
        command.arg("-d").arg(directory).arg("-c").arg(settings);
        let log = std::fs::File::options().create(true).append(true).open(self.at("zed.log"));
        Zed(command.stderr(log.unwrap()).stdout(Stdio::null()).spawn().unwrap())
    }
}

#[test]
fn scripts_run_for_the_events_of_all_pools_and_mail_is_sent() {
    let Some((bench, devices)) = Bench::mounting(2) else { return };
    std::fs::create_dir(bench.at("zed.d")).unwrap();
    let seen = bench.at("seen");
    let told = "$ZEVENT_EID $ZEVENT_SUBCLASS $ZEVENT_POOL $ZEVENT_POOL_GUID $ZEVENT_TIME_STRING";
    bench.script("all-seen.sh", &format!("echo \"{told}\" >> {}", seen.display()), 0o755);
    let state = bench.at("state");
    let word = "$ZEVENT_VDEV_LASTSTATE_STR $ZEVENT_VDEV_STATE_STR $ZEVENT_VDEV_PATH";
    bench.script(
        "statechange-sync-state.sh",
        &format!("echo {word} >> {}; $ZPOOL list -Ho name >> {0}", state.display()),
        0o755,
    );
    bench.script("all-writable.sh", &format!("touch {}", bench.at("wrong").display()), 0o777);
    bench.script("allow.sh", &format!("touch {}", bench.at("wrong").display()), 0o755);
    let (sent, sendmail) = (bench.at("sent"), bench.at("sendmail"));
    std::fs::write(&sendmail, format!("#!/bin/sh\ncat >> {}\n", sent.display())).unwrap();
    std::fs::set_permissions(&sendmail, std::fs::Permissions::from_mode(0o755)).unwrap();
    let settings = format!("mail = root\nverbose = yes\nsendmail = {}\n", sendmail.display());
    std::fs::write(bench.at("zed.conf"), settings).unwrap();

    let zed = bench.zed();
    let [one, two] = &devices[..] else { panic!() };
    bench.create(&["mirror", one, two]);
    fill(&bench.at("mnt/tank"));
    bench.cenote(&["zpool", "scrub", "-w", "tank"]);
    let lines = content(&seen, |text| text.contains(" scrub_finish tank 0x"));
    assert!(lines.contains(" pool_create tank 0x"), "{lines}");
    let mail = content(&sent, |text| text.contains("errors: No known data errors"));
    for line in ["To: root", "ZFS has finished a scrub:", " class: scrub_finish", "  pool: tank"] {
        assert!(mail.lines().any(|own| own == line), "{line} in\n{mail}");
    }
    assert!(mail.contains("Subject: ZFS scrub_finish event for tank on "), "{mail}");
    bench.cenote(&["zpool", "offline", "tank", two]);
    let expected = format!("ONLINE OFFLINE {two}\ntank\n");
    assert_eq!(content(&state, |text| text.ends_with("tank\n")), expected);
    bench.cenote(&["zpool", "online", "tank", two]);
    // Another one does not begin beside it.
    let said = bench.refused(&["zed", "-F", "-c", "/dev/null"]);
    assert!(said.contains("follows events already"), "{said}");
    let seen_before = content(&seen, |text| text.contains(" vdev_online tank "));
    drop(zed);
    std::thread::sleep(Duration::from_millis(300));

    // The next one goes on where this one ended.
    let zed = bench.zed();
    bench.cenote(&["zpool", "scrub", "-w", "tank"]);
    let is_second = |text: &str| text.matches(" scrub_finish tank ").count() == 2;
    let after = content(&seen, is_second);
    assert!(after.starts_with(&seen_before), "{seen_before}\n{after}");
    assert_eq!(after.matches(" pool_create tank ").count(), 1, "{after}");
    assert!(!bench.at("wrong").exists());
    let log = std::fs::read_to_string(bench.at("zed.log")).unwrap();
    assert!(log.contains("all-writable.sh is not run: others may write it"), "{log}");
    // And hears of the next life of the pool.
    bench.cenote(&["zpool", "export", "tank"]);
    content(&seen, |text| text.contains(" pool_export tank "));
    bench.import();
    content(&seen, |text| text.contains(" pool_import tank "));
    drop(zed);
    bench.cenote(&["zpool", "destroy", "tank"]);
}

#[test]
fn scrubs_begin_by_time_and_wrong_settings_are_refused() {
    let Some((bench, devices)) = Bench::mounting(1) else { return };
    std::fs::create_dir(bench.at("zed.d")).unwrap();
    bench.create(&[&devices[0]]);
    std::fs::write(bench.at("zed.conf"), "scrub = sometimes\n").unwrap();
    let settings = bench.at("zed.conf").display().to_string();
    let said = bench.refused(&["zed", "-F", "-c", &settings]);
    assert!(said.contains("zed.conf:1: scrub: is to be weekly, monthly, off"), "{said}");
    std::fs::write(bench.at("zed.conf"), "scrub = 2s\nscrub.other = off\n").unwrap();
    let zed = bench.zed();
    let start = Instant::now();
    let scrubs = || {
        let listed = bench.cenote(&["zpool", "events", "-H"]);
        listed.lines().filter(|line| line.ends_with(".scrub_finish")).count()
    };
    while scrubs() < 2 {
        assert!(start.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(200));
    }
    drop(zed);
    // In the background it says when it follows, and its number is in a file.
    bench.cenote(&["zed", "-c", &settings, "-d", &bench.at("zed.d").display().to_string()]);
    let number = std::fs::read_to_string(bench.at("run/zed.pid")).unwrap();
    let ended = std::process::Command::new("kill").arg(number.trim()).status().unwrap();
    assert!(ended.success());
    let history = bench.cenote(&["zpool", "history", "tank"]);
    assert!(history.contains(" zpool scrub tank\n"), "{history}");
    bench.cenote(&["zpool", "destroy", "tank"]);
}
