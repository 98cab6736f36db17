//! The logs of space maps, and lists with a number for each metaslab, as they are on the disks.
//!
//! Chapter 03, sections 8 to 11. The allocator reads them as they change under it, a census as they were:
//! each reads objects in its own way. Invariant: entries come in the order in which they were written,
//! those of older logs first.

use std::collections::BTreeMap;

use cenote_format::bytes::le64;
use cenote_format::deadlist::parse_integer_key;
use cenote_format::space_map::{Action, Record, Segment, records};
use cenote_format::{ObjectId, Txg};

use crate::{Error, Result};

/// log2 of the unit of logs: 512 bytes.
pub(super) const LOG_SHIFT: u8 = 9;

/// One entry of a log of space maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Logged {
    /// The log's transaction group.
    pub txg: Txg,
    /// Top-level vdev.
    pub vdev: u32,
    /// What happened.
    pub action: Action,
    /// First byte on the vdev.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
}

impl Logged {
    /// What `segment` is in the log of group `txg`; `None` if it names no vdev, as in a map.
    pub(crate) fn of(txg: Txg, segment: Segment) -> Result<Option<Self>> {
        let Some(vdev) = segment.vdev else { return Ok(None) };
        let (offset, length) = segment.bytes(0, LOG_SHIFT)?;
        Ok(Some(Self { txg, vdev, action: segment.action, offset, length }))
    }

    /// A metaslab whose map has what was logged before group `unflushed` lacks this.
    pub(crate) fn is_newer(&self, unflushed: Txg) -> bool {
        self.txg >= unflushed
    }
}

/// Tells what `each` makes of a segment.
pub(crate) type Each<'a> = dyn FnMut(Segment) -> Result<()> + 'a;

/// Tells `each` every segment of the logs that `entries` list (those of [`super::LOG_ZAP`]) with the
/// group of its log, oldest first; `read` reads the log of a group.
pub(crate) fn each_logged(
    entries: Vec<(String, u64)>,
    mut read: impl FnMut(Txg, ObjectId, &mut Each<'_>) -> Result<()>,
    mut each: impl FnMut(Txg, Segment) -> Result<()>,
) -> Result<()> {
    let mut logs = BTreeMap::new();
    for (name, map) in entries {
        logs.insert(Txg(parse_integer_key(name.as_bytes())?), ObjectId(map));
    }
    logs.into_iter().try_for_each(|(txg, map)| read(txg, map, &mut |segment| each(txg, segment)))
}

/// Tells `each` the segments of a piece of the map in `object`.
pub(crate) fn each_in(piece: &[u8], object: ObjectId, each: &mut Each<'_>) -> Result<()> {
    let named = |error: Error| error.at_object(0, object.0);
    for record in records(piece) {
        if let Record::Segment(segment) = record.map_err(|error| named(error.into()))? {
            each(segment).map_err(named)?;
        }
    }
    Ok(())
}

/// The numbers of a list with one for each metaslab; what is not there is 0.
pub(crate) fn numbers(list: &[u8], count: usize) -> impl Iterator<Item = u64> + '_ {
    (0..count).map(|index| le64(list, index * 8).unwrap_or(0))
}
