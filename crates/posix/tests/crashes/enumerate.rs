//! Cuts the power at every moment of a story, in every manner, and has what is left judged; and cuts
//! it once more while the pool is opened and its logs are replayed.
//!
//! Invariant: the moments are visited spread evenly, so that a run that is ended by its time has seen
//! all of the story; what is random depends on the moment and the manner alone.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use cenote_device::{Keep, Recorded, SimEvent};

use super::Random;
use super::judge::Cut;
use super::pool::{Disks, census, zdb};
use super::story::Story;

/// What power loss leaves of unflushed writes: nothing, everything, or of each whatever comes.
const MANNERS: usize = 3;
/// One in so many cuts is judged by `zdb` too, unless the variable `CUT_JUDGED` says otherwise.
const JUDGED: u64 = 32;
/// One in so many pools is exported in the end.
const EXPORTED: usize = 4;
/// One in so many pools is cut off a second time while it is opened.
const TWICE: usize = 3;

/// What a power cut leaves of unflushed writes, in the manner `manner`.
fn keep(manner: usize, random: &mut Random, recorded: &Recorded) -> Keep {
    let SimEvent::Write { data, .. } = &recorded.event else { return Keep::All };
    let sectors = (data.len() / 512) as u64;
    match manner {
        0 => Keep::Nothing,
        1 => Keep::All,
        _ => match random.below(4) {
            0 => Keep::Nothing,
            1 => Keep::First(random.below(sectors + 1) as usize * 512),
            2 => Keep::AllBut(random.below(sectors + 1) as usize * 512),
            _ => Keep::All,
        },
    }
}

fn cut(disks: &Disks, order: u64, manner: usize, seed: usize) -> Disks {
    let mut random = Random(seed as u64 * 31 + manner as u64 + 1);
    disks.cut(order, &mut |recorded| keep(manner, &mut random, recorded))
}

/// A story whose disks are cut off.
struct Enumeration<'a> {
    name: &'a str,
    disks: &'a Disks,
    story: &'a Story,
    orders: Vec<u64>,
    /// The cut to be tried next.
    next: AtomicUsize,
    /// Cuts done, those of them cut twice, those judged by `zdb`.
    done: AtomicUsize,
    again: AtomicUsize,
    judged: AtomicUsize,
    judged_every: usize,
}

/// Cuts off the disks of `story` until all was tried or the time is over: `seconds`, unless the
/// variable `CUT_SECONDS` says otherwise. `name`: of the whole.
pub fn enumerate(name: &str, disks: &Disks, story: &Story, seconds: u64) {
    let start = Instant::now();
    let variable = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let time = Duration::from_secs(variable("CUT_SECONDS").unwrap_or(seconds));
    let only = variable("CUT_ONLY").map(|index| index as usize);
    let orders = disks.orders();
    let count = orders.len();
    let zero = AtomicUsize::default;
    let all = Enumeration {
        name,
        disks,
        story,
        orders,
        next: zero(),
        done: zero(),
        again: zero(),
        judged: zero(),
        judged_every: variable("CUT_JUDGED").unwrap_or(JUDGED).max(1) as usize,
    };
    // Steps that have no factor in common with the count visit every order, spread evenly.
    let step = (count * 5 / 8..).find(|step| gcd(*step, count) == 1).unwrap();
    let work = || {
        while start.elapsed() <= time {
            let number = all.next.fetch_add(1, Relaxed);
            if number >= count * MANNERS {
                break;
            }
            let index = number % count * step % count;
            if only.is_none_or(|only| only == index) {
                all.one(number, index, (number % count + number / count) % MANNERS);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..variable("CUT_THREADS").unwrap_or(1) {
            scope.spawn(work);
        }
    });
    let done = all.done.load(Relaxed);
    let whole = if done == count * MANNERS { "all " } else { "" };
    eprintln!(
        "{name}: {whole}{done} cuts in {MANNERS} manners of {count} moments, {} cut twice, {} \
         judged by zdb, in {:?}",
        all.again.load(Relaxed),
        all.judged.load(Relaxed),
        start.elapsed()
    );
    assert!(done > 0 || only.is_some(), "{name}: no cut");
}

impl Enumeration<'_> {
    /// Cut `number`: right after event `index`.
    fn one(&self, number: usize, index: usize, manner: usize) {
        let order = self.orders[index] + 1;
        let left = cut(self.disks, order, manner, index);
        let place = format!("{}: cut after event {index}, manner {manner}", self.name);
        if number % self.judged_every == 5 % self.judged_every && zdb(&left, &place) {
            self.judged.fetch_add(1, Relaxed);
        }
        let twice = (number / MANNERS).is_multiple_of(TWICE);
        if twice {
            left.record();
        }
        judge(&left, self.story, order, &place, number.is_multiple_of(EXPORTED));
        if twice {
            let second = left.orders();
            let mut random = Random(number as u64 * 17 + 5);
            let moment = random.below(second.len() as u64) as usize;
            if let Some(event) = second.get(moment) {
                let place = format!("{place}; again after {moment} of {}", second.len());
                let manner = random.below(MANNERS as u64) as usize;
                let left = cut(&left, event + 1, manner, index);
                judge(&left, self.story, order, &place, false);
                self.again.fetch_add(1, Relaxed);
            }
        }
        self.done.fetch_add(1, Relaxed);
    }
}

/// Opens what a cut before event `order` left, and compares it with the story.
fn judge(left: &Disks, story: &Story, order: u64, place: &str, export: bool) {
    let place = {
        let seen = left.open_to_look(place);
        census(&seen, place);
        let found = seen.uberblock();
        &format!("{place} (group {}, {:?})", found.txg, found.reflow)
    };
    let live = left.open(place);
    Cut { story, order, place }.judge(left, &live);
    let end = Instant::now() + Duration::from_secs(60);
    while live.vdevs().expanding().is_some() {
        assert!(Instant::now() < end, "{place}: the expansion does not end: {:?}", live.jobs());
        live.sync().unwrap_or_else(|error| panic!("{place}: {error}"));
    }
    census(live.pool(), place);
    if export {
        live.export().unwrap_or_else(|error| panic!("{place}: {error}"));
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}
