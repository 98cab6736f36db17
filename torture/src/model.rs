//! What is known of a pool: the states of its files, names and datasets, each with the moment it was
//! begun at and the moment it was acknowledged as durable at.
//!
//! Invariant: a moment is the order of the newest event of any disk. What was begun before a cut may
//! be seen after it; what was acknowledged before must be, or what followed it. The names of one
//! filesystem change in one sequence, and so do the content and the extended attributes of each file.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;

use cenote_device::SimDevice;
use cenote_posix::tree::NodeId;

/// States that followed each other.
#[derive(Clone, Debug)]
pub struct Sequence<T> {
    states: Vec<(u64, T)>,
    durable: Vec<(u64, usize)>,
}

impl<T> Sequence<T> {
    /// Begins with a state that is there from the first.
    pub fn new(first: T) -> Self {
        Self { states: vec![(0, first)], durable: Vec::new() }
    }

    /// The next state is about to come.
    pub fn begin(&mut self, state: T) {
        self.states.push((SimDevice::newest_order(), state));
    }

    /// The last state begun did not come: what was to make it was refused.
    pub fn retract(&mut self) {
        if self.states.len() > 1 {
            self.states.pop();
        }
    }

    /// The last state begun.
    pub fn newest(&self) -> &T {
        &self.states[self.last()].1
    }

    /// The number of the last state begun.
    pub fn last(&self) -> usize {
        self.states.len() - 1
    }

    /// State `number`, or one after it, is durable from now on.
    pub fn acknowledge(&mut self, number: usize) {
        self.durable.push((SimDevice::newest_order(), number));
    }

    /// The states that may be seen after a cut right before event `order`.
    pub fn at(&self, order: u64) -> RangeInclusive<usize> {
        let known = |(noted, _): &&(u64, usize)| *noted < order;
        let least = self.durable.iter().filter(known).map(|(_, number)| *number).max();
        let most = self.states.partition_point(|(noted, _)| *noted < order);
        least.unwrap_or(0)..=most.saturating_sub(1)
    }

    /// State `number`.
    pub fn state(&self, number: usize) -> &T {
        &self.states[number].1
    }
}

/// What a file holds, and what the change to that was.
#[derive(Clone, Debug, Default)]
pub struct Content {
    /// All of it.
    pub bytes: Arc<Vec<u8>>,
    /// It came by writing these bytes (offset, length): a beginning of them alone may be seen, for a
    /// large write is several records of the log.
    pub written: Option<(usize, usize)>,
}

/// Extended attributes.
pub type Xattrs = BTreeMap<String, Vec<u8>>;

/// A file or directory.
#[derive(Clone, Debug)]
pub struct FileStory {
    /// Its node; 0 while it is being made.
    pub node: NodeId,
    /// What it holds; `None` for a directory.
    pub content: Option<Sequence<Content>>,
    /// Its extended attributes.
    pub xattrs: Sequence<Xattrs>,
}

/// Paths, and the numbers of the files they name.
pub type Names = BTreeMap<String, usize>;

/// A file in a frozen filesystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its node.
    pub node: NodeId,
    /// What it holds; `None` for a directory.
    pub content: Option<Arc<Vec<u8>>>,
    /// Its extended attributes.
    pub xattrs: Xattrs,
}

/// What is in a filesystem, by path.
pub type Listing = BTreeMap<String, Entry>;

/// A filesystem.
#[derive(Clone, Debug)]
pub struct SetStory {
    /// Its names.
    pub names: Sequence<Names>,
    /// All files it ever had.
    pub files: Vec<FileStory>,
    /// What is done is durable when it is answered (`sync=always`).
    pub prompt: bool,
    /// `fsync` promises nothing (`sync=disabled`).
    pub careless: bool,
}

impl SetStory {
    /// One with this in it.
    pub fn of(listing: &Listing, prompt: bool, careless: bool) -> Self {
        let mut files: Vec<FileStory> = Vec::new();
        let mut names = Names::new();
        for (path, entry) in listing {
            let known = files.iter().position(|file| file.node == entry.node);
            let number = known.unwrap_or_else(|| {
                let content = entry.content.clone();
                let content = content.map(|bytes| Sequence::new(Content { bytes, written: None }));
                files.push(FileStory {
                    node: entry.node,
                    content,
                    xattrs: Sequence::new(entry.xattrs.clone()),
                });
                files.len() - 1
            });
            names.insert(path.clone(), number);
        }
        Self { names: Sequence::new(names), files, prompt, careless }
    }

    /// What is in it now.
    pub fn listing(&self) -> Listing {
        let entry = |file: &usize| {
            let file = &self.files[*file];
            Entry {
                node: file.node,
                content: file.content.as_ref().map(|content| content.newest().bytes.clone()),
                xattrs: file.xattrs.newest().clone(),
            }
        };
        self.names.newest().iter().map(|(path, file)| (path.clone(), entry(file))).collect()
    }
}

/// What was received in part, and can go on.
#[derive(Clone, Debug, PartialEq)]
pub struct Partial {
    /// What is in the snapshot that is received.
    pub listing: Arc<Listing>,
    /// What that is called, after the `@`.
    pub snapshot: String,
    /// The snapshot that a new filesystem is a clone of.
    pub origin: Option<String>,
    /// The guid of the snapshot that the stream goes on from; 0: none.
    pub from: u64,
    /// Its blocks come as they lie on the disks.
    pub raw: bool,
    /// It becomes a new filesystem.
    pub is_new: bool,
    /// The guid of the snapshot that it goes behind: with `-F` newer ones give way to it.
    pub behind: u64,
}

/// What a pool is made of besides its files.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PoolState {
    /// Filesystems by full name, and the number of what is in them.
    pub filesystems: BTreeMap<String, u64>,
    /// Snapshots by full name, and what is in them.
    pub snapshots: BTreeMap<String, Arc<Listing>>,
    /// Snapshots that are held.
    pub holds: BTreeMap<String, u32>,
    /// Clones by full name, and the snapshot each was made of.
    pub origins: BTreeMap<String, String>,
    /// What was received in part, by the full name of the filesystem it is for.
    pub partials: BTreeMap<String, Partial>,
    /// Properties by full name and property.
    pub properties: BTreeMap<(String, String), u64>,
    /// The property.
    pub comment: Option<String>,
    /// The kinds of its top-level vdevs.
    pub tops: Vec<String>,
    /// It has a checkpoint.
    pub checkpoint: bool,
}

/// Everything.
#[derive(Clone, Debug)]
pub struct Model {
    /// The pool.
    pub pool: Sequence<PoolState>,
    /// What is or was in its filesystems, by number.
    pub sets: BTreeMap<u64, SetStory>,
    /// Files of which blocks were damaged in all copies: reading and writing them may fail.
    pub damaged: BTreeSet<NodeId>,
    /// There were files that may only be appended to.
    pub appends: bool,
}

/// How far everything had come at one moment: what is durable when what was then begun is.
#[derive(Clone, Debug)]
pub struct Mark {
    pool: usize,
    sets: BTreeMap<u64, (usize, Vec<(usize, usize)>)>,
}

impl Model {
    /// The number for another filesystem's content.
    pub fn next_set(&self) -> u64 {
        self.sets.keys().next_back().map_or(0, |last| last + 1)
    }

    /// How far everything has come.
    pub fn mark(&self) -> Mark {
        let far = |file: &FileStory| {
            (file.content.as_ref().map_or(0, Sequence::last), file.xattrs.last())
        };
        let sets = self.sets.iter().map(|(number, set)| {
            (*number, (set.names.last(), set.files.iter().map(far).collect()))
        });
        Mark { pool: self.pool.last(), sets: sets.collect() }
    }

    /// Everything up to `mark` is on the disks.
    pub fn acknowledge(&mut self, mark: &Mark) {
        self.pool.acknowledge(mark.pool);
        for number in mark.sets.keys() {
            self.all_committed(*number, mark);
        }
    }

    /// All that filesystem `set` was told up to `mark` survives.
    pub fn all_committed(&mut self, set: u64, mark: &Mark) {
        let Some((names, files)) = mark.sets.get(&set) else { return };
        let Some(set) = self.sets.get_mut(&set) else { return };
        set.names.acknowledge(*names);
        for (file, (content, xattrs)) in set.files.iter_mut().zip(files) {
            file.content.iter_mut().for_each(|sequence| sequence.acknowledge(*content));
            file.xattrs.acknowledge(*xattrs);
        }
    }

    /// A commit of one file's records in filesystem `set` that was begun at `mark` was answered.
    pub fn committed(&mut self, set: u64, file: usize, mark: &Mark) {
        let Some((names, files)) = mark.sets.get(&set) else { return };
        let Some(set) = self.sets.get_mut(&set) else { return };
        set.names.acknowledge(*names);
        if let (Some(file), Some((content, xattrs))) = (set.files.get_mut(file), files.get(file)) {
            file.content.iter_mut().for_each(|sequence| sequence.acknowledge(*content));
            file.xattrs.acknowledge(*xattrs);
        }
    }
}
