//! A pool open for writing: transaction groups, changes of its metadata, datasets being written.
//!
//! Invariant: the meta object set is changed by one thread only, the one that writes groups
//! ([`LivePool::change`] hands it work). Whoever only looks sees the [`Pool`], which shows the last
//! group that is on the disks. When devices fail beyond the redundancy, writing is suspended where
//! it is, and goes on when they are back; when a group cannot be written for another reason,
//! nothing is written any more and every change answers why.

mod cloned;
mod condensing;
pub(super) mod config;
pub(super) mod dataset;
mod differing;
pub(super) mod discarding;
mod dying;
mod effects;
mod errors;
mod evacuating;
pub(super) mod expanding;
mod freeing;
mod frees;
pub(super) mod growth;
mod heal;
mod hooks;
mod jobs;
mod live_log;
mod log;
pub(super) mod mapping;
mod missed;
pub(super) mod multihost;
mod outage;
mod promises;
mod rebuild;
mod receives;
mod scan;
mod spare_watch;
mod store;
pub(super) mod sweep;
pub(super) mod sync;
mod tasks;
mod telling;
mod timer;
pub(super) mod vdev_zaps;
mod worker;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use cenote_format::{BlockPointer, ObjectId, Txg};
use parking_lot::Mutex;

use super::Pool;
use crate::alloc::Allocator;
use crate::dataset::Promises;
use crate::dataset::change::{FreeingPass, LiveClones, LiveDedup};
use crate::intent::{Runway, SharedRules};
use crate::object::ObjectSet;
use crate::pipe::{AllocationUnits, Healer, PoolIo, Workers};
use crate::txg::{DirtyDatasets, Gate, Tx};
use crate::vdev::{VdevTree, WriteQueue};
use crate::{Error, Result};

pub use config::ConfigChange;
pub use dataset::{DatasetPolicy, LiveDataset};
pub use errors::read_error_logs;
pub use expanding::ExpansionProgress;
pub(super) use log::sealed_policy;
pub(super) use missed::load_missed;
pub use outage::FailMode;
pub use rebuild::RebuildProgress;
pub use scan::{ScanKind, ScanOrder, ScanProgress};
use spare_watch::SpareWatch;
pub use store::{MosSource, MosStore};
pub use sweep::{SweepKind, SweepOrder};
pub(super) use sync::seconds_now;
use tasks::Answers;
pub(super) use tasks::{Task, Work};

/// Time between groups when nobody asks for one.
pub const INTERVAL: Duration = Duration::from_secs(5);
/// Longest wait for a change to be on the disks.
pub const PATIENCE: Duration = Duration::from_secs(300);
/// Bytes of writes in flight unless told otherwise.
const IN_FLIGHT: u64 = 64 << 20;
/// Threads that write.
const WRITERS: usize = 4;

/// How a pool is written.
#[derive(Debug, Clone, Copy)]
pub struct WriteOptions {
    /// Most bytes that wait to be written.
    pub dirty_limit: u64,
    /// Most bytes handed to the devices at once.
    pub in_flight: u64,
    /// Time between groups when nobody asks for one.
    pub interval: Duration,
    /// Blocks are prepared and written by who waits for them, without threads: for tests that must
    /// come out the same each time.
    pub inline: bool,
    /// What of the intent logs cannot be read or replayed is given up: `zpool import -m`.
    pub accepts_log_losses: bool,
    /// What devices that are back missed is written to them without being asked.
    pub resilvers: bool,
    /// Most bytes a removal or an expansion copies in one group, about, if there is a limit.
    pub copied_at_once: Option<u64>,
    /// Bytes of mappings of removed vdevs above which they are condensed, if not as usual.
    pub condensed_above: Option<u64>,
    /// Time between two activity writes of a device (`multihost`).
    pub activity_interval: Duration,
}

impl Default for WriteOptions {
    fn default() -> Self {
        Self {
            dirty_limit: 512 << 20,
            in_flight: IN_FLIGHT,
            interval: INTERVAL,
            inline: false,
            accepts_log_losses: false,
            resilvers: true,
            copied_at_once: None,
            condensed_above: None,
            activity_interval: multihost::INTERVAL,
        }
    }
}

/// The group after which writing goes on: the newest on any device, also if the pool was taken back.
pub(super) fn last_group(pool: &Pool) -> Txg {
    pool.gone_back().map_or(pool.uberblock().txg, |back| back.from)
}

/// A pool open for writing.
pub struct LivePool {
    pub(super) pool: Arc<Pool>,
    pub(super) io: Arc<PoolIo>,
    pub(super) gate: Arc<Gate>,
    pub(super) mos: ObjectSet,
    pub(super) allocator: Arc<Allocator>,
    pub(super) dedup: Arc<LiveDedup>,
    pub(super) clones: LiveClones,
    pub(super) submit: Arc<hooks::PoolSubmit>,
    pub(super) workers: Arc<Workers>,
    pub(super) shared_rules: SharedRules,
    pub(super) runway: Arc<Runway>,
    pub(super) promises: Arc<Promises>,
    /// The devices that open heads know the costs of.
    pub(super) costs_of: Mutex<Weak<VdevTree>>,
    pub(super) options: WriteOptions,
    pub(super) datasets: Mutex<BTreeMap<ObjectId, Arc<LiveDataset>>>,
    /// Which of those that are not open change otherwise.
    pub(super) changed_closed: Mutex<dataset::ChangedClosed>,
    /// Which of them groups have changed.
    pub(super) dirty: Arc<DirtyDatasets>,
    /// What the task under way has put off; `None`: there is none.
    pub(super) effects: Mutex<Option<effects::Effects>>,
    /// For tests: which step of an order is to fail.
    pub(super) fails: AtomicU64,
    /// The process ends before the next group counts.
    pub(super) dies: AtomicBool,
    /// Sets that tasks of the present group made.
    pub(super) fresh: Mutex<Vec<Arc<LiveDataset>>>,
    /// Heads that got the content of a snapshot in this group, and the first block of an intent log that each of them
    /// does not have although it still looks so.
    pub(super) foreign_logs: Mutex<Vec<(Txg, ObjectId, BlockPointer)>>,
    pub(super) tasks: Mutex<Vec<Task>>,
    /// Objects of the meta object set that the group being written has written.
    pub(super) written: Mutex<BTreeSet<ObjectId>>,
    pub(super) config: Mutex<config::ConfigState>,
    pub(super) missed: Mutex<missed::Written>,
    /// The logs of lost blocks.
    pub(super) errors: errors::ErrorLogs,
    /// Since when devices are lost.
    pub(super) spare_watch: SpareWatch,
    /// Since when other devices are where some are lost.
    pub(super) replacements: SpareWatch,
    /// Whether it uses what devices have grown by.
    pub(super) growth: growth::Growth,
    pub(super) outage: Arc<outage::Outage>,
    pub(super) activity: Mutex<multihost::Activity>,
    /// Heads of volumes with an intent log that an earlier life of the pool left.
    pub(super) logged_volumes: Mutex<Vec<ObjectId>>,
    /// Heads whose intent log could not be replayed and is kept, and why.
    pub(super) unreplayed: Mutex<BTreeMap<ObjectId, Error>>,
    /// Kept for the pipe.
    pub(super) _healer: Arc<dyn Healer>,
    /// Long work. Only the thread that writes groups does it.
    pub(super) jobs: Arc<jobs::Jobs>,
    /// The scrub or resilver.
    pub(super) scan: Arc<scan::Scan>,
    /// Sequential rebuilds.
    pub(super) rebuilds: Arc<rebuild::Rebuilds>,
    /// Initialize and trim.
    pub(super) sweeps: Arc<sweep::Sweeps>,
    /// Receives under way.
    pub(super) receives: receives::Receives,
    /// The removal of a vdev.
    pub(super) evacuation: evacuating::Evacuation,
    /// The expansion of a vdev.
    pub(super) expanding: expanding::Expanding,
    /// How far freeing has come.
    pub(super) freeing_pass: Mutex<FreeingPass>,
    /// How many blocks groups may free.
    pub(super) frees: frees::Frees,
    pub(super) thread: Mutex<Option<JoinHandle<()>>>,
}

/// What is on its way to the devices, and the threads that bring it there.
fn queue_of(io: &PoolIo, options: &WriteOptions) -> Result<WriteQueue> {
    let threads = if options.inline { 0 } else { WRITERS };
    let queue = WriteQueue::new(io.pipe.vdev_handle().clone(), threads, options.in_flight);
    queue.map_err(Error::no_thread)
}

/// What writes blocks anew of which a copy was found wrong; readers have it from now on.
fn healer_of(io: &PoolIo, allocator: &Arc<Allocator>) -> Arc<dyn Healer> {
    let (allocator, pipe) = (allocator.clone(), Arc::downgrade(&io.pipe));
    let healer: Arc<dyn Healer> = Arc::new(heal::PoolHealer { allocator, pipe });
    io.pipe.set_healer(&healer);
    healer
}

/// Who waits for devices that came to fail.
fn outage_of(io: &PoolIo, gate: &Arc<Gate>, mode: FailMode) -> Arc<outage::Outage> {
    let outage = outage::Outage::new(gate.clone(), io.pipe.clone(), mode);
    let patience: Arc<dyn crate::pipe::Patience> = outage.clone();
    io.pipe.set_patience(&patience);
    outage
}

impl LivePool {
    pub(super) fn with(
        pool: Arc<Pool>,
        mos: ObjectSet,
        allocator: Allocator,
        options: WriteOptions,
    ) -> Result<Arc<Self>> {
        let io = pool.io().clone();
        let queue = queue_of(&io, &options)?;
        let gate = Gate::new(last_group(&pool), options.dirty_limit);
        gate.keep_in_step(options.inline);
        let mode = outage::FailMode::of(&mos);
        let outage = outage_of(&io, &gate, mode);
        let activity = Mutex::new(multihost::Activity::of(&mos, options.activity_interval));
        let allocator = Arc::new(allocator);
        pool.is_written_with(&allocator);
        pool.begin_events_with(mode.word());
        let healer = healer_of(&io, &allocator);
        let submit = Arc::new(hooks::PoolSubmit::new(queue, outage.clone()));
        io.pipe.set_submit(&(submit.clone() as Arc<dyn crate::pipe::Submit>));
        let dedup = Arc::new(LiveDedup::open(mos.clone())?);
        let clones = LiveClones::open(mos.clone(), pool.uberblock().version)?;
        Ok(Arc::new(Self {
            io,
            gate,
            growth: growth::Growth::of(&mos),
            mos,
            allocator,
            dedup,
            clones,
            _healer: healer,
            submit,
            workers: if options.inline { Workers::inline() } else { Workers::new()? },
            shared_rules: SharedRules::default(),
            runway: Arc::default(),
            promises: Arc::default(),
            costs_of: Mutex::default(),
            options,
            datasets: Mutex::default(),
            changed_closed: Mutex::default(),
            dirty: Arc::default(),
            effects: Mutex::default(),
            fails: AtomicU64::new(0),
            dies: AtomicBool::new(false),
            fresh: Mutex::default(),
            foreign_logs: Mutex::default(),
            tasks: Mutex::default(),
            written: Mutex::default(),
            config: Mutex::new(config::ConfigState::of(&pool)),
            missed: Mutex::new(missed::Written::of(&pool.vdevs())),
            errors: errors::ErrorLogs::default(),
            spare_watch: SpareWatch::default(),
            replacements: SpareWatch::default(),
            logged_volumes: Mutex::default(),
            unreplayed: Mutex::default(),
            outage,
            activity,
            jobs: Arc::new(jobs::Jobs::new(options.inline)),
            scan: Arc::default(),
            rebuilds: Arc::default(),
            sweeps: Arc::default(),
            receives: receives::Receives::default(),
            evacuation: evacuating::Evacuation::default(),
            expanding: expanding::Expanding::default(),
            freeing_pass: Mutex::default(),
            frees: frees::Frees::default(),
            thread: Mutex::new(None),
            pool,
        }))
    }

    /// What the last group on the disks holds, for whoever looks.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Heads of volumes with an intent log that an earlier life of the pool left: who replays one takes
    /// it off the list.
    pub fn logged_volumes(&self) -> &Mutex<Vec<ObjectId>> {
        &self.logged_volumes
    }

    /// The gate changes of files pass.
    pub fn gate(&self) -> &Arc<Gate> {
        &self.gate
    }

    /// What is allocated at least.
    fn units(&self) -> AllocationUnits {
        AllocationUnits::of(self.vdevs().data_units())
    }

    /// Free space and its bookkeeping.
    pub fn allocator(&self) -> &Arc<Allocator> {
        &self.allocator
    }

    /// The devices.
    pub fn vdevs(&self) -> Arc<VdevTree> {
        self.io.pipe.vdevs()
    }

    /// Waits until everything done so far is on the disks; not while writing is suspended.
    pub fn sync(&self) -> Result<()> {
        self.sync_within(PATIENCE)
    }

    /// The same, and not for longer than `patience`.
    pub fn sync_within(&self, patience: Duration) -> Result<()> {
        let open = self.gate.figures().open;
        self.gate.wait_synced_unless_suspended(open, patience)
    }

    /// Long work does nothing more; returns when nothing of it is under way.
    pub(in crate::pool) fn rest(&self) {
        self.jobs.pause(true);
        self.scan.rest();
        self.rebuilds.rest();
        self.sweeps.rest();
    }

    /// Long work goes on after [`Self::rest`].
    pub(in crate::pool) fn go_on(self: &Arc<Self>) -> Result<()> {
        self.jobs.pause(false);
        self.start_scanning()?;
        self.start_rebuilding()?;
        self.start_sweeping()
    }

    /// Writes nothing more: what a group under way cannot bring to the disks is given up.
    pub(in crate::pool) fn stop(&self) {
        self.outage.give_up();
        self.end_activity();
        self.gate.stop();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }

    /// Whether the feature of this guid is enabled, as of now.
    pub fn feature_enabled(&self, guid: &str) -> bool {
        use crate::alloc::SpaceSource;
        MosSource::new(self.mos.clone()).feature_enabled(guid)
    }

    /// A change in the open group, for the files of a dataset.
    pub fn begin(&self) -> Result<Tx> {
        self.gate.begin()
    }
}

impl Drop for LivePool {
    fn drop(&mut self) {
        self.stop();
    }
}
