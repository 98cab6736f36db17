//! A pool split in two.
//!
//! Chapter 08, section 22. Invariant: the new pool has every top-level vdev under the id it had, for
//! the addresses of blocks name it, and no guid in common with the old one.

use super::{AllocationClass, Topology, at_mut};
use crate::vdev::VdevError;
use cenote_format::config::{TopLevel, VdevConfig, VdevKind};
use cenote_format::{Guid, ObjectId, Txg};
use std::collections::BTreeMap;

/// A device that is to make up a new pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leg {
    /// Its guid.
    pub guid: Guid,
    /// Its guid in the new pool.
    pub new: Guid,
}

/// What [`Topology::split`] makes.
#[derive(Debug, Clone, PartialEq)]
pub struct Split {
    /// The vdevs of the pool without the devices that left.
    pub stays: Topology,
    /// The vdevs of the new pool.
    pub leaves: Topology,
}

impl Topology {
    /// Splits off a pool of guid `pool` that has one device of every mirror: `legs` tells which, in
    /// the order of top-level ids, with `None` for holes, logs and removed vdevs. Logs and holes that
    /// come last are left out.
    ///
    /// # Errors
    /// [`VdevError::NoSuchDevice`] if the pool does not have one of them, [`VdevError::Unfit`] if
    /// these make up no pool.
    pub fn split(&self, legs: &[Option<Leg>], pool: Guid, txg: Txg) -> Result<Split, VdevError> {
        let is_left_out =
            |top: &VdevConfig| top.kind == VdevKind::Hole || top.top.is_some_and(|top| top.is_log);
        let last = self.tops().iter().rposition(|top| !is_left_out(top));
        if last.map_or(0, |last| last + 1) != legs.len() {
            return Err(VdevError::Unfit("a device of every top-level vdev is needed"));
        }
        let mut stays = self.next(txg);
        let mut tops = Vec::with_capacity(legs.len());
        let mut classes = Vec::with_capacity(legs.len());
        for ((id, top), leg) in (0_u32..).zip(self.tops()).zip(legs) {
            let (top, class) = match leg {
                None if is_left_out(top) => {
                    let hole = VdevConfig {
                        whole_disk: Some(false),
                        top: Some(TopLevel::default()),
                        ..VdevConfig::placeholder(VdevKind::Hole, id.into())
                    };
                    (hole, AllocationClass::Normal)
                }
                None if top.kind == VdevKind::Indirect => (top.clone(), self.class(id)),
                Some(leg) if top.kind == VdevKind::Mirror && !is_left_out(top) => {
                    let own = split_off(top, leg)?;
                    stays = stays.without_leg(leg.guid, txg)?;
                    (own, self.class(id))
                }
                _ => return Err(VdevError::Unfit("only pools of mirrors can be split")),
            };
            tops.push(top);
            classes.push(class);
        }
        let root = VdevConfig {
            guid: pool,
            children: Some(tops),
            // The new pool makes one of its own.
            root_zap: None,
            ..self.root.clone()
        };
        let leaves = Self { root, classes, changed: txg, adopted: BTreeMap::new() }.checked()?;
        Ok(Split { stays, leaves })
    }

    /// The same vdevs; the root has this table.
    #[must_use]
    pub fn with_root_zap(mut self, zap: Option<ObjectId>) -> Self {
        self.root.root_zap = zap;
        self
    }

    /// Without a device that has left for another pool, and that device.
    ///
    /// # Errors
    /// As for [`Topology::detach`].
    pub fn let_leg_go(&self, leg: Guid, txg: Txg) -> Result<(Self, VdevConfig), VdevError> {
        let node = self.find(leg).cloned().ok_or(VdevError::NoSuchDevice(leg))?;
        Ok((self.without_leg(leg, txg)?, node))
    }

    /// Without a device that left for another pool. What takes the place of its mirror remembers what
    /// guid it had, for the labels of the two pools are alike.
    fn without_leg(&self, leg: Guid, txg: Txg) -> Result<Self, VdevError> {
        let mut left = self.detach(leg, txg)?.topology;
        let top = self.top_of(leg).and_then(|id| Some((id, left.top(id)?.guid)));
        if let Some((id, now)) = top
            && let Some(before) = left.adopted.get(&now).copied()
            && let Some(node) = at_mut(&mut left.root, &[id as usize])
        {
            node.original_guid = Some(before);
        }
        Ok(left)
    }
}

/// The top-level vdev that a device of `mirror` becomes in a new pool.
fn split_off(mirror: &VdevConfig, leg: &Leg) -> Result<VdevConfig, VdevError> {
    let own = mirror.children().iter().find(|child| child.guid == leg.guid);
    let own = own.ok_or(VdevError::NoSuchDevice(leg.guid))?;
    if !own.kind.has_device() || own.is_spare || own.offline || own.faulted {
        return Err(VdevError::Unfit("every device of the new pool must be whole"));
    }
    let facts = mirror.top.unwrap_or_default();
    Ok(VdevConfig {
        id: mirror.id,
        guid: leg.new,
        top: Some(TopLevel { is_log: false, non_allocating: None, removing: None, ..facts }),
        top_zap: mirror.top_zap,
        dirty_time_log: None,
        resilver_txg: None,
        rebuild_txg: None,
        original_guid: None,
        ..own.clone()
    })
}
