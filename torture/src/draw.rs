//! From a seed to a plan.
//!
//! Invariant: the plan follows from the seed alone. What a seed is about (its theme) is drawn first, so
//! that each of the hard cases has seeds that press on it: full pools, quotas, orders, devices.

use crate::disks::LAYOUTS;
use crate::plan::{Plan, Setup, Step, Trouble};
use crate::random::Random;

/// What most steps of a seed are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Theme {
    /// Files of all sizes.
    Files,
    /// Synchronous writes and power cuts.
    Logs,
    /// A pool that is full, or nearly.
    Full,
    /// Quotas and reservations.
    Limits,
    /// Datasets.
    Orders,
    /// Leaves that misbehave.
    Leaves,
    /// Damaged blocks.
    Damage,
    /// Top-level vdevs that leave and come.
    Tops,
    /// Snapshots that are sent and received: every sixth seed.
    Travel,
}

/// Of so many seeds one is about streams.
const TRAVELS: u64 = 6;

const THEMES: [Theme; 11] = [
    Theme::Files,
    Theme::Logs,
    Theme::Logs,
    Theme::Full,
    Theme::Full,
    Theme::Limits,
    Theme::Orders,
    Theme::Orders,
    Theme::Leaves,
    Theme::Damage,
    Theme::Tops,
];

/// The plan of a seed.
pub fn plan(seed: u64) -> Plan {
    let mut random = Random::new(seed.wrapping_mul(0x9e37_79b9).wrapping_add(17));
    let drawn = random.pick(&THEMES);
    let theme = if seed % TRAVELS == TRAVELS - 1 { Theme::Travel } else { drawn };
    let setup = setup(&mut random, theme);
    let count = 20 + random.below(50) as usize;
    let mut steps = vec![Step::Create { set: 0, name: 0 }, Step::Create { set: 0, name: 1 }];
    if theme == Theme::Travel {
        let write =
            |file| Step::Write { set: 0, file, at: 0, len: 300_000, fill: 7, squeezable: true };
        steps.extend([write(0), write(1), Step::Snapshot { set: 0, name: 0, recursive: true }]);
    }
    if matches!(theme, Theme::Orders | Theme::Limits | Theme::Travel) {
        for name in 0..2 {
            let properties = properties(&mut random, theme);
            steps.push(Step::NewFilesystem { below: 0, name, properties });
        }
    }
    while steps.len() < count {
        step(&mut random, theme, &mut steps);
    }
    let end = match random.below(4) {
        0 => Step::Export,
        1 => Step::Kill { unmounted: 0 },
        _ => cut(&mut random, theme),
    };
    steps.push(end);
    Plan { seed, setup, steps }
}

fn setup(random: &mut Random, theme: Theme) -> Setup {
    let layout = match theme {
        Theme::Damage => random.pick(&["disk", "stripe", "disk", "mirror", "raidz1"]),
        Theme::Leaves => {
            let redundant = [
                "mirror",
                "mirror3",
                "raidz1",
                "raidz2",
                "raidz3",
                "draid1",
                "draid2",
                "two-spares",
            ];
            random.pick(&redundant)
        }
        Theme::Full if random.percent(50) => "disk",
        Theme::Tops => random.pick(&["many", "pairs", "pairs", "many", "dedup"]),
        _ => random.pick(&LAYOUTS),
    };
    let mut properties: Vec<(String, u64)> = Vec::new();
    let mut set = |name: &str, value: u64| properties.push((name.to_owned(), value));
    let small = [4096, 8192, 16384, 32768, 131_072, 131_072, 131_072, 1 << 20];
    set("recordsize", random.pick(&small));
    if random.percent(30) {
        // lz4, off, zstd, gzip-1.
        set("compression", random.pick(&[15, 2, 16, 5]));
    }
    if random.percent(if theme == Theme::Full { 40 } else { 15 }) {
        set("copies", 2 + random.below(2));
    }
    if random.percent(15) {
        set("sync", random.pick(&[1, 1, 2]));
    }
    if layout == "dedup" || random.percent(8) {
        set("dedup", 1);
    }
    if random.percent(20) {
        // fletcher2, fletcher4, sha256.
        set("checksum", random.pick(&[6, 7, 8]));
    }
    if random.percent(10) {
        set("logbias", 1);
    }
    if random.percent(30) {
        set("xattr", 2);
    }
    let full = theme == Theme::Full;
    Setup {
        layout: layout.to_owned(),
        ashift: random.pick(&[9, 12, 12, 13]),
        size_mib: 64,
        properties,
        encrypted: random.percent(if theme == Theme::Travel { 40 } else { 15 }),
        cloning: random.percent(30),
        ballast_mib: if full || theme == Theme::Travel && random.percent(30) {
            8 + random.below(24)
        } else {
            0
        },
    }
}

fn properties(random: &mut Random, theme: Theme) -> Vec<(String, u64)> {
    let mut properties = Vec::new();
    let limits = ["quota", "refquota", "reservation", "refreservation"];
    if theme == Theme::Limits || random.percent(20) {
        properties.push((random.pick(&limits).to_owned(), (1 + random.below(12)) << 20));
    }
    if random.percent(15) {
        properties.push(("recordsize".to_owned(), 512 << random.below(9)));
    }
    properties
}

/// Length of a write: mostly short, sometimes long.
fn length(random: &mut Random) -> u32 {
    let most = random.pick(&[600, 5_000, 33_000, 140_000, 400_000, 1_200_000]);
    1 + random.below(most) as u32
}

fn place(random: &mut Random) -> u32 {
    match random.below(3) {
        0 => 0,
        1 => (random.below(8) << 17) as u32,
        _ => random.below(900_000) as u32,
    }
}

fn any(random: &mut Random) -> u8 {
    random.below(256) as u8
}

fn set_of(random: &mut Random) -> u8 {
    if random.percent(50) { 0 } else { any(random) }
}

fn fill(random: &mut Random) -> u32 {
    random.below(1 << 30) as u32
}

fn file_step(random: &mut Random) -> Step {
    let (set, file) = (set_of(random), any(random));
    match random.below(27) {
        0..=4 => Step::Create { set, name: any(random) },
        5..=9 => Step::Write {
            set,
            file,
            at: place(random),
            len: length(random),
            fill: fill(random),
            squeezable: random.percent(30),
        },
        10..=12 => Step::Append { set, file, len: length(random), fill: fill(random) },
        13..=14 => Step::Truncate { set, file, len: place(random) },
        15 => Step::Punch { set, file, at: place(random), len: length(random) },
        16..=17 => Step::Rename { set, file, to: any(random), exchange: random.percent(15) },
        18..=19 => Step::Unlink { set, file },
        20 => Step::Directory { set, name: any(random) },
        21 => Step::Link { set, file, to: any(random) },
        22 => Step::Xattr {
            set,
            file,
            name: any(random),
            len: random.pick(&[20, 200, 3_000]),
            fill: fill(random),
        },
        23 => Step::Lengthen { set, file, len: length(random) },
        24 => Step::Touch { set, file },
        // Most are as ever again soon.
        25 => Step::AppendOnly { set, file, on: random.percent(40) },
        _ => Step::Copy {
            set,
            from: file,
            to: any(random),
            at: (random.below(6) << 17) as u32,
            to_at: (random.below(6) << 17) as u32,
            len: length(random),
        },
    }
}

fn sync_step(random: &mut Random) -> Step {
    let (set, file) = (set_of(random), any(random));
    match random.below(10) {
        0..=4 => Step::Fsync { set, file },
        5 => Step::SyncFilesystem { set },
        6 => Step::Group,
        _ => Step::Burst {
            set,
            file,
            at: place(random),
            len: length(random),
            times: 1 + random.below(8) as u8,
            fill: fill(random),
        },
    }
}

fn order(random: &mut Random, theme: Theme) -> Step {
    let (set, snapshot, name) = (any(random), any(random), any(random));
    match random.below(36) {
        0..=3 => Step::NewFilesystem { below: set, name, properties: properties(random, theme) },
        4..=5 => Step::Destroy { set, recursive: random.percent(60) },
        6..=11 => Step::Snapshot { set: set_of(random), name, recursive: random.percent(40) },
        12..=13 => Step::DestroySnapshot { snapshot },
        14 => Step::DestroySnapshots { set, name },
        15 => Step::RenameSnapshot { snapshot, name },
        16..=18 => Step::Clone { snapshot, name },
        19..=20 => Step::Promote { set },
        21..=22 => Step::Rollback { set: set_of(random) },
        23 => Step::RenameFilesystem { set, below: any(random), name },
        24..=26 => limit(random),
        27 => Step::Hold { snapshot },
        28 => Step::Release { snapshot },
        29 => Step::Comment { text: name },
        30 => Step::AddLog,
        31 => {
            if random.percent(30) {
                Step::AddDisk
            } else {
                Step::RemoveLog
            }
        }
        32..=34 => Step::Checkpoint,
        _ => Step::DiscardCheckpoint,
    }
}

fn limit(random: &mut Random) -> Step {
    let set = any(random);
    let mib = if random.percent(15) { 0 } else { 1 + random.below(30) };
    let (property, value) = match random.below(9) {
        0 => ("quota", mib << 20),
        1 => ("refquota", mib << 20),
        2 => ("reservation", mib << 20),
        3 | 4 => ("refreservation", mib << 20),
        5 => ("compression", random.pick(&[2, 15])),
        6 => ("copies", 1 + random.below(3)),
        7 => ("sync", random.below(3)),
        _ => ("recordsize", 4096 << random.below(6)),
    };
    Step::Set { set, property: property.to_owned(), value }
}

fn full(random: &mut Random) -> Step {
    let (set, file) = (set_of(random), any(random));
    match random.below(10) {
        0..=3 => Step::Fill {
            set,
            len: random.pick(&[9_000, 130_000, 700_000, 3_000_000]),
            most: 4 + random.below(40) as u8,
            fill: fill(random),
            sync: random.percent(60),
        },
        4..=6 => Step::Burst {
            set,
            file,
            at: 0,
            len: random.pick(&[40_000, 400_000, 2_000_000, 6_000_000]),
            times: 4 + random.below(12) as u8,
            fill: fill(random),
        },
        7 => Step::Unlink { set, file },
        8 => Step::Truncate { set, file, len: 0 },
        _ => sync_step(random),
    }
}

fn cut(random: &mut Random, theme: Theme) -> Step {
    let back = match random.below(4) {
        0 => 0,
        1 => random.below(1000) as u16,
        _ => random.below(60) as u16,
    };
    let stale = match theme {
        Theme::Logs | Theme::Leaves | Theme::Tops if random.percent(60) => random.below(400) as u16,
        _ => 0,
    };
    let unmounted = if random.percent(25) { any(random) } else { 0 };
    let (manner, seed) = (random.below(3) as u8, fill(random));
    Step::Cut { back, manner, seed, unmounted, stale }
}

fn life(random: &mut Random, theme: Theme) -> Step {
    match random.below(20) {
        18..=19 => Step::Back {
            cut: if random.percent(30) { 0 } else { random.below(1001) as u16 },
            manner: random.below(3) as u8,
            seed: fill(random),
        },
        17 => Step::Blink { skip: random.below(400) as u16, reads: random.pick(&[1, 4, 40, 400]) },
        16 if random.percent(40) => {
            Step::Spared { which: any(random), stays: random.percent(40), fill: fill(random) }
        }
        15 if random.percent(30) => Step::Split {
            cut: if random.percent(30) { 0 } else { 1 + random.below(1000) as u16 },
            manner: random.below(3) as u8,
            seed: fill(random),
            fill: fill(random),
        },
        15..=16 => Step::Members { what: any(random), which: any(random), fill: fill(random) },
        12..=14 => Step::Scan { what: any(random), groups: random.pick(&[0, 2, 60, 60]) },
        0..=1 => Step::Export,
        2..=3 => Step::Kill { unmounted: if random.percent(40) { any(random) } else { 0 } },
        4..=5 => Step::Look {
            back: random.below(1000) as u16,
            manner: random.below(3) as u8,
            seed: fill(random),
        },
        6 => Step::Race { fill: fill(random), open: random.percent(50) },
        7 => Step::Read,
        _ => cut(random, theme),
    }
}

fn leaves(random: &mut Random) -> Step {
    let troubles = [
        Trouble::Reads,
        Trouble::Writes,
        Trouble::Hangs,
        Trouble::Gone,
        Trouble::Loses,
        Trouble::NoRoom,
        Trouble::Late,
    ];
    match random.below(12) {
        10..=11 => Step::Scan { what: any(random), groups: random.pick(&[1, 4, 60, 60]) },
        8 => rot_label(random),
        9 => dark(random),
        0..=3 => Step::Leaf { which: any(random), trouble: random.pick(&troubles) },
        4..=5 => Step::Well { clear: random.percent(60) },
        _ => Step::Rot { which: any(random), seed: fill(random), places: 1 + any(random) / 8 },
    }
}

fn evacuate(random: &mut Random) -> Step {
    Step::Evacuate {
        which: any(random),
        groups: random.pick(&[0, 1, 2, 5, 12]),
        end: random.below(6) as u8,
        fill: fill(random),
    }
}

/// A stream: most come whole, some are cut off; something is done meanwhile.
fn transfer(random: &mut Random) -> Step {
    let meanwhile = |random: &mut Random| match random.below(10) {
        0..=3 => file_step(random),
        4..=5 => Step::Group,
        6 => Step::Snapshot { set: any(random), name: any(random), recursive: random.percent(40) },
        7 => Step::Look {
            back: random.below(200) as u16,
            manner: random.below(3) as u8,
            seed: fill(random),
        },
        _ => order(random, Theme::Travel),
    };
    Step::Transfer {
        snapshot: any(random),
        to: any(random),
        since: random.percent(70),
        forms: any(random),
        cut: if random.percent(55) { 1000 } else { random.below(1000) as u16 },
        at: random.below(1000) as u16,
        steps: (0..random.below(4)).map(|_| meanwhile(random)).collect(),
    }
}

/// A filesystem is sent as it is, and once more when files have changed, most with attributes.
fn sent_again(random: &mut Random, steps: &mut Vec<Step>) {
    let (to, forms, first) = (any(random), any(random), any(random));
    for since in [false, true] {
        for _ in 0..1 + random.below(4) {
            let mut step = file_step(random);
            if let Step::Create { set, .. } | Step::Copy { set, .. } = step
                && random.percent(60)
            {
                let (file, name) = (any(random), any(random));
                step = Step::Xattr { set, file, name, len: 3_000, fill: fill(random) };
            }
            steps.push(step);
        }
        steps.push(Step::Snapshot { set: 0, name: any(random), recursive: random.percent(50) });
        let snapshot = if since { any(random) } else { first };
        let (cut, at) = (1000, 1000);
        steps.push(Step::Transfer { snapshot, to, since, forms, cut, at, steps: Vec::new() });
    }
}

fn resume(random: &mut Random) -> Step {
    let cut = if random.percent(60) { 1000 } else { random.below(1000) as u16 };
    Step::Resume { which: any(random), cut, end: random.below(5) as u8 }
}

fn rot_label(random: &mut Random) -> Step {
    Step::RotLabel { which: any(random), label: random.below(5) as u8, seed: fill(random) }
}

fn dark(random: &mut Random) -> Step {
    let troubles = [Trouble::Writes, Trouble::Hangs, Trouble::Gone, Trouble::NoRoom, Trouble::Late];
    Step::Dark { trouble: random.pick(&troubles), fill: fill(random), end: any(random) }
}

/// Two orders at a time, of which the first has a middle.
fn beside(random: &mut Random, theme: Theme) -> Step {
    let first = match random.below(3) {
        0 => Step::Rollback { set: set_of(random) },
        1 => Step::DestroySnapshots { set: any(random), name: any(random) },
        _ => Step::Destroy { set: any(random), recursive: random.percent(70) },
    };
    let mut second = order(random, theme);
    // What has a middle of its own cannot be in another's, and devices are not changed beside it.
    while matches!(second, Step::Rollback { .. } | Step::Destroy { .. }) {
        second = order(random, theme);
    }
    Step::Beside { first: Box::new(first), second: Box::new(second) }
}

/// An order that fails in its middle.
fn fails(random: &mut Random, theme: Theme) -> Step {
    let mut given = order(random, theme);
    // What is several changes, one after the other, is not taken back as one.
    while matches!(
        given,
        Step::AddLog | Step::AddDisk | Step::RemoveLog | Step::Checkpoint | Step::DiscardCheckpoint
    ) {
        given = order(random, theme);
    }
    Step::Fails { order: Box::new(given), at: 1 + random.below(30) as u8 }
}

/// Files changed while a group is written.
fn during(random: &mut Random, theme: Theme) -> Step {
    let order = match random.below(4) {
        0 => Step::Group,
        1 => Step::Snapshot { set: set_of(random), name: any(random), recursive: true },
        2 => Step::Clone { snapshot: any(random), name: any(random) },
        _ => Step::NewFilesystem {
            below: any(random),
            name: any(random),
            properties: properties(random, theme),
        },
    };
    let steps = (0..2 + random.below(4)).map(|_| match random.percent(60) {
        true => file_step(random),
        false => Step::Fsync { set: set_of(random), file: any(random) },
    });
    Step::During { order: Box::new(order), steps: steps.collect() }
}

fn step(random: &mut Random, theme: Theme, steps: &mut Vec<Step>) {
    let part = random.below(100);
    if theme == Theme::Travel && (62..66).contains(&part) {
        return sent_again(random, steps);
    }
    let special = match theme {
        _ if part > 98 => Some(rot_label(random)),
        Theme::Files => None,
        Theme::Logs if part < 5 => Some(during(random, theme)),
        Theme::Logs if part < 8 => Some(Step::Overtaken {
            set: set_of(random),
            file: any(random),
            fill: fill(random),
            writes: random.below(3) as u8,
        }),
        Theme::Logs => (part < 45).then(|| sync_step(random)),
        Theme::Full => (part < 60).then(|| full(random)),
        Theme::Limits if part < 25 => Some(full(random)),
        Theme::Limits => (part < 50).then(|| order(random, theme)),
        Theme::Orders if part < 10 => Some(beside(random, theme)),
        Theme::Orders if part < 14 => Some(during(random, theme)),
        Theme::Orders if part < 24 => Some(fails(random, theme)),
        Theme::Orders => (part < 60).then(|| order(random, theme)),
        Theme::Tops if part < 22 => Some(evacuate(random)),
        Theme::Tops if part < 26 => Some(leaves(random)),
        Theme::Tops if part < 34 => Some(cut(random, theme)),
        Theme::Tops => None,
        Theme::Travel if part < 22 => Some(transfer(random)),
        Theme::Travel if part < 32 => Some(resume(random)),
        Theme::Travel if part < 36 => Some(Step::Beside {
            first: Box::new(Step::Destroy { set: any(random), recursive: random.percent(70) }),
            second: Box::new(transfer(random)),
        }),
        Theme::Travel if part < 39 => Some(full(random)),
        Theme::Travel if part < 44 => Some(cut(random, theme)),
        Theme::Travel => (part < 62).then(|| order(random, theme)),
        Theme::Leaves => (part < 25).then(|| leaves(random)),
        Theme::Damage => (part < 12).then(|| Step::RotFile {
            set: set_of(random),
            file: any(random),
            level: random.below(2) as u8,
        }),
    };
    // A second cut, in what the first one began: opening and replaying.
    if matches!(steps.last(), Some(Step::Cut { .. } | Step::Kill { .. })) && random.percent(30) {
        let (back, manner, seed) =
            (300 + random.below(700) as u16, random.below(3) as u8, fill(random));
        steps.push(Step::Cut { back, manner, seed, unmounted: 0, stale: 0 });
    }
    let step = special.unwrap_or_else(|| match random.below(100) {
        0..=61 => file_step(random),
        62..=81 => sync_step(random),
        82..=89 => order(random, theme),
        90 => dark(random),
        _ => life(random, theme),
    });
    steps.push(step);
}
