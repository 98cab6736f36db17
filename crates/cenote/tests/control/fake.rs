//! A pool service without a pool: it shows what it was given and remembers what it was told.
//!
//! Invariant: its answers depend on nothing but the orders it got.

use std::sync::{Arc, Mutex};

use cenote_control::changes::{Change, ChangeRequest, MountRequest};
use cenote_control::protocol::{DatasetQuery, Failure, FailureKind, Part};
use cenote_control::replies::Replies;
use cenote_control::report::*;
use cenote_control::server::{Call, Carried, PoolService};

/// The service.
pub struct Fake {
    report: PoolReport,
    datasets: Mutex<Vec<DatasetReport>>,
    /// The changes it was told to make, with their command lines.
    pub changes: Arc<Mutex<Vec<String>>>,
}

fn leaf(number: u64) -> VdevReport {
    VdevReport {
        kind: "file".into(),
        path: Some(format!("/v/d{number}")),
        guid: 100 + number,
        ..VdevReport::default()
    }
}

impl Fake {
    /// A mirror called `name` with an encrypted filesystem, a volume and two snapshots.
    pub fn new(name: &str) -> Fake {
        let mirror = VdevReport {
            name: "mirror-0".into(),
            kind: "mirror".into(),
            space: 1 << 30,
            allocated: 1 << 20,
            children: vec![leaf(0), leaf(1)],
            ..VdevReport::default()
        };
        let root = VdevReport {
            name: name.into(),
            kind: "root".into(),
            space: 1 << 30,
            allocated: 1 << 20,
            children: vec![mirror],
            ..VdevReport::default()
        };
        let mut report = PoolReport { name: name.into(), guid: 42, root, ..PoolReport::default() };
        for (property, value) in [
            ("size", "1073741824"),
            ("capacity", "0"),
            ("health", "ONLINE"),
            ("dedupratio", "1.00"),
            ("free", "1072693248"),
            ("allocated", "1048576"),
            ("expandsize", "-"),
            ("fragmentation", "0"),
            ("checkpoint", "-"),
        ] {
            report.properties.set(property, value, Source::None);
        }
        report.properties.set("altroot", "-", Source::Default);
        report.pool_version = cenote_control::feature::FEATURE_VERSION;
        report.properties.set("feature@lz4_compress", "active", Source::Local);
        let datasets = vec![
            filesystem(name, "", 1),
            filesystem(name, "/locked", 5),
            other(name, "/vol", DatasetKind::Volume, 7),
            other(name, "/locked@s2", DatasetKind::Snapshot, 9),
            other(name, "/locked@s1", DatasetKind::Snapshot, 6),
            other(name, "@top", DatasetKind::Snapshot, 8),
        ];
        Fake { report, datasets: Mutex::new(datasets), changes: Arc::default() }
    }

    /// One that is being scrubbed, and takes no other order of scrubs.
    pub fn scrubbing(name: &str) -> Fake {
        let mut fake = Fake::new(name);
        fake.report.scan = Some(ScanReport {
            function: ScanFunction::Scrub,
            state: ScanState::Scanning,
            start_time: 1,
            end_time: 0,
            to_examine: 0,
            examined: 0,
            skipped: 0,
            processed: 0,
            errors: 0,
            pass_examined: 0,
            issued: 0,
            pass_issued: 0,
            pass_start: 1,
            paused: 0,
            spent_paused: 0,
            recent_rate: None,
        });
        fake
    }

    fn key_status(&self, dataset: &str, status: &str) -> Result<(), Failure> {
        self.change(dataset, |dataset| {
            dataset.properties.set("keystatus", status, Source::None);
            Ok(())
        })
    }

    fn change<T>(
        &self,
        name: &str,
        change: impl FnOnce(&mut DatasetReport) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let mut all = self.datasets.lock().unwrap();
        match all.iter_mut().find(|dataset| dataset.name == name) {
            Some(dataset) => change(dataset),
            None => Err(Failure::new(FailureKind::NotFound, "no such dataset")),
        }
    }
}

fn other(pool: &str, name: &str, kind: DatasetKind, createtxg: u64) -> DatasetReport {
    let mut dataset =
        DatasetReport { name: format!("{pool}{name}"), kind, createtxg, ..Default::default() };
    dataset.properties.set("type", kind.word(), Source::None);
    dataset.properties.set("used", (createtxg * 1024).to_string(), Source::None);
    dataset.properties.set("referenced", "24576", Source::None);
    if kind == DatasetKind::Volume {
        dataset.properties.set("available", "1000000", Source::None);
        dataset.properties.set("volsize", "33554432", Source::Local);
    }
    dataset
}

fn filesystem(pool: &str, name: &str, createtxg: u64) -> DatasetReport {
    let mut dataset = other(pool, name, DatasetKind::Filesystem, createtxg);
    dataset.properties.set("available", "1000000", Source::None);
    dataset.properties.set("quota", "0", Source::Default);
    dataset.properties.set("mountpoint", format!("/{pool}{name}"), Source::Default);
    dataset.properties.set("com.example:note", "héllo", Source::Local);
    if !name.is_empty() {
        dataset.properties.set("encryptionroot", format!("{pool}{name}"), Source::None);
        dataset.properties.set("keystatus", "unavailable", Source::None);
        dataset.properties.set("keyformat", "passphrase", Source::None);
        dataset.properties.set("keylocation", "prompt", Source::Local);
    }
    dataset
}

impl PoolService for Fake {
    fn report(&self) -> PoolReport {
        self.report.clone()
    }

    fn datasets(&self, query: &DatasetQuery, replies: &Replies<'_>) -> Result<(), Failure> {
        let all = self.datasets.lock().unwrap();
        if let Some(root) = &query.root
            && !all.iter().any(|dataset| dataset.name == *root)
        {
            return Err(Failure::new(FailureKind::NotFound, "no such dataset"));
        }
        let selected = all.iter().filter(|dataset| query.selects(&dataset.name, dataset.kind));
        let mut selected: Vec<DatasetReport> = selected.cloned().collect();
        for dataset in &mut selected {
            dataset.properties.0.retain(|property| query.wants(&property.name));
        }
        drop(all);
        replies.list(selected.into_iter().map(Ok), Part::Datasets)
    }

    fn history(&self, replies: &Replies<'_>) -> Result<(), Failure> {
        let record = |index: u64| HistoryRecord {
            time: 1_795_198_769,
            command: Some(format!("zfs snapshot tank@{index}")),
            ..HistoryRecord::default()
        };
        replies.list((0..1200).map(record).map(Ok), Part::History)
    }

    fn usage(&self, _: &str, replies: &Replies<'_>) -> Result<(), Failure> {
        let kind = "user".to_owned();
        let one = UsageRecord { kind, used: 1536, quota: Some(1), ..UsageRecord::default() };
        replies.list([Ok(one)], Part::Usage)
    }

    fn carry_out(&self, request: &ChangeRequest, call: Call<'_>) -> Result<Carried, Failure> {
        let other = |message: String| Failure::new(FailureKind::Other, message);
        let mut carried = Carried::default();
        match &request.change {
            Change::Mount(MountRequest { dataset: Some(name), .. }) => {
                self.change(name, |dataset| {
                    if dataset.properties.value("keystatus") == Some("unavailable") {
                        let message = format!("cannot mount '{name}': encryption key not loaded");
                        return Err(other(message));
                    }
                    dataset.mounted_at = dataset.properties.value("mountpoint").map(str::to_owned);
                    Ok(())
                })?;
            }
            Change::Mount(_) => {
                (1..=3).for_each(|done| call.replies.progress(done, 3));
                carried.warnings.push("cannot mount 'tank/x': directory is not empty".into());
            }
            Change::Unmount(request) => {
                let name = request.dataset.clone().unwrap_or_default();
                self.change(&name, |dataset| {
                    let message = format!("cannot unmount '{name}': not currently mounted");
                    dataset.mounted_at.take().map(drop).ok_or_else(|| other(message))
                })?;
            }
            Change::LoadKey(request) => {
                let key = call.key().map_err(|error| other(error.to_string()))?;
                if key.0 != b"right passphrase" {
                    let name = &request.dataset;
                    let message = format!("Key load error: Incorrect key provided for '{name}'.");
                    return Err(Failure::new(FailureKind::WrongKey, message));
                }
                self.key_status(&request.dataset, "available")?;
            }
            Change::UnloadKey(dataset) => self.key_status(dataset, "unavailable")?,
            Change::Scan(_) if self.report.scan.is_some() => {
                return Err(other("cannot scrub tank: currently scrubbing".into()));
            }
            Change::Export { force: false } => {
                let message = "cannot unmount '/tank': pool or dataset is busy";
                return Err(Failure::new(FailureKind::Busy, message));
            }
            change => {
                carried.ends = matches!(change, Change::Export { .. } | Change::DestroyPool { .. });
                self.changes.lock().unwrap().push(format!("{change:?}"));
                if let Some(command) = &request.command {
                    self.changes.lock().unwrap().push(command.clone());
                }
            }
        }
        Ok(carried)
    }
}
