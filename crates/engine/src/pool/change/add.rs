//! Adding devices to a pool that is open for writing.
//!
//! Chapter 01, sections 3, 9 and 17; chapter 03, section 9. Invariant: a new device has labels that
//! cannot be imported before the group that adds it is on the disks; no block goes there in that
//! group, so that a crash leaves either a pool without it or one with it whole.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use cenote_device::Device;
use cenote_format::config::{PoolConfig, PoolState, TopLevel, VdevConfig, VdevKind};
use cenote_format::{Guid, NvList, ObjectId, ObjectType, Txg, Uberblock};

use super::create::{assign_guids, distributed_spares, prepare_top, random};
use super::evacuate::check_addable;
use crate::dataset::Table;
use crate::dataset::change::{MosChange, OBJECT_DIRECTORY};
use crate::object::NewObject;
use crate::pool::group::LivePool;
use crate::pool::group::config::write_packed;
use crate::pool::group::vdev_zaps::zap_map;
use crate::pool::{labels, packed};
use crate::vdev::{AllocationClass, Condition, LeafOpener, LeafUnavailable, VdevTree};
use crate::{Error, ErrorKind, Result, zap};

/// Bytes of a block of a packed list.
const LIST_BLOCK: u64 = 16 << 10;
/// Largest list of spares or cache devices that is read.
const LIST_MAX: u64 = 16 << 20;

/// A top-level vdev to be added, and what it takes.
type Addition = (VdevConfig, AllocationClass);

/// Devices to be added.
#[derive(Clone, Debug, Default)]
pub struct Additions {
    /// Top-level vdevs, as in [`super::NewPoolPlan::tops`].
    pub tops: Vec<Addition>,
    /// Hot spares.
    pub spares: Vec<VdevConfig>,
    /// Cache devices.
    pub caches: Vec<VdevConfig>,
}

/// What a device outside the tree is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AuxiliaryKind {
    /// Hot spare.
    Spare,
    /// Cache device.
    Cache,
}

impl AuxiliaryKind {
    /// Name of its list.
    pub(super) fn list(self) -> &'static str {
        match self {
            AuxiliaryKind::Spare => "spares",
            AuxiliaryKind::Cache => "l2cache",
        }
    }

    /// What a device is called in the history.
    pub(super) fn name(self) -> &'static str {
        match self {
            AuxiliaryKind::Spare => "spare",
            AuxiliaryKind::Cache => "l2cache",
        }
    }

    fn state(self) -> PoolState {
        match self {
            AuxiliaryKind::Spare => PoolState::Spare,
            AuxiliaryKind::Cache => PoolState::Cache,
        }
    }
}

/// Opens added leaves by one opener, and the others by another.
pub(super) struct Joined {
    added: BTreeSet<Guid>,
    opener: Arc<dyn LeafOpener>,
    /// What opens the others: the tree itself is let go.
    others: Arc<dyn LeafOpener>,
}

impl Joined {
    /// `opener` opens the leaves `added`; the others are those of `others`.
    pub(super) fn new(
        added: impl IntoIterator<Item = Guid>,
        opener: &Arc<dyn LeafOpener>,
        others: &Arc<VdevTree>,
    ) -> Self {
        let added = added.into_iter().collect();
        Self { added, opener: opener.clone(), others: others.opener().clone() }
    }
}

impl LeafOpener for Joined {
    fn open(&self, leaf: &VdevConfig) -> std::result::Result<Arc<dyn Device>, LeafUnavailable> {
        match self.added.contains(&leaf.guid) {
            true => self.opener.open(leaf),
            false => self.others.open(leaf),
        }
    }

    fn committed(&self, uberblock: &Uberblock) {
        self.opener.committed(uberblock);
        self.others.committed(uberblock);
    }

    fn refuse(&self, leaf: Guid, reason: &str) {
        self.opener.refuse(leaf, reason);
        self.others.refuse(leaf, reason);
    }

    fn still_is(
        &self,
        leaf: &VdevConfig,
        device: &Arc<dyn Device>,
    ) -> std::result::Result<bool, LeafUnavailable> {
        match self.added.contains(&leaf.guid) {
            true => self.opener.still_is(leaf, device),
            false => self.others.still_is(leaf, device),
        }
    }

    fn forget(&self, leaf: Guid) {
        self.opener.forget(leaf);
        self.others.forget(leaf);
    }

    fn lacks(&self, leaf: &VdevConfig) -> Range<u64> {
        match self.added.contains(&leaf.guid) {
            true => 0..0,
            false => self.others.lacks(leaf),
        }
    }
}

/// Vdevs with some that are being added.
struct Grown {
    /// Those without.
    others: Arc<VdevTree>,
    tree: VdevTree,
    /// The id of the first that is new.
    first: usize,
    new: Vec<Addition>,
}

impl LivePool {
    /// Adds devices, which `opener` opens; on return they are in use.
    ///
    /// # Errors
    /// If a device cannot be opened or is too small; nothing is changed then.
    pub fn add_vdevs(&self, plan: Additions, opener: Arc<dyn LeafOpener>) -> Result<()> {
        let Additions { mut tops, mut spares, caches } = plan;
        for (top, _) in &mut tops {
            assign_guids(top, 0)?;
        }
        // What cannot be opened is told before a group waits for it; the devices stay open meanwhile.
        let held = self.with_tops(&tops, &opener, Txg(0))?;
        let uses_classes = tops.iter().any(|(_, class)| {
            use AllocationClass::{Dedup, Special};
            matches!(class, Special | Dedup)
        });
        let uses_draid = tops.iter().any(|(top, _)| top.kind == VdevKind::Draid);
        let added = self.change(move |live, change| {
            for (feature, used) in [("allocation_classes", uses_classes), ("draid", uses_draid)] {
                if used && !change.is_enabled(feature)? {
                    return Err(Error::unsupported(format!(
                        "pool must be upgraded: feature {feature} is not enabled"
                    )));
                }
            }
            check_addable(change, &live.vdevs(), tops.iter().map(|(top, _)| top))?;
            if !tops.is_empty() {
                spares.extend(distributed_spares(&live.add_tops(change, &tops, &opener)?)?);
            }
            live.add_auxiliary_with(change, AuxiliaryKind::Spare, spares, &opener)?;
            live.add_auxiliary_with(change, AuxiliaryKind::Cache, caches, &opener)
        });
        drop(held);
        added
    }

    /// The pool's vdevs with `tops`, added by group `txg`, after them: all their devices are open, and
    /// their sizes are known.
    fn with_tops(
        &self,
        tops: &[Addition],
        opener: &Arc<dyn LeafOpener>,
        txg: Txg,
    ) -> Result<Grown> {
        let others = self.vdevs();
        let first = others.topology().tops().len();
        let added = tops.iter().flat_map(|(top, _)| top.devices()).map(|leaf| leaf.guid);
        let joined = Joined::new(added, opener, &others);
        let topology = others.topology().add(tops.iter().cloned(), txg)?;
        let tree = others.succeeded_by(topology, Arc::new(joined))?;
        let mut new = Vec::with_capacity(tops.len());
        for (id, top) in (0_u32..).zip(tree.topology().tops()).skip(first) {
            let missing = || {
                let path = top.devices().find_map(|leaf| leaf.path.clone()).unwrap_or_default();
                let reason = format!("cannot open every device of vdev {id} ({path})");
                Error::new(ErrorKind::Io, reason)
            };
            if tree.top_condition(id) != Some(Condition::ONLINE) {
                return Err(missing());
            }
            let asize = tree.top_asize(id).filter(|size| *size > 0).ok_or_else(missing)?;
            let recorded = Some(TopLevel { asize, ..top.top.unwrap_or_default() });
            new.push((VdevConfig { top: recorded, ..top.clone() }, tree.class(id)));
        }
        Ok(Grown { others, tree, first, new })
    }

    /// Adds top-level vdevs; gives them as they are recorded.
    fn add_tops(
        &self,
        change: &MosChange<'_>,
        tops: &[Addition],
        opener: &Arc<dyn LeafOpener>,
    ) -> Result<Vec<VdevConfig>> {
        let txg = change.tx.txg();
        // Others may have changed the pool since the devices were opened.
        let Grown { others, tree, first, mut new } = self.with_tops(tops, opener, txg)?;
        let map = zap_map(change)?;
        for (id, (top, class)) in (0_u32..).skip(first).zip(&mut new) {
            prepare_top(self, change, map, id, top, *class, Txg(txg.0.saturating_add(1)))?;
        }
        let topology = others.topology().add(new.iter().cloned(), txg)?;
        let facts = PoolConfig { txg: Some(Txg(0)), ..self.config.lock().facts() };
        let mut devices = Vec::new();
        for leaf in tree.devices().into_iter().filter(|leaf| leaf.top as usize >= first) {
            let own = topology
                .label(&facts, leaf.guid)
                .ok_or_else(|| Error::bug("a new device is not in the configuration"))?;
            self.refuse_member(&*leaf.device)?;
            self.refuse_listed(&*leaf.device)?;
            devices.push((leaf.device, own));
        }
        labels::initialise_devices(&devices, &self.pool.uberblock())?;
        let tree = Arc::new(tree.with_topology(topology)?);
        self.when_done(move |live| live.take_vdevs(tree));
        new.iter().for_each(|(top, _)| self.tell_of("vdev_add", top.guid));
        Ok(new.into_iter().map(|(top, _)| top).collect())
    }

    /// Adds devices to the list of spares or cache devices, opening them by their paths.
    pub(super) fn add_auxiliary(
        &self,
        change: &MosChange<'_>,
        kind: AuxiliaryKind,
        nodes: Vec<VdevConfig>,
    ) -> Result<()> {
        let opener = crate::pool::leaves::HeldDevices::new().new_leaves();
        self.add_auxiliary_with(change, kind, nodes, &opener)
    }

    /// What the label of a spare or cache device holds.
    pub(super) fn auxiliary_label(&self, kind: AuxiliaryKind, guid: Guid) -> PoolConfig {
        PoolConfig {
            version: self.config.lock().facts().version,
            state: Some(kind.state()),
            guid: Some(guid),
            ..PoolConfig::default()
        }
    }

    fn add_auxiliary_with(
        &self,
        change: &MosChange<'_>,
        kind: AuxiliaryKind,
        mut nodes: Vec<VdevConfig>,
        opener: &Arc<dyn LeafOpener>,
    ) -> Result<()> {
        if nodes.is_empty() {
            return Ok(());
        }
        let mut devices: Vec<(Arc<dyn Device>, PoolConfig)> = Vec::new();
        for node in &mut nodes {
            if node.guid == Guid(0) {
                node.guid = Guid(random()?);
            }
            node.id = None;
            node.is_spare = kind == AuxiliaryKind::Spare;
            if node.kind == VdevKind::DistributedSpare {
                continue;
            }
            let device = opener.open(node).map_err(|why| {
                let path = node.path.clone().unwrap_or_default();
                Error::new(ErrorKind::Io, format!("{path}: {}", why.reason))
            })?;
            self.refuse_member(&*device)?;
            self.refuse_listed(&*device)?;
            devices.push((device, self.auxiliary_label(kind, node.guid)));
        }
        labels::initialise_devices(&devices, &self.pool.uberblock())?;
        let directory = Table::open(change.mos, OBJECT_DIRECTORY)?
            .ok_or_else(|| Error::corrupt("the pool has no object directory"))?;
        let known = directory.number(kind.list())?.filter(|id| *id != 0).map(ObjectId);
        let mut entries: Vec<NvList> = match known {
            Some(id) => {
                let list = packed::read(change.mos, id, LIST_MAX)?;
                list.nvlist_array(kind.list()).unwrap_or(&[]).to_vec()
            }
            None => Vec::new(),
        };
        entries.extend(nodes.iter().map(VdevConfig::to_nvlist));
        let mut list = NvList::new();
        list.push(kind.list(), entries);
        let id = match known {
            Some(id) => id,
            None => {
                let new = NewObject {
                    bonus_type: ObjectType::PACKED_NVLIST_SIZE,
                    bonus: vec![0; 8],
                    ..NewObject::new(ObjectType::PACKED_NVLIST, LIST_BLOCK)
                };
                let object = change.mos.create_object(change.tx, &new)?;
                let directory = change.mos.object(OBJECT_DIRECTORY)?;
                zap::update_u64(&directory, change.tx, kind.list(), object.id().0)?;
                object.id()
            }
        };
        write_packed(change, id, &list)?;
        // No label of the pool names them: nobody else would tell.
        self.tell("vdev_add", Vec::new());
        self.tell("config_sync", Vec::new());
        Ok(())
    }
}
