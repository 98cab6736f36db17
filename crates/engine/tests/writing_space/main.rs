//! Space maps of pools written here, over many groups: by our own census and by `zdb`.
//!
//! Invariant: at every group, exported or as after a crash, `zdb -bcc` finds no leak, and what was
//! recorded with and without logs is what another process goes on with.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use cenote_device::{Device, FileDevice, Mode};
use cenote_engine::check::{CheckOptions, check};
use cenote_engine::object::{NewObject, ObjectSet};
use cenote_engine::pool::assemble::assemble;
use cenote_engine::pool::change::{NewPoolPlan, create};
use cenote_engine::pool::discover::{FileOpener, Opener, ScanOptions, scan};
use cenote_engine::pool::group::{LivePool, WriteOptions};
use cenote_engine::pool::{OpenOptions, Pool};
use cenote_engine::txg::Tx;
use cenote_engine::vdev::{AllocationClass, LeafUnavailable};
use cenote_format::config::{Draid, TopLevel, VdevConfig, VdevKind};
use cenote_format::zap::Normalization;
use cenote_format::{ObjectId, ObjectType, feature};

/// Bytes of a device.
const SIZE: u64 = 512 << 20;

/// Features later than OpenZFS 2.1, which the installed zdb does not know.
const LATER: [&str; 14] = [
    "zilsaxattr",
    "head_errlog",
    "blake3",
    "block_cloning",
    "vdev_zaps_v2",
    "redaction_list_spill",
    "raidz_expansion",
    "fast_dedup",
    "longname",
    "large_microzap",
    "block_cloning_endian",
    "dynamic_gang_header",
    "physical_rewrite",
    "draid_failure_domains",
];

fn devices(directory: &Path, count: usize) -> Vec<VdevConfig> {
    let make = |number| {
        let path = directory.join(format!("d{number}"));
        std::fs::File::create(&path).unwrap().set_len(SIZE).unwrap();
        let path = Some(path.display().to_string());
        VdevConfig { kind: VdevKind::File, path, ..VdevConfig::default() }
    };
    (0..count).map(make).collect()
}

fn plan(name: &str, without: &[&str], tops: Vec<VdevConfig>) -> NewPoolPlan {
    let all = feature::FEATURES.iter().map(|feature| feature.name().to_owned());
    let features =
        all.filter(|name| !LATER.contains(&name.as_str()) && !without.contains(&name.as_str()));
    let recorded = TopLevel { ashift: 12, ..TopLevel::default() };
    let top =
        |top: VdevConfig| (VdevConfig { top: Some(recorded), ..top }, AllocationClass::Normal);
    NewPoolPlan {
        name: name.into(),
        temporary_name: None,
        version: 5000,
        tops: tops.into_iter().map(top).collect(),
        spares: Vec::new(),
        caches: Vec::new(),
        features: features.collect(),
        pool_properties: Vec::new(),
        properties: Vec::new(),
        encryption: None,
        command: None,
        hostid: 0,
        hostname: "test".into(),
    }
}

fn open_leaf(config: &VdevConfig) -> Result<Arc<dyn Device>, LeafUnavailable> {
    let path: PathBuf = config.path.clone().unwrap().into();
    match FileDevice::open(path, Mode::ReadWrite) {
        Ok(device) => Ok(Arc::new(device)),
        Err(error) => Err(LeafUnavailable::open_failed(error.to_string())),
    }
}

fn master(set: &ObjectSet, tx: &Tx) -> cenote_engine::Result<()> {
    let new = NewObject::new(ObjectType::MASTER_NODE, 512);
    let master = set.claim_object(tx, ObjectId(1), &new)?;
    cenote_engine::zap::create(&master, tx, 77, Normalization::NONE)
}

fn census(pool: &Arc<Pool>) {
    let report = check(pool, &CheckOptions::default(), &mut |_| ControlFlow::Continue(())).unwrap();
    assert!(report.is_clean(), "{:#?}", (report.findings, report.leaked, report.unallocated));
}

/// `zdb` on a pool nobody has open; what it says, or nothing without it.
fn zdb(directory: &Path, name: &str, options: &[&str]) -> Option<String> {
    let mut command = Command::new("zdb");
    command.args(["-e", "-p"]).arg(directory).args(options).arg(name);
    let Ok(output) = command.output() else {
        eprintln!("skipped: zdb is not installed");
        return None;
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{options:?}: {text}");
    Some(text)
}

fn no_leaks(directory: &Path, name: &str) {
    if let Some(text) = zdb(directory, name, &["-bcc"]) {
        assert!(text.contains("No leaks"), "{text}");
        for word in ["leaked space", "mismatch", "error", "cannot", "claims"] {
            assert!(!text.to_lowercase().contains(word), "{word}: {text}");
        }
    }
}

/// Files that come, change and go.
struct Churn {
    state: u64,
    files: Vec<ObjectId>,
}

impl Churn {
    fn next(&mut self, below: u64) -> u64 {
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.state >> 33) % below
    }

    fn group(&mut self, live: &LivePool, set: &ObjectSet) {
        for _ in 0..3 {
            let tx = live.begin().unwrap();
            let block = [512, 4096, 16 << 10, 128 << 10][self.next(4) as usize];
            let new = NewObject::new(ObjectType::OTHER_U64, block);
            let file = set.create_object(&tx, &new).unwrap();
            let len = 1 + self.next(400_000) as usize;
            let seed = self.state;
            let data: Vec<u8> =
                (0..len as u64).map(|i| (i.wrapping_mul(seed | 1) >> 13) as u8).collect();
            file.write(&tx, 0, &data).unwrap();
            self.files.push(file.id());
        }
        for _ in 0..4 {
            let which = self.next(self.files.len() as u64) as usize;
            let tx = live.begin().unwrap();
            let file = set.object(self.files[which]).unwrap();
            let at = self.next(300_000);
            file.write(&tx, at, &vec![self.state as u8; 9000]).unwrap();
        }
        while self.files.len() > 60 {
            let which = self.next(self.files.len() as u64) as usize;
            let tx = live.begin().unwrap();
            set.free_object(&tx, self.files.swap_remove(which)).unwrap();
        }
        live.sync().unwrap();
    }
}

fn reopen(directory: &Path) -> Arc<LivePool> {
    let opener: Arc<dyn Opener> = Arc::new(FileOpener { mode: Mode::ReadWrite });
    let pools = assemble(&scan(&opener, &ScanOptions::new(vec![directory.to_owned()])));
    LivePool::open(&pools[0], &OpenOptions::default(), WriteOptions::default()).unwrap()
}

/// The devices as a crash would leave them, more or less.
fn snapshot(from: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    let files = std::fs::read_dir(from).unwrap().map(|entry| entry.unwrap().path());
    let done = Command::new("cp").arg("--sparse=always").args(files).arg(copy.path()).status();
    assert!(done.unwrap().success());
    copy
}

fn run(
    name: &str,
    without: &[&str],
    groups: u64,
    layout: impl Fn(Vec<VdevConfig>) -> Vec<VdevConfig>,
) {
    let directory = tempfile::tempdir().unwrap();
    let tops = layout(devices(directory.path(), 4));
    let (options, write) = (OpenOptions::default(), WriteOptions::default());
    let live =
        create(plan(name, without, tops), Arc::new(open_leaf), &options, write, master).unwrap();
    let mut churn = Churn { state: 1, files: Vec::new() };
    let mut live = live;
    for part in 0..3 {
        let head = live.pool().catalog().head(&live.pool().catalog().root().unwrap()).unwrap();
        let dataset = live.open_dataset(&head).unwrap();
        for _ in 0..groups {
            churn.group(&live, dataset.set());
        }
        census(live.pool());
        if part == 1 {
            // Nothing writes now but an empty group perhaps: a copy is one moment.
            let copy = snapshot(directory.path());
            no_leaks(copy.path(), name);
        }
        let used = live.allocator().figures().allocated(AllocationClass::Normal);
        drop(dataset);
        live.export().unwrap();
        drop(live);
        no_leaks(directory.path(), name);
        if let Some(text) = zdb(directory.path(), name, &["-mmm"]) {
            let bad = ["corrupt", "error", "invalid"].iter().find(|word| text.contains(**word));
            assert!(bad.is_none(), "{bad:?} {text}");
        }
        live = reopen(directory.path());
        let now = live.allocator().figures().allocated(AllocationClass::Normal);
        assert!(now.abs_diff(used) < 2 << 20, "{now} {used}");
    }
    live.export().unwrap();
}

#[test]
fn with_logs() {
    run("logs", &[], 80, |devices| devices.into_iter().take(2).collect());
}

#[test]
fn without_logs() {
    run("nologs", &["log_spacemap"], 40, |devices| devices.into_iter().take(1).collect());
}

#[test]
fn as_old_pools() {
    let without = ["log_spacemap", "spacemap_v2", "spacemap_histogram"];
    run("old", &without, 20, |devices| devices.into_iter().take(2).collect());
}

#[test]
fn on_draid() {
    run("draid", &[], 30, |devices| {
        vec![VdevConfig {
            kind: VdevKind::Draid,
            nparity: Some(1),
            draid: Some(Draid { data: 2, spares: 0, groups: 4, children: None }),
            children: Some(devices),
            ..VdevConfig::default()
        }]
    });
}
