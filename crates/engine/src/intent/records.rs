//! Records in memory, by transaction group, until they are committed or their group is written.
//!
//! Invariant: what is taken comes in the order of groups, and within one in the order in which it
//! was appended or promoted; a record is taken once. What the records of a group take in memory is
//! bounded by [`MOST_DATA`], [`MOST_ORDERED`] and [`ENTRY`] bytes for each write in scattered places:
//! beyond, only the ranges of writes are kept, and what has its order becomes one change that no
//! record tells.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use cenote_format::Txg;

use super::block::WRITE_HEADER;

/// One record.
#[derive(Clone, Debug)]
pub(super) enum Item {
    /// Encoded, without its sequence number.
    Encoded(Vec<u8>),
    /// A write.
    Write {
        /// Object.
        object: u64,
        /// Offset in bytes.
        offset: u64,
        /// The data.
        data: Bytes,
    },
    /// A write whose data is read when it is committed.
    LaterWrite {
        /// Object.
        object: u64,
        /// Offset in bytes.
        offset: u64,
        /// Length in bytes.
        length: u64,
    },
    /// Something no record can tell: its group must be written.
    Whole,
}

/// Bytes of data that the records of a group keep. Of what is written after that only the range is
/// kept: the object has the data.
const MOST_DATA: u64 = 8 << 20;
/// Bytes of records in order from which on writing their group costs less than writing them.
pub(super) const MOST_ORDERED: u64 = 8 << 20;
/// Bytes that a record takes besides what is in it.
const ENTRY: u64 = 64;

impl Item {
    /// Bytes it takes in memory.
    pub(super) fn memory(&self) -> u64 {
        let inside = match self {
            Self::Encoded(record) => record.len(),
            Self::Write { data, .. } => data.len(),
            Self::LaterWrite { .. } | Self::Whole => 0,
        };
        ENTRY.saturating_add(inside as u64)
    }

    /// Bytes it takes in log blocks, if it lies in one of them.
    pub(super) fn logged_bytes(&self) -> usize {
        match self {
            Self::Encoded(record) => record.len(),
            Self::Write { data, .. } => WRITE_HEADER + data.len(),
            Self::LaterWrite { .. } | Self::Whole => 0,
        }
    }

    /// The object whose data is read when this is committed.
    pub(super) fn reads(&self) -> Option<u64> {
        match self {
            Self::LaterWrite { object, .. } => Some(*object),
            Self::Encoded(_) | Self::Write { .. } | Self::Whole => None,
        }
    }

    /// Data it keeps that the object has too.
    fn data(&self) -> u64 {
        match self {
            Self::Write { data, .. } => data.len() as u64,
            Self::Encoded(_) | Self::LaterWrite { .. } | Self::Whole => 0,
        }
    }

    /// A write without its data.
    fn without_data(self) -> Self {
        match self {
            Self::Write { object, offset, data } => {
                Self::LaterWrite { object, offset, length: data.len() as u64 }
            }
            other => other,
        }
    }

    /// Takes in a write of the same object that begins within or right behind this one, whose data is read later
    /// either way. False if that cannot be: one that begins before it would be told before it, and of a commit that
    /// power cuts short the beginning counts.
    fn takes_in(&mut self, next: &Self) -> bool {
        let (
            Self::LaterWrite { object, offset, length },
            Self::LaterWrite { object: same, offset: from, length: more },
        ) = (self, next)
        else {
            return false;
        };
        let (end, to) = (offset.saturating_add(*length), from.saturating_add(*more));
        if object != same || *from > end || from < offset {
            return false;
        }
        *length = end.max(to).saturating_sub(*offset);
        true
    }
}

/// Records of one group.
#[derive(Default)]
struct Group {
    /// To be written by the next commit, in order.
    ordered: Vec<Item>,
    /// Bytes of those in memory.
    ordered_bytes: u64,
    /// To be written when their object is committed.
    by_object: BTreeMap<u64, Vec<Item>>,
    /// Bytes of data that were appended since the records were last taken.
    data: u64,
}

impl Group {
    /// Puts a record in order behind the others. What that adds to the bytes in memory: it may be
    /// less than nothing.
    fn put(&mut self, item: Item) -> i64 {
        if matches!(self.ordered.as_slice(), [Item::Whole]) {
            return 0;
        }
        let before = self.ordered_bytes;
        self.ordered_bytes = before.saturating_add(item.memory());
        self.ordered.push(item);
        if self.ordered_bytes > MOST_ORDERED {
            self.ordered = vec![Item::Whole];
            self.ordered_bytes = Item::Whole.memory();
        }
        self.ordered_bytes.cast_signed().saturating_sub(before.cast_signed())
    }
}

/// All records in memory.
#[derive(Default)]
pub(super) struct Records {
    groups: BTreeMap<Txg, Group>,
    /// Records that were ever put in order.
    appended: u64,
}

impl Records {
    /// Number of records that were ever put in order: a commit waits until so many are stable.
    pub(super) fn appended(&self) -> u64 {
        self.appended
    }

    /// Adds a record; without `object` to those in order. The bytes in memory that it adds, which
    /// may be less than none. `can_read_later`: the data of writes can be read from the object.
    pub(super) fn append(
        &mut self,
        txg: Txg,
        object: Option<u64>,
        item: Item,
        can_read_later: bool,
    ) -> i64 {
        let group = self.groups.entry(txg).or_default();
        let Some(object) = object else {
            self.appended += 1;
            return group.put(item);
        };
        let kept = group.data.saturating_add(item.data());
        let item = match kept > MOST_DATA && can_read_later {
            true => item.without_data(),
            false => {
                group.data = kept;
                item
            }
        };
        let items = group.by_object.entry(object).or_default();
        if items.last_mut().is_some_and(|last| last.takes_in(&item)) {
            return 0;
        }
        let bytes = item.memory().cast_signed();
        items.push(item);
        bytes
    }

    /// Puts the records of `object`, or of all objects, in order behind those that are. The bytes
    /// in memory that this takes off each group.
    pub(super) fn promote(&mut self, object: Option<u64>) -> Vec<(Txg, u64)> {
        let mut less = Vec::new();
        for (txg, group) in &mut self.groups {
            let more: Vec<Item> = match object {
                Some(object) => group.by_object.remove(&object).unwrap_or_default(),
                None => std::mem::take(&mut group.by_object).into_values().flatten().collect(),
            };
            self.appended += more.len() as u64;
            let mut change = 0_i64;
            for item in more {
                change = change.saturating_sub(item.memory().cast_signed());
                change = change.saturating_add(group.put(item));
            }
            if change < 0 {
                less.push((*txg, change.unsigned_abs()));
            }
        }
        less
    }

    /// Puts in order whatever else was done to objects with a later write there: the data that is
    /// read shows it. The bytes in memory that this takes off each group.
    pub(super) fn complete(&mut self) -> Vec<(Txg, u64)> {
        let ordered = self.groups.values().flat_map(|group| &group.ordered);
        let objects: BTreeSet<u64> = ordered.filter_map(Item::reads).collect();
        objects.into_iter().flat_map(|object| self.promote(Some(object))).collect()
    }

    /// Drops the records of an object that has no name any more. The bytes in memory that this
    /// takes off each group.
    pub(super) fn forget(&mut self, object: u64) -> Vec<(Txg, u64)> {
        let forgotten = |(txg, group): (&Txg, &mut Group)| {
            let items = group.by_object.remove(&object)?;
            Some((*txg, items.iter().map(Item::memory).sum()))
        };
        self.groups.iter_mut().filter_map(forgotten).collect()
    }

    /// Takes what is in order.
    pub(super) fn take(&mut self) -> Vec<(Txg, Item)> {
        let mut taken = Vec::new();
        for (txg, group) in &mut self.groups {
            taken.extend(group.ordered.drain(..).map(|item| (*txg, item)));
            (group.ordered_bytes, group.data) = (0, 0);
        }
        taken
    }

    /// Drops the records of all groups up to `txg`: they are on the disks.
    pub(super) fn clean(&mut self, txg: Txg) {
        self.groups = self.groups.split_off(&Txg(txg.0.saturating_add(1)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(object: u64, offset: u64, bytes: usize) -> Item {
        Item::Write { object, offset, data: Bytes::from(vec![1; bytes]) }
    }

    #[test]
    fn data_beyond_the_bound_is_read_later() {
        let mut records = Records::default();
        let mut held = 0;
        for number in 0..100_000_u64 {
            // The same place again and again, as three writers do.
            held += records.append(Txg(5), Some(number % 3), write(number % 3, 0, 32_000), true);
        }
        assert!(held > 0 && held.unsigned_abs() < MOST_DATA + (1 << 20), "{held}");
        records.promote(None);
        let taken = records.take();
        let bytes: u64 = taken.iter().map(|(_, item)| item.memory()).sum();
        // All of what was there, or that no record tells it.
        assert!(bytes <= MOST_ORDERED + ENTRY);
        assert!(
            taken.iter().any(|(_, item)| matches!(item, Item::Whole | Item::LaterWrite { .. }))
        );
        // What comes after a commit keeps its data again.
        records.append(Txg(5), Some(1), write(1, 0, 100), true);
        records.promote(Some(1));
        assert!(matches!(records.take().as_slice(), [(_, Item::Write { .. })]));
    }

    #[test]
    fn ranges_that_touch_become_one() {
        let mut records = Records::default();
        let later = |offset, length| Item::LaterWrite { object: 7, offset, length };
        for (offset, length) in [(100, 50), (150, 50), (120, 10), (300, 1), (300, 100), (90, 300)] {
            records.append(Txg(2), Some(7), later(offset, length), true);
        }
        records.promote(Some(7));
        let ranges: Vec<(u64, u64)> = records
            .take()
            .into_iter()
            .map(|(_, item)| match item {
                Item::LaterWrite { offset, length, .. } => (offset, length),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(ranges, [(100, 100), (300, 100), (90, 300)], "in the order they were written");
    }

    #[test]
    fn too_much_in_order_is_told_by_no_record() {
        let mut records = Records::default();
        let mut held = 0;
        for _ in 0..1000 {
            held += records.append(Txg(3), None, Item::Encoded(vec![0; 100_000]), true);
        }
        assert!(held.unsigned_abs() <= MOST_ORDERED);
        assert_eq!(records.appended(), 1000);
        records.append(Txg(4), None, Item::Encoded(vec![0; 64]), true);
        let taken = records.take();
        assert!(matches!(taken.as_slice(), [(Txg(3), Item::Whole), (Txg(4), Item::Encoded(_))]));
    }
}
