//! A whole pool with some of its bytes changed: found, judged, opened, and everything read.
//!
//! The first byte of the input chooses what is looked at; the rest is a list of changes to the blocks of a real pool without checksums (see
//! `support/edits.rs`), so that every change reaches the code behind the checksums.
#![no_main]

#[path = "support/edits.rs"]
mod edits;
#[path = "support/files.rs"]
mod files;
#[path = "../../crates/engine/tests/hostile/image.rs"]
mod image;
#[path = "../../crates/engine/tests/hostile/walk.rs"]
mod walk;

use std::sync::LazyLock;

use cenote_engine::pool::Pool;
use image::FlatImage;
use walk::Tally;

static BASE: LazyLock<FlatImage> = LazyLock::new(|| {
    FlatImage::load(include_bytes!("../../tests/fixtures/hostile/everything.zst"))
});

/// Datasets looked at in one run: everything would take too long.
const WINDOW: usize = 3;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Some((&choice, input)) = input.split_first() else { return };
    let mut image = BASE.clone();
    edits::apply(&mut image, input);
    for candidate in image::discover(vec![image.device("/d0")]) {
        walk::judge(&candidate);
        let mut tally = Tally::default();
        if let Some(pool) = tally.of(Pool::open(&candidate, &walk::options())) {
            if choice % 4 == 0 {
                walk::general(&pool, &mut tally);
            }
            let first = usize::from(choice / 4) % 24;
            let datasets = walk::datasets(&pool, &mut tally);
            for dataset in datasets.iter().skip(first).take(WINDOW) {
                match choice % 4 {
                    1 => walk::dataset(&pool, dataset, &mut tally),
                    2 | 3 => files::walk(&pool, dataset, &mut tally),
                    _ => {}
                }
            }
        }
        if std::env::var_os("TALLY").is_some() {
            eprintln!("{tally:#?}");
        }
    }
});
