//! Lists of block pointers in objects: appending, linking, and emptying from the end.
//!
//! Chapter 06, section 10.1. Invariant: the totals of a list are those of its own pointers and of
//! every list linked to it; a list is linked to at most one other.

use cenote_format::bpobj::{self, BpobjHeader, ENTRIES_PER_BLOCK, Space, stored};
use cenote_format::bytes::{le64, words_to_le};
use cenote_format::{BlockPointer, ObjectId, ObjectType, blkptr};

use super::objects::LARGE_BLOCK;
use super::space::{clipped, shifted};
use super::{Delta, MosChange, OBJECT_DIRECTORY};
use crate::{Error, Result};

/// Feature of the list that stands for every empty one.
const EMPTY_FEATURE: &str = "empty_bpobj";
/// Entry of the pool's directory that names that list.
const EMPTY_ENTRY: &str = "empty_bpobj";
/// Pointers written at a time.
const BATCH: usize = 4096;
/// Deepest nesting of lists that is followed.
const NESTING_MAX: usize = 1 << 16;
/// Most pointers, FREE records and linked lists that a list is believed to have: more than any pool
/// has room for.
const ENTRIES_MAX: u64 = 1 << 48;
/// Most lists linked to one that are read at a time (32 MiB of their numbers).
const LINKED_MAX: u64 = 1 << 22;
/// First pool versions whose lists have the longer bonuses.
const VERSION_COMPRESSED: u64 = 18;
const VERSION_SUBOBJECTS: u64 = 26;

/// An entry of a list: a pointer, and whether it is a FREE record of a livelist.
pub(super) type Entry = (BlockPointer, bool);

impl MosChange<'_> {
    /// A new, empty list with blocks of `block_size` bytes.
    pub(super) fn new_list(&self, block_size: u64) -> Result<ObjectId> {
        let bonus_len = if self.version < VERSION_COMPRESSED {
            bpobj::BONUS_FIRST
        } else if self.version < VERSION_SUBOBJECTS {
            bpobj::BONUS_WITH_COMPRESSED
        } else if self.is_active("livelist")? {
            bpobj::BONUS_WITH_FREED
        } else {
            bpobj::BONUS_WITH_SUBOBJECTS
        };
        let bonus = BpobjHeader::new(bonus_len).encode();
        self.new_object(ObjectType::BPOBJ, block_size, ObjectType::BPOBJ_HEADER, bonus)
    }

    /// An empty list for an entry of a deadlist: shared, where the pool can.
    pub(super) fn new_empty_list(&self) -> Result<ObjectId> {
        if !self.is_enabled(EMPTY_FEATURE)? {
            return self.new_list(LARGE_BLOCK);
        }
        self.share_empty_list(1)
    }

    /// Empty lists for so many entries of a deadlist.
    pub(super) fn new_empty_lists(&self, count: usize) -> Result<Vec<ObjectId>> {
        if count == 0 || !self.is_enabled(EMPTY_FEATURE)? {
            return (0..count).map(|_| self.new_list(LARGE_BLOCK)).collect();
        }
        Ok(vec![self.share_empty_list(count as u64)?; count])
    }

    /// The list that stands for empty ones, for so many entries more.
    fn share_empty_list(&self, entries: u64) -> Result<ObjectId> {
        let shared = match self.shared_empty_list()? {
            Some(shared) => shared,
            None => {
                let list = self.new_list(LARGE_BLOCK)?;
                self.add_number(OBJECT_DIRECTORY, EMPTY_ENTRY, list.0)?;
                list
            }
        };
        self.add_references(EMPTY_FEATURE, entries)?;
        Ok(shared)
    }

    /// The shared empty list, if there is one.
    pub(super) fn shared_empty_list(&self) -> Result<Option<ObjectId>> {
        self.pool_entry(EMPTY_ENTRY)
    }

    /// An entry does not refer to the shared empty list any more.
    pub(super) fn release_empty_list(&self) -> Result<()> {
        self.release_empty_lists(1)
    }

    /// So many entries do not refer to the shared empty list any more.
    pub(super) fn release_empty_lists(&self, entries: u64) -> Result<()> {
        if entries == 0 {
            return Ok(());
        }
        self.remove_references(EMPTY_FEATURE, entries)?;
        if self.is_active(EMPTY_FEATURE)? {
            return Ok(());
        }
        if let Some(list) = self.shared_empty_list()? {
            self.remove(OBJECT_DIRECTORY, EMPTY_ENTRY)?;
            self.free_object(list)?;
        }
        Ok(())
    }

    pub(super) fn list_header(&self, list: ObjectId) -> Result<BpobjHeader> {
        let bonus = self.bonus(list, ObjectType::BPOBJ_HEADER)?;
        let header =
            BpobjHeader::decode(&bonus).map_err(|error| Error::from(error).at_object(0, list.0))?;
        let counts = [header.pointers, header.subobject_count, header.freed];
        if counts.into_iter().any(|count| count > ENTRIES_MAX) {
            let reason = format!("a list of blocks says it has {counts:?} entries");
            return Err(Error::corrupt(reason).at_object(0, list.0));
        }
        Ok(header)
    }

    fn set_list_header(&self, list: ObjectId, header: &BpobjHeader) -> Result<()> {
        self.set_bonus(list, ObjectType::BPOBJ_HEADER, &header.encode())
    }

    /// Space of everything in a list and below it.
    pub(super) fn list_space(&self, list: ObjectId) -> Result<Space> {
        Ok(self.list_header(list)?.space)
    }

    /// Appends pointers to a list; returns what its totals changed by.
    pub fn append_to_list(&self, list: ObjectId, entries: &[Entry]) -> Result<Delta> {
        let object = self.object(list)?;
        let mut header = self.list_header(list)?;
        let mut sum = Delta::default();
        for batch in entries.chunks(BATCH) {
            let mut bytes = Vec::with_capacity(batch.len() * blkptr::SIZE);
            for (pointer, freed) in batch {
                bytes.extend_from_slice(&stored(pointer, *freed).encode());
                let space = Delta::from(self.meter().space(pointer));
                sum += if *freed { -space } else { space };
                header.freed += u64::from(*freed);
            }
            object.write(self.tx, header.pointers * blkptr::SIZE as u64, &bytes)?;
            header.pointers += batch.len() as u64;
        }
        add(&mut header, sum).map_err(|error| error.at_object(0, list.0))?;
        self.set_list_header(list, &header)?;
        Ok(sum)
    }

    /// Links the list `sub` to `list`, which takes it over with everything in it. Short lists are
    /// copied instead.
    pub(super) fn append_list(&self, list: ObjectId, sub: ObjectId) -> Result<()> {
        if self.shared_empty_list()? == Some(sub) {
            return self.release_empty_list();
        }
        let mut inner = self.list_header(sub)?;
        if inner.is_empty() {
            return self.free_list(sub);
        }
        let mut header = self.list_header(list)?;
        if header.bonus_len < bpobj::BONUS_WITH_SUBOBJECTS {
            let reason = "a list of blocks of this old form cannot take another in";
            return Err(Error::unsupported(reason).at_object(0, list.0));
        }
        // What hangs off the other one hangs off this one from now on.
        let subs = self.linked(&inner)?;
        if !subs.is_empty() && subs.len() as u64 * 8 <= LARGE_BLOCK {
            let mut moved = Delta::default();
            for linked in &subs {
                moved += self.list_space(*linked)?.into();
                moved_freed(&mut inner, &mut header, self.list_header(*linked)?.freed);
            }
            self.free_object(inner.subobjects)?;
            (inner.subobjects, inner.subobject_count) = (ObjectId(0), 0);
            add(&mut inner, -moved).map_err(|error| error.at_object(0, sub.0))?;
            self.set_list_header(sub, &inner)?;
            add(&mut header, moved).map_err(|error| error.at_object(0, list.0))?;
            self.link(list, &mut header, &subs)?;
        }
        if inner.subobject_count == 0 && inner.pointers <= ENTRIES_PER_BLOCK {
            let len = usize::try_from(inner.pointers).unwrap_or(0) * blkptr::SIZE;
            let bytes = self.object(sub)?.read_vec(0, len)?;
            self.object(list)?.write(self.tx, header.pointers * blkptr::SIZE as u64, &bytes)?;
            header.pointers += inner.pointers;
            self.free_object(sub)?;
        } else {
            self.link(list, &mut header, &[sub])?;
        }
        header.freed += inner.freed;
        add(&mut header, inner.space.into()).map_err(|error| error.at_object(0, list.0))?;
        self.set_list_header(list, &header)
    }

    /// Appends to the array of linked lists; the caller writes the header.
    fn link(&self, list: ObjectId, header: &mut BpobjHeader, subs: &[ObjectId]) -> Result<()> {
        if header.subobjects.0 == 0 {
            header.subobjects = self.new_object(
                ObjectType::BPOBJ_SUBOBJ,
                LARGE_BLOCK,
                ObjectType::NONE,
                Vec::new(),
            )?;
        }
        let words: Vec<u64> = subs.iter().map(|sub| sub.0).collect();
        let at = header.subobject_count.checked_mul(8);
        let at = at.ok_or_else(|| Error::corrupt("too many lists").at_object(0, list.0))?;
        self.object(header.subobjects)?.write(self.tx, at, &words_to_le(&words))?;
        header.subobject_count += words.len() as u64;
        Ok(())
    }

    /// The lists linked to the one of this header.
    fn linked(&self, header: &BpobjHeader) -> Result<Vec<ObjectId>> {
        if header.subobject_count == 0 {
            return Ok(Vec::new());
        }
        let array = self.object(header.subobjects)?;
        let located = |error: Error| error.at_object(0, header.subobjects.0);
        let bad = || located(Error::corrupt("an array of lists ends early, or has no end"));
        let held = (array.block_count().saturating_mul(array.block_size()) / 8).min(LINKED_MAX);
        let count = header.subobject_count;
        let len = usize::try_from(count).ok().filter(|_| count <= held).ok_or_else(bad)?;
        let bytes = array.read_vec(0, len * 8)?;
        (0..len).map(|index| le64(&bytes, index * 8).map(ObjectId).ok_or_else(bad)).collect()
    }

    /// Frees a list and every list below it, not the blocks they name.
    pub(super) fn free_list(&self, list: ObjectId) -> Result<()> {
        let mut rest = vec![list];
        while let Some(list) = rest.pop() {
            let header = self.list_header(list)?;
            rest.extend(self.linked(&header)?);
            if rest.len() > NESTING_MAX {
                return Err(Error::corrupt("too many lists").at_object(0, list.0));
            }
            self.free_if_any(header.subobjects)?;
            self.free_object(list)?;
        }
        Ok(())
    }

    /// Frees a list that an entry of a deadlist named.
    pub(super) fn drop_list(&self, list: ObjectId) -> Result<()> {
        if self.shared_empty_list()? == Some(list) {
            self.release_empty_list()
        } else {
            self.free_list(list)
        }
    }

    /// Visits at most `budget` pointers of a list, last first, and takes them out. Lowers `budget`
    /// by what was visited; the list is empty if some of it is left. Returns the space taken out.
    pub fn drain_list(
        &self,
        list: ObjectId,
        budget: &mut u64,
        visit: &mut dyn FnMut(&BlockPointer, bool) -> Result<()>,
    ) -> Result<Delta> {
        let mut path = vec![list];
        let mut taken = Delta::default();
        while let Some(&at) = path.last() {
            let mut header = self.list_header(at)?;
            if header.pointers > 0 {
                if *budget == 0 {
                    return Ok(taken);
                }
                let (space, freed) = self.take_from_end(at, &mut header, budget, visit)?;
                taken += space;
                for level in &path {
                    let mut header = if *level == at { header } else { self.list_header(*level)? };
                    let total = Delta::from(header.space) - space;
                    header.freed = header.freed.saturating_sub(freed);
                    set_total(&mut header, total).map_err(|e| e.at_object(0, level.0))?;
                    self.set_list_header(*level, &header)?;
                }
            } else if header.subobject_count > 0 {
                let last = self.linked(&header)?.pop();
                if let Some(own) = last.filter(|last| path.contains(last)) {
                    let reason = "a list of blocks that is part of itself";
                    return Err(Error::corrupt(reason).at_object(0, own.0));
                }
                path.extend(last);
                if path.len() > NESTING_MAX {
                    return Err(Error::corrupt("lists nest too deeply").at_object(0, list.0));
                }
            } else {
                path.pop();
                let Some(&above) = path.last() else { break };
                self.free_object(at)?;
                let mut header = self.list_header(above)?;
                header.subobject_count = header.subobject_count.saturating_sub(1);
                if header.subobject_count == 0 {
                    self.free_if_any(header.subobjects)?;
                    header.subobjects = ObjectId(0);
                }
                self.set_list_header(above, &header)?;
            }
        }
        Ok(taken)
    }

    /// Takes pointers from the end of a list's own; changes their number in `header`, which the
    /// caller writes. Returns their space and how many are FREE records.
    fn take_from_end(
        &self,
        list: ObjectId,
        header: &mut BpobjHeader,
        budget: &mut u64,
        visit: &mut dyn FnMut(&BlockPointer, bool) -> Result<()>,
    ) -> Result<(Delta, u64)> {
        let count = header.pointers.min(ENTRIES_PER_BLOCK).min(*budget);
        let first = header.pointers - count;
        let pointers = self.own_pointers(list, header, first, count)?;
        let (mut space, mut freed) = (Delta::default(), 0);
        for pointer in pointers.iter().rev() {
            let record = bpobj::is_freed_entry(pointer);
            visit(pointer, record)?;
            let own = Delta::from(self.meter().space(pointer));
            space += if record { -own } else { own };
            freed += u64::from(record);
        }
        self.object(list)?.free_range(self.tx, first * blkptr::SIZE as u64, u64::MAX)?;
        header.pointers = first;
        *budget -= count;
        Ok((space, freed))
    }

    /// `count` of a list's own pointers, from the one numbered `first` on.
    pub(super) fn own_pointers(
        &self,
        list: ObjectId,
        header: &BpobjHeader,
        first: u64,
        count: u64,
    ) -> Result<Vec<BlockPointer>> {
        let object = self.object(list)?;
        let held = object.block_count().saturating_mul(object.block_size());
        let size = blkptr::SIZE as u64;
        if header.pointers.checked_mul(size).is_none_or(|end| end > held) {
            let reason = format!("a list of {} pointers in {held} bytes", header.pointers);
            return Err(Error::corrupt(reason).at_object(0, list.0));
        }
        let len = usize::try_from(count * size).unwrap_or(0);
        let bytes = object.read_vec(first * size, len)?;
        Ok(BlockPointer::decode_all(&bytes).collect())
    }

    /// A list has only its first `kept` pointers any more; those that went have this space.
    pub(super) fn shorten_list(&self, list: ObjectId, kept: u64, gone: Delta) -> Result<()> {
        let mut header = self.list_header(list)?;
        header.pointers = kept;
        add(&mut header, -gone).map_err(|error| error.at_object(0, list.0))?;
        self.set_list_header(list, &header)
    }
}

fn moved_freed(from: &mut BpobjHeader, to: &mut BpobjHeader, freed: u64) {
    from.freed = from.freed.saturating_sub(freed);
    to.freed = to.freed.saturating_add(freed);
}

fn add(header: &mut BpobjHeader, sum: Delta) -> Result<()> {
    set_total(header, Delta::from(header.space) + sum)
}

fn set_total(header: &mut BpobjHeader, total: Delta) -> Result<()> {
    header.space.used = shifted(0, total.used, "listed")?;
    header.space.compressed = clipped(0, total.compressed);
    header.space.uncompressed = clipped(0, total.uncompressed);
    Ok(())
}
