//! Quotas of users, groups and projects.
//!
//! Chapter 05, section 13. A user who has used as much as the limit or more is over quota. Usage is what
//! the accounting objects say, which is as old as the last transaction group, as in OpenZFS.
//! Invariant: a user who is not over quota when a change begins may finish it.

use std::collections::HashMap;

use cenote_engine::ErrorKind;
use cenote_engine::object::{Accounting, NewObject, Object, ObjectSet};
use cenote_engine::txg::Tx;
use cenote_engine::zap::{self, Zap};
use cenote_format::zap::Normalization;
use cenote_format::{ObjectId, ObjectType, master_node};
use parking_lot::RwLock;

use super::{FilesystemWriter, salt};
use crate::attributes::Facts;
use crate::error::{EDQUOT, EINVAL};
use crate::tree::{Errno, Result};
use crate::view::View;

/// Which quota; the order is that of [`master_node::QUOTAS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaKind {
    /// Bytes of a user.
    User,
    /// Bytes of a group.
    Group,
    /// Bytes of a project.
    Project,
    /// Files of a user.
    UserObjects,
    /// Files of a group.
    GroupObjects,
    /// Files of a project.
    ProjectObjects,
}

impl QuotaKind {
    /// The quota that `property`, as `userquota` or `projectobjquota`, means.
    pub fn of_property(property: &str) -> Option<Self> {
        Some(match property {
            "userquota" => QuotaKind::User,
            "groupquota" => QuotaKind::Group,
            "projectquota" => QuotaKind::Project,
            "userobjquota" => QuotaKind::UserObjects,
            "groupobjquota" => QuotaKind::GroupObjects,
            "projectobjquota" => QuotaKind::ProjectObjects,
            _ => return None,
        })
    }
}

/// A limit of somebody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Of what.
    pub kind: QuotaKind,
    /// Number of the user, group or project.
    pub id: u64,
    /// Bytes or files; 0 for no limit.
    pub limit: u64,
}

const KINDS: [QuotaKind; 6] = [
    QuotaKind::User,
    QuotaKind::Group,
    QuotaKind::Project,
    QuotaKind::UserObjects,
    QuotaKind::GroupObjects,
    QuotaKind::ProjectObjects,
];
/// Bytes of a block of a new table of quotas.
const QUOTA_BLOCK: u64 = 512;
/// Prefix of the counts of files in the accounting objects.
const OBJECTS: &str = "obj-";

#[derive(Default)]
struct Limits {
    /// Limits by id, in the order of [`KINDS`].
    of: [HashMap<u64, u64>; 6],
    /// Limits of everybody else; 0 is none.
    default: [u64; 6],
    /// Whether there is any.
    any: bool,
}

/// The limits of a filesystem.
pub struct Quotas(RwLock<Limits>);

impl Quotas {
    /// Reads the limits.
    pub fn open(view: &View) -> Result<Self> {
        Ok(Self(RwLock::new(Limits::read(view)?)))
    }
}

impl Limits {
    fn read(view: &View) -> Result<Self> {
        let master = Zap::open(view.objects().object(master_node::OBJECT)?)?;
        let mut limits = Self::default();
        let keys = master_node::QUOTAS.iter().zip(master_node::DEFAULT_QUOTAS);
        let slots = limits.of.iter_mut().zip(&mut limits.default);
        for ((key, default_key), (of, default)) in keys.zip(slots) {
            let number = |key: &[u8]| -> Result<u64> {
                Ok(master.lookup(key)?.and_then(|value| value.as_u64()).unwrap_or(0))
            };
            *default = number(default_key)?;
            limits.any |= *default != 0;
            let object = number(key)?;
            if object == 0 {
                continue;
            }
            for entry in Zap::open(view.objects().object(ObjectId(object))?)?.entries() {
                let entry = entry?;
                let id = std::str::from_utf8(entry.name()).unwrap_or("");
                if let (Ok(id), Some(limit)) = (u64::from_str_radix(id, 16), entry.value.as_u64()) {
                    of.insert(id, limit);
                    limits.any = true;
                }
            }
        }
        Ok(limits)
    }

    fn limit(&self, kind: QuotaKind, id: u64) -> u64 {
        let at = kind as usize;
        let own = self.of.get(at).and_then(|limits| limits.get(&id)).copied();
        own.unwrap_or_else(|| self.default.get(at).copied().unwrap_or(0))
    }
}

/// The name of a table of quotas in the master node.
fn quota_key(kind: QuotaKind) -> &'static [u8] {
    master_node::QUOTAS.get(kind as usize).copied().unwrap_or_default()
}

/// The table of these quotas, if there is one.
fn table_of(objects: &ObjectSet, kind: QuotaKind) -> Result<Option<Object>> {
    let master = Zap::open(objects.object(master_node::OBJECT)?)?;
    let known = master.lookup(quota_key(kind))?.and_then(|value| value.as_u64());
    match known.filter(|object| *object != 0) {
        Some(object) => Ok(Some(objects.object(ObjectId(object))?)),
        None => Ok(None),
    }
}

fn make_table(objects: &ObjectSet, tx: &Tx, kind: QuotaKind) -> Result<Object> {
    let table = objects.create_object(tx, &NewObject::new(ObjectType::QUOTA, QUOTA_BLOCK))?;
    zap::create(&table, tx, salt(), Normalization::NONE)?;
    let master = objects.object(master_node::OBJECT)?;
    zap::update_u64(&master, tx, quota_key(kind), table.id().0)?;
    Ok(table)
}

fn put(table: &Object, tx: &Tx, quota: &Quota) -> Result<()> {
    let name = format!("{:x}", quota.id);
    match quota.limit {
        0 => match zap::remove(table, tx, name.as_str()) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            done => Ok(done?),
        },
        limit => Ok(zap::update_u64(table, tx, name.as_str(), limit)?),
    }
}

/// Gives a filesystem that is being made these limits.
pub fn put_first_quotas(objects: &ObjectSet, tx: &Tx, quotas: &[Quota]) -> Result<()> {
    for quota in quotas.iter().filter(|quota| quota.limit != 0) {
        let table = match table_of(objects, quota.kind)? {
            Some(table) => table,
            None => make_table(objects, tx, quota.kind)?,
        };
        put(&table, tx, quota)?;
    }
    Ok(())
}

fn id_of(kind: QuotaKind, facts: &Facts) -> u64 {
    match kind {
        QuotaKind::User | QuotaKind::UserObjects => facts.uid.into(),
        QuotaKind::Group | QuotaKind::GroupObjects => facts.gid.into(),
        QuotaKind::Project | QuotaKind::ProjectObjects => facts.project,
    }
}

impl FilesystemWriter {
    /// Makes the table of these quotas, if there is none: [`Self::put_quota`] wants one.
    pub fn make_quota_table(&self, kind: QuotaKind) -> Result<()> {
        // One at a time.
        let _limits = self.quotas.0.write();
        let objects = self.view.objects();
        if table_of(objects, kind)?.is_some() {
            return Ok(());
        }
        let tx = self.begin()?;
        make_table(objects, &tx, kind)?;
        self.note_whole(&tx);
        Ok(())
    }

    /// Sets a limit. Changes of files see it after [`Self::reload_quotas`]. For the writer of the group that
    /// `tx` belongs to, which nobody needs to note in a log.
    pub fn put_quota(&self, tx: &Tx, quota: &Quota) -> Result<()> {
        let missing = || Errno::new(EINVAL, "there is no table of quotas");
        let table = table_of(self.view.objects(), quota.kind)?.ok_or_else(missing)?;
        put(&table, tx, quota)
    }

    /// The quotas were changed.
    pub fn reload_quotas(&self) -> Result<()> {
        *self.quotas.0.write() = Limits::read(&self.view)?;
        Ok(())
    }

    fn check(&self, facts: &Facts, kinds: impl Iterator<Item = QuotaKind>) -> Result<()> {
        let limits = self.quotas.0.read();
        if !limits.any || self.is_replaying() {
            return Ok(());
        }
        for kind in kinds {
            let id = id_of(kind, facts);
            let limit = limits.limit(kind, id);
            if limit != 0 && self.used(kind, id)? >= limit {
                return Err(Errno::new(EDQUOT, format!("id {id} is over its quota ({kind:?})")));
            }
        }
        Ok(())
    }

    fn used(&self, kind: QuotaKind, id: u64) -> Result<u64> {
        let (which, prefix) = match kind {
            QuotaKind::User => (Accounting::User, ""),
            QuotaKind::Group => (Accounting::Group, ""),
            QuotaKind::Project => (Accounting::Project, ""),
            QuotaKind::UserObjects => (Accounting::User, OBJECTS),
            QuotaKind::GroupObjects => (Accounting::Group, OBJECTS),
            QuotaKind::ProjectObjects => (Accounting::Project, OBJECTS),
        };
        let Some(object) = self.view.objects().stored_accounting(which) else { return Ok(0) };
        let name = format!("{prefix}{id:x}");
        let value = Zap::open(object)?.lookup(name.as_bytes())?;
        Ok(value.and_then(|value| value.as_u64()).unwrap_or(0))
    }

    /// EDQUOT where the owners of a file may not use more bytes.
    pub(super) fn check_quota(&self, facts: &Facts) -> Result<()> {
        self.check(facts, KINDS.into_iter().take(3))
    }

    /// EDQUOT where the owners of a new file may not have more files or bytes.
    pub(super) fn check_quota_of_new(&self, facts: &Facts) -> Result<()> {
        self.check(facts, KINDS.into_iter())
    }

    /// EDQUOT where the new owners of a file may not have it.
    pub(super) fn check_quota_of_owner(&self, old: &Facts, new: &Facts) -> Result<()> {
        let changed = |kind: &QuotaKind| id_of(*kind, old) != id_of(*kind, new);
        self.check(new, KINDS.into_iter().filter(changed))
    }
}
