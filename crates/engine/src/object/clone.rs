//! Blocks of one object that become part of another without being copied.
//!
//! Chapter 06, section 21. Invariants: a block is cloned only as it is on the disks, while its object
//! is not changed in an older group that is still to be written, so that the group that clones it is
//! the first that may give it up; and a group counts its references before it frees anything.

use bytes::Bytes;
use cenote_format::{BlockPointer, Txg};

use super::base::Base;
use super::charge::Due;
use super::live::Content;
use super::{Object, ObjectSet};
use crate::Result;
use crate::txg::Tx;

impl Object {
    /// The pointers to blocks from `first` on, `count` at most, as far as they can be cloned: they are
    /// on the disks as they are, and nothing but the tables of clones has to know. Nobody may change
    /// the object between this and the end of the change that clones them.
    pub fn clonable(&self, first: u64, count: u64) -> Result<Vec<BlockPointer>> {
        let Some(live) = &self.live else { return Ok(Vec::new()) };
        let contents: Vec<Option<BlockPointer>> = {
            let state = live.state.read();
            let ids = first..first.saturating_add(count);
            let kept = ids.map_while(|id| match state.content(id) {
                Content::Committed => Some(None),
                Content::Hole => Some(Some(BlockPointer::HOLE)),
                Content::Dirty(_) | Content::Cloned(_) => None,
            });
            kept.collect()
        };
        let Some(last) =
            first.checked_add(contents.len() as u64).and_then(|end| end.checked_sub(1))
        else {
            return Ok(Vec::new());
        };
        if contents.is_empty() {
            return Ok(Vec::new());
        }
        let stored = self.committed_object().pointers(first, last)?;
        let pointers =
            contents.into_iter().zip(stored).map(|(known, stored)| known.unwrap_or(stored));
        let size = self.block_size();
        Ok(pointers.take_while(|pointer| self.may_clone(pointer, size)).collect())
    }

    /// Whether all `pointers`, whose blocks something else keeps in use, can be cloned into this object
    /// once its blocks have `size` bytes.
    pub fn may_clone_all(&self, pointers: &[BlockPointer], size: u64) -> bool {
        let is_of_size = |pointer: &BlockPointer| pointer.is_hole() || pointer.lsize() == size;
        pointers.iter().all(|pointer| is_of_size(pointer) && self.may_clone(pointer, size))
    }

    /// Whether the tables of clones can count this block. Deduplicated blocks are counted elsewhere,
    /// and what lies on removed devices is no longer where its pointer says.
    fn may_clone(&self, pointer: &BlockPointer, size: u64) -> bool {
        if pointer.is_hole() || pointer.is_embedded() {
            return true;
        }
        let vdevs = self.set.io().pipe.vdevs();
        let is_there = |vdev| vdevs.removed_vdevs().all(|(removed, _)| removed != vdev);
        let is_plain = pointer.level().0 == 0
            && pointer.lsize() == size
            && !pointer.is_redacted()
            && !pointer.is_crypt()
            && !pointer.is_dedup()
            && !pointer.is_gang();
        is_plain && pointer.first_dva().is_some_and(|dva| is_there(dva.vdev))
    }

    /// Makes `pointers`, which [`Object::clonable`] gave in the same change, the blocks from `first` on;
    /// the blocks of both objects have the same size. `_base` is what [`Object::base_to_clone`] read.
    pub fn clone_over(
        &self,
        tx: &Tx,
        first: u64,
        pointers: &[BlockPointer],
        _base: &Base,
    ) -> Result<()> {
        let due = self.change(tx, |state, dirt| {
            let current = state.current_mut()?;
            let mut due = Due::default();
            for (id, pointer) in (first..).zip(pointers) {
                dirt.blocks.remove(&id);
                if pointer.is_hole() {
                    dirt.cloned.remove(&id);
                    if id <= current.max_block_id {
                        dirt.freed.insert(id, id);
                    }
                    continue;
                }
                dirt.cloned.insert(id, pointer.reborn(tx.txg()));
                current.max_block_id = current.max_block_id.max(id);
                let one = Due::of(&mut dirt.indirects, current, id, pointer.lsize());
                due.block = due.block.saturating_add(one.block);
                due.indirect = due.indirect.saturating_add(one.indirect);
            }
            Ok(due)
        })?;
        // Nothing of it is written, but the dataset is charged for it.
        self.promise(tx, due);
        Ok(())
    }

    /// What a cloned block holds that no group on the disks has.
    pub(super) fn read_cloned(&self, pointer: &BlockPointer) -> Result<Bytes> {
        let block = self.set.io().pipe.read(pointer, self.set.context())?;
        self.sized(pointer, block)
    }
}

impl ObjectSet {
    /// The blocks that are cloned in group `txg`, which is closed and not written yet: the group adds a
    /// reference to each.
    pub fn cloned(&self, txg: Txg) -> Vec<BlockPointer> {
        let mut found = Vec::new();
        if let Ok(live) = self.live() {
            live.each_dirty(txg, |object| {
                object.closed(txg, |_, dirt, dnode| {
                    let cloned = dnode.is_some().then_some(&dirt.cloned);
                    found.extend(cloned.into_iter().flat_map(|blocks| blocks.values().copied()));
                });
            });
        }
        found
    }
}
