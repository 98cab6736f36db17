//! Dirty time logs on the disks: the transaction groups whose data a leaf does not have.
//!
//! Chapter 03, sections 7 and 9: a space map with blocks of 4 KiB whose addresses are transaction
//! groups, allocations only. Invariant: a log is rewritten as a whole, in the group that changed
//! it; what follows its length means nothing.

use std::ops::Range;

use cenote_format::space_map::{Action, Record, Segment};
use cenote_format::{ObjectId, Txg};

use super::map::{SpaceMap, each_segment};
use super::store::{SpaceSource, SpaceStore};
use crate::vdev::join_touching;
use crate::{Error, Result};

/// Bytes of a data block.
const BLOCK: u64 = 4 << 10;
/// Longest log that is believed, in bytes.
const LONGEST: u64 = 64 << 20;

/// The groups (end exclusive, ascending) in the log of object `id`.
pub fn read_missed(source: &dyn SpaceSource, id: ObjectId) -> Result<Vec<Range<u64>>> {
    let map = SpaceMap::open(source, id)?;
    let extent = map.extent();
    if extent.length > LONGEST {
        let reason = format!("a dirty time log of {} bytes", extent.length);
        return Err(Error::corrupt(reason).at_object(0, id.0));
    }
    let mut ranges: Vec<Range<u64>> = Vec::new();
    each_segment(source, extent, |segment| {
        if segment.action != Action::Allocate {
            return Err(Error::corrupt("a dirty time log frees something"));
        }
        let (start, length) = segment.bytes(0, 0)?;
        ranges.push(start..start.saturating_add(length));
        Ok(())
    })?;
    join_touching(&mut ranges);
    Ok(ranges)
}

/// Frees the log of a leaf that leaves the pool.
pub fn destroy_missed(store: &mut dyn SpaceStore, id: ObjectId) -> Result<()> {
    SpaceMap::open(store, id)?.destroy(store)
}

/// Writes `ranges` (ascending, apart from each other) as the log in object `id`, or in a new object;
/// which.
pub fn write_missed(
    store: &mut dyn SpaceStore,
    id: Option<ObjectId>,
    ranges: &[Range<u64>],
    txg: Txg,
) -> Result<ObjectId> {
    let mut map = match id {
        Some(id) => SpaceMap::open(store, id)?,
        None => SpaceMap::create_with(store, BLOCK)?,
    };
    map.header.length = 0;
    map.header.allocated = 0;
    let mut encoder = map.encoder(store);
    encoder.push(&Record::Debug { action: Action::Allocate, pass: 1, txg })?;
    let mut total: i64 = 0;
    for range in ranges {
        let run = range.end.saturating_sub(range.start);
        let (action, offset) = (Action::Allocate, range.start);
        encoder.push(&Record::Segment(Segment { action, vdev: None, offset, run }))?;
        total = total.saturating_add_unsigned(run);
    }
    map.append(store, &encoder.finish(), total)?;
    map.write_header(store)?;
    Ok(map.object)
}
