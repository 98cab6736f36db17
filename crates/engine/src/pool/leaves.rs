//! The devices a scan found, as the vdev tree asks for them, for reading and for writing.
//!
//! Invariant: a leaf is matched by guid, never by path; a device whose verified labels do not say that
//! it is this leaf is not opened. A device opened for writing is held exclusively, and its labels are
//! looked at again after it is held. One that turns up although the search did not find it, or comes back, is
//! refused if its newest state is not of the history that is written here. One that joined as a new device needs no
//! labels then, but has them from the first group on: what comes back without them is another device. One that
//! stands alone and comes back with an older state than was written to it is refused: nothing else has what it
//! lacks. One that others stand in for lacks what was written since.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;

use cenote_device::{Device, DeviceError, FileDevice, Mode};
use cenote_format::config::{PoolConfig, VdevConfig};
use cenote_format::label::LABELS;
use cenote_format::{BlockPointer, Guid, Txg, Uberblock};
use parking_lot::Mutex;

use super::assemble::PoolCandidate;
use super::choose::read_uberblocks;
use super::discover::{FileOpener, FoundDevice, Opener};
use super::found_labels::{FoundLabel, best_label, read_labels};
use super::parallel;
use super::validate::{Strictness, check_label};
use crate::vdev::{Aux, Condition, LeafOpener, LeafUnavailable, VdevState};
use crate::{Error, ErrorKind, Result};

/// Longest look at what is at the path of a leaf that was not found.
const LOOK: Duration = Duration::from_millis(500);
/// Longest look at the labels of a device that is held.
const EXAMINATION: Duration = Duration::from_secs(2);
/// Groups whose roots are remembered.
const HISTORY: usize = 1024;

/// Opens leaves from the devices of a [`PoolCandidate`].
pub struct CandidateLeaves {
    candidate: PoolCandidate,
    strictness: Strictness,
    /// Looks at what is at a path, without holding it.
    opener: Arc<dyn Opener>,
    /// Leaves that turned out to be left out, and why.
    refused: Mutex<BTreeMap<Guid, String>>,
}

/// Looks at devices of this machine without holding them.
fn looker() -> Arc<dyn Opener> {
    Arc::new(FileOpener { mode: Mode::ReadOnly })
}

impl CandidateLeaves {
    /// Leaves of the tree the labels of `candidate` make.
    pub fn new(candidate: &PoolCandidate) -> Arc<Self> {
        Self::with(candidate, false, None, looker())
    }

    /// Leaves of the pool's own tree. Labels after `limit` do not count.
    pub fn trusted(candidate: &PoolCandidate, limit: Option<Txg>) -> Arc<Self> {
        Self::with(candidate, true, limit, looker())
    }

    fn with(
        candidate: &PoolCandidate,
        trusted: bool,
        limit: Option<Txg>,
        opener: Arc<dyn Opener>,
    ) -> Arc<Self> {
        let strictness = Strictness { pool: candidate.guid, trusted, limit };
        let refused = Mutex::default();
        Arc::new(Self { candidate: candidate.clone(), strictness, opener, refused })
    }
}

impl CandidateLeaves {
    /// The device behind `leaf`, its labels checked: the one the search found, or what is at its path by
    /// now.
    fn found(&self, leaf: &VdevConfig) -> Result<Arc<FoundDevice>, LeafUnavailable> {
        self.check_refused(leaf.guid)?;
        let path = leaf.path.as_deref().unwrap_or("no path recorded");
        let found = match self.candidate.device(leaf) {
            Some(found) => found.clone(),
            None => self.late(leaf).ok_or_else(|| {
                let reason = format!("no device with this guid was found ({path})");
                LeafUnavailable::open_failed(reason)
            })?,
        };
        self.check(leaf, &found, &self.strictness).map(|()| found)
    }

    fn check_refused(&self, leaf: Guid) -> Result<(), LeafUnavailable> {
        match self.refused.lock().get(&leaf) {
            Some(reason) => Err(foreign(reason.clone())),
            None => Ok(()),
        }
    }

    /// What is at the path of a leaf that no device said to be when the pool was looked for: it has come
    /// since, it was wiped, or belongs to something else by now. `None` if there is no device that could be
    /// read.
    fn late(&self, leaf: &VdevConfig) -> Option<Arc<FoundDevice>> {
        let path = PathBuf::from(leaf.path.as_deref()?);
        let opener = self.opener.clone();
        let look = move || {
            let device = opener.open(&path).ok()?;
            let labels = read_labels(&*device).ok()?;
            Some(FoundDevice { device, paths: vec![path], labels, rank: 0 })
        };
        parallel::run(vec![look], 1, LOOK).pop().flatten().flatten().map(Arc::new)
    }

    fn check(
        &self,
        leaf: &VdevConfig,
        found: &FoundDevice,
        strictness: &Strictness,
    ) -> Result<(), LeafUnavailable> {
        let path = leaf.path.as_deref().unwrap_or("no path recorded");
        match check_label(leaf, leaf.top_guid.unwrap_or_default(), found, strictness) {
            Ok(()) => Ok(()),
            Err(aux) => Err(LeafUnavailable {
                condition: Condition::new(VdevState::Unavailable, aux),
                reason: match aux {
                    Aux::BadLabel => format!("no valid label on {path}"),
                    Aux::SplitPool => format!("{path} belongs to a pool split off this one"),
                    _ => format!("the labels of {path} do not fit the pool"),
                },
            }),
        }
    }
}

impl LeafOpener for CandidateLeaves {
    fn open(&self, leaf: &VdevConfig) -> Result<Arc<dyn Device>, LeafUnavailable> {
        self.found(leaf).map(|found| found.device.clone())
    }

    fn refuse(&self, leaf: Guid, reason: &str) {
        self.refused.lock().insert(leaf, reason.to_owned());
    }
}

/// A device with another content than it should have.
fn foreign(reason: String) -> LeafUnavailable {
    LeafUnavailable { condition: Condition::new(VdevState::Unavailable, Aux::CorruptData), reason }
}

/// The devices a pool holds for writing. There is one for each open pool: trees that follow each
/// other get the same devices from it. A device is let go when the last tree that uses it is gone.
pub struct HeldDevices {
    opener: Arc<dyn Opener>,
    /// Looks at devices without holding them.
    looker: Arc<dyn Opener>,
    held: Mutex<BTreeMap<Guid, Held>>,
    /// What devices may lack that came after the pool was opened.
    late: Mutex<BTreeMap<Guid, Range<u64>>>,
    busy: Mutex<Vec<PathBuf>>,
    /// The newest group written since the pool was opened.
    newest: AtomicU64,
    /// The roots of the last groups, that which the pool was opened at included; nothing before the first group
    /// of a pool that was taken back.
    history: Mutex<BTreeMap<u64, BlockPointer>>,
}

/// A device that is, or was, held.
struct Held {
    device: Weak<dyn Device>,
    /// The newest group when it was opened for the first time: it need not hold that.
    joined: u64,
}

impl HeldDevices {
    /// Devices of this machine, held exclusively.
    pub fn new() -> Arc<Self> {
        Self::with_openers(Arc::new(FileOpener { mode: Mode::Exclusive }), looker())
    }

    /// Devices that `opener` opens for writing.
    pub fn with_opener(opener: Arc<dyn Opener>) -> Arc<Self> {
        Self::with_openers(opener.clone(), opener)
    }

    fn with_openers(opener: Arc<dyn Opener>, looker: Arc<dyn Opener>) -> Arc<Self> {
        let (held, busy, newest) = (Mutex::default(), Mutex::default(), AtomicU64::new(0));
        let (late, history) = (Mutex::default(), Mutex::default());
        Arc::new(Self { opener, looker, held, late, busy, newest, history })
    }

    /// The pool is opened at this uberblock, or has written it: it is the newest.
    pub(super) fn shows(&self, uberblock: &Uberblock) {
        let mut history = self.history.lock();
        history.insert(uberblock.txg.0, uberblock.root);
        if history.len() > HISTORY {
            history.pop_first();
        }
    }

    /// Opens and holds the device at `path`, which is to become leaf `guid` of the pool.
    /// [`ErrorKind::Busy`] if somebody else holds it.
    pub fn hold(&self, guid: Guid, path: &Path) -> Result<Arc<dyn Device>> {
        if let Some(device) = self.get(guid) {
            return Ok(device);
        }
        let device = self.opener.open(path).map_err(|error| match error {
            DeviceError::Busy(_) => Error::new(ErrorKind::Busy, error.to_string()),
            _ => Error::new(ErrorKind::Io, format!("{}: {error}", path.display())),
        })?;
        let joined = self.newest.load(Relaxed);
        let mut held = self.held.lock();
        let joined = held.get(&guid).map_or(joined, |held| held.joined);
        held.insert(guid, Held { device: Arc::downgrade(&device), joined });
        Ok(device)
    }

    /// Opens leaves from the devices of `candidate`, as [`CandidateLeaves::trusted`] does, but for
    /// writing.
    pub fn leaves(
        self: &Arc<Self>,
        candidate: &PoolCandidate,
        limit: Option<Txg>,
    ) -> Arc<dyn LeafOpener> {
        let leaves = CandidateLeaves::with(candidate, true, limit, self.looker.clone());
        Arc::new(HeldLeaves { leaves: Some(leaves), devices: self.clone() })
    }

    /// Opens leaves by the paths of their configurations without looking for labels: for new pools
    /// and new devices. Those held already are taken by guid.
    pub fn new_leaves(self: &Arc<Self>) -> Arc<dyn LeafOpener> {
        Arc::new(HeldLeaves { leaves: None, devices: self.clone() })
    }

    /// Devices that could not be opened because somebody else holds them. A pool with such devices
    /// must not be written: two processes would.
    pub fn busy(&self) -> Vec<PathBuf> {
        self.busy.lock().clone()
    }

    fn get(&self, guid: Guid) -> Option<Arc<dyn Device>> {
        self.held.lock().get(&guid).and_then(|held| held.device.upgrade())
    }

    /// A device that was away while groups were written: it lacks all after its newest, whatever was noted before.
    fn note_late(&self, leaf: &VdevConfig, own: u64) {
        let newest = self.newest.load(Relaxed);
        if newest > 0 {
            let lacks = own.saturating_add(1)..newest.saturating_add(1);
            self.late.lock().insert(leaf.guid, lacks);
        }
    }

    /// The newest group of the history here that a device has, whose newest state is `own`. Refuses one that others
    /// have written on: that state is not of this history, as far back as it is known. The group after the newest may
    /// be under way, and that after the one the pool was opened at may have been when it was cut off: who goes on by
    /// himself writes more than one.
    fn shared_until(&self, own: &Uberblock, device: &dyn Device) -> Result<u64, LeafUnavailable> {
        let (history, txg) = (self.history.lock(), own.txg.0);
        let first = history.first_key_value().map(|(first, _)| first.saturating_add(1));
        let newest = history.last_key_value().map_or(u64::MAX, |(newest, _)| *newest);
        match history.get(&txg) {
            Some(root) if *root == own.root => Ok(txg),
            Some(_) if Some(txg) == first => Ok(txg.saturating_sub(1)),
            None if txg <= newest.saturating_add(1) => Ok(txg),
            _ => {
                let path = device.path().display().to_string();
                Err(foreign(format!(
                    "{path} was written elsewhere up to group {txg}: it is left out"
                )))
            }
        }
    }

    /// A group was written since the device came into the pool.
    fn has_written_to(&self, leaf: Guid) -> bool {
        let joined = self.held.lock().get(&leaf).map_or(0, |held| held.joined);
        self.newest.load(Relaxed) > joined
    }

    /// Refuses what is at the path of a device that joined in this life of the pool, and has labels by now, unless its
    /// labels say that it is that device.
    fn check_labelled(
        &self,
        leaf: &VdevConfig,
        device: &dyn Device,
    ) -> Result<(), LeafUnavailable> {
        if !self.has_written_to(leaf.guid) {
            return Ok(());
        }
        let labels =
            read_labels(device).map_err(|error| LeafUnavailable::open_failed(error.to_string()))?;
        let path = device.path().display().to_string();
        match best_label(&labels, None).map(|label| label.config.guid) {
            Some(guid) if guid == Some(leaf.guid) => Ok(()),
            Some(_) => Err(foreign(format!("{path} is another device by now"))),
            None => Err(LeafUnavailable::new(Aux::BadLabel, format!("no valid label on {path}"))),
        }
    }

    /// What the labels say of a device that is held for `leaf`: that it is its device, and whether all do.
    fn examine(
        &self,
        leaf: &VdevConfig,
        device: &Arc<dyn Device>,
    ) -> Result<bool, LeafUnavailable> {
        let path = device.path().display().to_string();
        if device.is_deleted() {
            let reason = format!("{path} was deleted, or another file has its name by now");
            return Err(LeafUnavailable::open_failed(reason));
        }
        let own = device.clone();
        let labels = match device.stall() {
            None => read_labels(&*own).ok(),
            Some(_) => {
                let look = move || read_labels(&*own).ok();
                parallel::run(vec![look], 1, EXAMINATION).pop().flatten().flatten()
            }
        };
        let Some(labels) = labels else { return Ok(true) };
        // After a detach labels tell the guid that the survivor has taken over only later.
        let is_top = leaf.top_guid == Some(leaf.guid);
        let is_own = |label: &&FoundLabel| {
            let PoolConfig { guid, top_guid, .. } = label.config;
            label.verified && (guid == Some(leaf.guid) || is_top && top_guid == Some(leaf.guid))
        };
        match labels.iter().filter(is_own).count() {
            0 if best_label(&labels, None).is_some() => {
                Err(foreign(format!("{path} is another device by now")))
            }
            0 => Err(LeafUnavailable::new(Aux::BadLabel, format!("no valid label on {path}"))),
            count => Ok(count == LABELS),
        }
    }

    /// A device that was held before and comes back: the groups since its newest are not on it, whatever was
    /// written to it meanwhile. It is refused if no other has those.
    fn check_current(
        &self,
        leaf: &VdevConfig,
        own: u64,
        device: &dyn Device,
    ) -> Result<(), LeafUnavailable> {
        // The intent log's devices may lack groups.
        if !self.has_written_to(leaf.guid) || leaf.top.is_some_and(|top| top.is_log) {
            return Ok(());
        }
        let newest = self.newest.load(Relaxed);
        if own >= newest {
            return Ok(());
        }
        if leaf.top.is_none() {
            self.note_late(leaf, own);
            return Ok(());
        }
        let path = device.path();
        let reason = format!(
            "{} came back with older content than was written to it: group {own}, not {newest}",
            path.display()
        );
        Err(foreign(reason))
    }
}

/// The newest uberblock on `device`, if there is one.
fn newest_on(device: &dyn Device) -> Result<Option<Uberblock>, LeafUnavailable> {
    let found = read_uberblocks(device, None)
        .map_err(|error| LeafUnavailable::open_failed(error.to_string()))?;
    Ok(found.into_iter().max_by(Uberblock::compare_recency))
}

/// Leaves opened for writing.
struct HeldLeaves {
    leaves: Option<Arc<CandidateLeaves>>,
    devices: Arc<HeldDevices>,
}

impl LeafOpener for HeldLeaves {
    fn open(&self, leaf: &VdevConfig) -> Result<Arc<dyn Device>, LeafUnavailable> {
        if let Some(leaves) = &self.leaves {
            leaves.check_refused(leaf.guid)?;
        }
        if let Some(device) = self.devices.get(leaf.guid) {
            return Ok(device);
        }
        let path = match &self.leaves {
            Some(leaves) => leaves.found(leaf)?.path(leaf.path.as_deref()),
            None => PathBuf::from(leaf.path.as_deref().unwrap_or_default()),
        };
        let returns = self.devices.held.lock().contains_key(&leaf.guid);
        let opened = self.open_at(leaf, path, returns);
        match (&opened, returns) {
            (Ok(_), _) => {}
            // It has never been a device of the pool.
            (Err(_), false) => drop(self.devices.held.lock().remove(&leaf.guid)),
            // Who still has it open must not have it taken for the leaf's.
            (Err(_), true) => self.forget(leaf.guid),
        }
        opened
    }

    fn committed(&self, uberblock: &Uberblock) {
        self.devices.newest.fetch_max(uberblock.txg.0, Relaxed);
        self.devices.shows(uberblock);
    }

    fn refuse(&self, leaf: Guid, reason: &str) {
        if let Some(leaves) = &self.leaves {
            leaves.refuse(leaf, reason);
        }
    }

    fn still_is(
        &self,
        leaf: &VdevConfig,
        device: &Arc<dyn Device>,
    ) -> Result<bool, LeafUnavailable> {
        if self.leaves.is_none() && !self.devices.has_written_to(leaf.guid) {
            // Nothing was written that tells.
            return Ok(true);
        }
        self.devices.examine(leaf, device)
    }

    fn forget(&self, leaf: Guid) {
        let gone: Weak<FileDevice> = Weak::new();
        if let Some(held) = self.devices.held.lock().get_mut(&leaf) {
            held.device = gone;
        }
    }

    fn lacks(&self, leaf: &VdevConfig) -> Range<u64> {
        self.devices.late.lock().remove(&leaf.guid).unwrap_or(0..0)
    }
}

impl HeldLeaves {
    /// Holds the device at `path` and checks that it is the leaf; `returns`: it was held before.
    fn open_at(
        &self,
        leaf: &VdevConfig,
        path: PathBuf,
        returns: bool,
    ) -> Result<Arc<dyn Device>, LeafUnavailable> {
        let device = self.devices.hold(leaf.guid, &path).map_err(|error| {
            if error.kind() == ErrorKind::Busy {
                self.devices.busy.lock().push(path.clone());
            }
            LeafUnavailable::open_failed(error.to_string())
        })?;
        if let Some(leaves) = &self.leaves {
            // The name may mean another device by now.
            let failed = |error: DeviceError| LeafUnavailable::open_failed(error.to_string());
            let labels = read_labels(&*device).map_err(failed)?;
            let paths = vec![path];
            let found = FoundDevice { device: device.clone(), paths, labels, rank: 0 };
            // The labels of one that comes back were written since the pool was opened.
            let limit = leaves.strictness.limit.filter(|_| !returns);
            let strictness = Strictness { limit, ..leaves.strictness };
            leaves.check(leaf, &found, &strictness)?;
        } else if returns {
            self.devices.check_labelled(leaf, &*device)?;
        }
        let is_late = self.leaves.as_ref().is_some_and(|leaves| {
            leaves.candidate.device(leaf).is_none() || self.devices.newest.load(Relaxed) > 0
        });
        if !returns && !is_late {
            return Ok(device);
        }
        // Its ring was not looked at when the uberblock was chosen, or something was written since.
        let own = match newest_on(&*device)? {
            Some(own) => self.devices.shared_until(&own, &*device)?,
            None => 0,
        };
        match returns {
            true => self.devices.check_current(leaf, own, &*device)?,
            false => self.devices.note_late(leaf, own),
        }
        Ok(device)
    }
}

/// Opens a device by its path and holds it exclusively, for commands that work on one device.
pub fn open_exclusive(path: &Path) -> Result<Arc<dyn Device>> {
    let device = FileDevice::open(path, Mode::Exclusive).map_err(|error| match error {
        DeviceError::Busy(_) => Error::new(ErrorKind::Busy, error.to_string()),
        _ => Error::new(ErrorKind::Io, format!("{}: {error}", path.display())),
    })?;
    Ok(Arc::new(device))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::assemble::assemble;
    use crate::pool::discover::{ScanOptions, scan};
    use crate::pool::testing::{self, SIZE, leaf, top};
    use cenote_format::config::VdevKind;

    #[test]
    fn devices_for_writing_are_held_once() {
        let dir = tempfile::tempdir().unwrap();
        let paths = ["a", "b"].map(|name| dir.path().join(name));
        let [a, b] = paths.clone().map(|path| path.to_string_lossy().into_owned());
        let tree = top(VdevKind::Mirror, 0, 10, vec![leaf(0, 11, &a), leaf(1, 12, &b)]);
        for (guid, path) in [(11, &paths[0]), (12, &paths[1])] {
            let disk = cenote_device::SimDevice::new("sim", SIZE);
            testing::write_labels(&disk, &testing::config(&tree, guid, 7, 1));
            std::fs::write(path, disk.read(0, SIZE).unwrap()).unwrap();
        }
        let opener: Arc<dyn Opener> = Arc::new(FileOpener { mode: Mode::ReadOnly });
        let found = scan(&opener, &ScanOptions::new(vec![dir.path().into()]));
        let candidate = assemble(&found).pop().unwrap();
        let held = HeldDevices::new();
        let root = candidate.tree.clone();
        let leaves = held.leaves(&candidate, None);
        let node = &root.children()[0].children()[0];
        let device = leaves.open(node).unwrap();
        device.write(0, b"mine").unwrap();
        // Another tree of the same pool gets the same device, another process none.
        let again = held.leaves(&candidate, None).open(node).unwrap();
        assert!(Arc::ptr_eq(&device, &again) && held.busy().is_empty());
        let other = HeldDevices::new();
        let error = other.leaves(&candidate, None).open(node).unwrap_err();
        assert!(error.reason.contains(&a), "{}", error.reason);
        assert_eq!(other.busy(), [paths[0].clone()]);
        assert_eq!(open_exclusive(&paths[0]).unwrap_err().kind(), ErrorKind::Busy);
        drop((device, again));
        open_exclusive(&paths[0]).unwrap();
        // The name has come to mean another device.
        std::fs::copy(&paths[1], &paths[0]).unwrap();
        assert!(leaves.open(node).is_err());
        let new = held.new_leaves().open(&leaf(0, 99, &a)).unwrap();
        assert_eq!(new.path(), paths[0]);
    }

    #[test]
    fn a_wiped_device_is_told_from_a_missing_one() {
        let dir = tempfile::tempdir().unwrap();
        let paths = ["a", "b"].map(|name| dir.path().join(name));
        let [a, b] = paths.clone().map(|path| path.to_string_lossy().into_owned());
        let tree = top(VdevKind::Mirror, 0, 10, vec![leaf(0, 11, &a), leaf(1, 12, &b)]);
        let disk = cenote_device::SimDevice::new("sim", SIZE);
        testing::write_labels(&disk, &testing::config(&tree, 11, 7, 1));
        std::fs::write(&paths[0], disk.read(0, SIZE).unwrap()).unwrap();
        let opener: Arc<dyn Opener> = Arc::new(FileOpener { mode: Mode::ReadOnly });
        let found = scan(&opener, &ScanOptions::new(vec![dir.path().into()]));
        let candidate = assemble(&found).pop().unwrap();
        let root = candidate.tree.clone();
        let why = || {
            let leaves = CandidateLeaves::trusted(&candidate, None);
            leaves.open(&root.children()[0].children()[1]).unwrap_err().condition.aux
        };
        assert_eq!(why(), Aux::OpenFailed);
        std::fs::File::create(&paths[1]).unwrap().set_len(SIZE as u64).unwrap();
        assert_eq!(why(), Aux::BadLabel);
        // What is there now is another device.
        std::fs::copy(&paths[0], &paths[1]).unwrap();
        assert_eq!(why(), Aux::CorruptData);
    }
}
