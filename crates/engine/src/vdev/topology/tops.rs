//! Top-level vdevs that come and go.
//!
//! Chapter 01, section 7.5; chapter 03, section 6. Invariant: the id of a top-level vdev is its place for
//! ever, for the addresses of blocks name it: new ones come last, and one that goes leaves a hole, or a
//! vdev that tells where its blocks are.

use super::{AllocationClass, Topology, at_mut};
use crate::vdev::VdevError;
use cenote_format::config::{IndirectObjects, PoolConfig, TopLevel, VdevConfig, VdevKind};
use cenote_format::{Guid, ObjectId, Txg};

impl Topology {
    /// With new top-level vdevs after the others, added by group `txg`. Their nodes have guids; their
    /// own ids and that group are filled in.
    ///
    /// # Errors
    /// [`VdevError::Config`] if no pool can be made like this.
    pub fn add(
        &self,
        tops: impl IntoIterator<Item = (VdevConfig, AllocationClass)>,
        txg: Txg,
    ) -> Result<Self, VdevError> {
        let mut next = self.next(txg);
        for (top, class) in tops {
            let all = next.root.children.get_or_insert_default();
            let id = Some(all.len() as u64);
            all.push(VdevConfig { id, create_txg: Some(txg), ..top });
            next.classes.push(class);
        }
        next.checked()
    }

    /// These top-level vdevs have so many allocatable bytes.
    #[must_use]
    pub fn grown(&self, sizes: &[(u32, u64)], txg: Txg) -> Self {
        let mut next = self.next(txg);
        for (id, size) in sizes {
            let place = next.root.children.as_mut().and_then(|all| all.get_mut(*id as usize));
            if let Some(top) = place.and_then(|top| top.top.as_mut()) {
                top.asize = *size;
            }
        }
        next
    }

    /// The leaf was asked at this time (seconds since 1970) to use what its device has.
    #[must_use]
    pub fn asked_to_grow(&self, leaf: Guid, time: u64, txg: Txg) -> Self {
        let mut next = self.next(txg);
        let path = self.path(leaf);
        if let Some(node) = path.and_then(|path| at_mut(&mut next.root, &path)) {
            node.expansion_time = Some(time);
        }
        next
    }

    /// With `mark` on these leaves: something about how they get what they lack.
    #[must_use]
    pub fn marked(&self, leaves: &[Guid], txg: Txg, mark: impl Fn(&mut VdevConfig)) -> Self {
        let mut next = self.next(txg);
        for leaf in leaves {
            if let Some(node) = self.path(*leaf).and_then(|path| at_mut(&mut next.root, &path)) {
                mark(node);
            }
        }
        next
    }

    /// Without the log vdev `id`, on which nothing is any more: a hole keeps its place.
    ///
    /// # Errors
    /// [`VdevError::NoSuchVdev`] if there is none, [`VdevError::Unfit`] if it is no log.
    pub fn leave_hole(&self, id: u32, txg: Txg) -> Result<Self, VdevError> {
        let mut next = self.next(txg);
        let missing = || VdevError::NoSuchVdev { vdev: id, reason: "there is none" };
        let place = next.root.children.as_mut().and_then(|all| all.get_mut(id as usize));
        let place = place.ok_or_else(missing)?;
        if self.class(id) != AllocationClass::Log || place.kind == VdevKind::Hole {
            return Err(VdevError::Unfit("only log devices leave a hole"));
        }
        *place = VdevConfig {
            whole_disk: Some(false),
            top: Some(TopLevel::default()),
            ..VdevConfig::placeholder(VdevKind::Hole, id.into())
        };
        if let Some(class) = next.classes.get_mut(id as usize) {
            *class = AllocationClass::Normal;
        }
        next.checked()
    }

    /// Vdev `id` is being emptied, and these objects tell where its blocks go; `None`: no more, and it is used as
    /// before. OpenZFS from 2.2 on puts new blocks on whatever is not said to be `non_allocating`.
    ///
    /// # Errors
    /// [`VdevError::NoSuchVdev`] if there is none.
    pub fn removing(
        &self,
        id: u32,
        objects: Option<IndirectObjects>,
        txg: Txg,
    ) -> Result<Self, VdevError> {
        let mut next = self.next(txg);
        let place = next.top_mut(id)?;
        place.indirect = objects;
        if let Some(top) = &mut place.top {
            top.removing = objects.map(|_| 1);
            top.non_allocating = top.removing;
        }
        next.checked()
    }

    /// All blocks of vdev `id` are somewhere else: a vdev of this guid takes its place, which tells where.
    /// `previous` was removed before it.
    ///
    /// # Errors
    /// [`VdevError::NoSuchVdev`] if there is none, [`VdevError::Unfit`] if it was not being emptied.
    pub fn emptied(
        &self,
        id: u32,
        guid: Guid,
        previous: Option<u64>,
        txg: Txg,
    ) -> Result<Self, VdevError> {
        let mut next = self.next(txg);
        let place = next.top_mut(id)?;
        let (Some(objects), Some(facts)) = (place.indirect, place.top) else {
            return Err(VdevError::Unfit("only a vdev that is being removed can leave a mapping"));
        };
        let top = TopLevel {
            metaslab_array: ObjectId(0),
            is_log: false,
            removing: None,
            non_allocating: None,
            ..facts
        };
        *place = VdevConfig {
            guid,
            whole_disk: Some(false),
            top: Some(top),
            top_zap: place.top_zap,
            indirect: Some(IndirectObjects { previous, ..objects }),
            create_txg: place.create_txg,
            ..VdevConfig::placeholder(VdevKind::Indirect, id.into())
        };
        if let Some(class) = next.classes.get_mut(id as usize) {
            *class = AllocationClass::Normal;
        }
        next.checked()
    }

    /// The mapping of vdev `id`, which was removed, is in another object.
    ///
    /// # Errors
    /// [`VdevError::NoSuchVdev`] if there is none, [`VdevError::Unfit`] if it was not removed.
    pub fn mapped_by(&self, id: u32, mapping: ObjectId, txg: Txg) -> Result<Self, VdevError> {
        let mut next = self.next(txg);
        let objects = next.top_mut(id)?.indirect.as_mut();
        objects.ok_or(VdevError::Unfit("only removed vdevs have mappings"))?.mapping = mapping;
        next.checked()
    }

    /// The label of a device that was part of vdev `id` before that was emptied, as it leaves.
    #[must_use]
    pub fn parting_label(&self, label: PoolConfig, id: u32) -> PoolConfig {
        let top = self.top(id);
        PoolConfig {
            top_guid: top.map(|top| top.guid),
            vdev_tree: top.map(super::label_node),
            ..label
        }
    }

    fn top_mut(&mut self, id: u32) -> Result<&mut VdevConfig, VdevError> {
        let missing = || VdevError::NoSuchVdev { vdev: id, reason: "there is none" };
        self.root.children.as_mut().and_then(|all| all.get_mut(id as usize)).ok_or_else(missing)
    }

    /// As the labels of a log device that leaves have it: its vdev `id` has no space any more.
    #[must_use]
    pub fn leaving(&self, id: u32) -> Self {
        let mut next = self.clone();
        let place = next.root.children.as_mut().and_then(|all| all.get_mut(id as usize));
        if let Some(top) = place.and_then(|top| top.top.as_mut()) {
            top.metaslab_array = ObjectId(0);
            top.metaslab_shift = 0;
            top.removing = Some(1);
        }
        next
    }
}
