//! Compares what is on disks after a cut with what was done before.
//!
//! Invariant: everything there is is looked at: every dataset, every name, every byte; what is there
//! equals one state of each sequence that may be seen. What was found is the model of the next life.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::ops::RangeInclusive;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use cenote_engine::Error;
use cenote_engine::check::{CheckOptions, FindingKind, Verify, check};
use cenote_engine::dataset::{Catalog, Directory, Listed, Table};
use cenote_engine::pool::Pool;
use cenote_engine::pool::group::LivePool;
use cenote_engine::receive::TEMPORARY;
use cenote_format::config::VdevKind;
use cenote_posix::Filesystem;
use cenote_posix::error::EIO;
use cenote_posix::tree::{NodeId, ROOT, Tree};

use crate::disks::{Disks, NAME, WIDER, settle};
use crate::model::{Content, Entry, Listing, Model, PoolState, Sequence, SetStory, Xattrs};
use crate::plan::Setup;
use crate::run::{Verdict, forget_interrupted, load_key};

/// Mode bits that say what a file is, and those of a directory.
const TYPE: u32 = 0o170_000;
const DIRECTORY: u32 = 0o040_000;
/// Runs a tool of OpenZFS 2.3, where that is unpacked.
const NEWER_TOOL: &str = "/opt/openzfs-2.3/run";

/// Disks to be judged.
pub struct Judge<'a> {
    /// What a cut left: this copy is written to.
    pub disks: Disks,
    /// The event that did not happen any more; `u64::MAX` if all did.
    pub order: u64,
    /// What was done.
    pub model: &'a Model,
    /// The pool.
    pub setup: &'a Setup,
    /// Some leaves are not as they should be: copies on them need not be right.
    pub spared: bool,
}

/// A file as it was found; `None` where it could not be read and need not be.
type Found = BTreeMap<String, (NodeId, Option<Option<Arc<Vec<u8>>>>, Option<Xattrs>)>;

impl Judge<'_> {
    /// Opens everything, which replays what the logs hold, compares, and writes a group; the model of
    /// what is there.
    pub fn judge(&self) -> Verdict<Model> {
        let live = self.disks.open().map_err(|error| format!("the pool does not open: {error}"))?;
        forget_interrupted(&live, !self.model.damaged.is_empty())?;
        load_key(&live, self.setup)?;
        let range = self.model.pool.at(self.order);
        let seen = Seen::of(live.pool())?;
        let fitting: Vec<&PoolState> = range
            .clone()
            .rev()
            .map(|number| self.model.pool.state(number))
            .filter(|state| same_pool(state, &seen, live.pool()))
            .collect();
        if fitting.is_empty() {
            let (first, last) = (self.model.pool.state(*range.start()), self.model.pool.newest());
            let why = |state| {
                let differs = seen.differs(state);
                differs.unwrap_or_else(|| "the comment, devices or checkpoint".to_owned())
            };
            return Err(format!(
                "as in none of states {range:?}: first {}; last {}",
                why(first),
                why(last)
            ));
        }
        let mut trees = BTreeMap::new();
        for name in fitting.first().into_iter().flat_map(|state| state.filesystems.keys()) {
            let catalog = live.pool().catalog();
            let dataset = catalog.dataset_named(name).map_err(|error| error.to_string())?;
            let opened = cenote_posix::live::open(&live, &dataset, false);
            let opened = opened.map_err(|error| format!("'{name}' is not opened: {error}"))?;
            settle(&live);
            if let Some(error) = live.gate().failure() {
                return Err(format!("after opening '{name}' the pool stopped: {error}"));
            }
            trees.insert(name.clone(), opened);
        }
        let mut listings = BTreeMap::new();
        for (name, tree) in &trees {
            listings.insert(name.clone(), self.found(tree, name)?);
        }
        let mut reason = String::new();
        let mut model = None;
        for state in fitting {
            match self.state(&live, state, &listings) {
                Ok(found) => {
                    model = Some(found);
                    break;
                }
                Err(other) if reason.is_empty() => reason = other,
                Err(_) => {}
            }
        }
        let Some(model) = model else { return Err(reason) };
        live.sync().map_err(|error| format!("the group after the replay: {error}"))?;
        if let Some(suspension) = live.gate().suspension() {
            return Err(format!("the pool is suspended: {}", suspension.error));
        }
        for (name, tree) in &trees {
            let queued = tree.writer().map_or(Ok(0), |writer| writer.queued());
            if queued.map_err(|error| format!("'{name}': {error}"))? != 0
                && self.model.damaged.is_empty()
            {
                return Err(format!("'{name}': unnamed files stay"));
            }
        }
        trees.clear();
        self.census(live.pool())?;
        Ok(model)
    }

    /// Whether the pool is as in `state`; the model of what is there.
    fn state(
        &self,
        live: &Arc<LivePool>,
        state: &PoolState,
        listings: &BTreeMap<String, Found>,
    ) -> Verdict<Model> {
        let mut next = Model {
            pool: Sequence::new(state.clone()),
            sets: BTreeMap::new(),
            damaged: self.model.damaged.clone(),
            appends: self.model.appends,
        };
        for (name, number) in &state.filesystems {
            let set = self.model.sets.get(number).ok_or("no such set")?;
            let found = listings.get(name).ok_or("not listed")?;
            let listing = self.files(found, name, set)?;
            next.sets.insert(*number, SetStory::of(&listing, set.prompt, set.careless));
        }
        for (name, listing) in &state.snapshots {
            let snapshot = live.pool().catalog().dataset_named(name);
            let snapshot = snapshot.map_err(|error| format!("'{name}': {error}"))?;
            let tree = cenote_posix::dataset_files::open_in(live.pool(), &snapshot);
            let tree = tree.map_err(|error| format!("'{name}' is not opened: {error}"))?;
            let found = self.found(&tree, name)?;
            same(&found, listing, name)?;
        }
        Ok(next)
    }

    fn found(&self, tree: &Filesystem, name: &str) -> Verdict<Found> {
        list(tree, name, &self.model.damaged)
    }

    /// What is in a filesystem is a state it may be in; what that is.
    fn files(&self, found: &Found, name: &str, set: &SetStory) -> Verdict<Listing> {
        let range = set.names.at(self.order);
        let matches = |number: &usize| {
            let state = set.names.state(*number);
            state.len() == found.len()
                && state.iter().all(|(path, file)| {
                    found.get(path).is_some_and(|(node, ..)| *node == set.files[*file].node)
                })
        };
        let Some(number) = range.clone().rev().find(matches) else {
            let keys = |number: usize| set.names.state(number).keys().collect::<Vec<_>>();
            return Err(format!(
                "{name}: names {:?} as in none of {range:?}: {:?} to {:?}",
                found.keys().collect::<Vec<_>>(),
                keys(*range.start()),
                keys(*range.end())
            ));
        };
        let mut listing = Listing::new();
        for (path, file) in set.names.state(number) {
            let (node, content, xattrs) = &found[path];
            let story = &set.files[*file];
            let place = format!("{name}/{path}");
            let bytes = match (&story.content, content) {
                (None, Some(None)) => None,
                (Some(sequence), Some(Some(bytes))) => {
                    let range = sequence.at(self.order);
                    fits(bytes, sequence, range.clone(), &place).or_else(|misfit| {
                        let in_parts = self.setup.shares_blocks();
                        let is_half_done = in_parts && is_done_in_part(bytes, sequence, range);
                        if is_half_done { Ok(()) } else { Err(misfit) }
                    })?;
                    Some(bytes.clone())
                }
                // It could not be read, and need not be: it is taken for what it was last.
                (Some(sequence), None) => Some(sequence.newest().bytes.clone()),
                _ => return Err(format!("{place}: a file or a directory")),
            };
            let seen = xattrs.clone().unwrap_or_else(|| story.xattrs.newest().clone());
            let mut states = story.xattrs.at(self.order).map(|number| story.xattrs.state(number));
            if xattrs.is_some() && !states.any(|state| *state == seen) {
                let names: Vec<_> = seen.keys().collect();
                return Err(format!("{place}: extended attributes {names:?} as in no state"));
            }
            listing.insert(path.clone(), Entry { node: *node, content: bytes, xattrs: seen });
        }
        Ok(listing)
    }

    /// The census of a pool that may be writing on: what was found while a group was written is of two states,
    /// and is looked for again.
    fn census(&self, pool: &Arc<Pool>) -> Verdict {
        for _ in 0..CENSUSES {
            let before = pool.uberblock().txg;
            let found = self.counted(pool);
            if found.is_ok() || pool.uberblock().txg == before {
                return found;
            }
        }
        self.counted(pool)
    }

    /// Every block is allocated once and right in every copy that should be.
    fn counted(&self, pool: &Arc<Pool>) -> Verdict {
        let options = CheckOptions {
            verify: Verify::Everything,
            every_copy: !self.spared,
            threads: 2,
            ..CheckOptions::default()
        };
        let report = check(pool, &options, &mut |_| ControlFlow::Continue(()));
        let report = report.map_err(|error| format!("the census: {error}"))?;
        let damaged = !self.model.damaged.is_empty();
        let counts = |kind: &FindingKind| match kind {
            FindingKind::Unreadable => !damaged,
            FindingKind::BadCopy { .. } => !self.spared && !damaged,
            _ => true,
        };
        let found: Vec<_> = report.findings.iter().filter(|one| counts(&one.kind)).collect();
        // What is below a damaged block is not found.
        let leaks = if damaged { 0 } else { report.leaked_bytes };
        match found.is_empty() && (leaks, report.unallocated_bytes) == (0, 0) {
            true => Ok(()),
            false => Err(format!(
                "the census: {:?} leaked {leaks} {:?} unallocated {} {:?}",
                found.first(),
                report.leaked.first(),
                report.unallocated_bytes,
                report.unallocated.first()
            )),
        }
    }

    /// What `zdb -bcc` says of the disks, if it is installed.
    pub fn zdb(&self) -> Verdict {
        let Ok(directory) = tempfile::tempdir() else { return Ok(()) };
        self.disks.dump(directory.path()).map_err(|error| error.to_string())?;
        let is_wider = self.disks.at(WIDER).is_some_and(|disk| !disk.written().is_empty());
        let newer = (self.setup.cloning || is_wider) && Path::new(NEWER_TOOL).exists();
        if is_wider && !newer {
            // The one that is installed may not know of it.
            return Ok(());
        }
        let mut command = Command::new(if newer { NEWER_TOOL } else { "zdb" });
        command.args(newer.then_some("zdb"));
        // It ends when it is done (`tests/oracles`).
        command.envs(std::env::var_os("ZDB_PRELOAD").map(|it| ("LD_PRELOAD", it)));
        command.args(["-e", "-bcc", "-p"]).arg(directory.path()).arg(NAME);
        let Ok(output) = command.output() else { return Ok(()) };
        let text = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        match output.status.success() && text.contains("No leaks") {
            true => Ok(()),
            false => {
                let tail: String = text.lines().rev().take(6).collect::<Vec<_>>().join(" | ");
                Err(format!("zdb: {tail}"))
            }
        }
    }
}

/// Censuses that are taken of a pool in which a scan writes groups by itself.
const CENSUSES: usize = 20;
/// Properties that are sizes, none where they are 0.
const LIMITS: [&str; 4] = ["quota", "refquota", "reservation", "refreservation"];
/// The others that steps set.
const OTHERS: [&str; 4] = ["compression", "copies", "sync", "recordsize"];

/// What a pool is seen to be made of.
#[derive(Default)]
pub struct Seen {
    /// The full names of its filesystems.
    pub filesystems: BTreeSet<String>,
    /// The full names of its snapshots.
    pub snapshots: BTreeSet<String>,
    /// What is set on its filesystems, as far as steps set it.
    values: BTreeMap<(String, String), u64>,
    /// Snapshots that are held, and by how many tags.
    holds: BTreeMap<String, u32>,
    /// Clones, and the snapshot each was made of.
    origins: BTreeMap<String, String>,
    /// Filesystems that something was received into in part that can go on.
    partials: BTreeSet<String>,
    /// What is in no state to be seen: received in part, and not to go on.
    pub left: BTreeSet<String>,
}

impl Seen {
    /// Looks at all datasets of a pool, as the last group has them.
    pub fn of(pool: &Arc<Pool>) -> Verdict<Self> {
        let catalog = pool.catalog();
        let root = catalog.root().map_err(|error| error.to_string())?;
        let all = catalog.list(&root).map_err(|error| format!("listing the datasets: {error}"))?;
        let mut seen = Self::default();
        for listed in all {
            let Listed::Dataset(dataset) = listed else { continue };
            let name = dataset.name.to_string();
            let unread = |error: Error| format!("'{name}': {error}");
            if dataset.is_snapshot() {
                let tags = catalog.holds(&dataset).map_err(unread)?.len() as u32;
                seen.holds.extend((tags > 0).then(|| (name.clone(), tags)));
                seen.snapshots.insert(name);
                continue;
            }
            let token = catalog.resume_token(&dataset).map_err(unread)?;
            seen.partials.extend(token.is_some().then(|| name.clone()));
            if dataset.phys.is_inconsistent() {
                seen.left.extend(token.is_none().then_some(name));
                continue;
            }
            let inside = catalog.child(&dataset.directory, TEMPORARY).is_ok();
            seen.left.extend((inside && token.is_none()).then(|| format!("{name}/{TEMPORARY}")));
            let origin = catalog.origin(&dataset.directory).map_err(unread)?;
            seen.origins.extend(origin.map(|origin| (name.clone(), origin.name.to_string())));
            seen.look(&catalog, &name, &dataset.directory)?;
            seen.filesystems.insert(name);
        }
        Ok(seen)
    }

    fn look(&mut self, catalog: &Catalog, name: &str, directory: &Directory) -> Verdict {
        let unread = |error: Error| format!("the properties of '{name}': {error}");
        let table = Table::open(catalog.mos(), directory.phys.properties).map_err(unread)?;
        for property in LIMITS.iter().chain(&OTHERS) {
            let value = table.as_ref().map_or(Ok(None), |table| table.number(property));
            let value = value.map_err(unread)?;
            let kept = match *property {
                "quota" => directory.phys.quota,
                "reservation" => directory.phys.reserved,
                _ => value.unwrap_or(0),
            };
            if kept != value.unwrap_or(0) {
                return Err(format!(
                    "'{name}': the {property} is {value:?}, and {kept} is kept to"
                ));
            }
            let value = value.filter(|value| *value != 0 || !LIMITS.contains(property));
            self.values
                .extend(value.map(|value| ((name.to_owned(), (*property).to_owned()), value)));
        }
        Ok(())
    }

    /// How `state` has other datasets, holds or origins, or other values set; `None` if it has not.
    pub fn differs(&self, state: &PoolState) -> Option<String> {
        if !state.filesystems.keys().eq(self.filesystems.iter())
            || !state.snapshots.keys().eq(self.snapshots.iter())
        {
            let filesystems = state.filesystems.keys().collect::<Vec<_>>();
            let snapshots = state.snapshots.keys().collect::<Vec<_>>();
            let seen = (&self.filesystems, &self.snapshots);
            return Some(format!(
                "the datasets are {:?} {:?} instead of {filesystems:?} {snapshots:?}",
                seen.0, seen.1
            ));
        }
        if !state.partials.keys().eq(self.partials.iter()) {
            let known: Vec<_> = state.partials.keys().collect();
            return Some(format!("received in part are {:?} instead of {known:?}", self.partials));
        }
        if self.holds != state.holds || self.origins != state.origins {
            let (seen, known) = ((&self.holds, &self.origins), (&state.holds, &state.origins));
            return Some(format!("the holds and origins are {seen:?} instead of {known:?}"));
        }
        for name in &self.filesystems {
            for property in LIMITS.iter().chain(&OTHERS) {
                let key = (name.clone(), (*property).to_owned());
                let seen = self.values.get(&key).copied();
                let is_limit = LIMITS.contains(property);
                let value = state.properties.get(&key).copied();
                let value = value.filter(|value| *value != 0 || !is_limit);
                // What the pool was made with is set on its root.
                if seen != value && (value.is_some() || is_limit || name != NAME) {
                    return Some(format!(
                        "{property} of '{name}' is {seen:?} instead of {value:?}"
                    ));
                }
            }
        }
        None
    }
}

fn same_pool(state: &PoolState, seen: &Seen, pool: &Arc<Pool>) -> bool {
    let config = pool.config();
    let tops = config.vdev_tree.iter().flat_map(|root| root.children());
    let tops = tops.filter(|top| top.kind != VdevKind::Hole).count();
    let directory = pool.catalog().object_directory();
    let checkpoint = directory.and_then(|table| table.numbers_of("com.delphix:zpool_checkpoint"));
    seen.differs(state).is_none()
        && state.comment == config.comment
        && state.tops.len() == tops
        && checkpoint.is_ok_and(|found| found.is_some() == state.checkpoint)
}

/// What an open filesystem shows is what it should.
pub fn compare(
    tree: &Filesystem,
    listing: &Listing,
    name: &str,
    damaged: &BTreeSet<NodeId>,
) -> Verdict {
    same(&list(tree, name, damaged)?, listing, name)
}

fn same(found: &Found, listing: &Listing, name: &str) -> Verdict {
    if !found.keys().eq(listing.keys()) {
        let (found, listed) =
            (found.keys().collect::<Vec<_>>(), listing.keys().collect::<Vec<_>>());
        return Err(format!("{name}: names {found:?} instead of {listed:?}"));
    }
    for (path, (node, content, xattrs)) in found {
        let entry = &listing[path];
        if *node != entry.node {
            return Err(format!("{name}/{path}: node {node} instead of {}", entry.node));
        }
        if content.as_ref().is_some_and(|content| *content != entry.content) {
            let len = |content: &Option<Arc<Vec<u8>>>| content.as_ref().map(|bytes| bytes.len());
            let found = content.as_ref().and_then(len);
            return Err(format!(
                "{name}/{path} differs: {found:?} bytes, {:?}",
                len(&entry.content)
            ));
        }
        if xattrs.as_ref().is_some_and(|xattrs| *xattrs != entry.xattrs) {
            return Err(format!("{name}/{path}: extended attributes differ"));
        }
    }
    Ok(())
}

/// Every path below the root, with what is there.
fn list(tree: &Filesystem, name: &str, damaged: &BTreeSet<NodeId>) -> Verdict<Found> {
    let mut found = Found::new();
    let mut directories = vec![(String::new(), ROOT)];
    while let Some((path, node)) = directories.pop() {
        let mut entries = Vec::new();
        let each = &mut |entry: cenote_posix::tree::DirectoryEntry| {
            entries.push(entry.name);
            true
        };
        let words = |error: cenote_posix::tree::Errno| format!("{name}/{path}: {error}");
        tree.read_directory(node, 0, each).map_err(words)?;
        for entry in entries.into_iter().filter(|entry| entry != b"." && entry != b"..") {
            let attributes = tree.lookup(node, &entry).map_err(words)?;
            let short = String::from_utf8_lossy(&entry).into_owned();
            let path = if path.is_empty() { short } else { format!("{path}/{short}") };
            let (node, size) = (attributes.node, attributes.size as usize);
            let spared = damaged.contains(&node);
            let content = if attributes.mode & TYPE == DIRECTORY {
                directories.push((path.clone(), node));
                Some(None)
            } else {
                match tree.read(node, 0, size) {
                    Ok(pieces) => Some(Some(Arc::new(pieces.concat()))),
                    Err(error) if spared && error.code == EIO => None,
                    Err(error) => return Err(format!("{name}/{path} is not read: {error}")),
                }
            };
            let xattrs = match xattrs_of(tree, node) {
                Ok(xattrs) => Some(xattrs),
                Err(_) if spared => None,
                Err(error) => return Err(format!("{name}/{path}: {error}")),
            };
            let content = if spared { content.filter(|_| false) } else { content };
            let content = match content {
                None if attributes.mode & TYPE == DIRECTORY => Some(None),
                content => content,
            };
            found.insert(path, (node, content, xattrs));
        }
    }
    Ok(found)
}

fn xattrs_of(tree: &Filesystem, node: NodeId) -> Result<Xattrs, cenote_posix::tree::Errno> {
    let names = tree.list_xattr(node)?.into_iter().filter(|name| name.starts_with(b"user."));
    names
        .map(|name| {
            let value = tree.get_xattr(node, &name)?;
            Ok((String::from_utf8_lossy(&name).into_owned(), value))
        })
        .collect()
}

fn fits(
    bytes: &[u8],
    content: &Sequence<Content>,
    range: RangeInclusive<usize>,
    place: &str,
) -> Verdict {
    let (least, most) = (*range.start(), *range.end());
    if range.rev().any(|number| bytes == content.state(number).bytes.as_slice())
        || is_replayed(bytes, content, least, most)
    {
        return Ok(());
    }
    let (first, last) = (&content.state(least).bytes, &content.state(most).bytes);
    let differs = |other: &[u8]| bytes.iter().zip(other).position(|(one, other)| one != other);
    Err(format!(
        "{place}: {} bytes as in none of states {least} ({} bytes, differs at {:?}) to {most} ({} \
         bytes, differs at {:?})",
        bytes.len(),
        first.len(),
        differs(first),
        last.len(),
        differs(last)
    ))
}

/// Whether `bytes` are between two states of which the later is shorter, or has a hole more: where tables make
/// freeing dear that is done over several groups.
fn is_done_in_part(
    bytes: &[u8],
    content: &Sequence<Content>,
    range: RangeInclusive<usize>,
) -> bool {
    (*range.start()..*range.end()).any(|number| {
        let (before, after) = (&content.state(number).bytes, &content.state(number + 1).bytes);
        let is_cut = before.starts_with(after) && before.starts_with(bytes);
        let mut pairs = before.iter().zip(after.iter());
        let is_hole =
            before.len() == after.len() && pairs.all(|(old, new)| old == new || *new == 0);
        let done = bytes.iter().zip(after.iter()).take_while(|(one, other)| one == other).count();
        is_cut && bytes.len() >= after.len() || is_hole && bytes.get(done..) == before.get(done..)
    })
}

/// Whether `bytes` are what was acknowledged (`least`), changed by what a log may hold of the changes after
/// it: those up to some moment, of the last perhaps only a beginning. What a record tells may be what its
/// place held later, by the time of the fsync: at most what it held in `most`.
fn is_replayed(bytes: &[u8], content: &Sequence<Content>, least: usize, most: usize) -> bool {
    let holds = |owner: usize, at: usize| {
        let seen = bytes.get(at).copied();
        (owner..=most).any(|later| {
            let known = content.state(later).bytes.get(at).copied();
            seen == Some(known.unwrap_or(0))
        })
    };
    let fits = |owners: &[usize]| {
        let mut all = owners.iter().enumerate();
        owners.len() == bytes.len() && all.all(|(at, owner)| holds(*owner, at))
    };
    // The first state that each byte can be from.
    let mut owners = vec![least; content.state(least).bytes.len()];
    for number in least + 1..=most {
        let state = content.state(number);
        let Some((offset, length)) = state.written else {
            owners = vec![number; state.bytes.len()];
            continue;
        };
        let same = (offset..offset + length).take_while(|at| holds(number, *at)).count();
        for covered in [same, length] {
            let mut begun = owners.clone();
            begun.resize(begun.len().max(offset + covered), number);
            begun[offset..offset + covered].fill(number);
            if fits(&begun) {
                return true;
            }
            if covered == length {
                owners = begun;
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A dot is a zero.
    fn bytes_of(text: &str) -> Vec<u8> {
        text.bytes().map(|byte| if byte == b'.' { 0 } else { byte }).collect()
    }

    fn state(text: &str, written: Option<(usize, usize)>) -> Content {
        Content { bytes: Arc::new(bytes_of(text)), written }
    }

    #[test]
    fn what_is_done_in_parts_may_be_half_done() {
        let mut all = Sequence::new(state("abcdefgh", None));
        all.begin(state("ab", None));
        all.begin(state("abcdefgh", None));
        all.begin(state("a....fgh", None));
        let may = |text: &str| is_done_in_part(&bytes_of(text), &all, 0..=3);
        assert!(may("abcdef") && may("abcdefgh"), "shorter, but not as short as it is to be");
        assert!(may("a..defgh"), "a part of the hole");
        assert!(!may("a") && !may("abcxef"), "too short, and other bytes");
        assert!(!may("abc..fgh") && !may("a...."), "the end of the hole first, and both at once");
    }

    #[test]
    fn what_a_log_may_hold_is_told_from_what_it_may_not() {
        let mut all = Sequence::new(state("", None));
        all.begin(state("..aaaaaa", Some((2, 6))));
        all.begin(state("..aabbaa", Some((4, 2))));
        all.begin(state(".ccccccc", Some((1, 7))));
        let may = |text: &str, least| is_replayed(&bytes_of(text), &all, least, 3);
        assert!(may("..aaa", 0), "a beginning of the first write");
        assert!(may("..ccbbcc", 0), "the first two, the first as its place was by the fsync");
        assert!(may("..cccccc", 0), "both as their places were by then");
        assert!(may(".caabbaa", 0), "a beginning of the third");
        assert!(!may("..xaaaaa", 0), "bytes that nobody wrote");
        assert!(!may("..aa..aa", 0), "a write that is there without what is below it");
        assert!(!may("..aaaaaa", 2), "what was acknowledged is gone");
        assert!(!may("..aabb", 2), "an end that was acknowledged is gone");
    }
}
