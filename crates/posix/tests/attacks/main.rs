//! Pools made to hurt, opened for writing and written to: space maps that lie, lists of blocks to
//! be freed that loop, dnodes of absurd sizes, whatever chance brings.
//!
//! Invariant: whatever is wrong in a pool, opening and changing it ends soon, with errors, and no
//! thread of it panics.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may fail")]

mod base;
#[allow(dead_code, reason = "others use the rest")]
#[path = "../../../engine/tests/hostile/bench.rs"]
mod bench;
#[allow(dead_code, reason = "others use the rest")]
#[path = "../../../engine/tests/hostile/circles.rs"]
mod circles;
#[path = "../../../engine/tests/hostile/edits.rs"]
mod edits;
#[allow(dead_code, reason = "others use the rest")]
#[path = "../../../engine/tests/hostile/image.rs"]
mod image;
#[allow(dead_code, reason = "others use the rest")]
#[path = "../crashes/pool.rs"]
mod pool;
#[path = "../../../engine/tests/hostile/tally.rs"]
mod tally;
#[allow(dead_code, reason = "others use the rest")]
#[path = "../../../engine/tests/hostile/walk.rs"]
mod walk;
mod work;
mod writer_circles;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{LazyLock, mpsc};
use std::time::{Duration, Instant};

use base::Base;
use image::FlatImage;
use pool::Disks;
use tally::Tally;

/// Seconds of random attacks, unless the variable `ATTACK_SECONDS` says otherwise.
const SECONDS: u64 = 20;
/// Longest that one attacked pool may keep us, on a machine that is busy with other things.
const DEADLINE: Duration = Duration::from_secs(300);

static BASE: LazyLock<Base> = LazyLock::new(|| Base::of(work::populate(&Disks::new("disk"))));
static PANICS: AtomicU64 = AtomicU64::new(0);

/// Attacks the pool of `image`.
fn soon(image: FlatImage, what: &str) -> Tally {
    attack_soon(move || work::attack(BASE.device(&image)), what)
}

/// Does `attack` on a thread that is not waited for longer than the deadline.
fn attack_soon(attack: impl FnOnce() -> Tally + Send + 'static, what: &str) -> Tally {
    let (done, wait) = mpsc::channel();
    let start = Instant::now();
    let thread = std::thread::spawn(move || done.send(attack()));
    let tally = wait.recv_timeout(DEADLINE);
    let tally = tally.unwrap_or_else(|error| panic!("{what}: {error} after {:?}", start.elapsed()));
    thread.join().unwrap().unwrap();
    assert_eq!(PANICS.load(Relaxed), 0, "{what}: a thread panicked");
    tally
}

fn count_panics() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            PANICS.fetch_add(1, Relaxed);
            before(info);
        }));
    });
}

#[test]
fn the_pool_itself_is_sound() {
    count_panics();
    let tally = soon(BASE.image.clone(), "no change");
    let allowed = ["a directory", "not a regular file", "filesystem has children"];
    for error in &tally.errors {
        assert!(allowed.iter().any(|text| error.contains(text)), "{error}");
    }
    assert!(tally.good > 100, "{tally:?}");
}

#[test]
fn random_changes() {
    count_panics();
    let seconds = std::env::var("ATTACK_SECONDS").ok().and_then(|text| text.parse().ok());
    let time = Duration::from_secs(seconds.unwrap_or(SECONDS));
    let first = std::env::var("ATTACK_FIRST").ok().and_then(|text| text.parse().ok());
    let first = first.unwrap_or(0_u64);
    let (mut attacks, mut opened, mut slowest) = (0, 0, Duration::ZERO);
    LazyLock::force(&BASE);
    let start = Instant::now();
    for number in first.. {
        if start.elapsed() > time {
            break;
        }
        let mut state = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut byte = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 24) as u8
        };
        let changes = 1 + number as usize % 5;
        let input: Vec<u8> = (0..changes * edits::RECORD).map(|_| byte()).collect();
        let mut images = vec![BASE.image.clone()];
        edits::apply(&mut images, &input);
        let Some(image) = images.pop() else { continue };
        let before = Instant::now();
        let tally = soon(image, &format!("attack {number} ({input:02x?})"));
        slowest = slowest.max(before.elapsed());
        opened += u64::from(tally.good > 0);
        attacks += 1;
    }
    eprintln!("{attacks} attacks, {opened} pools opened, the slowest took {slowest:?}");
    assert!(opened > 0);
}
