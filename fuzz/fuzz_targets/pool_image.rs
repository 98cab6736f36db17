//! A whole pool with some of its bytes changed: found, judged, opened, everything read and
//! checked.
//!
//! The first byte of the input chooses what is looked at, the second the pool (`support/bases.rs`);
//! the rest is a list of changes to the blocks of a real pool without checksums (`hostile/edits.rs`),
//! so that every change reaches the code behind the checksums.
#![no_main]

#[path = "support/bases.rs"]
mod bases;
#[path = "../../crates/engine/tests/hostile/edits.rs"]
mod edits;
#[path = "support/files.rs"]
mod files;
#[allow(dead_code, reason = "others use the rest")]
#[path = "../../crates/engine/tests/hostile/image.rs"]
mod image;
#[path = "../../crates/engine/tests/hostile/tally.rs"]
mod tally;
#[path = "../../crates/engine/tests/hostile/walk.rs"]
mod walk;

use std::sync::Arc;

use bases::UserKeys;
use cenote_engine::dataset::Keys;
use cenote_engine::pool::Pool;
use tally::Tally;

/// Datasets looked at in one run: everything would take too long.
const WINDOW: usize = 3;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Some((&[choice, pool], input)) = input.split_first_chunk() else { return };
    let mut images = bases::base(pool);
    edits::apply(&mut images, input);
    let keys: Arc<dyn Keys> = Arc::new(UserKeys { lenient: choice < 128 });
    for candidate in image::discover(image::shelf(images)) {
        walk::judge(&candidate);
        let mut tally = Tally::default();
        if let Some(pool) = tally.of(Pool::open(&candidate, &walk::options())) {
            if choice % 4 == 0 {
                walk::general(&pool, &mut tally);
                walk::check(&pool, &mut tally);
            }
            let first = usize::from(choice / 4) % 24;
            let datasets = walk::datasets(&pool, &mut tally);
            for dataset in datasets.iter().skip(first).take(WINDOW) {
                match choice % 4 {
                    1 => walk::dataset(&pool, dataset, &*keys, &mut tally),
                    2 | 3 => files::walk(&pool, dataset, &keys, &mut tally),
                    _ => {}
                }
            }
        }
        if std::env::var_os("TALLY").is_some() {
            eprintln!("{tally:#?}");
        }
    }
});
