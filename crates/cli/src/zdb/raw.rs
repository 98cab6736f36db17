//! `zdb -R`: one block by its address.
//!
//! Flags after the size, as in zdb: `r` raw bytes to the output, `d` decompress (every algorithm is
//! tried), `b` show as a block pointer, `i` as an indirect block, `g` as a gang header, `:LSIZE`.

use std::io::Write;
use std::sync::Arc;

use cenote_codec::compress::{self, Algorithm};
use cenote_engine::pool::Pool;
use cenote_engine::vdev::BlockRead;
use cenote_engine::{Error, ErrorKind};
use cenote_format::{BlockPointer, Txg};
use serde_json::{Value, json};

const LARGEST: u64 = 16 << 20;

/// Reads the block at `address` (`VDEV:OFFSET:SIZE[/LSIZE][:FLAGS]`, numbers in hexadecimal).
pub fn show(pool: &Arc<Pool>, address: &str) -> Result<Value, Error> {
    let bad = || Error::invalid(format!("'{address}' is not VDEV:OFFSET:SIZE[/LSIZE][:FLAGS]"));
    let mut parts = address.split(':');
    let mut part = || parts.next().ok_or_else(bad);
    let vdev = u32::from_str_radix(part()?, 16).map_err(|_| bad())?;
    let offset = hex(part()?).ok_or_else(bad)?;
    let sizes = part()?;
    let (psize, lsize) = sizes.split_once('/').unwrap_or((sizes, sizes));
    let psize = hex(psize).filter(|size| (1..=LARGEST).contains(size)).ok_or_else(bad)?;
    let lsize = hex(lsize).filter(|size| (1..=LARGEST).contains(size)).ok_or_else(bad)?;
    let flags = parts.next().unwrap_or("");
    let read = BlockRead { vdev, offset, size: psize, birth: Txg(u64::MAX) };
    let recovered = pool.vdevs().read_recover(&read, &mut |_| true).map_err(Error::from)?;
    let mut data = recovered.data.to_vec();
    let mut algorithm = None;
    if flags.contains('d') {
        let (name, expanded) = expand(&data, lsize)?;
        algorithm = Some(name);
        data = expanded;
    }
    if flags.contains('r') {
        std::io::stdout()
            .write_all(&data)
            .map_err(|error| Error::new(ErrorKind::Io, format!("output: {error}")))?;
        return Ok(json!({}));
    }
    if flags.contains(['b', 'i', 'g']) {
        let limit = if flags.contains('b') { 1 } else { usize::MAX };
        let pointers: Vec<String> = BlockPointer::decode_all(&data)
            .take(limit)
            .map(|pointer| format!("{pointer:?}"))
            .collect();
        return Ok(json!({ "block": address, "compression": algorithm, "pointers": pointers }));
    }
    let lines: Vec<String> =
        data.chunks(16).enumerate().map(|(i, row)| line(i * 16, row)).collect();
    Ok(json!({ "block": address, "compression": algorithm, "data": lines }))
}

fn hex(text: &str) -> Option<u64> {
    u64::from_str_radix(text.trim_start_matches("0x"), 16).ok()
}

fn expand(data: &[u8], lsize: u64) -> Result<(String, Vec<u8>), Error> {
    for id in [15, 16, 3, 5, 14] {
        let Some(algorithm) = Algorithm::from_id(id) else { continue };
        // Blocks with a length of their own carry it; the others must fill what was asked.
        let mut size = lsize;
        while size <= LARGEST {
            let mut out = vec![0; usize::try_from(size).unwrap_or(0)];
            if compress::decompress(algorithm, data, &mut out).is_ok() {
                return Ok((format!("{algorithm:?}"), out));
            }
            size = size.saturating_mul(2);
        }
    }
    Err(Error::corrupt("no algorithm decompresses these bytes"))
}

fn line(offset: usize, row: &[u8]) -> String {
    let bytes: Vec<String> = row.iter().map(|byte| format!("{byte:02x}")).collect();
    let text: String = row
        .iter()
        .map(|byte| if byte.is_ascii_graphic() || *byte == b' ' { char::from(*byte) } else { '.' })
        .collect();
    format!("{offset:06x}: {:<47}  {text}", bytes.join(" "))
}
