//! Snapshots and clones that come and go while files are written; a checkpoint taken and discarded.

use std::sync::Arc;

use crate::pool::{Disks, NAME};
use crate::story::Story;
use crate::work::{Work, noise, runs};

/// Does it all.
pub fn run(disks: &Disks) -> Story {
    let mut work = Work::new(disks, false);
    let one = work.create(NAME, "one");
    work.write(&one, 0, &noise(200_000, 1));
    let two = work.create(NAME, "two");
    work.write(&two, 0, &runs(9_000, 2));
    work.snapshot("tank@a");
    work.write(&one, 131_072, &noise(100_000, 3));
    work.snapshot("tank@b");
    work.clone_of("tank@b", "tank/copy");
    let copied = work.find("tank/copy", "one");
    work.write(&copied, 0, &noise(140_000, 4));
    work.sync(&copied);
    work.unlink("tank/copy", "two", false);
    work.write(&one, 0, &noise(3_000, 5));
    work.sync(&one);
    work.unsnapshot("tank@a");
    work.write(&copied, 5_000, &noise(150_000, 6));
    work.group();
    work.snapshot("tank/copy@c");
    work.write(&copied, 5_000, &noise(5_000, 7));
    work.sync(&copied);
    checkpoint(&mut work);
    work.unsnapshot("tank/copy@c");
    work.destroy("tank/copy");
    work.unsnapshot("tank@b");
    work.unlink(NAME, "two", false);
    work.write(&one, 70_000, &noise(300_000, 8));
    work.sync(&one);
    work.group();
    work.end()
}

fn checkpoint(work: &mut Work<'_>) {
    let one = work.find(NAME, "one");
    work.pool(
        |state, sets| {
            let listings = sets.iter().map(|(name, set)| (name.clone(), set.listing()));
            state.checkpoint = Some(Arc::new(listings.collect()));
        },
        |live| live.take_checkpoint(),
    );
    work.write(&one, 0, &noise(250_000, 20));
    work.sync(&one);
    let passing = work.create(NAME, "passing");
    work.write(&passing, 0, &noise(100_000, 21));
    work.group();
    work.unlink(NAME, "passing", false);
    work.snapshot("tank@d");
    work.write(&one, 100_000, &noise(50_000, 22));
    work.unsnapshot("tank@d");
    work.pool(|state, _| state.checkpoint = None, |live| live.discard_checkpoint());
    work.write(&one, 0, &noise(1_000, 23));
    work.sync(&one);
    work.group();
}
