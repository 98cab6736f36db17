//! Names: directories, moves between them and over what is there, exchanges, second names, files
//! that are open without a name, and files made without one. `fsync` of files and of directories.

use crate::pool::{Disks, NAME};
use crate::story::Story;
use crate::work::{Work, runs};

/// Does it all.
pub fn run(disks: &Disks) -> Story {
    let work = Work::new(disks, false);
    let left = work.directory(NAME, "left");
    let right = work.directory(NAME, "right");
    work.sync(&left);
    for round in 0..4_u64 {
        let draft = work.create(NAME, "left/draft");
        work.write(&draft, 0, &runs(3_000 + 20_000 * round as usize, round));
        // As editors save: written, made durable, moved over the old.
        work.sync(&draft);
        work.rename(NAME, "left/draft", "left/kept", false);
        work.sync(&left);
        let fresh = format!("right/n{round}");
        let file = work.create(NAME, &fresh);
        work.write(&file, 0, &runs(600, round + 9));
        work.link(&file, &format!("left/again{round}"));
        work.sync(&right);
        // Open, without a name, and written to still.
        work.unlink(NAME, &fresh, true);
        work.unlink(NAME, &format!("left/again{round}"), true);
        work.write(&file, 600, &runs(5_000, round + 3));
        work.sync(&file);
        if round % 2 == 1 {
            work.close(&file);
        }
        let unnamed = work.unnamed(NAME);
        work.write(&unnamed, 0, &runs(40_000, round + 5));
        if round == 1 {
            work.sync(&unnamed);
        }
        if round != 2 {
            work.link(&unnamed, &format!("right/u{round}"));
            work.sync(&unnamed);
            work.append(&unnamed, &runs(100, round));
            work.sync(&unnamed);
        }
        let inner = work.directory(NAME, &format!("left/inner{round}"));
        let leaf = work.create(NAME, &format!("left/inner{round}/leaf"));
        work.write(&leaf, 0, &runs(2_000, round));
        work.rename(NAME, &format!("left/inner{round}"), &format!("right/moved{round}"), false);
        if round == 2 {
            work.group();
        }
        work.sync(&inner);
        work.rename(NAME, &format!("right/moved{round}/leaf"), "left/kept", true);
        work.sync(&leaf);
        work.unlink(NAME, &format!("right/moved{round}/leaf"), false);
        work.remove_directory(NAME, &format!("right/moved{round}"));
        if round % 2 == 0 {
            work.sync(&right);
        }
    }
    work.end()
}
