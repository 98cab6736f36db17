//! Attacks on stored blocks: streams that expand without end, sizes that are lies.

use cenote_codec::compress::{self, Method, ZstdLevel};
use cenote_engine::ErrorKind;
use cenote_format::BlockPointer;

use crate::bench::{Bench, soon};
use crate::trees::{again, deepest};

/// Bytes that compress very well.
const LARGE: usize = 16 << 20;
/// Most memory this process may ever have needed, in KiB: all tests together.
const MEMORY: u64 = 3 << 20;

/// The most memory this process has had, in KiB.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let number = line.and_then(|line| line.split_whitespace().nth(1));
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Puts `stored` where the first block of an object was, saying that it expands to `logical` bytes
/// with compression `id`; the text of the error of reading it.
fn read_bomb(stored: &[u8], id: u8, logical: u64) -> Option<String> {
    let mut bench = Bench::new();
    let object = deepest(&bench, "fuzzed/a");
    let lowest = bench.block(&object, 1, 0);
    let old = object.pointer(0, 0).unwrap();
    let mut bytes = stored.to_vec();
    bytes.resize(stored.len().next_multiple_of(512), 0);
    let physical = (bytes.len() as u64 >> 9) - 1;
    let mut bp: BlockPointer = bench.add(bytes, &old, 0);
    let sizes = ((logical >> 9) - 1) | physical << 16 | u64::from(id) << 32;
    bp.words[6] = bp.prop() & !0x7f_ffff_ffff | sizes;
    bench.image.patch(lowest, 0, &bp.encode());
    let object = again(&bench, "fuzzed/a", object.id());
    let error = soon(10, || object.read(0, 100).map(drop)).err()?;
    assert!(matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Checksum), "{error}");
    let text = error.to_string();
    assert!(text.contains(&format!("object {}", object.id().0)), "{text}");
    Some(text)
}

#[test]
fn streams_that_expand_to_more_than_their_block() {
    let zeros = vec![0; LARGE];
    let methods = [
        (Method::Lzjb, 3),
        (Method::Gzip(9), 13),
        (Method::Zle, 14),
        (Method::Lz4, 15),
        (Method::Zstd(ZstdLevel::from_id(3).unwrap()), 16),
    ];
    for (method, id) in methods {
        let mut out = vec![0; LARGE];
        let len = compress::compress(method, &zeros, &mut out).unwrap();
        let stored = &out[..len.min(8 << 20)];
        // The block is small; or it has the size of the stream, and the object's blocks have not.
        for logical in [512, LARGE as u64] {
            let text = read_bomb(stored, id, logical);
            assert!(text.is_some() || logical == 512, "compression {id} to {logical}");
        }
        // More than any block may have.
        let text = read_bomb(stored, id, 32 << 20).unwrap();
        assert!(text.contains("16 MiB"), "{text}");
    }
    assert!(peak() < MEMORY, "{} KiB", peak());
}

#[test]
fn streams_that_say_they_are_huge() {
    // A frame of zstd that announces 2^60 bytes, in blocks of repeated bytes.
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0xc0, 0x88];
    frame.extend((1_u64 << 60).to_le_bytes());
    for _ in 0..100 {
        // Not the last, repeated, 128 KiB.
        frame.extend(&((128_u32 << 10) << 3 | 1 << 1).to_le_bytes()[..3]);
        frame.push(0);
    }
    let mut stored = (frame.len() as u32).to_be_bytes().to_vec();
    stored.extend(3_u32.to_be_bytes());
    stored.extend(&frame);
    for claimed in [stored.len() as u32, u32::MAX, 0x7fff_ffff, 0] {
        stored[..4].copy_from_slice(&claimed.to_be_bytes());
        for logical in [512, LARGE as u64] {
            assert!(read_bomb(&stored, 16, logical).is_some());
            assert!(read_bomb(&stored, 15, logical).is_some());
        }
    }
    assert!(peak() < MEMORY, "{} KiB", peak());
}
