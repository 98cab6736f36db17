//! Cuts the power at every moment of a story, in every manner, and has what is left judged; and cuts
//! it once more while the pool is opened and its logs are replayed.
//!
//! Invariant: the moments are visited spread evenly, so that a run that is ended by its time has seen
//! all of the story; what is random depends on the moment and the manner alone.

use std::time::{Duration, Instant};

use cenote_device::{Keep, Recorded, SimEvent};

use super::Random;
use super::judge::Cut;
use super::pool::{Disks, census, zdb};
use super::story::Story;

/// What power loss leaves of unflushed writes: nothing, everything, or of each whatever comes.
const MANNERS: usize = 3;
/// One in so many cuts is judged by `zdb` too.
const JUDGED: usize = 32;
/// One in so many pools is exported in the end.
const EXPORTED: usize = 4;
/// One in so many pools is cut off a second time while it is opened.
const TWICE: usize = 3;

/// How long a story is enumerated.
pub struct Limits {
    /// Seconds, unless the variable `CUT_SECONDS` says otherwise.
    pub seconds: u64,
    /// `zdb` knows all features of the pool.
    pub zdb: bool,
}

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

/// Cuts off the disks of `story` until all was tried or the time is over. `name`: of the whole.
pub fn enumerate(name: &str, disks: &Disks, story: &Story, limits: &Limits) {
    let orders = disks.orders();
    let start = Instant::now();
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let time = Duration::from_secs(number("CUT_SECONDS").unwrap_or(limits.seconds));
    let only = number("CUT_ONLY").map(|order| order as usize);
    // Steps that have no factor in common with the count visit every order, spread evenly.
    let count = orders.len();
    let step = (count * 5 / 8..).find(|step| gcd(*step, count) == 1).unwrap();
    let (mut done, mut again, mut judged) = (0, 0, 0);
    for number in 0..count * MANNERS {
        if start.elapsed() > time {
            break;
        }
        let index = number * step % count;
        if only.is_some_and(|only| only != index) {
            continue;
        }
        let (order, manner) = (orders[index] + 1, number % MANNERS);
        let left = cut(disks, order, manner, index);
        let place = format!("{name}: cut after event {index}, manner {manner}");
        if limits.zdb && number % JUDGED == 5 {
            zdb(&left, &place);
            judged += 1;
        }
        let twice = number % TWICE == 0;
        if twice {
            left.record();
        }
        judge(&left, story, order, &place, number.is_multiple_of(EXPORTED));
        if twice {
            let second = left.orders();
            let mut random = Random(index as u64 * 17 + 5);
            let moment = random.below(second.len() as u64) as usize;
            if let Some(event) = second.get(moment) {
                let place = format!("{place}; again after {moment} of {}", second.len());
                let left = cut(&left, event + 1, (number / TWICE) % MANNERS, index);
                judge(&left, story, order, &place, false);
                again += 1;
            }
        }
        done += 1;
    }
    let all = if done == count * MANNERS { "all " } else { "" };
    eprintln!(
        "{name}: {all}{done} cuts in {MANNERS} manners of {count} moments, {again} cut twice, \
         {judged} judged by zdb, in {:?}",
        start.elapsed()
    );
    assert!(done > 0 || only.is_some(), "{name}: no cut");
}

/// Opens what a cut before event `order` left, and compares it with the story.
fn judge(left: &Disks, story: &Story, order: u64, place: &str, export: bool) {
    {
        let seen = left.open_to_look(place);
        census(&seen, place);
    }
    let live = left.open(place);
    Cut { story, order, place }.judge(left, &live);
    census(live.pool(), place);
    if export {
        live.export().unwrap_or_else(|error| panic!("{place}: {error}"));
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}
