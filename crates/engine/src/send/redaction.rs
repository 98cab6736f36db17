//! Finding which blocks of a snapshot redacted streams leave out: those that none of the redaction snapshots, made of
//! clones of it, has any more.
//!
//! Chapter 06, section 16; chapter 07, section 9. Invariant: only data of files and volumes is left out; runs of an
//! object ascend and do not touch.

use std::collections::BTreeMap;
use std::sync::mpsc::sync_channel;
use std::thread;

use cenote_format::bookmark::RedactionEntry;
use cenote_format::dsl_dataset::KEY_REDACTED_DATASETS;
use cenote_format::send_stream::{Features, Record, TO_END};
use cenote_format::{Guid, ObjectType, Txg};

use super::blocks::Piece;
use super::left_out::{Run, joined};
use super::objects::Objects;
use super::since::Since;
use super::source::Source;
use crate::dataset::{Catalog, Dataset};
use crate::pool::Pool;
use crate::pool::change::DatasetOrders;
use crate::{Error, ErrorKind, Result};

/// Batches of records that wait to be looked at.
const BATCHES: usize = 2;
/// Begin and end of a range in bytes.
type Range = (u64, u64);

/// Makes the bookmark `to` of the snapshot `of` by `orders`, with what streams of that leave out: what none of
/// `kept` has, snapshots of clones of it.
///
/// # Errors
/// `NotFound`; `Exists`; `InvalidArgument`: one of them does not descend from it, or there are too many;
/// `Unsupported`: it, or one of them, was received redacted, or the feature is not enabled.
pub fn redact(
    pool: &Pool,
    orders: &DatasetOrders<'_>,
    of: &str,
    to: &str,
    kept: &[String],
) -> Result<()> {
    let catalog = pool.catalog();
    let of = catalog.dataset_named(of)?;
    let kept: Vec<Dataset> =
        kept.iter().map(|name| catalog.dataset_named(name)).collect::<Result<_>>()?;
    let all = kept.iter().chain([&of]);
    let _kept: Vec<_> = all.clone().map(|one| pool.kept().keep(one.id)).collect();
    for one in all {
        if !one.is_snapshot() {
            return Err(Error::invalid("full dataset names of snapshots required"));
        }
        if catalog.dataset_fields(one, KEY_REDACTED_DATASETS)?.is_some() {
            let reason = "attempted to redact redacted dataset or with respect to redacted dataset";
            return Err(Error::unsupported(reason));
        }
    }
    let entries = redacted(pool, &catalog, &of, &kept)?;
    let guids: Vec<Guid> = kept.iter().map(|one| one.phys.guid).collect();
    orders.redaction_bookmark(of.id, to, guids, entries)
}

/// What of `of` none of `kept` has: the entries of a redaction list.
///
/// # Errors
/// `InvalidArgument`: one of them is no descendant of it; `KeyNotLoaded`; what the disks say.
fn redacted(
    pool: &Pool,
    catalog: &Catalog,
    of: &Dataset,
    kept: &[Dataset],
) -> Result<Vec<RedactionEntry>> {
    let mut changes = Vec::new();
    for one in kept {
        let foreign = "redaction snapshot must be descendent of snapshot being redacted";
        let since = Since::snapshot(catalog, one, of).map_err(|error| match error.kind() {
            ErrorKind::InvalidArgument => Error::invalid(foreign),
            _ => error,
        })?;
        changes.push(Changes::of(pool, catalog, one, since.creation_txg)?);
    }
    let set = catalog.object_set(of, &**pool.keys())?;
    let (mut entries, mut at) = (Vec::new(), 0);
    while let Some(id) = set.next_object(at)? {
        at = id.0;
        let object = set.object(id)?;
        let kind = object.dnode().object_type;
        if kind != ObjectType::PLAIN_FILE && kind != ObjectType::ZVOL {
            continue;
        }
        let (size, last) = (object.block_size(), object.dnode().max_block_id);
        let mut runs: Option<Vec<Run>> = None;
        for changes in &changes {
            let own = changes.runs(id.0, size, last);
            runs = Some(runs.map_or_else(|| own.clone(), |all| both(&all, &own)));
        }
        entries.extend(runs.into_iter().flatten().map(|(first, last)| RedactionEntry {
            object: id,
            block: first,
            block_size: size,
            count: last.saturating_sub(first).saturating_add(1),
        }));
    }
    Ok(entries)
}

/// What changed in a snapshot since a group.
#[derive(Default)]
struct Changes {
    ranges: BTreeMap<u64, Vec<Range>>,
    /// First numbers of objects that are gone, and how many.
    gone: Vec<(u64, u64)>,
}

impl Changes {
    fn of(pool: &Pool, catalog: &Catalog, to: &Dataset, after: Txg) -> Result<Self> {
        let set = catalog.object_set(to, &**pool.keys())?;
        let source = Source::new(set, Features::LARGE_BLOCKS, Guid(1), after);
        let mut changes = Self::default();
        let (sender, receiver) = sync_channel::<Vec<Piece>>(BATCHES);
        thread::scope(|scope| {
            let read = || Objects::new(&source, sender).send();
            let reader = thread::Builder::new().name("redact".into()).spawn_scoped(scope, read);
            let reader = reader.map_err(Error::no_thread)?;
            receiver.into_iter().flatten().for_each(|piece| changes.note(&piece.record));
            let gone = "the thread that reads what changed has ended without a result";
            reader.join().unwrap_or_else(|_| Err(Error::bug(gone)))
        })?;
        changes.ranges.values_mut().for_each(|ranges| ranges.sort_unstable());
        Ok(changes)
    }

    fn note(&mut self, record: &Record) {
        let (object, offset, length) = match record {
            Record::Write(write) => (write.object, write.offset, write.logical_size),
            Record::WriteEmbedded(write) => (write.object, write.offset, write.length),
            Record::Free(free) => (free.object, free.offset, free.length),
            Record::FreeObjects(range) => {
                self.gone.push((range.first, range.count));
                return;
            }
            _ => return,
        };
        let end = match length {
            TO_END => u64::MAX,
            length => offset.saturating_add(length),
        };
        self.ranges.entry(object).or_default().push((offset, end));
    }

    /// The blocks of `size` bytes, up to `last`, of an object that changed.
    fn runs(&self, object: u64, size: u64, last: u64) -> Vec<Run> {
        let is_gone = |(first, count): &(u64, u64)| object >= *first && object - first < *count;
        if self.gone.iter().any(is_gone) {
            return vec![(0, last)];
        }
        let ranges = self.ranges.get(&object).map_or(&[][..], Vec::as_slice);
        let run = |(begin, end): &Range| -> Option<Run> {
            let first = begin.checked_div(size)?;
            let until = end.saturating_sub(1).checked_div(size)?.min(last);
            (end > begin && first <= until).then_some((first, until))
        };
        joined(ranges.iter().filter_map(run).collect())
    }
}

/// What lies in runs of both.
fn both(one: &[Run], other: &[Run]) -> Vec<Run> {
    let (mut left, mut right) = (one.iter().peekable(), other.iter().peekable());
    let mut all = Vec::new();
    while let (Some(a), Some(b)) = (left.peek(), right.peek()) {
        let (first, last) = (a.0.max(b.0), a.1.min(b.1));
        if first <= last {
            all.push((first, last));
        }
        let ended = if a.1 < b.1 { &mut left } else { &mut right };
        ended.next();
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_meet() {
        assert_eq!(both(&[(0, 4), (8, 9)], &[(2, 8), (9, 20)]), [(2, 4), (8, 8), (9, 9)]);
        assert!(both(&[(0, 1)], &[(2, 3)]).is_empty());
    }

    #[test]
    fn changes_are_of_the_blocks_they_touch() {
        let ranges = BTreeMap::from([(7, vec![(100, 200), (4096, 4097), (12_288, u64::MAX)])]);
        let changes = Changes { ranges, gone: vec![(20, 4)] };
        assert_eq!(changes.runs(7, 4096, 9), [(0, 1), (3, 9)]);
        assert_eq!(changes.runs(7, 4096, 1), [(0, 1)]);
        assert_eq!(changes.runs(21, 4096, 5), [(0, 5)]);
        assert!(changes.runs(24, 4096, 5).is_empty());
    }
}
