//! What was done to a pool: the states of its files, names and datasets, each with the moment it was
//! begun at and the moment it was acknowledged as durable at.
//!
//! Invariant: a moment is the order of the newest event of any disk. What was begun before a cut may
//! be seen after it; what was acknowledged before must be, or what followed it. The names of one
//! filesystem change in one sequence, and so does the content of each file.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;

use cenote_device::SimDevice;
use cenote_format::config::VdevKind;
use cenote_posix::tree::NodeId;

/// States that followed each other.
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

    /// Says more of the last state.
    pub fn amend(&mut self, change: impl FnOnce(&mut T)) {
        if let Some((_, state)) = self.states.last_mut() {
            change(state);
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

    /// All states.
    pub fn states(&self) -> impl Iterator<Item = &T> {
        self.states.iter().map(|(_, state)| state)
    }
}

/// What a file holds, and what the change to that was.
#[derive(Clone, Default)]
pub struct Content {
    /// All of it.
    pub bytes: Arc<Vec<u8>>,
    /// It came by writing these bytes: a beginning of them alone may be seen, for a large write is
    /// several records of the log.
    pub written: Option<(usize, usize)>,
}

/// A file or directory.
pub struct FileStory {
    /// Its node; 0 while it is being made.
    pub node: NodeId,
    /// What it holds; `None` for a directory.
    pub content: Option<Sequence<Content>>,
}

/// Paths, and the numbers of the files they name.
pub type Names = BTreeMap<String, usize>;

/// What is in a filesystem: content by path, `None` for directories.
pub type Listing = BTreeMap<String, Option<Arc<Vec<u8>>>>;

/// A filesystem.
pub struct SetStory {
    /// Its names.
    pub names: Sequence<Names>,
    /// All files it ever had.
    pub files: Vec<FileStory>,
    /// What is done is durable when it is answered (`sync=always`).
    pub prompt: bool,
    /// Its user key, if it is encrypted.
    pub key: Option<[u8; 32]>,
}

impl SetStory {
    /// An empty one.
    pub fn new(prompt: bool, key: Option<[u8; 32]>) -> Self {
        Self { names: Sequence::new(Names::new()), files: Vec::new(), prompt, key }
    }

    /// What is in it now.
    pub fn listing(&self) -> Listing {
        let content = |file: &usize| {
            self.files[*file].content.as_ref().map(|content| content.newest().bytes.clone())
        };
        self.names.newest().iter().map(|(path, file)| (path.clone(), content(file))).collect()
    }
}

/// What a pool is made of besides its files.
#[derive(Clone, Default)]
pub struct PoolState {
    /// Snapshots by full name, and what is in them.
    pub snapshots: BTreeMap<String, Arc<Listing>>,
    /// Filesystems and clones besides the root, by full name.
    pub filesystems: BTreeSet<String>,
    /// The property.
    pub comment: Option<String>,
    /// Its top-level vdevs, if they change.
    pub tops: Option<Vec<VdevKind>>,
    /// What was in its filesystems when its checkpoint was taken.
    pub checkpoint: Option<Arc<BTreeMap<String, Listing>>>,
}

/// Everything.
pub struct Story {
    /// The pool.
    pub pool: Sequence<PoolState>,
    /// Its filesystems, by full name.
    pub sets: BTreeMap<String, SetStory>,
}

/// How far everything had come at one moment: what is durable when what was then begun is.
pub struct Mark {
    pool: usize,
    sets: BTreeMap<String, (usize, Vec<usize>)>,
}

impl Story {
    /// A pool with nothing but its root filesystem `name`.
    pub fn new(name: &str, prompt: bool) -> Self {
        let sets = BTreeMap::from([(name.to_owned(), SetStory::new(prompt, None))]);
        Self { pool: Sequence::new(PoolState::default()), sets }
    }

    /// How far everything has come.
    pub fn mark(&self) -> Mark {
        let content = |file: &FileStory| file.content.as_ref().map_or(0, Sequence::last);
        let sets = self.sets.iter().map(|(name, set)| {
            (name.clone(), (set.names.last(), set.files.iter().map(content).collect()))
        });
        Mark { pool: self.pool.last(), sets: sets.collect() }
    }

    /// Everything up to `mark` is on the disks.
    pub fn acknowledge(&mut self, mark: &Mark) {
        self.pool.acknowledge(mark.pool);
        for (name, (names, contents)) in &mark.sets {
            let Some(set) = self.sets.get_mut(name) else { continue };
            set.names.acknowledge(*names);
            for (file, number) in set.files.iter_mut().zip(contents) {
                file.content.iter_mut().for_each(|content| content.acknowledge(*number));
            }
        }
    }

    /// A commit of one file's records (of no file's: `None`) in filesystem `set` that was begun at
    /// `mark` was answered.
    pub fn committed(&mut self, set: &str, file: Option<usize>, mark: &Mark) {
        let Some((names, contents)) = mark.sets.get(set) else { return };
        let Some(set) = self.sets.get_mut(set) else { return };
        set.names.acknowledge(*names);
        let Some(file) = file else { return };
        if let (Some(content), Some(number)) = (&mut set.files[file].content, contents.get(file)) {
            content.acknowledge(*number);
        }
    }
}
