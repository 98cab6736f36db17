//! `zdb -i`: the intent logs of all datasets.
//!
//! Chapter 05, sections 16 and 17. Invariant: a chain is followed only while each block names the
//! one before it, and never beyond a bound.

use std::sync::Arc;

use cenote_codec::checksum::{Algorithm, Width, verify_embedded};
use cenote_engine::Error;
use cenote_engine::dataset::is_hidden;
use cenote_engine::pool::Pool;
use cenote_engine::vdev::BlockRead;
use cenote_format::BlockPointer;
use cenote_format::zil::{Header, LogBlock, Record};
use serde_json::{Map, Value, json};

use super::pointer;
use super::sink::Sink;

/// Most blocks of one chain.
const LONGEST: usize = 1 << 20;
/// Most characters of a record that are shown.
const LONGEST_RECORD: usize = 400;

/// Every dataset that has a log; with `detail` above 1 its blocks, above 2 its records.
pub fn show(pool: &Arc<Pool>, detail: u8, sink: &mut Sink) -> Result<(), Error> {
    let catalog = pool.catalog();
    let mut all = Map::new();
    for directory in catalog.walk(&catalog.root()?)? {
        if is_hidden(directory.component()) || sink.is_closed() {
            continue;
        }
        let head = catalog.head(&directory)?;
        let header = catalog
            .sealed_object_set(&head)
            .and_then(|set| Header::decode(&set.header().zil_header).map_err(Error::from));
        let header = match header {
            Ok(header) => header,
            Err(error) => {
                sink.complain();
                sink.line(format_args!("Dataset {}: {error}", head.name));
                all.insert(head.name.to_string(), json!({ "error": error.to_string() }));
                continue;
            }
        };
        if header.log.is_hole() {
            continue;
        }
        sink.line(format_args!("Dataset {}\n", head.name));
        sink.line(format_args!(
            "    ZIL header: claim_txg {}, claim_blk_seq {}, claim_lr_seq {} replay_seq {}, flags {:#x}\n",
            header.claim_txg,
            header.claim_block_seq,
            header.claim_record_seq,
            header.replay_seq,
            header.flags
        ));
        let blocks = chain(pool, header.log, detail, sink);
        all.insert(
            head.name.to_string(),
            json!({
                "claim_txg": header.claim_txg.0,
                "replay_seq": header.replay_seq,
                "claim_blk_seq": header.claim_block_seq,
                "claim_lr_seq": header.claim_record_seq,
                "flags": header.flags,
                "blocks": blocks,
            }),
        );
    }
    if all.is_empty() {
        sink.line("No intent logs: every write is in the datasets themselves");
    }
    sink.json("intent_logs", Value::Object(all));
    Ok(())
}

fn chain(pool: &Arc<Pool>, first: BlockPointer, detail: u8, sink: &mut Sink) -> Vec<Value> {
    let mut out = Vec::new();
    let (mut pointer, mut count, mut total) = (first, 0_usize, 0_usize);
    while !pointer.is_hole() && count < LONGEST && !sink.is_closed() {
        let Some(data) = read(pool, &pointer) else { break };
        let Ok(block) = LogBlock::decode(&data, &pointer) else { break };
        count += 1;
        let sequence = pointer.checksum()[3];
        if detail > 1 {
            sink.line(format_args!("        Block seqno {sequence}, {}", pointer::short(&pointer)));
        }
        let mut records = Vec::new();
        for raw in block.raw_records(&data) {
            let Ok(raw) = raw else { break };
            total += 1;
            let text = if pointer.is_crypt() {
                format!("{} bytes, encrypted", raw.data.len())
            } else {
                raw.decode().map_or_else(|error| error.to_string(), |record| describe(&record))
            };
            if detail > 2 {
                sink.line(format_args!("            {text}"));
            }
            if sink.is_json() {
                records.push(text);
            }
        }
        if sink.is_json() {
            out.push(json!({
                "block": pointer::value(&pointer),
                "sequence": sequence,
                "used": block.chain.used,
                "records": records,
            }));
        }
        pointer = block.chain.next;
    }
    sink.line(format_args!("    Total: {count} blocks, {total} records\n"));
    out
}

/// A record in a line; written data is told by its length.
fn describe(record: &Record) -> String {
    let mut text = format!("{:?}", record.payload);
    if let Some(at) = text.char_indices().nth(LONGEST_RECORD).map(|(at, _)| at) {
        text.truncate(at);
        text += "...";
    }
    format!("txg {}, seq {}: {text}", record.txg, record.sequence)
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
