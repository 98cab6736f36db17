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
#[path = "../../crates/engine/tests/hostile/tally.rs"]
mod tally;
#[path = "../../crates/posix/tests/attacks/work.rs"]
mod work;

use std::sync::LazyLock;

use base::Base;
use pool::Disks;

static BASE: LazyLock<Base> = LazyLock::new(|| Base::of(work::populate(&Disks::new("disk"))));

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let mut images = vec![BASE.image.clone()];
    edits::apply(&mut images, input);
    let Some(image) = images.pop() else { return };
    let tally = work::attack(BASE.device(&image));
    if std::env::var_os("TALLY").is_some() {
        eprintln!("{tally:#?}");
    }
});
