//! Prints how fast each transformation runs on one core of this machine, in bytes a second.
//!
//! `cargo run --release -p cenote-codec --example speed`

use std::hint::black_box;
use std::time::{Duration, Instant};

use cenote_codec::checksum::{self, Salt, WordOrder};
use cenote_codec::cipher::{Cipher, Suite};
use cenote_codec::compress::{self, Method, ZstdLevel};
use cenote_codec::parity::{self, Column};

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

    for method in
        [Method::Lz4, Method::Lzjb, Method::Zle, Method::Gzip(6), Method::Zstd(ZstdLevel::DEFAULT)]
    {
        let name = method.algorithm().name();
        let mut packed = vec![0; 2 * BLOCK];
        let Some(length) = compress::compress(method, &data, &mut packed) else { continue };
        println!("{name}: {BLOCK} -> {length} bytes");
        let mut scratch = packed.clone();
        measure(&format!("{name} compress"), BLOCK, || {
            black_box(compress::compress(method, black_box(&data), &mut scratch));
        });
        let mut block = vec![0; BLOCK];
        measure(&format!("{name} decompress"), BLOCK, || {
            let source = black_box(&packed[..length]);
            black_box(compress::decompress(method.algorithm(), source, &mut block)).ok();
        });
    }

    let columns: Vec<Vec<u8>> = (0..8).map(|i| data[i * 8192..][..16384].to_vec()).collect();
    let columns: Vec<&[u8]> = columns.iter().map(Vec::as_slice).collect();
    let mut parity = vec![vec![0; 16384]; 3];
    for count in 1..=3 {
        let mut rows: Vec<&mut [u8]> =
            parity.iter_mut().take(count).map(|row| &mut row[..]).collect();
        measure(&format!("raidz{count} 8+{count} generate"), BLOCK, || {
            parity::generate(black_box(&mut rows), black_box(&columns));
        });
    }
    for lost in 1..=3 {
        let present: Vec<Option<&[u8]>> = parity.iter().map(|row| Some(&row[..])).collect();
        let stripe: Vec<Column<'_>> = columns
            .iter()
            .enumerate()
            .map(
                |(i, column)| {
                    if i < lost { Column::Missing(16384) } else { Column::Present(column) }
                },
            )
            .collect();
        measure(&format!("raidz3 8+3 lost {lost}"), BLOCK, || {
            black_box(parity::reconstruct_data(&present, black_box(&stripe)));
        });
    }

    for suite in (3..=8).filter_map(Suite::from_id) {
        let key = vec![1; suite.key_len()];
        let Ok(cipher) = Cipher::new(suite, &key) else { continue };
        let mut message = data.clone();
        measure(&format!("{} seal", suite.name()), BLOCK, || {
            black_box(cipher.seal(&[0; 12], &[], black_box(&mut message))).ok();
        });
    }
}
