//! Deadlists: which list a dead block goes to, and how lists merge when snapshots go.
//!
//! Chapter 06, sections 10.2 and 10.4 (livelists have the same form). Invariant: the totals of a
//! deadlist are those of its entries; every block stands under the greatest key below its birth.

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_format::bpobj::Space;
use cenote_format::deadlist::{
    Entries, decode_header, encode_header, integer_key, parse_integer_key,
};
use cenote_format::{ObjectId, ObjectType, Txg};

use super::bpobj::Entry;
use super::objects::LARGE_BLOCK;
use super::space::{clipped, shifted};
use super::{Delta, MosChange};
use crate::{Error, Result};

impl MosChange<'_> {
    /// A new deadlist without any entry.
    pub(super) fn new_deadlist(&self) -> Result<ObjectId> {
        let bonus = encode_header(&Space::default());
        self.new_table_with(ObjectType::DEADLIST, ObjectType::DEADLIST_HEADER, bonus)
    }

    /// The entries of a deadlist: smallest birth (exclusive) to list.
    pub(super) fn deadlist_entries(&self, deadlist: ObjectId) -> Result<Arc<Entries>> {
        if let Some(known) = self.deadlists.get(deadlist) {
            return Ok(known);
        }
        if self.is_plain(deadlist)? {
            let reason = "a plain list of blocks where lists by txg belong";
            return Err(Error::corrupt(reason).at_object(0, deadlist.0));
        }
        let mut entries = BTreeMap::new();
        for (name, list) in self.numbers(deadlist)? {
            entries.insert(Txg(parse_integer_key(name.as_bytes())?), ObjectId(list));
        }
        let entries = Arc::new(Entries(entries));
        self.deadlists.put(deadlist, &entries);
        Ok(entries)
    }

    /// Space of everything in a deadlist.
    pub(super) fn deadlist_total(&self, deadlist: ObjectId) -> Result<Space> {
        if self.is_plain(deadlist)? {
            return self.plain_total(deadlist);
        }
        let bonus = self.bonus(deadlist, ObjectType::DEADLIST_HEADER)?;
        decode_header(&bonus).map_err(|error| Error::from(error).at_object(0, deadlist.0))
    }

    fn add_to_deadlist_total(&self, deadlist: ObjectId, delta: Delta) -> Result<()> {
        let total = self.deadlist_total(deadlist)?;
        let used = shifted(total.used, delta.used, "dead");
        let total = Space {
            used: used.map_err(|error| error.at_object(0, deadlist.0))?,
            compressed: clipped(total.compressed, delta.compressed),
            uncompressed: clipped(total.uncompressed, delta.uncompressed),
        };
        self.set_bonus(deadlist, ObjectType::DEADLIST_HEADER, &encode_header(&total))
    }

    fn put_entry(&self, deadlist: ObjectId, key: Txg, list: ObjectId) -> Result<()> {
        self.put_number(deadlist, &integer_key(key.0), list.0)?;
        self.deadlists.changed(deadlist, key, Some(list));
        Ok(())
    }

    fn remove_entry(&self, deadlist: ObjectId, key: Txg) -> Result<()> {
        self.remove(deadlist, &integer_key(key.0))?;
        self.deadlists.changed(deadlist, key, None);
        Ok(())
    }

    /// Removes many entries, so that `staying` are left. Where those are the fewer, they are put into the emptied
    /// table anew.
    fn remove_entries(
        &self,
        deadlist: ObjectId,
        going: &BTreeMap<Txg, ObjectId>,
        staying: &BTreeMap<Txg, ObjectId>,
    ) -> Result<()> {
        if going.len() <= staying.len() {
            return going.keys().try_for_each(|key| self.remove_entry(deadlist, *key));
        }
        self.deadlists.forget(deadlist);
        self.clear_table(deadlist)?;
        staying.iter().try_for_each(|(key, list)| self.put_entry(deadlist, *key, *list))
    }

    /// A list of its own for an entry that has shared the empty one so far.
    fn own_list(&self, deadlist: ObjectId, key: Txg, list: ObjectId) -> Result<ObjectId> {
        if self.shared_empty_list()? != Some(list) {
            return Ok(list);
        }
        let own = self.new_list(LARGE_BLOCK)?;
        self.put_entry(deadlist, key, own)?;
        self.release_empty_list()?;
        Ok(own)
    }

    /// Puts blocks into a deadlist, each under its key.
    pub(super) fn insert_dead(&self, deadlist: ObjectId, blocks: &[Entry]) -> Result<()> {
        if blocks.is_empty() {
            return Ok(());
        }
        if self.is_plain(deadlist)? {
            return self.append_to_list(deadlist, blocks).map(drop);
        }
        let entries = self.deadlist_entries(deadlist)?;
        let mut by_key: BTreeMap<(Txg, ObjectId), Vec<Entry>> = BTreeMap::new();
        for (pointer, freed) in blocks {
            let birth = pointer.logical_birth();
            let no_entry = || {
                let reason = format!("the deadlist has no entry for a block of txg {birth}");
                Error::corrupt(reason).at_object(0, deadlist.0)
            };
            let entry = entries.covering(birth).ok_or_else(no_entry)?;
            by_key.entry(entry).or_default().push((*pointer, *freed));
        }
        let mut sum = Delta::default();
        for ((key, list), blocks) in by_key {
            let list = self.own_list(deadlist, key, list)?;
            sum += self.append_to_list(list, &blocks)?;
        }
        self.add_to_deadlist_total(deadlist, sum)
    }

    /// Adds an empty entry; nothing happens if there is one, or if there are no keys.
    pub(super) fn add_deadlist_key(&self, deadlist: ObjectId, key: Txg) -> Result<()> {
        if self.is_plain(deadlist)? || self.number(deadlist, &integer_key(key.0))?.is_some() {
            return Ok(());
        }
        let list = self.new_empty_list()?;
        self.put_entry(deadlist, key, list)
    }

    /// Removes an entry: its blocks go to the one with the next smaller key. Nothing happens if
    /// there is no such entry.
    pub(super) fn remove_deadlist_key(&self, deadlist: ObjectId, key: Txg) -> Result<()> {
        if self.is_plain(deadlist)? {
            return Ok(());
        }
        let entries = self.deadlist_entries(deadlist)?;
        let Some(list) = entries.0.get(&key) else { return Ok(()) };
        let first = || Error::corrupt("the first entry of a deadlist cannot go");
        let (below, into) =
            entries.covering(key).ok_or_else(|| first().at_object(0, deadlist.0))?;
        self.remove_entry(deadlist, key)?;
        self.take_in(deadlist, below, into, *list)
    }

    /// The entry `key`, whose list is `into`, takes `list` over.
    fn take_in(&self, deadlist: ObjectId, key: Txg, into: ObjectId, list: ObjectId) -> Result<()> {
        let empty = self.shared_empty_list()?;
        if empty == Some(list) {
            return self.release_empty_list();
        }
        if empty == Some(into) {
            self.put_entry(deadlist, key, list)?;
            return self.release_empty_list();
        }
        self.append_list(into, list)
    }

    /// A new deadlist with the keys of another that are below `end`, every entry empty. Where that one has
    /// no keys they are those that follow from the snapshot `newest` and what comes before it.
    pub(super) fn clone_deadlist(
        &self,
        deadlist: ObjectId,
        end: Txg,
        newest: ObjectId,
    ) -> Result<ObjectId> {
        let mut keys: Vec<Txg> = match self.is_plain(deadlist)? {
            true => self.keys_up_to(newest)?,
            false => {
                let entries = self.deadlist_entries(deadlist)?;
                entries.range(Txg(0), end).map(|(key, _)| key).collect()
            }
        };
        // There is an entry for each snapshot: all are made at once.
        keys.sort_unstable();
        keys.dedup();
        let lists = self.new_empty_lists(keys.len())?.into_iter();
        let entries: Vec<(String, u64)> =
            keys.iter().zip(lists).map(|(key, list)| (integer_key(key.0), list.0)).collect();
        let bonus = encode_header(&Space::default());
        self.new_filled_table(ObjectType::DEADLIST, ObjectType::DEADLIST_HEADER, bonus, &entries)
    }

    /// Moves everything in `other` to `deadlist`, and frees `other`.
    pub(super) fn merge_deadlist(&self, deadlist: ObjectId, other: ObjectId) -> Result<()> {
        if self.is_plain(deadlist)? || self.is_plain(other)? {
            return self.merge_plain(deadlist, other);
        }
        let mut entries = Entries::clone(&*self.deadlist_entries(deadlist)?);
        let empty = self.shared_empty_list()?;
        let (mut released, mut sum) = (0_u64, Delta::default());
        for (&key, &list) in &self.deadlist_entries(other)?.0 {
            let into = entries.0.range(..=key).next_back().map(|(key, list)| (*key, *list));
            let Some((below, into)) = into else {
                let reason = format!("the deadlist has no entry for blocks after txg {key}");
                return Err(Error::corrupt(reason).at_object(0, deadlist.0));
            };
            if empty == Some(list) {
                released = released.saturating_add(1);
                continue;
            }
            sum += self.list_space(list)?.into();
            self.take_in(deadlist, below, into, list)?;
            if empty == Some(into) {
                entries.0.insert(below, list);
            }
        }
        self.release_empty_lists(released)?;
        self.add_to_deadlist_total(deadlist, sum)?;
        self.free_object(other)
    }

    /// Space of the blocks in a deadlist that were born after `low` and not after `high`.
    pub(super) fn deadlist_range(&self, deadlist: ObjectId, low: Txg, high: Txg) -> Result<Delta> {
        if self.is_plain(deadlist)? {
            return self.plain_range(deadlist, low, high);
        }
        let (mut sum, empty) = (Delta::default(), self.shared_empty_list()?);
        for (_, list) in self.deadlist_entries(deadlist)?.range(low, high) {
            if empty != Some(list) {
                sum += self.list_space(list)?.into();
            }
        }
        Ok(sum)
    }

    /// Moves the entries of `low` and above to the list `target`, and takes them out. Returns
    /// their space.
    pub(super) fn move_dead(
        &self,
        deadlist: ObjectId,
        low: Txg,
        target: ObjectId,
    ) -> Result<Delta> {
        if self.is_plain(deadlist)? {
            return self.move_plain(deadlist, low, target);
        }
        let empty = self.shared_empty_list()?;
        let (mut released, mut sum) = (0_u64, Delta::default());
        let mut staying = self.deadlist_entries(deadlist)?.0.clone();
        let going = staying.split_off(&low);
        self.remove_entries(deadlist, &going, &staying)?;
        for list in going.into_values() {
            if empty == Some(list) {
                released = released.saturating_add(1);
                continue;
            }
            sum += self.list_space(list)?.into();
            self.append_list(target, list)?;
        }
        self.release_empty_lists(released)?;
        self.add_to_deadlist_total(deadlist, -sum)?;
        Ok(sum)
    }

    /// Frees a deadlist, not the blocks it names.
    pub(super) fn free_deadlist(&self, deadlist: ObjectId) -> Result<()> {
        if self.is_plain(deadlist)? {
            return self.free_list(deadlist);
        }
        let (empty, mut released) = (self.shared_empty_list()?, 0_u64);
        for list in self.deadlist_entries(deadlist)?.0.values() {
            match empty == Some(*list) {
                true => released = released.saturating_add(1),
                false => self.drop_list(*list)?,
            }
        }
        self.release_empty_lists(released)?;
        self.free_object(deadlist)
    }
}
