//! The record of a scan in the directory of the pool's objects, and its queue of datasets.
//!
//! Chapter 03, section 15; chapter 08, sections 2 and 7. Invariant: the queue object a record names holds
//! what waits as of that record.

use std::collections::BTreeMap;

use cenote_format::scan_state::{ErrorScrubState, ScanState};
use cenote_format::zap::Value;
use cenote_format::{ObjectId, ObjectType, Txg};

use super::{MosChange, OBJECT_DIRECTORY};
use crate::dataset::Table;
use crate::object::ObjectSet;
use crate::{Error, Result};

/// Entry of the directory: the record.
const SCAN: &str = "scan";
/// Entry of the directory: the record of a scrub of the error log.
const ERROR_SCRUB: &str = "error_scrub";
/// Entry of the directory: the newest group whose blocks the last whole scrub read.
const LAST_SCRUBBED: &str = "last_scrubbed_txg";
/// Words of the record of an error scrub.
const ERROR_SCRUB_WORDS: usize = 9;

/// The datasets that wait, each with the group up to which its blocks were visited elsewhere.
pub type ScanQueue = BTreeMap<u64, Txg>;

/// The scan of the pool that `mos` belongs to, and its queue. `None`: there never was one.
pub fn read_scan(mos: &ObjectSet) -> Result<Option<(ScanState, ScanQueue)>> {
    let Some(directory) = Table::open(mos, OBJECT_DIRECTORY)? else { return Ok(None) };
    let Some(value) = directory.value(SCAN)? else { return Ok(None) };
    let record = ScanState::from_words(&value.as_u64s().unwrap_or_default())?;
    let waiting = match Table::open(mos, record.queue)? {
        Some(queue) => queue.numbers()?,
        None => Vec::new(),
    };
    let number = |name: &str| {
        let bad = |_| Error::corrupt("the queue of a scan lists something that is no number");
        u64::from_str_radix(name, 16).map_err(bad).map_err(|e| e.at_object(0, record.queue.0))
    };
    let queue = waiting.into_iter().map(|(name, until)| Ok((number(&name)?, Txg(until))));
    Ok(Some((record, queue.collect::<Result<_>>()?)))
}

/// The scrub of the error log of the pool that `mos` belongs to. `None`: there never was one.
pub fn read_error_scrub(mos: &ObjectSet) -> Result<Option<ErrorScrubState>> {
    let Some(directory) = Table::open(mos, OBJECT_DIRECTORY)? else { return Ok(None) };
    let Some(value) = directory.value(ERROR_SCRUB)? else { return Ok(None) };
    Ok(Some(ErrorScrubState::from_words(&value.as_u64s().unwrap_or_default())?))
}

impl MosChange<'_> {
    /// Records a scan and what waits; gives the record as it was written. `known`: the queue as it is
    /// on the disks.
    pub fn put_scan(
        &self,
        record: &ScanState,
        known: &ScanQueue,
        queue: &ScanQueue,
    ) -> Result<ScanState> {
        let mut record = *record;
        if record.queue.0 == 0 {
            record.queue = self.new_table(ObjectType::SCAN_QUEUE)?;
        }
        for gone in known.keys().filter(|dataset| !queue.contains_key(dataset)) {
            self.remove(record.queue, &format!("{gone:x}"))?;
        }
        for (dataset, until) in queue.iter().filter(|(one, until)| known.get(one) != Some(until)) {
            self.put_number(record.queue, &format!("{dataset:x}"), until.0)?;
        }
        self.put(OBJECT_DIRECTORY, SCAN, &Value::of_u64s(&record.to_words())?)?;
        Ok(record)
    }

    /// Records a scan that has ended: nothing waits any more. `scrubbed`: it was a scrub that read
    /// everything that was born before that group.
    pub fn end_scan(&self, record: &ScanState, scrubbed: Option<Txg>) -> Result<ScanState> {
        self.free_if_any(record.queue)?;
        let record = ScanState { queue: ObjectId(0), ..*record };
        self.put(OBJECT_DIRECTORY, SCAN, &Value::of_u64s(&record.to_words())?)?;
        if let Some(txg) = scrubbed {
            self.put_number(OBJECT_DIRECTORY, LAST_SCRUBBED, txg.0)?;
        }
        Ok(record)
    }

    /// The group up to which the last whole scrub read everything; 0: there was none.
    pub fn last_scrubbed(&self) -> Result<Txg> {
        Ok(Txg(self.number(OBJECT_DIRECTORY, LAST_SCRUBBED)?.unwrap_or(0)))
    }

    /// Records how far the scrub of an error log is.
    pub fn put_error_scrub(&self, state: &ErrorScrubState) -> Result<()> {
        self.put(OBJECT_DIRECTORY, ERROR_SCRUB, &Value::of_u64s(&state.to_words())?)
    }

    /// A scan begins: the scrub of an error log, if there ever was one, is forgotten.
    pub fn forget_error_scrub(&self) -> Result<()> {
        if self.value(OBJECT_DIRECTORY, ERROR_SCRUB)?.is_some() {
            let nothing = Value::of_u64s(&[0; ERROR_SCRUB_WORDS])?;
            self.put(OBJECT_DIRECTORY, ERROR_SCRUB, &nothing)?;
        }
        Ok(())
    }
}
