//! One host opens a pool once, whatever its devices are called and whoever asks.
//!
//! Invariant: what the first process wrote stays; the second is refused and says why.

use std::process::{Command, Output};

use super::Bench;

/// A loop device over a file; detached at the end. None where there are none.
struct Loop(String);

impl Loop {
    fn over(file: &str) -> Option<Self> {
        let made = Command::new("losetup").args(["--find", "--show", file]).output().ok()?;
        if !made.status.success() {
            eprintln!("no loop device: {}", String::from_utf8_lossy(&made.stderr));
            return None;
        }
        Some(Self(String::from_utf8_lossy(&made.stdout).trim().to_owned()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

impl Bench {
    /// A command of somebody with another run directory; `host`: in another network namespace as
    /// far as the lock by guid goes.
    fn elsewhere(&self, host: &str, arguments: &[&str]) -> Output {
        let mut command = self.command(arguments);
        command.env("CENOTE_RUN_DIR", self.at("run2"));
        if !host.is_empty() {
            command.env("CENOTE_PLAYED_HOST", host);
        }
        command.output().unwrap()
    }

    fn refused_elsewhere(&self, host: &str, arguments: &[&str], words: &str) {
        let output = self.elsewhere(host, arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(words), "{arguments:?}: {said}");
    }
}

#[test]
fn a_pool_is_opened_once() {
    let Some((bench, devices)) = Bench::mounting(2) else { return };
    bench.create(&["mirror", &devices[0], &devices[1]]);
    std::fs::write(bench.at("mnt/tank/file"), "kept").unwrap();
    bench.cenote(&["zpool", "sync", "tank"]);
    let (links, one) = (bench.at("links"), bench.at("one"));
    for (place, count) in [(&links, 2), (&one, 1)] {
        std::fs::create_dir(place).unwrap();
        for device in &devices[..count] {
            let name = std::path::Path::new(device).file_name().unwrap();
            std::fs::hard_link(device, place.join(name)).unwrap();
        }
    }
    let over = Loop::over(&devices[1]);
    let names = [bench.at("d"), links, one].map(|place| place.display().to_string());
    let names: Vec<&str> =
        names.iter().map(String::as_str).chain(over.iter().map(|device| &*device.0)).collect();
    let mount = bench.at("mnt2").display().to_string();
    for name in &names {
        let import = ["zpool", "import", "-f", "-d", name, "-R", &mount, "tank"];
        bench.refused_elsewhere("", &import, "imported on this host already, by process ");
        // Another network namespace does not see the lock, but the devices are held.
        bench.refused_elsewhere("other", &import, "is in use by another process");
        assert!(!bench.at("run2/tank.pid").exists(), "who was refused leaves nothing");
    }
    let read = ["zpool", "import", "-o", "readonly=on", "-d", names[0], "-R", &mount, "tank"];
    bench.refused_elsewhere("", &read, "imported on this host already");
    let apart = bench.at("apart").display().to_string();
    std::fs::File::create(&apart).unwrap().set_len(super::SIZE).unwrap();
    let other = bench.elsewhere("", &["zpool", "create", "-R", &mount, "other", &apart]);
    assert!(other.status.success(), "{}", String::from_utf8_lossy(&other.stderr));
    for device in [devices[1].as_str()].into_iter().chain(over.iter().map(|device| &*device.0)) {
        bench.refused_elsewhere("", &["zpool", "create", "-f", "new", device], "active pool");
        bench.refused_elsewhere("", &["zpool", "add", "-f", "other", device], "active pool");
        bench.refused_elsewhere("", &["zpool", "labelclear", "-f", device], "(ACTIVE)");
    }
    bench.elsewhere("", &["zpool", "destroy", "other"]);
    let own = bench.output(&["zpool", "import", "tank"]);
    let said = String::from_utf8_lossy(&own.stderr);
    assert!(said.contains("a pool with that name already exists"), "{said}");

    bench.kill();
    let place = bench.at("d").display().to_string();
    let import = ["zpool", "import", "-d", &place, "-R", &mount, "tank"];
    let output = bench.elsewhere("", &import);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(std::fs::read_to_string(bench.at("mnt2/tank/file")).unwrap(), "kept");
    bench.elsewhere("", &["zpool", "reguid", "tank"]);
    bench.elsewhere("", &["zpool", "export", "tank"]);
    bench.zdb();
}
