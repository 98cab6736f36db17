//! The pool's error logs: which blocks are lost, for the pool's next lives.
//!
//! Chapter 03, section 16; chapter 08, section 24. Invariant: what a log tells of could not be read from
//! any device that has a part of it, and no whole scrub has found it well since. Logs that cannot be read
//! or written keep nothing else.

use std::collections::{BTreeMap, BTreeSet};

use cenote_format::bptree::BlockBookmark;
use cenote_format::error_log::{self, HeadKey};
use cenote_format::zap::Normalization;
use cenote_format::{ObjectId, ObjectType, Txg};
use parking_lot::Mutex;

use super::LivePool;
use super::hooks::GroupHooks;
use crate::dataset::Table;
use crate::dataset::change::{MosChange, OBJECT_DIRECTORY};
use crate::object::{NewObject, Object, ObjectSet};
use crate::pipe::Fault;
use crate::zap::{Value, Zap};
use crate::{Error, Result, zap};

/// Entry of the pool's directory: what was met since the last scan, or by that.
const LAST: &str = "errlog_last";
/// The same: what the scan under way has met.
const BY_SCAN: &str = "errlog_scrub";
/// Short name of the feature with which each head has a table of its own.
const BY_HEAD: &str = "head_errlog";
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
    Ok([read_log(mos, LAST)?, read_log(mos, BY_SCAN)?])
}

fn read_log(mos: &ObjectSet, key: &str) -> Result<BTreeSet<Fault>> {
    let mut out = BTreeSet::new();
    let Some(directory) = Table::open(mos, OBJECT_DIRECTORY)? else { return Ok(out) };
    let Some(id) = directory.number(key)?.filter(|id| *id != 0) else { return Ok(out) };
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
        if self.is_scanning().is_some() || self.is_scrubbing_errors() {
            faults.scan_begins();
        }
        faults.remember(&last, &by_scan);
        *self.errors.logged.lock() = Logged { last, by_scan, changes: faults.changes() };
    }

    /// Something is lost that the logs do not tell of, or is not any more.
    pub(super) fn has_new_errors(&self) -> bool {
        self.errors.ended.lock().is_some()
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
        match ended {
            Some(true) => {
                free_log(change, LAST)?;
                let by_scan = number(change, BY_SCAN)?;
                set_number(change, LAST, by_scan)?;
                set_number(change, BY_SCAN, 0)?;
                next.last = std::mem::take(&mut next.by_scan);
                faults.scan_ends();
            }
            Some(false) => {
                free_log(change, BY_SCAN)?;
                next.by_scan.clear();
            }
            None => {}
        }
        next.changes = faults.changes();
        let is_scanning = self.is_scanning().is_some() || self.is_scrubbing_errors();
        let (key, lost, known) = match is_scanning {
            true => (BY_SCAN, faults.lost_in_scan(), &mut next.by_scan),
            false => (LAST, faults.lost(), &mut next.last),
        };
        let new: BTreeSet<Fault> = lost.difference(known).copied().collect();
        self.add(change, key, &new)?;
        known.extend(new);
        Ok(())
    }

    fn add(&self, change: &MosChange<'_>, key: &str, new: &BTreeSet<Fault>) -> Result<()> {
        if new.is_empty() {
            return Ok(());
        }
        let log = log(change, key)?;
        let value = Value::of_bytes(&[0])?;
        if !change.is_active(BY_HEAD)? {
            for fault in new {
                let (level, block) = place(fault);
                let (objset, object) = (fault.objset, fault.object);
                let name = error_log::name(&BlockBookmark { objset, object, level, block });
                zap::update(&log, change.tx, name.as_bytes(), &value)?;
            }
            return Ok(());
        }
        let mut by_head: BTreeMap<u64, Vec<&Fault>> = BTreeMap::new();
        for fault in new {
            by_head.entry(self.head_of(fault.objset)).or_default().push(fault);
        }
        for (head, faults) in by_head {
            let name = format!("{head:x}");
            let known = Zap::open(log.clone())?.lookup_u64(&name)?;
            let table = match known {
                Some(id) => change.mos.object(ObjectId(id))?,
                None => {
                    let made = new_log(change)?;
                    zap::insert_u64(&log, change.tx, name.as_bytes(), made.id().0)?;
                    made
                }
            };
            for fault in faults {
                let (level, block) = place(fault);
                let birth = self.birth_of(fault).unwrap_or_default();
                let key = HeadKey { object: fault.object, level, block, birth };
                zap::update(&table, change.tx, key.name().as_bytes(), &value)?;
            }
        }
        Ok(())
    }

    /// The head of the directory that dataset `objset` belongs to; itself if that cannot be told.
    fn head_of(&self, objset: u64) -> u64 {
        let catalog = self.pool.catalog();
        let head = || -> Result<ObjectId> {
            let dataset = catalog.dataset_by_id(ObjectId(objset))?;
            Ok(catalog.head(&dataset.directory)?.id)
        };
        head().map_or(objset, |head| head.0)
    }

    /// When the block was written.
    fn birth_of(&self, fault: &Fault) -> Result<Txg> {
        let (level, block) = fault.block.ok_or_else(|| Error::not_found("no block"))?;
        let root = match fault.objset {
            0 => *self.pool.mos().root_pointer(),
            dataset => self.pool.catalog().dataset_phys(ObjectId(dataset))?.pointer,
        };
        let set = ObjectSet::open(&self.io, root, fault.objset, None)?;
        Ok(set.object(ObjectId(fault.object))?.pointer(level, block)?.physical_birth())
    }
}

/// Level and number of a block, as logs have them; of what is no block of an object, those of a root.
fn place(fault: &Fault) -> (i64, u64) {
    fault.block.map_or((-1, 0), |(level, block)| (level.into(), block))
}

fn number(change: &MosChange<'_>, key: &str) -> Result<u64> {
    let directory = Table::open(change.mos, OBJECT_DIRECTORY)?
        .ok_or_else(|| Error::corrupt("the pool has no object directory"))?;
    Ok(directory.number(key)?.unwrap_or(0))
}

fn set_number(change: &MosChange<'_>, key: &str, number: u64) -> Result<()> {
    let directory = change.mos.object(OBJECT_DIRECTORY)?;
    zap::update_u64(&directory, change.tx, key, number)
}

/// The log of this name, made if there is none.
fn log(change: &MosChange<'_>, key: &str) -> Result<Object> {
    match number(change, key)? {
        0 => {
            let made = new_log(change)?;
            set_number(change, key, made.id().0)?;
            Ok(made)
        }
        id => change.mos.object(ObjectId(id)),
    }
}

fn new_log(change: &MosChange<'_>) -> Result<Object> {
    let new = NewObject::new(ObjectType::ERROR_LOG, 512);
    let object = change.mos.create_object(change.tx, &new)?;
    zap::create(&object, change.tx, change.hooks.random(), Normalization::NONE)?;
    Ok(object)
}

/// Frees a log, and the tables of heads in it.
fn free_log(change: &MosChange<'_>, key: &str) -> Result<()> {
    let id = number(change, key)?;
    if id == 0 {
        return Ok(());
    }
    if change.is_active(BY_HEAD)? {
        for entry in Zap::open(change.mos.object(ObjectId(id))?)?.entries() {
            if let Some(table) = entry?.value.as_u64() {
                change.mos.free_object(change.tx, ObjectId(table))?;
            }
        }
    }
    change.mos.free_object(change.tx, ObjectId(id))?;
    set_number(change, key, 0)
}
