//! `zdb -m`: metaslabs with what their space maps say.
//!
//! Chapter 03, sections 8 to 10. Invariant: free space is computed from the records, including the
//! log space maps that were not flushed.

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_engine::Error;
use cenote_engine::pool::Pool;
use cenote_format::ObjectId;
use cenote_format::bytes::le64;
use cenote_format::space_map::{Action, Record, SpaceMapHeader, records};
use serde_json::{Map, Value, json};

/// Most bytes of one space map that are read.
const LARGEST: u64 = 1 << 30;
/// Most metaslabs of one vdev that are shown.
const MOST: u64 = 1 << 20;

/// The metaslabs of every top-level vdev; `detail` above 1 adds the histogram.
pub fn show(pool: &Arc<Pool>, detail: u8) -> Result<Value, Error> {
    let mut out = Map::new();
    let tree = pool.config().vdev_tree.clone();
    for (id, top) in tree.iter().flat_map(|root| root.children()).enumerate() {
        let Some(state) = top.top.filter(|top| top.metaslab_array.0 != 0) else { continue };
        let array = pool.mos().object(state.metaslab_array)?;
        let count = (state.asize.checked_shr(state.metaslab_shift as u32).unwrap_or(0)).min(MOST);
        let mut slabs = Map::new();
        for index in 0..count {
            let raw = array.read_vec(index * 8, 8)?;
            let object = le64(&raw, 0).unwrap_or(0);
            let size = 1_u64 << state.metaslab_shift.min(63);
            slabs.insert(index.to_string(), slab(pool, object, index * size, size, detail)?);
        }
        out.insert(format!("vdev {id} ({})", top.kind.name()), Value::Object(slabs));
    }
    let pending = unflushed(pool)?;
    if !pending.is_empty() {
        out.insert("log space maps (bytes allocated by txg)".into(), json!(pending));
    }
    Ok(Value::Object(out))
}

fn slab(pool: &Arc<Pool>, object: u64, start: u64, size: u64, detail: u8) -> Result<Value, Error> {
    let mut map = Map::new();
    map.insert("offset".into(), json!(format!("{start:x}")));
    map.insert("spacemap".into(), json!(object));
    if object == 0 {
        map.insert("free".into(), json!(size));
        return Ok(Value::Object(map));
    }
    let dnode = pool.mos().dnode(ObjectId(object))?;
    let header = SpaceMapHeader::decode(dnode.bonus())?;
    let allocated = u64::try_from(header.allocated).unwrap_or(0);
    map.insert("free".into(), json!(size.saturating_sub(allocated)));
    map.insert("length".into(), json!(header.length));
    if let (true, Some(histogram)) = (detail > 1, header.histogram) {
        map.insert("histogram".into(), json!(histogram));
    }
    if detail > 2 {
        let data = read_map(pool, object, header.length)?;
        let lines: Vec<String> = records(&data)
            .map(|record| record.map_or_else(|error| error.to_string(), |r| format!("{r:?}")))
            .collect();
        map.insert("records".into(), json!(lines));
    }
    Ok(Value::Object(map))
}

fn read_map(pool: &Arc<Pool>, object: u64, length: u64) -> Result<Vec<u8>, Error> {
    if length > LARGEST {
        let reason = format!("space map of {length} bytes");
        return Err(Error::corrupt(reason).at_object(0, object));
    }
    let object = pool.mos().object(ObjectId(object))?;
    object.read_vec(0, usize::try_from(length).unwrap_or(0))
}

/// Net bytes allocated by each log space map.
fn unflushed(pool: &Arc<Pool>) -> Result<BTreeMap<String, i64>, Error> {
    let mut out = BTreeMap::new();
    let directory = cenote_engine::zap::Zap::open(pool.mos().object(ObjectId(1))?)?;
    let Some(number) = directory.lookup_u64("com.delphix:log_spacemap_zap")? else {
        return Ok(out);
    };
    let logs = cenote_engine::zap::Zap::open(pool.mos().object(ObjectId(number))?)?;
    for entry in logs.entries() {
        let entry = entry?;
        let Some(object) = entry.value.as_u64() else { continue };
        let dnode = pool.mos().dnode(ObjectId(object))?;
        let header = SpaceMapHeader::decode(dnode.bonus())?;
        let data = read_map(pool, object, header.length)?;
        let mut net = 0_i64;
        for record in records(&data) {
            if let Record::Segment(segment) = record? {
                let (_, bytes) = segment.bytes(0, 9)?;
                let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
                net = match segment.action {
                    Action::Allocate => net.saturating_add(bytes),
                    Action::Free => net.saturating_sub(bytes),
                };
            }
        }
        let txg = u64::from_str_radix(&String::from_utf8_lossy(entry.name()), 16).unwrap_or(0);
        out.insert(txg.to_string(), net);
    }
    Ok(out)
}
