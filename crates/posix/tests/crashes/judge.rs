//! Compares what is on a pool after a power cut with what was done before.
//!
//! Invariant: everything there is is looked at: every dataset, every name, every byte; what is there
//! equals one state of each sequence that may be seen.

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_engine::ErrorKind;
use cenote_engine::dataset::Dataset;
use cenote_engine::pool::Pool;
use cenote_engine::pool::group::LivePool;
use cenote_format::config::VdevKind;
use cenote_posix::Filesystem;
use cenote_posix::tree::{NodeId, ROOT, Tree};

use super::consistent;
use super::pool::{Disks, NAME, files_of};
use super::story::{Content, Listing, PoolState, Sequence, SetStory, Story};

/// Mode bits that say what a file is, and those of a directory.
const TYPE: u32 = 0o170_000;
const DIRECTORY: u32 = 0o040_000;

/// A cut to be judged.
pub struct Cut<'a> {
    /// What was done.
    pub story: &'a Story,
    /// The event that did not happen any more.
    pub order: u64,
    /// Words for this cut.
    pub place: &'a str,
}

impl Cut<'_> {
    /// Opens everything on `live`, which replays what the logs hold, compares, and writes a group.
    pub fn judge(&self, disks: &Disks, live: &Arc<LivePool>) {
        let place = self.place;
        let catalog = live.pool().catalog();
        let seen = self.pool_state(live.pool());
        let range = self.story.pool.at(self.order);
        let state = range.clone().map(|number| self.story.pool.state(number));
        let state = state.into_iter().find(|state| same_pool(state, &seen)).unwrap_or_else(|| {
            panic!("{place}: the pool is as in none of its states {range:?}: {}", words(&seen))
        });
        let there =
            |(name, _): &(&String, &SetStory)| *name == NAME || state.filesystems.contains(*name);
        for (name, set) in self.story.sets.iter().filter(there) {
            let Some(key) = &set.key else { continue };
            let directory = catalog.directory(name).unwrap();
            let loaded = live.pool().keys().load(&catalog, &directory, key);
            loaded.unwrap_or_else(|error| panic!("{place}: {name}: {error}"));
        }
        for (name, listing) in &state.snapshots {
            let snapshot = catalog.dataset_named(name).unwrap();
            self.frozen(live.pool(), &snapshot, listing);
        }
        if let Some(checkpoint) = &state.checkpoint {
            let then = disks.open_checkpoint(place);
            for (name, listing) in checkpoint.iter() {
                let dataset = then.catalog().dataset_named(name).unwrap();
                self.frozen(&then, &dataset, listing);
            }
        }
        let mut open = Vec::new();
        for (name, set) in self.story.sets.iter().filter(there) {
            let files = files_of(live, name, place);
            let unreplayed = live.unreplayed();
            assert!(unreplayed.is_empty(), "{place}: {name}: its log is kept: {unreplayed:?}");
            self.files(&files, name, set);
            open.push(files);
        }
        live.sync().unwrap_or_else(|error| panic!("{place}: {error}"));
        for files in open {
            consistent::check(files.head().objects());
            assert_eq!(files.writer().unwrap().queued().unwrap(), 0, "{place}: unnamed files stay");
        }
    }

    /// What a snapshot or a checkpoint has.
    fn frozen(&self, pool: &Pool, dataset: &Dataset, listing: &Listing) {
        let place = format!("{}: {}", self.place, dataset.name);
        let files = cenote_posix::dataset_files::open_in(pool, dataset)
            .unwrap_or_else(|error| panic!("{place}: {error}"));
        let found = list(&files);
        let (names, expected): (Vec<_>, Vec<_>) =
            (found.keys().collect(), listing.keys().collect());
        assert_eq!(names, expected, "{place}");
        for (path, (node, size)) in &found {
            let bytes = size.map(|size| read(&files, *node, size));
            assert!(bytes.as_ref() == listing[path].as_deref(), "{place}: {path} differs");
        }
    }

    fn pool_state(&self, pool: &Pool) -> PoolState {
        let mut seen = PoolState::default();
        let catalog = pool.catalog();
        let is_there = |name: &String| match catalog.dataset_named(name) {
            Ok(_) => true,
            Err(error) if error.kind() == ErrorKind::NotFound => false,
            Err(error) => panic!("{}: {name}: {error}", self.place),
        };
        for state in self.story.pool.states() {
            let mut snapshots = state.snapshots.clone();
            snapshots.retain(|name, _| is_there(name));
            seen.snapshots.extend(snapshots);
            seen.filesystems
                .extend(state.filesystems.iter().filter(|name| is_there(name)).cloned());
        }
        let config = pool.config();
        seen.comment = config.comment.clone();
        let tops = config.vdev_tree.iter().flat_map(|root| root.children());
        seen.tops = Some(tops.map(|top| top.kind).collect::<Vec<VdevKind>>());
        let directory = catalog.object_directory().unwrap();
        let checkpoint = directory.numbers_of("com.delphix:zpool_checkpoint").unwrap();
        seen.checkpoint = checkpoint.map(|_| Arc::default());
        seen
    }

    fn files(&self, files: &Filesystem, name: &str, set: &SetStory) {
        let place = format!("{}: {name}", self.place);
        let found = list(files);
        let range = set.names.at(self.order);
        let matches = |number: &usize| {
            let state = set.names.state(*number);
            state.len() == found.len()
                && state.iter().all(|(path, file)| {
                    found.get(path).is_some_and(|(node, _)| *node == set.files[*file].node)
                })
        };
        let Some(number) = range.clone().rev().find(matches) else {
            let names: Vec<_> = found.keys().collect();
            let least: Vec<_> = set.names.state(*range.start()).keys().collect();
            let most: Vec<_> = set.names.state(*range.end()).keys().collect();
            panic!("{place}: names {names:?} as in none of {range:?}: {least:?} to {most:?}");
        };
        for (path, file) in set.names.state(number) {
            let (node, size) = found[path];
            let place = format!("{place}/{path}");
            match (&set.files[*file].content, size) {
                (None, None) => {}
                (Some(content), Some(size)) => {
                    let bytes = read(files, node, size);
                    check_content(&bytes, content, content.at(self.order), &place);
                }
                (content, _) => panic!("{place}: a file? {}", content.is_some()),
            }
        }
    }
}

fn same_pool(state: &PoolState, seen: &PoolState) -> bool {
    state.snapshots.keys().eq(seen.snapshots.keys())
        && state.filesystems == seen.filesystems
        && state.comment == seen.comment
        && (state.tops.is_none() || state.tops == seen.tops)
        && state.checkpoint.is_some() == seen.checkpoint.is_some()
}

fn words(state: &PoolState) -> String {
    let snapshots: Vec<_> = state.snapshots.keys().collect();
    format!(
        "{snapshots:?} {:?} {:?} {:?} {}",
        state.filesystems,
        state.comment,
        state.tops,
        state.checkpoint.is_some()
    )
}

/// Every path below the root, with its node and, unless it is a directory, its length.
fn list(files: &Filesystem) -> BTreeMap<String, (NodeId, Option<u64>)> {
    let mut found = BTreeMap::new();
    let mut directories = vec![(String::new(), ROOT)];
    while let Some((path, node)) = directories.pop() {
        let mut entries = Vec::new();
        let each = &mut |entry: cenote_posix::tree::DirectoryEntry| {
            entries.push(String::from_utf8(entry.name).unwrap());
            true
        };
        files.read_directory(node, 0, each).unwrap();
        for name in entries.into_iter().filter(|name| name != "." && name != "..") {
            let attributes = files.lookup(node, name.as_bytes()).unwrap();
            let path = if path.is_empty() { name } else { format!("{path}/{name}") };
            let is_directory = attributes.mode & TYPE == DIRECTORY;
            if is_directory {
                directories.push((path.clone(), attributes.node));
            }
            found.insert(path, (attributes.node, (!is_directory).then_some(attributes.size)));
        }
    }
    found
}

fn read(files: &Filesystem, node: NodeId, size: u64) -> Vec<u8> {
    files.read(node, 0, size as usize).unwrap().concat()
}

fn check_content(
    bytes: &[u8],
    content: &Sequence<Content>,
    range: std::ops::RangeInclusive<usize>,
    place: &str,
) {
    let (least, most) = (*range.start(), *range.end());
    for number in range.rev() {
        let state = content.state(number);
        let begun = || number > least && is_begun(bytes, content.state(number - 1), state);
        if bytes == state.bytes.as_slice() || begun() {
            return;
        }
    }
    let (first, last) = (&content.state(least).bytes, &content.state(most).bytes);
    let differs = |other: &[u8]| bytes.iter().zip(other).position(|(one, other)| one != other);
    panic!(
        "{place}: {} bytes as in none of states {least} ({} bytes, differs at {:?}) to {most} ({} \
         bytes, differs at {:?}): {}",
        bytes.len(),
        first.len(),
        differs(first),
        last.len(),
        differs(last),
        ages(bytes, content, most)
    );
}

/// Of which states pieces of `bytes` are: the newest each, no newer than a little after `most`.
fn ages(bytes: &[u8], content: &Sequence<Content>, most: usize) -> String {
    const PIECE: usize = 512;
    let newest = (most + 3).min(content.last());
    let mut runs: Vec<(usize, Option<usize>)> = Vec::new();
    for (number, piece) in bytes.chunks(PIECE).enumerate() {
        let at = number * PIECE;
        let is_of =
            |state: &usize| content.state(*state).bytes.get(at..at + piece.len()) == Some(piece);
        let age = (0..=newest).rev().find(is_of);
        if runs.last().is_none_or(|(_, last)| *last != age) {
            runs.push((at, age));
        }
    }
    format!("from each byte on of state: {runs:?}")
}

/// Whether `bytes` are what was there with a beginning of what was being written.
fn is_begun(bytes: &[u8], before: &Content, after: &Content) -> bool {
    let Some((offset, length)) = after.written else { return false };
    let written = after.bytes.get(offset..offset + length).unwrap_or_default();
    let seen = bytes.get(offset..).unwrap_or_default();
    let same = seen.iter().zip(written).take_while(|(one, other)| one == other).count();
    let mut expected = before.bytes.to_vec();
    expected.resize(expected.len().max(offset + same), 0);
    expected[offset..offset + same].copy_from_slice(&written[..same]);
    bytes == expected.as_slice()
}
