//! What happens to a pool, as `zpool events` tells it.
//!
//! Invariant: classes come in the order in which things happen, and a follower hears of the end of a pool.

use std::io::{BufRead, BufReader, Seek, SeekFrom, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::{Bench, fill, noise};

impl Bench {
    /// The classes of all events so far.
    fn classes(&self) -> Vec<String> {
        let listed = self.cenote(&["zpool", "events", "-H"]);
        let class = |line: &str| line.split('\t').nth(1).unwrap_or_default().to_owned();
        listed.lines().map(class).collect()
    }

    /// Waits until there is an event of this class, and gives what `-v` shows of the last one.
    pub(super) fn event(&self, class: &str) -> String {
        let start = Instant::now();
        loop {
            let listed = self.cenote(&["zpool", "events", "-v", "tank"]);
            let own = listed.split("\n\n").filter(|event| {
                let first = event.lines().find(|line| !line.starts_with("TIME"));
                first.is_some_and(|line| line.ends_with(&format!(" {class}")))
            });
            if let Some(event) = own.last() {
                return event.to_owned();
            }
            assert!(start.elapsed() < Duration::from_secs(60), "no {class} in\n{listed}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// A command that goes on, and what it says.
struct Follower {
    child: Child,
    lines: std::sync::mpsc::Receiver<String>,
}

impl Follower {
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        Self { child, lines }
    }

    fn hears(&self, class: &str) {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let line = self.lines.recv_timeout(left);
            let line = line.unwrap_or_else(|error| panic!("{class} is not heard of: {error}"));
            if line.ends_with(class) {
                return;
            }
        }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether all of these stand in `all`, in this order.
fn in_order(all: &[String], wanted: &[&str]) -> bool {
    let mut all = all.iter();
    wanted.iter().all(|wanted| all.any(|class| class == wanted))
}

#[test]
fn what_happens_is_told_in_order_and_to_who_follows() {
    let Some((bench, devices)) = Bench::mounting(3) else { return };
    let [one, two, three] = &devices[..] else { panic!() };
    let follower = Follower::start(&mut bench.command(&["zpool", "events", "-Hf"]));
    bench.create(&["mirror", one, two]);
    fill(&bench.at("mnt/tank"));
    follower.hears("sysevent.fs.zfs.pool_create");
    bench.cenote(&["zpool", "scrub", "-w", "tank"]);
    follower.hears("sysevent.fs.zfs.scrub_finish");
    bench.cenote(&["zpool", "offline", "tank", two]);
    let change = bench.event("resource.fs.zfs.statechange");
    for line in [
        "        pool = \"tank\"",
        "        pool_context = 0x0",
        "        vdev_state = \"OFFLINE\" (0x2)",
        &format!("        vdev_path = \"{two}\""),
        "        vdev_laststate = \"ONLINE\" (0x7)",
    ] {
        assert!(change.lines().any(|own| own == line), "{line} in\n{change}");
    }
    std::fs::write(bench.at("mnt/tank/meanwhile"), noise(300_000, 5)).unwrap();
    bench.cenote(&["zpool", "sync", "tank"]);
    bench.cenote(&["zpool", "online", "tank", two]);
    let finish = bench.event("sysevent.fs.zfs.resilver_finish");
    assert!(finish.contains("        resilver_type = \"healing\""), "{finish}");
    bench.cenote(&["zpool", "replace", "-w", "tank", two, three]);
    bench.event("sysevent.fs.zfs.vdev_remove");
    bench.cenote(&["zpool", "clear", "tank"]);
    let all = bench.classes();
    let wanted = [
        "sysevent.fs.zfs.pool_create",
        "sysevent.fs.zfs.scrub_start",
        "sysevent.fs.zfs.scrub_finish",
        "resource.fs.zfs.statechange",
        "sysevent.fs.zfs.vdev_online",
        "sysevent.fs.zfs.resilver_start",
        "sysevent.fs.zfs.resilver_finish",
        "sysevent.fs.zfs.vdev_attach",
        "sysevent.fs.zfs.resilver_finish",
        "sysevent.fs.zfs.vdev_remove",
    ];
    assert!(in_order(&all, &wanted), "{all:?}");
    // Nothing was wrong when it was cleared.
    assert!(all.iter().all(|class| !class.ends_with("vdev_clear")), "{all:?}");
    assert!(all.iter().any(|class| class == "sysevent.fs.zfs.config_sync"), "{all:?}");
    let history = bench.event("sysevent.fs.zfs.history_event");
    assert!(history.contains("        history_internal_name = \"detach\""), "{history}");

    let listed = bench.cenote(&["zpool", "events", "tank"]);
    assert!(listed.starts_with("TIME                           CLASS\n"), "{listed}");
    assert_eq!(bench.cenote(&["zpool", "events", "-H", "nothing"]), "");
    let said = bench.refused(&["zpool", "events", "-cv"]);
    assert!(said.starts_with("invalid options combined with -c\n"), "{said}");
    let cleared = bench.cenote(&["zpool", "events", "-c"]);
    assert_eq!(cleared, format!("cleared {} events\n", all.len()));
    assert!(bench.classes().is_empty());
    // As with OpenZFS, each of these writes the configuration.
    for _ in 0..3 {
        bench.cenote(&["zpool", "clear", "tank"]);
    }
    assert_eq!(bench.classes(), ["sysevent.fs.zfs.config_sync"; 3]);
    bench.cenote(&["zpool", "export", "tank"]);
    follower.hears("sysevent.fs.zfs.pool_export");
    // The same command hears of the next life.
    bench.import();
    follower.hears("sysevent.fs.zfs.pool_import");
    bench.cenote(&["zpool", "destroy", "tank"]);
    follower.hears("sysevent.fs.zfs.pool_destroy");
}

#[test]
fn wrong_bytes_are_told_with_their_place_and_not_too_often() {
    let Some((bench, devices)) = Bench::mounting(2) else { return };
    let [one, two] = &devices[..] else { panic!() };
    bench.create(&["mirror", one, two]);
    std::fs::write(bench.at("mnt/tank/large"), noise(24 << 20, 7)).unwrap();
    bench.cenote(&["zpool", "export", "tank"]);
    let mut device = std::fs::File::options().write(true).open(two).unwrap();
    // Labels stay whole.
    device.seek(SeekFrom::Start(8 << 20)).unwrap();
    for _ in 0..80 {
        device.write_all(&noise(1 << 20, 9)).unwrap();
    }
    drop(device);
    bench.import();
    bench.cenote(&["zpool", "scrub", "-w", "tank"]);
    let report = bench.event("ereport.fs.zfs.checksum");
    for name in ["detector = (embedded nvlist)", "(end detector)", "ena = 0x", "bad_ranges = 0x"] {
        assert!(report.contains(name), "{name} in\n{report}");
    }
    assert!(report.contains(&format!("vdev_path = \"{two}\"")), "{report}");
    assert!(report.contains("parent_type = \"mirror\""), "{report}");
    let status = bench.cenote(&["zpool", "status", "tank"]);
    let counted = status.lines().find(|line| line.contains(two.as_str())).unwrap();
    let listed = bench.cenote(&["zpool", "events", "-H"]);
    let mut seconds = std::collections::BTreeMap::new();
    for line in listed.lines().filter(|line| line.ends_with("ereport.fs.zfs.checksum")) {
        *seconds.entry(line.split('.').next().unwrap().to_owned()).or_insert(0) += 1;
    }
    assert!(!seconds.is_empty() && seconds.values().all(|count| *count <= 20), "{seconds:?}");
    println!("{counted}: {seconds:?}");
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
}
