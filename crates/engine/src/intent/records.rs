//! Records in memory, by transaction group, until they are committed or their group is written.
//!
//! Invariant: what is taken comes in the order of groups, and within one in the order in which it
//! was appended or promoted; a record is taken once.

use std::collections::BTreeMap;

use bytes::Bytes;
use cenote_format::Txg;

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

/// Records of one group.
#[derive(Default)]
struct Group {
    /// To be written by the next commit, in order.
    ordered: Vec<Item>,
    /// To be written when their object is committed.
    by_object: BTreeMap<u64, Vec<Item>>,
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

    /// Adds a record; without `object` to those in order.
    pub(super) fn append(&mut self, txg: Txg, object: Option<u64>, item: Item) {
        let group = self.groups.entry(txg).or_default();
        match object {
            Some(object) => group.by_object.entry(object).or_default().push(item),
            None => {
                group.ordered.push(item);
                self.appended += 1;
            }
        }
    }

    /// Puts the records of `object`, or of all objects, in order behind those that are.
    pub(super) fn promote(&mut self, object: Option<u64>) {
        for group in self.groups.values_mut() {
            let mut more = match object {
                Some(object) => group.by_object.remove(&object).unwrap_or_default(),
                None => std::mem::take(&mut group.by_object).into_values().flatten().collect(),
            };
            self.appended += more.len() as u64;
            group.ordered.append(&mut more);
        }
    }

    /// Drops the records of an object that has no name any more.
    pub(super) fn forget(&mut self, object: u64) {
        for group in self.groups.values_mut() {
            group.by_object.remove(&object);
        }
    }

    /// Takes what is in order.
    pub(super) fn take(&mut self) -> Vec<(Txg, Item)> {
        let mut taken = Vec::new();
        for (txg, group) in &mut self.groups {
            taken.extend(group.ordered.drain(..).map(|item| (*txg, item)));
        }
        taken
    }

    /// Drops the records of all groups up to `txg`: they are on the disks.
    pub(super) fn clean(&mut self, txg: Txg) {
        self.groups = self.groups.split_off(&Txg(txg.0.saturating_add(1)));
    }
}
