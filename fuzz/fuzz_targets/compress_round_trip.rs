//! Every compressor on arbitrary blocks and limits: it keeps to the limit, and what it made
//! expands to the block.
#![no_main]

use cenote_codec::compress::{Method, ZstdLevel, compress, decompress};

mod support;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Some((&choice, rest)) = input.split_first() else { return };
    let (limit, data) = support::length(rest);
    let method = match choice % 16 {
        0..=2 => Method::Lzjb,
        3..=5 => Method::Zle,
        6..=8 => Method::Lz4,
        level @ 9..=11 => Method::Gzip(3 * (level - 8)),
        _ => match ZstdLevel::from_id(choice / 16 % 10) {
            Some(level) => Method::Zstd(level),
            None => Method::Zstd(ZstdLevel::DEFAULT),
        },
    };
    let mut packed = vec![0; limit];
    if let Some(length) = compress(method, data, &mut packed) {
        let mut back = vec![0xee; data.len()];
        let result = decompress(method.algorithm(), &packed[..length], &mut back);
        assert!(result.is_ok() && back == data, "{method:?} does not give its block back");
    }
});
