//! Steps that change files.
//!
//! Invariant: what is begun is noted in the model before, what is durable after; what is refused is
//! taken back.

use std::sync::Arc;

use cenote_posix::Filesystem;
use cenote_posix::tree::{
    Allocate, Caller, FileFlags, NewNode, NodeId, ROOT, RenameFlags, Result as FileResult,
    SetAttributes, SetTime, Tree, XattrWrite,
};

use crate::model::{Content, FileStory, Names, Sequence, Xattrs};
use crate::plan::Step;
use crate::random::bytes;
use crate::run::{Runner, Verdict};

/// Who does everything.
const SUPERUSER: Caller = Caller { uid: 0, gid: 0, pid: 0 };
/// Longest file in bytes.
const LONGEST: usize = 12 << 20;

/// The path that a number stands for.
fn path(number: u8) -> String {
    match number % 20 {
        short @ 0..=11 => format!("f{short}"),
        long => format!("d{}/f{long}", long % 2),
    }
}

/// What a file held, with zeros behind it if it does not reach `end`; copied once.
fn reaching(before: &[u8], end: usize) -> Vec<u8> {
    let length = before.len().max(end);
    let mut bytes = Vec::with_capacity(length);
    bytes.extend_from_slice(before);
    bytes.resize(length, 0);
    bytes
}

impl Runner {
    /// Does a step of this kind; `None`: it is none.
    pub(crate) fn file_step(&mut self, step: &Step) -> Option<Verdict> {
        Some(match step {
            Step::Create { set, name } => self.create(*set, &path(*name)),
            Step::Write { set, file, at, len, fill, squeezable } => {
                let data = bytes(*len as usize, *fill, *squeezable);
                self.with_file(*set, *file, |run, set, file| {
                    run.write_at(set, file, *at as usize, &data).map(drop)
                })
            }
            Step::Append { set, file, len, fill } => {
                let data = bytes(*len as usize, *fill, false);
                self.with_file(*set, *file, |run, set, file| {
                    let end = run.content(set, file).len();
                    run.write_at(set, file, end, &data).map(drop)
                })
            }
            Step::Truncate { set, file, len } => {
                self.with_file(*set, *file, |run, set, file| run.truncate(set, file, *len as usize))
            }
            Step::Punch { set, file, at, len } => self.with_file(*set, *file, |run, set, file| {
                run.punch(set, file, *at as usize, *len as usize)
            }),
            Step::Lengthen { set, file, len } => {
                self.with_file(*set, *file, |run, set, file| run.lengthen(set, file, *len as usize))
            }
            Step::Touch { set, file } => {
                self.with_file(*set, *file, |run, set, file| run.set_times(set, file))
            }
            Step::AppendOnly { set, file, on } => {
                self.with_file(*set, *file, |run, set, file| run.append_only(set, file, *on))
            }
            Step::Rename { set, file, to, exchange } => {
                self.rename(*set, *file, &path(*to), *exchange)
            }
            Step::Unlink { set, file } => self.unlink(*set, *file),
            Step::Directory { set, name } => self.directory(*set, &format!("d{}", name % 2)),
            Step::RemoveDirectory { set, name } => {
                self.remove_directory(*set, &format!("d{}", name % 2))
            }
            Step::Link { set, file, to } => self.link(*set, *file, &path(*to)),
            Step::Xattr { set, file, name, len, fill } => {
                self.xattr(*set, *file, *name, *len, *fill)
            }
            Step::Copy { set, from, to, at, to_at, len } => {
                self.copy(*set, (*from, *at as usize), (*to, *to_at as usize), *len as usize)
            }
            Step::Fsync { set, file } => {
                self.with_file(*set, *file, |run, set, file| run.fsync(set, file).map(drop))
            }
            Step::SyncFilesystem { set } => self.sync_filesystem(*set),
            Step::Burst { set, file, at, len, times, fill } => {
                self.with_file(*set, *file, |run, set, file| {
                    for time in 0..u32::from(*times) {
                        let data = bytes(*len as usize, fill.wrapping_add(time), false);
                        if !run.write_at(set, file, *at as usize, &data)? {
                            break;
                        }
                        run.fsync(set, file)?;
                    }
                    Ok(())
                })
            }
            Step::Fill { set, len, most, fill, sync } => {
                self.fill(*set, *len as usize, *most, *fill, *sync)
            }
            _ => return None,
        })
    }

    /// With a file of a filesystem, if there is one.
    fn with_file(
        &mut self,
        set: u8,
        file: u8,
        work: impl FnOnce(&mut Self, u64, usize) -> Verdict,
    ) -> Verdict {
        let (_, number) = self.set(set);
        match self.file(number, file) {
            Some((_, file)) => work(self, number, file),
            None => self.pass(),
        }
    }

    /// Nothing to do.
    pub(crate) fn pass(&mut self) -> Verdict {
        self.tally.passed += 1;
        Ok(())
    }

    /// A regular file: its path and number.
    pub(crate) fn file(&self, set: u64, choice: u8) -> Option<(String, usize)> {
        let set = self.model.sets.get(&set)?;
        let is_file = |(_, file): &(&String, &usize)| set.files[**file].content.is_some();
        let all: Vec<_> = set.names.newest().iter().filter(is_file).collect();
        let (path, file) = all.get(choice as usize % all.len().max(1))?;
        Some(((*path).clone(), **file))
    }

    fn content(&self, set: u64, file: usize) -> Arc<Vec<u8>> {
        let content = self.model.sets[&set].files[file].content.as_ref();
        content.map(|content| content.newest().bytes.clone()).unwrap_or_default()
    }

    pub(crate) fn node(&self, set: u64, file: usize) -> NodeId {
        self.model.sets[&set].files[file].node
    }

    /// Where a path is: its directory's node, and its last part.
    fn place<'p>(&self, set: u64, path: &'p str) -> Option<(NodeId, &'p str)> {
        let Some((directory, name)) = path.rsplit_once('/') else { return Some((ROOT, path)) };
        let story = &self.model.sets[&set];
        let directory = story.names.newest().get(directory)?;
        Some((story.files[*directory].node, name))
    }

    fn has(&self, set: u64, path: &str) -> Option<usize> {
        self.model.sets[&set].names.newest().get(path).copied()
    }

    fn change_names<T>(
        &mut self,
        set: u64,
        frees: bool,
        change: impl FnOnce(&mut Names),
        make: impl FnOnce(&Filesystem) -> FileResult<T>,
    ) -> Verdict<Option<T>> {
        let name = self.name_of(set);
        let tree = self.tree(&name, set)?;
        let story = self.model.sets.get_mut(&set).ok_or("no such set")?;
        let mut next = story.names.newest().clone();
        change(&mut next);
        story.names.begin(next);
        let prompt = story.prompt;
        let mark = self.model.mark();
        match make(&tree) {
            Ok(made) => {
                if prompt {
                    self.model.all_committed(set, &mark);
                }
                Ok(Some(made))
            }
            Err(error) => {
                self.model.sets.get_mut(&set).ok_or("no such set")?.names.retract();
                self.refused(&error, 0, frees, false)?;
                Ok(None)
            }
        }
    }

    fn make(&mut self, set: u64, path: &str, mode: u32) -> Verdict<Option<usize>> {
        let Some((parent, name)) = self.place(set, path) else { return Ok(None) };
        if self.has(set, path).is_some() {
            return Ok(None);
        }
        let is_directory = mode & 0o170_000 == 0o040_000;
        let content = (!is_directory).then(|| Sequence::new(Content::default()));
        let xattrs = Sequence::new(Xattrs::new());
        let story = self.model.sets.get_mut(&set).ok_or("no such set")?;
        story.files.push(FileStory { node: 0, content, xattrs });
        let number = story.files.len() - 1;
        let new = NewNode { mode, umask: 0, rdev: 0, target: &[] };
        let made = self.change_names(
            set,
            false,
            |names| {
                let _ = names.insert(path.to_owned(), number);
            },
            |tree| tree.create(SUPERUSER, parent, name.as_bytes(), new),
        )?;
        let Some(made) = made else { return Ok(None) };
        self.model.sets.get_mut(&set).ok_or("no such set")?.files[number].node = made.node;
        Ok(Some(number))
    }

    fn create(&mut self, set: u8, path: &str) -> Verdict {
        let (_, set) = self.set(set);
        match self.make(set, path, 0o100_644)? {
            Some(_) => Ok(()),
            None => self.pass(),
        }
    }

    /// Makes the file `path`; its number.
    pub(crate) fn create_at(&mut self, set: u64, path: &str) -> Verdict<Option<usize>> {
        self.make(set, path, 0o100_644)
    }

    fn directory(&mut self, set: u8, path: &str) -> Verdict {
        let (_, set) = self.set(set);
        self.make(set, path, 0o040_755).map(drop)
    }

    fn remove_directory(&mut self, set: u8, path: &str) -> Verdict {
        let (_, set) = self.set(set);
        let below = format!("{path}/");
        let names = self.model.sets[&set].names.newest();
        if !names.contains_key(path) || names.keys().any(|name| name.starts_with(&below)) {
            return self.pass();
        }
        self.change_names(
            set,
            true,
            |names| {
                let _ = names.remove(path);
            },
            |tree| tree.remove_directory(SUPERUSER, ROOT, path.as_bytes()),
        )
        .map(drop)
    }

    fn link(&mut self, set: u8, file: u8, to: &str) -> Verdict {
        let (_, set) = self.set(set);
        let Some((_, file)) = self.file(set, file) else { return self.pass() };
        let Some((parent, name)) = self.place(set, to) else { return self.pass() };
        if self.has(set, to).is_some() {
            return self.pass();
        }
        let node = self.node(set, file);
        self.change_names(
            set,
            false,
            |names| {
                let _ = names.insert(to.to_owned(), file);
            },
            |tree| tree.link(SUPERUSER, node, parent, name.as_bytes()),
        )
        .map(drop)
    }

    fn unlink(&mut self, set: u8, file: u8) -> Verdict {
        let (_, set) = self.set(set);
        let Some((path, file)) = self.file(set, file) else { return self.pass() };
        let Some((parent, name)) = self.place(set, &path) else { return self.pass() };
        let node = self.node(set, file);
        self.change_names(
            set,
            true,
            |names| {
                let _ = names.remove(&path);
            },
            |tree| {
                tree.unlink(SUPERUSER, parent, name.as_bytes())?;
                tree.forget(node);
                Ok(())
            },
        )
        .map(drop)
    }

    fn rename(&mut self, set: u8, file: u8, to: &str, exchange: bool) -> Verdict {
        let (_, set) = self.set(set);
        let Some((from, file)) = self.file(set, file) else { return self.pass() };
        let (Some(old), Some(new)) = (self.place(set, &from), self.place(set, to)) else {
            return self.pass();
        };
        let there = self.has(set, to);
        // Two names of one file: nothing happens.
        if there == Some(file) || exchange && there.is_none() {
            return self.pass();
        }
        let replaced = there.filter(|_| !exchange).map(|there| self.node(set, there));
        let change = |names: &mut Names| {
            names.insert(to.to_owned(), file);
            match there.filter(|_| exchange) {
                Some(there) => names.insert(from.clone(), there),
                None => names.remove(&from),
            };
        };
        let flags = RenameFlags { exchange, ..RenameFlags::default() };
        self.change_names(set, false, change, |tree| {
            let (name, other) = (old.1.as_bytes(), new.1.as_bytes());
            tree.rename(SUPERUSER, old.0, name, new.0, other, flags)?;
            replaced.iter().for_each(|node| tree.forget(*node));
            Ok(())
        })
        .map(drop)
    }

    /// Whether it was done.
    fn change_data(
        &mut self,
        place: (u64, usize),
        cost: (usize, bool),
        content: Content,
        make: impl FnOnce(&Filesystem, NodeId) -> FileResult<()>,
    ) -> Verdict<bool> {
        let ((set, file), (bytes, frees)) = (place, cost);
        let name = self.name_of(set);
        let tree = self.tree(&name, set)?;
        let story = self.model.sets.get_mut(&set).ok_or("no such set")?;
        let prompt = story.prompt;
        let entry = story.files.get_mut(file).ok_or("no such file")?;
        let node = entry.node;
        entry.content.iter_mut().for_each(|sequence| sequence.begin(content.clone()));
        let mark = self.model.mark();
        match make(&tree, node) {
            Ok(()) => {
                if prompt {
                    self.model.committed(set, file, &mark);
                }
                Ok(true)
            }
            Err(error) => {
                let story = self.model.sets.get_mut(&set).ok_or("no such set")?;
                story.files[file].content.iter_mut().for_each(Sequence::retract);
                self.refused(&error, bytes, frees, self.model.damaged.contains(&node))?;
                Ok(false)
            }
        }
    }

    /// Writes `data` at `at`; whether it was taken.
    pub(crate) fn write_at(
        &mut self,
        set: u64,
        file: usize,
        at: usize,
        data: &[u8],
    ) -> Verdict<bool> {
        if at + data.len() > LONGEST && self.has(set, "ballast").is_none_or(|own| own != file) {
            return Ok(false);
        }
        let mut bytes = reaching(&self.content(set, file), at + data.len());
        bytes[at..at + data.len()].copy_from_slice(data);
        let content = Content { bytes: Arc::new(bytes), written: Some((at, data.len())) };
        self.change_data((set, file), (data.len(), false), content, |tree, node| {
            tree.write(SUPERUSER, node, at as u64, data, false)
        })
    }

    fn truncate(&mut self, set: u64, file: usize, length: usize) -> Verdict {
        let mut bytes = self.content(set, file).to_vec();
        let frees = length == 0;
        bytes.resize(length.min(LONGEST), 0);
        let size = Some(bytes.len() as u64);
        let content = Content { bytes: Arc::new(bytes), written: None };
        self.change_data((set, file), (0, frees), content, |tree, node| {
            let change = SetAttributes { size, ..SetAttributes::default() };
            tree.set_attributes(SUPERUSER, node, &change).map(drop)
        })
        .map(drop)
    }

    fn lengthen(&mut self, set: u64, file: usize, more: usize) -> Verdict {
        let mut bytes = self.content(set, file).to_vec();
        let length = (bytes.len() + more).min(LONGEST);
        if length <= bytes.len() {
            return self.pass();
        }
        bytes.resize(length, 0);
        let content = Content { bytes: Arc::new(bytes), written: None };
        self.change_data((set, file), (0, false), content, |tree, node| {
            let grows = Allocate::Reserve { keep_size: false };
            tree.allocate(SUPERUSER, node, 0, length as u64, grows)
        })
        .map(drop)
    }

    /// Changes attributes that nobody looks at afterwards: what counts is that it is replayed.
    fn set_times(&mut self, set: u64, file: usize) -> Verdict {
        let name = self.name_of(set);
        let tree = self.tree(&name, set)?;
        let now = Some(SetTime::Now);
        let change = SetAttributes { accessed: now, modified: now, ..SetAttributes::default() };
        let node = self.node(set, file);
        match tree.set_attributes(SUPERUSER, node, &change) {
            Ok(_) => Ok(()),
            Err(error) => self.refused(&error, 0, false, self.model.damaged.contains(&node)),
        }
    }

    fn append_only(&mut self, set: u64, file: usize, on: bool) -> Verdict {
        let name = self.name_of(set);
        let tree = self.tree(&name, set)?;
        let node = self.node(set, file);
        self.model.appends |= on;
        let flags = FileFlags { append_only: on, ..FileFlags::default() };
        match tree.set_file_flags(SUPERUSER, node, &flags) {
            Ok(()) => Ok(()),
            Err(error) => self.refused(&error, 0, false, self.model.damaged.contains(&node)),
        }
    }

    fn punch(&mut self, set: u64, file: usize, at: usize, length: usize) -> Verdict {
        let mut bytes = self.content(set, file).to_vec();
        let end = bytes.len().min(at + length);
        if at < end {
            bytes[at..end].fill(0);
        }
        let content = Content { bytes: Arc::new(bytes), written: None };
        self.change_data((set, file), (length.min(2 << 20), false), content, |tree, node| {
            tree.allocate(SUPERUSER, node, at as u64, length as u64, Allocate::PunchHole)
        })
        .map(drop)
    }

    fn copy(&mut self, set: u8, from: (u8, usize), to: (u8, usize), length: usize) -> Verdict {
        let (_, set) = self.set(set);
        let (Some((_, source)), Some((_, target))) = (self.file(set, from.0), self.file(set, to.0))
        else {
            return self.pass();
        };
        let bytes = self.content(set, source);
        let length = bytes.len().saturating_sub(from.1).min(length);
        let apart = from.1 + length <= to.1 || to.1 + length <= from.1;
        if length == 0 || source == target && !apart {
            return self.pass();
        }
        if self.model.damaged.contains(&self.node(set, source)) {
            return self.pass();
        }
        let data = bytes[from.1..from.1 + length].to_vec();
        let mut bytes = reaching(&self.content(set, target), to.1 + length);
        bytes[to.1..to.1 + length].copy_from_slice(&data);
        let content = Content { bytes: Arc::new(bytes), written: Some((to.1, length)) };
        let node = self.node(set, source);
        let mut copied = 0;
        let done = self.change_data((set, target), (length, false), content, |tree, target| {
            let places = ((node, from.1 as u64), (target, to.1 as u64));
            copied = tree.copy_range(SUPERUSER, places.0, places.1, length as u64)?;
            Ok(())
        })?;
        if done && copied != length as u64 {
            let story = self.model.sets.get_mut(&set).ok_or("no such set")?;
            let Some(content) = &mut story.files[target].content else { return Ok(()) };
            // A beginning was copied, which is a state of its own.
            let whole = content.newest().clone();
            content.retract();
            let before = content.newest().bytes.clone();
            let end = to.1 + copied as usize;
            let mut bytes = reaching(&before, end);
            bytes[to.1..end].copy_from_slice(&whole.bytes[to.1..end]);
            content
                .begin(Content { bytes: Arc::new(bytes), written: Some((to.1, copied as usize)) });
        }
        Ok(())
    }

    fn xattr(&mut self, set: u8, file: u8, name: u8, length: u16, fill: u32) -> Verdict {
        let (_, set) = self.set(set);
        let Some((_, file)) = self.file(set, file) else { return self.pass() };
        let full = self.name_of(set);
        let tree = self.tree(&full, set)?;
        let (name, value) = (format!("user.x{}", name % 3), bytes(length.into(), fill, false));
        let story = self.model.sets.get_mut(&set).ok_or("no such set")?;
        let prompt = story.prompt;
        let entry = story.files.get_mut(file).ok_or("no such file")?;
        let mut next = entry.xattrs.newest().clone();
        next.insert(name.clone(), value.clone());
        entry.xattrs.begin(next);
        let node = entry.node;
        let mark = self.model.mark();
        match tree.set_xattr(SUPERUSER, node, name.as_bytes(), &value, XattrWrite::Any) {
            Ok(()) if prompt => self.model.committed(set, file, &mark),
            Ok(()) => {}
            Err(error) => {
                let story = self.model.sets.get_mut(&set).ok_or("no such set")?;
                story.files[file].xattrs.retract();
                self.refused(&error, length.into(), false, self.model.damaged.contains(&node))?;
            }
        }
        Ok(())
    }

    /// `fsync`; whether it was answered well.
    pub(crate) fn fsync(&mut self, set: u64, file: usize) -> Verdict<bool> {
        let name = self.name_of(set);
        let tree = self.tree(&name, set)?;
        let (node, mark) = (self.node(set, file), self.model.mark());
        match tree.sync(node, false) {
            Ok(()) => {
                if !self.model.sets[&set].careless {
                    self.model.committed(set, file, &mark);
                }
                Ok(true)
            }
            Err(_) if self.dark || self.model.damaged.contains(&node) => Ok(false),
            Err(error) => Err(format!("fsync: {error}")),
        }
    }

    fn sync_filesystem(&mut self, set: u8) -> Verdict {
        let (name, set) = self.set(set);
        let tree = self.tree(&name, set)?;
        let mark = self.model.mark();
        tree.sync_all().map_err(|error| format!("syncfs: {error}"))?;
        if !self.model.sets[&set].careless {
            self.model.all_committed(set, &mark);
        }
        Ok(())
    }

    fn fill(&mut self, set: u8, length: usize, most: u8, fill: u32, sync: bool) -> Verdict {
        let (_, set) = self.set(set);
        for number in 0..u32::from(most) {
            let path = format!("z{}-{number}", fill % 1000);
            let Some(file) = self.create_at(set, &path)? else { break };
            let data = bytes(length, fill.wrapping_add(number), false);
            let mut at = 0;
            // As programs write: some at a time.
            for part in data.chunks(1 << 20) {
                if !self.write_at(set, file, at, part)? {
                    return Ok(());
                }
                at += part.len();
            }
            if sync {
                self.fsync(set, file)?;
            }
        }
        Ok(())
    }
}
