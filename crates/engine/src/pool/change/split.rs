//! One device of every mirror becomes a pool of its own: `zpool split`.
//!
//! Chapter 08, section 22. First the devices rest, and the configuration says why; then the new pool is opened on
//! them as of the last group they have, gets a configuration and labels of its own, and is closed; then the old one
//! forgets them. Invariant: at every moment the devices are a part of one of the two pools only; an import after a
//! crash takes back what has no labels of the new pool, and lets go what has.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cenote_device::Device;
use cenote_format::config::{VdevConfig, VdevKind};
use cenote_format::{Guid, NvList, ObjectId, Uberblock};

use super::create::random;
use super::evacuate::Passive;
use crate::dataset::Table;
use crate::dataset::change::{MosChange, OBJECT_DIRECTORY, PropertyInput};
use crate::pool::group::vdev_zaps::{free_objects_of, zap_map};
use crate::pool::group::{ConfigChange, LivePool, MosStore, WriteOptions};
use crate::pool::open::SplitOff;
use crate::pool::{OpenOptions, Pool, choose};
use crate::vdev::{Aux, Condition, LeafUnavailable, Leg, Topology, VdevTree};
use crate::{Error, ErrorKind, Result, zap};

/// What the configuration calls the devices that are to leave.
const LIST: &str = "guid_list";
/// What the configuration of a new pool calls the old one.
const ORIGIN: &str = "split_guid";
/// Lists of devices outside the tree, which the new pool does not have.
const AUXILIARY: [&str; 2] = ["spares", "l2cache"];

/// A pool that is to be split off.
#[derive(Clone, Debug, Default)]
pub struct SplitPlan {
    /// Its name.
    pub name: String,
    /// Devices of mirrors that are to leave; of the other mirrors it is the last.
    pub devices: Vec<Guid>,
    /// Properties of the new pool.
    pub properties: Vec<PropertyInput>,
}

/// Which device of each top-level vdev leaves; none where there is none.
///
/// # Errors
/// [`ErrorKind::Unsupported`] if the pool has something else than mirrors, or one of the devices is no part of them.
pub fn legs(topology: &Topology, named: &[Guid]) -> Result<Vec<Option<Guid>>> {
    let mut used = BTreeSet::new();
    let mut legs = Vec::new();
    for top in topology.tops() {
        let leg = match top.kind {
            VdevKind::Hole | VdevKind::Indirect => None,
            // They stay.
            _ if is_log(top) => None,
            VdevKind::Mirror => {
                let own = || top.children().iter().map(|child| child.guid);
                let mut chosen = own().filter(|guid| named.contains(guid));
                let leg = chosen.next().or_else(|| own().next_back());
                if chosen.next().is_some() {
                    return Err(Error::unsupported(ONE_OF_EACH));
                }
                leg
            }
            _ => {
                let words = "Source pool must be composed only of mirrors\n";
                return Err(Error::unsupported(words));
            }
        };
        used.extend(leg);
        legs.push(leg);
    }
    if named.iter().any(|guid| !used.contains(guid)) {
        return Err(Error::unsupported(ONE_OF_EACH));
    }
    let last = legs.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
    let is_kept = |top: &VdevConfig| top.kind != VdevKind::Hole && !is_log(top);
    let kept = topology.tops().iter().rposition(is_kept);
    legs.truncate(kept.map_or(0, |kept| kept + 1).max(last));
    Ok(legs)
}

fn is_log(top: &VdevConfig) -> bool {
    top.top.is_some_and(|top| top.is_log)
}

/// What is said of devices that do not make up a pool.
const ONE_OF_EACH: &str = "Device list must include at most one disk from each mirror";

/// Devices that are leaving, still open.
struct Leaving {
    /// The old pool's vdevs, all in use.
    before: Topology,
    legs: Vec<Option<Leg>>,
    devices: BTreeMap<Guid, Arc<dyn Device>>,
    pool: Guid,
    /// The new pool's vdevs.
    leaves: Topology,
}

impl LivePool {
    /// Splits off a pool; it is exported then.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] as for [`legs`]; [`ErrorKind::Busy`] if one of the devices alone holds something, or
    /// lacks something. Nothing is changed then; nor if the new pool cannot be written.
    pub fn split(&self, plan: SplitPlan, options: &OpenOptions, write: WriteOptions) -> Result<()> {
        self.examine_devices();
        let vdevs = self.vdevs();
        let all = (0_u32..).zip(vdevs.topology().tops());
        let logs: Vec<u32> = all.filter(|(_, top)| is_log(top)).map(|(id, _)| id).collect();
        // Log devices stay: nothing may lead there from the group that the new pool begins with.
        let _passive: Vec<Passive> =
            logs.iter().map(|id| Passive::make(&self.allocator, *id)).collect();
        logs.iter().try_for_each(|id| self.empty_log(*id))?;
        self.split_now(plan, options, write)
    }

    fn split_now(&self, plan: SplitPlan, options: &OpenOptions, write: WriteOptions) -> Result<()> {
        self.renew_logs()?;
        // What was done before is in the group that the new pool begins with.
        self.sync()?;
        let named = plan.devices.clone();
        let leaving = self.change(move |live, change| live.let_legs_rest(change, &named));
        let leaving = leaving.inspect_err(|error| {
            if error.kind() == ErrorKind::TimedOut {
                // They are let rest when writing goes on, and nobody splits anything off then.
                self.change_when_it_goes_on(|live, change| live.end_split(change));
            }
        })?;
        let gone: Vec<Guid> = leaving.legs.iter().flatten().map(|leg| leg.guid).collect();
        match self.make_split_off(&leaving, plan, options, write) {
            Ok(()) => self.change(move |live, change| live.forget_split_off(change, &gone)),
            Err(error) => {
                self.take_legs_back()?;
                Err(error)
            }
        }
    }

    /// The devices that are to leave rest from this group on, and the configuration says that they leave.
    fn let_legs_rest(&self, change: &MosChange<'_>, named: &[Guid]) -> Result<Leaving> {
        Self::refuse_checkpoint(change)?;
        let (vdevs, txg) = (self.vdevs(), change.tx.txg());
        let before = vdevs.topology().clone();
        let mut legs_of_tops = Vec::new();
        let mut devices = BTreeMap::new();
        let mut next = before.clone();
        let status = vdevs.status();
        for leg in legs(&before, named)? {
            let Some(guid) = leg else {
                legs_of_tops.push(None);
                continue;
            };
            let own = status.as_ref().and_then(|root| root.find(guid));
            let device = vdevs.device_of(guid).filter(|_| {
                own.is_some_and(|own| own.condition == Condition::ONLINE && own.missed == 0)
            });
            if vdevs.is_required(guid) || device.is_none() {
                return Err(Error::new(ErrorKind::Busy, "pool is busy"));
            }
            let new = Leg { guid, new: Guid(random()?) };
            devices.extend(device.map(|device| (new.new, device)));
            next = next.offline(guid, true, txg)?;
            legs_of_tops.push(Some(new));
        }
        let pool = Guid(random()?);
        let leaves = before.split(&legs_of_tops, pool, txg)?.leaves;
        let leaves = leaves.with_root_zap(before.root().root_zap);
        let tree = vdevs.with_topology(next)?;
        let guids: Vec<u64> =
            legs_of_tops.iter().map(|leg| leg.map_or(0, |leg| leg.guid.0)).collect();
        let mut list = NvList::new();
        list.push(LIST, guids);
        self.change_config_when_done(ConfigChange::Split(Some(list)));
        let resting: Vec<Guid> = legs_of_tops.iter().flatten().map(|leg| leg.guid).collect();
        self.when_done(move |live| {
            resting.iter().for_each(|leg| tree.rest(*leg));
            live.take_vdevs(Arc::new(tree));
        });
        Ok(Leaving { before, legs: legs_of_tops, devices, pool, leaves })
    }

    /// Opens the new pool on the devices that leave, makes it one of its own, and closes it.
    fn make_split_off(
        &self,
        leaving: &Leaving,
        plan: SplitPlan,
        options: &OpenOptions,
        write: WriteOptions,
    ) -> Result<()> {
        let failed = |error| Error::new(ErrorKind::Io, format!("a device that leaves: {error}"));
        let mut newest: Option<Uberblock> = None;
        for device in leaving.devices.values() {
            let ring = choose::read_uberblocks(&**device, None).map_err(failed)?;
            let own = ring.into_iter().max_by_key(|uberblock| uberblock.txg);
            let own = own.ok_or_else(|| Error::corrupt("a device that leaves has no uberblock"))?;
            if newest.replace(own.clone()).is_some_and(|other| other.txg != own.txg) {
                return Err(Error::bug("the devices that leave do not hold the same group"));
            }
        }
        let uberblock = newest.ok_or_else(|| Error::unsupported(ONE_OF_EACH))?;
        let old = self.pool.guid();
        let mut origin = NvList::new();
        origin.push(ORIGIN, old.0);
        let facts = cenote_format::config::PoolConfig {
            name: Some(plan.name.clone()),
            pool_guid: Some(leaving.pool),
            split: Some(origin),
            split_guid: Some(old),
            ..self.config.lock().facts()
        };
        let devices = leaving.devices.clone();
        let open =
            move |leaf: &VdevConfig| -> std::result::Result<Arc<dyn Device>, LeafUnavailable> {
                let device = devices.get(&leaf.guid).cloned();
                device.ok_or_else(|| LeafUnavailable::open_failed("it is no part of the new pool"))
            };
        let tree = VdevTree::open(leaving.leaves.clone(), Arc::new(open))?;
        let pool = Pool::split_off(SplitOff { name: plan.name, facts, uberblock, tree }, options)?;
        let write = WriteOptions { accepts_log_losses: true, resilvers: false, ..write };
        let new = Self::over(pool, write)?;
        let (before, from) = (leaving.before.clone(), self.pool.stored_name().to_owned());
        let properties = plan.properties;
        let made =
            new.change(move |live, change| live.become_own(change, &before, &from, &properties));
        // The devices may be the old pool's again: nothing of the new one is written to them then.
        made.and_then(|()| new.export()).inspect_err(|_| {
            new.abandon();
        })
    }

    /// In a new pool: what the metadata has of vdevs of the old one goes.
    fn become_own(
        &self,
        change: &MosChange<'_>,
        before: &Topology,
        from: &str,
        properties: &[PropertyInput],
    ) -> Result<()> {
        let vdevs = self.vdevs();
        let own: BTreeSet<ObjectId> = vdevs
            .topology()
            .root()
            .walk()
            .flat_map(|node| [node.leaf_zap, node.top_zap, node.root_zap])
            .flatten()
            .collect();
        let mut store = MosStore::new(change);
        let logs = before.root().walk().filter_map(|node| node.dirty_time_log);
        for log in logs.filter(|log| log.0 != 0) {
            crate::alloc::destroy_missed(&mut store, log)?;
        }
        for top in before.tops().iter().filter(|top| is_log(top)) {
            let facts = top.top.unwrap_or_default();
            let count = facts.asize.checked_shr(facts.metaslab_shift.min(63) as u32).unwrap_or(0);
            let zap = top.top_zap.unwrap_or_default();
            crate::alloc::destroy_listed_maps(&mut store, (facts.metaslab_array, count), zap)?;
        }
        if let Some(map) = zap_map(change)? {
            let listed = Table::open(change.mos, map)?.map(|table| table.entries()).transpose()?;
            for (name, value) in listed.unwrap_or_default() {
                let Some(id) = value.as_u64().map(ObjectId).filter(|id| !own.contains(id)) else {
                    continue;
                };
                change.mos.free_object(change.tx, id)?;
                zap::remove(&change.mos.object(map)?, change.tx, name.as_bytes())?;
            }
        }
        let directory = Table::open(change.mos, OBJECT_DIRECTORY)?
            .ok_or_else(|| Error::corrupt("the pool has no object directory"))?;
        for list in AUXILIARY {
            if let Some(id) = directory.number(list)?.filter(|id| *id != 0) {
                change.mos.free_object(change.tx, ObjectId(id))?;
                let object = change.mos.object(OBJECT_DIRECTORY)?;
                zap::remove(&object, change.tx, list.as_bytes())?;
            }
        }
        properties.iter().try_for_each(|property| self.put_pool_property(change, property))?;
        change.log_event("split", None, &format!("from pool {from}"))
    }

    /// The old pool forgets the devices that left.
    fn forget_split_off(&self, change: &MosChange<'_>, gone: &[Guid]) -> Result<()> {
        let (vdevs, txg) = (self.vdevs(), change.tx.txg());
        let mut topology = vdevs.topology().clone();
        let mut nodes = Vec::new();
        for leg in gone {
            let (stays, node) = topology.let_leg_go(*leg, txg)?;
            topology = stays;
            nodes.push(node);
        }
        let tree = Arc::new(vdevs.with_topology(topology)?);
        free_objects_of(change, &mut MosStore::new(change), &nodes)?;
        for node in &nodes {
            let path = node.path.clone().unwrap_or_else(|| node.guid.to_string());
            change.log_event("detach", None, &format!("vdev={path}"))?;
        }
        self.change_config_when_done(ConfigChange::Split(None));
        self.when_done(move |live| {
            nodes.iter().for_each(|node| live.forget_missed(node));
            live.take_vdevs(tree);
        });
        Ok(())
    }

    /// Devices that were to leave are used again.
    fn take_legs_back(&self) -> Result<()> {
        self.change(|live, change| live.end_split(change))?;
        self.resilver_now();
        Ok(())
    }

    /// What the configuration says of a split goes, and the devices that were to leave are used again.
    fn end_split(&self, change: &MosChange<'_>) -> Result<()> {
        let vdevs = self.vdevs();
        let mut next = vdevs.topology().clone();
        let legs = self.legs_that_leave();
        for leg in &legs {
            next = next.offline(*leg, false, change.tx.txg())?;
        }
        let tree = Arc::new(vdevs.with_topology(next)?);
        self.change_config_when_done(ConfigChange::Split(None));
        self.when_done(move |live| {
            live.take_vdevs(tree.clone());
            legs.iter().for_each(|leg| tree.wake(*leg));
        });
        Ok(())
    }

    /// The devices that are to leave, as far as the pool still knows them.
    fn legs_that_leave(&self) -> Vec<Guid> {
        let facts = self.config.lock().facts();
        let listed = facts.split.and_then(|list| list.u64_array(LIST).map(|guids| guids.to_vec()));
        let vdevs = self.vdevs();
        let known = |guid: &Guid| guid.0 != 0 && vdevs.topology().find(*guid).is_some();
        listed.into_iter().flatten().map(Guid).filter(known).collect()
    }

    /// A pool that was being split when it was closed last: devices that belong to the new pool by now are let go,
    /// if all of them do; else they are used again.
    pub(in crate::pool) fn mend_split(&self) -> Result<()> {
        let config = self.pool.config();
        let listed = config.split.as_ref().and_then(|list| list.u64_array(LIST));
        let Some(listed) = listed else { return Ok(()) };
        let legs = self.legs_that_leave();
        let all = listed.iter().filter(|guid| **guid != 0).count() == legs.len();
        if !all {
            return self.change(move |live, change| live.forget_split_off(change, &legs));
        }
        // As long as the record of the split is there, this can be found out again.
        match legs.iter().all(|leg| self.has_left(*leg)) {
            true => self.change(move |live, change| live.forget_split_off(change, &legs)),
            false => self.take_legs_back(),
        }
    }

    /// The labels of a device, which is not in use, say that it is of the new pool.
    fn has_left(&self, leg: Guid) -> bool {
        let vdevs = self.vdevs();
        let topology = vdevs.topology();
        let top = topology.top_of(leg).and_then(|id| topology.top(id));
        let Some(own) = topology.find(leg) else { return false };
        let own = VdevConfig { top_guid: top.map(|top| top.guid), ..own.clone() };
        vdevs.opener().open(&own).is_err_and(|why| why.condition.aux == Aux::SplitPool)
    }
}
