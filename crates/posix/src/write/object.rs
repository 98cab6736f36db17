//! Making the object of a new file: attributes in their order, directory ZAPs.
//!
//! Chapter 05, sections 5 to 9. Invariant: a new object's first buffer has the mandatory prefix at
//! its fixed places, so that space accounting finds owner, group and project.

use cenote_engine::object::{NewObject, Object, ObjectSet};
use cenote_engine::txg::Tx;
use cenote_engine::zap;
use cenote_format::acl::Ace;
use cenote_format::sa::Attribute;
use cenote_format::zap::Normalization;
use cenote_format::{ObjectId, ObjectType, acl, master_node, pflags};

use super::attributes::{Layouts, Values, capacity_of_slots, time_value};
use crate::attributes::{DIRECTORY, Facts, REGULAR, TYPE, is_device};
use crate::tree::Result;
use crate::view::{File, View};

/// First block size of every new file in bytes.
const FIRST_BLOCK: u64 = 512;
/// Flags of every new file.
const NEW: u64 = pflags::ARCHIVE | pflags::SCAN_MODIFIED;

/// A file to be made.
pub struct NewFile<'a> {
    /// What its attributes say; flags are completed with those that follow from the mode.
    pub facts: Facts,
    /// 512-byte slots of its dnode.
    pub slots: u8,
    /// The number it must have.
    pub id: Option<ObjectId>,
    /// Attributes that follow the usual ones.
    pub more: &'a [(Attribute, &'a [u8])],
    /// Its access control list; `None`: the one that says what the mode does.
    pub entries: Option<&'a [Ace]>,
}

/// A salt for a ZAP: any number will do.
pub fn salt() -> u64 {
    cenote_engine::environment::random_u64().unwrap_or(0)
}

/// The flags of a new file that follow from its mode.
pub fn new_flags(mode: u32, is_directory: bool, has_project: bool) -> u64 {
    let mut flags = NEW | acl_flags(mode);
    if is_directory {
        flags |= pflags::ACL_AUTO_INHERIT;
    }
    if has_project {
        flags |= pflags::PROJECT;
    }
    flags
}

/// The project that a new file of this mode gets from its directory, and what its flags say of that. Only files and
/// directories get one.
pub fn inherit_project(directory: &Facts, mode: u32, flags: &mut u64) -> u64 {
    let gets = directory.flags & pflags::PROJECT_INHERIT != 0;
    if !gets || !matches!(mode & TYPE, REGULAR | DIRECTORY) {
        return 0;
    }
    *flags |= pflags::PROJECT_INHERIT | pflags::PROJECT;
    directory.project
}

/// The flags that say what the trivial list of `mode` is like.
pub fn acl_flags(mode: u32) -> u64 {
    let all_may_execute = mode & 0o111 == 0o111;
    pflags::ACL_TRIVIAL | if all_may_execute { pflags::NO_EXECS_DENIED } else { 0 }
}

/// Number and bytes of the entries of the trivial list of `mode`.
pub fn trivial_acl(facts: &Facts) -> ([u8; 8], Vec<u8>) {
    let entries = acl::trivial(facts.mode, facts.is_directory());
    ((entries.len() as u64).to_le_bytes(), acl::encode(&entries))
}

/// Makes the object of a file.
pub fn make_file(view: &View, layouts: &Layouts, tx: &Tx, new: &NewFile<'_>) -> Result<File> {
    let facts = &new.facts;
    let word = |value: u64| value.to_le_bytes().to_vec();
    let (count, entries) = match new.entries {
        Some(list) => ((list.len() as u64).to_le_bytes(), acl::encode(list)),
        None => trivial_acl(facts),
    };
    let mut attributes = vec![
        (Attribute::Mode, word(facts.mode.into())),
        (Attribute::Size, word(facts.size)),
        (Attribute::Generation, word(facts.generation)),
        (Attribute::Owner, word(facts.uid.into())),
        (Attribute::Group, word(facts.gid.into())),
        (Attribute::Parent, word(facts.parent)),
        (Attribute::Flags, word(facts.flags)),
        (Attribute::Accessed, time_value(facts.accessed).to_vec()),
        (Attribute::Modified, time_value(facts.modified).to_vec()),
        (Attribute::Changed, time_value(facts.changed).to_vec()),
        (Attribute::Created, time_value(facts.created).to_vec()),
        (Attribute::Links, word(facts.links)),
    ];
    if facts.flags & pflags::PROJECT != 0 {
        attributes.push((Attribute::Project, word(facts.project)));
    }
    if is_device(facts.mode) {
        attributes.push((Attribute::Device, word(facts.device)));
    }
    attributes.push((Attribute::AclCount, count.to_vec()));
    attributes.push((Attribute::AclEntries, entries));
    attributes.extend(new.more.iter().map(|(attribute, value)| (*attribute, value.to_vec())));
    let mut values = Values::with_capacity(attributes.len());
    for (attribute, value) in attributes {
        values.push((layouts.number(view, tx, attribute)?, value));
    }
    let (bonus, spill) = layouts.encode(view, tx, capacity_of_slots(new.slots), &values)?;
    let is_directory = facts.is_directory();
    let kind = if is_directory { ObjectType::DIRECTORY } else { ObjectType::PLAIN_FILE };
    let dnode = NewObject {
        slots: new.slots,
        ..NewObject::new(kind, FIRST_BLOCK).with_bonus(ObjectType::SYSTEM_ATTRIBUTES, bonus)
    };
    let objects = view.objects();
    let object = match new.id {
        Some(id) => objects.claim_object(tx, id, &dnode)?,
        None => objects.create_object(tx, &dnode)?,
    };
    let finish = || -> Result<()> {
        if spill.is_some() {
            object.set_spill(tx, spill)?;
        }
        if is_directory {
            let naming = view.naming();
            let bits = master_node::directory_normalization(naming.normalization, naming.case);
            zap::create(&object, tx, salt(), Normalization(bits))?;
        }
        Ok(())
    };
    let id = object.id();
    if let Err(error) = finish() {
        objects.free_object(tx, id)?;
        return Err(error);
    }
    // The dnode as it is now, spill and all.
    Ok(File { object: reopened(objects, object)?, facts: new.facts, changed_bonus: None })
}

fn reopened(objects: &ObjectSet, object: Object) -> Result<Object> {
    let id = object.id();
    drop(object);
    Ok(objects.object(id)?)
}
