//! Writes that are durable when they are answered (`sync=always`), of several threads at once, small
//! ones and such as are placed where they stay; the same with `fsync`.

use crate::pool::{Disks, NAME};
use crate::story::Story;
use crate::work::{File, Work, noise};

/// Writes of each thread.
const WRITES: u64 = 7;

/// Does it all; `always` as the property says.
pub fn run(disks: &Disks, always: bool) -> Story {
    let work = Work::new(disks, always);
    let files: Vec<File> = (0..3).map(|n| work.create(NAME, &format!("f{n}"))).collect();
    work.sync(&files[0]);
    for part in 0..2_u64 {
        std::thread::scope(|scope| {
            for file in &files {
                let work = &work;
                scope.spawn(move || writes(work, file, part, always));
            }
        });
        work.group();
    }
    work.rename(NAME, "f0", "f1", false);
    work.write(&files[0], 0, &noise(200_000, 77));
    work.sync(&files[0]);
    work.end()
}

fn writes(work: &Work<'_>, file: &File, part: u64, always: bool) {
    for number in 0..WRITES {
        let seed = part * 100 + number + file.number as u64 * 1000;
        let length = [4_096, 150_000, 700, 40_000, 300_000][seed as usize % 5];
        let offset = [0, 131_072, 60_000, 400_000][number as usize % 4];
        work.write(file, offset, &noise(length, seed));
        if !always {
            work.sync(file);
        }
        if number == 4 {
            work.truncate(file, 250_000);
        }
    }
}
