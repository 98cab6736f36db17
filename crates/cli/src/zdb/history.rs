//! `zdb -h`: the pool's history, every record with all its fields.
//!
//! Chapter 06, section 3.4.

use std::sync::Arc;

use cenote_engine::Error;
use cenote_engine::pool::Pool;
use cenote_engine::zap::Zap;
use cenote_format::ObjectId;
use cenote_format::history::{HistoryHeader, records};
use cenote_format::nvlist::NvList;
use serde_json::{Value, json};

use super::render;

/// Most bytes of history that are read.
const LARGEST: u64 = 1 << 30;

/// Every record, oldest first.
pub fn show(pool: &Arc<Pool>) -> Result<Value, Error> {
    let directory = Zap::open(pool.mos().object(ObjectId(1))?)?;
    let Some(number) = directory.lookup_u64("history")? else { return Ok(json!([])) };
    let object = pool.mos().object(ObjectId(number))?;
    let header = HistoryHeader::decode(object.dnode().bonus())?;
    let mut out = Vec::new();
    for (from, to) in header.ranges() {
        let length = to.saturating_sub(from);
        if length > LARGEST {
            return Err(Error::corrupt(format!("history of {length} bytes")).at_object(0, number));
        }
        let mut data = Vec::new();
        for (start, len) in header.spans(from, length) {
            data.extend(object.read_vec(start, usize::try_from(len).unwrap_or(0))?);
        }
        for record in records(&data) {
            match record.and_then(NvList::decode_prefix) {
                Ok((list, _, _)) => out.push(render::nvlist(&list)),
                Err(error) => out.push(json!({ "unreadable": error.to_string() })),
            }
        }
    }
    Ok(Value::Array(out))
}
