//! Streams that no sender makes, into a pool in memory: each comes to an end, and what fails leaves what was
//! there.
//!
//! `HOSTILE_STREAMS=n` for more than the few of every run, `HOSTILE_SEED=n` for one of them; with both, for
//! as many from there on.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};

use cenote_engine::error::take_bug;
use cenote_engine::receive::ReceiveOrder;

use super::mutated::{items, mutate, written};
use super::world::World;
use super::{order, receive, recorded};

/// Streams of every run.
const FEW: u64 = 300;
/// Streams after which the pool is looked through.
const LOOK: u64 = 50;
/// Of so many streams that land, what one has made is looked at as everybody does.
const SHOWN: u64 = 8;

/// Held by the test that writes streams and asks for mistakes of ours: those are told of the whole process.
static MISTAKES: Mutex<()> = Mutex::new(());

/// No other test writes what cannot be written until this is dropped.
pub fn alone_with_mistakes() -> MutexGuard<'static, ()> {
    MISTAKES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Numbers from a seed.
pub fn generator(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 3
    }
}

fn seeds() -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let (first, few) = number("HOSTILE_SEED").map_or((0, FEW), |seed| (seed, 1));
    first..first + number("HOSTILE_STREAMS").unwrap_or(few)
}

/// The snapshots of a recorded package, each a stream of its own: those of one of its datasets.
fn snapshots_of(name: &str, dataset: &str) -> Vec<Vec<cenote_engine::stream::Item>> {
    use cenote_format::send_stream::Record;
    let mut all: Vec<Vec<_>> = Vec::new();
    for item in items(&recorded(name)) {
        if matches!(item.record, Record::Begin(_)) {
            all.push(Vec::new());
        }
        all.last_mut().unwrap().push(item);
    }
    let of = |stream: &Vec<cenote_engine::stream::Item>| {
        matches!(&stream[0].record, Record::Begin(begin)
            if String::from_utf8_lossy(&begin.to_name).starts_with(dataset))
    };
    all.into_iter().filter(of).collect()
}

#[test]
fn hostile_streams_change_nothing() {
    let world = World::in_memory();
    let package = snapshots_of("R-cel-two.zst", "g101/a@");
    let [full, more] = package.as_slice() else { panic!("two snapshots") };
    let base = ReceiveOrder { snapshot: "one".into(), ..order("p/base") };
    receive(&world, &written(full), &base).unwrap();
    let before = world.content("p/base@one");
    let (mut landed, mut refused) = (0, 0);
    for seed in seeds() {
        let mut next = generator(seed);
        let is_full = next().is_multiple_of(2);
        let mut changed = if is_full { full.clone() } else { more.clone() };
        mutate(&mut changed, &mut next);
        let _turn = alone_with_mistakes();
        let stream = written(&changed);
        // What cannot be written is told as a mistake of ours.
        drop(take_bug());
        let target = if is_full { order("p/new") } else { order("p/base") };
        let resumable = next().is_multiple_of(4);
        let target = ReceiveOrder { resumable, ..target };
        let done = catch_unwind(AssertUnwindSafe(|| receive(&world, &stream, &target)));
        let Ok(done) = done else { panic!("seed {seed} panics") };
        assert_eq!(world.live.gate().failure().map(|e| e.to_string()), None, "seed {seed}");
        assert_eq!(take_bug(), None, "seed {seed}");
        match &done {
            Ok(()) => landed += 1,
            Err(_) => refused += 1,
        }
        assert!(is_full || done.is_ok() || !world.is_changed("p/base"), "seed {seed}");
        if done.is_ok() && seed.is_multiple_of(SHOWN) {
            world.survey();
        }
        world.clear(&target.dataset, is_full);
        if !is_full && done.is_err() {
            assert_eq!(world.content("p/base@one"), before, "seed {seed}");
        }
        if (seed + 1).is_multiple_of(LOOK) {
            world.census();
        }
    }
    let groups = world.live.gate().figures().synced.0;
    eprintln!("{landed} landed, {refused} were refused, in {groups} groups");
    assert_eq!(world.content("p/base@one"), before);
    world.census();
}
