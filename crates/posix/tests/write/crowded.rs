//! A directory of very many entries, over a pool: made, listed from any place, thinned out, and read
//! again from the disks.
//!
//! Invariant: a listing gives every name that is there all the time exactly once, wherever it is
//! interrupted, and from the cursor behind an entry on exactly what came after it.

use std::collections::{HashMap, HashSet};
use std::time::Instant;

use cenote_posix::tree::{DirectoryEntry, NodeId, ROOT, Tree};

use super::pool::{Disks, NAME};
use super::rig::{SUPERUSER, new_node};

/// Entries, unless the variable `DIRECTORY_ENTRIES` says otherwise.
const ENTRIES: usize = 30_000;
/// Entries between two changes of the pool's transaction group.
const STEP: usize = 50_000;
/// Entries of a page.
const PAGE: usize = 1_000;

fn name(number: usize) -> String {
    format!("entry {number} of a directory that is crowded")
}

/// The entries after `cursor`, at most `most`.
fn page(tree: &dyn Tree, node: NodeId, cursor: u64, most: usize) -> Vec<DirectoryEntry> {
    let mut found = Vec::new();
    tree.read_directory(node, cursor, &mut |entry| {
        if found.len() == most {
            return false;
        }
        found.push(entry);
        true
    })
    .unwrap();
    found
}

/// All entries, page by page; `between` is done after each page.
fn list(tree: &dyn Tree, node: NodeId, mut between: impl FnMut(usize)) -> Vec<DirectoryEntry> {
    let mut all: Vec<DirectoryEntry> = Vec::new();
    let mut number = 0;
    loop {
        let cursor = all.last().map_or(0, |entry| entry.next);
        let found = page(tree, node, cursor, PAGE);
        if found.is_empty() {
            return all;
        }
        all.extend(found);
        between(number);
        number += 1;
    }
}

/// Each name once; "." and ".." come first and are left out.
fn names(entries: &[DirectoryEntry]) -> HashSet<Vec<u8>> {
    assert!(entries[0].name == b"." && entries[1].name == b"..");
    let names: HashSet<Vec<u8>> = entries[2..].iter().map(|entry| entry.name.clone()).collect();
    assert_eq!(names.len() + 2, entries.len(), "a name was listed twice");
    names
}

#[test]
fn directories_of_very_many_entries() {
    let count = std::env::var("DIRECTORY_ENTRIES").ok().and_then(|text| text.parse().ok());
    let count = count.unwrap_or(ENTRIES);
    let disks = Disks::sized("disk", (96 << 20) + count * 1024);
    let live = disks.create_unrecorded();
    let files = disks.files(&live, "new");
    let tree: &dyn Tree = files.as_ref();
    let start = Instant::now();
    let directory = tree.create(SUPERUSER, ROOT, b"many", new_node(0o040_755)).unwrap().node;
    let file = tree.create(SUPERUSER, ROOT, b"file", new_node(0o100_644)).unwrap().node;
    for number in 0..count {
        tree.link(SUPERUSER, file, directory, name(number).as_bytes()).unwrap();
        if (number + 1).is_multiple_of(STEP) {
            live.sync().unwrap();
        }
    }
    live.sync().unwrap();
    assert_eq!(tree.attributes(directory).unwrap().size, count as u64 + 2);
    eprintln!("{count} entries made after {:?}", start.elapsed());

    let entries = list(tree, directory, |_| {});
    let all = names(&entries);
    assert_eq!(all.len(), count);
    assert!((0..count).all(|number| all.contains(name(number).as_bytes())));
    eprintln!("listed after {:?}", start.elapsed());
    // From any cursor on comes what came after it the first time.
    let places: HashMap<u64, usize> =
        entries.iter().enumerate().map(|(place, entry)| (entry.next, place)).collect();
    assert_eq!(places.len(), entries.len(), "two entries have one cursor");
    for place in (0..entries.len() - 1).step_by(entries.len() / 200 + 1) {
        let found = page(tree, directory, entries[place].next, 50);
        let after = entries[place + 1..].iter().take(50);
        assert!(found.iter().map(|entry| &entry.name).eq(after.map(|entry| &entry.name)));
    }
    // Entries go and come while it is listed: the others are listed once each.
    let mut gone = 0;
    let entries = list(tree, directory, |_| {
        for _ in 0..300 {
            if gone < count {
                tree.unlink(SUPERUSER, directory, name(gone).as_bytes()).unwrap();
                let new = format!("new {gone}");
                tree.link(SUPERUSER, file, directory, new.as_bytes()).unwrap();
                gone += 3;
            }
        }
    });
    let seen = names(&entries);
    let stays = |number: &usize| !number.is_multiple_of(3);
    assert!((0..count).filter(stays).all(|number| seen.contains(name(number).as_bytes())));
    eprintln!("listed during changes after {:?}", start.elapsed());
    let went = gone.div_ceil(3).min(count.div_ceil(3));
    drop(files);
    live.export().unwrap();
    drop(live);

    // The same from the disks.
    let pool = disks.open_to_look("exported");
    let dataset = pool.catalog().dataset_named(NAME).unwrap();
    let tree = cenote_posix::dataset_files::open_in(&pool, &dataset).unwrap();
    let all = names(&list(&tree, directory, |_| {}));
    assert_eq!(all.len(), count);
    assert_eq!(all.iter().filter(|name| name.starts_with(b"new ")).count(), went);
    for number in (1..count).step_by(count / 500 + 1) {
        let found = tree.lookup(directory, name(number).as_bytes());
        assert_eq!(found.is_ok(), !number.is_multiple_of(3) || number >= gone, "{number}");
    }
    eprintln!("read from the disks after {:?}", start.elapsed());
}
