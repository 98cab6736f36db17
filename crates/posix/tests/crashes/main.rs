//! Power cuts at every moment of a small workload on whole pools of simulated disks.
//!
//! Invariant: whatever of the unflushed writes survives a cut, the pool opens, nothing in it leaks or
//! fails its checksum, what was acknowledged as durable is there, and nothing else than what was
//! done is.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod model;
mod pool;
mod work;

use std::time::{Duration, Instant};

use cenote_device::{Keep, Recorded, SimEvent};

use pool::{Disks, census, zdb};
use work::Work;

/// Seconds for the cuts of one layout, unless the variable `CUT_SECONDS` says otherwise.
const SECONDS: u64 = 18;
/// One in so many cuts is judged by `zdb` too.
const JUDGED: usize = 8;
/// One in so many pools is exported in the end.
const EXPORTED: usize = 4;

/// A small generator: the same numbers in every run.
pub struct Random(pub u64);

impl Random {
    /// The next number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit.max(1)
    }
}

/// What a power cut leaves of unflushed writes, in the manner `manner`.
fn keep(manner: u64, random: &mut Random, recorded: &Recorded) -> Keep {
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

fn enumerate(kind: &str) {
    let disks = Disks::new(kind);
    let facts = Work::run(&disks);
    let orders = disks.orders();
    let start = Instant::now();
    let seconds = std::env::var("CUT_SECONDS").ok().and_then(|text| text.parse().ok());
    let time = Duration::from_secs(seconds.unwrap_or(SECONDS));
    let mut done = 0_usize;
    // Steps that have no factor in common with the count visit every order, spread evenly.
    let count = orders.len();
    let step = (count * 5 / 8..).find(|step| gcd(*step, count) == 1).unwrap();
    for number in 0..count * 3 {
        if start.elapsed() > time {
            break;
        }
        let order = orders[number * step % count] + 1;
        let manner = (number % 3) as u64;
        let mut random = Random(order * 31 + manner + 1);
        let cut = disks.cut(order, &mut |recorded| keep(manner, &mut random, recorded));
        let place = format!("{kind}: cut before event {order}, manner {manner}");
        if number % JUDGED == 3 {
            zdb(&cut, &place);
        }
        let expected = facts.at(order);
        {
            let seen = cut.open_to_look(&place);
            census(&seen, &place);
        }
        let live = cut.open(&place);
        let files = cut.files(&live, &place);
        expected.check(&live, &files, &place);
        live.sync().unwrap_or_else(|error| panic!("{place}: {error}"));
        census(live.pool(), &place);
        drop(files);
        if number.is_multiple_of(EXPORTED) {
            live.export().unwrap_or_else(|error| panic!("{place}: {error}"));
        }
        done += 1;
    }
    eprintln!("{kind}: {done} cuts of {count} moments in {:?}", start.elapsed());
    assert!(done > 1, "{kind}: only {done} cuts");
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[test]
fn a_single_disk() {
    enumerate("disk");
}

#[test]
fn a_mirror() {
    enumerate("mirror");
}

#[test]
fn raidz() {
    enumerate("raidz1");
}
