//! Packed nvlist objects of the MOS: configuration, spares, cache devices.
//!
//! Chapter 06, section 3.1. Invariant: the length the bonus claims is bounded before anything is
//! read.

use cenote_format::ObjectId;
use cenote_format::bytes::le64;
use cenote_format::nvlist::NvList;

use crate::object::ObjectSet;
use crate::{Error, Result};

/// Reads packed nvlist object `id` of at most `limit` bytes.
pub fn read(mos: &ObjectSet, id: ObjectId, limit: u64) -> Result<NvList> {
    let object = mos.object(id)?;
    let length = le64(object.dnode().bonus(), 0)
        .ok_or_else(|| Error::corrupt("packed nvlist without a length").at_object(0, id.0))?;
    if length > limit {
        let reason = format!("packed nvlist of {length} bytes, more than {limit}");
        return Err(Error::corrupt(reason).at_object(0, id.0));
    }
    let data = object.read_vec(0, usize::try_from(length).unwrap_or(usize::MAX))?;
    let decoded = NvList::decode_prefix(&data).map(|(list, _, _)| list);
    decoded.map_err(|error| Error::from(error).at_object(0, id.0))
}
