//! Pools on simulated disks: made, cut off, opened again, judged.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use cenote_device::{Device, DeviceError, Keep, Recorded, SimDevice};
use cenote_engine::check::{CheckOptions, Verify, check};
use cenote_engine::pool::assemble::{PoolCandidate, assemble};
use cenote_engine::pool::discover::{Candidate, Opener, ScanOptions, scan};
use cenote_engine::pool::live::{LivePool, NewPoolPlan, WriteOptions, create};
use cenote_engine::pool::{OpenOptions, Pool};
use cenote_engine::vdev::{AllocationClass, LeafUnavailable};
use cenote_format::config::{TopLevel, VdevConfig, VdevKind};
use cenote_posix::Filesystem;
use cenote_posix::create::{NewFilesystem, initialise};

/// Bytes of a disk: the smallest there is.
const SIZE: usize = 64 << 20;
/// Name of every pool.
pub const NAME: &str = "tank";

/// Features of the pools: those most of the work goes through.
const FEATURES: [&str; 19] = [
    "async_destroy",
    "empty_bpobj",
    "lz4_compress",
    "spacemap_histogram",
    "enabled_txg",
    "hole_birth",
    "extensible_dataset",
    "embedded_data",
    "bookmarks",
    "filesystem_limits",
    "large_blocks",
    "large_dnode",
    "userobj_accounting",
    "project_quota",
    "spacemap_v2",
    "log_spacemap",
    "bookmark_v2",
    "livelist",
    "device_rebuild",
];

/// The disks of one pool.
#[derive(Clone)]
pub struct Disks {
    kind: &'static str,
    disks: BTreeMap<PathBuf, Arc<SimDevice>>,
}

impl Opener for Disks {
    fn candidates(&self, place: &Path) -> Result<Vec<Candidate>, DeviceError> {
        let inside = self.disks.keys().filter(|path| path.starts_with(place));
        Ok(inside.map(|path| Candidate { path: path.clone(), identity: None }).collect())
    }

    fn open(&self, path: &Path) -> Result<Arc<dyn Device>, DeviceError> {
        let disk = self.disks.get(path).ok_or(DeviceError::Gone)?;
        Ok(disk.clone())
    }
}

impl Disks {
    /// Blank disks for a pool of `kind`.
    pub fn new(kind: &str) -> Self {
        Self::sized(kind, SIZE)
    }

    /// Blank disks of `size` bytes each for a pool of `kind`.
    pub fn sized(kind: &str, size: usize) -> Self {
        let (kind, count) = match kind {
            "mirror" => ("mirror", 2),
            "raidz1" => ("raidz1", 3),
            _ => ("disk", 1),
        };
        let disk = |number| {
            let path = PathBuf::from(format!("/sim/d{number}"));
            (path.clone(), Arc::new(SimDevice::new(path.display().to_string(), size)))
        };
        Self { kind, disks: (0..count).map(disk).collect() }
    }

    /// Makes the pool; what happens to the disks afterwards is recorded.
    pub fn create(&self) -> Arc<LivePool> {
        let live = self.create_unrecorded();
        self.disks.values().for_each(|disk| disk.record());
        live
    }

    /// Makes the pool.
    pub fn create_unrecorded(&self) -> Arc<LivePool> {
        let leaf = |path: &PathBuf| VdevConfig {
            kind: VdevKind::File,
            path: Some(path.display().to_string()),
            ..VdevConfig::default()
        };
        let mut leaves: Vec<VdevConfig> = self.disks.keys().map(leaf).collect();
        let top = Some(TopLevel { ashift: 12, ..TopLevel::default() });
        let (kind, nparity) = match self.kind {
            "mirror" => (VdevKind::Mirror, None),
            _ => (VdevKind::Raidz, Some(1)),
        };
        let top = match self.kind {
            "disk" => VdevConfig { top, ..leaves.remove(0) },
            _ => VdevConfig { kind, nparity, top, children: Some(leaves), ..VdevConfig::default() },
        };
        let plan = NewPoolPlan {
            name: NAME.into(),
            temporary_name: None,
            version: 5000,
            tops: vec![(top, AllocationClass::Normal)],
            spares: Vec::new(),
            caches: Vec::new(),
            features: FEATURES.iter().map(|name| (*name).to_owned()).collect(),
            pool_properties: Vec::new(),
            properties: Vec::new(),
            command: None,
            hostid: 0,
            hostname: "test".into(),
            encryption: None,
        };
        let disks = self.clone();
        let open = move |leaf: &VdevConfig| {
            let path = leaf.path.clone().unwrap_or_default();
            let opened = Opener::open(&disks, Path::new(&path));
            opened.map_err(|error| LeafUnavailable::open_failed(error.to_string()))
        };
        create(plan, Arc::new(open), &OpenOptions::default(), WriteOptions::default(), |set, tx| {
            initialise(set, tx, &NewFilesystem::default()).unwrap();
            Ok(())
        })
        .unwrap()
    }

    /// The orders of all recorded events, ascending.
    pub fn orders(&self) -> Vec<u64> {
        let events = self.disks.values().flat_map(|disk| disk.recorded());
        let mut orders: Vec<u64> = events.map(|recorded| recorded.order).collect();
        orders.sort_unstable();
        orders
    }

    /// The order of the newest event.
    pub fn now(&self) -> u64 {
        self.orders().last().copied().unwrap_or(0)
    }

    /// The disks as a power cut right before event `order` leaves them.
    pub fn cut(&self, order: u64, keep: &mut dyn FnMut(&Recorded) -> Keep) -> Self {
        let after = |(path, disk): (&PathBuf, &Arc<SimDevice>)| {
            let bytes = disk.bytes_after_crash(order, keep);
            (path.clone(), Arc::new(SimDevice::from_bytes(path.display().to_string(), bytes)))
        };
        Self { kind: self.kind, disks: self.disks.iter().map(after).collect() }
    }

    fn candidate(&self, place: &str) -> PoolCandidate {
        let opener: Arc<dyn Opener> = Arc::new(self.clone());
        let mut pools = assemble(&scan(&opener, &ScanOptions::new(vec!["/sim".into()])));
        assert_eq!(pools.len(), 1, "{place}");
        pools.remove(0)
    }

    /// Opens the pool for reading.
    pub fn open_to_look(&self, place: &str) -> Arc<Pool> {
        let options = OpenOptions { prefetch_threads: 0, ..OpenOptions::default() };
        let opened = Pool::open(&self.candidate(place), &options);
        opened.unwrap_or_else(|error| panic!("{place}: {error}"))
    }

    /// Opens the pool for writing.
    pub fn open(&self, place: &str) -> Arc<LivePool> {
        let options = OpenOptions {
            prefetch_threads: 0,
            devices: Some(Arc::new(self.clone())),
            ..OpenOptions::default()
        };
        let opened = LivePool::open(&self.candidate(place), &options, WriteOptions::default());
        opened.unwrap_or_else(|error| panic!("{place}: {error}"))
    }

    /// The files of the root dataset; the intent log is replayed.
    pub fn files(&self, live: &Arc<LivePool>, place: &str) -> Arc<Filesystem> {
        let dataset = cenote_posix::live::find(&live.pool().catalog(), NAME).unwrap();
        let opened = cenote_posix::live::open(live, &dataset, false);
        opened.unwrap_or_else(|error| panic!("{place}: {error:?}"))
    }

    /// The bytes of the first disk.
    #[allow(dead_code, reason = "attacks start from them")]
    pub fn bytes(&self) -> Vec<u8> {
        let disk = self.disks.values().next().unwrap();
        disk.read(0, disk.size() as usize).unwrap().to_vec()
    }

    /// Writes the disks into files of `directory`.
    fn dump(&self, directory: &Path) {
        for (path, disk) in &self.disks {
            let bytes = disk.read(0, disk.size() as usize).unwrap();
            std::fs::write(directory.join(path.file_name().unwrap()), bytes).unwrap();
        }
    }
}

/// Every block of the pool is allocated once and right in every copy.
pub fn census(pool: &Arc<Pool>, place: &str) {
    let options =
        CheckOptions { verify: Verify::Everything, every_copy: true, ..CheckOptions::default() };
    let report = check(pool, &options, &mut |_| ControlFlow::Continue(()));
    let report = report.unwrap_or_else(|error| panic!("{place}: {error}"));
    let found = (&report.findings, &report.leaked, &report.unallocated);
    assert!(report.is_clean(), "{place}: {found:#?}");
}

/// What `zdb -bcc` says; nothing without zdb.
pub fn zdb(disks: &Disks, place: &str) {
    let directory = tempfile::tempdir().unwrap();
    disks.dump(directory.path());
    let mut command = Command::new("zdb");
    command.args(["-e", "-bcc", "-p"]).arg(directory.path()).arg(NAME);
    let Ok(output) = command.output() else {
        eprintln!("zdb is not installed: not asked");
        return;
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("No leaks"), "{place}: {text}");
}
