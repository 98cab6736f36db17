//! Reading space maps and their logs as they are on the disks.
//!
//! Chapter 03, sections 8 to 11. Invariant: segments come in the order in which they were written, those
//! of older logs first.

use std::collections::BTreeMap;

use cenote_format::bytes::le64;
use cenote_format::deadlist::parse_integer_key;
use cenote_format::space_map::{Action, Record, Segment, SpaceMapHeader, records};
use cenote_format::{ObjectId, Txg};

use crate::dataset::Table;
use crate::object::ObjectSet;
use crate::{Error, Result};

/// Log space maps count in units of 512 bytes.
const LOG_SHIFT: u8 = 9;

/// One entry of a log space map.
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

/// The header of the space map in object `id`.
pub(crate) fn map_header(mos: &ObjectSet, id: ObjectId) -> Result<SpaceMapHeader> {
    let header = SpaceMapHeader::decode(mos.dnode(id)?.bonus());
    header.map_err(|error| Error::from(error).at_object(0, id.0))
}

/// Calls `each` for every segment of the space map in object `id`.
pub(crate) fn each_segment(
    mos: &ObjectSet,
    id: ObjectId,
    mut each: impl FnMut(Segment) -> Result<()>,
) -> Result<()> {
    let (object, header) = (mos.object(id)?, map_header(mos, id)?);
    // Entries of two words do not cross blocks, nor do pieces.
    for piece in object.appended(0, header.length) {
        for record in records(&piece?) {
            let record = record.map_err(|error| Error::from(error).at_object(0, id.0))?;
            if let Record::Segment(segment) = record {
                each(segment).map_err(|error| error.at_object(0, id.0))?;
            }
        }
    }
    Ok(())
}

/// Tells `each` every entry of the log space maps, oldest first.
pub fn each_logged(
    mos: &ObjectSet,
    directory: &Table,
    mut each: impl FnMut(Logged) -> Result<()>,
) -> Result<()> {
    let id = directory.number("com.delphix:log_spacemap_zap")?.unwrap_or(0);
    let Some(table) = Table::open(mos, ObjectId(id))? else { return Ok(()) };
    let mut logs = BTreeMap::new();
    for (name, map) in table.numbers()? {
        logs.insert(Txg(parse_integer_key(name.as_bytes())?), ObjectId(map));
    }
    for (txg, id) in logs {
        each_segment(mos, id, |segment| {
            let Some(vdev) = segment.vdev else { return Ok(()) };
            let (offset, length) = segment.bytes(0, LOG_SHIFT)?;
            each(Logged { txg, vdev, action: segment.action, offset, length })
        })?;
    }
    Ok(())
}

/// Reads into `unflushed`, by metaslab, which logs are older than the maps of a vdev with this ZAP.
pub(crate) fn read_unflushed(mos: &ObjectSet, zap: &Table, unflushed: &mut [Txg]) -> Result<()> {
    let Some(id) = zap.number("com.delphix:ms_unflushed_phys_txgs")? else { return Ok(()) };
    let words = mos.object(ObjectId(id))?.read_vec(0, unflushed.len().saturating_mul(8))?;
    for (index, txg) in unflushed.iter_mut().enumerate() {
        *txg = Txg(le64(&words, index * 8).unwrap_or(0));
    }
    Ok(())
}
