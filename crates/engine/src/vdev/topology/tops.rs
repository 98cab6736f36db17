//! Top-level vdevs that come and go.
//!
//! Chapter 01, section 7.5. Invariant: the id of a top-level vdev is its place for ever, for the
//! addresses of blocks name it: new ones come last, and one that goes leaves a hole.

use super::{AllocationClass, Topology, at_mut};
use crate::vdev::VdevError;
use cenote_format::config::{TopLevel, VdevConfig, VdevKind};
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
