//! Charging the owners of a filesystem's objects: the sums behind user, group and project usage.
//!
//! Chapter 04, section 8. Invariant: what is taken off an owner is what the old dnode says was
//! charged to it, so that the sums stay those of the dnodes. Sums that cannot be read for damage stay as
//! they are: no group waits for them.

use std::collections::BTreeMap;

use cenote_format::bytes::{le16, le64};
use cenote_format::dnode::{FLAG_USEROBJUSED_ACCOUNTED, FLAG_USERUSED_ACCOUNTED};
use cenote_format::znode::Znode;
use cenote_format::{Dnode, ObjectType, objset, pflags};

use crate::object::{Accounting, Object, ObjectSet, SyncedObject};
use crate::txg::Tx;
use crate::{Result, zap};

/// Bytes charged for an object itself, whatever its dnode's size.
const OBJECT_ITSELF: i64 = 512;
/// Where the owners stand, from the end of the attribute header.
const OWNER: usize = 24;
const GROUP: usize = 32;
const FLAGS: usize = 48;
const PROJECT: usize = 128;

/// Whose object it is.
struct Owners {
    user: u64,
    group: u64,
    project: u64,
}

/// The owners an object's bonus names; `None` if its kind is not charged.
fn owners(dnode: &Dnode) -> Option<Owners> {
    let bonus = dnode.bonus();
    if dnode.bonus_type == ObjectType::ZNODE {
        let znode = Znode::decode(bonus).ok()?;
        return Some(Owners { user: znode.owner, group: znode.group, project: 0 });
    }
    if dnode.bonus_type != ObjectType::SYSTEM_ATTRIBUTES {
        return None;
    }
    // A magic of zero is a bonus that was never filled.
    if le64(bonus, 0)? & 0xffff_ffff == 0 {
        return Some(Owners { user: 0, group: 0, project: 0 });
    }
    let header = usize::from(le16(bonus, 4)? >> 10) * 8;
    let flags = le64(bonus, header + FLAGS)?;
    let project = match flags & pflags::PROJECT {
        0 => 0,
        _ => le64(bonus, header + PROJECT).unwrap_or(0),
    };
    Some(Owners {
        user: le64(bonus, header + OWNER)?,
        group: le64(bonus, header + GROUP)?,
        project,
    })
}

/// Charges the owners of `objects`, which were just written in `set`, and marks their dnodes.
/// `flags` are those of the set's root: what it accounts at all.
pub fn charge_owners(
    set: &ObjectSet,
    tx: &Tx,
    flags: u64,
    objects: &mut [SyncedObject],
) -> Result<()> {
    if flags & objset::FLAG_USERACCOUNTING_COMPLETE == 0 {
        return Ok(());
    }
    let counts_objects = flags & objset::FLAG_USEROBJACCOUNTING_COMPLETE != 0;
    let has_projects = flags & objset::FLAG_PROJECTQUOTA_COMPLETE != 0;
    // Bytes and objects, by principal.
    let mut sums: BTreeMap<(u64, u64), (i64, i64)> = BTreeMap::new();
    let mut add = |dnode: &Dnode, sign: i64| {
        let Some(owners) = owners(dnode) else { return false };
        let bytes = i64::try_from(dnode.used_bytes()).unwrap_or(i64::MAX);
        let charged = |flag: u8| i64::from(dnode.flags & flag != 0);
        let bytes = sign * bytes.saturating_add(OBJECT_ITSELF) * charged(FLAG_USERUSED_ACCOUNTED);
        let count = sign * charged(FLAG_USEROBJUSED_ACCOUNTED);
        let mut principals =
            vec![(Accounting::User, owners.user), (Accounting::Group, owners.group)];
        if has_projects {
            principals.push((Accounting::Project, owners.project));
        }
        for (which, id) in principals {
            let sum = sums.entry((which.id(), id)).or_default();
            sum.0 = sum.0.saturating_add(bytes);
            sum.1 = sum.1.saturating_add(count);
        }
        true
    };
    for object in objects {
        if let Some(old) = &object.old {
            add(old, -1);
        }
        if let Some(new) = &mut object.new {
            let mut marked = FLAG_USERUSED_ACCOUNTED;
            if counts_objects {
                marked |= FLAG_USEROBJUSED_ACCOUNTED;
            }
            new.flags |= marked;
            add(new, 1);
        }
    }
    for which in [Accounting::User, Accounting::Group, Accounting::Project] {
        let mine = sums.range((which.id(), 0)..=(which.id(), u64::MAX));
        let changed: Vec<_> =
            mine.filter(|(_, sum)| **sum != (0, 0)).map(|(key, sum)| (key.1, *sum)).collect();
        if changed.is_empty() {
            continue;
        }
        let object = set.accounting_to_change(tx, which)?;
        let aside = |error| set.set_damage_aside(&object, error);
        make_sums(&object, tx, which).or_else(aside)?;
        for (id, sums) in changed {
            // What is damaged of one owner's is not of another's.
            charge_one(&object, tx, id, sums).or_else(aside)?;
        }
    }
    Ok(())
}

/// Makes an empty accounting object a table.
fn make_sums(object: &Object, tx: &Tx, which: Accounting) -> Result<()> {
    if object.read_block(0)?.iter().take(8).any(|byte| *byte != 0) {
        return Ok(());
    }
    zap::create(object, tx, which.id(), cenote_format::zap::Normalization::NONE)
}

/// Adds bytes and objects to what principal `id` is charged with.
fn charge_one(object: &Object, tx: &Tx, id: u64, (bytes, count): (i64, i64)) -> Result<()> {
    let name = zap::int_name(id);
    zap::add(object, tx, name.as_bytes(), bytes)?;
    if count != 0 {
        zap::add(object, tx, format!("obj-{name}").as_bytes(), count)?;
    }
    Ok(())
}
