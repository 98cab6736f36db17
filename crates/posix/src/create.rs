//! A new filesystem's first content, and a new volume's.
//!
//! Chapter 05, sections 2 to 4 and 15. Invariant: what is made here is what `zfs create` of OpenZFS
//! 2.1 makes: master node, attribute master with registry and layouts, delete queue, root directory.

use cenote_engine::object::{NewObject, Object, ObjectSet};
use cenote_engine::txg::Tx;
use cenote_engine::zap::{self, NewFat, Zap};
use cenote_format::master_node::{self, CaseSensitivity};
use cenote_format::sa::Attribute;
use cenote_format::zap::{KeySettings, Normalization};
use cenote_format::{ObjectId, ObjectType};

use crate::attributes::{DIRECTORY, Facts};
use crate::error::EINVAL;
use crate::tree::{Errno, Result, Timestamp};
use crate::view::View;
use crate::write::{Layouts, NewFile, make_file, new_flags, salt};

/// Block size of a new ZAP in bytes.
const ZAP_BLOCK: u64 = 512;
/// Attributes that OpenZFS 2.1 registers: all but the change counter.
const REGISTERED: usize = 22;
/// Objects of a volume.
const VOLUME_DATA: ObjectId = ObjectId(1);
const VOLUME_PROPERTIES: ObjectId = ObjectId(2);

/// What a new filesystem is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewFilesystem {
    /// Property `normalization` as the master node has it: 0, 0x10, 0x20, 0x50, 0x60.
    pub normalization: u64,
    /// Property `utf8only`.
    pub utf8_only: bool,
    /// Property `casesensitivity`.
    pub case: CaseSensitivity,
    /// Permission bits of the root directory.
    pub mode: u32,
    /// Owner of the root directory.
    pub uid: u32,
    /// Group of the root directory.
    pub gid: u32,
    /// The root directory's four times.
    pub time: Timestamp,
    /// 512-byte slots of the root directory's dnode.
    pub slots: u8,
}

impl Default for NewFilesystem {
    fn default() -> Self {
        Self {
            normalization: 0,
            utf8_only: false,
            case: CaseSensitivity::Sensitive,
            mode: 0o755,
            uid: 0,
            gid: 0,
            time: Timestamp::default(),
            slots: 1,
        }
    }
}

fn new_zap(objects: &ObjectSet, tx: &Tx, kind: ObjectType) -> Result<Object> {
    let object = objects.create_object(tx, &NewObject::new(kind, ZAP_BLOCK))?;
    zap::create(&object, tx, salt(), Normalization::NONE)?;
    Ok(object)
}

/// Fills the empty live set `objects` with the content of a new filesystem of ZPL version 5.
pub fn initialise(objects: &ObjectSet, tx: &Tx, new: &NewFilesystem) -> Result<()> {
    let kind = ObjectType::MASTER_NODE;
    let master = objects.claim_object(tx, master_node::OBJECT, &NewObject::new(kind, ZAP_BLOCK))?;
    zap::create(&master, tx, salt(), Normalization::NONE)?;
    let put = |key: &[u8], value: u64| zap::insert_u64(&master, tx, key, value);
    put(master_node::NORMALIZATION, new.normalization)?;
    put(master_node::UTF8_ONLY, new.utf8_only.into())?;
    put(master_node::CASE_SENSITIVITY, case_number(new.case))?;
    put(master_node::VERSION, master_node::NEWEST_VERSION)?;

    let attributes = new_zap(objects, tx, ObjectType::SA_MASTER)?;
    put(master_node::SYSTEM_ATTRIBUTES, attributes.id().0)?;
    let queue = new_zap(objects, tx, ObjectType::DELETE_QUEUE)?;
    put(master_node::DELETE_QUEUE, queue.id().0)?;

    let registry = new_zap(objects, tx, ObjectType::SA_REGISTRATION)?;
    for attribute in Attribute::ALL.iter().take(REGISTERED) {
        let word = attribute.default_registration().encode();
        zap::insert_u64(&registry, tx, attribute.name(), word)?;
    }
    zap::insert_u64(&attributes, tx, master_node::SA_REGISTRY, registry.id().0)?;
    let layouts = objects.create_object(tx, &NewObject::new(ObjectType::SA_LAYOUTS, ZAP_BLOCK))?;
    let settings = KeySettings { salt: salt() | 1, ..KeySettings::default() };
    zap::create_fat(&layouts, tx, &NewFat::new(settings))?;
    zap::insert_u64(&attributes, tx, master_node::SA_LAYOUTS, layouts.id().0)?;

    // The root names itself as its parent, so its number is known first.
    let root = objects.create_object(tx, &NewObject::new(ObjectType::DIRECTORY, ZAP_BLOCK))?.id();
    put(master_node::ROOT, root.0)?;
    objects.free_object(tx, root)?;
    make_root(objects, tx, root, new)
}

fn make_root(objects: &ObjectSet, tx: &Tx, root: ObjectId, new: &NewFilesystem) -> Result<()> {
    let view = View::open(objects.clone(), 0)?;
    let layouts = Layouts::open(&view)?;
    let mode = DIRECTORY | new.mode & 0o7777;
    let facts = Facts {
        mode,
        size: 2,
        generation: tx.txg().0,
        parent: root.0,
        links: 2,
        uid: new.uid,
        gid: new.gid,
        // OpenZFS gives the root no project id: the feature becomes active with the first file.
        flags: new_flags(mode, true, false),
        device: 0,
        project: 0,
        accessed: new.time,
        modified: new.time,
        changed: new.time,
        created: new.time,
    };
    let file = NewFile { facts, slots: new.slots, id: Some(root), more: &[], entries: None };
    make_file(&view, &layouts, tx, &file)?;
    Ok(())
}

fn case_number(case: CaseSensitivity) -> u64 {
    match case {
        CaseSensitivity::Sensitive => 0,
        CaseSensitivity::Insensitive => 1,
        CaseSensitivity::Mixed => 2,
    }
}

/// Fills the empty live set `objects` with the content of a new volume of `size` bytes in blocks of
/// `block_size` bytes.
pub fn initialise_volume(objects: &ObjectSet, tx: &Tx, size: u64, block_size: u64) -> Result<()> {
    if size == 0 || !block_size.is_power_of_two() || !size.is_multiple_of(block_size) {
        let reason = format!("a volume of {size} bytes in blocks of {block_size}");
        return Err(Errno::new(EINVAL, reason));
    }
    let data = NewObject::new(ObjectType::ZVOL, block_size);
    objects.claim_object(tx, VOLUME_DATA, &data)?;
    let properties = NewObject::new(ObjectType::ZVOL_PROP, ZAP_BLOCK);
    let properties = objects.claim_object(tx, VOLUME_PROPERTIES, &properties)?;
    zap::create(&properties, tx, salt(), Normalization::NONE)?;
    Ok(zap::insert_u64(&properties, tx, "size", size)?)
}

/// Gives a volume another size in bytes; what lies behind it is freed.
///
/// # Errors
/// EINVAL where the size is not a multiple of the block size, and what the disks say.
pub fn resize_volume(objects: &ObjectSet, tx: &Tx, size: u64) -> Result<()> {
    let data = objects.object(VOLUME_DATA)?;
    let block = data.block_size();
    if size == 0 || !size.is_multiple_of(block) {
        let reason = format!("a volume of {size} bytes in blocks of {block}");
        return Err(Errno::new(EINVAL, reason));
    }
    // Whatever may fail comes before anything is changed: an order that fails has changed nothing.
    let properties = objects.object(VOLUME_PROPERTIES)?;
    Zap::open(properties.clone())?.require_u64("size")?;
    data.free_range(tx, size, u64::MAX)?;
    Ok(zap::update_u64(&properties, tx, "size", size)?)
}
