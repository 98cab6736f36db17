//! Opening a pool: from labels to the trusted configuration and the meta object set.
//!
//! Chapter 01, section 11.4, stages A and B for reading. Invariant: what the labels say is used
//! only to find the MOS; everything after comes from blocks whose checksums matched.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use cenote_codec::checksum::Salt;
use cenote_format::config::{PoolConfig, VdevConfig, VdevKind};
use cenote_format::feature;
use cenote_format::objset::ObjsetKind;
use cenote_format::uberblock::Uberblock;
use cenote_format::{Guid, ObjectId, Txg};
use parking_lot::Mutex;

use super::assemble::PoolCandidate;
use super::choose::{self, Choice};
use super::discover::Opener;
use super::leaves::{CandidateLeaves, HeldDevices};
use super::space::PoolSpace;
use crate::alloc::Allocator;
use crate::dataset::{Catalog, Changed, Names, PoolCapacity, Written};
use crate::keys::KeyStore;
use crate::object::ObjectSet;
use crate::pipe::{Pipe, PoolIo, Prefetcher, ReadContext};
use crate::vdev::{AllocationClass, Topology, VdevTree};
use crate::zap::Zap;
use crate::{Error, ErrorKind, Result};

/// Largest packed configuration that is believed, in bytes.
const MAX_CONFIG: u64 = 64 << 20;
/// Transaction groups an ordinary rewind (`-F`) goes back: their blocks are not reused yet.
const SAFE_REWIND: u64 = 2;
/// First transaction group of any pool.
const FIRST_TXG: u64 = 4;

/// How far back to look for a state that opens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Rewind {
    /// Not at all: the newest state or an error.
    #[default]
    None,
    /// The last few transaction groups (`-F`).
    Safe,
    /// As far as there are uberblocks (`-FX`, `-T`).
    Extreme,
}

/// How to open a pool.
#[derive(Debug, Clone)]
pub struct OpenOptions {
    /// Most bytes of blocks kept in memory.
    pub cache_limit: u64,
    /// Threads that read ahead.
    pub prefetch_threads: usize,
    /// Open the pool as of this transaction group or the newest before it.
    pub max_txg: Option<Txg>,
    /// What to do when the newest state does not open.
    pub rewind: Rewind,
    /// Open the pool as of its checkpoint.
    pub checkpoint: bool,
    /// Open although a log device is missing; its records are not replayed then.
    pub missing_log: bool,
    /// Open although top-level vdevs are missing: what lies on them cannot be read (rescue).
    pub missing_vdevs: bool,
    /// Name the pool goes by while open, and from then on.
    pub name: Option<String>,
    /// That name is not kept: on the disks the pool keeps the one it has.
    pub temporary: bool,
    /// Longest wait for one device while opening.
    pub deadline: Duration,
    /// Open the devices for writing too.
    pub writable: bool,
    /// Opens devices for writing; `None`: those of this machine, held exclusively.
    pub devices: Option<Arc<dyn Opener>>,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            cache_limit: 256 << 20,
            prefetch_threads: 2,
            max_txg: None,
            rewind: Rewind::None,
            checkpoint: false,
            missing_log: false,
            missing_vdevs: false,
            name: None,
            temporary: false,
            deadline: Duration::from_secs(10),
            writable: false,
            devices: None,
        }
    }
}

/// An open pool. What it shows is that of one transaction group; if the pool is written, that of
/// the newest one on the disks.
pub struct Pool {
    name: String,
    /// Name on the disks, if it is to stay another one.
    stored_name: Option<String>,
    guid: Guid,
    io: Arc<PoolIo>,
    keys: Arc<KeyStore>,
    view: ArcSwap<View>,
    candidate: Option<PoolCandidate>,
    /// What groups wrote of the meta object set that nobody has asked for yet.
    changed: Mutex<Changed>,
    /// Names of datasets found before.
    names: Arc<Names>,
    /// Free space and its bookkeeping, while the pool is written.
    allocator: OnceLock<Arc<Allocator>>,
    /// The space of a pool that is only read.
    space: OnceLock<Arc<PoolSpace>>,
    /// What was shown first was not the newest any device has, but this was.
    gone_back: Option<GoneBack>,
}

/// An older state of a pool that was opened instead of the newest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GoneBack {
    /// The newest group any device had: no group up to it may be written again.
    pub from: Txg,
    /// When the older state was written, in seconds since 1970.
    pub as_of: u64,
    /// Seconds from then to the newest state.
    pub lost: u64,
}

/// A pool as of one transaction group.
struct View {
    config: Arc<PoolConfig>,
    uberblock: Uberblock,
    mos: ObjectSet,
    catalog: Catalog,
}

/// What some checksums begin with, if the pool has it.
fn checksum_salt(directory: &Zap) -> Result<Option<Salt>> {
    let Some(value) = directory.lookup(b"org.illumos:checksum_salt")? else { return Ok(None) };
    let bytes = value.as_bytes().unwrap_or_default();
    let salt: [u8; 32] = bytes
        .get(..32)
        .and_then(|salt| salt.try_into().ok())
        .ok_or_else(|| Error::corrupt("the checksum salt is not 32 bytes long"))?;
    Ok(Some(Salt::new(salt)))
}

impl Pool {
    /// Opens the pool behind `candidate` for reading.
    pub fn open(candidate: &PoolCandidate, options: &OpenOptions) -> Result<Arc<Self>> {
        let name = options.name.clone().unwrap_or_else(|| candidate.name.clone());
        let mut limit = options.max_txg;
        let mut newest = None;
        // Of the newest state only the checkpoint is read; its devices are not to be held then.
        let writable = options.writable && !options.checkpoint;
        let first_look = OpenOptions { writable, ..options.clone() };
        loop {
            let choice = match choose_uberblock(candidate, limit, options) {
                Ok(choice) => choice,
                Err(error) => {
                    return Err(newest.map_or(error, |(_, first)| first).at(|p| {
                        p.pool = Some(name.as_str().into());
                    }));
                }
            };
            let txg = choice.best.txg;
            let opened = Self::open_at(candidate, &name, choice.clone(), &first_look)
                .and_then(|pool| pool.at_checkpoint(choice, options));
            let error = match opened {
                Ok(pool) => return Ok(Arc::new(pool)),
                Err(error) => error.at(|place| place.pool = Some(name.as_str().into())),
            };
            let (first_txg, first) = newest.get_or_insert((txg, error));
            let oldest = match options.rewind {
                Rewind::None => return Err(first.clone()),
                Rewind::Safe => first_txg.0.saturating_sub(SAFE_REWIND).max(FIRST_TXG),
                Rewind::Extreme => FIRST_TXG,
            };
            if txg.0 <= oldest {
                return Err(first.clone());
            }
            tracing::info!(%txg, "this state does not open, trying an older one");
            limit = Some(Txg(txg.0 - 1));
        }
    }

    /// The pool as of its checkpoint, if that is asked for.
    fn at_checkpoint(self, choice: Choice, options: &OpenOptions) -> Result<Self> {
        let Some(candidate) = self.candidate.as_ref().filter(|_| options.checkpoint) else {
            return Ok(self);
        };
        let directory = Zap::open(self.mos().object(ObjectId(1))?)?;
        let words = directory
            .lookup("com.delphix:zpool_checkpoint".as_bytes())?
            .and_then(|value| value.as_u64s())
            .ok_or_else(|| Error::not_found("checkpoint does not exist"))?;
        let choice = Choice { best: Uberblock::from_words(&words)?, ..choice };
        // Nothing of the newer state may be shown for the older one.
        Self::open_at(candidate, &self.name, choice, options)
    }

    fn open_at(
        candidate: &PoolCandidate,
        name: &str,
        choice: Choice,
        options: &OpenOptions,
    ) -> Result<Self> {
        check_version(&choice.best)?;
        check_label_features(choice.label.as_ref())?;
        let untrusted = VdevTree::build(&candidate.tree, CandidateLeaves::new(candidate))?;
        untrusted.set_reflow_word(choice.best.reflow.0);
        let pipe = Pipe::new(Arc::new(untrusted), options.cache_limit);
        let prefetcher = Prefetcher::new(options.prefetch_threads);
        let io = Arc::new(PoolIo { pipe, prefetcher });
        let mos = ObjectSet::open(&io, choice.best.root, 0, None)?;
        let directory = Zap::open(mos.object(ObjectId(1))?)?;
        let config = read_config(&mos, &directory)?;
        let mut tree = config
            .vdev_tree
            .clone()
            .ok_or_else(|| Error::corrupt("the pool's configuration has no vdev tree"))?;
        super::assemble::correct_paths(&mut tree, &candidate.devices);
        check_guid_sum(&tree, &choice.best)?;
        // Going back on purpose, the labels are all newer than the state asked for.
        let going_back = choice.best.txg < choice.latest.txg
            || options.rewind == Rewind::Extreme
            || options.checkpoint;
        let label_limit = (!going_back).then_some(choice.best.txg);
        let trusted = if options.writable {
            let held = match &options.devices {
                Some(opener) => HeldDevices::with_opener(opener.clone()),
                None => HeldDevices::new(),
            };
            let trusted = VdevTree::build(&tree, held.leaves(candidate, label_limit))?;
            if let Some(path) = held.busy().first() {
                let reason = format!("{} is in use by another process", path.display());
                return Err(Error::new(ErrorKind::Busy, reason));
            }
            check_still_newest(candidate, &choice, options)?;
            trusted
        } else {
            VdevTree::build(&tree, CandidateLeaves::trusted(candidate, label_limit))?
        };
        trusted.set_reflow_word(choice.best.reflow.0);
        check_missing(&tree, &trusted, options)?;
        io.pipe.vdev_handle().exchange(Arc::new(trusted));
        super::removed::load_mappings(&io.pipe.vdevs(), &mos)?;
        let missed = super::group::load_missed(&io.pipe.vdevs(), &mos, choice.best.txg);
        if missed && !options.missing_vdevs {
            let vdevs = io.pipe.vdevs();
            super::apart::check(candidate, &choice, &tree, &vdevs, options.deadline)?;
        }
        let behind = !going_back && super::behind::note(&io.pipe, &choice.best, options.deadline);
        if missed || behind {
            // What stale devices gave before this was known is no error of theirs.
            io.pipe.vdevs().clear(None);
        }
        super::supported::check(&mos, &directory, &io.pipe)?;
        let handle = io.pipe.vdev_handle();
        handle.change(|vdevs| {
            let topology = vdevs.topology();
            vdevs.with_topology(topology.with_classes(&classes(&mos, topology)))
        })?;
        if let Some(salt) = checksum_salt(&directory)? {
            io.pipe.set_salt(salt);
        }
        let names: Arc<Names> = Arc::default();
        let catalog = Catalog::with_names(mos.clone(), name, names.clone())?;
        let view = View {
            config: Arc::new(io.pipe.vdevs().topology().config(&config)),
            uberblock: choice.best,
            mos,
            catalog,
        };
        let stored = view.config.name.clone().unwrap_or_else(|| candidate.name.clone());
        let (shown, newest) = (&view.uberblock, &choice.latest);
        let gone_back = (newest.txg > shown.txg).then_some(GoneBack {
            from: newest.txg,
            as_of: shown.timestamp,
            lost: newest.timestamp.saturating_sub(shown.timestamp),
        });
        Ok(Self {
            gone_back,
            name: name.to_owned(),
            stored_name: options.temporary.then_some(stored),
            guid: candidate.guid,
            io,
            keys: Arc::new(KeyStore::new()),
            view: ArcSwap::from_pointee(view),
            candidate: Some(candidate.clone()),
            changed: Mutex::new(Changed::All),
            names,
            allocator: OnceLock::new(),
            space: OnceLock::new(),
        })
    }

    /// A pool that is being created: it shows nothing before its first group is on the disks.
    pub(super) fn unwritten(
        name: String,
        guid: Guid,
        config: PoolConfig,
        uberblock: Uberblock,
        io: Arc<PoolIo>,
    ) -> Arc<Self> {
        let mos = ObjectSet::new_live(&io, ReadContext::default(), ObjsetKind::Meta);
        let names = Arc::default();
        let stored_name = config.name.clone();
        let view = View {
            config: Arc::new(config),
            uberblock,
            catalog: Catalog::unwritten(mos.clone(), &name),
            mos,
        };
        let (keys, view) = (Arc::new(KeyStore::new()), ArcSwap::from_pointee(view));
        Arc::new(Self {
            name,
            stored_name,
            guid,
            io,
            keys,
            view,
            candidate: None,
            changed: Mutex::new(Changed::All),
            names,
            allocator: OnceLock::new(),
            space: OnceLock::new(),
            gone_back: None,
        })
    }

    /// Shows a later group, which is on the disks and wrote this.
    pub(super) fn publish(
        &self,
        uberblock: Uberblock,
        config: PoolConfig,
        written: Written,
    ) -> Result<()> {
        let mos = ObjectSet::open(&self.io, uberblock.root, 0, None)?;
        let catalog = Catalog::with_names(mos.clone(), &self.name, self.names.clone())?;
        let config = Arc::new(config);
        let view = View { config, uberblock, mos, catalog };
        let mut changed = self.changed.lock();
        self.view.store(Arc::new(view));
        changed.add(written);
        Ok(())
    }

    /// The datasets of the group it shows, and which objects of the meta object set were written since
    /// this was last asked.
    pub fn take_changed(&self) -> (Catalog, Changed) {
        let mut changed = self.changed.lock();
        (self.catalog(), std::mem::take(&mut *changed))
    }

    /// Names of datasets found before.
    pub(super) fn names(&self) -> &Arc<Names> {
        &self.names
    }

    /// What was taken could not be read: it counts as changed still.
    pub fn give_back_changed(&self) {
        *self.changed.lock() = Changed::All;
    }

    /// The pool is written: its space is what the allocator says.
    pub(super) fn is_written_with(&self, allocator: &Arc<Allocator>) {
        let _ = self.allocator.set(allocator.clone());
    }

    /// Name it goes by.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Name it has on the disks: another one if it goes by a temporary name.
    pub fn stored_name(&self) -> &str {
        self.stored_name.as_deref().unwrap_or(&self.name)
    }

    /// Its guid.
    pub fn guid(&self) -> Guid {
        self.view.load().config.pool_guid.unwrap_or(self.guid)
    }

    /// The trusted configuration, with the devices' present paths.
    pub fn config(&self) -> Arc<PoolConfig> {
        self.view.load().config.clone()
    }

    /// The uberblock of the group it shows.
    pub fn uberblock(&self) -> Uberblock {
        self.view.load().uberblock.clone()
    }

    /// The newest state any device had when the pool was opened, if what is shown was taken from an
    /// older one on purpose.
    pub fn gone_back(&self) -> Option<GoneBack> {
        self.gone_back
    }

    /// Where everything is read from.
    pub fn io(&self) -> &Arc<PoolIo> {
        &self.io
    }

    /// The devices.
    pub fn vdevs(&self) -> Arc<VdevTree> {
        self.io.pipe.vdevs()
    }

    /// The meta object set.
    pub fn mos(&self) -> ObjectSet {
        self.view.load().mos.clone()
    }

    /// Its datasets.
    pub fn catalog(&self) -> Catalog {
        self.view.load().catalog.clone()
    }

    /// The encryption keys that are loaded.
    pub fn keys(&self) -> &Arc<KeyStore> {
        &self.keys
    }

    /// The pool's space: as the allocator has it if the pool is written, else read from the space maps
    /// once.
    pub fn space(&self) -> Result<Arc<PoolSpace>> {
        let view = self.view.load();
        if let Some(allocator) = self.allocator.get() {
            let held = |id| allocator.held_by_checkpoint_on(id);
            let space = PoolSpace::of(&view.catalog, &allocator.figures(), held)?;
            return Ok(Arc::new(space));
        }
        if let Some(space) = self.space.get() {
            return Ok(space.clone());
        }
        let tree = view.config.vdev_tree.clone();
        let tree = tree.unwrap_or_else(|| VdevConfig::placeholder(VdevKind::Root, 0));
        let space = Arc::new(PoolSpace::read(&view.catalog, &tree)?);
        Ok(self.space.get_or_init(|| space).clone())
    }

    /// What the pool offers to its datasets; nothing if its space maps cannot be read, for they
    /// are not needed to read what the datasets hold.
    pub fn capacity(&self) -> PoolCapacity {
        match self.space() {
            Ok(space) => space.capacity(),
            Err(error) => {
                tracing::warn!(pool = self.name(), %error, "space unknown");
                PoolCapacity::default()
            }
        }
    }

    /// What the labels said; nothing for a pool that was created here.
    pub fn candidate(&self) -> Option<&PoolCandidate> {
        self.candidate.as_ref()
    }
}

fn choose_uberblock(
    candidate: &PoolCandidate,
    limit: Option<Txg>,
    options: &OpenOptions,
) -> Result<Choice> {
    let leaves = candidate.leaves(&candidate.tree);
    choose::choose(&leaves, limit, options.deadline)
        .map_err(|error| Error::new(ErrorKind::Io, error.to_string()))
}

/// The devices are held now: nobody wrote on while they were looked at and waited for.
fn check_still_newest(
    candidate: &PoolCandidate,
    before: &Choice,
    options: &OpenOptions,
) -> Result<()> {
    let now = choose_uberblock(candidate, None, options)?.latest;
    if now.compare_recency(&before.latest).is_le() {
        return Ok(());
    }
    let (then, now) = (before.latest.txg, now.txg);
    let reason = format!("another process wrote group {now} while group {then} was opened");
    Err(Error::new(ErrorKind::Outdated, reason))
}

fn check_version(uberblock: &Uberblock) -> Result<()> {
    if feature::version_is_supported(uberblock.version) {
        return Ok(());
    }
    Err(Error::unsupported(format!("pool version {} is not supported", uberblock.version)))
}

fn check_label_features(label: Option<&PoolConfig>) -> Result<()> {
    let needed = label.and_then(|label| label.features_for_read.as_ref());
    let unknown: Vec<&str> = needed
        .into_iter()
        .flatten()
        .map(String::as_str)
        .filter(|guid| feature::by_guid(guid).is_none())
        .collect();
    if unknown.is_empty() {
        return Ok(());
    }
    let reason = format!("the pool uses features not supported here: {}", unknown.join(", "));
    Err(Error::unsupported(reason))
}

/// What the metadata says that each top-level vdev is set aside for. A class that cannot be read keeps
/// nobody from reading the data.
fn classes(mos: &ObjectSet, topology: &Topology) -> Vec<AllocationClass> {
    let read = |top: &VdevConfig| super::metadata::read_class(mos, top.top_zap?).ok().flatten();
    let tops = (0..).zip(topology.tops());
    tops.map(|(id, top)| read(top).unwrap_or_else(|| topology.class(id))).collect()
}

/// Reads the configuration the pool keeps of itself.
fn read_config(mos: &ObjectSet, directory: &Zap) -> Result<PoolConfig> {
    let number = directory.require_u64("config")?;
    let list = super::packed::read(mos, ObjectId(number), MAX_CONFIG)?;
    Ok(PoolConfig::from_nvlist(list)?)
}

fn check_guid_sum(tree: &VdevConfig, uberblock: &Uberblock) -> Result<()> {
    if tree.guid_sum() == uberblock.guid_sum {
        return Ok(());
    }
    let reason = "the vdev guids do not add up to the sum in the uberblock";
    Err(Error::corrupt(reason).with_advice("a device is missing from the configuration"))
}

/// Refuses a pool with top-level vdevs that cannot be opened, as the options allow.
fn check_missing(tree: &VdevConfig, vdevs: &VdevTree, options: &OpenOptions) -> Result<()> {
    for (id, top) in tree.children().iter().enumerate() {
        let id = u32::try_from(id).unwrap_or(u32::MAX);
        let has_data = top.kind.is_concrete() && !matches!(top.kind, VdevKind::Missing);
        if !has_data || vdevs.is_readable(id) {
            continue;
        }
        let is_log = top.top.is_some_and(|top| top.is_log);
        let (allowed, what, advice) = if is_log {
            (options.missing_log, "a log device", "import with '-m' to discard its records")
        } else {
            (
                options.missing_vdevs,
                "a top-level device",
                "attach the missing devices and try again",
            )
        };
        if !allowed {
            let reason = format!("{what} is missing ({} {id})", top.kind.name());
            return Err(Error::new(ErrorKind::Io, reason).with_advice(advice));
        }
    }
    Ok(())
}
