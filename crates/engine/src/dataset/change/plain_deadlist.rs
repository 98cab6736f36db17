//! Deadlists of pools from before version 26, which upgrading leaves as they are: one plain list of blocks.
//!
//! Chapter 06, section 10.2. Invariant: a plain list never gets keys. The head has one with keys from its next
//! snapshot on, which are those of all snapshots before it.

use cenote_format::bpobj::{BONUS_WITH_COMPRESSED, ENTRIES_PER_BLOCK, Space};
use cenote_format::{BlockPointer, ObjectId, ObjectType, Txg, blkptr};

use super::bpobj::Entry;
use super::space::clipped;
use super::{Delta, MosChange};
use crate::{Error, Result};

/// Longest chain of snapshots that is followed.
const CHAIN_MAX: usize = 1 << 20;

impl MosChange<'_> {
    /// Whether a deadlist is a plain list.
    pub(super) fn is_plain(&self, deadlist: ObjectId) -> Result<bool> {
        Ok(self.mos.dnode(deadlist)?.bonus_type == ObjectType::BPOBJ_HEADER)
    }

    /// Goes through the blocks of a plain list, some at a time.
    fn visit_plain(
        &self,
        list: ObjectId,
        visit: &mut dyn FnMut(&[BlockPointer]) -> Result<()>,
    ) -> Result<()> {
        let header = self.list_header(list)?;
        if header.subobject_count > 0 {
            let reason = "a deadlist of the old form has other lists in it";
            return Err(Error::corrupt(reason).at_object(0, list.0));
        }
        let mut first = 0;
        while first < header.pointers {
            let count = ENTRIES_PER_BLOCK.min(header.pointers - first);
            visit(&self.own_pointers(list, &header, first, count)?)?;
            first += count;
        }
        Ok(())
    }

    /// Space of everything in a plain list. The oldest ones do not know all of it.
    pub(super) fn plain_total(&self, list: ObjectId) -> Result<Space> {
        let header = self.list_header(list)?;
        if header.bonus_len >= BONUS_WITH_COMPRESSED {
            return Ok(header.space);
        }
        let sum = self.plain_range(list, Txg(0), Txg(u64::MAX))?;
        Ok(Space {
            used: header.space.used,
            compressed: clipped(0, sum.compressed),
            uncompressed: clipped(0, sum.uncompressed),
        })
    }

    /// Space of the blocks in a plain list that were born after `low` and not after `high`.
    pub(super) fn plain_range(&self, list: ObjectId, low: Txg, high: Txg) -> Result<Delta> {
        let mut sum = Delta::default();
        self.visit_plain(list, &mut |pointers| {
            for pointer in pointers {
                let birth = pointer.logical_birth();
                if low < birth && birth <= high {
                    sum += self.meter().space(pointer).into();
                }
            }
            Ok(())
        })?;
        Ok(sum)
    }

    /// Moves the blocks that were born after `low` to the list `target`. Returns their space.
    pub(super) fn move_plain(&self, list: ObjectId, low: Txg, target: ObjectId) -> Result<Delta> {
        let object = self.object(list)?;
        let (mut seen, mut kept, mut sum) = (0, 0, Delta::default());
        let size = blkptr::SIZE as u64;
        self.visit_plain(list, &mut |pointers| {
            let is_going = |pointer: &&BlockPointer| pointer.logical_birth() > low;
            let going: Vec<Entry> =
                pointers.iter().filter(is_going).map(|pointer| (*pointer, false)).collect();
            sum += self.append_to_list(target, &going)?;
            let has_moved = kept < seen || !going.is_empty();
            seen += pointers.len() as u64;
            if !has_moved {
                kept = seen;
                return Ok(());
            }
            // What stays moves up: what stood there was read before.
            let stays = pointers.iter().filter(|pointer| !is_going(pointer));
            let bytes: Vec<u8> = stays.flat_map(BlockPointer::encode).collect();
            if !bytes.is_empty() {
                object.write(self.tx, kept * size, &bytes)?;
            }
            kept += bytes.len() as u64 / size;
            Ok(())
        })?;
        object.free_range(self.tx, kept * size, u64::MAX)?;
        self.shorten_list(list, kept, sum)?;
        Ok(sum)
    }

    /// Moves everything in `other` to `deadlist`, one of which is a plain list, and frees `other`.
    pub(super) fn merge_plain(&self, deadlist: ObjectId, other: ObjectId) -> Result<()> {
        let lists = match self.is_plain(other)? {
            true => vec![other],
            false => self.deadlist_entries(other)?.0.values().copied().collect(),
        };
        let empty = self.shared_empty_list()?;
        for list in lists.into_iter().filter(|list| Some(*list) != empty) {
            let mut left = 0;
            while left == 0 {
                let mut blocks: Vec<Entry> = Vec::new();
                left = ENTRIES_PER_BLOCK;
                self.drain_list(list, &mut left, &mut |pointer, freed| {
                    blocks.push((*pointer, freed));
                    Ok(())
                })?;
                self.insert_dead(deadlist, &blocks)?;
            }
        }
        self.free_deadlist(other)
    }

    /// The keys of a deadlist that follows the snapshot `newest`: when each snapshot up to that was preceded.
    pub(super) fn keys_up_to(&self, newest: ObjectId) -> Result<Vec<Txg>> {
        let (mut keys, mut at) = (Vec::new(), newest);
        while at.0 != 0 {
            if keys.len() >= CHAIN_MAX {
                let reason = "the snapshots before it do not end";
                return Err(Error::corrupt(reason).at_object(0, newest.0));
            }
            let phys = self.dataset(at)?;
            keys.push(phys.previous_snapshot_txg);
            at = phys.previous_snapshot;
        }
        Ok(keys)
    }
}
