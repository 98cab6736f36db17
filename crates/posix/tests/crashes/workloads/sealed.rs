//! An encrypted filesystem: its log, its blocks, its snapshots.

use crate::pool::Disks;
use crate::story::Story;
use crate::work::{Work, noise, runs};

/// Does it all.
pub fn run(disks: &Disks) -> Story {
    let mut work = Work::new(disks, false);
    let name = "tank/sealed";
    work.filesystem(name, Some([7; 32]));
    let one = work.create(name, "one");
    for round in 0..5_u64 {
        work.write(&one, 50_000 * round as usize, &noise(60_000, round));
        work.sync(&one);
        let other = work.create(name, &format!("o{round}"));
        work.write(&other, 0, &runs(30_000, round));
        work.rename(name, &format!("o{round}"), "other", false);
        if round % 2 == 0 {
            work.sync(&other);
        }
        match round {
            1 => work.snapshot("tank/sealed@a"),
            2 => work.group(),
            3 => work.unsnapshot("tank/sealed@a"),
            _ => {}
        }
        work.truncate(&one, 45_000 * (round as usize + 1));
        work.sync(&one);
    }
    work.filesystem("tank/next", Some([9; 32]));
    let next = work.create("tank/next", "file");
    work.write(&next, 0, &noise(10_000, 5));
    work.sync(&next);
    work.unlink(name, "one", false);
    work.sync(&next);
    work.destroy("tank/next");
    work.end()
}
