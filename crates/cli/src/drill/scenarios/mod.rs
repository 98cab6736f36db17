//! The scenarios.
//!
//! Invariant: each makes its pool `test`, and says what is to be learned from it.

mod growing;
mod lying;
mod mirrors;
mod noise;
mod raidz;

use super::stage::Scenario;

/// Bytes of a disk.
const SIZE: u64 = 128 << 20;

/// All of them.
pub const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "mirror",
        title: "A mirror loses a disk, which is replaced",
        disks: 3,
        size: SIZE,
        play: mirrors::replaced,
    },
    Scenario {
        name: "zeroed",
        title: "Somebody writes zeros over half of a mirror",
        disks: 2,
        size: SIZE,
        play: mirrors::zeroed,
    },
    Scenario {
        name: "spare",
        title: "A hot spare steps in, and goes back",
        disks: 3,
        size: SIZE,
        play: mirrors::spare,
    },
    Scenario {
        name: "copies",
        title: "copies=2 against 10 %, 1 % and 0.1 % of noise",
        disks: 3,
        size: SIZE,
        play: noise::copies,
    },
    Scenario {
        name: "raidz",
        title: "A RAID-Z loses one disk too many",
        disks: 4,
        size: SIZE,
        play: raidz::one_too_many,
    },
    Scenario {
        name: "grow",
        title: "A pool grows, disk by disk",
        disks: 2,
        size: SIZE,
        play: growing::grow,
    },
    Scenario {
        name: "scrub-of-death",
        title: "The scrub of death that is not",
        disks: 2,
        size: SIZE,
        play: lying::scrub_of_death,
    },
    Scenario {
        name: "torn",
        title: "A disk that tears and twists what it writes",
        disks: 2,
        size: SIZE,
        play: lying::torn,
    },
    Scenario {
        name: "power-cut",
        title: "The power fails",
        disks: 2,
        size: SIZE,
        play: lying::power,
    },
];
