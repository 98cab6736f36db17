//! `zdb -i`: the intent logs of all datasets.
//!
//! Chapter 05, sections 16 and 17. Invariant: a chain is followed only while each block names the
//! one before it, and never beyond a bound.

use std::sync::Arc;

use cenote_codec::checksum::{Algorithm, Width, verify_embedded};
use cenote_engine::Error;
use cenote_engine::pool::Pool;
use cenote_engine::vdev::BlockRead;
use cenote_format::BlockPointer;
use cenote_format::zil::{Header, LogBlock};
use serde_json::{Map, Value, json};

/// Most blocks of one chain.
const LONGEST: usize = 1 << 20;

/// Every dataset that has a log.
pub fn show(pool: &Arc<Pool>) -> Result<Value, Error> {
    let catalog = pool.catalog();
    let mut out = Map::new();
    for directory in catalog.walk(&catalog.root()?)? {
        let head = catalog.head(&directory)?;
        let set = catalog.sealed_object_set(&head)?;
        let header = Header::decode(&set.header().zil_header)?;
        if header.log.is_hole() {
            continue;
        }
        let mut map = Map::new();
        map.insert("claim_txg".into(), json!(header.claim_txg.0));
        map.insert("replay_seq".into(), json!(header.replay_seq));
        map.insert("claim_blk_seq".into(), json!(header.claim_block_seq));
        map.insert("claim_lr_seq".into(), json!(header.claim_record_seq));
        map.insert("flags".into(), json!(header.flags));
        map.insert("blocks".into(), Value::Array(chain(pool, header.log)));
        out.insert(head.name.to_string(), Value::Object(map));
    }
    Ok(Value::Object(out))
}

fn chain(pool: &Arc<Pool>, first: BlockPointer) -> Vec<Value> {
    let mut out = Vec::new();
    let mut pointer = first;
    while !pointer.is_hole() && out.len() < LONGEST {
        let Some(data) = read(pool, &pointer) else { break };
        let block = match LogBlock::decode(&data, &pointer) {
            Ok(block) => block,
            Err(_) => break,
        };
        let mut records = Vec::new();
        for raw in block.raw_records(&data) {
            let Ok(raw) = raw else { break };
            records.push(if pointer.is_crypt() {
                format!("{} bytes, encrypted", raw.data.len())
            } else {
                raw.decode().map_or_else(|error| error.to_string(), |record| format!("{record:?}"))
            });
        }
        out.push(json!({
            "block": format!("{pointer:?}"),
            "sequence": pointer.checksum()[3],
            "used": block.chain.used,
            "records": records,
        }));
        pointer = block.chain.next;
    }
    out
}

/// The bytes of a log block, if it was ever written: its own checksum tells.
fn read(pool: &Arc<Pool>, pointer: &BlockPointer) -> Option<Vec<u8>> {
    let algorithm = Algorithm::from_id(pointer.checksum_id())?;
    let width = if pointer.is_crypt() { Width::Truncated } else { Width::Full };
    pointer.dvas().find_map(|dva| {
        let read = BlockRead {
            vdev: dva.vdev,
            offset: dva.offset,
            size: pointer.psize(),
            birth: pointer.physical_birth(),
        };
        let mut check =
            |data: &[u8]| verify_embedded(data, algorithm, &pointer.checksum(), width).is_ok();
        let recovered = pool.vdevs().read_recover(&read, &mut check).ok()?;
        Some(recovered.data.to_vec())
    })
}
