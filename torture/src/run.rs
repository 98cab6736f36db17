//! Does the steps of a plan, and keeps the model of what they came to.
//!
//! Invariant: one step ends before the next begins; every answer is checked against the model, and after
//! every step the pool still writes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cenote_device::SimDevice;
use cenote_engine::ErrorKind;
use cenote_engine::alloc::Figures;
use cenote_engine::dataset::InventoryReader;
use cenote_engine::environment;
use cenote_engine::pool::group::LivePool;
use cenote_engine::vdev::{AllocationClass, VdevState, VdevStatus};
use cenote_format::Txg;
use cenote_format::config::VdevKind;
use cenote_format::scan_state::ScanState;
use cenote_posix::Filesystem;
use cenote_posix::error::{EDQUOT, EIO, ENOSPC, EPERM};
use cenote_posix::tree::Errno;
use cenote_posix::write::SyncMode;

use crate::disks::{Disks, KEY, NAME, settle, tops};
use crate::judge::Judge;
use crate::model::{Listing, Model, PoolState, Sequence, SetStory};
use crate::plan::{Plan, Setup, Step, Trouble};
use crate::random::bytes;

/// What is wrong, or nothing.
pub type Verdict<T = ()> = Result<T, String>;

/// Figures of a run.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Power cuts and deaths judged.
    pub cuts: u32,
    /// Faults of devices and blocks.
    pub faults: u32,
    /// Changes refused for want of room.
    pub refused: u32,
    /// Orders refused.
    pub declined: u32,
    /// Streams received to their end.
    pub received: u32,
    /// Steps that found nothing to do.
    pub passed: u32,
}

/// A pool that a plan is carried out on.
pub struct Runner {
    pub(crate) seed: u64,
    pub(crate) setup: Setup,
    pub(crate) disks: Disks,
    pub(crate) live: Arc<LivePool>,
    /// Open filesystems, by the number of their content.
    pub(crate) trees: BTreeMap<u64, Arc<Filesystem>>,
    pub(crate) model: Model,
    /// Leaves that the redundancy makes up for.
    pub(crate) spare: Vec<String>,
    /// What is wrong with them now.
    pub(crate) troubles: BTreeMap<String, Trouble>,
    /// Leaves of mirrors that missed groups, and were known to fail then.
    pub(crate) missed: BTreeSet<String>,
    /// The newest group known to have written blocks when the troubles were what they are.
    pub(crate) newest: Txg,
    /// The bytes of some leaf are not what was written.
    pub(crate) rotten: bool,
    /// So may labels be, which no scrub reads.
    pub(crate) rotten_labels: bool,
    /// The last event before every copy was known to be right.
    pub(crate) clean_since: u64,
    /// The last event of a step in which a leaf lacked something for a while.
    pub(crate) whole_since: u64,
    /// The last event of opening the pool, and the leaves that could not be read then: they may hold a newer
    /// group than was opened, which counts for nothing once this life has written one.
    pub(crate) opened: (u64, BTreeSet<String>),
    /// The last scan that was seen to end.
    pub(crate) followed: Option<ScanState>,
    /// The labels of leaves that were damaged.
    pub(crate) damaged_labels: BTreeMap<String, Vec<u64>>,
    /// All devices fail now.
    pub(crate) dark: bool,
    /// What the pool's checkpoint holds.
    pub(crate) kept: Option<Model>,
    /// What is to be done in the middle of the next order.
    pub(crate) between: Option<Step>,
    /// What is to be done while the group of the next order is written.
    pub(crate) meanwhile: Vec<Step>,
    /// A group is being written: filesystems that are open may be used.
    pub(crate) middle: bool,
    /// The next order may fail anywhere.
    pub(crate) failing: bool,
    /// Filesystems that an order has closed and is about to change.
    pub(crate) closed: BTreeSet<u64>,
    /// Of this life's pool, what those who look are told.
    pub(crate) survey: InventoryReader,
    pub(crate) tally: Tally,
}

/// Does all steps of `plan`: what is wrong, the figures, and the disks in the end.
pub fn run(plan: &Plan) -> (Verdict, Tally, Option<Disks>) {
    environment::simulate(plan.seed);
    let mut runner = match Runner::new(plan.seed, &plan.setup) {
        Ok(runner) => runner,
        Err(reason) => {
            return (Err(format!("the pool is not made: {reason}")), Tally::default(), None);
        }
    };
    let verdict = runner.all(&plan.steps);
    let tally = runner.tally.clone();
    runner.trees.clear();
    (verdict, tally, Some(runner.disks))
}

impl Runner {
    fn new(seed: u64, setup: &Setup) -> Verdict<Self> {
        let disks = Disks::new(setup);
        let live = disks.create(setup).map_err(|error| error.to_string())?;
        let all = tops(&setup.layout, setup.ashift);
        let mut spare = Vec::new();
        let mut number = 0;
        for top in &all {
            spare.extend((number..number + top.spare).map(|leaf| format!("/sim/d{leaf:02}")));
            number += top.leaves;
        }
        let state = PoolState {
            filesystems: BTreeMap::from([(NAME.to_owned(), 0)]),
            tops: all.iter().map(|top| format!("{:?}", top.config.kind)).collect(),
            ..PoolState::default()
        };
        let set = SetStory::of(&Listing::new(), false, false);
        let model = Model {
            pool: Sequence::new(state),
            sets: BTreeMap::from([(0, set)]),
            damaged: BTreeSet::new(),
            appends: false,
        };
        let mut runner = Self {
            seed,
            setup: setup.clone(),
            disks,
            live,
            trees: BTreeMap::new(),
            model,
            spare,
            troubles: BTreeMap::new(),
            missed: BTreeSet::new(),
            newest: Txg(0),
            rotten: false,
            rotten_labels: false,
            clean_since: 0,
            whole_since: 0,
            opened: (0, BTreeSet::new()),
            followed: None,
            damaged_labels: BTreeMap::new(),
            dark: false,
            kept: None,
            between: None,
            meanwhile: Vec::new(),
            middle: false,
            failing: false,
            closed: BTreeSet::new(),
            survey: InventoryReader::default(),
            tally: Tally::default(),
        };
        runner.follow()?;
        runner.ballast()?;
        runner.disks.record();
        Ok(runner)
    }

    /// A file that takes space, written before anything is recorded.
    fn ballast(&mut self) -> Verdict {
        if self.setup.ballast_mib == 0 {
            return Ok(());
        }
        let Some(file) = self.create_at(0, "ballast")? else { return Ok(()) };
        for part in 0..self.setup.ballast_mib as usize {
            let data = bytes(1 << 20, 1000 + part as u32, false);
            if !self.write_at(0, file, part << 20, &data)? {
                break;
            }
        }
        self.group()
    }

    fn all(&mut self, steps: &[Step]) -> Verdict {
        for (number, step) in steps.iter().enumerate() {
            if std::env::var_os("TORTURE_TRACE").is_some() {
                eprintln!("{} {number}: {step:?}", self.disks.digest());
            }
            environment::advance(std::time::Duration::from_millis(700));
            let done = self.step(step).and_then(|()| self.still_writes());
            settle(&self.live);
            if std::env::var("TORTURE_TRACE").is_ok_and(|what| what == "events") {
                self.disks.trace();
            }
            done.map_err(|reason| format!("step {number} ({}): {reason}", name(step)))?;
        }
        // In the end everything is there.
        self.cut_now(0, 1, 0).map_err(|reason| format!("in the end: {reason}"))
    }

    pub(crate) fn step(&mut self, step: &Step) -> Verdict {
        match step {
            Step::Group => self.group(),
            Step::Export => self.export(),
            Step::Kill { unmounted } => self.cut_now(*unmounted, 1, 0),
            Step::Cut { back, manner, seed, unmounted, stale } => {
                self.cut(*back, *manner, *seed, *unmounted, *stale)
            }
            Step::Look { back, manner, seed } => self.look(*back, *manner, *seed),
            Step::Race { fill, open } => self.race(*fill, *open),
            Step::Back { cut, manner, seed } => self.back(*cut, *manner, *seed),
            Step::Blink { skip, reads } => self.blink(*skip, *reads),
            Step::Leaf { which, trouble } => self.trouble(*which, *trouble),
            Step::Well { clear } => self.well(*clear),
            Step::Rot { which, seed, places } => self.rot(*which, *seed, *places),
            Step::RotLabel { which, label, seed } => self.rot_label(*which, *label, *seed),
            Step::Dark { trouble, fill, end } => self.dark(*trouble, *fill, *end),
            Step::Fails { order, at } => self.fails(order, *at),
            Step::Beside { first, second } => self.beside(first, second),
            Step::During { order, steps } => self.during(order, steps),
            Step::Overtaken { set, file, fill, writes } => {
                self.overtaken(*set, *file, *fill, *writes)
            }
            Step::RotFile { set, file, level } => self.rot_file(*set, *file, *level),
            Step::Scan { what, groups } => self.scan(*what, *groups),
            Step::Evacuate { which, groups, end, fill } => {
                self.evacuate(*which, *groups, *end, *fill)
            }
            Step::Members { what, which, fill } => self.members(*what, *which, *fill),
            Step::Split { cut, manner, seed, fill } => self.split(*cut, *manner, *seed, *fill),
            Step::Spared { which, stays, fill } => self.spared(*which, *stays, *fill),
            Step::Transfer { .. } => self.transfer(step),
            Step::Resume { which, cut, end } => self.resume(*which, *cut, *end),
            Step::Read => self.read_all(),
            other => match self.file_step(other) {
                Some(done) => done,
                None => self.order_step(other),
            },
        }
    }

    /// The pool has not stopped, and is not suspended.
    pub(crate) fn still_writes(&self) -> Verdict {
        if let Some(error) = self.live.gate().failure() {
            return Err(format!("the pool stopped writing: {error}"));
        }
        if let Some(suspension) = self.live.gate().suspension() {
            return Err(format!("the pool is suspended: {}", suspension.error));
        }
        Ok(())
    }

    /// Writes a group.
    pub(crate) fn group(&mut self) -> Verdict {
        let mark = self.model.mark();
        self.live.sync().map_err(|error| format!("the group is not written: {error}"))?;
        self.model.acknowledge(&mark);
        self.note_missed();
        self.limits()
    }

    /// The newest group that wrote blocks.
    pub(crate) fn newest_blocks(&self) -> Txg {
        self.live.pool().uberblock().root.logical_birth()
    }

    /// A group was written: who could not take part has missed it, if it wrote blocks.
    pub(crate) fn note_missed(&mut self) {
        self.follow_scan();
        let before = self.newest;
        self.newest = self.newest_blocks();
        if before == self.newest {
            return;
        }
        if !self.setup.layout.starts_with("mirror") || self.setup.layout == "mirrored-log" {
            return;
        }
        for (path, trouble) in &self.troubles {
            if !matches!(trouble, Trouble::Reads | Trouble::Loses) {
                self.missed.insert(path.clone());
            }
        }
    }

    /// No dataset has more than its quota lets it have.
    fn limits(&self) -> Verdict {
        let catalog = self.live.pool().catalog();
        let properties = &self.model.pool.newest().properties;
        for ((name, property), quota) in properties.iter().filter(|(_, value)| **value > 0) {
            let Ok(dataset) = catalog.dataset_named(name) else { continue };
            let used = match property.as_str() {
                "quota" => dataset.directory.phys.used_bytes,
                "refquota" => dataset.phys.referenced_bytes,
                _ => continue,
            };
            // OpenZFS lets what is under way through; it may also be set below what is used.
            let most = quota + quota / 8 + (6 << 20);
            let set_at = properties.get(&(name.clone(), format!("{property} set at")));
            if used > most.max(set_at.copied().unwrap_or(0) + (6 << 20)) {
                return Err(format!("{name} uses {used} bytes, its {property} is {quota}"));
            }
        }
        Ok(())
    }

    /// The number of the filesystem that `choice` chooses, and its name.
    pub(crate) fn set(&self, choice: u8) -> (String, u64) {
        let all = self.usable_sets();
        let chosen = all.get(choice as usize % all.len().max(1));
        chosen.map_or((NAME.to_owned(), 0), |(name, number)| ((*name).clone(), **number))
    }

    /// The filesystems whose files can be asked for now: in the middle of an order, those that are open.
    pub(crate) fn usable_sets(&self) -> Vec<(&String, &u64)> {
        let usable = |(_, number): &(&String, &u64)| {
            !self.closed.contains(number) && (!self.middle || self.trees.contains_key(number))
        };
        self.model.pool.newest().filesystems.iter().filter(usable).collect()
    }

    /// The files of filesystem `name`, opened if they are not.
    pub(crate) fn tree(&mut self, name: &str, number: u64) -> Verdict<Arc<Filesystem>> {
        if let Some(tree) = self.trees.get(&number) {
            return Ok(tree.clone());
        }
        let dataset = self.live.pool().catalog().dataset_named(name);
        let dataset = dataset.map_err(|error| format!("'{name}' is not found: {error}"))?;
        let opened = cenote_posix::live::open(&self.live, &dataset, false);
        let opened = opened.map_err(|error| format!("'{name}' is not opened: {error}"))?;
        self.trees.insert(number, opened.clone());
        settle(&self.live);
        self.still_writes()?;
        Ok(opened)
    }

    /// The name that content `number` has now.
    pub(crate) fn name_of(&self, number: u64) -> String {
        let all = &self.model.pool.newest().filesystems;
        let found = all.iter().find(|(_, known)| **known == number);
        found.map_or_else(|| NAME.to_owned(), |(name, _)| name.clone())
    }

    /// Files and model follow the properties.
    pub(crate) fn follow(&mut self) -> Verdict {
        let catalog = self.live.pool().catalog();
        let open = self.live.open_below(&[NAME.to_owned()]);
        self.live.refresh_policies(&open.map_err(|error| error.to_string())?);
        for (name, number) in &self.model.pool.newest().filesystems {
            let dataset = catalog.dataset_named(name);
            let dataset = dataset.map_err(|error| format!("'{name}': {error}"))?;
            let properties = cenote_posix::live::write_properties(&self.live, &dataset);
            let properties = properties.map_err(|error| format!("'{name}': {error}"))?;
            if let Some(writer) = self.trees.get(number).and_then(|tree| tree.writer()) {
                writer.set_properties(properties);
            }
            if let Some(set) = self.model.sets.get_mut(number) {
                set.prompt = properties.sync_mode == SyncMode::Always;
                set.careless = properties.sync_mode == SyncMode::Disabled;
            }
        }
        Ok(())
    }

    /// A change of files was refused with `error`: whether that may be. `frees`: it makes room.
    pub(crate) fn refused(
        &mut self,
        error: &Errno,
        bytes: usize,
        frees: bool,
        damaged: bool,
    ) -> Verdict {
        match error.code {
            _ if self.dark => Ok(()),
            ENOSPC | EDQUOT if frees => Err(format!("what makes room is refused: {error}")),
            ENOSPC | EDQUOT => {
                self.tally.refused += 1;
                self.is_tight(bytes, error)
            }
            EIO if damaged => Ok(()),
            EPERM if self.model.appends => Ok(()),
            _ => Err(format!("refused: {error}")),
        }
    }

    /// "No room" was said: there is little.
    fn is_tight(&mut self, bytes: usize, error: &Errno) -> Verdict {
        let limits = ["quota", "refquota", "reservation", "refreservation"];
        let properties = &self.model.pool.newest().properties;
        let limited = properties
            .iter()
            .any(|((_, name), value)| limits.contains(&name.as_str()) && *value > 0);
        // What takes no blocks gives no room, and is emptied into the others.
        let figures: Arc<Figures> = self.live.allocator().figures();
        if limited || figures.tops.iter().any(|top| top.passive) {
            return Ok(());
        }
        if error.code == EDQUOT {
            return Err(format!("no quota is set: {error}"));
        }
        self.live.sync().map_err(|error| format!("the group is not written: {error}"))?;
        let figures: Arc<Figures> = self.live.allocator().figures();
        let (size, used) = (
            figures.size(AllocationClass::Normal),
            figures.allocated(AllocationClass::Normal) + figures.deferred(AllocationClass::Normal),
        );
        // Half of a small pool is kept back; a change may cost many times its length at worst.
        let request = (bytes as u64 + (256 << 10)) * 24;
        if used + request < size / 4 {
            return Err(format!(
                "{used} of {size} bytes are used, and {bytes} more do not fit: {error}"
            ));
        }
        Ok(())
    }

    /// All filesystems are closed, and the pool is forgotten: what is on the disks stays.
    fn forget(&mut self, live: Arc<LivePool>) {
        self.trees.clear();
        self.survey = InventoryReader::default();
        self.live = live;
    }

    /// Opens the pool on `disks`, which take the place of those before, for another life.
    pub(crate) fn next_life(&mut self, disks: Disks, unmounted: u8) -> Verdict {
        self.disks = disks;
        self.disks.record();
        self.ail();
        let live = self.disks.open().map_err(|error| format!("the pool does not open: {error}"))?;
        self.begin_life(live, unmounted)?;
        self.wake()
    }

    /// The pool was opened.
    pub(crate) fn begin_life(&mut self, live: Arc<LivePool>, unmounted: u8) -> Verdict {
        self.forget(live);
        let hidden = self.troubles.iter().filter(|(_, trouble)| trouble.hides());
        let hidden = hidden.map(|(path, _)| path.clone()).collect();
        self.opened = (SimDevice::newest_order(), hidden);
        self.newest = self.newest_blocks();
        forget_interrupted(&self.live, !self.model.damaged.is_empty())?;
        load_key(&self.live, &self.setup)?;
        let all: Vec<(String, u64)> =
            self.model.pool.newest().filesystems.clone().into_iter().collect();
        for (at, (name, number)) in all.iter().enumerate() {
            if unmounted >> (at % 8) & 1 == 0 {
                self.tree(name, *number)?;
            }
        }
        self.follow()?;
        self.follow_scan();
        self.status()
    }

    /// Leaves are as their troubles make them.
    pub(crate) fn ail(&self) {
        self.disks.ail(&self.troubles);
    }

    /// No leaf that missed groups is called healthy.
    pub(crate) fn status(&self) -> Verdict {
        let Some(root) = self.live.vdevs().status() else { return Ok(()) };
        for path in &self.missed {
            let Some(leaf) = leaf_at(&root, path) else { continue };
            if leaf.condition.state == VdevState::Online {
                return Err(format!("{path} missed groups, and is called ONLINE"));
            }
        }
        Ok(())
    }

    pub(crate) fn export(&mut self) -> Verdict {
        let mark = self.model.mark();
        self.trees.clear();
        self.live.export().map_err(|error| format!("the export: {error}"))?;
        self.model.acknowledge(&mark);
        self.note_missed();
        let live = self.disks.open().map_err(|error| format!("after the export: {error}"))?;
        self.begin_life(live, 0)
    }

    /// Everything there is reads as the model says, in the life that is.
    pub(crate) fn read_all(&mut self) -> Verdict {
        let all: Vec<(String, u64)> =
            self.model.pool.newest().filesystems.clone().into_iter().collect();
        for (name, number) in all {
            let tree = self.tree(&name, number)?;
            let Some(set) = self.model.sets.get(&number) else { continue };
            crate::judge::compare(&tree, &set.listing(), &name, &self.model.damaged)?;
        }
        Ok(())
    }

    /// What a judge of these disks needs to know.
    pub(crate) fn judge(&self, disks: Disks, order: u64) -> Judge<'_> {
        Judge {
            disks,
            order,
            model: &self.model,
            setup: &self.setup,
            spared: !self.troubles.is_empty()
                || self.rotten
                || !self.missed.is_empty()
                || order <= self.clean_since,
        }
    }
}

/// Loads the keys of an encrypted pool.
pub(crate) fn load_key(live: &Arc<LivePool>, setup: &Setup) -> Verdict {
    if !setup.encrypted {
        return Ok(());
    }
    let catalog = live.pool().catalog();
    // Promoting a clone may have made that the owner of the key; what was received raw has its own.
    let seen = crate::judge::Seen::of(live.pool())?;
    let (mut reason, mut loaded) = (String::new(), 0);
    for name in seen.filesystems {
        let directory = catalog.directory(&name).map_err(|error| error.to_string())?;
        match live.pool().keys().load(&catalog, &directory, &KEY) {
            Ok(_) => loaded += 1,
            Err(error) if error.kind() == ErrorKind::Exists => loaded += 1,
            Err(error) if reason.is_empty() => reason = format!("the key: {error}"),
            Err(_) => {}
        }
    }
    if loaded > 0 { Ok(()) } else { Err(reason) }
}

/// Destroys what receives have left that were cut off and cannot go on, as the pool process does.
pub(crate) fn forget_interrupted(live: &Arc<LivePool>, damaged: bool) -> Verdict {
    let gone = cenote_engine::receive::destroy_interrupted(live);
    if damaged {
        return Ok(());
    }
    gone.map_err(|error| format!("what receives have left is still there: {error}"))?;
    let left = crate::judge::Seen::of(live.pool())?.left;
    match left.is_empty() {
        true => Ok(()),
        false => Err(format!("what receives have left is still there: {left:?}")),
    }
}

pub(crate) fn leaf_at<'a>(node: &'a VdevStatus, path: &str) -> Option<&'a VdevStatus> {
    if node.config.path.as_deref() == Some(path) && node.config.kind == VdevKind::File {
        return Some(node);
    }
    node.children.iter().find_map(|child| leaf_at(child, path))
}

/// The name of a step.
pub fn name(step: &Step) -> String {
    let text = format!("{step:?}");
    text.split([' ', '{', '(']).next().unwrap_or("").to_owned()
}
