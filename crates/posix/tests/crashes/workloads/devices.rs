//! The pool itself: a log and a disk added, the log taken away, properties changed, while files are
//! written with `fsync`.

use std::path::Path;

use cenote_engine::dataset::change::PropertyInput;
use cenote_engine::pool::change::Additions;
use cenote_engine::vdev::AllocationClass;
use cenote_format::config::{TopLevel, VdevConfig, VdevKind};

use crate::pool::{Disks, NAME, leaf};
use crate::story::Story;
use crate::work::{Work, noise};

/// Blank disks that are needed: one to become a log, one to hold data.
pub const BLANK: [&str; 2] = ["x-log", "y-data"];

fn add(work: &Work<'_>, name: &str, class: AllocationClass) {
    let is_log = class == AllocationClass::Log;
    let facts = TopLevel { ashift: 12, is_log, ..TopLevel::default() };
    let top = VdevConfig { top: Some(facts), ..leaf(Path::new(&format!("/sim/{name}"))) };
    let plan = Additions { tops: vec![(top, class)], ..Additions::default() };
    let opener = work.disks.opener();
    work.pool(
        |state, _| state.tops.iter_mut().for_each(|tops| tops.push(VdevKind::File)),
        |live| live.add_vdevs(plan, opener),
    );
}

fn comment(work: &Work<'_>, text: &str) {
    let input = PropertyInput::text("comment", text);
    work.pool(
        |state, _| state.comment = Some(text.to_owned()),
        |live| live.set_pool_property(input),
    );
}

/// Does it all, on a pool of one top-level vdev of `kind`.
pub fn run(disks: &Disks, kind: VdevKind) -> Story {
    let work = Work::new(disks, false);
    work.story.lock().pool.amend(|state| state.tops = Some(vec![kind]));
    let one = work.create(NAME, "one");
    let mut round = 0;
    let mut writes = |count: u64| {
        for _ in 0..count {
            round += 1;
            let length = [900, 50_000, 4_096, 150_000][round as usize % 4];
            work.write(&one, 30_000 * (round as usize % 5), &noise(length, round));
            work.sync(&one);
        }
    };
    writes(2);
    comment(&work, "first");
    add(&work, BLANK[0], AllocationClass::Log);
    writes(4);
    work.group();
    writes(2);
    add(&work, BLANK[1], AllocationClass::Normal);
    writes(3);
    work.group();
    writes(2);
    let log = {
        let config = work.live.pool().config();
        config.vdev_tree.as_ref().unwrap().children()[1].guid
    };
    work.pool(
        |state, _| state.tops.iter_mut().for_each(|tops| tops[1] = VdevKind::Hole),
        |live| live.remove_vdev(log),
    );
    writes(3);
    comment(&work, "second");
    writes(1);
    work.end()
}
