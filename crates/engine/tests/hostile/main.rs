//! Pools made to hurt: loops, impossible counts, bombs, noise. Each must give an answer or an
//! error that says where, soon, and in little memory.
//!
//! The attacks change a real pool without checksums (`image.rs`), so that they reach the code
//! behind the checksums. Invariant: every test ends within its deadline.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may fail")]

mod bench;
mod blocks;
mod checks;
mod circles;
#[allow(dead_code, reason = "the tool that makes images and the fuzz targets use the rest")]
mod image;
mod labels;
mod tables;
mod tally;
mod trees;
mod walk;

use std::sync::Arc;

use bench::Bench;
use cenote_device::{Device, SimDevice};
use cenote_engine::pool::Pool;
use tally::Tally;

#[test]
fn the_pool_itself_is_sound() {
    let bench = Bench::new();
    let mut tally = Tally::default();
    walk::pool(&bench.pool, &mut tally);
    let allowed = [
        "is not a property",
        "does not exist",
        "no ZAP: block 0 starts with 0x0",
        "is not newer",
        "the keys of this ZAP are words, not names",
    ];
    for error in &tally.errors {
        assert!(allowed.iter().any(|text| error.contains(text)), "{error}");
    }
    assert!(tally.good > 2000, "{} answers", tally.good);
}

#[test]
fn devices_cut_off_anywhere() {
    let base = Bench::base();
    let whole = base.size;
    let mut sizes: Vec<u64> = (0..160).map(|step| step << 16).collect();
    sizes.extend((1..=32).map(|step| whole * step / 32));
    sizes.extend([1, 511, 513, (4 << 20) + 1, whole - 1]);
    let mut opened = 0;
    for size in sizes {
        let mut image = base.clone();
        image.size = size;
        for candidate in image::discover(vec![image.device("/d0")]) {
            walk::judge(&candidate);
            if Pool::open(&candidate, &walk::options()).is_ok() {
                opened += 1;
            }
        }
    }
    assert!(opened > 0, "the whole device opens");
}

#[test]
fn noise_is_no_pool() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut noise = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let bytes: Vec<u8> = (0..(8 << 17)).flat_map(|_| noise().to_le_bytes()).collect();
    for size in [0, 1, 512, 1 << 18, 5 << 20, 8 << 20] {
        let device: Arc<dyn Device> =
            Arc::new(SimDevice::from_bytes("/noise", bytes[..size].to_vec()));
        assert!(image::discover(vec![device]).is_empty());
    }
}
