//! From what the labels say to devices that can be trusted.
//!
//! Chapter 01, section 11.4. Invariant: devices are trusted when the pool's own configuration names
//! them, their guids add up, and nobody wrote to them since the uberblock was chosen.

use std::sync::Arc;

use cenote_format::config::{PoolConfig, VdevConfig, VdevKind};
use cenote_format::uberblock::Uberblock;
use cenote_format::{ObjectId, Txg, feature};

use super::activity;
use super::assemble::PoolCandidate;
use super::choose::{self, Choice};
use super::discover::FoundDevice;
use super::found_labels::{best_label, read_labels};
use super::host::HostIdentity;
use super::leaves::{CandidateLeaves, HeldDevices};
use super::open_options::{OpenOptions, Rewind};
use super::parallel;
use crate::object::ObjectSet;
use crate::pipe::Pipe;
use crate::vdev::{AllocationClass, Topology, VdevTree};
use crate::zap::Zap;
use crate::{Error, ErrorKind, Result};

/// Largest packed configuration that is believed, in bytes.
const MAX_CONFIG: u64 = 64 << 20;

/// A pool that is being opened, whose configuration was read.
pub(super) struct Opening<'a> {
    pub candidate: &'a PoolCandidate,
    pub choice: &'a Choice,
    /// What the pool's own configuration says of its devices, with their present paths.
    pub tree: &'a VdevConfig,
    pub options: &'a OpenOptions,
}

impl Opening<'_> {
    /// An older state is opened on purpose: the labels are all newer than that.
    fn is_going_back(&self) -> bool {
        self.choice.best.txg < self.choice.latest.txg
            || self.options.rewind == Rewind::Extreme
            || self.options.checkpoint
            || self.options.rewind == Rewind::Safe && self.has_lost_its_newest()
    }

    /// Labels tell of groups of which no uberblock is left.
    fn has_lost_its_newest(&self) -> bool {
        let best = self.choice.best.txg;
        self.candidate.devices.values().any(|found| {
            !found.labels.is_empty() && best_label(&found.labels, Some(best)).is_none()
        })
    }

    /// Opens the devices of the configuration, and holds them if the pool is to be written.
    pub(super) fn trusted_devices(&self) -> Result<VdevTree> {
        let Self { candidate, choice, tree, options } = *self;
        let label_limit = (!self.is_going_back()).then_some(choice.best.txg);
        let trusted = match options.writable {
            true => self.held_devices(label_limit)?,
            false => VdevTree::build(tree, CandidateLeaves::trusted(candidate, label_limit))?,
        };
        trusted.set_reflow_word(choice.best.reflow.0);
        check_missing(tree, &trusted, options)?;
        Ok(trusted)
    }

    fn held_devices(&self, label_limit: Option<Txg>) -> Result<VdevTree> {
        let held = match &self.options.devices {
            Some(opener) => HeldDevices::with_opener(opener.clone()),
            None => HeldDevices::new(),
        };
        if label_limit.is_some() {
            held.shows(&self.choice.best);
        }
        let trusted = VdevTree::build(self.tree, held.leaves(self.candidate, label_limit))?;
        if let Some(path) = held.busy().first() {
            let reason = format!("{} is in use by another process", path.display());
            return Err(Error::new(ErrorKind::Busy, reason));
        }
        check_still_newest(self.candidate, self.choice, self.options)?;
        Ok(trusted)
    }

    /// Notes what devices missed by their dirty time logs or may lack by their rings. Refuses halves
    /// that were written apart; one that only turned up at its path is left out.
    pub(super) fn note_what_devices_lack(&self, pipe: &Arc<Pipe>, mos: &ObjectSet) -> Result<()> {
        let (choice, options) = (self.choice, self.options);
        let missed = super::group::load_missed(&pipe.vdevs(), mos, choice.best.txg);
        if missed && !options.missing_vdevs {
            self.leave_out_strays(&pipe.vdevs())?;
        }
        let behind = super::behind::note(pipe, &choice.best, options.deadline);
        if missed || behind {
            // What stale devices gave before this was known is no error of theirs.
            pipe.vdevs().clear(None);
        }
        Ok(())
    }

    fn leave_out_strays(&self, vdevs: &VdevTree) -> Result<()> {
        let (choice, options) = (self.choice, self.options);
        let all = self.with_late(vdevs);
        for stray in super::apart::strays(&all, choice, self.tree, vdevs, options.deadline) {
            let refusal = stray.refusal(choice);
            if self.candidate.device_of(stray.leaf.guid).is_some() {
                return Err(refusal);
            }
            // Whoever named the other side has said which one he wants.
            vdevs.refuse(stray.leaf.guid, refusal.reason());
        }
        check_missing(self.tree, vdevs, options)
    }

    /// The pool with the devices, too, that the search did not find, and that are at their paths.
    fn with_late(&self, vdevs: &VdevTree) -> PoolCandidate {
        let devices = vdevs.devices().into_iter();
        let late: Vec<_> =
            devices.filter(|leaf| self.candidate.device_of(leaf.guid).is_none()).collect();
        let jobs = late.iter().map(|leaf| {
            let device = leaf.device.clone();
            move || {
                let (paths, labels) = (vec![device.path()], read_labels(&*device).ok()?);
                Some(FoundDevice { device, paths, labels, rank: 0 })
            }
        });
        let found = parallel::run(jobs.collect(), late.len(), self.options.deadline);
        let mut all = self.candidate.clone();
        for (leaf, found) in late.iter().zip(found) {
            all.devices.extend(found.flatten().map(|found| (leaf.guid, Arc::new(found))));
        }
        all
    }
}

pub(super) fn choose_uberblock(
    candidate: &PoolCandidate,
    limit: Option<Txg>,
    options: &OpenOptions,
) -> Result<Choice> {
    let leaves = candidate.leaves(&candidate.tree);
    choose::choose(&leaves, limit, options.deadline)
        .map_err(|error| Error::new(ErrorKind::Io, error.to_string()))
}

/// The devices are held now: nobody wrote on while they were looked at and waited for.
fn check_still_newest(
    candidate: &PoolCandidate,
    before: &Choice,
    options: &OpenOptions,
) -> Result<()> {
    let now = choose_uberblock(candidate, None, options)?.latest;
    let own = HostIdentity::of_this_machine().id;
    let need = activity::need(&now, candidate.state, candidate.hostid, own);
    if need != activity::Need::Nothing && options.watched.is_some_and(|seen| seen != now.recency())
    {
        let reason = "another host has written to the pool since it was looked whether one uses it";
        return Err(Error::new(ErrorKind::Io, reason).with_advice("try again"));
    }
    refuse_newer(&before.latest, &now)
}

/// Refuses to go on when the newest uberblock, `before`, is not the newest any more.
pub(super) fn refuse_newer(before: &Uberblock, now: &Uberblock) -> Result<()> {
    if now.compare_recency(before).is_le() {
        return Ok(());
    }
    let (then, now) = (before.txg, now.txg);
    let reason = format!("another process wrote group {now} while group {then} was opened");
    Err(Error::new(ErrorKind::Outdated, reason))
}

pub(super) fn check_version(uberblock: &Uberblock) -> Result<()> {
    if feature::version_is_supported(uberblock.version) {
        return Ok(());
    }
    Err(Error::unsupported(format!("pool version {} is not supported", uberblock.version)))
}

pub(super) fn check_label_features(label: Option<&PoolConfig>) -> Result<()> {
    let needed = label.and_then(|label| label.features_for_read.as_ref());
    let unknown: Vec<&str> = needed
        .into_iter()
        .flatten()
        .map(String::as_str)
        .filter(|guid| feature::by_guid(guid).is_none())
        .collect();
    if unknown.is_empty() {
        return Ok(());
    }
    let reason = format!("the pool uses features not supported here: {}", unknown.join(", "));
    Err(Error::unsupported(reason))
}

/// What the metadata says that each top-level vdev is set aside for. A class that cannot be read keeps
/// nobody from reading the data.
pub(super) fn classes(mos: &ObjectSet, topology: &Topology) -> Vec<AllocationClass> {
    let read = |top: &VdevConfig| super::metadata::read_class(mos, top.top_zap?).ok().flatten();
    let tops = (0..).zip(topology.tops());
    tops.map(|(id, top)| read(top).unwrap_or_else(|| topology.class(id))).collect()
}

/// Reads the configuration the pool keeps of itself.
pub(super) fn read_config(mos: &ObjectSet, directory: &Zap) -> Result<PoolConfig> {
    let number = directory.require_u64("config")?;
    let list = super::packed::read(mos, ObjectId(number), MAX_CONFIG)?;
    Ok(PoolConfig::from_nvlist(list)?)
}

pub(super) fn check_guid_sum(tree: &VdevConfig, uberblock: &Uberblock) -> Result<()> {
    if tree.guid_sum() == uberblock.guid_sum {
        return Ok(());
    }
    let reason = "the vdev guids do not add up to the sum in the uberblock";
    Err(Error::corrupt(reason).with_advice("a device is missing from the configuration"))
}

/// Refuses a pool with top-level vdevs that cannot be opened, as the options allow.
fn check_missing(tree: &VdevConfig, vdevs: &VdevTree, options: &OpenOptions) -> Result<()> {
    for (id, top) in tree.children().iter().enumerate() {
        let id = u32::try_from(id).unwrap_or(u32::MAX);
        let has_data = top.kind.is_concrete() && !matches!(top.kind, VdevKind::Missing);
        if !has_data || vdevs.is_readable(id) {
            continue;
        }
        let is_log = top.top.is_some_and(|top| top.is_log);
        // It was emptied before.
        if is_log && top.devices().all(|leaf| leaf.offline) {
            continue;
        }
        let (allowed, what, advice) = if is_log {
            (options.missing_log, "a log device", "import with '-m' to discard its records")
        } else {
            (
                options.missing_vdevs,
                "a top-level device",
                "attach the missing devices and try again",
            )
        };
        if !allowed {
            let reason = format!("{what} is missing ({} {id})", top.kind.name());
            return Err(Error::new(ErrorKind::Io, reason).with_advice(advice));
        }
    }
    Ok(())
}
