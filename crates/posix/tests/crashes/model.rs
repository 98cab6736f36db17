//! What must be there after a power cut, and what may.
//!
//! Invariant: a fact counts for cuts after the event that was the newest when the fact was noted:
//! what was begun may be seen, what was acknowledged must be.

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_engine::ErrorKind;
use cenote_engine::pool::live::LivePool;
use cenote_posix::Filesystem;
use cenote_posix::tree::{NodeId, ROOT, Tree};

use super::pool::NAME;

/// Longest chain of names of the file that is moved.
const MOVES: u64 = 1000;

/// Something that was begun, or that was acknowledged as durable.
#[derive(Clone, Debug)]
pub enum Fact {
    /// A stream may have this length.
    Grows(String, u64),
    /// It has at least this length.
    Has(String, u64),
    /// The name may be gone.
    Goes(String),
    /// It is gone.
    Gone(String),
    /// The block with one number may have this one.
    Counts(u64),
    /// It has at least this one.
    Counted(u64),
    /// The file may have its `n`th name.
    Moves(u64),
    /// It has at least that one.
    Moved(u64),
    /// The snapshot may be there, with a stream of this length.
    Snaps(String, u64),
    /// It is there.
    Snapped(String),
    /// It may be gone.
    Unsnaps(String),
    /// It is gone.
    Unsnapped(String),
    /// The filesystem may be there.
    Makes(String),
    /// It is there.
    Made(String),
    /// It may be gone.
    Destroys(String),
    /// It is gone.
    Destroyed(String),
}

/// All facts with the order of the newest event when they were noted.
#[derive(Default)]
pub struct Facts(pub Vec<(u64, Fact)>);

/// Presence of a thing: whether it may be and whether it may not be.
#[derive(Clone, Copy, Debug, Default)]
struct Presence {
    may: bool,
    must: bool,
}

/// What is to be expected at one moment.
#[derive(Debug, Default)]
pub struct Expected {
    streams: BTreeMap<String, (Presence, u64, u64)>,
    counter: (u64, u64),
    moved: (u64, u64),
    snapshots: BTreeMap<String, (Presence, u64)>,
    filesystems: BTreeMap<String, Presence>,
}

impl Facts {
    /// What is to be expected after a cut right before event `order`.
    pub fn at(&self, order: u64) -> Expected {
        let mut now = Expected::default();
        for (_, fact) in self.0.iter().filter(|(noted, _)| *noted < order) {
            now.learn(fact.clone());
        }
        now
    }
}

impl Expected {
    fn learn(&mut self, fact: Fact) {
        let (may, must) = (true, true);
        match fact {
            Fact::Grows(name, length) => {
                let stream = self.streams.entry(name).or_default();
                stream.0.may = true;
                stream.2 = stream.2.max(length);
            }
            Fact::Has(name, length) => {
                let stream = self.streams.entry(name).or_default();
                stream.0 = Presence { may, must };
                stream.1 = stream.1.max(length);
            }
            Fact::Goes(name) => self.streams.entry(name).or_default().0.must = false,
            Fact::Gone(name) => self.streams.entry(name).or_default().0 = Presence::default(),
            Fact::Counts(number) => self.counter.1 = number,
            Fact::Counted(number) => self.counter.0 = number,
            Fact::Moves(number) => self.moved.1 = number,
            Fact::Moved(number) => self.moved.0 = number,
            Fact::Snaps(name, length) => {
                self.snapshots.insert(name, (Presence { may, must: false }, length));
            }
            Fact::Snapped(name) => self.snapshots.entry(name).or_default().0.must = true,
            Fact::Unsnaps(name) => self.snapshots.entry(name).or_default().0.must = false,
            Fact::Unsnapped(name) => {
                self.snapshots.entry(name).or_default().0 = Presence::default();
            }
            Fact::Makes(name) => self.filesystems.entry(name).or_default().may = true,
            Fact::Made(name) => self.filesystems.entry(name).or_default().must = true,
            Fact::Destroys(name) => self.filesystems.entry(name).or_default().must = false,
            Fact::Destroyed(name) => {
                self.filesystems.insert(name, Presence::default());
            }
        }
    }

    /// Compares with what is there.
    pub fn check(&self, live: &Arc<LivePool>, files: &Filesystem, place: &str) {
        for (name, (presence, least, most)) in &self.streams {
            let found = files.lookup(ROOT, name.as_bytes()).ok();
            presence.check(found.is_some(), name, place);
            if let Some(found) = found {
                let range = *least..=*most;
                assert!(
                    range.contains(&found.size),
                    "{place}: {name}: {} in {range:?}",
                    found.size
                );
                same(files, found.node, name, found.size, place);
            }
        }
        self.check_counter(files, place);
        self.check_moved(files, place);
        let catalog = live.pool().catalog();
        let there = |name: &str| match catalog.dataset_named(name) {
            Ok(dataset) => Some(dataset),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => panic!("{place}: {name}: {error}"),
        };
        for (name, (presence, length)) in &self.snapshots {
            let found = there(&format!("{NAME}@{name}"));
            presence.check(found.is_some(), name, place);
            let Some(snapshot) = found else { continue };
            let files = cenote_posix::mount::open_in(live.pool(), &snapshot).unwrap();
            let stream = files.lookup(ROOT, b"s0").unwrap();
            assert_eq!(stream.size, *length, "{place}: {name}");
            same(&files, stream.node, "s0", *length, place);
        }
        for (name, presence) in &self.filesystems {
            presence.check(there(&format!("{NAME}/{name}")).is_some(), name, place);
        }
    }

    fn check_counter(&self, files: &Filesystem, place: &str) {
        let (least, most) = self.counter;
        let Ok(found) = files.lookup(ROOT, b"counter") else {
            assert_eq!(least, 0, "{place}: the counter is gone");
            return;
        };
        if found.size == 0 {
            assert_eq!(least, 0, "{place}: the counter is empty");
            return;
        }
        let block = read(files, found.node, found.size);
        assert_eq!(block.len(), 4096, "{place}");
        let number = u64::from_le_bytes(block[..8].try_into().unwrap());
        assert!((least..=most).contains(&number), "{place}: {number} in {least}..={most}");
        assert!(block == counter(number), "{place}: block {number} is torn");
    }

    fn check_moved(&self, files: &Filesystem, place: &str) {
        let (least, most) = self.moved;
        let found: Vec<u64> = (0..MOVES.min(most + 2))
            .filter(|number| files.lookup(ROOT, format!("m{number}").as_bytes()).is_ok())
            .collect();
        match found.as_slice() {
            [] => assert_eq!(least, 0, "{place}: the moved file is gone"),
            [one] => {
                assert!((least..=most).contains(one), "{place}: m{one} in {least}..={most}");
            }
            more => panic!("{place}: the moved file has names {more:?}"),
        }
    }
}

impl Presence {
    fn check(self, found: bool, name: &str, place: &str) {
        assert!(found || !self.must, "{place}: {name} is missing");
        assert!(!found || self.may, "{place}: {name} is there");
    }
}

fn read(files: &Filesystem, node: NodeId, length: u64) -> Vec<u8> {
    files.read(node, 0, length as usize).unwrap().concat()
}

fn same(files: &Filesystem, node: NodeId, name: &str, length: u64, place: &str) {
    assert!(read(files, node, length) == stream(name, 0, length), "{place}: {name} differs");
}

/// Bytes of a stream.
pub fn stream(name: &str, from: u64, to: u64) -> Vec<u8> {
    let seed = name.bytes().fold(7_u64, |sum, byte| sum * 31 + u64::from(byte));
    // Runs, so that some of it compresses.
    let byte = |at: u64| ((at / 5 + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8;
    (from..to).map(byte).collect()
}

/// The block that has this number.
pub fn counter(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(512)
}
