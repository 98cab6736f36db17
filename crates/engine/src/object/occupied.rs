//! Which object numbers are taken: for who puts objects at numbers that were chosen elsewhere.
//!
//! Invariant: a number counts as taken while the disks or any later group has an object there, so that no
//! dnode is ever laid over another.

use std::collections::BTreeMap;

use cenote_format::ObjectId;
use cenote_format::dnode::{SLOTS_PER_BLOCK, dnodes_in_block};

use super::live::Live;
use super::{OBJECTS_END, ObjectSet};
use crate::Result;

/// Numbers for which each is looked up; more are looked for in all that is known.
const FEW: u64 = 256;

/// The objects of a range of numbers, or of its beginning.
#[derive(Debug)]
pub struct Occupied {
    /// Their numbers, in ascending order.
    pub ids: Vec<ObjectId>,
    /// The number to look on from; `None`: the range was looked through to its end.
    pub rest: Option<u64>,
}

impl ObjectSet {
    /// The allocated objects with numbers from `first` to `last`: the first `most` of them at most, and maybe
    /// fewer where many were freed since the last group. For sets that are open for writing.
    ///
    /// # Errors
    /// Dnodes that cannot be read.
    pub fn objects_within(&self, first: u64, last: u64, most: usize) -> Result<Occupied> {
        let live = self.live()?;
        let (first, last) = (first.max(1), last.min(OBJECTS_END - 1));
        // First what is not on the disks yet: what a group brings there meanwhile is known already, and what the
        // table does not know is on the disks as it is.
        let known: BTreeMap<u64, bool> = live.known_within(first, last).into_iter().collect();
        let mut found = self.stored_within(first, last, most)?;
        // Beyond what was found of a full list, later ones are not needed yet.
        let mut end = match found.last() {
            Some(newest) if found.len() >= most => *newest,
            _ => last,
        };
        found.retain(|id| !known.contains_key(id));
        let there = known.into_iter().filter(|(id, is_there)| *is_there && *id <= end);
        found.extend(there.map(|(id, _)| id));
        found.sort_unstable();
        if found.len() > most {
            found.truncate(most);
            end = found.last().copied().unwrap_or(end);
        }
        let rest = (end < last).then(|| end.saturating_add(1));
        Ok(Occupied { ids: found.into_iter().map(ObjectId).collect(), rest })
    }

    fn stored_within(&self, first: u64, last: u64, most: usize) -> Result<Vec<u64>> {
        let meta = self.meta_object();
        let mut found = Vec::new();
        let mut from = first / SLOTS_PER_BLOCK;
        while from <= last / SLOTS_PER_BLOCK && found.len() < most {
            let Some(block) = meta.next_data_block(from)? else { break };
            let data = meta.read_block(block)?;
            let start = block.saturating_mul(SLOTS_PER_BLOCK);
            let ids = dnodes_in_block(&data).map(|(slot, _)| start.saturating_add(slot));
            found.extend(ids.filter(|id| (first..=last).contains(id)));
            from = block.saturating_add(1);
        }
        Ok(found)
    }

    /// Whether an object can be made of `slots` slots from number `id` on: they are free on the disks and in
    /// all groups since. Only what stands in one block of dnodes can be.
    ///
    /// # Errors
    /// Dnodes that cannot be read.
    pub fn has_room_at(&self, id: ObjectId, slots: u8) -> Result<bool> {
        let (block, slot) = (id.0 / SLOTS_PER_BLOCK, id.0 % SLOTS_PER_BLOCK);
        let end = slot.saturating_add(u64::from(slots.max(1)));
        if id.0 == 0 || id.0 >= OBJECTS_END || end > SLOTS_PER_BLOCK {
            return Ok(false);
        }
        let free = self.free_slots(self.live()?, block)?;
        Ok((slot..end).all(|slot| free & (1 << slot) != 0))
    }
}

impl Live {
    /// The numbers of this range that the table has something about: whether there is such an object now.
    fn known_within(&self, first: u64, last: u64) -> Vec<(u64, bool)> {
        let is_there = |object: &super::live::LiveObject| object.state.read().current.is_some();
        if last.saturating_sub(first) < FEW {
            let known = (first..=last).filter_map(|id| Some((id, self.known(id)?)));
            return known.map(|(id, object)| (id, is_there(&object))).collect();
        }
        let within = self.all_known(|id| (first..=last).contains(&id));
        within.iter().map(|object| (object.id.0, is_there(object))).collect()
    }
}
