//! Requests as /dev/fuse gives them.
#![no_main]

use cenote_serve::fuse::request::{Operation, Request};

fn decode(input: &[u8]) {
    let Ok(request) = Request::decode(input) else { return };
    let _ = format!("{request:?}");
    if let Operation::ForgetMany(forgets) = request.operation {
        assert!(forgets.iter().count() * 16 <= input.len());
    }
}

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    decode(input);
    // With the length mended, so that more gets past the first check.
    let mut input = input.to_vec();
    let length = (input.len() as u32).to_le_bytes();
    if let Some(field) = input.get_mut(..4) {
        field.copy_from_slice(&length);
    }
    decode(&input);
});
