//! Prints how fast each transformation runs on one core of this machine, in bytes a second.
//!
//! `cargo run --release -p cenote-codec --example speed`

use std::hint::black_box;
use std::time::{Duration, Instant};

use cenote_codec::checksum::{self, Salt, WordOrder};

const BLOCK: usize = 128 * 1024;

/// The best rate of many tries: what the machine does when nothing else disturbs it.
fn measure(name: &str, bytes: usize, mut work: impl FnMut()) {
    let mut best = f64::INFINITY;
    let end = Instant::now() + Duration::from_millis(300);
    while Instant::now() < end {
        let start = Instant::now();
        work();
        best = best.min(start.elapsed().as_secs_f64());
    }
    println!("{name:24} {:8.2} GB/s", bytes as f64 / best / 1e9);
}

/// Text-like bytes: compressible, not trivially so.
fn sample(length: usize) -> Vec<u8> {
    let mut state = 1u64;
    let words: Vec<Vec<u8>> = (0..512)
        .map(|_| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let length = 2 + (state >> 33) as usize % 8;
            (0..length as u32).map(|i| b'a' + (state >> (i * 5 + 8)) as u8 % 26).collect()
        })
        .collect();
    let mut out = Vec::new();
    while out.len() < length {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        out.extend_from_slice(&words[(state >> 40) as usize % words.len()]);
        out.push(b' ');
    }
    out.truncate(length);
    out
}

fn main() {
    let data = sample(BLOCK);
    let salt = Salt::new([7; 32]);
    for algorithm in checksum::Algorithm::ALL.into_iter().filter(|a| !a.embedded() && a.verifies())
    {
        measure(algorithm.name(), BLOCK, || {
            black_box(checksum::compute(algorithm, black_box(&data), WordOrder::Little, &salt));
        });
    }
    measure("fletcher4 (big-endian)", BLOCK, || {
        black_box(checksum::fletcher4(black_box(&data), WordOrder::Big));
    });
}
