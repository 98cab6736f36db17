//! Which blocks of a snapshot a redacted stream leaves out, as a redaction bookmark says.
//!
//! Chapter 06, section 16. Invariant: runs of an object ascend and do not touch; a list is read only as far as
//! its object goes.

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_format::ObjectId;
use cenote_format::bookmark::{Bookmark, RedactionEntry};

use crate::dataset::{Catalog, Dataset, DatasetName, are_same_snapshots};
use crate::{Error, Result};

/// Most entries of a list that are read into memory.
const ENTRIES_MAX: u64 = 1 << 24;

/// First and last block of a run.
pub(super) type Run = (u64, u64);

/// What a redaction bookmark says is left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Redaction {
    /// The redaction snapshots.
    pub guids: Vec<u64>,
    objects: Arc<BTreeMap<u64, Listed>>,
}

/// What is left out of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Listed {
    /// Bytes of a block.
    block_size: u64,
    runs: Vec<Run>,
}

/// Blocks of an object that a list names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ListedRun {
    pub(super) object: u64,
    /// Bytes of a block.
    pub(super) block_size: u64,
    pub(super) first: u64,
    pub(super) last: u64,
}

impl Redaction {
    /// The list of the bookmark `name`, which is to be of `to`.
    ///
    /// # Errors
    /// `NotFound`; `InvalidArgument`: it is no redaction bookmark, not whole, or of another snapshot.
    pub fn of_bookmark(catalog: &Catalog, to: &Dataset, name: &DatasetName) -> Result<Self> {
        let bookmark = catalog.bookmark(name)?;
        let list = list_of(&bookmark).ok_or_else(|| Error::invalid("not a redaction bookmark"))?;
        if bookmark.guid != to.phys.guid {
            return Err(Error::invalid("the redaction bookmark is of another snapshot"));
        }
        Self::of_list(catalog, list)
    }

    /// The list of a redaction bookmark of `to` with these redaction snapshots.
    ///
    /// # Errors
    /// `NotFound`: there is none that is whole.
    pub fn of_snapshots(catalog: &Catalog, to: &Dataset, guids: &[u64]) -> Result<Self> {
        for (_, bookmark) in catalog.bookmarks(&catalog.head(&to.directory)?)? {
            let Some(list) = list_of(&bookmark).filter(|_| bookmark.guid == to.phys.guid) else {
                continue;
            };
            let header = catalog.redaction_header(list)?;
            let own: Vec<u64> = header.snapshots.iter().map(|guid| guid.0).collect();
            if header.is_complete() && are_same_snapshots(Some(&own), Some(guids)) {
                return Self::of_list(catalog, list);
            }
        }
        Err(Error::not_found("no appropriate redaction bookmark exists"))
    }

    /// No list, only for which snapshots blocks were left out.
    pub(super) fn unlisted(guids: Vec<u64>) -> Self {
        Self { guids, objects: Arc::default() }
    }

    /// What the redaction list in this object says.
    ///
    /// # Errors
    /// `InvalidArgument`: it is not whole.
    pub(super) fn of_list(catalog: &Catalog, list: ObjectId) -> Result<Self> {
        let header = catalog.redaction_header(list)?;
        if !header.is_complete() {
            return Err(Error::invalid("incomplete redaction bookmark provided"));
        }
        let object = catalog.mos().object(list)?;
        let room = object.block_count().saturating_mul(object.block_size());
        let len = header.entries.saturating_mul(RedactionEntry::SIZE as u64);
        if header.entries > ENTRIES_MAX || len > room {
            let reason = format!("a redaction list of {} entries", header.entries);
            return Err(Error::corrupt(reason).at_object(0, list.0));
        }
        let data = object.read_vec(0, usize::try_from(len).unwrap_or(0))?;
        let mut objects: BTreeMap<u64, Listed> = BTreeMap::new();
        for raw in data.chunks_exact(RedactionEntry::SIZE) {
            let entry = RedactionEntry::decode(raw)?;
            let last = entry.block.saturating_add(entry.count.saturating_sub(1));
            let listed = objects.entry(entry.object.0).or_default();
            listed.block_size = entry.block_size;
            listed.runs.push((entry.block, last));
        }
        for listed in objects.values_mut() {
            listed.runs = joined(std::mem::take(&mut listed.runs));
        }
        Ok(Self {
            guids: header.snapshots.iter().map(|guid| guid.0).collect(),
            objects: Arc::new(objects),
        })
    }

    /// Bytes of the blocks it names, uncompressed.
    pub(super) fn bytes(&self) -> u64 {
        let blocks = |(first, last): &Run| last.saturating_sub(*first).saturating_add(1);
        let of = |listed: &Listed| {
            let count = listed.runs.iter().map(blocks).fold(0, u64::saturating_add);
            count.saturating_mul(listed.block_size)
        };
        self.objects.values().map(of).fold(0, u64::saturating_add)
    }

    /// Whether a block of an object is left out.
    pub(super) fn covers(&self, object: u64, block: u64) -> bool {
        let run = self.next((object, block));
        run.is_some_and(|run| (run.object, run.first) == (object, block))
    }

    /// What is left out first from a block of an object on.
    pub(super) fn next(&self, (object, block): (u64, u64)) -> Option<ListedRun> {
        self.objects.range(object..).find_map(|(id, listed)| {
            let from = if *id == object { block } else { 0 };
            let at = listed.runs.partition_point(|(_, last)| *last < from);
            let (first, last) = *listed.runs.get(at)?;
            let (object, block_size) = (*id, listed.block_size);
            Some(ListedRun { object, block_size, first: first.max(from), last })
        })
    }
}

/// The redaction list of a bookmark that has one.
pub(super) fn list_of(bookmark: &Bookmark) -> Option<ObjectId> {
    bookmark.details.map(|details| details.redaction_list).filter(|list| list.0 != 0)
}

/// Runs that touch or overlap become one.
pub(super) fn joined(mut runs: Vec<Run>) -> Vec<Run> {
    runs.sort_unstable();
    let mut all: Vec<Run> = Vec::with_capacity(runs.len());
    for (first, last) in runs {
        match all.last_mut() {
            Some((_, end)) if first <= end.saturating_add(1) => *end = (*end).max(last),
            _ => all.push((first, last)),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_that_touch_are_joined() {
        let runs = joined(vec![(5, 6), (0, 1), (2, 2), (6, 9), (11, 11)]);
        assert_eq!(runs, [(0, 2), (5, 9), (11, 11)]);
    }

    #[test]
    fn what_is_covered_is_left_out() {
        let listed = |runs: &[Run]| Listed { block_size: 512, runs: runs.to_vec() };
        let objects = BTreeMap::from([(3, listed(&[(2, 4), (9, 9)])), (8, listed(&[(0, 1)]))]);
        let redaction = Redaction { guids: Vec::new(), objects: Arc::new(objects) };
        let covered: Vec<u64> = (0..12).filter(|block| redaction.covers(3, *block)).collect();
        assert_eq!(covered, [2, 3, 4, 9]);
        assert!(!redaction.covers(4, 2));
        let next = |place| redaction.next(place).map(|run| (run.object, run.first, run.last));
        assert_eq!(next((1, 7)), Some((3, 2, 4)));
        assert_eq!(next((3, 3)), Some((3, 3, 4)));
        assert_eq!(next((3, 5)), Some((3, 9, 9)));
        assert_eq!(next((3, 10)), Some((8, 0, 1)));
        assert_eq!(next((8, 2)), None);
    }
}
