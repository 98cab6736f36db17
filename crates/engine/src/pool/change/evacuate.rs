//! Removing a top-level vdev that holds data: what is asked before, the beginning, and giving it up.
//!
//! Chapter 08, sections 18.1, 18.2 and 18.6. What follows is a job (`group/evacuating`). Invariant: a
//! vdev is copied only when nothing more comes to it: it takes no new blocks, no group that could have
//! put some there is open, and no intent log leads there.

use std::sync::Arc;

use cenote_format::config::{IndirectObjects, VdevConfig, VdevKind};
use cenote_format::indirect_mapping::{REMOVAL_ACTIVE, RemovalState};
use cenote_format::zil::{Header, REPLAY_NEEDED};

use crate::alloc::{Allocator, OBSOLETE_COUNTS, PRECISE, SpaceStore};
use crate::dataset::SideBySide;
use crate::dataset::change::{MosChange, OBJECT_DIRECTORY};
use crate::pool::group::discarding::{checkpoint_exists, has_checkpoint};
use crate::pool::group::mapping::{FEATURE, new_births, new_mapping, put_removal_state};
use crate::pool::group::sync::seconds_now;
use crate::pool::group::{LivePool, MosStore};
use crate::pool::removed::{active_removal, removal_state};
use crate::vdev::{AllocationClass, VdevTree};
use crate::{Error, ErrorKind, Result};

/// What is said of a device that cannot go now.
pub(super) const BUSY: &str = "Pool busy; removal may already be in progress";
/// Groups that may have put something on a vdev when it stops taking blocks.
const GROUPS: usize = 4;

fn busy() -> Error {
    Error::new(ErrorKind::Busy, BUSY)
}

fn unfit() -> Error {
    let reason = "invalid config; all top-level vdevs must have the same sector size and not be \
                  raidz.";
    Error::invalid(reason)
}

fn no_space() -> Error {
    Error::new(ErrorKind::NoSpace, "out of space")
}

/// A vdev takes no new blocks as long as one of these is there: it goes with the task that needs it. An order that was told
/// its task is done later (the pool is suspended) is over before that.
pub(super) struct Passive {
    allocator: Arc<Allocator>,
    id: u32,
}

impl Passive {
    /// From now on vdev `id` takes no new blocks.
    pub(super) fn make(allocator: &Arc<Allocator>, id: u32) -> Self {
        allocator.keep_closed(id, true);
        Self { allocator: allocator.clone(), id }
    }

    /// The vdev is not to take blocks again.
    pub(super) fn stay(self) {
        self.allocator.set_passive(self.id, true);
    }
}

impl Drop for Passive {
    fn drop(&mut self) {
        self.allocator.keep_closed(self.id, false);
    }
}

/// A vdev is being removed.
pub(super) fn is_removing(change: &MosChange<'_>) -> Result<bool> {
    Ok(active_removal(change.mos)?.is_some())
}

/// Refuses to add vdevs that blocks of removed ones could not be on, or those of the one being removed.
pub(super) fn check_addable<'a>(
    change: &MosChange<'_>,
    tree: &VdevTree,
    tops: impl IntoIterator<Item = &'a VdevConfig>,
) -> Result<()> {
    let Some(state) = removal_state(change.mos)? else { return Ok(()) };
    let is_removing = state.state == REMOVAL_ACTIVE;
    if !is_removing && state.previous.is_none() {
        return Ok(());
    }
    let shift = |top: &VdevConfig| top.top.unwrap_or_default().ashift;
    let own = state.vdev.and_then(|id| tree.topology().top(u32::try_from(id).ok()?));
    for top in tops {
        let is_other = is_removing && own.is_some_and(|own| shift(own) != shift(top));
        if !is_simple(top) || is_other {
            let reason = "invalid config; a pool with removing/removed vdevs does not support \
                          adding raidz or dRAID vdevs";
            return Err(Error::invalid(reason));
        }
    }
    Ok(())
}

/// Blocks can be copied to and from this vdev side by side.
fn is_simple(top: &VdevConfig) -> bool {
    match top.kind {
        VdevKind::Raidz | VdevKind::Draid => false,
        VdevKind::Mirror => top.children().iter().all(|child| child.kind.is_leaf()),
        _ => true,
    }
}

impl LivePool {
    /// Begins to empty vdev `id`, which holds data. It is done by a job then.
    ///
    /// # Errors
    /// As OpenZFS has them: [`ErrorKind::Busy`], [`ErrorKind::NoSpace`], [`ErrorKind::InvalidArgument`]
    /// and [`ErrorKind::Unsupported`]. Nothing is changed then.
    pub(super) fn evacuate(&self, id: u32) -> Result<()> {
        self.check_removable(id)?;
        let passive = Passive::make(&self.allocator, id);
        self.settle_before_removal()?;
        self.change(move |live, change| {
            Self::refuse_checkpoint(change)?;
            live.check_removable(id)?;
            live.begin_removal(change, id)?;
            live.when_done(|_| passive.stay());
            Ok(())
        })
    }

    /// Has the removal under way given up: what was copied is freed.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if there is none; what kept it from being given up.
    pub fn cancel_removal(&self) -> Result<()> {
        if active_removal(&self.mos)?.is_none() {
            return Err(Error::not_found("there is no removal in progress"));
        }
        self.refuse_suspended()?;
        self.jobs.evacuating.cancel();
        self.jobs.evacuating.wake();
        // The group after the one that is open has done it.
        self.sync()?;
        self.sync()?;
        match self.jobs.evacuating.trouble() {
            Some(error) if active_removal(&self.mos)?.is_some() => Err(error),
            _ => Ok(()),
        }
    }

    /// Whether vdev `id` can be removed now.
    fn check_removable(&self, id: u32) -> Result<()> {
        if !self.feature_enabled("com.delphix:device_removal") {
            let reason = "operation not supported on this type of pool";
            return Err(Error::unsupported(reason));
        }
        let vdevs = self.vdevs();
        let topology = vdevs.topology();
        let missing = || Error::not_found("no such device in pool");
        let own = topology.top(id).ok_or_else(missing)?;
        let facts = own.top.unwrap_or_default();
        if facts.removing == Some(1) {
            let reason = "removal for this vdev is already in progress.";
            return Err(Error::new(ErrorKind::Busy, reason));
        }
        if has_checkpoint(&self.mos)? {
            return Err(checkpoint_exists());
        }
        self.check_room_without(&vdevs, id)?;
        let active = active_removal(&self.mos)?.is_some();
        if !vdevs.is_readable(id) {
            return Err(Error::new(ErrorKind::Io, "I/O error"));
        }
        // What a side lacks is read from one that lacks nothing.
        if active || !vdevs.has_whole_side(id) {
            return Err(busy());
        }
        let tops = (0_u32..).zip(topology.tops()).filter(|(_, top)| top.kind.is_concrete());
        let class = vdevs.class(id);
        let counts = |of| of == AllocationClass::Normal || of == class;
        for (other, top) in tops {
            let shift = top.top.unwrap_or_default().ashift;
            if !is_simple(top) || counts(vdevs.class(other)) && shift != facts.ashift {
                return Err(unfit());
            }
        }
        let mut takers = self.allocator.figures().tops.clone();
        takers.retain(|top| top.class == AllocationClass::Normal && top.id != id && !top.passive);
        if takers.is_empty() { Err(unfit()) } else { Ok(()) }
    }

    /// What is on vdev `id` has room on the others.
    fn check_room_without(&self, vdevs: &VdevTree, id: u32) -> Result<()> {
        let figures = self.allocator.figures();
        let Some(own) = figures.tops.iter().find(|top| top.id == id) else { return Ok(()) };
        if vdevs.class(id) != AllocationClass::Normal {
            let normal = AllocationClass::Normal;
            let free = figures.size(normal).saturating_sub(figures.allocated(normal));
            return if free < own.allocated { Err(no_space()) } else { Ok(()) };
        }
        if own.passive {
            return Ok(());
        }
        let catalog = self.pool.catalog();
        let available = catalog.directory_available(&catalog.root()?, &self.capacity())?;
        if available < own.deflated(own.size) { Err(no_space()) } else { Ok(()) }
    }

    /// Returns when nothing leads to a vdev any more that takes no blocks, but what space maps tell of.
    fn settle_before_removal(&self) -> Result<()> {
        self.refuse_unreplayed()?;
        self.renew_logs()?;
        (0..GROUPS).try_for_each(|_| self.sync())
    }

    /// Records of intent logs that were not replayed stay where they are.
    fn refuse_unreplayed(&self) -> Result<()> {
        let catalog = self.pool.catalog();
        let all = catalog.walk(&catalog.root()?)?;
        let waiting = SideBySide::default().each(all, |directory| {
            if directory.phys.head_dataset.0 == 0 {
                return Ok(None);
            }
            let head = catalog.head(&directory)?;
            let header = Header::decode(&catalog.sealed_object_set(&head)?.header().zil_header)?;
            let is_kept = !header.log.is_hole() && header.flags & REPLAY_NEEDED != 0;
            let sealed = is_kept && catalog.key_object(&directory)?.is_some();
            Ok(is_kept.then_some(sealed))
        })?;
        let waiting: Vec<bool> = waiting.into_iter().flatten().collect();
        if waiting.contains(&true) {
            let reason = "Mount encrypted datasets to replay logs.";
            return Err(Error::new(ErrorKind::Permission, reason));
        }
        if waiting.is_empty() { Ok(()) } else { Err(busy()) }
    }

    /// Makes what a removal keeps in the metadata, and has the job begin.
    fn begin_removal(&self, change: &MosChange<'_>, id: u32) -> Result<()> {
        let txg = change.tx.txg();
        let before = self.vdevs();
        let own = before.topology().top(id).cloned().unwrap_or_default();
        change.add_reference(FEATURE)?;
        let mut store = MosStore::new(change);
        let counted = change.is_enabled("obsolete_counts")? && own.top_zap.is_some();
        if let Some(zap) = own.top_zap.filter(|_| counted) {
            store.zap_set(zap, PRECISE, 1)?;
            store.feature_add(OBSOLETE_COUNTS, 1)?;
        }
        let mapping = new_mapping(change, counted)?;
        let births = new_births(change)?;
        let state = RemovalState {
            state: REMOVAL_ACTIVE,
            vdev: Some(id.into()),
            previous: removal_state(change.mos)?.and_then(|state| state.previous),
            start_time: seconds_now(),
            end_time: 0,
            to_copy: self.allocator.in_use_on(id),
            copied: 0,
        };
        put_removal_state(change, &state)?;
        rewrite_directory(change)?;
        let objects = IndirectObjects { mapping, births, previous: None };
        let topology = before.topology().removing(id, Some(objects), txg)?;
        let tree = Arc::new(before.with_topology(topology)?);
        let path = own.path.as_deref().unwrap_or("-");
        let words = format!("{} vdev {id} {path}", self.pool.name());
        change.log_event("vdev remove started", None, &words)?;
        self.when_done(move |live| {
            live.take_vdevs(tree);
            live.allocator.begin_removing(id);
            live.jobs.evacuating.wake();
        });
        Ok(())
    }
}

/// Writes the object directory anew: whoever opens the pool later reads it before any mapping.
fn rewrite_directory(change: &MosChange<'_>) -> Result<()> {
    let directory = change.mos.object(OBJECT_DIRECTORY)?;
    let (size, blocks) = (directory.block_size(), directory.dnode().max_block_id.saturating_add(1));
    for block in 0..blocks {
        let offset = block.saturating_mul(size);
        let bytes = directory.read_vec(offset, usize::try_from(size).unwrap_or(usize::MAX))?;
        directory.write(change.tx, offset, &bytes)?;
    }
    Ok(())
}
