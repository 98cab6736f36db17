//! Writing the pool's history: a ring in one object that keeps the newest records, and for ever
//! those that tell how the pool was made.
//!
//! Chapter 06, section 3.4. Invariant: what lies between the header's begin and end is whole
//! records; a record is lost only to make room for a newer one.

use cenote_format::bytes::{ByteOrder, le64};
use cenote_format::history::{HistoryHeader, LENGTH_WORD, key};
use cenote_format::nvlist::{Encoding, NvList};
use cenote_format::{ObjectId, ObjectType};

use super::MosChange;
use crate::events::Members;
use crate::object::Object;
use crate::{Error, Result};

/// The only zone there is.
const ZONE: &str = "linux";

impl MosChange<'_> {
    /// The name of a dataset; its number if it cannot be told.
    pub(super) fn name_of(&self, dataset: ObjectId) -> Result<String> {
        let named = self.catalog()?.dataset_by_id(dataset).map(|dataset| dataset.name.to_string());
        Ok(named.unwrap_or_else(|_| format!("dataset {dataset}")))
    }

    /// Records an internal event, of a dataset if one is named.
    pub fn log_event(&self, event: &str, dataset: Option<ObjectId>, text: &str) -> Result<()> {
        let mut record = NvList::new();
        if let Some(dataset) = dataset {
            record.push(key::DATASET_NAME, self.name_of(dataset)?.as_str());
            record.push(key::DATASET_ID, dataset.0);
        }
        record.push(key::INTERNAL_TEXT, text);
        record.push(key::INTERNAL_NAME, event);
        record.push(key::TXG, self.tx.txg().0);
        self.log_record(record)
    }

    /// Records a command line that this user gave.
    pub fn log_command(&self, line: &str, user: u64) -> Result<()> {
        let mut record = NvList::new();
        record.push(key::COMMAND, line);
        record.push(key::ZONE, ZONE);
        record.push(key::WHO, user);
        self.log_record(record)
    }

    /// Appends a record to the history, with the time and this host's name. A pool without a
    /// history keeps none.
    pub fn log_record(&self, mut record: NvList) -> Result<()> {
        let Some(id) = self.pool_entry("history")? else { return Ok(()) };
        record.set(key::TIME, self.now);
        record.set(key::HOSTNAME, self.hooks.host().as_str());
        if record.get(key::INTERNAL_NAME).is_some() {
            self.hooks.tell("history_event", members(&record));
        }
        let packed = record.encode(Encoding::Native(ByteOrder::Little))?;
        let mut bytes = (packed.len() as u64).to_le_bytes().to_vec();
        bytes.extend(packed);

        let object = self.object(id)?;
        let bonus = self.bonus(id, ObjectType::HISTORY_OFFSETS)?;
        let located = |error: Error| error.at_object(0, id.0);
        let mut header = HistoryHeader::decode(&bonus).map_err(|e| located(e.into()))?;
        let ring = header.physical_max.saturating_sub(header.create_length);
        let len = bytes.len() as u64;
        let kept = header.end.checked_sub(header.begin).filter(|kept| *kept <= ring);
        if kept.is_none() || header.end.checked_add(len).is_none() {
            let (begin, end) = (header.begin, header.end);
            let reason = format!("the history reaches from {begin} to {end}, in {ring} bytes");
            return Err(located(Error::corrupt(reason)));
        }
        if len > ring / 2 {
            // A record that would push out all others is not kept.
            header.lost = header.lost.saturating_add(1);
            return self.set_bonus(id, ObjectType::HISTORY_OFFSETS, &header.encode());
        }
        while ring.saturating_sub(header.end.saturating_sub(header.begin)) <= len {
            let oldest = record_length(&object, &header).map_err(located)?;
            header.begin = header.begin.saturating_add(oldest).min(header.end);
            header.lost = header.lost.saturating_add(1);
        }
        let mut rest = bytes.as_slice();
        for (offset, length) in header.spans(header.end, len) {
            let (part, after) = rest.split_at(usize::try_from(length).unwrap_or(0).min(rest.len()));
            object.write(self.tx, offset, part)?;
            rest = after;
        }
        header.end += len;
        if header.create_length == 0 && record.get(key::COMMAND).is_some() {
            header.create_length = header.end;
            header.begin = header.end;
        }
        self.set_bonus(id, ObjectType::HISTORY_OFFSETS, &header.encode())
    }
}

/// What an event tells of an internal record.
fn members(record: &NvList) -> Members {
    const NAMES: [(&str, &str); 7] = [
        (key::HOSTNAME, "history_hostname"),
        (key::INTERNAL_TEXT, "history_internal_str"),
        (key::INTERNAL_NAME, "history_internal_name"),
        (key::TXG, "history_txg"),
        (key::TIME, "history_time"),
        (key::DATASET_NAME, "history_dsname"),
        (key::DATASET_ID, "history_dsid"),
    ];
    let told = |(key, name): (&str, &'static str)| Some((name, record.get(key)?.clone()));
    NAMES.into_iter().filter_map(told).collect()
}

/// Bytes that the oldest record takes.
fn record_length(object: &Object, header: &HistoryHeader) -> Result<u64> {
    let mut word = Vec::new();
    for (offset, length) in header.spans(header.begin, LENGTH_WORD) {
        word.extend(object.read_vec(offset, usize::try_from(length).unwrap_or(0))?);
    }
    let length = le64(&word, 0).filter(|length| *length > 0);
    let bad = || Error::corrupt("the history holds a record without length");
    length.and_then(|length| length.checked_add(LENGTH_WORD)).ok_or_else(bad)
}
