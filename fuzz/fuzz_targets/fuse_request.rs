//! Requests as /dev/fuse gives them.
#![no_main]

use cenote_serve::fuse::request::Request;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let _ = Request::decode(input).map(|request| format!("{request:?}"));
    // With the length mended, so that more gets past the first check.
    let mut input = input.to_vec();
    let length = (input.len() as u32).to_le_bytes();
    if let Some(field) = input.get_mut(..4) {
        field.copy_from_slice(&length);
    }
    let _ = Request::decode(&input).map(|request| format!("{request:?}"));
});
