//! Self-checksummed blocks of every kind, as they come and after sealing them.
#![no_main]

use cenote_codec::checksum::{Algorithm, Width, WordOrder, seal_embedded, verify_embedded};

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Some((&choice, data)) = input.split_first() else { return };
    let algorithm = [
        Algorithm::Label,
        Algorithm::GangHeader,
        Algorithm::Zilog,
        Algorithm::Zilog2,
        Algorithm::Sha256,
    ][usize::from(choice & 7) % 5];
    let order = if choice & 8 == 0 { WordOrder::Little } else { WordOrder::Big };
    let width = if choice & 16 == 0 { Width::Full } else { Width::Truncated };
    let verifier = [u64::from(choice >> 5), 2, 3, 4];
    let _ = verify_embedded(data, algorithm, &verifier, width);
    let mut sealed = data.to_vec();
    if seal_embedded(&mut sealed, algorithm, &verifier, order, width).is_ok() {
        assert_eq!(verify_embedded(&sealed, algorithm, &verifier, width), Ok(order));
    }
});
