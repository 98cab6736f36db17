//! Working on a pool and telling the story of it: what is begun is noted before, what is durable
//! after.
//!
//! Invariant: who calls changes one file from one thread only, and names from one thread alone.

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_engine::Result;
use cenote_engine::dataset::change::MosChange;
use cenote_engine::pool::group::LivePool;
use cenote_posix::Filesystem;
use cenote_posix::tree::{
    Allocate, Caller, NewNode, NodeId, ROOT, RenameFlags, SetAttributes, Tree,
};
use parking_lot::Mutex;

use super::pool::{Disks, NAME};
use super::story::{Content, FileStory, Mark, Names, PoolState, Sequence, SetStory, Story};

/// Who does everything.
const SUPERUSER: Caller = Caller { uid: 0, gid: 0, pid: 0 };

/// A file of a filesystem that is worked on.
#[derive(Clone, Debug)]
pub struct File {
    /// The filesystem.
    pub set: String,
    /// Its number in the story.
    pub number: usize,
    /// Its node.
    pub node: NodeId,
}

/// A pool being worked on.
pub struct Work<'a> {
    /// The disks below.
    pub disks: &'a Disks,
    /// The pool.
    pub live: Arc<LivePool>,
    /// Its open filesystems.
    pub files: BTreeMap<String, Arc<Filesystem>>,
    /// What was done.
    pub story: Mutex<Story>,
}

impl<'a> Work<'a> {
    /// Makes a pool on `disks`. `prompt`: the property `sync` of its root filesystem is `always`.
    pub fn new(disks: &'a Disks, prompt: bool) -> Self {
        let live = disks.create();
        let files = BTreeMap::from([(NAME.to_owned(), disks.files(&live, "new"))]);
        let story = Mutex::new(Story::new(NAME, prompt));
        Self { disks, live, files, story }
    }

    /// Exports the pool; the story.
    pub fn end(self) -> Story {
        let Self { live, files, story, .. } = self;
        drop(files);
        live.export().unwrap();
        story.into_inner()
    }

    /// The files of a filesystem.
    pub fn tree(&self, set: &str) -> &Filesystem {
        &self.files[set]
    }

    /// Where a path is: its directory's node, and its last part.
    fn place<'p>(&self, set: &str, path: &'p str) -> (NodeId, &'p str) {
        let Some((directory, name)) = path.rsplit_once('/') else { return (ROOT, path) };
        let story = self.story.lock();
        let set = &story.sets[set];
        (set.files[set.names.newest()[directory]].node, name)
    }

    fn names(&self, set: &str, change: impl FnOnce(&mut Names)) {
        let mut story = self.story.lock();
        let names = &mut story.sets.get_mut(set).unwrap().names;
        let mut next = names.newest().clone();
        change(&mut next);
        names.begin(next);
    }

    /// A change was made: with `sync=always` it is durable, and all before it that it waits for.
    fn made(&self, set: &str, file: Option<usize>, mark: &Mark) {
        let mut story = self.story.lock();
        if story.sets[set].prompt {
            match file {
                Some(file) => story.committed(set, Some(file), mark),
                None => {
                    for number in 0..story.sets[set].files.len() {
                        story.committed(set, Some(number), mark);
                    }
                }
            }
        }
    }

    fn change_names(
        &self,
        set: &str,
        change: impl FnOnce(&mut Names),
        make: impl FnOnce(&Filesystem),
    ) {
        self.names(set, change);
        let mark = self.story.lock().mark();
        make(self.tree(set));
        self.made(set, None, &mark);
    }

    fn new_file(&self, set: &str, content: Option<Content>) -> usize {
        let mut story = self.story.lock();
        let files = &mut story.sets.get_mut(set).unwrap().files;
        files.push(FileStory { node: 0, content: content.map(Sequence::new) });
        files.len() - 1
    }

    fn make(&self, set: &str, path: &str, mode: u32) -> File {
        let is_directory = mode & 0o170_000 == 0o040_000;
        let number = self.new_file(set, (!is_directory).then(Content::default));
        let (parent, name) = self.place(set, path);
        let mut node = 0;
        self.change_names(
            set,
            |names| {
                let _ = names.insert(path.to_owned(), number);
            },
            |files| {
                let new = NewNode { mode, umask: 0, rdev: 0, target: &[] };
                node = files.create(SUPERUSER, parent, name.as_bytes(), new).unwrap().node;
            },
        );
        self.story.lock().sets.get_mut(set).unwrap().files[number].node = node;
        File { set: set.to_owned(), number, node }
    }

    /// Makes a file.
    pub fn create(&self, set: &str, path: &str) -> File {
        self.make(set, path, 0o100_644)
    }

    /// Makes a directory.
    pub fn directory(&self, set: &str, path: &str) -> File {
        self.make(set, path, 0o040_755)
    }

    /// Makes a file without a name.
    pub fn unnamed(&self, set: &str) -> File {
        let number = self.new_file(set, Some(Content::default()));
        let new = NewNode { mode: 0o100_600, umask: 0, rdev: 0, target: &[] };
        let node = self.tree(set).create_unnamed(SUPERUSER, ROOT, new).unwrap().node;
        self.story.lock().sets.get_mut(set).unwrap().files[number].node = node;
        File { set: set.to_owned(), number, node }
    }

    /// Gives a file a name more.
    pub fn link(&self, file: &File, path: &str) {
        let (parent, name) = self.place(&file.set, path);
        self.change_names(
            &file.set,
            |names| {
                let _ = names.insert(path.to_owned(), file.number);
            },
            |files| {
                files.link(SUPERUSER, file.node, parent, name.as_bytes()).unwrap();
            },
        );
    }

    /// Takes a name away. `open`: the file is held open, [`Self::close`] comes later.
    pub fn unlink(&self, set: &str, path: &str, open: bool) {
        let file = self.find(set, path);
        let (parent, name) = self.place(set, path);
        let take = |files: &Filesystem| files.unlink(SUPERUSER, parent, name.as_bytes()).unwrap();
        self.change_names(
            set,
            |names| {
                let _ = names.remove(path);
            },
            take,
        );
        if !open {
            self.close(&file);
        }
    }

    /// The last who held a file open lets it go.
    pub fn close(&self, file: &File) {
        self.tree(&file.set).forget(file.node);
    }

    /// Removes an empty directory.
    pub fn remove_directory(&self, set: &str, path: &str) {
        let (parent, name) = self.place(set, path);
        let take = |files: &Filesystem| {
            files.remove_directory(SUPERUSER, parent, name.as_bytes()).unwrap();
        };
        self.change_names(
            set,
            |names| {
                let _ = names.remove(path);
            },
            take,
        );
    }

    /// Moves `from` to `to`, over what is there; or exchanges both.
    pub fn rename(&self, set: &str, from: &str, to: &str, exchange: bool) {
        let replaced = self.story.lock().sets[set].names.newest().contains_key(to);
        let replaced = (replaced && !exchange).then(|| self.find(set, to));
        let ((from_parent, old), (to_parent, new)) = (self.place(set, from), self.place(set, to));
        let moved = |path: &str, (from, to): (&str, &str)| match path.strip_prefix(from) {
            Some("") => Some(to.to_owned()),
            Some(rest) if rest.starts_with('/') => Some(format!("{to}{rest}")),
            _ => None,
        };
        let change = |names: &mut Names| {
            let mut next = Names::new();
            for (path, file) in std::mem::take(names) {
                let there = moved(&path, (from, to));
                let back = moved(&path, (to, from)).filter(|_| exchange);
                match there.or(back) {
                    Some(path) => drop(next.insert(path, file)),
                    None => drop(next.entry(path).or_insert(file)),
                }
            }
            *names = next;
        };
        let flags = RenameFlags { exchange, ..RenameFlags::default() };
        self.change_names(set, change, |files| {
            let (old, new) = (old.as_bytes(), new.as_bytes());
            files.rename(SUPERUSER, from_parent, old, to_parent, new, flags).unwrap();
        });
        replaced.iter().for_each(|file| self.close(file));
    }

    /// The file at a path.
    pub fn find(&self, set: &str, path: &str) -> File {
        let story = self.story.lock();
        let number = story.sets[set].names.newest()[path];
        let node = story.sets[set].files[number].node;
        File { set: set.to_owned(), number, node }
    }

    /// What a file holds.
    pub fn bytes(&self, file: &File) -> Arc<Vec<u8>> {
        let story = self.story.lock();
        let content = story.sets[&file.set].files[file.number].content.as_ref();
        content.unwrap().newest().bytes.clone()
    }

    fn change_data(
        &self,
        file: &File,
        written: Option<(usize, usize)>,
        change: impl FnOnce(&mut Vec<u8>),
        make: impl FnOnce(&Filesystem),
    ) {
        let mut bytes = self.bytes(file).to_vec();
        change(&mut bytes);
        let content = Content { bytes: Arc::new(bytes), written };
        let mark = {
            let mut story = self.story.lock();
            let file = &mut story.sets.get_mut(&file.set).unwrap().files[file.number];
            file.content.as_mut().unwrap().begin(content);
            story.mark()
        };
        make(self.tree(&file.set));
        self.made(&file.set, Some(file.number), &mark);
    }

    /// Writes `data` at `offset`. Of more than 16 KiB a beginning may be seen alone.
    pub fn write(&self, file: &File, offset: usize, data: &[u8]) {
        let written = (data.len() > 16 << 10).then_some((offset, data.len()));
        let put = |bytes: &mut Vec<u8>| {
            bytes.resize(bytes.len().max(offset + data.len()), 0);
            bytes[offset..offset + data.len()].copy_from_slice(data);
        };
        self.change_data(file, written, put, |files| {
            files.write(SUPERUSER, file.node, offset as u64, data, false).unwrap();
        });
    }

    /// Writes `data` behind the end.
    pub fn append(&self, file: &File, data: &[u8]) {
        self.write(file, self.bytes(file).len(), data);
    }

    /// Copies a range of one file into another, as far as they can by sharing blocks.
    pub fn copy(&self, from: (&File, usize), to: (&File, usize), length: usize) {
        let data = self.bytes(from.0)[from.1..from.1 + length].to_vec();
        let put = |bytes: &mut Vec<u8>| {
            bytes.resize(bytes.len().max(to.1 + length), 0);
            bytes[to.1..to.1 + length].copy_from_slice(&data);
        };
        let places = ((from.0.node, from.1 as u64), (to.0.node, to.1 as u64));
        self.change_data(to.0, Some((to.1, length)), put, |files| {
            let copied = files.copy_range(SUPERUSER, places.0, places.1, length as u64).unwrap();
            assert_eq!(copied, length as u64);
        });
    }

    /// Gives a file its length.
    pub fn truncate(&self, file: &File, length: usize) {
        let size = Some(length as u64);
        self.change_data(
            file,
            None,
            |bytes| bytes.resize(length, 0),
            |files| {
                let change = SetAttributes { size, ..SetAttributes::default() };
                files.set_attributes(SUPERUSER, file.node, &change).unwrap();
            },
        );
    }

    /// Makes a hole.
    pub fn punch(&self, file: &File, offset: usize, length: usize) {
        let clear = |bytes: &mut Vec<u8>| {
            let end = bytes.len().min(offset + length);
            bytes[offset..end].fill(0);
        };
        self.change_data(file, None, clear, |files| {
            let (offset, length) = (offset as u64, length as u64);
            let what = Allocate::PunchHole;
            files.allocate(SUPERUSER, file.node, offset, length, what).unwrap();
        });
    }

    /// `fsync` of a file or directory.
    pub fn sync(&self, file: &File) {
        let mark = self.story.lock().mark();
        self.tree(&file.set).sync(file.node, false).unwrap();
        self.story.lock().committed(&file.set, Some(file.number), &mark);
    }

    /// Waits for a transaction group.
    pub fn group(&self) {
        let mark = self.story.lock().mark();
        self.live.sync().unwrap();
        self.story.lock().acknowledge(&mark);
    }

    /// Does something to the pool, which becomes `state` by it, and is on the disks then.
    pub fn pool<T>(
        &self,
        state: impl FnOnce(&mut PoolState, &BTreeMap<String, SetStory>),
        change: impl FnOnce(&Arc<LivePool>) -> Result<T>,
    ) -> T {
        let mark = {
            let mut story = self.story.lock();
            let mut next = story.pool.newest().clone();
            state(&mut next, &story.sets);
            story.pool.begin(next);
            story.mark()
        };
        let made = change(&self.live).unwrap();
        self.story.lock().acknowledge(&mark);
        made
    }

    /// As [`Self::pool`] by a change of the pool's metadata.
    pub fn alter<T: Send + 'static>(
        &self,
        state: impl FnOnce(&mut PoolState, &BTreeMap<String, SetStory>),
        change: impl FnOnce(&LivePool, &MosChange<'_>) -> Result<T> + Send + 'static,
    ) -> T {
        self.pool(state, |live| live.change(change))
    }
}

/// Bytes that hardly compress, others for each seed.
pub fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut random = super::Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let words = std::iter::repeat_with(|| random.below(u64::MAX).to_le_bytes());
    words.flatten().take(length).collect()
}

/// Bytes of which much compresses, others for each seed.
pub fn runs(length: usize, seed: u64) -> Vec<u8> {
    let byte = |at: usize| ((at as u64 / 5 + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8;
    (0..length).map(byte).collect()
}
