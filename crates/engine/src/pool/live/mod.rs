//! A pool open for writing: transaction groups, changes of its metadata, datasets being written.
//!
//! Invariant: the meta object set is changed by one thread only, the one that writes groups
//! ([`LivePool::change`] hands it work). Whoever only looks sees the [`Pool`], which shows the last
//! group that is on the disks. When devices fail beyond the redundancy, writing is suspended where
//! it is, and goes on when they are back; when a group cannot be written for another reason,
//! nothing is written any more and every change answers why.

mod add;
mod checkpoint;
mod clone;
mod config;
mod create;
mod dataset;
mod effects;
mod events;
mod heal;
mod hooks;
mod keys;
mod log;
mod missed;
mod multihost;
mod outage;
mod promises;
mod properties;
mod remove;
mod store;
mod sync;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cenote_format::{ObjectId, Txg};
use crossbeam_channel::{RecvTimeoutError, Sender, bounded};
use parking_lot::Mutex;

use super::{OpenOptions, Pool};
use crate::alloc::Allocator;
use crate::dataset::Promises;
use crate::dataset::change::{LiveClones, LiveDedup, MosChange};
use crate::intent::{Runway, SharedRules};
use crate::object::ObjectSet;
use crate::pipe::{AllocationUnits, PoolIo, ReadContext, Workers};
use crate::pool::assemble::PoolCandidate;
use crate::pool::labels;
use crate::txg::{Gate, Tx};
use crate::vdev::{VdevTree, WriteQueue};
use crate::{Error, ErrorKind, Result};

pub use add::Additions;
pub use config::ConfigChange;
pub use create::{NewPoolPlan, create};
pub use dataset::{DatasetPolicy, LiveDataset};
pub use keys::Encryption;
pub(super) use missed::load_missed;
pub use outage::FailMode;
pub use store::{MosSource, MosStore};

/// Transaction groups beyond which a pool is not written: none has come near by itself.
const LAST_TXG: Txg = Txg(1 << 60);
/// Time between groups when nobody asks for one.
pub const INTERVAL: Duration = Duration::from_secs(5);
/// Longest wait for a change to be on the disks.
pub const PATIENCE: Duration = Duration::from_secs(300);
/// How often who waits for a change looks whether the pool is suspended.
const GLANCE: Duration = Duration::from_millis(500);
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
            activity_interval: multihost::INTERVAL,
        }
    }
}

/// The group after which writing goes on: the newest on any device, also if the pool was taken back.
fn last_group(pool: &Pool) -> Txg {
    pool.gone_back().map_or(pool.uberblock().txg, |back| back.from)
}

/// A task's answer, to be sent when its group is on the disks.
type Answers = Vec<(Sender<Result<()>>, Result<()>)>;

/// A change of the metadata.
type Work = Box<dyn FnOnce(&LivePool, &MosChange<'_>) -> Result<()> + Send>;

/// Work for the thread that writes groups.
struct Task {
    run: Work,
    /// Before anything else of the group is written.
    early: bool,
    done: Sender<Result<()>>,
}

/// A pool open for writing.
pub struct LivePool {
    pool: Arc<Pool>,
    io: Arc<PoolIo>,
    gate: Arc<Gate>,
    mos: ObjectSet,
    allocator: Arc<Allocator>,
    dedup: Arc<LiveDedup>,
    clones: LiveClones,
    submit: Arc<hooks::PoolSubmit>,
    workers: Arc<Workers>,
    shared_rules: SharedRules,
    runway: Arc<Runway>,
    promises: Arc<Promises>,
    options: WriteOptions,
    datasets: Mutex<BTreeMap<ObjectId, Arc<LiveDataset>>>,
    /// What the task under way has put off; `None`: there is none.
    effects: Mutex<Option<effects::Effects>>,
    /// For tests: which step of an order is to fail.
    fails: AtomicU64,
    /// Sets that tasks of the present group made.
    fresh: Mutex<Vec<Arc<LiveDataset>>>,
    tasks: Mutex<Vec<Task>>,
    config: Mutex<config::ConfigState>,
    missed: Mutex<missed::Written>,
    outage: Arc<outage::Outage>,
    activity: Mutex<multihost::Activity>,
    /// Heads of volumes with an intent log that an earlier life of the pool left.
    logged_volumes: Mutex<Vec<ObjectId>>,
    /// Heads whose intent log could not be replayed and is kept, and why.
    unreplayed: Mutex<BTreeMap<ObjectId, Error>>,
    /// Kept for the pipe.
    _healer: Arc<dyn crate::pipe::Healer>,
    /// Blocks may wait to be freed in the background.
    freeing: AtomicBool,
    /// Why what was destroyed is not freed any further.
    stuck: Mutex<Option<Error>>,
    /// What a checkpoint held may wait to be freed.
    discarding: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl LivePool {
    /// Opens the pool behind `candidate` for reading and writing, and starts writing groups.
    pub fn open(
        candidate: &PoolCandidate,
        options: &OpenOptions,
        write: WriteOptions,
    ) -> Result<Arc<Self>> {
        let options = OpenOptions { writable: true, ..options.clone() };
        let pool = Pool::open(candidate, &options)?;
        Self::over(pool, write)
    }

    /// Starts writing a pool whose devices are open for it.
    pub fn over(pool: Arc<Pool>, write: WriteOptions) -> Result<Arc<Self>> {
        check_maintained(&pool)?;
        let io = pool.io().clone();
        let uberblock = pool.uberblock();
        let mos = ObjectSet::open_live(&io, uberblock.root, ReadContext::default())?;
        let config = pool.config();
        let tree = config
            .vdev_tree
            .clone()
            .ok_or_else(|| Error::corrupt("the pool's configuration has no vdev tree"))?;
        let source = Arc::new(MosSource::new(mos.clone()));
        let allocator = Allocator::open(io.pipe.vdevs(), &tree, source, last_group(&pool))?;
        if pool.gone_back().is_none() {
            labels::spread_uberblock(&pool.vdevs(), &uberblock)?;
        }
        let live = Self::with(pool, mos, allocator, write)?;
        live.check_host()?;
        live.claim_logs()?;
        live.note_opening();
        let claimed_sealed = !live.fresh.lock().is_empty();
        live.start()?;
        if claimed_sealed {
            // Nobody may open these sets before what the claim changed in them is on the disks.
            live.sync()?;
        }
        live.mend_bootfs()?;
        Ok(live)
    }

    fn with(
        pool: Arc<Pool>,
        mos: ObjectSet,
        allocator: Allocator,
        options: WriteOptions,
    ) -> Result<Arc<Self>> {
        let io = pool.io().clone();
        let tree = {
            let io = io.clone();
            move || io.pipe.vdevs()
        };
        let queue =
            WriteQueue::new(tree, if options.inline { 0 } else { WRITERS }, options.in_flight)
                .map_err(|error| {
                    Error::new(ErrorKind::Io, format!("cannot start a thread: {error}"))
                })?;
        let gate = Gate::new(last_group(&pool), options.dirty_limit);
        let mode = outage::FailMode::of(&mos);
        let outage = outage::Outage::new(gate.clone(), io.pipe.clone(), mode);
        let activity = Mutex::new(multihost::Activity::of(&mos, options.activity_interval));
        let patience: Arc<dyn crate::pipe::Patience> = outage.clone();
        io.pipe.set_patience(&patience);
        let allocator = Arc::new(allocator);
        let pipe = Arc::downgrade(&io.pipe);
        let healer: Arc<dyn crate::pipe::Healer> =
            Arc::new(heal::PoolHealer { allocator: allocator.clone(), pipe });
        io.pipe.set_healer(&healer);
        let submit = Arc::new(hooks::PoolSubmit::new(queue, outage.clone()));
        let seen: Arc<dyn crate::pipe::Submit> = submit.clone();
        io.pipe.set_submit(&seen);
        let config = config::ConfigState::of(&pool);
        let dedup = Arc::new(LiveDedup::open(mos.clone())?);
        let clones = LiveClones::open(mos.clone(), pool.uberblock().version)?;
        Ok(Arc::new(Self {
            io,
            gate,
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
            options,
            datasets: Mutex::default(),
            effects: Mutex::default(),
            fails: AtomicU64::new(0),
            fresh: Mutex::default(),
            tasks: Mutex::default(),
            config: Mutex::new(config),
            missed: Mutex::new(missed::Written::of(&pool.vdevs())),
            logged_volumes: Mutex::default(),
            unreplayed: Mutex::default(),
            outage,
            activity,
            freeing: AtomicBool::new(true),
            stuck: Mutex::default(),
            discarding: AtomicBool::new(true),
            thread: Mutex::new(None),
            pool,
        }))
    }

    fn start(self: &Arc<Self>) -> Result<()> {
        let weak = Arc::downgrade(self);
        let gate = self.gate.clone();
        let interval = self.options.interval;
        let outage = self.outage.clone();
        let run = move || {
            outage.is_writer();
            while gate.wait_for_work(interval) {
                let Some(live) = weak.upgrade() else { return };
                // Whoever waits for the group must hear of it, also of a fault of our own.
                let write = std::panic::AssertUnwindSafe(|| live.write_next());
                let panicked = |_| {
                    let reason = "a fault in this program; nothing more is written to the pool";
                    Err(Error::corrupt(reason).with_advice("export and import it, and report this"))
                };
                if let Err(error) = std::panic::catch_unwind(write).unwrap_or_else(panicked) {
                    tracing::error!(pool = live.pool.name(), %error, "the pool stops writing");
                    live.stop_with(error);
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("txg".into()).spawn(run);
        let thread = thread.map_err(|error| {
            Error::new(ErrorKind::Io, format!("cannot start a thread: {error}"))
        })?;
        *self.thread.lock() = Some(thread);
        self.start_activity()
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
        let vdevs = self.vdevs();
        AllocationUnits::of((0..vdevs.top_count()).filter_map(|id| {
            (vdevs.class(id) != crate::vdev::AllocationClass::Log)
                .then(|| vdevs.min_allocation(id))
                .flatten()
        }))
    }

    /// Free space and its bookkeeping.
    pub fn allocator(&self) -> &Arc<Allocator> {
        &self.allocator
    }

    /// The devices.
    pub fn vdevs(&self) -> Arc<VdevTree> {
        self.io.pipe.vdevs()
    }

    /// Has `work` change the pool's metadata, and waits until it is on the disks.
    ///
    /// `work` runs in the thread that writes groups. If it fails, nothing is changed.
    pub fn change<T: Send + 'static>(
        &self,
        work: impl FnOnce(&LivePool, &MosChange<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.order(false, work)
    }

    /// The same before anything of the group is written or freed.
    fn change_early<T: Send + 'static>(
        &self,
        work: impl FnOnce(&LivePool, &MosChange<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.order(true, work)
    }

    fn order<T: Send + 'static>(
        &self,
        early: bool,
        work: impl FnOnce(&LivePool, &MosChange<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let result = Arc::new(Mutex::new(None));
        let slot = result.clone();
        let run = move |live: &LivePool, change: &MosChange<'_>| {
            *slot.lock() = Some(work(live, change)?);
            Ok(())
        };
        let (done, wait) = bounded(1);
        let task = Task { run: Box::new(run), early, done };
        {
            let mut tasks = self.tasks.lock();
            if let Some(failure) = self.gate.failure() {
                return Err(failure);
            }
            self.refuse_suspended()?;
            tasks.push(task);
        }
        self.gate.want(self.gate.figures().open);
        let until = Instant::now() + PATIENCE;
        loop {
            match wait.recv_timeout(GLANCE) {
                Ok(Ok(())) => break,
                Ok(Err(error)) => return Err(error),
                Err(RecvTimeoutError::Timeout) if self.gate.suspension().is_some() => {
                    let reason = "pool I/O is currently suspended; the change is made when it \
                                  goes on";
                    return Err(Error::new(ErrorKind::TimedOut, reason));
                }
                Err(RecvTimeoutError::Timeout) if Instant::now() < until => {}
                Err(_) => {
                    let reason = format!("the change was not on the disks after {PATIENCE:?}");
                    return Err(Error::new(ErrorKind::TimedOut, reason));
                }
            }
        }
        let value = result.lock().take();
        value.ok_or_else(|| Error::corrupt("a change without a result"))
    }

    /// An error if writing is suspended: for orders, which do not wait.
    pub(super) fn refuse_suspended(&self) -> Result<()> {
        match self.gate.suspension() {
            Some(_) => Err(Error::new(ErrorKind::Io, "pool I/O is currently suspended")),
            None => Ok(()),
        }
    }

    /// Waits until everything done so far is on the disks; not while writing is suspended.
    pub fn sync(&self) -> Result<()> {
        let open = self.gate.figures().open;
        self.gate.wait_synced_unless_suspended(open, PATIENCE)
    }

    /// Writes what is left and stops. `last` changes the metadata in the last group.
    pub fn close(&self) -> Result<()> {
        let synced = match self.gate.failure() {
            Some(failure) => Err(failure),
            None => {
                let logs = self.close_logs();
                self.allocator.flush_all();
                // A group to flush, one for what flushing freed.
                logs.and_then(|()| self.sync()).and_then(|()| self.sync())
            }
        };
        self.end_activity();
        self.gate.stop();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
        synced
    }

    /// Whether a group has something to write.
    fn has_work(&self, txg: Txg) -> bool {
        !self.tasks.lock().is_empty()
            || self.freeing.load(Relaxed)
            || self.discarding.load(Relaxed)
            || self.config.lock().is_dirty()
            || self.has_missed(&self.vdevs())
            || self.datasets.lock().values().any(|dataset| dataset.needs_sync(txg))
    }

    fn write_next(&self) -> Result<()> {
        let open = self.gate.figures().open;
        if !self.has_work(open) && !self.gate.is_wanted(open) {
            return Ok(());
        }
        let txg = self.gate.close();
        let tasks = std::mem::take(&mut *self.tasks.lock());
        let mut answers = Vec::with_capacity(tasks.len());
        let written = self.write_group(txg, tasks, &mut answers);
        match written {
            Ok(()) => {
                self.gate.finished(txg);
                for (done, answer) in answers {
                    // Nobody waits any more if this fails.
                    let _ = done.send(answer);
                }
                Ok(())
            }
            Err(error) => {
                for (done, _) in answers {
                    let _ = done.send(Err(error.clone()));
                }
                Err(error)
            }
        }
    }

    fn stop_with(&self, error: Error) {
        let tasks = {
            let mut tasks = self.tasks.lock();
            self.gate.fail(error.clone());
            std::mem::take(&mut *tasks)
        };
        for task in tasks {
            let _ = task.done.send(Err(error.clone()));
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
        self.gate.stop();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

/// Refuses to write pools in which something is kept that this code does not keep up yet.
fn check_maintained(pool: &Pool) -> Result<()> {
    let refuse = |what: &str| {
        let reason = format!("{what}: writing such a pool is not supported yet");
        Err(Error::only_read(reason))
    };
    let txg = last_group(pool);
    if txg > LAST_TXG {
        let reason = format!("the uberblock says that {txg} transaction groups were written");
        return Err(Error::corrupt(reason).with_advice("open the pool read-only"));
    }
    if pool.uberblock().version < 26 {
        return refuse(&format!("the pool has version {}", pool.uberblock().version));
    }
    Ok(())
}
