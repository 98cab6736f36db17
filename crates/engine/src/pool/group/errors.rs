//! The pool's error logs: which blocks are lost, for the pool's next lives.
//!
//! Chapter 03, section 16; chapter 08, section 24. Invariant: what a log tells of could not be read from
//! any device that has a part of it, and no whole scrub has found it well since. Logs that cannot be read
//! or written keep nothing else.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use cenote_format::ObjectId;
use cenote_format::error_log::{self, HeadKey};
use parking_lot::Mutex;

use super::LivePool;
use super::hooks::GroupHooks;
use crate::Result;
use crate::dataset::Table;
use crate::dataset::change::{ErrorLog, MosChange, OBJECT_DIRECTORY, error_logs_name_datasets};
use crate::object::ObjectSet;
use crate::pipe::Fault;
use crate::zap::Zap;

/// Guid of the feature with which logs have a table for each head.
const BY_HEAD: &str = "com.delphix:head_errlog";
/// Most entries of a log that are read.
const MOST: usize = 1 << 16;

/// What the logs on the disks tell.
#[derive(Clone, Debug, Default)]
struct Logged {
    last: BTreeSet<Fault>,
    by_scan: BTreeSet<Fault>,
    /// [`Faults::changes`](crate::pipe::Faults::changes) at that time.
    changes: u64,
}

/// The logs of a pool open for writing.
#[derive(Debug, Default)]
pub(in crate::pool) struct ErrorLogs {
    logged: Mutex<Logged>,
    /// A scan has ended; true: it was a whole scrub.
    ended: Mutex<Option<bool>>,
    /// The logs were found in the form that the pool's features do not allow any more.
    are_outdated: AtomicBool,
    /// A scrub of the error log reads all of it anew: what it met before counts no more as met by it.
    begins_anew: AtomicBool,
}

impl ErrorLogs {
    /// A scan has ended, or was given up; `whole`: it has visited everything.
    pub(in crate::pool) fn scan_ended(&self, whole: bool) {
        *self.ended.lock() = Some(whole);
    }
}

/// The blocks that the error logs of a pool tell of: those of the last scan and since, and those of the
/// scan under way.
///
/// # Errors
/// If a log cannot be read.
pub fn read_error_logs(mos: &ObjectSet) -> Result<[BTreeSet<Fault>; 2]> {
    Ok([read_log(mos, ErrorLog::Last)?, read_log(mos, ErrorLog::ByScan)?])
}

fn read_log(mos: &ObjectSet, log: ErrorLog) -> Result<BTreeSet<Fault>> {
    let mut out = BTreeSet::new();
    let Some(directory) = Table::open(mos, OBJECT_DIRECTORY)? else { return Ok(out) };
    let Some(id) = directory.number(log.key())?.filter(|id| *id != 0) else {
        return Ok(out);
    };
    let block = |level: i64, id| u8::try_from(level).ok().map(|level| (level, id));
    for entry in Zap::open(mos.object(ObjectId(id))?)?.entries() {
        if out.len() >= MOST {
            break;
        }
        let entry = entry?;
        if let Ok(at) = error_log::parse(entry.name()) {
            let (objset, object) = (at.objset, at.object);
            out.insert(Fault { objset, object, block: block(at.level, at.block) });
            continue;
        }
        let name = String::from_utf8_lossy(entry.name()).into_owned();
        let (Ok(objset), Some(inner)) = (u64::from_str_radix(&name, 16), entry.value.as_u64())
        else {
            continue;
        };
        for entry in Zap::open(mos.object(ObjectId(inner))?)?.entries().take(MOST) {
            if let Ok(at) = HeadKey::parse(entry?.name()) {
                out.insert(Fault { objset, object: at.object, block: block(at.level, at.block) });
            }
        }
    }
    Ok(out)
}

impl LivePool {
    /// Takes up what the logs tell.
    pub(in crate::pool) fn load_errors(&self) {
        let faults = self.io.pipe.faults();
        let [last, by_scan] = read_error_logs(&self.mos).unwrap_or_else(|error| {
            tracing::warn!(%error, "the error logs cannot be read");
            Default::default()
        });
        let begins_anew = self.is_scrubbing_errors();
        if self.is_scanning().is_some() || begins_anew {
            faults.scan_begins();
        }
        match begins_anew {
            true => faults.remember(&(&last | &by_scan), &BTreeSet::new()),
            false => faults.remember(&last, &by_scan),
        }
        self.errors.begins_anew.store(begins_anew && !by_scan.is_empty(), Relaxed);
        *self.errors.logged.lock() = Logged { last, by_scan, changes: faults.changes() };
        let are_outdated =
            self.feature_enabled(BY_HEAD) && error_logs_name_datasets(&self.mos).unwrap_or(false);
        self.errors.are_outdated.store(are_outdated, Relaxed);
    }

    /// Something is lost that the logs do not tell of, or is not any more.
    pub(super) fn has_new_errors(&self) -> bool {
        self.errors.ended.lock().is_some()
            || self.errors.are_outdated.load(Relaxed)
            || self.errors.begins_anew.load(Relaxed)
            || self.errors.logged.lock().changes != self.io.pipe.faults().changes()
    }

    /// Writes what is new into the logs.
    pub(super) fn log_errors(&self, change: &MosChange<'_>, hooks: &GroupHooks<'_>) {
        if !self.has_new_errors() {
            return;
        }
        let ended = self.errors.ended.lock().take();
        let mut next = self.errors.logged.lock().clone();
        let write = || self.write_errors(change, &mut next, ended);
        if let Err(error) = self.all_or_nothing(change.tx.txg(), hooks, write) {
            tracing::warn!(%error, "the error logs cannot be written");
            next.changes = self.io.pipe.faults().changes();
        }
        *self.errors.logged.lock() = next;
    }

    fn write_errors(
        &self,
        change: &MosChange<'_>,
        next: &mut Logged,
        ended: Option<bool>,
    ) -> Result<()> {
        let faults = self.io.pipe.faults();
        if self.errors.are_outdated.swap(false, Relaxed) {
            change.divide_error_logs()?;
        }
        if self.errors.begins_anew.swap(false, Relaxed) {
            let by_scan = std::mem::take(&mut next.by_scan);
            change.log_lost(ErrorLog::Last, by_scan.difference(&next.last))?;
            change.free_error_log(ErrorLog::ByScan)?;
            next.last.extend(by_scan);
        }
        match ended {
            Some(true) => {
                change.rotate_error_logs()?;
                next.last = std::mem::take(&mut next.by_scan);
                faults.scan_ends();
            }
            Some(false) => {
                change.free_error_log(ErrorLog::ByScan)?;
                next.by_scan.clear();
            }
            None => {}
        }
        next.changes = faults.changes();
        let is_scanning = self.is_scanning().is_some() || self.is_scrubbing_errors();
        let (log, lost, known) = match is_scanning {
            true => (ErrorLog::ByScan, faults.lost_in_scan(), &mut next.by_scan),
            false => (ErrorLog::Last, faults.lost(), &mut next.last),
        };
        let new: BTreeSet<Fault> = lost.difference(known).copied().collect();
        change.log_lost(log, &new)?;
        known.extend(new);
        Ok(())
    }

    /// A head is gone: nothing of it is lost any more.
    pub(super) fn forget_errors_of(&self, head: ObjectId) {
        self.forget_errors(|fault| fault.objset == head.0);
    }

    fn forget_errors(&self, is_gone: impl Fn(&Fault) -> bool) {
        self.io.pipe.faults().forget(&is_gone);
        let mut logged = self.errors.logged.lock();
        logged.last.retain(|fault| !is_gone(fault));
        logged.by_scan.retain(|fault| !is_gone(fault));
    }

    /// Two heads exchanged content, and the logs followed: what is known follows the logs. What is not
    /// logged yet stays known: where there is such a block no more, it will not be.
    pub(super) fn errors_swapped(&self, one: ObjectId, other: ObjectId) {
        let Ok([last, by_scan]) = read_error_logs(&self.mos) else { return };
        let faults = self.io.pipe.faults();
        let is_logged = |fault: &Fault| last.contains(fault) || by_scan.contains(fault);
        let known: BTreeSet<Fault> = {
            let logged = self.errors.logged.lock();
            let of_them = |fault: &&Fault| [one.0, other.0].contains(&fault.objset);
            logged.last.union(&logged.by_scan).filter(of_them).copied().collect()
        };
        let is_old = |fault: &Fault| known.contains(fault) && !is_logged(fault);
        let mut moved = [BTreeSet::new(), BTreeSet::new()];
        for fault in faults.lost().iter().filter(|fault| is_old(fault)) {
            let objset = if fault.objset == one.0 { other.0 } else { one.0 };
            let there = Fault { objset, ..*fault };
            let [before, scanned] = &mut moved;
            if by_scan.contains(&there) {
                scanned.insert(there);
            } else if last.contains(&there) {
                before.insert(there);
            }
        }
        self.forget_errors(is_old);
        let [before, scanned] = moved;
        faults.remember(&before, &scanned);
        let mut logged = self.errors.logged.lock();
        logged.last.extend(before);
        logged.by_scan.extend(scanned);
    }
}
