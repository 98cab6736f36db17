//! Opening a pool: from labels to the trusted configuration and the meta object set.
//!
//! Chapter 01, section 11.4, stages A and B for reading. Invariant: what the labels say is used
//! only to find the MOS; everything after comes from blocks whose checksums matched.

use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use cenote_codec::checksum::Salt;
use cenote_format::config::{PoolConfig, VdevConfig, VdevKind};
use cenote_format::objset::ObjsetKind;
use cenote_format::uberblock::Uberblock;
use cenote_format::{Guid, ObjectId, Txg};
use parking_lot::Mutex;

use super::assemble::PoolCandidate;
use super::choose::Choice;
use super::leaves::CandidateLeaves;
use super::open_options::{OpenOptions, Rewind};
use super::space::PoolSpace;
use super::trust::{
    Opening, check_guid_sum, check_label_features, check_version, choose_uberblock, classes,
    read_config, refuse_newer,
};
use crate::alloc::{Allocator, CHECKPOINT};
use crate::dataset::{Catalog, Changed, KeptSnapshots, Names, PoolCapacity, Written};
use crate::keys::KeyStore;
use crate::object::ObjectSet;
use crate::pipe::{Pipe, PoolIo, Prefetcher, ReadContext};
use crate::vdev::VdevTree;
use crate::zap::Zap;
use crate::{Error, ErrorKind, Result};

/// Transaction groups an ordinary rewind (`-F`) goes back: their blocks are not reused yet.
const SAFE_REWIND: u64 = 2;
/// First transaction group of any pool.
const FIRST_TXG: u64 = 4;

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
    /// Snapshots that are being sent.
    kept: KeptSnapshots,
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
    /// The newest group any device had, or after that the number the checkpoint gets: no group up to it may be
    /// written again.
    pub from: Txg,
    /// When the older state was written, in seconds since 1970.
    pub as_of: u64,
    /// Seconds from then to the newest state.
    pub lost: u64,
}

impl GoneBack {
    fn of(choice: &Choice) -> Option<Self> {
        let (shown, newest) = (&choice.best, &choice.latest);
        let is_checkpoint = shown.checkpoint_txg != 0;
        (newest.txg > shown.txg).then_some(Self {
            from: Txg(newest.txg.0.saturating_add(is_checkpoint.into())),
            as_of: shown.timestamp,
            lost: newest.timestamp.saturating_sub(shown.timestamp),
        })
    }
}

/// The newest state, which does not open.
struct Failed {
    txg: Txg,
    /// The group tried last.
    last: Txg,
    /// The newest uberblock there was then.
    latest: Uberblock,
    error: Error,
}

/// Whether an older state may open where this one did not: it is damaged. Devices that are in use, missing or
/// silent are so whatever state is asked for, and good groups would be given up because of them.
fn is_of_the_state(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Checksum | ErrorKind::Corrupt)
}

/// A pool that is to be opened on devices of another.
pub(super) struct SplitOff {
    pub(super) name: String,
    /// What its configuration tells beside the vdevs.
    pub(super) facts: PoolConfig,
    pub(super) uberblock: Uberblock,
    pub(super) tree: VdevTree,
}

/// A pool as of one transaction group.
pub(crate) struct View {
    pub(crate) config: Arc<PoolConfig>,
    pub(crate) uberblock: Uberblock,
    pub(crate) mos: ObjectSet,
    pub(crate) catalog: Catalog,
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
        let mut newest: Option<Failed> = None;
        let at_pool = |error: Error| error.at(|place| place.pool = Some(name.as_str().into()));
        // Of the newest state only the checkpoint is read; its devices are not to be held then.
        let writable = options.writable && !options.checkpoint;
        let first_look = OpenOptions { writable, ..options.clone() };
        loop {
            let choice = match choose_uberblock(candidate, limit, options) {
                Ok(choice) => choice,
                Err(error) => return Err(newest.map_or(at_pool(error), |first| first.error)),
            };
            if let Some(first) = &newest {
                refuse_newer(&first.latest, &choice.latest).map_err(at_pool)?;
            }
            let (txg, latest) = (choice.best.txg, choice.latest.clone());
            let opened = Self::open_at(candidate, &name, choice.clone(), &first_look)
                .and_then(|pool| pool.at_checkpoint(choice, options));
            let error = match opened {
                Ok(pool) => return Ok(Arc::new(pool)),
                Err(error) => at_pool(error),
            };
            if !is_of_the_state(&error) {
                return Err(error);
            }
            let is_again = newest.as_ref().is_some_and(|first| first.last == txg);
            let may_pass = error.is_passing() && !is_again;
            let first = newest.get_or_insert(Failed { txg, last: txg, latest, error });
            first.last = txg;
            let oldest = match options.rewind {
                Rewind::None => return Err(first.error.clone()),
                Rewind::Safe => first.txg.0.saturating_sub(SAFE_REWIND).max(FIRST_TXG),
                Rewind::Extreme => FIRST_TXG,
            };
            if may_pass {
                // A device that was away may be there by now: then nothing has to be given up.
                tracing::info!(%txg, "this state does not open, trying it once more");
                continue;
            }
            if txg.0 <= oldest {
                return Err(first.error.clone());
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
            .lookup(CHECKPOINT.as_bytes())?
            .and_then(|value| value.as_u64s())
            .ok_or_else(|| Error::not_found("checkpoint does not exist"))?;
        let choice = Choice { best: Uberblock::from_words(&words)?, ..choice };
        // Nothing of the newer state may be shown for the older one.
        Self::open_at(candidate, &self.name, choice, options)
    }

    /// Opens the pool at the uberblock chosen: the devices of the labels give the configuration, whose
    /// devices take their place.
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
        let candidate = &candidate.known_as(&config);
        let opening = Opening { candidate, choice: &choice, tree: &tree, options };
        io.pipe.vdev_handle().exchange(Arc::new(opening.trusted_devices()?));
        super::removed::load_mappings(&io.pipe.vdevs(), &mos)?;
        opening.note_what_devices_lack(&io.pipe, &mos)?;
        super::supported::check(&mos, &directory, &io.pipe)?;
        io.pipe.vdev_handle().change(|vdevs| {
            let topology = vdevs.topology();
            vdevs.with_topology(topology.with_classes(&classes(&mos, topology)))
        })?;
        if let Some(salt) = checksum_salt(&directory)? {
            io.pipe.set_salt(salt);
        }
        let names: Arc<Names> = Arc::default();
        let catalog = Catalog::with_names(mos.clone(), name, names.clone())?;
        let config = Arc::new(io.pipe.vdevs().topology().config(&config));
        let stored = config.name.clone().unwrap_or_else(|| candidate.name.clone());
        let gone_back = GoneBack::of(&choice);
        let view = View { config, uberblock: choice.best, mos, catalog };
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
            kept: KeptSnapshots::default(),
            allocator: OnceLock::new(),
            space: OnceLock::new(),
        })
    }

    /// A pool that is being split off: it shows what the old one did, and goes by another name.
    pub(super) fn split_off(new: SplitOff, options: &OpenOptions) -> Result<Arc<Self>> {
        let SplitOff { name, facts, uberblock, tree } = new;
        let pipe = Pipe::new(Arc::new(tree), options.cache_limit);
        let prefetcher = Prefetcher::new(options.prefetch_threads);
        let io = Arc::new(PoolIo { pipe, prefetcher });
        let mos = ObjectSet::open(&io, uberblock.root, 0, None)?;
        let directory = Zap::open(mos.object(ObjectId(1))?)?;
        super::removed::load_mappings(&io.pipe.vdevs(), &mos)?;
        super::supported::check(&mos, &directory, &io.pipe)?;
        if let Some(salt) = checksum_salt(&directory)? {
            io.pipe.set_salt(salt);
        }
        let names: Arc<Names> = Arc::default();
        let catalog = Catalog::with_names(mos.clone(), &name, names.clone())?;
        let config = Arc::new(io.pipe.vdevs().topology().config(&facts));
        let guid = facts.pool_guid.unwrap_or_default();
        let view = View { config, uberblock, mos, catalog };
        Ok(Arc::new(Self::showing((name, None), guid, io, view, names)))
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
        Arc::new(Self::showing((name, stored_name), guid, io, view, names))
    }

    /// A pool that shows `view` and was found on no devices: its name, and the one that is stored if it differs.
    fn showing(
        (name, stored_name): (String, Option<String>),
        guid: Guid,
        io: Arc<PoolIo>,
        view: View,
        names: Arc<Names>,
    ) -> Self {
        let (keys, view) = (Arc::new(KeyStore::new()), ArcSwap::from_pointee(view));
        Self {
            name,
            stored_name,
            guid,
            io,
            keys,
            view,
            candidate: None,
            changed: Mutex::new(Changed::All),
            names,
            kept: KeptSnapshots::default(),
            allocator: OnceLock::new(),
            space: OnceLock::new(),
            gone_back: None,
        }
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

    /// The uberblock of the group it shows was written again like this.
    pub(super) fn retell(&self, uberblock: Uberblock) {
        let view = self.view.load_full();
        let (config, mos, catalog) = (view.config.clone(), view.mos.clone(), view.catalog.clone());
        self.view.store(Arc::new(View { config, uberblock, mos, catalog }));
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

    /// Whether it is open for writing.
    pub fn is_written(&self) -> bool {
        self.allocator.get().is_some()
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

    /// All it shows of one group: for who asks for several things that have to fit together.
    pub(crate) fn view(&self) -> Arc<View> {
        self.view.load_full()
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

    /// Snapshots that are not to be destroyed now.
    pub fn kept(&self) -> &KeptSnapshots {
        &self.kept
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
