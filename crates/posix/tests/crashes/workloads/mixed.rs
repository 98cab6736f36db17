//! Appending, overwriting, moving and removing files with and without `fsync`, snapshots,
//! filesystems, and groups in between.

use crate::pool::{Disks, NAME};
use crate::story::Story;
use crate::work::{File, Work, runs};

/// Rounds of everything.
const ROUNDS: usize = 20;

/// The file at `path`, made if there is none.
fn file(work: &Work<'_>, path: &str) -> File {
    let is_there = work.story.lock().sets[NAME].names.newest().contains_key(path);
    match is_there {
        true => work.find(NAME, path),
        false => work.create(NAME, path),
    }
}

/// Does it all.
pub fn run(disks: &Disks) -> Story {
    let mut work = Work::new(disks, false);
    for round in 0..ROUNDS {
        let stream = file(&work, &format!("s{}", round % 3));
        let length = [700, 5_000, 40_000, 300_000][round % 4];
        work.append(&stream, &runs(length, round as u64));
        if round % 3 != 1 {
            work.sync(&stream);
        }
        let counter = file(&work, "counter");
        work.write(&counter, 0, &(round as u64 + 1).to_le_bytes().repeat(512));
        if round.is_multiple_of(2) {
            work.sync(&counter);
        }
        passing(&work, round);
        match round {
            0 => drop(work.create(NAME, "m0")),
            _ => work.rename(NAME, &format!("m{}", round - 1), &format!("m{round}"), false),
        }
        match round % 4 {
            1 => work.snapshot(&format!("{NAME}@n{round}")),
            3 => work.unsnapshot(&format!("{NAME}@n{}", round - 2)),
            _ => {}
        }
        match round % 6 {
            2 => work.filesystem(&format!("{NAME}/x{round}"), None),
            5 => work.destroy(&format!("{NAME}/x{}", round - 3)),
            _ => {}
        }
        if round % 3 == 2 {
            work.group();
        }
    }
    work.end()
}

/// A file that is made, and removed two rounds later.
fn passing(work: &Work<'_>, round: usize) {
    let file = work.create(NAME, &format!("t{round}"));
    work.append(&file, &runs(9_000, round as u64));
    if round.is_multiple_of(4) {
        work.sync(&file);
    }
    if let Some(old) = round.checked_sub(2) {
        work.unlink(NAME, &format!("t{old}"), false);
    }
}
