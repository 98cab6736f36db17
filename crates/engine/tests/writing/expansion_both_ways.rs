//! RAID-Z expansions that one of the two begins, and the other finishes.
//!
//! The other is the engine of OpenZFS 2.3 in user space (`tests/oracles/expand23.c`), where that is unpacked: no
//! older one knows the feature.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::census;
use super::evacuation::Files;
use super::expansion::{attach, is_expanding, pool, reopen, slowly, until, zdb};
use super::log::head;

/// Where its libraries are.
const LIBRARIES: &str = "/opt/openzfs-2.3/lib/x86_64-linux-gnu";

/// What to do, as `expand23` wants it.
struct Order {
    /// Negative: it dies then.
    seconds: i32,
    pause: u32,
    most: u64,
    newcomer: Option<PathBuf>,
}

/// Everything that is left to do.
const FINISH: Order = Order { seconds: 120, pause: 0, most: 0, newcomer: None };

/// OpenZFS's engine, built in a directory of its own.
struct Newer(tempfile::TempDir);

impl Newer {
    fn build() -> Option<Self> {
        if !Path::new(LIBRARIES).exists() {
            eprintln!("skipped: OpenZFS 2.3 is not in {LIBRARIES}");
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/oracles/expand23.c");
        let mut compiler = Command::new("cc");
        compiler.arg("-w").arg(source).arg("-o").arg(directory.path().join("expand23"));
        compiler.arg(format!("-L{LIBRARIES}"));
        compiler.args(["-l:libzpool.so.6", "-l:libnvpair.so.3", "-lpthread"]);
        let Ok(built) = compiler.output() else {
            eprintln!("skipped: there is no C compiler");
            return None;
        };
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        Some(Self(directory))
    }

    fn run(&self, name: &str, directory: &Path, order: Order) -> String {
        let mut files: Vec<PathBuf> =
            std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.retain(|path| Some(path) != order.newcomer.as_ref());
        files.sort();
        let mut command = Command::new(self.0.path().join("expand23"));
        command.env("LD_LIBRARY_PATH", LIBRARIES).arg(name).arg(order.seconds.to_string());
        command.arg(order.pause.to_string()).arg(order.most.to_string());
        command.arg(order.newcomer.unwrap_or_else(|| "-".into())).args(files);
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        let ended = if order.seconds < 0 { Some(9) } else { Some(0) };
        assert_eq!(output.status.code(), ended, "{text}");
        text
    }
}

#[test]
fn openzfs_finishes_what_was_begun_here() {
    let Some(newer) = Newer::build() else { return };
    for (round, wanted) in [0, 1, 16 << 20, 40 << 20].into_iter().enumerate() {
        let directory = tempfile::tempdir().unwrap();
        let live = pool("ours", directory.path(), (1 + round as u64 % 2, 4));
        let mut files = Files::new();
        {
            let dataset = head(&live);
            files.write(&live, dataset.set(), 60);
            live.sync().unwrap();
            attach(&live, directory.path(), "more").unwrap();
            let moved = || live.pool().uberblock().reflow.offset();
            until("something is moved", || !is_expanding(&live) || moved() >= wanted);
            files.churn(&live, dataset.set(), 5);
            live.sync().unwrap();
        }
        assert!(is_expanding(&live), "{wanted}");
        // As if the power had gone.
        live.abandon();
        drop(live);
        let text = newer.run("ours", directory.path(), FINISH);
        let live = reopen(directory.path(), slowly());
        assert!(!is_expanding(&live), "{text}");
        files.check(&live);
        census(live.pool());
        live.export().unwrap();
        drop(live);
        zdb(directory.path(), "ours");
    }
}

#[test]
fn what_openzfs_has_begun_is_finished_here() {
    let Some(newer) = Newer::build() else { return };
    // At each point where it can pause, and in the middle of moving.
    for (pause, most) in (1..=7).map(|pause| (pause, 0)).chain([(0, 20 << 20)]) {
        let directory = tempfile::tempdir().unwrap();
        let live = pool("theirs", directory.path(), (1, 3));
        let mut files = Files::new();
        {
            let dataset = head(&live);
            files.write(&live, dataset.set(), 60);
            live.sync().unwrap();
        }
        live.export().unwrap();
        drop(live);
        let newcomer = directory.path().join("more");
        std::fs::File::create(&newcomer).unwrap().set_len(super::SIZE).unwrap();
        let order = Order { seconds: -4, pause, most, newcomer: Some(newcomer) };
        let text = newer.run("theirs", directory.path(), order);
        assert!(text.contains("attach: 0"), "{text}");
        let live = reopen(directory.path(), slowly());
        files.check(&live);
        let begun = live.vdevs().topology().tops()[0].children().len();
        assert!(is_expanding(&live) && begun == 4, "pause {pause}: {text}");
        {
            let dataset = head(&live);
            files.churn(&live, dataset.set(), 5);
            files.write(&live, dataset.set(), 5);
            live.sync().unwrap();
        }
        until("the expansion ends", || !is_expanding(&live));
        live.sync().unwrap();
        files.check(&live);
        census(live.pool());
        live.export().unwrap();
        drop(live);
        zdb(directory.path(), "theirs");
    }
}
