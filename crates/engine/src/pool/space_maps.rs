//! Reading space maps and their logs as they were in one group, whatever they claim to be.
//!
//! Chapter 03, sections 8 to 11. Invariant: segments come in the order in which they were written, those
//! of older logs first.

use cenote_format::space_map::{Segment, SpaceMapHeader};
use cenote_format::{ObjectId, Txg};

use crate::alloc::logs::{self, Each, each_in};
use crate::alloc::{LOG_ZAP, Logged, UNFLUSHED};
use crate::dataset::Table;
use crate::object::ObjectSet;
use crate::{Error, Result};

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
        each_in(&piece?, id, &mut each)?;
    }
    Ok(())
}

/// Tells `each` every entry of the log space maps, oldest first.
pub fn each_logged(
    mos: &ObjectSet,
    directory: &Table,
    mut each: impl FnMut(Logged) -> Result<()>,
) -> Result<()> {
    let id = directory.number(LOG_ZAP)?.unwrap_or(0);
    let Some(table) = Table::open(mos, ObjectId(id))? else { return Ok(()) };
    let read = |_, id, each: &mut Each<'_>| each_segment(mos, id, each);
    logs::each_logged(table.numbers()?, read, |txg, segment| {
        Logged::of(txg, segment)?.map_or(Ok(()), &mut each)
    })
}

/// Reads into `unflushed`, by metaslab, which logs are older than the maps of a vdev with this ZAP.
pub(crate) fn read_unflushed(mos: &ObjectSet, zap: &Table, unflushed: &mut [Txg]) -> Result<()> {
    let Some(id) = zap.number(UNFLUSHED)? else { return Ok(()) };
    let since = numbers(mos, ObjectId(id), unflushed.len())?;
    for (own, txg) in unflushed.iter_mut().zip(since) {
        *own = Txg(txg);
    }
    Ok(())
}

/// The numbers of the list in object `id` with one for each metaslab.
pub(crate) fn numbers(mos: &ObjectSet, id: ObjectId, count: usize) -> Result<Vec<u64>> {
    let list = mos.object(id)?.read_vec(0, count.saturating_mul(8))?;
    Ok(logs::numbers(&list, count).collect())
}
