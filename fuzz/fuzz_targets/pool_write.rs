//! A whole pool with some of its bytes changed: opened for writing, its files and datasets changed,
//! what was destroyed freed, exported.
//!
//! The input is a list of changes (`hostile/edits.rs`) to a pool that our own writer makes when the
//! fuzzer starts; its pointers ask for no checksum, its space maps are right. Errors are welcome.
#![no_main]

#[path = "../../crates/posix/tests/attacks/base.rs"]
mod base;
#[path = "../../crates/engine/tests/hostile/edits.rs"]
mod edits;
#[allow(dead_code, reason = "others use the rest")]
#[path = "../../crates/engine/tests/hostile/image.rs"]
mod image;
#[allow(dead_code, reason = "others use the rest")]
#[path = "../../crates/posix/tests/crashes/pool.rs"]
mod pool;
#[path = "../../crates/posix/tests/attacks/work.rs"]
mod work;

use std::sync::{Arc, LazyLock};

use base::Base;
use cenote_device::{Device, SimDevice};
use cenote_engine::pool::OpenOptions;
use image::Shelf;
use pool::Disks;

static BASE: LazyLock<Base> = LazyLock::new(|| Base::of(work::populate(&Disks::new("disk"))));

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let mut images = vec![BASE.image.clone()];
    edits::apply(&mut images, input);
    let Some(image) = images.pop() else { return };
    let disk: Arc<dyn Device> = Arc::new(SimDevice::from_bytes("/sim/d0", BASE.device(&image)));
    let opener = Arc::new(Shelf(vec![disk.clone()]));
    for candidate in image::discover(vec![disk]) {
        let options = OpenOptions {
            prefetch_threads: 0,
            cache_limit: 32 << 20,
            devices: Some(opener.clone()),
            ..OpenOptions::default()
        };
        let tally = work::attack(&candidate, &options);
        if std::env::var_os("TALLY").is_some() {
            eprintln!("{tally:#?}");
        }
    }
});
