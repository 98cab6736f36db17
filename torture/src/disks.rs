//! Pools on simulated disks: made, cut off, opened again.
//!
//! Invariant: nothing here looks at anything outside this process; the same setup and the same calls
//! give the same bytes on the disks.

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use cenote_codec::cipher::Suite;
use cenote_device::{Bytes, Device, DeviceError, Health, Keep, Recorded, SimDevice, SimEvent};
use cenote_engine::dataset::change::PropertyInput;
use cenote_engine::keys::Wrapping;
use cenote_engine::pool::assemble::{PoolCandidate, assemble};
use cenote_engine::pool::change::{NewPoolPlan, create};
use cenote_engine::pool::discover::{Candidate, Opener, ScanOptions, scan};
use cenote_engine::pool::group::{LivePool, WriteOptions};
use cenote_engine::pool::{OpenOptions, Pool};
use cenote_engine::vdev::{AllocationClass, LeafOpener, LeafUnavailable};
use cenote_engine::{Error, Result};
use cenote_format::Txg;
use cenote_format::config::{Draid, TopLevel, VdevConfig, VdevKind};
use cenote_format::crypto_key::KeyFormat;
use cenote_posix::create::{NewFilesystem, initialise};

use crate::plan::{Setup, Trouble};

/// A disk that takes the place of others for a while.
pub const NEWCOMER: &str = "/sim/z-new";
/// A disk that a RAID-Z is spread over, and stays.
pub const WIDER: &str = "/sim/w-more";
/// Name of every pool.
pub const NAME: &str = "tank";
/// Name of what was split off one.
pub const HALF: &str = "half";
/// Key of every encrypted one.
pub const KEY: [u8; 32] = [7; 32];
/// Bytes of decoded blocks kept in memory: few, so that much is read from the disks.
const CACHE: u64 = 2 << 20;

/// Features of the pools.
const FEATURES: [&str; 24] = [
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
    "zpool_checkpoint",
    "allocation_classes",
    "zstd_compress",
    "device_removal",
    "obsolete_counts",
];

/// The disks of one pool.
#[derive(Clone, Debug)]
pub struct Disks {
    disks: BTreeMap<PathBuf, Arc<SimDevice>>,
}

/// A top-level vdev of a layout.
pub struct Top {
    /// Its kind and shape.
    pub config: VdevConfig,
    /// Its leaves.
    pub leaves: usize,
    /// What it is for.
    pub class: AllocationClass,
    /// Leaves that may be lost.
    pub spare: usize,
}

/// Names of all layouts.
pub const LAYOUTS: [&str; 16] = [
    "disk",
    "stripe",
    "mirror",
    "mirror3",
    "raidz1",
    "raidz2",
    "raidz3",
    "draid1",
    "draid2",
    "two-spares",
    "log",
    "mirrored-log",
    "special",
    "dedup",
    "many",
    "pairs",
];

/// The top-level vdevs of a layout; none if it has no such name.
pub fn tops(layout: &str, ashift: u64) -> Vec<Top> {
    use AllocationClass::{Dedup, Log, Normal, Special};
    let of = |kind, nparity: u64, leaves, class: AllocationClass, spare| {
        let is_log = class == Log;
        let facts = Some(TopLevel { ashift, is_log, ..TopLevel::default() });
        let nparity = (nparity > 0).then_some(nparity);
        let config = VdevConfig { kind, nparity, top: facts, ..VdevConfig::default() };
        Top { config, leaves, class, spare }
    };
    let disk = |class| of(VdevKind::File, 0, 1, class, 0);
    let mirror = |leaves, class| of(VdevKind::Mirror, 0, leaves, class, leaves - 1);
    let raidz = |parity: u64, leaves| of(VdevKind::Raidz, parity, leaves, Normal, parity as usize);
    let draid = |parity: u64, leaves: usize, spares: u64| {
        let mut top = of(VdevKind::Draid, parity, leaves, Normal, parity as usize);
        let group = 2 + parity;
        // As many groups as make the slices of all children come out even.
        let width = leaves as u64 - spares;
        let groups =
            (1..=width).find(|groups| (groups * group).is_multiple_of(width)).unwrap_or(width);
        top.config.draid = Some(Draid { data: 2, spares, groups, children: None });
        top
    };
    match layout {
        "disk" => vec![disk(Normal)],
        "stripe" => vec![disk(Normal), disk(Normal)],
        "mirror" => vec![mirror(2, Normal)],
        "mirror3" => vec![mirror(3, Normal)],
        "raidz1" => vec![raidz(1, 3)],
        "raidz2" => vec![raidz(2, 4)],
        "raidz3" => vec![raidz(3, 6)],
        "draid1" => vec![draid(1, 5, 1)],
        "draid2" => vec![draid(2, 6, 1)],
        "two-spares" => vec![draid(2, 7, 2)],
        "log" => vec![mirror(2, Normal), disk(Log)],
        "mirrored-log" => vec![disk(Normal), mirror(2, Log)],
        "special" => vec![raidz(1, 3), mirror(2, Special)],
        "dedup" => vec![disk(Normal), mirror(2, Special), disk(Dedup)],
        "many" => (0..4).map(|_| disk(Normal)).collect(),
        "pairs" => (0..3).map(|_| mirror(2, Normal)).collect(),
        _ => Vec::new(),
    }
}

fn has_draid(tops: &[Top]) -> bool {
    tops.iter().any(|top| top.config.kind == VdevKind::Draid)
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

/// Waits until no group is under way that somebody asked for without waiting: what comes next is not to
/// race with it.
pub fn settle(live: &LivePool) {
    let gate = live.gate();
    let open = gate.figures().open;
    let last = if gate.is_wanted(open) { open } else { Txg(open.0.saturating_sub(1)) };
    // If it fails, the next step tells.
    let _ = gate.wait_synced(last, Duration::from_secs(30));
}

/// How pools are written here: when we say so, by nobody but us.
pub fn write_options() -> WriteOptions {
    let interval = Duration::from_secs(1 << 20);
    WriteOptions {
        dirty_limit: 4 << 30,
        interval,
        inline: true,
        // So that vdevs are emptied in many groups, and mappings are condensed however small they are.
        copied_at_once: Some(192 << 10),
        condensed_above: Some(0),
        ..WriteOptions::default()
    }
}

/// How pools are opened here.
pub fn open_options() -> OpenOptions {
    OpenOptions { prefetch_threads: 0, cache_limit: CACHE, ..OpenOptions::default() }
}

impl Disks {
    /// Blank disks for a pool of `setup`, and one each to make a RAID-Z wider, to become a log, to hold more
    /// data, and to take the place of another.
    pub fn new(setup: &Setup) -> Self {
        let tops = tops(&setup.layout, setup.ashift);
        let size = (setup.size_mib as usize).max(if has_draid(&tops) { 96 } else { 64 }) << 20;
        let count: usize = tops.iter().map(|top| top.leaves).sum();
        let names = (0..count).map(|number| format!("/sim/d{number:02}"));
        let more = [WIDER, "/sim/x-log", "/sim/y-data", NEWCOMER].map(str::to_owned);
        let names = names.chain(more);
        let disk = |name: String| (PathBuf::from(&name), Arc::new(SimDevice::new(name, size)));
        Self { disks: names.map(disk).collect() }
    }

    /// The disk at `path`.
    pub fn at(&self, path: &str) -> Option<&Arc<SimDevice>> {
        self.disks.get(Path::new(path))
    }

    /// Paths of the leaves the pool was made on.
    pub fn leaves(&self) -> Vec<String> {
        let all = self.disks.keys().map(|path| path.display().to_string());
        all.filter(|path| path.starts_with("/sim/d")).collect()
    }

    /// All of them.
    pub fn all(&self) -> impl Iterator<Item = &Arc<SimDevice>> {
        self.disks.values()
    }

    /// All have so many bytes more.
    pub fn grow(&self, bytes: u64) {
        let size = |disk: &SimDevice| usize::try_from(disk.measure().saturating_add(bytes));
        self.all().for_each(|disk| disk.grow(size(disk).unwrap_or(usize::MAX)));
    }

    /// Records what happens from now on.
    pub fn record(&self) {
        self.all().for_each(|disk| disk.record());
    }

    /// Makes the pool.
    pub fn create(&self, setup: &Setup) -> Result<Arc<LivePool>> {
        let mut leaves = self.disks.keys().map(|path| leaf(path));
        let mut top = |top: Top| {
            let mut leaves: Vec<VdevConfig> = leaves.by_ref().take(top.leaves).collect();
            let config = match top.config.kind {
                VdevKind::File => VdevConfig { top: top.config.top, ..leaves.remove(0) },
                _ => VdevConfig { children: Some(leaves), ..top.config },
            };
            (config, top.class)
        };
        let tops = tops(&setup.layout, setup.ashift);
        let draid = has_draid(&tops);
        let tops = tops.into_iter().map(&mut top).collect();
        let mut features: Vec<String> = FEATURES.iter().map(|name| (*name).to_owned()).collect();
        features.extend(draid.then(|| "draid".to_owned()));
        let raidz = setup.layout.starts_with("raidz") || setup.layout == "special";
        features.extend(raidz.then(|| "raidz_expansion".to_owned()));
        features.extend(setup.encrypted.then(|| "encryption".to_owned()));
        features.extend(setup.cloning.then(|| "block_cloning".to_owned()));
        let number = |(name, value): &(String, u64)| PropertyInput::number(name, *value);
        let mut properties: Vec<PropertyInput> = setup.properties.iter().map(number).collect();
        let encryption = match setup.encrypted {
            true => {
                properties.push(PropertyInput::text("keylocation", "prompt"));
                Some((Suite::Aes256Gcm, Wrapping::new(KeyFormat::Raw, &KEY, None)?))
            }
            false => None,
        };
        let plan = NewPoolPlan {
            name: NAME.into(),
            temporary_name: None,
            version: 5000,
            tops,
            spares: Vec::new(),
            caches: Vec::new(),
            features,
            // What waits for devices would wait for us.
            pool_properties: vec![PropertyInput::number("failmode", 1)],
            properties,
            command: None,
            hostid: 0,
            hostname: "torture".into(),
            encryption,
        };
        create(plan, self.opener(), &open_options(), write_options(), |set, tx| {
            let made = initialise(set, tx, &NewFilesystem::default());
            made.map_err(|error| Error::invalid(error.reason))
        })
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

    /// The orders of all recorded events, ascending.
    pub fn orders(&self) -> Vec<u64> {
        let events = self.disks.values().flat_map(|disk| disk.recorded());
        let mut orders: Vec<u64> = events.map(|recorded| recorded.order).collect();
        orders.sort_unstable();
        orders
    }

    /// The disks as a power cut right before event `order(path)` of each leaves them.
    pub fn cut(
        &self,
        order: &dyn Fn(&Path) -> u64,
        keep: &mut dyn FnMut(&Recorded) -> Keep,
    ) -> Self {
        let after = |(path, disk): (&PathBuf, &Arc<SimDevice>)| {
            (path.clone(), Arc::new(disk.after_crash(order(path), keep)))
        };
        Self { disks: self.disks.iter().map(after).collect() }
    }

    /// Those at `paths` as they are, to go on from twice.
    pub fn copy_of(&self, paths: &[String]) -> Self {
        let mut copy = self.copy();
        copy.disks.retain(|path, _| paths.iter().any(|own| Path::new(own) == path));
        copy
    }

    /// The disks as they are, to go on from twice.
    pub fn copy(&self) -> Self {
        self.cut(&|_| u64::MAX, &mut |_| Keep::All)
    }

    /// Leaves are as their troubles make them, all others well.
    pub fn ail(&self, troubles: &BTreeMap<String, Trouble>) {
        for (path, disk) in &self.disks {
            let trouble = path.to_str().and_then(|path| troubles.get(path));
            disk.set_health(match trouble {
                None | Some(Trouble::Loses) => Health::Well,
                Some(Trouble::Reads) => Health::FailsReads,
                Some(Trouble::Writes) => Health::FailsWrites,
                Some(Trouble::Hangs) => Health::Hangs,
                Some(Trouble::Gone) => Health::Gone,
                Some(Trouble::NoRoom) => Health::NoRoom,
                Some(Trouble::Late) => Health::Late,
            });
            disk.lose_writes(trouble == Some(&Trouble::Loses));
        }
    }

    /// What a look at the disks finds.
    pub fn candidate(&self) -> Result<PoolCandidate> {
        found_by(Arc::new(self.clone()))
    }

    /// What a look at the disks as they were `before` finds; and the devices, which turn into these
    /// as soon as one is held.
    pub fn turning(&self, before: &Self) -> Result<(PoolCandidate, Arc<dyn Opener>)> {
        let turned = Arc::new(AtomicBool::new(false));
        let look = Turning { before: before.clone(), after: self.clone(), turned, holds: false };
        let hold = Turning { holds: true, ..look.clone() };
        Ok((found_by(Arc::new(look))?, Arc::new(hold)))
    }

    /// Opens the pool for reading.
    pub fn open_to_look(&self) -> Result<Arc<Pool>> {
        Pool::open(&self.candidate()?, &open_options())
    }

    /// Opens the pool for writing.
    pub fn open(&self) -> Result<Arc<LivePool>> {
        open_with(&self.candidate()?, Arc::new(self.clone()))
    }

    /// Opens the pool for writing, as of its checkpoint.
    pub fn open_checkpoint(&self) -> Result<Arc<LivePool>> {
        let devices: Arc<dyn Opener> = Arc::new(self.clone());
        let options = OpenOptions { checkpoint: true, devices: Some(devices), ..open_options() };
        let live = LivePool::open(&self.candidate()?, &options, write_options())?;
        settle(&live);
        Ok(live)
    }

    /// Writes the disks into files of `directory`.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn dump(&self, directory: &Path) -> std::io::Result<()> {
        for (path, disk) in &self.disks {
            let name = path.file_name().unwrap_or_default();
            let file = std::fs::File::create(directory.join(name))?;
            file.set_len(disk.size())?;
            for (offset, bytes) in disk.written() {
                file.write_all_at(&bytes, offset)?;
            }
        }
        Ok(())
    }

    /// Prints what the disks carried out since [`Disks::record`], in order: for finding what differs between two
    /// runs of one plan.
    pub fn trace(&self) {
        use sha2::Digest;
        let mut all: Vec<(u64, String)> = Vec::new();
        for (path, disk) in &self.disks {
            all.extend(disk.recorded().into_iter().map(|recorded| match recorded.event {
                SimEvent::Flush => (recorded.order, format!("{} flush", path.display())),
                SimEvent::Write { offset, data } => {
                    let sum = sha2::Sha256::digest(&data);
                    let sum = u32::from_le_bytes([sum[0], sum[1], sum[2], sum[3]]);
                    let (path, length) = (path.display(), data.len());
                    (recorded.order, format!("{path} {offset:#x} {length:#x} {sum:08x}"))
                }
            }));
        }
        all.sort();
        all.iter().for_each(|(_, line)| eprintln!("  {line}"));
    }

    /// A number for all bytes of all disks.
    pub fn digest(&self) -> String {
        use sha2::Digest;
        let mut hash = sha2::Sha256::new();
        for (path, disk) in &self.disks {
            hash.update(path.display().to_string());
            for (offset, bytes) in disk.written() {
                if bytes.iter().any(|byte| *byte != 0) {
                    hash.update(offset.to_le_bytes());
                    hash.update(&bytes);
                }
            }
        }
        hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
    }
}

/// The pool that is on the devices of `opener`, beside what may have been split off it.
fn found_by(opener: Arc<dyn Opener>) -> Result<PoolCandidate> {
    let mut pools = assemble(&scan(&opener, &ScanOptions::new(vec!["/sim".into()])));
    if pools.len() > 1 {
        pools.retain(|pool| pool.name != HALF);
    }
    match pools.len() {
        1 => Ok(pools.remove(0)),
        count => Err(Error::corrupt(format!("{count} pools on the disks"))),
    }
}

/// Opens a pool that was found for writing.
pub fn open_with(candidate: &PoolCandidate, devices: Arc<dyn Opener>) -> Result<Arc<LivePool>> {
    // What was split off has another name, and its datasets the same.
    let name = (candidate.name != NAME).then(|| NAME.to_owned());
    let options = OpenOptions { devices: Some(devices), name, ..open_options() };
    let live = LivePool::open(candidate, &options, write_options())?;
    // What opening began is to be over before anybody does more: the group it asked for, and one more.
    settle(&live);
    live.sync()?;
    Ok(live)
}

/// Disks that another host writes until somebody holds one.
#[derive(Clone)]
struct Turning {
    before: Disks,
    after: Disks,
    turned: Arc<AtomicBool>,
    holds: bool,
}

impl Opener for Turning {
    fn candidates(&self, place: &Path) -> Result<Vec<Candidate>, DeviceError> {
        self.before.candidates(place)
    }

    fn open(&self, path: &Path) -> Result<Arc<dyn Device>, DeviceError> {
        if self.holds {
            self.turned.store(true, SeqCst);
        }
        let disk = |disks: &Disks| disks.disks.get(path).cloned().ok_or(DeviceError::Gone);
        let (before, after) = (disk(&self.before)?, disk(&self.after)?);
        Ok(Arc::new(TurningDisk { before, after, turned: self.turned.clone() }))
    }
}

#[derive(Debug)]
struct TurningDisk {
    before: Arc<SimDevice>,
    after: Arc<SimDevice>,
    turned: Arc<AtomicBool>,
}

impl TurningDisk {
    fn now(&self) -> &SimDevice {
        if self.turned.load(SeqCst) { &self.after } else { &self.before }
    }
}

impl Device for TurningDisk {
    fn path(&self) -> PathBuf {
        self.after.path()
    }

    fn size(&self) -> u64 {
        self.after.size()
    }

    fn measure(&self) -> u64 {
        self.after.measure()
    }

    fn sector_size(&self) -> u32 {
        self.after.sector_size()
    }

    fn read(&self, offset: u64, len: usize) -> Result<Bytes, DeviceError> {
        self.now().read(offset, len)
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        self.now().write(offset, data)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.now().flush()
    }
}
