//! Reading, before a change is accepted, what writing it will need: the indirect blocks above what
//! changes.
//!
//! Invariant: a change of an object whose block tree cannot be read is refused before anything of it
//! is done, so that the damage concerns who changes this object, and not the writer of groups.

use std::sync::Arc;

use cenote_format::{BlockPointer, ObjectId};

use super::{Object, ObjectSet};
use crate::{Error, ErrorKind, Result};

/// Indirect blocks read before one change at most; the writer of groups meets the others.
const MOST_READ: u32 = 1 << 16;

/// Level-0 blocks to be freed, and how many indirect blocks may still be read for it.
struct Range {
    first: u64,
    last: u64,
    left: u32,
}

impl Object {
    /// Whether blocks `first..=last` can be written: the indirect blocks above them are read, but for
    /// those that the newest group with changes changes already.
    pub(crate) fn need_to_write(&self, first: u64, last: u64) -> Result<()> {
        let Some(live) = &self.live else { return Ok(()) };
        let wanted = {
            let state = live.state.read();
            let Some(committed) = &state.committed else { return Ok(()) };
            if committed.levels < 2 || state.dirt.iter().any(|dirt| dirt.reset) {
                return Ok(());
            }
            let shift = committed.pointers_shift();
            let newest = state.dirt.last();
            let is_known = |parent: u64| {
                let (from, mask) = (parent << shift, (1_u64 << shift) - 1);
                newest.is_some_and(|dirt| dirt.blocks.range(from..=from | mask).next().is_some())
            };
            // Beyond the last one the first tells of all.
            let last = last.min(committed.max_block_id.max(first));
            let parents = (first >> shift)..=(last >> shift);
            let wanted = parents.filter(|parent| !is_known(*parent)).map(|parent| parent << shift);
            wanted.collect::<Vec<u64>>()
        };
        wanted.into_iter().try_for_each(|block| {
            let read = self.as_committed(|object| object.read_above(block));
            read.map_err(|error| self.unread(error, block))
        })
    }

    /// Reads the indirect blocks that block `id` is written under, where it is as well as where it would be the
    /// new last one.
    pub(super) fn read_above(&self, id: u64) -> Result<()> {
        let (last, shift) = (self.dnode.max_block_id, self.dnode.pointers_shift());
        if id <= last || id >> shift == last >> shift {
            self.pointer(0, id.min(last)).map(drop)
        } else if self.dnode.levels > 2 {
            self.pointer(1, last >> shift).map(drop)
        } else {
            Ok(())
        }
    }

    /// Whether blocks `first..=last` can be freed: every indirect block above them is read.
    pub(super) fn need_to_free(&self, first: u64, last: u64) -> Result<()> {
        let Some(live) = &self.live else { return Ok(()) };
        {
            let state = live.state.read();
            let is_flat = state.committed.as_ref().is_none_or(|committed| committed.levels < 2);
            if is_flat || state.dirt.iter().any(|dirt| dirt.reset) {
                return Ok(());
            }
        }
        let read = self.as_committed(|object| {
            let mut range = Range { first, last, left: MOST_READ };
            let top = object.dnode.levels.saturating_sub(1);
            let roots = (0..).zip(&object.dnode.pointers);
            roots
                .into_iter()
                .try_for_each(|(id, root)| object.read_below(root, top, id, &mut range))
        });
        read.map_err(|error| self.unread(error, first))
    }

    /// Whether the object can be freed with all its blocks.
    pub fn need_to_free_all(&self) -> Result<()> {
        self.need_to_free(0, u64::MAX)
    }

    fn read_below(
        &self,
        pointer: &BlockPointer,
        level: u8,
        id: u64,
        range: &mut Range,
    ) -> Result<()> {
        let shift = self.dnode.pointers_shift();
        let (from, to) = reach(level, shift, id);
        let is_outside = from > u128::from(range.last) || to < u128::from(range.first);
        if level == 0 || pointer.is_hole() || is_outside || range.left == 0 {
            return Ok(());
        }
        if pointer.level().0 != level {
            let found = pointer.level();
            return Err(Error::corrupt(format!("pointer of level {found} where {level} belongs")));
        }
        range.left -= 1;
        let block = self.set.0.io.pipe.read(pointer, &self.set.0.context)?;
        if level == 1 {
            return Ok(());
        }
        for (child_id, child) in numbers_below(id, shift).zip(BlockPointer::decode_all(&block)) {
            self.read_below(&child, level - 1, child_id, range)?;
        }
        Ok(())
    }

    /// Looks at the tree on the disks; anew if that was replaced meanwhile.
    pub(super) fn as_committed<T>(&self, look: impl Fn(&Self) -> Result<T>) -> Result<T> {
        loop {
            let committed = self.committed_object();
            match look(&committed) {
                Err(_) if !Arc::ptr_eq(&self.committed_object().dnode, &committed.dnode) => {}
                looked => return looked,
            }
        }
    }
}

/// First and last level-0 block that can lie below block `id` of `level`.
fn reach(level: u8, shift: u32, id: u64) -> (u128, u128) {
    let span = (u32::from(level) * shift).min(64);
    let from = u128::from(id) << span;
    (from, from | ((1 << span) - 1))
}

/// Numbers of the blocks that indirect block `id` points to. What disks say may be deeper than there are
/// numbers: they end with the last there is.
fn numbers_below(id: u64, shift: u32) -> impl Iterator<Item = u64> {
    (u128::from(id) << shift.min(64)..).map_while(|id| u64::try_from(id).ok())
}

impl ObjectSet {
    /// Whether an error tells of damage in this set that the rest of the pool can live with. What only
    /// is out of reach for now is none.
    pub(super) fn is_own_damage(&self, error: &Error) -> bool {
        let kinds = [ErrorKind::Checksum, ErrorKind::Corrupt, ErrorKind::Io];
        self.id() != 0 && kinds.contains(&error.kind()) && !error.is_passing()
    }

    /// A change of what an object of this set says of others is not made, because that is damaged.
    ///
    /// # Errors
    /// `error` itself, if it is something else.
    pub(crate) fn set_damage_aside(&self, object: &Object, error: Error) -> Result<()> {
        if !self.is_own_damage(&error) {
            return Err(error);
        }
        // Once for each group would be too often.
        tracing::debug!(objset = self.id(), object = object.id.0, %error, "not kept up");
        self.note_damage(&error);
        Ok(())
    }

    /// Notes for `zpool status` that something of this set cannot be read.
    pub(super) fn note_damage(&self, error: &Error) {
        self.io().pipe.note_fault(error);
    }

    /// Notes that what a group changed in an object is lost, because its block tree was damaged since
    /// the change was accepted.
    pub(super) fn note_set_aside(&self, object: ObjectId, error: &Error) {
        self.note_damage(error);
        tracing::error!(objset = self.id(), object = object.0, %error, "a change is lost: the object is damaged");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_a_tree_that_is_deeper_than_there_are_blocks_end() {
        let last = u64::MAX >> 10;
        assert_eq!(numbers_below(last, 10).count(), 1 << 10);
        assert_eq!(numbers_below(last, 10).last(), Some(u64::MAX));
        assert_eq!(numbers_below(u64::MAX, 10).next(), None);
        assert_eq!(numbers_below(3, 10).next(), Some(3 << 10));
        let (from, to) = reach(7, 10, u64::MAX);
        assert_eq!((from, to), (u128::from(u64::MAX) << 64, u128::MAX));
        assert_eq!(reach(1, 10, 2), (2 << 10, (3 << 10) - 1));
        assert_eq!(reach(0, 10, u64::MAX), (u128::from(u64::MAX), u128::from(u64::MAX)));
    }
}
