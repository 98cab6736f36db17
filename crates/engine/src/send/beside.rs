//! What is told although it did not change: blocks that what a stream goes on from lacks, and those that are left
//! out now.
//!
//! Chapter 07, section 9. They are told between the blocks that a walk comes to, so that records ascend.
//! Invariant: no block is told twice, and none before the place that was told last.

use cenote_format::ObjectId;

use super::blocks::{Blocks, Data, Wanted};
use super::left_out::{ListedRun, Redaction};
use super::source::Source;
use crate::{ErrorKind, Result};

/// Blocks of an object that are looked up together.
const BLOCKS_TOGETHER: u64 = 1024;

/// An object, and a block of it.
pub(super) type Place = (u64, u64);

/// How far the lists were told.
pub(super) struct Beside<'a> {
    source: &'a Source,
    /// What is left out now; nothing of a stream of the whole snapshot, for the walk comes to all of that.
    now: Option<&'a Redaction>,
    at: Place,
}

/// What becomes of the blocks of a run.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Told,
    LeftOut,
}

impl<'a> Beside<'a> {
    /// From the place `at` on.
    pub(super) fn new(source: &'a Source, at: Place) -> Self {
        let now = source.redaction.as_ref().filter(|_| source.after.0 != 0);
        Self { source, now, at }
    }

    /// Tells what comes before the place `end`.
    pub(super) fn tell_before(&mut self, end: Place, out: &mut Blocks<'_>) -> Result<()> {
        while let Some((run, fate)) = self.next_before(end) {
            self.tell(&run, fate, out)?;
        }
        Ok(())
    }

    /// The walk has told what there is, up to this block of the object.
    pub(super) fn pass(&mut self, object: u64, last: u64) {
        let next = match last.checked_add(1) {
            Some(block) => (object, block),
            None => (object.saturating_add(1), 0),
        };
        self.at = self.at.max(next);
    }

    /// The next blocks before `end` of which both lists say the same.
    fn next_before(&mut self, end: Place) -> Option<(ListedRun, Fate)> {
        let before = self.source.before.as_ref().and_then(|list| list.next(self.at));
        let now = self.now.and_then(|list| list.next(self.at));
        let both = || [before, now].into_iter().flatten();
        let start = both().map(|run| (run.object, run.first)).min()?;
        if start >= end {
            return None;
        }
        let (object, first) = start;
        let until = if end.0 == object { end.1.saturating_sub(1) } else { u64::MAX };
        let ends = both().filter(|run| run.object == object);
        let ends = ends.map(|run| if run.first > first { run.first - 1 } else { run.last });
        let last = ends.fold(until, u64::min);
        self.pass(object, last);
        let begins = |run: &ListedRun| (run.object, run.first) == start;
        // A receiver may have more than a bookmark says: what both name is left out once more.
        match now.filter(begins) {
            Some(run) => Some((ListedRun { last, ..run }, Fate::LeftOut)),
            None => Some((ListedRun { last, ..before? }, Fate::Told)),
        }
    }

    fn tell(&self, run: &ListedRun, fate: Fate, out: &mut Blocks<'_>) -> Result<()> {
        let object = match self.source.set.object(ObjectId(run.object)) {
            Ok(object) => object,
            // The walk tells that it is gone.
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        let last = run.last.min(object.dnode().max_block_id);
        // Where blocks have another size than then, the walk comes to all of them. No object has the number 0.
        if run.object == 0 || object.block_size() != run.block_size || run.first > last {
            return Ok(());
        }
        let object_type = object.dnode().object_type;
        let bytes = |blocks| self.source.bytes_of(run.object, run.block_size, blocks);
        let mut at = run.first;
        loop {
            let data = object.next_data_block(at)?.filter(|data| *data <= last);
            let end = data.unwrap_or_else(|| last.saturating_add(1));
            if end > at && fate == Fate::Told {
                out.free(run.object, bytes(at)?, bytes(end - at)?)?;
            }
            let Some(data) = data else { return Ok(()) };
            let until = last.min(data.saturating_add(BLOCKS_TOGETHER - 1));
            for (block, pointer) in (data..).zip(object.pointers(data, until)?) {
                if pointer.is_hole() && fate == Fate::LeftOut {
                    continue;
                }
                let (object, offset, block_size) = (run.object, bytes(block)?, run.block_size);
                match (pointer.is_hole(), fate) {
                    (true, _) => out.free(object, offset, block_size)?,
                    (false, Fate::LeftOut) => out.redact(object, offset, block_size)?,
                    (false, Fate::Told) => {
                        let data = Data { object, object_type, offset, block_size, pointer };
                        out.add(Wanted::Data(data))?;
                    }
                }
            }
            if until == last {
                return Ok(());
            }
            at = until.saturating_add(1);
        }
    }
}
