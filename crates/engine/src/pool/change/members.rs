//! Devices that come beside others, take their place, leave, and rest: attach, replace, detach, offline,
//! online.
//!
//! Chapter 08, sections 14 to 16. Invariant: a device that comes counts as lacking everything until a resilver
//! says otherwise; none leaves or rests that alone holds something; labels of one that comes cannot be
//! imported before the group that takes it in is on the disks, and those of one that leaves are made
//! useless after the group without it is.

use std::sync::Arc;

use cenote_format::config::{PoolConfig, VdevConfig, VdevKind};
use cenote_format::{Guid, Txg};

use super::add::{AuxiliaryKind, Joined};
use super::create::random;
use super::evacuate::{Passive, is_removing};
use super::own::refuse_other_than_spare;
use crate::dataset::change::MosChange;
use crate::pool::group::vdev_zaps::{free_objects_of, vdev_zap, zap_map};
use crate::pool::group::{LivePool, MosStore, seconds_now};
use crate::pool::labels;
use crate::vdev::{
    AllocationClass, Aux, Condition, Detached, LeafDevice, LeafOpener, Topology, VdevError,
    VdevState, VdevTree,
};
use crate::{Error, ErrorKind, Result};

/// The first group of any pool.
const FIRST: u64 = 4;
/// Groups whose blocks may have been sent before the new device was there.
const UNDER_WAY: u64 = 3;
/// What is said where a device holds what no other does.
const NO_REPLICAS: &str = "no valid replicas";
/// What is said of a log device that is not empty.
const UNPLAYED: &str = "log device has unplayed intent logs";

/// A device that is to come into a pool beside another.
#[derive(Clone, Debug)]
pub struct Newcomer {
    /// The guid of the other.
    pub beside: Guid,
    /// Its kind and path.
    pub leaf: VdevConfig,
    /// It takes the place of the other, which leaves when it has everything; if it is a hot spare of the
    /// pool, both stay.
    pub replaces: bool,
    /// A hot spare goes back when the other has everything again.
    pub goes_back: bool,
    /// It gets everything in the order of the disks, without a look at checksums; a scrub follows.
    pub sequential: bool,
}

/// Where a new device comes, its guids chosen.
#[derive(Clone)]
struct Place {
    newcomer: Newcomer,
    /// The vdev above the two, if there has to be a new one.
    above: Guid,
}

impl Place {
    fn topology(&self, topology: &Topology, txg: Txg) -> Result<Topology, VdevError> {
        let Newcomer { beside, leaf, replaces, goes_back, .. } = self.newcomer.clone();
        match replaces {
            true if goes_back && leaf.is_spare => {
                topology.replace(beside, leaf, self.above, txg)?.unspare(beside, txg)
            }
            true => topology.replace(beside, leaf, self.above, txg),
            false => topology.attach(beside, leaf, self.above, txg),
        }
    }

    /// The pool's vdevs with the new device, which is open.
    fn tree(&self, others: &Arc<VdevTree>, by: &Arc<dyn LeafOpener>, txg: Txg) -> Result<VdevTree> {
        let leaf = &self.newcomer.leaf;
        let joined = Joined::new([leaf.guid], by, others);
        let tree = others.succeeded_by(self.topology(others.topology(), txg)?, Arc::new(joined))?;
        if leaf.kind == VdevKind::DistributedSpare {
            let status = tree.status();
            let own = status.as_ref().and_then(|root| root.find(leaf.guid));
            let condition = own.map_or(Condition::ONLINE, |own| own.condition);
            return match refusal(condition) {
                Some(reason) => Err(Error::invalid(reason)),
                None => Ok(tree),
            };
        }
        check_newcomer(&tree, leaf.guid)?;
        Ok(tree)
    }
}

/// Refuses a device that cannot be opened, or has larger sectors than what it is to be part of.
pub(super) fn check_newcomer(tree: &VdevTree, leaf: Guid) -> Result<()> {
    let status = tree.status();
    let own = status.as_ref().and_then(|root| root.find(leaf));
    let condition = own.map_or(Condition::ONLINE, |own| own.condition);
    if let Some(reason) = refusal(condition) {
        return Err(Error::invalid(reason));
    }
    let device = device_of(tree, leaf)?;
    let shift = tree.ashift(device.top).unwrap_or_default();
    if u64::from(device.device.sector_size()) > 1 << shift.min(63) {
        return Err(Error::invalid(
            "The new device cannot have a higher alignment requirement than the top-level vdev.",
        ));
    }
    Ok(())
}

/// Why a device in this condition cannot come into a pool.
fn refusal(condition: Condition) -> Option<&'static str> {
    match condition.aux {
        _ if condition.state.is_readable() => None,
        Aux::TooSmall | Aux::BadLabel => Some("device is too small"),
        _ => Some("the new device cannot be opened, or is busy"),
    }
}

/// A vdev whose blocks have to be known, so that devices get what they lack.
fn is_raidz(topology: &Topology, vdev: Guid) -> bool {
    let top = topology.top_of(vdev).and_then(|id| topology.top(id));
    top.is_some_and(|top| top.kind == VdevKind::Raidz)
}

pub(super) fn device_of(tree: &VdevTree, leaf: Guid) -> Result<LeafDevice> {
    let own = tree.devices().into_iter().find(|device| device.guid == leaf);
    own.ok_or_else(|| Error::bug("a device that was opened is not there"))
}

pub(super) fn name_of(leaf: &VdevConfig) -> String {
    leaf.path.clone().unwrap_or_else(|| leaf.guid.to_string())
}

/// What is said of a device that cannot come now.
fn busy(leaf: &VdevConfig) -> Error {
    let reason = format!("{} is busy, or device removal is in progress", name_of(leaf));
    Error::new(ErrorKind::Busy, reason)
}

impl LivePool {
    /// Takes a device in beside another one, which `opener` opens. A resilver begins by itself.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if the pool does not have the other, [`ErrorKind::Unsupported`] if nothing
    /// can come beside it, [`ErrorKind::InvalidArgument`] if the device does not do. Nothing is changed
    /// then.
    pub fn take_in(&self, newcomer: Newcomer, opener: Arc<dyn LeafOpener>) -> Result<()> {
        let mut place = Place { newcomer, above: Guid(random()?) };
        match self.spare_like(&place.newcomer.leaf)? {
            Some(spare) if self.vdevs().topology().find(spare.guid).is_some() => {
                return Err(busy(&spare));
            }
            Some(spare) if place.newcomer.replaces => place.newcomer.leaf = spare,
            Some(_) => {
                return Err(Error::new(ErrorKind::Busy, "device is reserved as a hot spare"));
            }
            None => place.newcomer.leaf.guid = Guid(random()?),
        }
        let Newcomer { beside, replaces, .. } = place.newcomer;
        if !replaces && self.is_raidz(beside) {
            return self.expand(beside, place.newcomer.leaf, opener);
        }
        // What cannot be opened is told before a group waits for it; the device stays open meanwhile.
        let held = place.tree(&self.vdevs(), &opener, Txg(0))?;
        let sequential = place.newcomer.sequential;
        let taken = self.change(move |live, change| live.take_in_now(change, place, &opener));
        drop(held);
        if taken.is_ok() && !sequential {
            self.resilver_now();
        }
        taken
    }

    fn take_in_now(
        &self,
        change: &MosChange<'_>,
        mut place: Place,
        opener: &Arc<dyn LeafOpener>,
    ) -> Result<()> {
        Self::refuse_checkpoint(change)?;
        if is_removing(change)? {
            return Err(busy(&place.newcomer.leaf));
        }
        let (txg, others) = (change.tx.txg(), self.vdevs());
        if let Some(map) = zap_map(change)? {
            place.newcomer.leaf.leaf_zap = Some(vdev_zap(change, map)?);
        }
        let sequential = place.newcomer.sequential;
        let in_order = sequential && is_raidz(others.topology(), place.newcomer.beside);
        if sequential && !in_order {
            place.newcomer.leaf.rebuild_txg = Some(txg);
        } else if self.is_rebuilding() {
            return Err(Error::new(ErrorKind::Busy, "currently sequentially resilvering"));
        } else {
            // Chapter 08, section 10: or a scan that began before, ended by OpenZFS, would count for it.
            place.newcomer.leaf.resilver_txg = Some(txg);
        }
        let tree = place.tree(&others, opener, txg)?;
        let Newcomer { beside, leaf, replaces, .. } = place.newcomer;
        let top = tree.topology().top_of(leaf.guid).unwrap_or_default();
        if sequential && !in_order {
            self.check_rebuildable(change, &tree, top)?;
        }
        if leaf.kind.has_device() {
            let device = device_of(&tree, leaf.guid)?.device;
            match leaf.is_spare {
                true => refuse_other_than_spare(&*device, leaf.guid)?,
                false => self.refuse_member(&*device)?,
            }
            let facts = PoolConfig { txg: Some(Txg(0)), ..self.config.lock().facts() };
            let label = tree
                .topology()
                .label(&facts, leaf.guid)
                .ok_or_else(|| Error::bug("a new device is not in the configuration"))?;
            labels::initialise_devices(&[(device, label)], &self.pool.uberblock())?;
        }
        tree.add_missing_txgs(leaf.guid, FIRST..txg.0.saturating_add(UNDER_WAY));
        let old = others.topology().find(beside).map(name_of).unwrap_or_default();
        let (word, between) = match replaces {
            true if leaf.is_spare => ("spare in", "for"),
            true => ("replace", "for"),
            false => ("attach", "to"),
        };
        let words = format!("{word} vdev={} {between} vdev={old}", name_of(&leaf));
        change.log_event("vdev attach", None, &words)?;
        let (guid, is_spare) = (leaf.guid, replaces && leaf.is_spare);
        let lacking = tree.resilver_range_of(|id, _| in_order || id == top);
        // Who is to give it what it lacks finds it there.
        let tree = Arc::new(tree);
        let next = tree.clone();
        self.when_done(move |live| live.take_vdevs(next));
        match lacking.filter(|_| sequential) {
            Some(births) if in_order => self.begin_in_order(change, births)?,
            Some(births) => self.begin_rebuild(change, tree.topology(), top, &births)?,
            None => {}
        }
        if is_spare {
            self.tell_of("vdev_spare", guid);
        }
        self.tell_of("vdev_attach", guid);
        Ok(())
    }

    /// Lets a device leave that is part of a mirror, or stands beside what replaces it.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`], [`ErrorKind::Unsupported`] if it is no such device, [`ErrorKind::Busy`] if
    /// it alone holds something. Nothing is changed then.
    pub fn let_go(&self, leaf: Guid) -> Result<()> {
        self.examine_devices();
        let (before, gone) = self.change(move |live, change| live.let_go_now(change, leaf))?;
        // The pool has forgotten it: whether it learns of it does not matter to it.
        let facts = PoolConfig { txg: Some(Txg(0)), ..self.config.lock().facts() };
        let label = match gone.is_spare {
            true => Some(self.auxiliary_label(AuxiliaryKind::Spare, gone.guid)),
            false => before.topology().label(&facts, gone.guid),
        };
        if let (Some(device), Some(label)) = (before.device_of(gone.guid), label) {
            self.forget_device(&device, label);
        }
        Ok(())
    }

    fn let_go_now(
        &self,
        change: &MosChange<'_>,
        leaf: Guid,
    ) -> Result<(Arc<VdevTree>, VdevConfig)> {
        Self::refuse_checkpoint(change)?;
        let before = self.vdevs();
        let Detached { topology, leaf: gone, unspared } =
            before.topology().detach(leaf, change.tx.txg())?;
        // What is on its way counts as written because both have it: then it is known which do.
        self.submit.flush(&before)?;
        if before.is_required(leaf) && !before.is_blank(leaf) {
            return Err(Error::new(ErrorKind::Busy, NO_REPLICAS));
        }
        let tree = Arc::new(before.with_topology(topology)?);
        free_objects_of(change, &mut MosStore::new(change), [&gone])?;
        if let Some(spare) = unspared {
            self.unlist(change, AuxiliaryKind::Spare, spare)?;
        }
        change.log_event("detach", None, &format!("vdev={}", name_of(&gone)))?;
        self.tell_of_gone("vdev_remove", gone.guid);
        let forgotten = gone.clone();
        self.when_done(move |live| {
            live.forget_missed(&forgotten);
            live.take_vdevs(tree);
        });
        Ok((before, gone))
    }

    /// Lets devices leave whose places others have taken: those hold everything now. Where threads are at work,
    /// one does so now and then.
    pub fn let_replaced_go(&self) {
        while let Some(leaf) = self.vdevs().replaced() {
            if self.gate.suspension().is_some() {
                return;
            }
            if let Err(error) = self.let_go(leaf) {
                tracing::info!(%error, "a device that was replaced stays");
                return;
            }
        }
    }

    /// Lets a device rest: it is neither read nor written until [`LivePool::online`], or, if that is
    /// `temporary`, until the pool is opened anew.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`], [`ErrorKind::Unsupported`] for what is no device, [`ErrorKind::Busy`] if it
    /// alone holds something. Nothing is changed then. A log device that is alone is emptied before.
    pub fn offline(&self, leaf: Guid, temporary: bool) -> Result<()> {
        self.examine_devices();
        let log = self.lone_log(leaf);
        let passive = log.map(|id| Passive::make(&self.allocator, id));
        if let Some(id) = log {
            self.empty_log(id).map_err(|error| match error.kind() {
                ErrorKind::Busy => Error::new(ErrorKind::Busy, UNPLAYED),
                _ => error,
            })?;
        }
        self.change(move |live, change| {
            let vdevs = live.vdevs();
            let topology = vdevs.topology().offline(leaf, !temporary, change.tx.txg())?;
            let is_empty = log.is_some_and(|id| live.allocator.is_empty(id) == Some(true));
            if vdevs.is_required(leaf) && !is_empty {
                let reason = if log.is_some() { UNPLAYED } else { NO_REPLICAS };
                return Err(Error::new(ErrorKind::Busy, reason));
            }
            let tree = vdevs.with_topology(topology)?;
            live.when_done(move |live| {
                if let Some(passive) = passive {
                    passive.stay();
                }
                tree.rest(leaf);
                if !temporary {
                    live.take_vdevs(Arc::new(tree));
                }
            });
            Ok(())
        })
    }

    /// The log vdev of which this is the last device that is there.
    fn lone_log(&self, leaf: Guid) -> Option<u32> {
        let vdevs = self.vdevs();
        let id = vdevs.topology().top_of(leaf)?;
        (vdevs.class(id) == AllocationClass::Log && vdevs.is_required(leaf)).then_some(id)
    }

    /// Log vdevs take blocks again that rested as a whole and have the device `leaf` back.
    fn take_log(&self, leaf: Guid) {
        let vdevs = self.vdevs();
        let Some(id) = vdevs.topology().top_of(leaf) else { return };
        let facts = vdevs.topology().top(id).and_then(|top| top.top).unwrap_or_default();
        let takes = facts.non_allocating != Some(1) && facts.removing != Some(1);
        if vdevs.class(id) == AllocationClass::Log && takes && vdevs.is_readable(id) {
            self.allocator.set_passive(id, false);
        }
    }

    /// Has a device count as faulty until [`LivePool::trust`]: it is neither read nor written. One that alone
    /// holds something goes on, degraded. What is `temporary` ends when the pool is opened anew.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`], [`ErrorKind::Unsupported`] for what is no device. Nothing is changed then.
    pub fn fault(&self, leaf: Guid, temporary: bool) -> Result<()> {
        self.examine_devices();
        self.change(move |live, change| {
            let vdevs = live.vdevs();
            let before = vdevs.topology();
            let top = before.top_of(leaf).and_then(|id| before.top(id)).and_then(|top| top.top);
            let is_required = !top.is_some_and(|top| top.is_log) && vdevs.is_required(leaf);
            let topology = before.fault(leaf, is_required, !temporary, change.tx.txg())?;
            let tree = vdevs.with_topology(topology)?;
            live.when_done(move |live| {
                tree.give_up(leaf);
                live.take_vdevs(Arc::new(tree));
            });
            Ok(())
        })
    }

    /// Has a device count as one that had too many errors, and be used all the same, until somebody trusts it again.
    ///
    /// # Errors
    /// If it cannot be written down.
    pub fn wear_out(&self, leaf: Guid) -> Result<()> {
        self.change(move |live, change| live.record_worn(change, vec![leaf]))
    }

    /// Records that `leaves` count as degraded, until somebody trusts them again.
    pub(super) fn record_worn(&self, change: &MosChange<'_>, leaves: Vec<Guid>) -> Result<()> {
        let vdevs = self.vdevs();
        let topology = vdevs.topology().worn(&leaves, change.tx.txg())?;
        let tree = Arc::new(vdevs.with_topology(topology)?);
        self.when_done(move |live| {
            tree.doubt(&leaves);
            live.take_vdevs(tree);
        });
        Ok(())
    }

    /// Takes devices into use again that somebody, or too many errors, had said were faulty or degraded:
    /// `below`, those below it, or all. In a suspended pool that is written down when it goes on.
    ///
    /// # Errors
    /// If it cannot be written down.
    pub fn trust(&self, below: Option<Guid>) -> Result<()> {
        let trusted = self.vdevs().trust(below);
        if trusted.is_empty() {
            return Ok(());
        }
        let forget = move |live: &Self, change: &MosChange<'_>| {
            let vdevs = live.vdevs();
            let topology = vdevs.topology().trusting(&trusted, change.tx.txg())?;
            let tree = Arc::new(vdevs.with_topology(topology)?);
            live.when_done(move |live| live.take_vdevs(tree));
            Ok(())
        };
        match self.gate.suspension() {
            Some(_) => self.change_when_it_goes_on(forget),
            None => self.change(forget)?,
        }
        Ok(())
    }

    /// Takes a device into use that rested, or was away: its condition then.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`], [`ErrorKind::Unsupported`] for what is no device.
    pub fn online(&self, leaf: Guid) -> Result<VdevState> {
        let vdevs = self.vdevs();
        let is_offline = vdevs.topology().find(leaf).is_some_and(|node| node.offline);
        if is_offline {
            self.change(move |live, change| {
                let vdevs = live.vdevs();
                let (txg, now) = (change.tx.txg(), seconds_now());
                let topology = vdevs.topology().offline(leaf, false, txg)?.unspare(leaf, txg)?;
                let topology = topology.asked_to_grow(leaf, now, txg);
                let tree = Arc::new(vdevs.with_topology(topology)?);
                live.when_done(move |live| live.take_vdevs(tree));
                Ok(())
            })?;
        } else {
            vdevs.topology().offline(leaf, false, Txg(0))?;
        }
        self.examine_devices();
        let vdevs = self.vdevs();
        vdevs.wake(leaf);
        self.take_log(leaf);
        self.tell_of("vdev_online", leaf);
        if self.growth.by_itself() {
            self.grow(Some(leaf))?;
        }
        self.resilver_now();
        let status = vdevs.status();
        let own = status.as_ref().and_then(|root| root.find(leaf));
        Ok(own.map_or(VdevState::Closed, |own| own.condition.state))
    }
}
