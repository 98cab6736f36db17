//! Blocks of files: copied within the pool (shared where the pool can), written twice alike
//! (deduplicated where it is on), overwritten, cut off, punched, kept by a snapshot and freed.

use crate::pool::{Disks, NAME};
use crate::story::Story;
use crate::work::{Work, noise};

/// Bytes of a record; the property says so.
pub const RECORD: usize = 16 << 10;

/// Does it all.
pub fn run(disks: &Disks) -> Story {
    let work = Work::new(disks, false);
    let one = work.create(NAME, "one");
    work.write(&one, 0, &noise(6 * RECORD + 500, 1));
    work.group();
    let two = work.create(NAME, "two");
    work.copy((&one, 0), (&two, 0), 4 * RECORD);
    work.sync(&two);
    // Alike again, in another file, half of it durable before the rest.
    let three = work.create(NAME, "three");
    work.write(&three, 0, &noise(3 * RECORD, 1));
    work.sync(&three);
    work.append(&three, &noise(6 * RECORD, 1)[3 * RECORD..5 * RECORD]);
    work.group();
    // What is shared is written anew here and there.
    work.write(&one, RECORD, &noise(RECORD, 2));
    work.sync(&one);
    work.write(&two, 2 * RECORD + 100, &noise(300, 3));
    work.copy((&three, RECORD), (&one, 4 * RECORD), 2 * RECORD);
    work.sync(&one);
    work.snapshot("tank@kept");
    work.punch(&one, 100, 2 * RECORD);
    work.sync(&one);
    work.truncate(&two, RECORD + 77);
    work.sync(&two);
    work.truncate(&two, 5 * RECORD);
    work.append(&two, &noise(900, 4));
    work.sync(&two);
    work.group();
    work.unlink(NAME, "three", false);
    work.copy((&one, 4 * RECORD), (&two, 0), RECORD);
    work.sync(&two);
    work.punch(&two, 0, 8 * RECORD);
    work.group();
    work.write(&two, 0, &noise(2 * RECORD, 1));
    work.truncate(&one, 0);
    work.sync(&one);
    work.unsnapshot("tank@kept");
    work.unlink(NAME, "one", false);
    work.sync(&two);
    work.group();
    work.write(&two, 3 * RECORD, &noise(RECORD, 1));
    work.sync(&two);
    work.end()
}
