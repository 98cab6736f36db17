//! The logs of fast dedup: entries that are not in their tables yet.
//!
//! Chapter 06, section 20.2. Invariant: of two entries with one key the newer counts, whatever the
//! table says.

use std::collections::BTreeMap;

use cenote_format::ObjectId;
use cenote_format::ddt::{self, Key, LogEntry, LogHeader};

use super::Table;
use crate::object::{Object, ObjectSet};
use crate::{Error, Result};

/// Most log entries that are kept.
const ENTRIES_MAX: usize = 16 << 20;

/// The two logs of the table of `checksum`, whose directory is `place`: each object, if there is
/// one, with its header.
pub fn logs(mos: &ObjectSet, place: &Table, checksum: &str) -> Result<Vec<(Object, LogHeader)>> {
    let mut logs = Vec::new();
    for index in 0..2 {
        if let Some(id) = place.number(&ddt::log_name(checksum, index))?.filter(|id| *id != 0) {
            let object = mos.object(ObjectId(id))?;
            let header = LogHeader::decode(object.dnode().bonus())?;
            logs.push((object, header));
        }
    }
    Ok(logs)
}

/// The entries in the logs of the table of `checksum`, whose directory is `place`.
pub fn read(mos: &ObjectSet, place: &Table, checksum: &str) -> Result<BTreeMap<Key, LogEntry>> {
    let mut entries = BTreeMap::new();
    // The word of the log that is not being written into the table is the later one.
    let mut logs = logs(mos, place, checksum)?;
    logs.sort_by_key(|(_, header)| !header.flushing);
    for (object, header) in logs {
        let size = object.block_size();
        let end = header.length.div_ceil(size).saturating_mul(size);
        for piece in object.appended(0, end) {
            let piece = piece?;
            let blocks = piece.chunks(usize::try_from(size).unwrap_or(usize::MAX));
            for entry in blocks.flat_map(ddt::log_entries) {
                let entry = entry.map_err(Error::from)?;
                if header.flushing && header.checkpoint.is_some_and(|done| entry.key <= done) {
                    continue;
                }
                if entries.len() >= ENTRIES_MAX {
                    return Err(Error::corrupt("a dedup log with too many entries"));
                }
                entries.insert(entry.key, entry);
            }
        }
    }
    Ok(entries)
}
