//! Objects of a stream: made, made anew, and freed, at the numbers they have where they come from.
//!
//! Chapter 07, section 13. Invariant: an object is made only where no other one lies, on the disks or in a
//! group that is on its way there; what a stream claims is checked before anything is changed.

use cenote_format::bytes::{le16, le64};
use cenote_format::object_type::SwapClass;
use cenote_format::znode::Znode;
use cenote_format::{Dnode, ObjectId, ObjectType};

use super::Landing;
use crate::object::{NewObject, Object};
use crate::txg::{Purpose, Tx};
use crate::{Error, ErrorKind, Result};

/// Objects freed in one transaction.
const FREED_AT_ONCE: usize = 256;
/// Largest block of a stream that does not say that it has larger ones.
const SMALL_BLOCK_MAX: u64 = 128 << 10;
pub(super) const LARGE_BLOCK_MAX: u64 = 16 << 20;
/// Where the generation stands in system attributes, from the end of their header.
const GENERATION: usize = 16;
/// What writing a dnode is taken to cost, in bytes.
const DNODE_BLOCK: u64 = 16 << 10;

/// What a stream says of an object.
#[derive(Clone, Debug)]
pub struct ObjectFacts<'a> {
    /// Its number.
    pub id: u64,
    /// What its blocks hold.
    pub object_type: ObjectType,
    /// What its bonus holds.
    pub bonus_type: ObjectType,
    /// Bytes of a block.
    pub block_size: u64,
    /// The bonus, in little-endian order.
    pub bonus: &'a [u8],
    /// Slots of its dnode.
    pub slots: u8,
    /// Checksum id of its blocks; 0 inherits.
    pub checksum: u8,
    /// Compression id of its blocks; 0 inherits.
    pub compression: u8,
    /// It has a spill block.
    pub has_spill: bool,
}

impl Landing {
    /// An object is as this says from now on: it is made, or changed.
    ///
    /// # Errors
    /// `InvalidArgument`: no object can be so; no space; what the disks say.
    pub fn object(&mut self, facts: &ObjectFacts<'_>) -> Result<()> {
        self.check(facts).map_err(|error| self.at(error, facts.id))?;
        self.current = None;
        let done = match self.find(facts.id)? {
            // A block of dnodes in which one changed comes whole: most of it is there already.
            Some(object) if self.is_so(facts, object.dnode()) => {
                self.current = Some(object);
                Ok(())
            }
            Some(object) => self.change_object(facts, &object),
            None => self.make(facts),
        };
        done.map_err(|error| self.at(error, facts.id))
    }

    /// There are no objects at `count` numbers from `first` on.
    ///
    /// # Errors
    /// What the disks say.
    pub fn free_objects(&mut self, first: u64, count: u64) -> Result<()> {
        let Some(more) = count.checked_sub(1) else { return Ok(()) };
        let beyond = || Error::invalid("objects beyond the last number are freed");
        let last = first.checked_add(more).ok_or_else(beyond)?;
        self.current = None;
        // What was freed stays on the disks until the next group: on behind what was looked at.
        let mut next = Some(first);
        while let Some(first) = next {
            let found = self.filled.set().objects_within(first, last, FREED_AT_ONCE)?;
            found.ids.into_iter().try_for_each(|id| self.free_object(id))?;
            next = found.rest;
        }
        Ok(())
    }

    /// The object of this number, if there is one.
    pub(super) fn find(&self, id: u64) -> Result<Option<Object>> {
        match self.filled.set().object(ObjectId(id)) {
            Ok(object) => Ok(Some(object)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// A transaction for a change of so many blocks. What is held for it goes when it has been made.
    pub(super) fn changing<T>(
        &self,
        (blocks, size): (u64, u64),
        purpose: Purpose,
        change: impl FnOnce(&Tx) -> Result<T>,
    ) -> Result<T> {
        let _reserved = self.live.reserve(self.filled.id(), blocks, size, purpose)?;
        let tx = self.live.begin()?;
        change(&tx)
    }

    /// Where in the stream an error belongs.
    pub(super) fn at(&self, error: Error, object: u64) -> Error {
        error.at_object(self.filled.id().0, object)
    }

    /// Bytes of the largest block there may be.
    pub(super) fn largest_block(&self) -> u64 {
        match self.facts.large_blocks {
            true => LARGE_BLOCK_MAX,
            false => SMALL_BLOCK_MAX,
        }
    }

    pub(super) fn free_object(&self, id: ObjectId) -> Result<()> {
        let set = self.filled.set();
        set.object(id)?.need_to_free_all()?;
        self.changing((1, DNODE_BLOCK), Purpose::Spare, |tx| set.free_readable(tx, id))
    }

    pub(super) fn check(&self, facts: &ObjectFacts<'_>) -> Result<()> {
        let wrong = |what: String| Err(Error::invalid(format!("the stream has an object {what}")));
        let most = self.largest_block();
        let size = facts.block_size;
        if !size.is_multiple_of(512) || !(512..=most).contains(&size) {
            return wrong(format!("with blocks of {size} bytes"));
        }
        let is_odd = |kind: ObjectType| {
            let whole = matches!(kind.swap_class(), SwapClass::Dnode | SwapClass::Objset);
            !kind.is_valid() || whole || kind == ObjectType::INTENT_LOG
        };
        if facts.object_type == ObjectType::NONE || is_odd(facts.object_type) {
            return wrong(format!("of type {}", facts.object_type.0));
        }
        if is_odd(facts.bonus_type)
            || (facts.bonus_type == ObjectType::NONE) != facts.bonus.is_empty()
        {
            let (kind, len) = (facts.bonus_type.0, facts.bonus.len());
            return wrong(format!("with a bonus of type {kind} and {len} bytes"));
        }
        if !(1..=32).contains(&facts.slots) || facts.slots > 1 && !self.facts.large_dnodes {
            return wrong(format!("of {} slots", facts.slots));
        }
        if !matches!(facts.checksum, 0..=2 | 6..=8) || !matches!(facts.compression, 0..=16) {
            let (sum, compressed) = (facts.checksum, facts.compression);
            return wrong(format!("with checksum {sum} and compression {compressed}"));
        }
        Ok(())
    }

    fn new_object(facts: &ObjectFacts<'_>) -> NewObject {
        NewObject {
            slots: facts.slots,
            compression: facts.compression,
            checksum: facts.checksum,
            ..NewObject::new(facts.object_type, facts.block_size)
        }
        .with_bonus(facts.bonus_type, facts.bonus.to_vec())
    }

    /// Sees to it that nothing lies where an object is to be made.
    pub(super) fn make_room(&self, facts: &ObjectFacts<'_>) -> Result<()> {
        let (set, id) = (self.filled.set(), ObjectId(facts.id));
        let end = facts.id.saturating_add(u64::from(facts.slots));
        let inside = set.objects_within(facts.id.saturating_add(1), end - 1, FREED_AT_ONCE)?;
        inside.ids.into_iter().try_for_each(|id| self.free_object(id))?;
        if !set.has_room_at(id, facts.slots)? {
            // What was freed there is so on the disks, too, after the next group.
            self.live.sync()?;
            if !set.has_room_at(id, facts.slots)? {
                return Err(Error::invalid("the stream lays an object over another"));
            }
        }
        Ok(())
    }

    /// Makes an object where none is.
    fn make(&self, facts: &ObjectFacts<'_>) -> Result<()> {
        self.make_room(facts)?;
        let (set, id) = (self.filled.set(), ObjectId(facts.id));
        let new = Self::new_object(facts);
        self.changing((1, DNODE_BLOCK), Purpose::Grow, |tx| {
            set.claim_object(tx, id, &new)?;
            self.note(tx, facts.id, 0);
            Ok(())
        })
    }

    /// Changes an object that is there; one that cannot be so is made anew.
    fn change_object(&self, facts: &ObjectFacts<'_>, object: &Object) -> Result<()> {
        let old = object.dnode();
        let keeps_blocks = self.keeps_blocks(facts, old)?;
        let new = Self::new_object(facts);
        let fits = has_slots(facts, old)
            && facts.bonus.len() <= bonus_room(old, facts.has_spill && old.spill.is_some());
        if !fits {
            self.free_object(object.id())?;
            return self.make(facts);
        }
        if !keeps_blocks {
            object.need_to_free_all()?;
        }
        self.changing((2, facts.block_size), Purpose::Replace, |tx| {
            if !keeps_blocks {
                object.free_range(tx, 0, u64::MAX)?;
                object.set_block_size(tx, facts.block_size)?;
            }
            if self.loses_spill(facts, old) {
                object.set_spill(tx, None)?;
            }
            object.set_type(tx, new.object_type)?;
            object.set_storage(tx, new.compression, new.checksum)?;
            object.set_bonus(tx, facts.bonus_type, facts.bonus)?;
            self.note(tx, facts.id, 0);
            Ok(())
        })
    }

    /// Whether an object is what this says, but for its blocks.
    fn is_so(&self, facts: &ObjectFacts<'_>, old: &Dnode) -> bool {
        !self.loses_spill(facts, old)
            && has_slots(facts, old)
            && (old.object_type, old.block_size()) == (facts.object_type, facts.block_size)
            && (old.compression, old.checksum) == (facts.compression, facts.checksum)
            && (old.bonus_type, old.bonus()) == (facts.bonus_type, facts.bonus)
    }

    /// Whether the spill block that an object has goes.
    fn loses_spill(&self, facts: &ObjectFacts<'_>, old: &Dnode) -> bool {
        old.spill.is_some() && !(facts.has_spill && self.facts.tells_spills)
    }

    /// Whether the blocks of an object stay as they are; the stream may have larger ones, of the same file.
    fn keeps_blocks(&self, facts: &ObjectFacts<'_>, old: &Dnode) -> Result<bool> {
        if old.block_size() == facts.block_size {
            return Ok(true);
        }
        let file = ObjectType::PLAIN_FILE;
        let is_same = self.facts.from.0 != 0
            && old.object_type == file
            && facts.object_type == file
            && old.max_block_id > 0
            && generation(old.bonus_type, old.bonus()) == generation(facts.bonus_type, facts.bonus);
        if is_same && facts.block_size < old.block_size() {
            let reason = "the stream has smaller blocks of a file than what it starts from";
            return Err(
                Error::invalid(reason).with_advice("send with large blocks ('zfs send -L')")
            );
        }
        Ok(is_same)
    }
}

/// Whether an object's dnode has as many slots as it is to have.
fn has_slots(facts: &ObjectFacts<'_>, old: &Dnode) -> bool {
    usize::from(old.extra_slots) + 1 == usize::from(facts.slots)
}

/// Bytes that a bonus may have beside the pointers there are, and a spill block if it keeps one.
fn bonus_room(dnode: &Dnode, keeps_spill: bool) -> usize {
    let spill = if dnode.spill.is_some() && !keeps_spill { 128 } else { 0 };
    dnode.bonus_area.len() + spill
}

/// What tells a file from another that has its number.
fn generation(bonus_type: ObjectType, bonus: &[u8]) -> Option<u64> {
    match bonus_type {
        ObjectType::ZNODE => Some(Znode::decode(bonus).ok()?.generation),
        ObjectType::SYSTEM_ATTRIBUTES => {
            let header = usize::from(le16(bonus, 4)? >> 10) * 8;
            le64(bonus, header + GENERATION)
        }
        _ => None,
    }
}
