//! Making objects under numbers that are free.
//!
//! Invariant: what is damaged of a set's dnodes keeps objects from being made below it only: others are made
//! elsewhere.

use cenote_format::ObjectId;
use cenote_format::dnode::{SLOTS_PER_BLOCK, dnodes_in_block};

use super::live::Live;
use super::{NewObject, OBJECTS_END, Object, ObjectSet};
use crate::txg::Tx;
use crate::{Error, ErrorKind, Result};

/// Blocks of pointers looked at for a free slot before the set is made longer.
const LOOKED_AT: u64 = 1 << 16;
/// Damaged blocks that are passed by in the search for one number.
const DAMAGED: u32 = 32;

impl ObjectSet {
    /// Makes an object under a free number.
    pub fn create_object(&self, tx: &Tx, new: &NewObject) -> Result<Object> {
        let (dnode, mut damaged) = (new.dnode()?, 0);
        loop {
            let id = self.free_number(self.live()?, u32::from(new.slots))?;
            match self.make(tx, ObjectId(id), dnode.clone()) {
                // Somebody claimed this very number: the next one.
                Err(error) if error.kind() == ErrorKind::Exists => {}
                // The block it would be in cannot be read any more.
                Err(error) if self.is_own_damage(&error) && damaged < DAMAGED => {
                    damaged += 1;
                    self.live()?.numbers.lock().block = None;
                }
                made => return made,
            }
        }
    }

    /// A number with `slots` free slots from it on.
    ///
    /// # Errors
    /// If a good part of the set's dnodes is damaged. There is no number left.
    fn free_number(&self, live: &Live, slots: u32) -> Result<u64> {
        let mut damaged = 0;
        loop {
            let next = {
                let mut numbers = live.numbers.lock();
                if let Some(id) = numbers.take(slots) {
                    return Ok(id);
                }
                numbers.take_freed()
            };
            let (block, from_cursor) = match next {
                Some(block) => (block, false),
                None => (self.block_with_room(live)?, true),
            };
            let mut next = block.saturating_add(1);
            let free = match self.free_slots(live, block) {
                // Nothing more is put into a block that cannot be read, or below one.
                Err(error) if self.is_own_damage(&error) && damaged < DAMAGED => {
                    damaged += 1;
                    self.note_damage(&error);
                    let meta = self.meta_object();
                    if meta.read_above(block).is_err() {
                        next = below_next(&meta, block);
                    }
                    0
                }
                free => free?,
            };
            let mut numbers = live.numbers.lock();
            // Another thread may have moved on meanwhile; its block is as good.
            if from_cursor {
                if numbers.cursor > block {
                    continue;
                }
                numbers.cursor = next;
            }
            numbers.block = Some((block, free));
        }
    }

    /// The next block of dnodes, from the cursor on, that is not full on the disks.
    fn block_with_room(&self, live: &Live) -> Result<u64> {
        let (from, meta) = (live.numbers.lock().cursor, self.meta_object());
        let end = meta.dnode().max_block_id.saturating_add(1);
        let mut block = from;
        while block < end && block - from < LOOKED_AT {
            let last = (block + 1023).min(end - 1);
            let pointers = match meta.pointers(block, last) {
                Err(error) if self.is_own_damage(&error) => {
                    self.note_damage(&error.at_object(self.id(), 0));
                    block = below_next(&meta, block);
                    continue;
                }
                pointers => pointers?,
            };
            for (id, pointer) in (block..).zip(pointers) {
                // A block that is nearly full is not worth reading.
                if pointer.fill() < SLOTS_PER_BLOCK * 3 / 4 {
                    return Ok(id);
                }
            }
            block = last + 1;
        }
        if block >= OBJECTS_END / SLOTS_PER_BLOCK {
            return Err(Error::new(ErrorKind::InvalidArgument, "no object number is left"));
        }
        Ok(block)
    }

    /// The free slots of a block of dnodes: on the disks and in the table.
    pub(super) fn free_slots(&self, live: &Live, block: u64) -> Result<u32> {
        let mut used = u32::from(block == 0);
        let mut mark = |slot: u64, slots: u64| {
            for slot in slot..(slot + slots).min(SLOTS_PER_BLOCK) {
                used |= 1 << slot;
            }
        };
        let meta = self.meta_object();
        if block <= meta.dnode().max_block_id {
            let data = meta.read_block(block)?;
            for (slot, dnode) in dnodes_in_block(&data) {
                mark(slot, dnode.map_or(1, |dnode| u64::from(dnode.extra_slots) + 1));
            }
        } else {
            meta.read_above(block)?;
        }
        let first = block.saturating_mul(SLOTS_PER_BLOCK);
        for slot in 0..SLOTS_PER_BLOCK {
            if let Some(object) = live.known(first + slot) {
                let state = object.state.read();
                let slots = state.current.as_ref().map_or(1, |now| u64::from(now.extra_slots) + 1);
                mark(slot, slots);
            }
        }
        Ok(!used)
    }
}

/// The first block of dnodes that another indirect block leads to than the one `block` is below.
fn below_next(meta: &Object, block: u64) -> u64 {
    let shift = meta.dnode().pointers_shift();
    ((block >> shift) + 1) << shift
}
