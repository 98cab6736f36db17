//! A RAID-Z vdev is spread over one disk more, while files are written with `fsync` and freed.

use std::path::Path;

use cenote_engine::pool::change::Newcomer;
use cenote_format::config::VdevKind;

use crate::pool::{Disks, NAME, leaf};
use crate::story::Story;
use crate::work::{Work, noise};

/// The blank disk that is attached.
pub const BLANK: &str = "x-more";

/// Does it all, on a pool of one RAID-Z.
pub fn run(disks: &Disks) -> Story {
    let work = Work::new(disks, false);
    work.story.lock().pool.amend(|state| state.tops = Some(vec![VdevKind::Raidz]));
    let (one, two) = (work.create(NAME, "one"), work.create(NAME, "two"));
    let mut round = 0;
    let mut writes = |count: u64| {
        for _ in 0..count {
            round += 1;
            let length = [900, 50_000, 4_096, 150_000][round as usize % 4];
            let file = if round % 3 == 0 { &two } else { &one };
            work.write(file, 30_000 * (round as usize % 5), &noise(length, round));
            work.sync(file);
        }
    };
    writes(6);
    work.group();
    let beside = work.live.vdevs().topology().tops()[0].guid;
    let leaf = leaf(Path::new(&format!("/sim/{BLANK}")));
    let newcomer = Newcomer { beside, leaf, replaces: false, goes_back: false, sequential: false };
    work.pool(|_, _| (), |live| live.take_in(newcomer, disks.opener()));
    while work.live.vdevs().expanding().is_some() {
        writes(1);
    }
    writes(2);
    work.group();
    work.truncate(&one, 0);
    // What is as wide as the vdev now.
    (0..4).for_each(|_| work.group());
    writes(4);
    work.group();
    work.end()
}
