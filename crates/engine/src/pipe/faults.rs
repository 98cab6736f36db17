//! Which blocks could not be read since the pool was opened: those that are lost, and those that
//! devices that are away, or do not answer, may still have.
//!
//! Invariant: at most [`MOST`] of each are remembered; noting one waits for nothing but a short lock.
//! Nothing is called lost that was not read from every device that has a part of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use cenote_format::Guid;
use cenote_format::nvlist::Value;
use parking_lot::Mutex;

use crate::events::{Events, Limited};
use crate::{Error, ErrorKind};

/// Most blocks that are remembered.
const MOST: usize = 1 << 16;

/// A block that somebody asked for and that could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fault {
    /// Object number of the dataset (0: the MOS).
    pub objset: u64,
    /// The object.
    pub object: u64,
    /// Its level and number in the object, if known.
    pub block: Option<(u8, u64)>,
}

impl Fault {
    /// Tells that it is lost, as `error` says.
    pub(super) fn report(&self, events: &Events, error: &Error) {
        let (level, block) = self.block.unwrap_or_default();
        let place = Some((self.objset, self.object));
        let number = block | u64::from(level) << 56;
        if !events.admits(&Limited { class: "data", vdev: Guid(0), place, number }) {
            return;
        }
        let errno = if error.kind() == ErrorKind::Checksum { 52 } else { 5 };
        let members = vec![
            ("zio_err", Value::Int32(errno)),
            ("zio_objset", Value::from(self.objset)),
            ("zio_object", Value::from(self.object)),
            ("zio_level", Value::Int64(level.into())),
            ("zio_blkid", Value::from(block)),
        ];
        if error.is_forged() {
            events.report("authentication", None, members.clone());
        }
        events.report("data", None, members);
    }
}

/// The blocks that could not be read.
#[derive(Debug, Default)]
pub struct Faults {
    /// With the number of the scan in which it was met last.
    lost: Mutex<BTreeMap<Fault, u64>>,
    /// How many scans have begun.
    scans: AtomicU64,
    /// With how often devices had come back until then.
    passing: Mutex<BTreeMap<Fault, u64>>,
    any_passing: AtomicBool,
    changes: AtomicU64,
}

impl Faults {
    /// Notes where `error` happened, if it is data that could not be read. `comebacks`: how often
    /// devices have come back so far. The fault, if something is lost that was not known to be.
    pub(super) fn note(&self, error: &Error, comebacks: u64) -> Option<Fault> {
        let place = error.place();
        let unread = matches!(error.kind(), ErrorKind::Io | ErrorKind::Checksum);
        let (true, Some(objset), Some(object)) = (unread, place.objset, place.object) else {
            return None;
        };
        let fault = Fault { objset, object, block: place.block };
        if error.is_passing() {
            let mut passing = self.passing.lock();
            if passing.len() < MOST || passing.contains_key(&fault) {
                passing.insert(fault, comebacks);
                self.any_passing.store(true, Relaxed);
                self.changes.fetch_add(1, Relaxed);
            }
            return None;
        }
        let is_new = self.met(fault, self.scans.load(Relaxed));
        self.was_read(&fault);
        is_new.then_some(fault)
    }

    /// Whether it was not known.
    fn met(&self, fault: Fault, scan: u64) -> bool {
        let mut lost = self.lost.lock();
        if let Some(known) = lost.get_mut(&fault) {
            if *known < scan {
                *known = scan;
                self.changes.fetch_add(1, Relaxed);
            }
            return false;
        }
        if lost.len() < MOST {
            lost.insert(fault, scan);
            self.changes.fetch_add(1, Relaxed);
        }
        true
    }

    /// Takes up what an earlier life of the pool knew, before the scan under way if there is one.
    pub fn remember(&self, before: &BTreeSet<Fault>, by_scan: &BTreeSet<Fault>) {
        let scan = self.scans.load(Relaxed);
        for (fault, scan) in
            before.iter().map(|fault| (fault, 0)).chain(by_scan.iter().map(|fault| (fault, scan)))
        {
            self.met(*fault, scan);
        }
    }

    /// A scan begins: what it does not meet will be well.
    pub fn scan_begins(&self) {
        self.scans.fetch_add(1, Relaxed);
    }

    /// The scan has ended: what it did not meet is well.
    pub fn scan_ends(&self) {
        let scan = self.scans.load(Relaxed);
        self.lost.lock().retain(|_, met| *met >= scan);
        self.changes.fetch_add(1, Relaxed);
    }

    /// Those that the scan under way has met.
    pub fn lost_in_scan(&self) -> BTreeSet<Fault> {
        let scan = self.scans.load(Relaxed);
        self.lost.lock().iter().filter(|(_, met)| **met >= scan).map(|(fault, _)| *fault).collect()
    }

    /// The block was read after all. Costs nothing while all is well.
    pub fn was_read(&self, fault: &Fault) {
        if !self.any_passing.load(Relaxed) {
            return;
        }
        let mut passing = self.passing.lock();
        if passing.remove(fault).is_some() {
            self.any_passing.store(!passing.is_empty(), Relaxed);
            self.changes.fetch_add(1, Relaxed);
        }
    }

    /// Forgets these: there is nothing any more that could be lost.
    pub fn forget(&self, is_gone: impl Fn(&Fault) -> bool) {
        let (mut lost, mut passing) = (self.lost.lock(), self.passing.lock());
        let before = lost.len() + passing.len();
        lost.retain(|fault, _| !is_gone(fault));
        passing.retain(|fault, _| !is_gone(fault));
        self.any_passing.store(!passing.is_empty(), Relaxed);
        if lost.len() + passing.len() != before {
            self.changes.fetch_add(1, Relaxed);
        }
    }

    /// Those that are lost: no device that has a part of them gave what makes them up.
    pub fn lost(&self) -> BTreeSet<Fault> {
        self.lost.lock().keys().copied().collect()
    }

    /// Whether this one is lost.
    pub fn is_lost(&self, fault: &Fault) -> bool {
        self.lost.lock().contains_key(fault)
    }

    /// Those that could not be read for now, with devices having come back `comebacks` times: what
    /// failed before the last of them did may be good again and is forgotten.
    pub fn passing(&self, comebacks: u64) -> BTreeSet<Fault> {
        if !self.any_passing.load(Relaxed) {
            return BTreeSet::new();
        }
        let mut passing = self.passing.lock();
        passing.retain(|_, since| *since >= comebacks);
        self.any_passing.store(!passing.is_empty(), Relaxed);
        passing.keys().copied().collect()
    }

    /// Forgets those that could not be read for now (`zpool clear`).
    pub fn forget_passing(&self) {
        self.passing.lock().clear();
        self.any_passing.store(false, Relaxed);
        self.changes.fetch_add(1, Relaxed);
    }

    /// Grows with every change of what is remembered.
    pub fn changes(&self) -> u64 {
        self.changes.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_unread_data_with_a_place_is_noted() {
        let faults = Faults::default();
        faults.note(&Error::new(ErrorKind::Checksum, "bad"), 0);
        faults.note(&Error::not_found("none").at_object(5, 7), 0);
        assert_eq!(faults.changes(), 0);
        let error = Error::new(ErrorKind::Checksum, "bad").at_object(5, 7);
        faults.note(&error, 0);
        faults.note(&error, 0);
        let expected = Fault { objset: 5, object: 7, block: None };
        assert_eq!(faults.lost().into_iter().collect::<Vec<_>>(), [expected]);
        assert_eq!(faults.changes(), 1);
    }

    #[test]
    fn what_a_scan_does_not_meet_is_well() {
        let faults = Faults::default();
        let fault = |object| Fault { objset: 5, object, block: None };
        let error = |object| Error::new(ErrorKind::Checksum, "bad").at_object(5, object);
        faults.remember(&[fault(1), fault(2)].into(), &BTreeSet::new());
        faults.scan_begins();
        faults.note(&error(2), 0);
        faults.note(&error(3), 0);
        assert_eq!((faults.lost().len(), faults.lost_in_scan().len()), (3, 2));
        faults.scan_ends();
        assert_eq!(faults.lost(), [fault(2), fault(3)].into());
    }

    #[test]
    fn what_failed_for_now_is_forgotten_when_it_is_read_or_devices_are_back() {
        let faults = Faults::default();
        let error = |object| Error::new(ErrorKind::Io, "away").passing(true).at_object(5, object);
        let fault = |object| Fault { objset: 5, object, block: None };
        for object in 1..=3 {
            faults.note(&error(object), 0);
        }
        assert_eq!(faults.passing(0).len(), 3);
        faults.was_read(&fault(1));
        // Now every device answered, and it is wrong on all of them.
        faults.note(&error(2).passing(false), 0);
        assert_eq!(faults.passing(0).into_iter().collect::<Vec<_>>(), [fault(3)]);
        assert!(faults.passing(1).is_empty());
        assert_eq!(faults.lost().into_iter().collect::<Vec<_>>(), [fault(2)]);
        faults.note(&error(1), 1);
        assert_eq!(faults.passing(1).len(), 1);
        faults.forget_passing();
        assert!(faults.passing(1).is_empty() && faults.lost().len() == 1);
    }
}
