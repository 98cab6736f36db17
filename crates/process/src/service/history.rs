//! The pool's history as the report has it.
//!
//! Invariant: everything before the first record that cannot be read is shown. A history is in memory
//! from its first record to its last, or, if it is longer than [`BYTES_MAX`] or cannot be read, not at
//! all: then it is read by who asks for it, in a place among the orders.

use std::sync::Arc;

use cenote_control::report::HistoryRecord;
use cenote_engine::Result;
use cenote_engine::dataset::Catalog;
use cenote_engine::pool::history::{History, listed};
use cenote_format::history::key;
use cenote_format::nvlist::NvList;

/// Most bytes of a history that is kept in memory, as it is in the pool.
const BYTES_MAX: u64 = 8 << 20;

/// A record and where it begins in the history.
type Placed = (u64, Arc<HistoryRecord>);

/// Records that follow each other: a history shares all it has in common with the one before.
type Chunk = Arc<Vec<Placed>>;

/// Records of a chunk.
const CHUNK: usize = 256;

/// A history in memory.
#[derive(Clone, Default)]
pub struct Tail {
    chunks: Arc<Vec<Chunk>>,
    /// It is kept.
    is_whole: bool,
}

impl Tail {
    /// All records, oldest first, if they are in memory.
    pub fn whole(&self) -> Option<impl Iterator<Item = HistoryRecord>> {
        let records = self.chunks.iter().flat_map(|chunk| chunk.iter());
        let all = || records.map(|(_, record)| HistoryRecord::clone(record));
        self.is_whole.then(all)
    }

    /// Whether all records are in memory.
    pub fn is_whole(&self) -> bool {
        self.is_whole
    }
}

/// Follows a history.
#[derive(Default)]
pub struct HistoryReader {
    tail: Tail,
    /// Where the next record begins.
    end: u64,
}

impl HistoryReader {
    /// The history as it is now: what was written since the one before is read.
    pub fn next(&mut self, catalog: &Catalog) -> Tail {
        if let Err(error) = self.follow(catalog) {
            tracing::warn!(%error, "the history is not kept in memory");
            *self = Self::default();
        }
        self.tail.clone()
    }

    fn follow(&mut self, catalog: &Catalog) -> Result<()> {
        let history = History::open(catalog)?;
        if history.length() > BYTES_MAX || history.end() < self.end {
            *self = Self::default();
        }
        if history.length() > BYTES_MAX || (self.tail.is_whole && history.end() == self.end) {
            return Ok(());
        }
        let mut chunks = Vec::clone(&self.tail.chunks);
        forget(&mut chunks, |at| history.has(at));
        let end = history.end();
        let mut history = history.since(self.end);
        while let Some(at) = history.position() {
            let Some(record) = history.next().transpose()? else { break };
            append(&mut chunks, (at, Arc::new(convert(&record.fields))));
        }
        self.end = end;
        self.tail = Tail { chunks: Arc::new(chunks), is_whole: true };
        Ok(())
    }
}

/// Leaves out the records that are not kept any more: some behind the oldest, which stay for ever, so
/// that a chunk that begins with one that is kept has no others, unless it is the first.
fn forget(chunks: &mut Vec<Chunk>, is_kept: impl Fn(u64) -> bool) {
    for (index, chunk) in chunks.iter_mut().enumerate() {
        let may_lack = index == 0 || chunk.first().is_some_and(|(at, _)| !is_kept(*at));
        if may_lack && chunk.iter().any(|(at, _)| !is_kept(*at)) {
            Arc::make_mut(chunk).retain(|(at, _)| is_kept(*at));
        }
    }
    chunks.retain(|chunk| !chunk.is_empty());
}

fn append(chunks: &mut Vec<Chunk>, record: Placed) {
    match chunks.last_mut().filter(|chunk| chunk.len() < CHUNK) {
        Some(last) => Arc::make_mut(last).push(record),
        None => chunks.push(Arc::new(vec![record])),
    }
}

/// Every record, oldest first, read from the devices as they are asked for. A record that cannot be read
/// ends them; an error is told if there is none before it.
pub fn records(catalog: &Catalog) -> impl Iterator<Item = Result<HistoryRecord>> {
    let mut has_begun = false;
    let (history, failed) = match History::open(catalog) {
        Ok(history) => (Some(history), None),
        Err(error) => (None, Some(Err(error))),
    };
    let read = history.into_iter().flatten().map_while(move |record| match record {
        Ok(record) => {
            has_begun = true;
            Some(Ok(convert(&record.fields)))
        }
        Err(error) if has_begun => {
            tracing::warn!(%error, "the history ends early");
            None
        }
        Err(error) => Some(Err(error)),
    });
    failed.into_iter().chain(read)
}

/// The name of the user is for who asks to find.
fn convert(list: &NvList) -> HistoryRecord {
    let text = |name: &str| list.string_lossy(name);
    let signed = |name: &str| list.u64(name).and_then(|number| i64::try_from(number).ok());
    let dataset = match (text(key::DATASET_NAME), list.u64(key::DATASET_ID)) {
        (Some(name), Some(id)) => Some((name, id)),
        _ => None,
    };
    HistoryRecord {
        time: signed(key::TIME).unwrap_or(0),
        command: text(key::COMMAND),
        ioctl: text(key::IOCTL),
        internal_name: text(key::INTERNAL_NAME),
        internal_text: text(key::INTERNAL_TEXT),
        internal_number: list.u64(key::INTERNAL_EVENT),
        dataset,
        txg: list.u64(key::TXG),
        elapsed_nanoseconds: list.i64(key::ELAPSED).and_then(|n| u64::try_from(n).ok()),
        input: list.nvlist(key::INPUT).map(listed),
        output: list.nvlist(key::OUTPUT).map(listed),
        error_number: list.i64(key::ERRNO),
        who: list.u64(key::WHO),
        user: None,
        host: text(key::HOSTNAME),
        zone: text(key::ZONE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(chunks: &[Chunk]) -> Vec<u64> {
        chunks.iter().flat_map(|chunk| chunk.iter()).map(|(at, _)| *at).collect()
    }

    #[test]
    fn a_history_shares_its_records_with_the_one_before() {
        let record = Arc::new(convert(&NvList::new()));
        let mut chunks = Vec::new();
        (0..1000).for_each(|at| append(&mut chunks, (at, record.clone())));
        assert_eq!(places(&chunks), (0..1000).collect::<Vec<_>>());
        let before = chunks.clone();
        append(&mut chunks, (1000, record));
        // The first two stay for ever, those up to 300 were overwritten.
        let is_kept = |at| !(2..300).contains(&at);
        forget(&mut chunks, is_kept);
        assert_eq!(places(&chunks), (0..2).chain(300..1001).collect::<Vec<_>>());
        let shared = before.iter().zip(&chunks).filter(|(old, new)| Arc::ptr_eq(old, new)).count();
        assert_eq!((before.len(), chunks.len(), shared), (4, 4, 1));
        assert_eq!(places(&before), (0..1000).collect::<Vec<_>>());
    }
}
