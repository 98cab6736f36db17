//! Moving names: rename, exchange, whiteout.
//!
//! Chapter 05, section 9. Invariant: directories stay a tree: a directory never moves into itself
//! or below itself, which the rename lock keeps true while the way up is walked.

use std::sync::Arc;

use cenote_engine::txg::Tx;
use cenote_format::zil::{LogId, Payload, RenameKind, Whiteout};
use cenote_format::{ObjectId, pflags};

use super::FilesystemWriter;
use super::acl::Inherited;
use super::names::Found;
use super::namespace::{DirectoryChange, check_directory, check_movable, grown, log_time};
use super::nodes::{Locked, Node};
use super::object::new_flags;
use super::replay::{id_of, slots_of};
use crate::attributes::{CHARACTER, Facts, stored_time};
use crate::error::{EBUSY, EEXIST, EINVAL, EIO, EISDIR, ENOENT, ENOTDIR, ENOTEMPTY, EXDEV};
use crate::tree::{Caller, Errno, RenameFlags, Result, Timestamp};
use crate::view::File;

/// Directories above one another that are believed.
const DEPTH_MAX: u32 = 1 << 16;

/// A rename that was looked up.
struct Move<'a> {
    caller: Caller,
    from: ObjectId,
    to: ObjectId,
    source: Found,
    target: Option<Found>,
    /// The new name as it was asked for.
    name: &'a [u8],
    flags: RenameFlags,
    /// The whiteout that a record of the intent log tells of.
    recorded: Option<&'a Whiteout>,
}

/// An entry of a directory: its name; the object, and that one's mode.
type Named<'a> = (&'a [u8], (ObjectId, u32));

impl FilesystemWriter {
    /// Moves `from` in `from_parent` to `to` in `to_parent`.
    pub fn rename(
        &self,
        caller: Caller,
        from_parent: ObjectId,
        from: &[u8],
        to_parent: ObjectId,
        to: &[u8],
        flags: RenameFlags,
    ) -> Result<()> {
        self.rename_as(caller, (from_parent, from), (to_parent, to), flags, None)
    }

    /// The same; `recorded` is the whiteout it left when it was done before.
    pub(super) fn rename_as(
        &self,
        caller: Caller,
        (from_parent, from): (ObjectId, &[u8]),
        (to_parent, to): (ObjectId, &[u8]),
        flags: RenameFlags,
        recorded: Option<&Whiteout>,
    ) -> Result<()> {
        self.check_old_name(from, EBUSY)?;
        self.check_name(to, if flags.no_replace { EEXIST } else { EBUSY })?;
        if flags.exchange && (flags.no_replace || flags.whiteout) {
            return Err(Errno::new(EINVAL, "flags that exclude each other"));
        }
        self.retrying(|| {
            let parents = (from_parent, to_parent);
            while !self.rename_once(caller, parents, (from, to), flags, recorded)? {}
            Ok(())
        })
    }

    /// False: something changed meanwhile.
    fn rename_once(
        &self,
        caller: Caller,
        (from, to): (ObjectId, ObjectId),
        (old, new): (&[u8], &[u8]),
        flags: RenameFlags,
        recorded: Option<&Whiteout>,
    ) -> Result<bool> {
        let _reservation = self.admit_freeing()?;
        let _order = (from != to).then(|| self.renames.lock());
        let (from_node, to_node) = (self.node(from)?, self.node(to)?);
        let source = self.look(&from_node, old)?;
        let source = source.ok_or_else(|| Errno::new(ENOENT, "no such name"))?;
        let target = self.look(&to_node, new)?;
        let Ok(source_node) = self.node(source.id) else {
            return self.expect_gone(&from_node, old, &source);
        };
        let target_node = match &target {
            Some(found) => match self.node(found.id) {
                Ok(node) => Some(node),
                Err(_) => return self.expect_gone(&to_node, new, found),
            },
            None => None,
        };
        if from != to {
            self.expect_outside(&to_node, source.id)?;
            if let Some(found) = target.as_ref().filter(|_| flags.exchange) {
                self.expect_outside(&from_node, found.id)?;
            }
        }
        if source.id == from || source.id == to {
            return Err(Errno::new(EINVAL, "a directory cannot move into itself"));
        }
        if target.as_ref().is_some_and(|found| found.id == from) {
            return Err(Errno::new(ENOTEMPTY, "the target holds the source"));
        }
        let nodes = [Some(&from_node), Some(&to_node), Some(&source_node), target_node.as_ref()];
        let Ok(mut locked) = Locked::new(nodes.into_iter().flatten()) else { return Ok(false) };
        let again = self.find(&locked.of(from)?.file, old)?;
        if again.as_ref() != Some(&source) || self.find(&locked.of(to)?.file, new)? != target {
            return Ok(false);
        }
        let plan = Move { caller, from, to, source, target, name: new, flags, recorded };
        self.rename_locked(&mut locked, &plan)?;
        Ok(true)
    }

    fn look(&self, directory: &Arc<Node>, name: &[u8]) -> Result<Option<Found>> {
        let state = directory.read()?;
        if !state.file.facts.is_directory() {
            return Err(Errno::new(ENOTDIR, "not a directory"));
        }
        self.find(&state.file, name)
    }

    /// The object of an entry could not be opened: false if the entry is gone too.
    fn expect_gone(&self, directory: &Arc<Node>, name: &[u8], found: &Found) -> Result<bool> {
        match self.look(directory, name)? {
            Some(again) if again == *found => {
                Err(Errno::new(EIO, format!("a name of object {}, which is no file", found.id)))
            }
            _ => Ok(false),
        }
    }

    /// EINVAL if `directory` is `moved` or lies below it.
    fn expect_outside(&self, directory: &Arc<Node>, moved: ObjectId) -> Result<()> {
        let root = self.view.root();
        let mut at = directory.id();
        for _ in 0..DEPTH_MAX {
            if at == moved {
                return Err(Errno::new(EINVAL, "a directory cannot move below itself"));
            }
            if at == root {
                return Ok(());
            }
            let parent = ObjectId(self.node(at)?.read()?.file.facts.parent);
            if parent == at {
                return Ok(());
            }
            at = parent;
        }
        Err(Errno::new(EIO, "the directories above do not end"))
    }

    fn rename_locked(&self, locked: &mut Locked<'_>, plan: &Move<'_>) -> Result<()> {
        let (from, to) = (locked.of(plan.from)?.file.facts, locked.of(plan.to)?.file.facts);
        check_directory(&from, DirectoryChange::Remove)?;
        check_directory(&to, DirectoryChange::Add)?;
        let source = locked.of(plan.source.id)?.file.facts;
        let same_object = plan.target.as_ref().is_some_and(|found| found.id == plan.source.id);
        if plan.flags.no_replace && plan.target.is_some() {
            return Err(Errno::new(EEXIST, "the new name exists"));
        }
        if same_object {
            let found = plan.target.as_ref().map(|found| found.name.as_slice());
            let respelled = plan.from == plan.to
                && found == Some(&plan.source.name)
                && plan.source.name != plan.name;
            // Two names of one file: nothing is to be done, whatever the flags.
            if !respelled || plan.flags.exchange {
                return Ok(());
            }
        }
        check_movable(&source)?;
        expect_project(&to, &source)?;
        if plan.flags.exchange {
            return self.exchange(locked, plan);
        }
        if let Some(found) = plan.target.as_ref().filter(|_| !same_object) {
            check_directory(&to, DirectoryChange::Remove)?;
            let file = &locked.of(found.id)?.file;
            check_movable(&file.facts)?;
            match (source.is_directory(), file.facts.is_directory()) {
                (true, false) => return Err(Errno::new(ENOTDIR, "the target is no directory")),
                (false, true) => return Err(Errno::new(EISDIR, "the target is a directory")),
                (true, true) if !self.is_empty(file)? => {
                    return Err(Errno::new(ENOTEMPTY, "the target is not empty"));
                }
                _ => {}
            }
        }
        self.replace(locked, plan, same_object)
    }

    /// Gives the source its new name, in the place of the target if there is another file.
    fn replace(&self, locked: &mut Locked<'_>, plan: &Move<'_>, same: bool) -> Result<()> {
        let replaced = plan.target.as_ref().filter(|_| !same);
        let last_name = match replaced {
            Some(found) => {
                let facts = &locked.of(found.id)?.file.facts;
                facts.is_directory() || facts.links <= 1
            }
            None => false,
        };
        let queue = match replaced.filter(|_| last_name) {
            Some(found) => Some(self.queue.ready(found.id)?),
            None => None,
        };
        self.ready_to_move(locked, plan)?;
        let tx = self.begin()?;
        let time = Timestamp::now();
        // The whiteout comes first: it may fail for want of a layout.
        let whiteout = match plan.flags.whiteout {
            true => Some(self.make_whiteout(&tx, plan, time)?),
            false => None,
        };
        if let Err(error) = self.move_entry(&tx, locked, plan, replaced, whiteout.as_ref()) {
            if let Some(file) = &whiteout {
                self.view.objects().free_object(&tx, file.object.id())?;
            }
            return Err(error);
        }
        if let Some(found) = replaced {
            if let Some(queue) = &queue {
                queue.add(&tx, found.id)?;
            }
            self.take_name(&tx, &mut locked.of(found.id)?.file, time)?;
        }
        self.moved(&tx, locked, plan.source.id, plan.to, time)?;
        let is_directory = locked.of(plan.source.id)?.file.facts.is_directory();
        let links = i64::from(is_directory);
        let entries_left = i64::from(whiteout.is_some()) - 1;
        self.resize_directory(&tx, locked, plan.from, (entries_left, -links), time)?;
        let (entries_new, links_new) = match replaced {
            // A directory replaces directories only.
            Some(_) => (0, 0),
            None => (1, links),
        };
        self.resize_directory(&tx, locked, plan.to, (entries_new, links_new), time)?;
        let kind = match &whiteout {
            Some(file) => RenameKind::Whiteout(logged(file)),
            None => RenameKind::Plain,
        };
        self.note_rename(&tx, plan, kind)?;
        if let Some(found) = replaced.filter(|_| last_name) {
            self.note_unnamed(found.id);
        }
        if let Some(file) = whiteout {
            self.nodes.add(file.object.id(), file)?;
        }
        Ok(())
    }

    /// Reads what the changes of both directories need: of them, either all or none are made.
    fn ready_to_move(&self, locked: &mut Locked<'_>, plan: &Move<'_>) -> Result<()> {
        self.ready_to_change_entry(&locked.of(plan.to)?.file, plan.name)?;
        self.ready_to_change_entry(&locked.of(plan.from)?.file, &plan.source.name)
    }

    /// Changes the entries of both directories: the new name leads to the source, and the old one goes,
    /// or leads to the whiteout. If one cannot be changed, neither is.
    fn move_entry(
        &self,
        tx: &Tx,
        locked: &mut Locked<'_>,
        plan: &Move<'_>,
        replaced: Option<&Found>,
        whiteout: Option<&File>,
    ) -> Result<()> {
        let source = (plan.source.id, locked.of(plan.source.id)?.file.facts.mode);
        let old = match replaced {
            Some(found) => {
                Some((found.name.as_slice(), (found.id, locked.of(found.id)?.file.facts.mode)))
            }
            None => None,
        };
        let target_directory = &locked.of(plan.to)?.file;
        self.turn_entry(tx, target_directory, old, Some((plan.name, source)))?;
        let source_directory = &locked.of(plan.from)?.file;
        let name = plan.source.name.as_slice();
        let left = whiteout.map(|file| (name, (file.object.id(), file.facts.mode)));
        let turned = self.turn_entry(tx, source_directory, Some((name, source)), left);
        if turned.is_err() {
            let target_directory = &locked.of(plan.to)?.file;
            self.turn_entry(tx, target_directory, Some((plan.name, source)), old)?;
        }
        turned
    }

    /// Puts one entry of a directory in the place of another; all or nothing.
    fn turn_entry(
        &self,
        tx: &Tx,
        directory: &File,
        old: Option<Named<'_>>,
        new: Option<Named<'_>>,
    ) -> Result<()> {
        match (old, new) {
            (Some((old, _)), Some((new, (id, mode)))) if old == new => {
                self.set_entry(tx, directory, new, id, mode)
            }
            (old, new) => {
                if let Some((name, _)) = old {
                    self.remove_entry(tx, directory, name)?;
                }
                let Some((name, (id, mode))) = new else { return Ok(()) };
                let added = self.add_entry(tx, directory, name, id, mode);
                if let (Err(_), Some((name, (id, mode)))) = (&added, old) {
                    self.add_entry(tx, directory, name, id, mode)?;
                }
                added
            }
        }
    }

    /// A file that was replaced has a name less; a directory has none any more.
    fn take_name(&self, tx: &Tx, file: &mut File, time: Timestamp) -> Result<()> {
        let links = match file.facts.is_directory() {
            true => 0,
            false => file.facts.links.saturating_sub(1),
        };
        let facts = Facts { links, changed: time, ..file.facts };
        self.store(tx, file, &facts, &[])
    }

    /// A directory has so many more entries and links (fewer, where negative).
    fn resize_directory(
        &self,
        tx: &Tx,
        locked: &mut Locked<'_>,
        id: ObjectId,
        (entries, links): (i64, i64),
        time: Timestamp,
    ) -> Result<()> {
        let directory = &mut locked.of(id)?.file;
        let facts = grown(&directory.facts, entries, links, time);
        self.store(tx, directory, &facts, &[])
    }

    /// The object got a name in `parent`.
    fn moved(
        &self,
        tx: &Tx,
        locked: &mut Locked<'_>,
        id: ObjectId,
        parent: ObjectId,
        time: Timestamp,
    ) -> Result<()> {
        let file = &mut locked.of(id)?.file;
        let flags = file.facts.flags | pflags::ARCHIVE | pflags::SCAN_MODIFIED;
        let facts = Facts { parent: parent.0, changed: time, flags, ..file.facts };
        self.store(tx, file, &facts, &[])
    }

    fn exchange(&self, locked: &mut Locked<'_>, plan: &Move<'_>) -> Result<()> {
        let absent = || Errno::new(ENOENT, "there is nothing to exchange with");
        let target = plan.target.as_ref().ok_or_else(absent)?;
        let other = locked.of(target.id)?.file.facts;
        check_movable(&other)?;
        check_directory(&locked.of(plan.to)?.file.facts, DirectoryChange::Remove)?;
        expect_project(&locked.of(plan.from)?.file.facts, &other)?;
        let source = locked.of(plan.source.id)?.file.facts;
        self.ready_to_move(locked, plan)?;
        let tx = self.begin()?;
        let time = Timestamp::now();
        let directory = &locked.of(plan.to)?.file;
        self.set_entry(&tx, directory, &target.name, plan.source.id, source.mode)?;
        let directory = &locked.of(plan.from)?.file;
        let set = self.set_entry(&tx, directory, &plan.source.name, target.id, other.mode);
        if set.is_err() {
            let directory = &locked.of(plan.to)?.file;
            self.set_entry(&tx, directory, &target.name, target.id, other.mode)?;
            return set;
        }
        self.moved(&tx, locked, plan.source.id, plan.to, time)?;
        self.moved(&tx, locked, target.id, plan.from, time)?;
        let links = i64::from(source.is_directory()) - i64::from(other.is_directory());
        self.resize_directory(&tx, locked, plan.from, (0, -links), time)?;
        self.resize_directory(&tx, locked, plan.to, (0, links), time)?;
        self.note_rename(&tx, plan, RenameKind::Exchange)
    }

    fn make_whiteout(&self, tx: &Tx, plan: &Move<'_>, time: Timestamp) -> Result<File> {
        let new = |mode: u32, time: Timestamp| Facts {
            mode,
            size: 0,
            generation: 0,
            parent: plan.from.0,
            links: 1,
            uid: plan.caller.uid,
            gid: plan.caller.gid,
            flags: new_flags(mode, false, self.properties().projects),
            device: 0,
            project: 0,
            accessed: time,
            modified: time,
            changed: time,
            created: time,
        };
        let Some(recorded) = plan.recorded else {
            let facts = new(CHARACTER, time);
            return self.make(tx, facts, &[], &Inherited::none(CHARACTER), None);
        };
        let mode = CHARACTER | recorded.mode as u32 & 0o7777;
        let facts = Facts {
            uid: id_of(recorded.owner),
            gid: id_of(recorded.group),
            generation: recorded.generation,
            device: recorded.device,
            ..new(mode, stored_time(recorded.created))
        };
        let claim = Some((ObjectId(recorded.object.object), slots_of(recorded.object)));
        self.make(tx, facts, &[], &Inherited::none(facts.mode), claim)
    }

    fn note_rename(&self, tx: &Tx, plan: &Move<'_>, kind: RenameKind) -> Result<()> {
        self.note(tx, plan.source.id, || Payload::Rename {
            kind,
            source_directory: plan.from.0,
            source: plan.source.name.clone(),
            target_directory: plan.to.0,
            target: plan.name.to_vec(),
        })
    }
}

/// EXDEV where a file would come under a directory of another project.
fn expect_project(directory: &Facts, file: &Facts) -> Result<()> {
    let inherits = directory.flags & pflags::PROJECT_INHERIT != 0;
    match inherits && directory.project != file.project {
        true => Err(Errno::new(EXDEV, "the directory belongs to another project")),
        false => Ok(()),
    }
}

fn logged(file: &File) -> Whiteout {
    let facts = &file.facts;
    Whiteout {
        object: LogId { object: file.object.id().0, extra_slots: file.object.dnode().extra_slots },
        mode: facts.mode.into(),
        owner: facts.uid.into(),
        group: facts.gid.into(),
        generation: facts.generation,
        created: log_time(facts.created),
        device: facts.device,
    }
}
