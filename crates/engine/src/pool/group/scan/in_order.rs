//! A resilver in the order of the disks, from one end to the other: what is asked for with `-s` where blocks
//! have to be known, as on a RAID-Z.
//!
//! All pointers are gone through for the blocks that lie foremost, as many as fit into memory; those are read in
//! their order, and then the next are looked for. On the disks this is a resilver at its beginning, with which
//! OpenZFS, or another life of the pool, goes on as such. Invariant: a block is written again only while it is
//! surely the owner of its place; of those of which nobody knows, the pointers are looked at once more.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use cenote_format::scan_state::ScanFunction;
use cenote_format::{BlockPointer, Dva, ObjectId, Txg};
use parking_lot::Mutex;

use super::LivePool;
use super::start::ScanKind;
use super::visit::{Blocks, Place};
use crate::dataset::change::MosChange;
use crate::vdev::BlockRead;
use crate::walk::{Order, Step, Tree, Walk};
use crate::{Error, ErrorKind, Result};

/// Blocks that are known at once.
const MOST: usize = 1 << 17;
/// Blocks that are read before somebody looks around.
const PORTION: usize = 1024;

/// Where a block lies: its top-level vdev, and its place there.
type Address = (u32, u64);
/// A block that is to be read, where it lies, and where it belongs.
type Entry = (Address, BlockPointer, (u64, u64, u8, u64));

/// A resilver in the order of the disks.
#[derive(Debug, Default)]
pub(super) struct InOrder {
    /// What is to be read next, the first last.
    left: Vec<Entry>,
    /// Everything up to there was looked for.
    until: Option<Address>,
    /// There is nothing behind that.
    is_end: bool,
    /// Blocks that may not be the owners of their places any more.
    doubtful: BTreeSet<Address>,
}

impl LivePool {
    /// Begins a resilver of what was born in `births` in the order of the disks.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] while a resilver runs.
    pub(in crate::pool) fn begin_in_order(
        &self,
        change: &MosChange<'_>,
        births: Range<u64>,
    ) -> Result<()> {
        if self.is_scanning() == Some(ScanFunction::Resilver) {
            return Err(Error::new(ErrorKind::Busy, "currently resilvering"));
        }
        self.begin_scan_of(change, ScanKind::Resilver, Some(births))?;
        self.when_done(|live| *live.scan.in_order.lock() = Some(Arc::default()));
        Ok(())
    }

    /// Reads some of what is left. False: this is not how the scan is done.
    pub(super) fn visit_in_order(&self, place: &Place) -> Result<bool> {
        let Some(own) = self.scan.in_order.lock().clone() else { return Ok(false) };
        if self.visit_next(place, &mut own.lock())? {
            let is_own = |now: &Arc<Mutex<InOrder>>| Arc::ptr_eq(now, &own);
            let mut run = self.scan.run.lock();
            // Another one may have begun meanwhile.
            let is_same = self.scan.in_order.lock().as_ref().is_some_and(is_own);
            if let Some(run) = run.as_mut().filter(|_| is_same) {
                run.leave_out();
                self.scan.show(run);
                self.scan.worker.mark();
                self.gate.want(self.gate.figures().open);
            }
        }
        Ok(true)
    }

    /// Does some of it. True: nothing is left.
    fn visit_next(&self, place: &Place, state: &mut InOrder) -> Result<bool> {
        let seen = self.pool.uberblock().txg;
        if !state.left.is_empty() {
            return self.read_entries(place, state, seen).map(|()| false);
        }
        if !state.is_end {
            let after = state.until;
            let (entries, is_all) =
                self.foremost(place, &|address| after.is_none_or(|after| address > after))?;
            state.until = entries.first().map(|(address, ..)| *address).or(state.until);
            (state.left, state.is_end) = (entries, is_all);
            return Ok(false);
        }
        if state.doubtful.is_empty() {
            return Ok(true);
        }
        // What is found now stays where it is until it is read.
        let held = self.allocator.hold_all();
        let (entries, is_all) =
            self.foremost(place, &|address| state.doubtful.contains(&address))?;
        for some in entries.chunks(PORTION) {
            self.read_found(place, some, seen)?;
        }
        drop(held);
        let last = entries.first().map(|(address, ..)| *address).filter(|_| !is_all);
        state.doubtful.retain(|address| last.is_some_and(|last| *address > last));
        Ok(state.doubtful.is_empty())
    }

    fn read_entries(&self, place: &Place, state: &mut InOrder, seen: Txg) -> Result<()> {
        let held = self.allocator.hold_all();
        let first = state.left.len().saturating_sub(PORTION);
        let some = state.left.split_off(first);
        let is_owner = |(address, pointer, _): &Entry| {
            let read = BlockRead {
                vdev: address.0,
                offset: address.1,
                size: pointer.psize(),
                birth: pointer.physical_birth(),
            };
            self.allocator.hold(&read).is_some()
        };
        let (owners, others): (Vec<Entry>, Vec<Entry>) = some.into_iter().partition(is_owner);
        state.doubtful.extend(others.into_iter().map(|(address, ..)| address));
        let read = self.read_found(place, &owners, seen);
        drop(held);
        if read.is_err() {
            // They are read again.
            state.left.extend(owners);
        }
        read
    }

    fn read_found(&self, place: &Place, entries: &[Entry], seen: Txg) -> Result<()> {
        let mut blocks = Blocks::default();
        for (_, pointer, at) in entries {
            blocks.push(*pointer, *at);
        }
        self.scan.pass.examined.fetch_add(blocks.examined, Relaxed);
        self.read_blocks(place, &blocks, seen)
    }

    /// The roots of all object sets, each with the group up to which its blocks are found elsewhere.
    fn all_roots(&self) -> Result<Vec<(u64, BlockPointer, Txg)>> {
        let (catalog, mos) = (self.pool.catalog(), self.pool.mos());
        let mut roots = vec![(0, *mos.root_pointer(), Txg(0))];
        let mut waiting: Vec<ObjectId> = catalog.common_origin()?.into_iter().collect();
        let mut known: BTreeSet<ObjectId> = waiting.iter().copied().collect();
        while let Some(dataset) = waiting.pop() {
            let phys = catalog.dataset_phys(dataset)?;
            roots.push((dataset.0, phys.pointer, phys.previous_snapshot_txg));
            let next = catalog.successors_of(dataset, &phys)?;
            waiting.extend(next.into_iter().filter(|next| known.insert(*next)));
        }
        Ok(roots)
    }

    /// The blocks that lie foremost, of those that lack something and lie where it is `wanted`, the first last;
    /// and whether those are all.
    fn foremost(
        &self,
        place: &Place,
        wanted: &dyn Fn(Address) -> bool,
    ) -> Result<(Vec<Entry>, bool)> {
        let vdevs = self.vdevs();
        let roots = self.all_roots()?;
        let (min, max) = (place.record.min_txg, place.record.max_txg);
        let (mut entries, mut is_all): (Vec<Entry>, bool) = (Vec::new(), true);
        for (objset, root, after) in roots.into_iter().filter(|(_, root, _)| !root.is_hole()) {
            let tree = Tree::new(objset, after.max(min), ());
            for step in Walk::new(&*self.io.pipe, tree, root, Order::ParentFirst) {
                if self.scan.worker.rests() {
                    return Err(Error::new(ErrorKind::Busy, "the pool is closed"));
                }
                let node = match step {
                    Step::Block(node) => node,
                    Step::Lost(lost) => {
                        self.note_lost_metadata(place, lost.error);
                        continue;
                    }
                };
                let (pointer, birth) = (node.pointer, node.pointer.physical_birth());
                let is_stored =
                    !pointer.is_hole() && !pointer.is_redacted() && !pointer.is_embedded();
                if !is_stored || birth <= min || birth >= max {
                    continue;
                }
                let lacks = |dva: &Dva| pointer.is_gang() || vdevs.lacks_some(dva.vdev, birth);
                let addresses = pointer.dvas().filter(lacks).map(|dva| (dva.vdev, dva.offset));
                let Some(address) = addresses.min().filter(|address| wanted(*address)) else {
                    continue;
                };
                entries.push((address, pointer, (objset, node.object, node.level, node.block)));
                if entries.len() >= 2 * MOST {
                    entries.select_nth_unstable_by_key(MOST, |(address, ..)| *address);
                    entries.truncate(MOST);
                    is_all = false;
                }
            }
        }
        entries.sort_unstable_by_key(|(address, ..)| std::cmp::Reverse(*address));
        Ok((entries, is_all))
    }
}
