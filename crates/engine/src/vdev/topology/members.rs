//! Devices that come into a vdev, stand in for others there, and leave it.
//!
//! Chapter 01, section 7.7; chapter 08, sections 14, 15 and 21. What these operations ask of devices
//! (their size, their sectors, that nothing needs the one that leaves) is not to be seen in a
//! topology: who asks for one has looked at that. Invariant: what only top-level vdevs have stays at
//! the top, and a top-level vdev keeps its guid whatever becomes of what is below it.

use super::{Topology, at, at_mut, number};
use crate::vdev::VdevError;
use cenote_format::config::{ERRORS_EXCEEDED, EXTERNAL, VdevConfig, VdevKind};
use cenote_format::{Guid, Txg};

/// What [`Topology::detach`] makes.
#[derive(Debug, Clone, PartialEq)]
pub struct Detached {
    /// The vdevs that are left.
    pub topology: Topology,
    /// The leaf that left.
    pub leaf: VdevConfig,
    /// A hot spare that has the place of the leaf for good: it leaves the pool's list of spares.
    pub unspared: Option<Guid>,
}

impl Topology {
    /// With `leaf` beside `other`: both hold the same from group `txg` on. If `other` is no part of a
    /// mirror yet, one of guid `mirror` is put above the two.
    ///
    /// # Errors
    /// [`VdevError::NoSuchDevice`] if the pool does not have `other`, [`VdevError::Unfit`] if nothing
    /// can be attached to it.
    pub fn attach(
        &self,
        other: Guid,
        leaf: VdevConfig,
        mirror: Guid,
        txg: Txg,
    ) -> Result<Self, VdevError> {
        let path = self.path_of_vdev(other)?;
        let (above, node) = self.pair(&path)?;
        if !node.kind.has_device() || !leaf.kind.has_device() {
            return Err(VdevError::Unfit("can only attach to mirrors and top-level disks"));
        }
        match above.kind {
            VdevKind::Root | VdevKind::Mirror => {}
            _ => {
                return Err(VdevError::Unfit("can only attach to mirrors and top-level disks"));
            }
        }
        self.beside(&path, leaf, VdevKind::Mirror, mirror, txg)
    }

    /// With `leaf` in the place of `old`, which stays beside it until it is detached. Above the two is
    /// a vdev of kind replacing, or spare if `leaf` is a hot spare (its `is_spare` says so); a new one
    /// gets guid `parent`.
    ///
    /// # Errors
    /// [`VdevError::NoSuchDevice`] if the pool does not have `old`, [`VdevError::Unfit`] if `leaf`
    /// cannot stand in for it.
    pub fn replace(
        &self,
        old: Guid,
        leaf: VdevConfig,
        parent: Guid,
        txg: Txg,
    ) -> Result<Self, VdevError> {
        let path = self.path_of_vdev(old)?;
        let (above, node) = self.pair(&path)?;
        let is_member =
            |node: &VdevConfig| node.kind.has_device() || node.kind == VdevKind::DistributedSpare;
        if !is_member(node) || !is_member(&leaf) {
            return Err(VdevError::Unfit("only a device can be replaced, by another"));
        }
        let top = path.first().and_then(|id| self.tops().get(*id));
        if leaf.is_spare && top.is_some_and(|top| top.top.is_some_and(|top| top.is_log)) {
            return Err(VdevError::Unfit("cannot replace a log with a spare"));
        }
        if above.kind == VdevKind::Spare && leaf.is_spare != node.is_spare {
            return Err(VdevError::Unfit("can only be replaced by another hot spare"));
        }
        let own_draid = top.is_some_and(|top| leaf.top_guid == Some(top.guid));
        if leaf.kind == VdevKind::DistributedSpare && !(leaf.is_spare && own_draid) {
            return Err(VdevError::Unfit(
                "dRAID spares can only replace child devices in their parent's dRAID vdev",
            ));
        }
        let kind = if leaf.is_spare { VdevKind::Spare } else { VdevKind::Replacing };
        self.beside(&path, leaf, kind, parent, txg)
    }

    /// Without `leaf`, which is part of a mirror or stands beside what replaces it. If one node is
    /// left there it takes the place of the vdev above it, and of a top-level vdev the guid as well,
    /// for the pool's devices would seem to have two of them otherwise.
    ///
    /// # Errors
    /// [`VdevError::NoSuchDevice`] if the pool does not have it, [`VdevError::Unfit`] if it cannot
    /// leave.
    pub fn detach(&self, leaf: Guid, txg: Txg) -> Result<Detached, VdevError> {
        let path = self.path_of_vdev(leaf)?;
        let (above, node) = self.pair(&path)?;
        let (kind, is_device) = (above.kind, node.kind.is_leaf());
        if !is_device || !matches!(kind, VdevKind::Mirror | VdevKind::Replacing | VdevKind::Spare) {
            let reason = "only applicable to mirror and replacing vdevs";
            return Err(VdevError::Unfit(reason));
        }
        if above.children().len() < 2 {
            return Err(VdevError::Unfit("nothing else holds what it does"));
        }
        let mut next = self.next(txg);
        let lost = || VdevError::NoSuchDevice(leaf);
        let (index, parent) = path.split_last().ok_or_else(lost)?;
        let place = at_mut(&mut next.root, parent).ok_or_else(lost)?;
        let children = place.children.as_mut().ok_or_else(lost)?;
        let gone = children.remove(*index);
        if kind == VdevKind::Replacing && *index > 0 {
            take_back_name(children, &gone);
        }
        let mut unspared = None;
        if kind == VdevKind::Spare
            && *index == 0
            && let Some(last) = children.last_mut()
            && last.is_spare
            && last.kind != VdevKind::DistributedSpare
        {
            last.is_spare = false;
            unspared = Some(last.guid);
        }
        number(children);
        let adopted = collapse(place, parent.len() == 1);
        if kind == VdevKind::Replacing {
            // What replaced it has everything, and needs no spare.
            let new = place.guid;
            next = next.unspare(new, txg)?;
        }
        if let Some((now, before)) = adopted {
            let before = next.adopted.remove(&before).unwrap_or(before);
            next.adopted.insert(now, before);
        }
        Ok(Detached { topology: next.checked()?, leaf: gone, unspared })
    }

    /// The leaf is not to be used (`offline`), or is again.
    ///
    /// # Errors
    /// [`VdevError::NoSuchDevice`] if the pool does not have it, [`VdevError::Unfit`] if it is no device.
    pub fn offline(&self, leaf: Guid, offline: bool, txg: Txg) -> Result<Self, VdevError> {
        let path = self.path_of_vdev(leaf)?;
        let mut next = self.next(txg);
        let node = at_mut(&mut next.root, &path).ok_or(VdevError::NoSuchDevice(leaf))?;
        if !node.kind.has_device() {
            return Err(VdevError::Unfit("only devices are taken offline and online"));
        }
        node.offline = offline;
        if !offline {
            node.removed = false;
        }
        next.checked()
    }

    /// The leaf is said to be faulty, or only degraded where it cannot be done without. What is said for
    /// good counts in later lives of the pool, too.
    ///
    /// # Errors
    /// [`VdevError::NoSuchDevice`] if the pool does not have it, [`VdevError::Unfit`] if it is no device.
    pub fn fault(
        &self,
        leaf: Guid,
        is_required: bool,
        for_good: bool,
        txg: Txg,
    ) -> Result<Self, VdevError> {
        let path = self.path_of_vdev(leaf)?;
        let mut next = self.next(txg);
        let node = at_mut(&mut next.root, &path).ok_or(VdevError::NoSuchDevice(leaf))?;
        if !node.kind.has_device() {
            return Err(VdevError::Unfit("operation not supported on this type of pool"));
        }
        (node.faulted, node.degraded) = (!is_required, is_required);
        node.aux_state = for_good.then(|| EXTERNAL.to_owned());
        next.checked()
    }

    /// These leaves had too many errors, and are used all the same. That counts in later lives of the pool, too.
    ///
    /// # Errors
    /// [`VdevError::Config`] if no pool can be made like this.
    pub fn worn(&self, leaves: &[Guid], txg: Txg) -> Result<Self, VdevError> {
        let mut next = self.next(txg);
        for leaf in leaves {
            let path = self.path(*leaf);
            if let Some(node) = path.and_then(|path| at_mut(&mut next.root, &path)) {
                node.degraded = true;
                node.aux_state = Some(ERRORS_EXCEEDED.to_owned());
            }
        }
        next.checked()
    }

    /// Nothing bad is said of these leaves any more; hot spares beside them go back when they have everything
    /// again.
    ///
    /// # Errors
    /// [`VdevError::Config`] if no pool can be made like this.
    pub fn trusting(&self, leaves: &[Guid], txg: Txg) -> Result<Self, VdevError> {
        let mut next = self.next(txg);
        for leaf in leaves {
            let Some(path) = self.path(*leaf) else { continue };
            next = next.unspare(*leaf, txg)?;
            if let Some(node) = at_mut(&mut next.root, &path) {
                (node.faulted, node.degraded, node.removed) = (false, false, false);
                node.aux_state = None;
            }
        }
        next.checked()
    }

    /// The hot spare beside the leaf, if there is one, goes back when that has everything again.
    ///
    /// # Errors
    /// [`VdevError::NoSuchDevice`] if the pool does not have it.
    pub fn unspare(&self, leaf: Guid, txg: Txg) -> Result<Self, VdevError> {
        let path = self.path_of_vdev(leaf)?;
        let (above, _) = self.pair(&path)?;
        let is_spared = above.kind == VdevKind::Spare && path.last() == Some(&0);
        let mut next = self.next(txg);
        if let Some(node) = at_mut(&mut next.root, &path).filter(|_| is_spared) {
            node.unspare = true;
        }
        next.checked()
    }

    /// With `leaf` as one more child of `raidz`, over which its blocks are to be spread: until
    /// [`Topology::expanded`] says where that came to its end.
    ///
    /// # Errors
    /// [`VdevError::NoSuchDevice`] if the pool has no such vdev, [`VdevError::Unfit`] if it cannot
    /// grow now.
    pub fn expand(&self, raidz: Guid, leaf: VdevConfig, txg: Txg) -> Result<Self, VdevError> {
        let path = self.path_of_vdev(raidz)?;
        let (_, node) = self.pair(&path)?;
        if path.len() != 1 || node.kind != VdevKind::Raidz || !leaf.kind.has_device() {
            return Err(VdevError::Unfit("only a RAID-Z vdev can be expanded, by a device"));
        }
        if self.tops().iter().any(|top| top.raidz_expanding) {
            return Err(VdevError::Unfit("a RAID-Z expansion is under way"));
        }
        if node.children().iter().any(|child| !child.kind.has_device()) {
            return Err(VdevError::Unfit("a device of this vdev is being replaced"));
        }
        let mut next = self.next(txg);
        let place = at_mut(&mut next.root, &path).ok_or(VdevError::NoSuchDevice(raidz))?;
        place.raidz_expanding = true;
        append(place, leaf, node.create_txg);
        next.checked()
    }

    /// After the blocks of `raidz` were spread over all its children: those born in group `from` and
    /// later are laid out over all of them.
    ///
    /// # Errors
    /// [`VdevError::NoSuchDevice`] if the pool has no such vdev, [`VdevError::Unfit`] if it is not
    /// being expanded.
    pub fn expanded(&self, raidz: Guid, from: Txg, txg: Txg) -> Result<Self, VdevError> {
        let path = self.path_of_vdev(raidz)?;
        let mut next = self.next(txg);
        let place = at_mut(&mut next.root, &path).ok_or(VdevError::NoSuchDevice(raidz))?;
        if !place.raidz_expanding {
            return Err(VdevError::Unfit("this vdev is not being expanded"));
        }
        place.raidz_expanding = false;
        place.raidz_expand_txgs.get_or_insert_default().push(from.0);
        next.checked()
    }

    /// The node at the end of a path, and the one above it.
    fn pair(&self, path: &[usize]) -> Result<(&VdevConfig, &VdevConfig), VdevError> {
        let both = path.split_last().and_then(|(index, above)| {
            let above = at(&self.root, above)?;
            Some((above, above.children().get(*index)?))
        });
        both.ok_or(VdevError::Unfit("the root is no device"))
    }

    /// With `leaf` beside the node at `path`, below a vdev of kind `kind`.
    fn beside(
        &self,
        path: &[usize],
        leaf: VdevConfig,
        kind: VdevKind,
        parent: Guid,
        txg: Txg,
    ) -> Result<Self, VdevError> {
        let (above, node) = self.pair(path)?;
        let (has_parent, create_txg, guid) = (above.kind == kind, node.create_txg, node.guid);
        let mut next = self.next(txg);
        let lost = || VdevError::NoSuchDevice(guid);
        let old = at_mut(&mut next.root, path).ok_or_else(lost)?;
        if let Some(name) = old.path.clone().filter(|name| leaf.path.as_ref() == Some(name)) {
            // It cannot be opened by that name any more.
            old.path = Some(name + OLD);
            old.devid = None;
        }
        let place = if has_parent {
            let above = path.split_last().map(|(_, above)| above).unwrap_or_default();
            at_mut(&mut next.root, above).ok_or_else(lost)?
        } else {
            put_above(old, kind, parent);
            old
        };
        append(place, leaf, create_txg);
        next.checked()
    }
}

/// What is added to the name of a device that another one replaces in its very place.
const OLD: &str = "/old";

/// The device that `gone` was to replace in its place goes by its name again.
fn take_back_name(children: &mut [VdevConfig], gone: &VdevConfig) {
    let Some(name) = &gone.path else { return };
    for child in children {
        let own = child.path.as_deref().and_then(|path| path.strip_suffix(OLD));
        if own == Some(name) {
            child.path = Some(name.clone());
        }
    }
}

/// Puts a vdev of kind `kind` above `node`, in its place.
fn put_above(node: &mut VdevConfig, kind: VdevKind, guid: Guid) {
    let mut below = std::mem::take(node);
    *node = VdevConfig {
        kind,
        id: below.id,
        guid,
        whole_disk: Some(false),
        top: below.top.take(),
        top_zap: below.top_zap.take(),
        create_txg: below.create_txg,
        ..VdevConfig::default()
    };
    below.id = Some(0);
    node.children = Some(vec![below]);
}

/// Adds a child, which counts as made in the group that what it joins was made in.
fn append(node: &mut VdevConfig, leaf: VdevConfig, create_txg: Option<Txg>) {
    let children = node.children.get_or_insert_default();
    let id = Some(children.len() as u64);
    children.push(VdevConfig { id, create_txg, top: None, top_zap: None, ..leaf });
}

/// If one child of `node` is left, puts it in its place; of a top-level vdev it takes the guid too:
/// its guid now, and before.
fn collapse(node: &mut VdevConfig, is_top: bool) -> Option<(Guid, Guid)> {
    let children = node.children.as_mut().filter(|children| children.len() == 1)?;
    let mut child = children.pop()?;
    if node.kind == VdevKind::Spare {
        child.unspare = false;
    }
    child.id = node.id;
    let before = child.guid;
    if is_top {
        child.guid = node.guid;
        child.top = node.top.take();
        child.top_zap = node.top_zap.take();
    }
    *node = child;
    is_top.then_some((node.guid, before))
}
