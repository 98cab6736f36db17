//! Space for changes of files: asked for before they are made, settled by the writer of groups.
//!
//! Invariant: what heads and directories use is told together with the end of the group that made it
//! so, never from a reading that is older than what was settled.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use cenote_format::dsl_dataset::DslDataset;
use cenote_format::dsl_directory::DslDirectory;
use cenote_format::{ObjectId, Txg};

use super::{LivePool, PATIENCE};
use crate::dataset::change::MosChange;
use crate::dataset::{
    Allowance, Answer, Catalog, Dataset, DirectoryFacts, HeadFacts, HeadLimits, Left, Listed,
    PoolRoom, PropertyReader,
};
use crate::pipe::ObjsetPolicy;
use crate::txg::{Account, Costs, Purpose, Reservation, StoredSize};
use crate::vdev::{AllocationClass, VdevHandle, VdevTree};
use crate::{ErrorKind, Result};

/// Sizes at which vdevs that cost the same are told apart.
const SIZES: [u64; 6] = [512, 4 << 10, 12 << 10, 16 << 10, 128 << 10, 1 << 20];
/// Most copies of a block.
const COPIES: u64 = 3;

fn head_facts(phys: &DslDataset) -> HeadFacts {
    HeadFacts {
        directory: phys.directory,
        referenced: phys.referenced_bytes,
        unique: phys.unique_bytes,
    }
}

fn directory_facts(phys: &DslDirectory) -> DirectoryFacts {
    DirectoryFacts { limits: phys.into(), parent: phys.parent, properties: phys.properties }
}

/// What one copy of a block costs at most on the devices that take blocks. Who keeps that keeps no device open that
/// has left. Of a RAID-Z that was expanded, what it costs at its first width, which is more: groups that are
/// under way when it ends are laid out as before.
pub(super) fn stored_size(handle: &VdevHandle) -> StoredSize {
    let (handle, vdevs) = (handle.clone(), handle.current());
    let cost = |vdevs: &VdevTree, vdev: u32, bytes: u64| {
        let asize = vdevs.asize(vdev, bytes, Txg(0)).unwrap_or(bytes);
        (asize >> 9).saturating_mul(vdevs.deflate_ratio(vdev))
    };
    let mut kinds: Vec<(u32, [u64; SIZES.len()])> = Vec::new();
    for vdev in 0..vdevs.top_count() {
        let is_ordinary = vdevs.class(vdev) != AllocationClass::Log;
        if is_ordinary && vdevs.min_allocation(vdev).is_some() {
            let costs = SIZES.map(|bytes| cost(&vdevs, vdev, bytes));
            if kinds.iter().all(|(_, known)| *known != costs) {
                kinds.push((vdev, costs));
            }
        }
    }
    Arc::new(move |bytes| {
        let vdevs = handle.load();
        let costs = kinds.iter().map(|(vdev, _)| cost(&vdevs, *vdev, bytes));
        costs.max().unwrap_or(bytes)
    })
}

impl LivePool {
    /// What the pool offers now.
    fn pool_room(&self) -> PoolRoom {
        let figures = self.allocator.figures();
        // Of a RAID-Z a checkpoint holds less than what is shown of it, as OpenZFS does: parity counts there.
        let held = figures
            .tops
            .iter()
            .map(|top| top.deflated(self.allocator.held_by_checkpoint_on(top.id)))
            .fold(0, u64::saturating_add);
        let capacity = self.capacity_but(held);
        PoolRoom {
            usable: capacity.usable,
            slop: capacity.slop,
            free: self.room_for_blocks(),
            deferred: figures.deferred_deflated(),
        }
    }

    /// Bytes that can be allocated now. What is promised for a block does not count the headers it has where it is
    /// written in pieces: that much less is there to be promised.
    pub(super) fn room_for_blocks(&self) -> u64 {
        let figures = self.allocator.figures();
        let taking = figures.tops.iter();
        let taking = taking.filter(|top| top.class == AllocationClass::Normal && !top.passive);
        taking.map(|top| top.deflated(top.free_for_blocks())).fold(0, u64::saturating_add)
    }

    /// What blocks written by `policy` can cost.
    pub(in crate::pool) fn costs(&self, policy: &ObjsetPolicy) -> Costs {
        let copies = u64::from(policy.copies);
        let metadata_copies = (copies + 1).min(COPIES);
        Costs { copies, metadata_copies, stored: stored_size(self.io.pipe.vdev_handle()) }
    }

    fn head_limits(&self, catalog: &Catalog, head: &Dataset) -> Result<HeadLimits> {
        let keys = self.pool.keys();
        let reader = PropertyReader::new(catalog, self.capacity(), keys.as_ref(), "");
        let listed = Listed::Dataset(head.clone());
        let number =
            |name: &str| -> Result<u64> { Ok(reader.number(&listed, name)?.unwrap_or_default()) };
        Ok(HeadLimits { refquota: number("refquota")?, refreservation: number("refreservation")? })
    }

    /// A head is opened for writing: its changes promise what they cost.
    pub(in crate::pool) fn open_account(
        &self,
        head: &Dataset,
        account: &Arc<Account>,
    ) -> Result<()> {
        self.promises.open(head.id, account.clone());
        loop {
            let settled = self.promises.settled();
            let catalog = self.pool.catalog();
            let head = catalog.dataset_by_id(head.id)?;
            let mut left = Left { pool: self.pool_room(), ..Left::default() };
            let above = catalog.ancestors(&head.directory)?;
            for directory in std::iter::once(&*head.directory).chain(&above) {
                left.directories.push((directory.id, directory_facts(&directory.phys)));
            }
            let limits = self.head_limits(&catalog, &head)?;
            left.heads.push((head.id, head_facts(&head.phys), Some(limits)));
            if self.promises.tell(settled, left) {
                return Ok(());
            }
        }
    }

    /// Group `txg` is on the disks and shown, and wrote these objects of the meta object set: says what it left
    /// of directories and heads. `orders`: some were done in it.
    pub(in crate::pool) fn settle_promises(
        &self,
        change: &MosChange<'_>,
        txg: Txg,
        written: &BTreeSet<ObjectId>,
        orders: bool,
    ) {
        if orders {
            self.follow_devices();
        }
        let (directories, heads) = self.promises.concerned(written);
        let mut left = Left { pool: self.pool_room(), ..Left::default() };
        let mut firsts: Vec<ObjectId> = change.root_directory().into_iter().collect();
        firsts.extend(directories);
        for id in heads {
            let told = || -> Result<_> {
                let facts = head_facts(&change.dataset(id)?);
                let limits = match orders {
                    true => {
                        let directory = change.directory(facts.directory)?;
                        let refquota = change.refquota(&directory)?;
                        let refreservation = change.refreservation(&directory)?;
                        Some(HeadLimits { refquota, refreservation })
                    }
                    false => None,
                };
                Ok((id, facts, limits))
            };
            match told() {
                Ok(head) => {
                    firsts.push(head.1.directory);
                    left.heads.push(head);
                }
                Err(error) if error.kind() == ErrorKind::NotFound => self.promises.close(id),
                Err(error) => tracing::warn!(dataset = id.0, %error, "its space is not known"),
            }
        }
        let mut known = HashSet::new();
        for first in firsts {
            let mut at = first;
            while at.0 != 0 && known.insert(at) {
                let Ok(phys) = change.directory(at) else { break };
                left.directories.push((at, directory_facts(&phys)));
                at = phys.parent;
            }
        }
        self.promises.settle(txg, left);
        self.settle_frees();
    }

    /// Where devices were added or went, blocks may cost something else.
    fn follow_devices(&self) {
        let vdevs = Arc::downgrade(&self.vdevs());
        let before = std::mem::replace(&mut *self.costs_of.lock(), vdevs.clone());
        if !before.ptr_eq(&vdevs) {
            let all: Vec<_> = self.datasets.lock().values().cloned().collect();
            all.iter().for_each(|live| live.account().set_costs(self.costs(&live.policy())));
        }
    }

    /// Makes sure of room for a change of `blocks` blocks of `size` bytes in the head `id`. Waits for groups where only what
    /// is on its way stands in the way. No lock and no [`crate::txg::Tx`] may be held.
    ///
    /// # Errors
    /// [`ErrorKind::Quota`], [`ErrorKind::NoSpace`], and whatever keeps groups from being written.
    pub fn reserve(
        &self,
        id: ObjectId,
        blocks: u64,
        size: u64,
        purpose: Purpose,
    ) -> Result<Reservation> {
        self.gate.wait_in_step();
        // What takes the place of others frees them, and may have entries in tables itself.
        self.admit_frees(blocks)?;
        let want = self.promises.want(id, blocks, size, purpose);
        let mut waited = 0;
        loop {
            match self.promises.ask(id, want, waited) {
                Answer::Granted(reservation) => {
                    if self.promises.is_crowded(id) {
                        self.gate.want(self.gate.figures().open);
                        self.gate.wait_in_step();
                    }
                    return Ok(reservation);
                }
                Answer::Refused(error) => return Err(error),
                Answer::Wait => {
                    let open = self.gate.figures().open;
                    self.gate.wait_synced(open, PATIENCE)?;
                    waited += 1;
                }
            }
        }
    }

    /// As [`LivePool::reserve`] without waiting; none where that would wait, or there is no room.
    pub fn reserve_at_once(
        &self,
        id: ObjectId,
        blocks: u64,
        size: u64,
        purpose: Purpose,
    ) -> Option<Reservation> {
        if !self.admits_frees(blocks) {
            return None;
        }
        let want = self.promises.want(id, blocks, size, purpose);
        match self.promises.ask(id, want, 0) {
            Answer::Granted(reservation) => Some(reservation),
            Answer::Refused(_) | Answer::Wait => None,
        }
    }

    /// What bounds an open head, as of the newest group on the disks.
    pub fn allowance(&self, id: ObjectId) -> Option<Allowance> {
        self.promises.allowance(id).map(|(allowance, _)| allowance)
    }
}
