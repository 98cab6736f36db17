//! Who uses how much of a filesystem: users, groups and projects, with their quotas.
//!
//! Chapter 04, section 8; chapter 05, section 2. Invariant: an id appears once for each kind of
//! principal; ids are FUIDs (domain index in the upper half, 0 for plain POSIX ids).

use std::collections::BTreeMap;

use cenote_format::deadlist::parse_integer_key;
use cenote_format::{ObjectId, master_node};

use super::{Catalog, Dataset, Keys, Table};
use crate::Result;
use crate::object::{Accounting, ObjectSet};

/// Prefix of the entries that count objects.
const OBJECTS: &str = "obj-";

/// Whose space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Principal {
    /// A user.
    User(u64),
    /// A group.
    Group(u64),
    /// A project.
    Project(u64),
}

/// What a principal uses and may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrincipalUsage {
    /// Bytes used.
    pub used: u64,
    /// Objects owned, where the pool counts them.
    pub objects: Option<u64>,
    /// Most bytes, if limited.
    pub quota: Option<u64>,
    /// Most objects, if limited.
    pub object_quota: Option<u64>,
}

impl Catalog {
    /// Usage and quotas of every principal in a filesystem, from its accounting objects.
    pub fn usage(
        &self,
        dataset: &Dataset,
        keys: &dyn Keys,
    ) -> Result<BTreeMap<Principal, PrincipalUsage>> {
        let set = self.object_set(dataset, keys)?;
        let mut usage = BTreeMap::new();
        let [user, group, project, user_objects, group_objects, project_objects] =
            master_node::QUOTAS;
        type Make = fn(u64) -> Principal;
        let kinds: [(Accounting, Make, [&[u8]; 2]); 3] = [
            (Accounting::User, Principal::User, [user, user_objects]),
            (Accounting::Group, Principal::Group, [group, group_objects]),
            (Accounting::Project, Principal::Project, [project, project_objects]),
        ];
        for (which, make, [bytes, objects]) in kinds {
            used(&set, which, make, &mut usage)?;
            quotas(&set, bytes, |id, limit| {
                usage.entry(make(id)).or_default().quota = Some(limit)
            })?;
            quotas(&set, objects, |id, limit| {
                usage.entry(make(id)).or_default().object_quota = Some(limit);
            })?;
        }
        Ok(usage)
    }
}

fn used(
    set: &ObjectSet,
    which: Accounting,
    make: fn(u64) -> Principal,
    usage: &mut BTreeMap<Principal, PrincipalUsage>,
) -> Result<()> {
    let Some(object) = set.accounting_object(which) else { return Ok(()) };
    for (name, value) in Table::of(object)?.numbers()? {
        let (objects, id) = match name.strip_prefix(OBJECTS) {
            Some(id) => (true, id),
            None => (false, name.as_str()),
        };
        let entry = usage.entry(make(parse_integer_key(id.as_bytes())?)).or_default();
        if objects {
            entry.objects = Some(value);
        } else {
            entry.used = value;
        }
    }
    Ok(())
}

fn quotas(set: &ObjectSet, key: &[u8], mut found: impl FnMut(u64, u64)) -> Result<()> {
    let Some(master) = Table::open(set, master_node::OBJECT)? else { return Ok(()) };
    let id = master.number(&String::from_utf8_lossy(key))?;
    let Some(table) = Table::open(set, ObjectId(id.unwrap_or(0)))? else { return Ok(()) };
    for (name, limit) in table.numbers()? {
        found(parse_integer_key(name.as_bytes())?, limit);
    }
    Ok(())
}
