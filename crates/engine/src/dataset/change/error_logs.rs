//! The pool's error logs as tables of the meta object set.
//!
//! Chapter 03, section 16. Without the feature `head_errlog` a log names blocks by dataset; with it each
//! head has a table of its own, with the birth of each block. Invariant: while the feature is active a log
//! has only tables of heads that are there; what is moved between heads keeps its birth.

use std::collections::BTreeMap;

use cenote_format::bptree::BlockBookmark;
use cenote_format::error_log::{self, HeadKey};
use cenote_format::zap::Value;
use cenote_format::{ObjectId, ObjectType, Txg};

use super::{MosChange, OBJECT_DIRECTORY};
use crate::dataset::Table;
use crate::object::ObjectSet;
use crate::pipe::Fault;
use crate::zap::{self, Zap};
use crate::{Error, ErrorKind, Result};

/// Short name of the feature with which each head has a table of its own.
pub(super) const BY_HEAD: &str = "head_errlog";
/// Most entries of a log of datasets that are taken into tables of heads.
const MOST: usize = 1 << 16;

/// An error log of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorLog {
    /// What was met since the last scan, or by that.
    Last,
    /// What the scan under way has met.
    ByScan,
}

impl ErrorLog {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Last, Self::ByScan];

    /// Its entry of the pool's directory.
    pub fn key(self) -> &'static str {
        match self {
            Self::Last => "errlog_last",
            Self::ByScan => "errlog_scrub",
        }
    }
}

/// What a log has.
#[derive(Default)]
struct Content {
    /// Blocks named by their dataset.
    blocks: Vec<BlockBookmark>,
    /// Tables by the name of their head.
    tables: Vec<(Vec<u8>, ObjectId)>,
}

impl Content {
    fn of(mos: &ObjectSet, log: ObjectId) -> Result<Self> {
        let mut content = Self::default();
        for entry in Zap::open(mos.object(log)?)?.entries() {
            let entry = entry?;
            match (error_log::parse(entry.name()), entry.value.as_u64()) {
                (Ok(block), _) => content.blocks.push(block),
                (Err(_), Some(table)) => {
                    content.tables.push((entry.name().to_vec(), ObjectId(table)));
                }
                (Err(_), None) => {}
            }
        }
        Ok(content)
    }
}

/// Whether a log names blocks by dataset. With the feature, which earlier versions of this program enabled
/// without dividing the logs, OpenZFS does not survive that.
pub fn error_logs_name_datasets(mos: &ObjectSet) -> Result<bool> {
    let Some(directory) = Table::open(mos, OBJECT_DIRECTORY)? else { return Ok(false) };
    for log in ErrorLog::ALL {
        let id = directory.number(log.key())?.filter(|id| *id != 0);
        if let Some(id) = id
            && !Content::of(mos, ObjectId(id))?.blocks.is_empty()
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Level and number of a block, as logs have them; of what is no block of an object, those of a root.
fn place(fault: &Fault) -> (i64, u64) {
    fault.block.map_or((-1, 0), |(level, block)| (level.into(), block))
}

impl MosChange<'_> {
    fn new_error_log(&self) -> Result<ObjectId> {
        self.new_table(ObjectType::ERROR_LOG)
    }

    fn set_error_log(&self, log: ErrorLog, id: ObjectId) -> Result<()> {
        self.put_number(OBJECT_DIRECTORY, log.key(), id.0)
    }

    /// The log, made if there is none.
    fn error_log(&self, log: ErrorLog) -> Result<ObjectId> {
        if let Some(id) = self.pool_entry(log.key())? {
            return Ok(id);
        }
        let made = self.new_error_log()?;
        self.set_error_log(log, made)?;
        Ok(made)
    }

    /// Adds what is lost to a log.
    pub fn log_lost<'a>(
        &self,
        log: ErrorLog,
        lost: impl IntoIterator<Item = &'a Fault>,
    ) -> Result<()> {
        let blocks = lost.into_iter().map(|fault| {
            let (level, block) = place(fault);
            BlockBookmark { objset: fault.objset, object: fault.object, level, block }
        });
        let blocks: Vec<BlockBookmark> = blocks.collect();
        if blocks.is_empty() {
            return Ok(());
        }
        let log = self.error_log(log)?;
        if self.is_active(BY_HEAD)? {
            return self.log_by_head(log, &blocks);
        }
        let names: Vec<String> = blocks.iter().map(error_log::name).collect();
        self.put_entries(log, &names)
    }

    fn put_entries(&self, log: ObjectId, names: &[String]) -> Result<()> {
        let (log, nothing) = (self.object(log)?, Value::of_bytes(&[0])?);
        names.iter().try_for_each(|name| zap::update(&log, self.tx, name.as_bytes(), &nothing))
    }

    fn log_by_head(&self, log: ObjectId, blocks: &[BlockBookmark]) -> Result<()> {
        let mut by_head: BTreeMap<u64, Vec<String>> = BTreeMap::new();
        for at in blocks {
            let Some(head) = self.head_to_log(at.objset)? else { continue };
            let birth = match self.birth_of(at) {
                // Nothing is there that could be lost.
                Ok(None) => continue,
                Ok(Some(birth)) => birth,
                // Say, of what is encrypted.
                Err(_) => Txg(0),
            };
            let (object, level, block) = (at.object, at.level, at.block);
            let key = HeadKey { object, level, block, birth };
            by_head.entry(head).or_default().push(key.name());
        }
        by_head.into_iter().try_for_each(|(head, names)| self.log_of_head(log, head, &names))
    }

    /// Adds entries to the table of a head.
    fn log_of_head(&self, log: ObjectId, head: u64, names: &[String]) -> Result<()> {
        if names.is_empty() {
            return Ok(());
        }
        let key = format!("{head:x}");
        let table = match self.number(log, &key)? {
            Some(table) => ObjectId(table),
            None => {
                let made = self.new_error_log()?;
                self.put_number(log, &key, made.0)?;
                made
            }
        };
        self.put_entries(table, names)
    }

    /// The head of the directory that dataset `objset` belongs to, itself if that cannot be told; `None`
    /// if the dataset is gone.
    fn head_to_log(&self, objset: u64) -> Result<Option<u64>> {
        if objset == 0 {
            return Ok(Some(0));
        }
        let head = || self.directory(self.dataset(ObjectId(objset))?.directory);
        match head() {
            Ok(directory) => Ok(Some(directory.head_dataset.0)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(_) => Ok(Some(objset)),
        }
    }

    /// When the block was written; `None` if nothing is there.
    fn birth_of(&self, at: &BlockBookmark) -> Result<Option<Txg>> {
        // Of roots, and of what is no block, nothing tells.
        let level = u8::try_from(at.level).map_err(|_| Error::not_found("no block"))?;
        let set = match at.objset {
            0 => self.mos.clone(),
            objset => {
                let root = self.dataset(ObjectId(objset))?.pointer;
                ObjectSet::open(self.mos.io(), root, objset, None)?
            }
        };
        let found =
            set.object(ObjectId(at.object)).and_then(|object| object.pointer(level, at.block));
        match found {
            Ok(pointer) if pointer.is_hole() => Ok(None),
            Ok(pointer) => Ok(Some(pointer.physical_birth())),
            Err(error) if error.kind() == ErrorKind::NotFound && at.object != 0 => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Frees a log, and the tables of heads in it.
    pub fn free_error_log(&self, log: ErrorLog) -> Result<()> {
        let Some(id) = self.pool_entry(log.key())? else { return Ok(()) };
        if self.is_active(BY_HEAD)? {
            for (_, table) in Content::of(self.mos, id)?.tables {
                self.free_object(table)?;
            }
        }
        self.free_object(id)?;
        self.set_error_log(log, ObjectId(0))
    }

    /// The whole scan has ended: what it met is what is known.
    pub fn rotate_error_logs(&self) -> Result<()> {
        self.free_error_log(ErrorLog::Last)?;
        let by_scan = self.pool_entry(ErrorLog::ByScan.key())?.unwrap_or(ObjectId(0));
        self.set_error_log(ErrorLog::Last, by_scan)?;
        self.set_error_log(ErrorLog::ByScan, ObjectId(0))
    }

    /// Gives the logs tables of heads, now that the feature is active. What cannot be read of a log is
    /// given up: a scrub finds it again.
    pub fn divide_error_logs(&self) -> Result<()> {
        for log in ErrorLog::ALL {
            let Some(id) = self.pool_entry(log.key())? else { continue };
            let mut content = Content::of(self.mos, id).unwrap_or_else(|error| {
                tracing::warn!(%error, log = log.key(), "an error log cannot be read, and is given up");
                Content::default()
            });
            content.blocks.truncate(MOST);
            let made = self.new_error_log()?;
            let object = self.object(made)?;
            for (head, table) in &content.tables {
                zap::insert_u64(&object, self.tx, head.as_slice(), table.0)?;
            }
            self.log_by_head(made, &content.blocks)?;
            self.free_object(id)?;
            self.set_error_log(log, made)?;
        }
        Ok(())
    }

    /// Does something with the tables of each log. A log that is damaged keeps nothing else.
    fn tend_error_logs(&self, tend: impl Fn(ObjectId) -> Result<()>) -> Result<()> {
        if !self.is_active(BY_HEAD)? {
            return Ok(());
        }
        for log in ErrorLog::ALL {
            let Some(id) = self.pool_entry(log.key())? else { continue };
            if let Err(error) = tend(id) {
                tracing::warn!(%error, log = log.key(), "an error log does not follow a dataset");
            }
        }
        Ok(())
    }

    /// A head is gone, and its table with it.
    pub(super) fn forget_errors(&self, head: ObjectId) -> Result<()> {
        let key = format!("{:x}", head.0);
        self.tend_error_logs(|log| match self.number(log, &key)? {
            Some(table) => {
                self.remove(log, &key)?;
                self.free_object(ObjectId(table))
            }
            None => Ok(()),
        })
    }

    /// The entries of a head whose blocks were born in `births`.
    fn errors_born(
        &self,
        log: ObjectId,
        head: ObjectId,
        births: &impl Fn(Txg) -> bool,
    ) -> Result<Vec<String>> {
        let Some(table) = self.number(log, &format!("{:x}", head.0))? else {
            return Ok(Vec::new());
        };
        let names = self.entries(ObjectId(table))?.into_iter().map(|(name, _)| name);
        let is_one = |name: &String| {
            HeadKey::parse(name.as_bytes()).is_ok_and(|key| key.birth.0 != 0 && births(key.birth))
        };
        Ok(names.filter(is_one).collect())
    }

    fn move_errors(
        &self,
        log: ObjectId,
        [from, to]: [ObjectId; 2],
        names: &[String],
    ) -> Result<()> {
        let Some(table) = self.number(log, &format!("{:x}", from.0))? else { return Ok(()) };
        for name in names {
            self.remove(ObjectId(table), name)?;
        }
        self.log_of_head(log, to.0, names)
    }

    /// Two heads exchanged what they have beyond the snapshot of group `since`.
    pub(super) fn swap_errors(&self, one: ObjectId, other: ObjectId, since: Txg) -> Result<()> {
        self.tend_error_logs(|log| {
            let later = |birth| birth > since;
            let of_one = self.errors_born(log, one, &later)?;
            let of_other = self.errors_born(log, other, &later)?;
            self.move_errors(log, [one, other], &of_one)?;
            self.move_errors(log, [other, one], &of_other)
        })
    }

    /// The snapshots up to that of group `until` have another head now.
    pub(super) fn pass_errors(&self, from: ObjectId, to: ObjectId, until: Txg) -> Result<()> {
        self.tend_error_logs(|log| {
            let names = self.errors_born(log, from, &|birth| birth <= until)?;
            self.move_errors(log, [from, to], &names)
        })
    }
}
