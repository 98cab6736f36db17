//! Steps that are orders: datasets, properties, devices, checkpoints.
//!
//! Invariant: an order is all or nothing: one that is answered is on the disks; one that is refused has
//! changed nothing, and the pool goes on. What they do is what the pool process does.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use cenote_engine::dataset::change::PropertyInput;
use cenote_engine::pool::change::{Additions, DatasetOrders, Encryption, NewNamed};
use cenote_engine::pool::group::LivePool;
use cenote_engine::vdev::AllocationClass;
use cenote_engine::{Error, ErrorKind, Result};
use cenote_format::config::{TopLevel, VdevConfig};
use cenote_format::objset::ObjsetKind;
use cenote_posix::create::{NewFilesystem, initialise};

use crate::disks::{NAME, leaf};
use crate::judge::Seen;
use crate::model::{Listing, Mark, Partial, PoolState, SetStory};
use crate::plan::Step;
use crate::run::{Runner, Verdict};

/// The tag of all holds.
const TAG: &str = "kept";

fn inputs(properties: &[(String, u64)]) -> Vec<PropertyInput> {
    properties.iter().map(|(name, value)| PropertyInput::number(name, *value)).collect()
}

fn is_below(name: &str, above: &str) -> bool {
    name == above
        || name
            .strip_prefix(above)
            .is_some_and(|rest| rest.starts_with('/') || rest.starts_with('@'))
}

impl Runner {
    /// Does a step of this kind.
    pub(crate) fn order_step(&mut self, step: &Step) -> Verdict {
        match step {
            Step::NewFilesystem { below, name, properties } => {
                self.new_filesystem(*below, *name, properties)
            }
            Step::Destroy { set, recursive } => self.destroy(*set, *recursive),
            Step::Snapshot { set, name, recursive } => self.snapshot(*set, *name, *recursive),
            Step::DestroySnapshot { snapshot } => self.destroy_snapshot(*snapshot),
            Step::DestroySnapshots { set, name } => self.destroy_snapshots(*set, *name),
            Step::RenameSnapshot { snapshot, name } => self.rename_snapshot(*snapshot, *name),
            Step::Clone { snapshot, name } => self.clone_of(*snapshot, *name),
            Step::Promote { set } => self.promote(*set),
            Step::Rollback { set } => self.rollback(*set),
            Step::RenameFilesystem { set, below, name } => {
                self.rename_filesystem(*set, *below, *name)
            }
            Step::Set { set, property, value } => self.set_property(*set, property, *value),
            Step::Hold { snapshot } => self.hold(*snapshot),
            Step::Release { snapshot } => self.release(*snapshot),
            Step::Comment { text } => self.comment(*text),
            Step::AddLog => self.add("/sim/x-log", AllocationClass::Log),
            Step::AddDisk => self.add("/sim/y-data", AllocationClass::Normal),
            Step::RemoveLog => self.remove_log(),
            Step::Checkpoint => self.checkpoint(true),
            Step::DiscardCheckpoint => self.checkpoint(false),
            other => Err(format!("nobody does {other:?}")),
        }
    }

    /// Gives an order that makes the pool be as `next`; whether it was done.
    pub(crate) fn order<T>(
        &mut self,
        next: PoolState,
        run: impl FnOnce(&Arc<LivePool>) -> Result<T>,
    ) -> Verdict<bool> {
        let mark = self.begun(next);
        let answer = run(&self.live);
        self.answered(mark, answer)
    }

    /// An order that makes the pool be as `next` is about to be given.
    pub(crate) fn begun(&mut self, next: PoolState) -> Mark {
        self.model.pool.begin(next);
        self.model.mark()
    }

    /// An order was refused, for a good reason.
    pub(crate) fn declined(&mut self, error: &Error) -> Verdict {
        self.tally.declined += 1;
        // A group may have been written for it, with which a scan ended.
        self.note_missed();
        let is_fair = !matches!(
            error.kind(),
            ErrorKind::Io
                | ErrorKind::Corrupt
                | ErrorKind::Checksum
                | ErrorKind::TimedOut
                | ErrorKind::Bug
        );
        if is_fair || self.failing { Ok(()) } else { Err(format!("the order fails: {error}")) }
    }

    /// The order that was begun last was answered; whether it was done.
    pub(crate) fn answered<T>(&mut self, mark: Mark, answer: Result<T>) -> Verdict<bool> {
        match &answer {
            Ok(_) => {
                self.model.acknowledge(&mark);
                self.note_missed();
            }
            Err(error) => {
                self.model.pool.retract();
                self.declined(error)?;
            }
        }
        self.still_writes()?;
        self.look_around()?;
        let answer = answer.map(drop).map_err(|error| error.to_string());
        match Seen::of(self.live.pool())?.differs(self.model.pool.newest()) {
            None => Ok(answer.is_ok()),
            Some(differs) => Err(format!("after {answer:?} {differs}")),
        }
    }

    /// As [`Self::order`] for an order about datasets, in the middle of which something else may be done.
    pub(crate) fn alter<T: Send + 'static>(
        &mut self,
        next: PoolState,
        order: impl FnOnce(DatasetOrders<'_>) -> Result<T> + Send + 'static,
    ) -> Verdict<bool> {
        match self.meanwhile.is_empty() {
            true => self.order(next, |live| order(live.orders())),
            false => self.alter_beside(next, order),
        }
    }

    /// Where another order is to be done between this one's looking and changing: closes these heads, as
    /// this one will, and does the other. False if they cannot be closed: this one is refused.
    fn let_another_between(&mut self, heads: &[(String, u64)]) -> Verdict<bool> {
        if self.between.is_none() {
            return Ok(true);
        }
        let close = |live: &LivePool| {
            heads.iter().try_for_each(|(name, _)| {
                let id = live.pool().catalog().dataset_named(name)?.id;
                live.close_dataset(id)
            })
        };
        if let Err(error) = close(&self.live) {
            self.declined(&error)?;
            return Ok(false);
        }
        self.closed.extend(heads.iter().map(|(_, set)| *set));
        let beside = self.interlude();
        self.closed.clear();
        beside.map(|()| true)
    }

    pub(crate) fn state(&self) -> PoolState {
        self.model.pool.newest().clone()
    }

    pub(crate) fn chosen_snapshot(&self, choice: u8) -> Option<String> {
        let all = &self.model.pool.newest().snapshots;
        all.keys().nth(choice as usize % all.len().max(1)).cloned()
    }

    fn new_filesystem(&mut self, below: u8, name: u8, properties: &[(String, u64)]) -> Verdict {
        let (parent, _) = self.set(below);
        let short = format!("n{}", name % 6);
        let full = format!("{parent}/{short}");
        let mut next = self.state();
        if next.filesystems.contains_key(&full) || parent.matches('/').count() > 2 {
            return self.pass();
        }
        let number = self.model.next_set();
        next.filesystems.insert(full.clone(), number);
        for (property, value) in properties {
            next.properties.insert((full.clone(), property.clone()), *value);
        }
        self.model.sets.insert(number, SetStory::of(&BTreeMap::new(), false, false));
        let new = NewNamed {
            name: full.clone(),
            properties: inputs(properties),
            creator: 0,
            encryption: Encryption::Inherited,
            kind: ObjsetKind::Zfs,
            case_insensitive: false,
        };
        let done = self.alter(next, move |orders| {
            orders.create(new, |set, tx| {
                let made = initialise(set, tx, &NewFilesystem::default());
                made.map_err(|error| Error::invalid(error.reason))
            })
        })?;
        if done {
            self.tree(&full, number)?;
            self.follow()?;
        }
        Ok(())
    }

    /// Destroys what `names` name, heads with their logs.
    fn destroy_all(&mut self, names: Vec<String>) -> Verdict<bool> {
        let all = self.model.pool.newest().filesystems.iter();
        let heads: Vec<(String, u64)> = all
            .filter(|(name, _)| names.contains(name))
            .map(|(name, set)| (name.clone(), *set))
            .collect();
        for (_, set) in &heads {
            self.trees.remove(set);
        }
        if !self.let_another_between(&heads)? || !self.give_up_below(&names)? {
            return Ok(false);
        }
        let mut next = self.state();
        next.filesystems.retain(|name, _| !names.contains(name));
        next.snapshots.retain(|name, _| !names.contains(name));
        next.origins.retain(|name, _| !names.contains(name));
        next.properties.retain(|(name, _), _| !names.contains(name));
        self.order(next, move |live| live.orders().destroy(&names, false))
    }

    fn destroy(&mut self, set: u8, recursive: bool) -> Verdict {
        let (name, _) = self.set(set);
        if name == NAME {
            return self.pass();
        }
        let state = self.model.pool.newest();
        let below = |other: &&String| is_below(other, &name) && (recursive || **other == name);
        // What is deepest goes first; the snapshots of a filesystem before it.
        let mut names: Vec<String> = state.filesystems.keys().filter(below).cloned().collect();
        if recursive {
            names.extend(state.snapshots.keys().filter(below).cloned());
        }
        names.sort_by(|one, other| other.cmp(one));
        let is_snapshot_of = |one: &str, other: &str| one.split('@').next() == Some(other);
        // A head sorts before its snapshots.
        names.sort_by(|one, other| {
            match (is_snapshot_of(one, other), is_snapshot_of(other, one)) {
                (true, false) => std::cmp::Ordering::Less,
                (false, true) => std::cmp::Ordering::Greater,
                _ => std::cmp::Ordering::Equal,
            }
        });
        self.destroy_all(names)?;
        self.reopen_lost()
    }

    /// Opens filesystems again that were closed for an order that was refused.
    pub(crate) fn reopen_lost(&mut self) -> Verdict {
        // What another order is about to change stays closed.
        let all = self.model.pool.newest().filesystems.clone().into_iter();
        let mut all =
            all.filter(|(_, number)| !self.closed.contains(number)).collect::<Vec<_>>().into_iter();
        all.try_for_each(|(name, number)| self.tree(&name, number).map(drop))?;
        self.follow()
    }

    fn snapshot(&mut self, set: u8, name: u8, recursive: bool) -> Verdict {
        let (of, _) = self.set(set);
        let short = format!("s{}", name % 8);
        let mut next = self.state();
        let mut names = Vec::new();
        for (name, number) in next.filesystems.clone() {
            if name == of || recursive && is_below(&name, &of) {
                // What its log holds is to be in it.
                if !self.closed.contains(&number) {
                    self.tree(&name, number)?;
                }
                let listing = Arc::new(self.model.sets[&number].listing());
                let snapshot = format!("{name}@{short}");
                if next.snapshots.insert(snapshot.clone(), listing).is_some() {
                    return self.pass();
                }
                names.push(snapshot);
            }
        }
        self.alter(next, move |orders| orders.snapshot(&names, Vec::new())).map(drop)
    }

    fn destroy_snapshot(&mut self, choice: u8) -> Verdict {
        match self.chosen_snapshot(choice) {
            Some(name) => self.destroy_all(vec![name]).map(drop),
            None => self.pass(),
        }
    }

    fn destroy_snapshots(&mut self, set: u8, name: u8) -> Verdict {
        let (of, _) = self.set(set);
        let short = format!("@s{}", name % 8);
        let all = self.model.pool.newest().snapshots.keys();
        let names: Vec<String> =
            all.filter(|name| is_below(name, &of) && name.ends_with(&short)).cloned().collect();
        if names.is_empty() {
            return self.pass();
        }
        self.destroy_all(names).map(drop)
    }

    fn rename_snapshot(&mut self, choice: u8, name: u8) -> Verdict {
        let Some(from) = self.chosen_snapshot(choice) else { return self.pass() };
        let Some((head, _)) = from.split_once('@') else { return self.pass() };
        let to = format!("{head}@s{}", name % 8);
        let mut next = self.state();
        if next.snapshots.contains_key(&to) {
            return self.pass();
        }
        renamed(&mut next, &|name| (name == from).then(|| to.clone()));
        self.alter(next, move |orders| orders.rename(&[(from, to)])).map(drop)
    }

    fn clone_of(&mut self, choice: u8, name: u8) -> Verdict {
        let Some(origin) = self.chosen_snapshot(choice) else { return self.pass() };
        let full = format!("{NAME}/c{}", name % 4);
        let mut next = self.state();
        if next.filesystems.contains_key(&full) {
            return self.pass();
        }
        let number = self.model.next_set();
        let listing = next.snapshots[&origin].clone();
        next.filesystems.insert(full.clone(), number);
        next.origins.insert(full.clone(), origin.clone());
        self.model.sets.insert(number, SetStory::of(&listing, false, false));
        let name = full.clone();
        let done =
            self.alter(next, move |orders| orders.clone_snapshot(&origin, &name, Vec::new(), 0))?;
        if done {
            self.tree(&full, number)?;
            self.follow()?;
        }
        Ok(())
    }

    fn promote(&mut self, choice: u8) -> Verdict {
        let origins = &self.model.pool.newest().origins;
        let chosen = origins.iter().nth(choice as usize % origins.len().max(1));
        let Some((clone, origin)) = chosen.map(|(clone, origin)| (clone.clone(), origin.clone()))
        else {
            return self.pass();
        };
        let catalog = self.live.pool().catalog();
        let born = |name: &str| catalog.dataset_named(name).map(|one| one.phys.creation_txg);
        let last = born(&origin).map_err(|error| format!("'{origin}': {error}"))?;
        let parent = origin.split('@').next().unwrap_or_default().to_owned();
        let mut next = self.state();
        let moves: BTreeMap<String, String> = next
            .snapshots
            .keys()
            .filter(|name| name.split('@').next() == Some(&parent))
            .filter(|name| born(name).is_ok_and(|born| born <= last))
            .map(|name| (name.clone(), name.replacen(&parent, &clone, 1)))
            .collect();
        if moves.values().any(|to| next.snapshots.contains_key(to)) {
            return self.pass();
        }
        let of_parent = next.origins.remove(&parent);
        next.origins.remove(&clone);
        next.origins.insert(parent, origin);
        next.origins.extend(of_parent.map(|origin| (clone.clone(), origin)));
        renamed(&mut next, &|name| moves.get(name).cloned());
        self.alter(next, move |orders| orders.promote(&clone)).map(drop)
    }

    fn rollback(&mut self, set: u8) -> Verdict {
        let (name, number) = self.set(set);
        let catalog = self.live.pool().catalog();
        let head = catalog.dataset_named(&name).map_err(|error| format!("'{name}': {error}"))?;
        // Some clone's first snapshot is another's.
        let of_it = |(snapshot, _): &(&String, &Arc<Listing>)| {
            let found = catalog.dataset_named(snapshot);
            snapshot.split('@').next() == Some(&name)
                && found.is_ok_and(|found| found.id == head.phys.previous_snapshot)
        };
        let newest = self.model.pool.newest().snapshots.iter().find(of_it);
        let newest = newest.map(|(snapshot, listing)| (snapshot.clone(), listing.clone()));
        let Some((snapshot, listing)) = newest else { return self.pass() };
        self.trees.remove(&number);
        if !self.let_another_between(&[(name, number)])? {
            return self.reopen_lost();
        }
        let mut next = self.state();
        let fresh = self.model.next_set();
        // Another order may have given it another name.
        let now = next.filesystems.iter().find(|(_, known)| **known == number);
        if let Some(now) = now.map(|(name, _)| name.clone()) {
            next.filesystems.insert(now, fresh);
        }
        self.model.sets.insert(fresh, SetStory::of(&listing, false, false));
        self.order(next, move |live| live.orders().rollback(&snapshot, &[]))?;
        self.reopen_lost()
    }

    fn rename_filesystem(&mut self, set: u8, below: u8, name: u8) -> Verdict {
        let ((from, _), (parent, _)) = (self.set(set), self.set(below));
        let to = format!("{parent}/r{}", name % 5);
        let mut next = self.state();
        if Self::is_root(&from) || is_below(&parent, &from) || next.filesystems.contains_key(&to) {
            return self.pass();
        }
        if parent.matches('/').count() > 2 {
            return self.pass();
        }
        renamed(&mut next, &|name| is_below(name, &from).then(|| name.replacen(&from, &to, 1)));
        self.alter(next, move |orders| orders.rename(&[(from, to)]))?;
        self.follow()
    }

    fn set_property(&mut self, set: u8, property: &str, value: u64) -> Verdict {
        let (name, _) = self.set(set);
        let mut next = self.state();
        next.properties.insert((name.clone(), property.to_owned()), value);
        let input = PropertyInput::number(property, value);
        self.group()?;
        let catalog = self.live.pool().catalog();
        if let Ok(dataset) = catalog.dataset_named(&name) {
            let used = dataset.directory.phys.used_bytes.max(dataset.phys.referenced_bytes);
            next.properties.insert((name.clone(), format!("{property} set at")), used);
        }
        self.alter(next, move |orders| orders.set_properties(vec![(name, vec![input])]))?;
        self.follow()
    }

    fn hold(&mut self, choice: u8) -> Verdict {
        let Some(name) = self.chosen_snapshot(choice) else { return self.pass() };
        let mut next = self.state();
        next.holds.insert(name.clone(), 1);
        self.alter(next, move |orders| orders.hold(&[name], TAG)).map(drop)
    }

    fn release(&mut self, choice: u8) -> Verdict {
        let Some(name) = self.chosen_snapshot(choice) else { return self.pass() };
        let mut next = self.state();
        next.holds.remove(&name);
        self.alter(next, move |orders| orders.release(&[name], TAG)).map(drop)
    }

    fn comment(&mut self, text: u8) -> Verdict {
        let text = format!("comment {text}");
        let mut next = self.state();
        next.comment = Some(text.clone());
        let input = PropertyInput::text("comment", &text);
        self.order(next, |live| live.set_pool_property(input)).map(drop)
    }

    fn add(&mut self, path: &str, class: AllocationClass) -> Verdict {
        let mut next = self.state();
        let is_log = class == AllocationClass::Log;
        let kind = format!("added {path}");
        // A disk that was one of the pool is not added again.
        let simple = ["disk", "stripe", "many"];
        let redundant = !simple.contains(&self.setup.layout.as_str());
        if next.properties.contains_key(&(path.to_owned(), String::new())) || redundant && !is_log {
            return self.pass();
        }
        next.tops.push(kind);
        next.properties.insert((path.to_owned(), String::new()), 0);
        let facts = TopLevel { ashift: self.setup.ashift, is_log, ..TopLevel::default() };
        let top = VdevConfig { top: Some(facts), ..leaf(Path::new(path)) };
        let plan = Additions { tops: vec![(top, class)], ..Additions::default() };
        let opener = self.disks.opener();
        self.order(next, |live| live.add_vdevs(plan, opener)).map(drop)
    }

    fn remove_log(&mut self) -> Verdict {
        let config = self.live.pool().config();
        let tops = config.vdev_tree.iter().flat_map(|root| root.children());
        let is_log = |top: &&VdevConfig| top.top.is_some_and(|top| top.is_log);
        let Some(guid) = tops.into_iter().filter(is_log).map(|top| top.guid).next_back() else {
            return self.pass();
        };
        let mut next = self.state();
        next.tops.pop();
        self.order(next, |live| live.remove_vdev(guid)).map(drop)
    }

    fn checkpoint(&mut self, take: bool) -> Verdict {
        // What is in logs only is not in a checkpoint.
        let held = match take && !self.failing && !self.middle {
            true => self.group().map(|()| Some(self.model.clone()))?,
            false => None,
        };
        let mut next = self.state();
        next.checkpoint = take;
        let done = self.order(next, |live| match take {
            true => live.take_checkpoint(),
            false => live.discard_checkpoint(),
        })?;
        if done {
            self.kept = held;
        }
        Ok(())
    }
}

/// Everything that `to` has another name for is called that.
fn renamed(state: &mut PoolState, to: &dyn Fn(&str) -> Option<String>) {
    let name = |name: String| to(&name).unwrap_or(name);
    state.filesystems =
        std::mem::take(&mut state.filesystems).into_iter().map(|(k, v)| (name(k), v)).collect();
    state.snapshots =
        std::mem::take(&mut state.snapshots).into_iter().map(|(k, v)| (name(k), v)).collect();
    state.holds = std::mem::take(&mut state.holds).into_iter().map(|(k, v)| (name(k), v)).collect();
    state.origins =
        std::mem::take(&mut state.origins).into_iter().map(|(k, v)| (name(k), name(v))).collect();
    state.partials = std::mem::take(&mut state.partials)
        .into_iter()
        .map(|(of, partial)| (name(of), Partial { origin: partial.origin.map(&name), ..partial }))
        .collect();
    state.properties = std::mem::take(&mut state.properties)
        .into_iter()
        .map(|((of, property), value)| ((name(of), property), value))
        .collect();
}
