//! The lzjb decoder on arbitrary bytes.
#![no_main]

use cenote_codec::compress::Algorithm;

mod support;

libfuzzer_sys::fuzz_target!(|input: &[u8]| support::decompress(Algorithm::Lzjb, input));
