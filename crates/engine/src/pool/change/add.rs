//! Adding devices to a pool that is open for writing.
//!
//! Chapter 01, sections 3, 9 and 17; chapter 03, section 9. Invariant: a new device has labels that
//! cannot be imported before the group that adds it is on the disks; no block goes there in that
//! group, so that a crash leaves either a pool without it or one with it whole.

use std::collections::BTreeSet;
use std::sync::Arc;

use cenote_device::Device;
use cenote_format::config::{PoolConfig, PoolState, TopLevel, VdevConfig, VdevKind};
use cenote_format::{Guid, NvList, ObjectId, ObjectType, Txg};

use super::create::{assign_guids, distributed_spares, prepare_top, random};
use crate::dataset::Table;
use crate::dataset::change::{MosChange, OBJECT_DIRECTORY};
use crate::object::NewObject;
use crate::pool::group::LivePool;
use crate::pool::group::config::write_packed;
use crate::pool::{labels, packed};
use crate::vdev::{AllocationClass, Condition, LeafOpener, LeafUnavailable, VdevTree};
use crate::{Error, ErrorKind, Result, zap};

/// Bytes of a block of a packed list.
const LIST_BLOCK: u64 = 16 << 10;
/// Largest list of spares or cache devices that is read.
const LIST_MAX: u64 = 16 << 20;

/// Devices to be added.
#[derive(Clone, Debug, Default)]
pub struct Additions {
    /// Top-level vdevs, as in [`super::NewPoolPlan::tops`].
    pub tops: Vec<(VdevConfig, AllocationClass)>,
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
struct Joined {
    added: BTreeSet<Guid>,
    opener: Arc<dyn LeafOpener>,
    others: Arc<VdevTree>,
}

impl LeafOpener for Joined {
    fn open(&self, leaf: &VdevConfig) -> std::result::Result<Arc<dyn Device>, LeafUnavailable> {
        match self.added.contains(&leaf.guid) {
            true => self.opener.open(leaf),
            false => self.others.opener().open(leaf),
        }
    }

    fn committed(&self, txg: Txg) {
        self.opener.committed(txg);
        self.others.opener().committed(txg);
    }
}

/// A change of the tree of devices.
struct Growth {
    tree: Arc<VdevTree>,
    root: VdevConfig,
    first: usize,
    classes: Vec<AllocationClass>,
}

impl LivePool {
    /// Adds devices, which `opener` opens; on return they are in use.
    ///
    /// # Errors
    /// If a device cannot be opened or is too small; nothing is changed then.
    pub fn add_vdevs(&self, plan: Additions, opener: Arc<dyn LeafOpener>) -> Result<()> {
        let Additions { tops, mut spares, caches } = plan;
        let growth = match tops.is_empty() {
            true => None,
            false => Some(self.grow(tops, &opener)?),
        };
        if let Some(growth) = &growth {
            let new = growth.root.children().get(growth.first..).unwrap_or_default();
            spares.extend(distributed_spares(new)?);
        }
        let uses_classes = growth.as_ref().is_some_and(|growth| {
            use AllocationClass::{Dedup, Special};
            growth.classes.iter().any(|class| matches!(class, Special | Dedup))
        });
        let uses_draid = growth.as_ref().is_some_and(|growth| {
            let new = growth.root.children().iter().skip(growth.first);
            new.into_iter().any(|top| top.kind == VdevKind::Draid)
        });
        self.change(move |live, change| {
            for (feature, used) in [("allocation_classes", uses_classes), ("draid", uses_draid)] {
                if used && !change.is_enabled(feature)? {
                    return Err(Error::unsupported(format!(
                        "pool must be upgraded: feature {feature} is not enabled"
                    )));
                }
            }
            if let Some(growth) = growth {
                live.add_tops(change, growth)?;
            }
            live.add_auxiliary_with(change, AuxiliaryKind::Spare, spares, &opener)?;
            live.add_auxiliary_with(change, AuxiliaryKind::Cache, caches, &opener)
        })
    }

    /// The tree with new top-level vdevs.
    fn grow(
        &self,
        tops: Vec<(VdevConfig, AllocationClass)>,
        opener: &Arc<dyn LeafOpener>,
    ) -> Result<Growth> {
        let missing = || Error::corrupt("the pool's configuration has no vdev tree");
        let mut root = self.config.lock().published().vdev_tree.ok_or_else(missing)?;
        let first = root.children().len();
        let mut added = BTreeSet::new();
        let mut classes = Vec::with_capacity(tops.len());
        for (id, (mut top, class)) in (first as u64..).zip(tops) {
            assign_guids(&mut top, id)?;
            added.extend(top.devices().map(|leaf| leaf.guid));
            classes.push(class);
            root.children.get_or_insert_default().push(top);
        }
        let others = self.vdevs();
        let joined = Joined { added, opener: opener.clone(), others: others.clone() };
        let tree = others.grown(&root, Arc::new(joined))?;
        for (id, top) in (0_u32..).zip(root.children.iter_mut().flatten()).skip(first) {
            let missing = || {
                let path = top.devices().find_map(|leaf| leaf.path.clone()).unwrap_or_default();
                let reason = format!("cannot open every device of vdev {id} ({path})");
                Error::new(ErrorKind::Io, reason)
            };
            if tree.top_condition(id) != Some(Condition::ONLINE) {
                return Err(missing());
            }
            let asize = tree.top_asize(id).filter(|size| *size > 0).ok_or_else(missing)?;
            let recorded = top.top.get_or_insert_default();
            *recorded = TopLevel { asize, ..*recorded };
        }
        for (id, class) in (first as u32..).zip(&classes) {
            tree.set_class(id, *class);
        }
        Ok(Growth { tree: Arc::new(tree), root, first, classes })
    }

    fn add_tops(&self, change: &MosChange<'_>, growth: Growth) -> Result<()> {
        let Growth { tree, mut root, first, classes } = growth;
        let txg = change.tx.txg();
        let directory = Table::open(change.mos, OBJECT_DIRECTORY)?
            .ok_or_else(|| Error::corrupt("the pool has no object directory"))?;
        let map = directory.number("com.delphix:vdev_zap_map")?.map(ObjectId);
        let tops = root.children.iter_mut().flatten().skip(first);
        for (id, (top, class)) in (first as u32..).zip(tops.zip(&classes)) {
            top.create_txg = Some(txg);
            prepare_top(self, change, map, id, top, *class, Txg(txg.0.saturating_add(1)))?;
        }
        let config = PoolConfig {
            txg: Some(Txg(0)),
            vdev_children: Some(root.children().len() as u64),
            vdev_tree: Some(root.clone()),
            ..self.config.lock().published()
        };
        let mut devices = Vec::new();
        for leaf in tree.devices().into_iter().filter(|leaf| leaf.top as usize >= first) {
            let own = labels::label_config(&config, leaf.guid)
                .ok_or_else(|| Error::bug("a new device is not in the configuration"))?;
            devices.push((leaf.device, own));
        }
        labels::initialise_devices(&devices, &self.pool.uberblock())?;
        self.when_done(move |live| {
            live.allocator.set_vdevs(tree.clone());
            live.io.pipe.set_vdevs(tree);
            live.config.lock().set_tree(root);
        });
        Ok(())
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
            let label = PoolConfig {
                version: self.config.lock().published().version,
                state: Some(kind.state()),
                guid: Some(node.guid),
                ..PoolConfig::default()
            };
            devices.push((device, label));
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
        write_packed(change, id, &list)
    }
}
