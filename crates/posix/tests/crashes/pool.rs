//! Pools on simulated disks: made, cut off, opened again, judged.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use cenote_device::{Device, DeviceError, Keep, Recorded, SimDevice};
use cenote_engine::check::{CheckOptions, Verify, check};
use cenote_engine::dataset::change::PropertyInput;
use cenote_engine::pool::assemble::{PoolCandidate, assemble};
use cenote_engine::pool::change::{NewPoolPlan, create};
use cenote_engine::pool::discover::{Candidate, Opener, ScanOptions, scan};
use cenote_engine::pool::group::{LivePool, WriteOptions};
use cenote_engine::pool::{OpenOptions, Pool};
use cenote_engine::vdev::{AllocationClass, LeafOpener, LeafUnavailable};
use cenote_format::config::{Draid, TopLevel, VdevConfig, VdevKind};
use cenote_posix::Filesystem;
use cenote_posix::create::{NewFilesystem, initialise};

/// Bytes of a disk: the smallest there is.
const SIZE: usize = 64 << 20;
/// Bytes of a disk of a dRAID: its distributed spares are smaller, and of the smallest size too.
const DRAID_SIZE: usize = 96 << 20;
/// Runs a tool of OpenZFS 2.3, where that is unpacked: the installed one may not know all features.
const NEWER_TOOL: &str = "/opt/openzfs-2.3/run";
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
    features: Vec<&'static str>,
    properties: Vec<PropertyInput>,
    disks: BTreeMap<PathBuf, Arc<SimDevice>>,
}

/// The top-level vdevs of a kind of pool, each with its number of disks.
fn tops(kind: &str) -> Vec<(VdevConfig, usize, AllocationClass)> {
    use AllocationClass::{Dedup, Log, Normal, Special};
    let of = |kind, nparity| {
        let top = Some(TopLevel { ashift: 12, ..TopLevel::default() });
        VdevConfig { kind, nparity, top, ..VdevConfig::default() }
    };
    let disk = of(VdevKind::File, None);
    let mirror = of(VdevKind::Mirror, None);
    match kind {
        "disk" => vec![(disk, 1, Normal)],
        "mirror" => vec![(mirror, 2, Normal)],
        "raidz1" => vec![(of(VdevKind::Raidz, Some(1)), 3, Normal)],
        "raidz2" => vec![(of(VdevKind::Raidz, Some(2)), 4, Normal)],
        "draid1" => {
            let draid = Some(Draid { data: 2, spares: 1, groups: 4, children: None });
            vec![(VdevConfig { draid, ..of(VdevKind::Draid, Some(1)) }, 5, Normal)]
        }
        "log" => {
            let mut log = disk;
            log.top.iter_mut().for_each(|top| top.is_log = true);
            vec![(mirror, 2, Normal), (log, 1, Log)]
        }
        "special" => vec![(disk.clone(), 1, Normal), (mirror, 2, Special), (disk, 1, Dedup)],
        other => panic!("no kind of pool is called {other}"),
    }
}

/// A leaf on the disk at `path`.
pub fn leaf(path: &Path) -> VdevConfig {
    let path = Some(path.display().to_string());
    VdevConfig { kind: VdevKind::File, path, ..VdevConfig::default() }
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
    pub fn new(kind: &'static str) -> Self {
        Self::sized(kind, if kind == "draid1" { DRAID_SIZE } else { SIZE })
    }

    /// Blank disks of `size` bytes each for a pool of `kind`.
    pub fn sized(kind: &'static str, size: usize) -> Self {
        let count = tops(kind).iter().map(|(_, count, _)| count).sum();
        let names = (0..count).map(|number| format!("/sim/d{number}"));
        let mut features = FEATURES.to_vec();
        match kind {
            "draid1" => features.push("draid"),
            "special" => features.push("allocation_classes"),
            _ => {}
        }
        Self { kind, features, properties: Vec::new(), disks: blank(names, size) }
    }

    /// The pool has these features too, and its root dataset these properties.
    pub fn with(mut self, features: &[&'static str], properties: &[PropertyInput]) -> Self {
        self.features.extend(features);
        self.properties.extend_from_slice(properties);
        self
    }

    /// A blank disk more, `/sim/NAME`, that is not the pool's yet.
    pub fn and(mut self, name: &str) -> Self {
        self.disks.extend(blank([format!("/sim/{name}")], SIZE));
        self
    }

    /// Records what happens from now on.
    pub fn record(&self) {
        self.disks.values().for_each(|disk| disk.record());
    }

    /// Makes the pool; what happens to the disks afterwards is recorded.
    pub fn create(&self) -> Arc<LivePool> {
        let live = self.create_unrecorded();
        self.record();
        live
    }

    /// Makes the pool.
    pub fn create_unrecorded(&self) -> Arc<LivePool> {
        let mut leaves = self.disks.keys().map(|path| leaf(path));
        let mut top = |(top, count, class): (VdevConfig, usize, AllocationClass)| {
            let mut leaves: Vec<VdevConfig> = leaves.by_ref().take(count).collect();
            let config = match top.kind {
                VdevKind::File => VdevConfig { top: top.top, ..leaves.remove(0) },
                _ => VdevConfig { children: Some(leaves), ..top },
            };
            (config, class)
        };
        let tops = tops(self.kind).into_iter().map(&mut top).collect();
        let plan = NewPoolPlan {
            name: NAME.into(),
            temporary_name: None,
            version: 5000,
            tops,
            spares: Vec::new(),
            caches: Vec::new(),
            features: self.features.iter().map(|name| (*name).to_owned()).collect(),
            pool_properties: Vec::new(),
            properties: self.properties.clone(),
            command: None,
            hostid: 0,
            hostname: "test".into(),
            encryption: None,
        };
        let open = self.opener();
        create(plan, open, &OpenOptions::default(), WriteOptions::default(), |set, tx| {
            initialise(set, tx, &NewFilesystem::default()).unwrap();
            Ok(())
        })
        .unwrap()
    }

    /// Opens disks as leaves of a pool.
    pub fn opener(&self) -> Arc<dyn LeafOpener> {
        let disks = self.clone();
        Arc::new(move |leaf: &VdevConfig| {
            let path = leaf.path.clone().unwrap_or_default();
            let opened = Opener::open(&disks, Path::new(&path));
            opened.map_err(|error| LeafUnavailable::open_failed(error.to_string()))
        })
    }

    /// The disk with this number.
    #[allow(dead_code, reason = "not all tests harm disks")]
    pub fn disk(&self, number: usize) -> &Arc<SimDevice> {
        self.disks.values().nth(number).unwrap()
    }

    /// The same with another disk in the place of that with this number.
    #[allow(dead_code, reason = "not all tests harm disks")]
    pub fn with_disk(mut self, number: usize, disk: SimDevice) -> Self {
        *self.disks.values_mut().nth(number).unwrap() = Arc::new(disk);
        self
    }

    /// The orders of all recorded events, ascending.
    pub fn orders(&self) -> Vec<u64> {
        let events = self.disks.values().flat_map(|disk| disk.recorded());
        let mut orders: Vec<u64> = events.map(|recorded| recorded.order).collect();
        orders.sort_unstable();
        orders
    }

    /// The disks as a power cut right before event `order` leaves them.
    pub fn cut(&self, order: u64, keep: &mut dyn FnMut(&Recorded) -> Keep) -> Self {
        let after = |(path, disk): (&PathBuf, &Arc<SimDevice>)| {
            (path.clone(), Arc::new(disk.after_crash(order, keep)))
        };
        Self { disks: self.disks.iter().map(after).collect(), ..self.clone() }
    }

    fn candidate(&self, place: &str) -> PoolCandidate {
        let opener: Arc<dyn Opener> = Arc::new(self.clone());
        // However busy the machine is: these disks answer.
        let deadline = std::time::Duration::from_secs(600);
        let options = ScanOptions { deadline, ..ScanOptions::new(vec!["/sim".into()]) };
        let mut pools = assemble(&scan(&opener, &options));
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
        let opened = self.try_open(place, WriteOptions::default());
        opened.unwrap_or_else(|error| panic!("{place}: {error}"))
    }

    /// Opens the pool for writing, if it can be.
    pub fn try_open(
        &self,
        place: &str,
        write: WriteOptions,
    ) -> cenote_engine::Result<Arc<LivePool>> {
        let options = OpenOptions {
            prefetch_threads: 0,
            devices: Some(Arc::new(self.clone())),
            ..OpenOptions::default()
        };
        LivePool::open(&self.candidate(place), &options, write)
    }

    /// The pool as of its checkpoint.
    pub fn open_checkpoint(&self, place: &str) -> Arc<Pool> {
        let options =
            OpenOptions { prefetch_threads: 0, checkpoint: true, ..OpenOptions::default() };
        let opened = Pool::open(&self.candidate(place), &options);
        opened.unwrap_or_else(|error| panic!("{place}: {error}"))
    }

    /// The files of the root dataset; the intent log is replayed.
    pub fn files(&self, live: &Arc<LivePool>, place: &str) -> Arc<Filesystem> {
        files_of(live, NAME, place)
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
            let file = std::fs::File::create(directory.join(path.file_name().unwrap())).unwrap();
            file.set_len(disk.size()).unwrap();
            for (offset, bytes) in disk.written() {
                file.write_all_at(&bytes, offset).unwrap();
            }
        }
    }
}

fn blank(
    names: impl IntoIterator<Item = String>,
    size: usize,
) -> BTreeMap<PathBuf, Arc<SimDevice>> {
    let disk = |name: String| (PathBuf::from(&name), Arc::new(SimDevice::new(name, size)));
    names.into_iter().map(disk).collect()
}

/// The files of a dataset; its intent log is replayed.
pub fn files_of(live: &Arc<LivePool>, name: &str, place: &str) -> Arc<Filesystem> {
    let dataset = cenote_posix::live::find(&live.pool().catalog(), name).unwrap();
    let opened = cenote_posix::live::open(live, &dataset, false);
    opened.unwrap_or_else(|error| panic!("{place}: {error:?}"))
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

/// What `zdb -bcc` says: it finds nothing wrong. False, without zdb.
pub fn zdb(disks: &Disks, place: &str) -> bool {
    let directory = tempfile::tempdir().unwrap();
    disks.dump(directory.path());
    let mut command = Command::new("zdb");
    if ["block_cloning", "raidz_expansion"].iter().any(|newer| disks.features.contains(newer)) {
        command = Command::new(NEWER_TOOL);
        // It ends when it is done (`tests/oracles`).
        command.arg("zdb").envs(std::env::var_os("ZDB_PRELOAD").map(|it| ("LD_PRELOAD", it)));
    }
    command.args(["-e", "-bcc", "-p"]).arg(directory.path()).arg(NAME);
    let Ok(output) = command.output() else {
        eprintln!("zdb is not installed: not asked");
        return false;
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("No leaks"), "{place}: {text}");
    true
}
