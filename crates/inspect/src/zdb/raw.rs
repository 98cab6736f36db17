//! `zdb -R`: one block by its address.
//!
//! Flags after the size, as in zdb: `r` raw bytes to the output, `d` decompress (every algorithm is
//! tried), `b` show as a block pointer, `i` as an indirect block, `g` as a gang header, `:LSIZE`.
//!
//! Invariant: what is read is bounded by the largest block.

use std::sync::Arc;

use cenote_codec::compress::{self, Algorithm};
use cenote_engine::Error;
use cenote_engine::pool::Pool;
use cenote_engine::vdev::BlockRead;
use cenote_format::{BlockPointer, Txg};
use serde_json::json;

use super::pointer;
use super::sink::Sink;

/// Largest block, in bytes.
const LARGEST: u64 = 16 << 20;
/// Pointers of a small gang header.
const GANG_POINTERS: usize = 3;

/// Reads the block at `address` (`VDEV:OFFSET:SIZE[/LSIZE][:FLAGS]`, numbers in hexadecimal).
pub fn show(pool: &Arc<Pool>, address: &str, sink: &mut Sink) -> Result<(), Error> {
    let bad = || {
        let advice = "write VDEV:OFFSET:PSIZE[/LSIZE][:FLAGS], numbers in hexadecimal";
        Error::invalid(format!("'{address}' is not the address of a block")).with_advice(advice)
    };
    let mut parts = address.split(':');
    let mut part = || parts.next().ok_or_else(bad);
    let vdev = u32::from_str_radix(part()?, 16).map_err(|_| bad())?;
    let offset = hex(part()?).ok_or_else(bad)?;
    let sizes = part()?;
    let (psize, lsize) = sizes.split_once('/').unwrap_or((sizes, sizes));
    let psize = hex(psize).filter(|size| (1..=LARGEST).contains(size)).ok_or_else(bad)?;
    let lsize = hex(lsize).filter(|size| (1..=LARGEST).contains(size)).ok_or_else(bad)?;
    let flags = parts.next().unwrap_or("");
    if let Some(unknown) = flags.chars().find(|flag| !"bcdegirv0123456789abcdef".contains(*flag)) {
        let advice =
            "r raw, d decompress, b block pointer, i indirect block, g gang header, v say how";
        return Err(Error::invalid(format!("'{unknown}' is not a flag of -R")).with_advice(advice));
    }
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
        sink.raw(&data);
        return Ok(());
    }
    sink.line(format_args!("{address}"));
    if let (Some(algorithm), true) = (&algorithm, flags.contains('v')) {
        sink.line(format_args!("Decompressed with {algorithm}, {} bytes", data.len()));
    }
    let (name, value) = if flags.contains(['b', 'i', 'g']) {
        let from = if flags.contains('b') { flags.split('b').nth(1) } else { None };
        let from = from.and_then(hex).unwrap_or(0);
        let rest = data.get(usize::try_from(from).unwrap_or(usize::MAX)..).unwrap_or(&[]);
        let limit = match flags {
            flags if flags.contains('b') => 1,
            flags if flags.contains('g') => GANG_POINTERS,
            _ => usize::MAX,
        };
        let pointers: Vec<BlockPointer> = BlockPointer::decode_all(rest).take(limit).collect();
        pointers.iter().for_each(|pointer| sink.line(pointer::long(pointer)));
        ("pointers", pointers.iter().map(pointer::value).collect())
    } else {
        data.chunks(16).enumerate().for_each(|(i, row)| sink.line(line(i * 16, row)));
        let hex: String = data.iter().map(|byte| format!("{byte:02x}")).collect();
        ("data", json!(hex))
    };
    sink.json("block", json!(address));
    sink.json("decompressed_with", json!(algorithm));
    sink.json(name, value);
    Ok(())
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
