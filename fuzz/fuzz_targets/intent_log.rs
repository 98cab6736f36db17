//! Intent-log headers, blocks and records. The first byte chooses checksum kind and byte order.
#![no_main]

use cenote_format::BlockPointer;
use cenote_format::bytes::ByteOrder;
use cenote_format::zil::{Header, LogBlock, Record};

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Some((&choice, data)) = input.split_first() else { return };
    let _ = Header::decode(data).map(|header| header.encode());
    let order = if choice & 1 == 0 { ByteOrder::Little } else { ByteOrder::Big };
    if let Ok(bytes) = Record::decode(data, order).and_then(|record| record.encode()) {
        // What is written reads as what was meant: the bytes stay the same from then on.
        let again = Record::decode(&bytes, ByteOrder::Little).unwrap();
        assert_eq!(again.encode().unwrap(), bytes);
    }
    let mut pointer = BlockPointer::HOLE;
    pointer.words[6] = if choice & 2 == 0 { 9 << 40 } else { 5 << 40 };
    // The verifier a chain of this block would have.
    for (word, at) in pointer.words[12..].iter_mut().zip([184, 192, 200, 208]) {
        *word = order.u64(data, at).unwrap_or(0);
    }
    if let Ok(block) = LogBlock::decode(data, &pointer) {
        assert!(block.covered.end <= data.len() && block.records.end <= data.len());
        for record in block.raw_records(data).flatten() {
            let _ = record.decode();
        }
    }
});
