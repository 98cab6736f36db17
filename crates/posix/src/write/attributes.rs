//! Writing system attributes: layouts, bonus and spill.
//!
//! Chapter 05, sections 4 to 6. Invariant: attributes keep the order they were created in; a bonus
//! is changed in place where no length changes, and otherwise the whole set is written anew.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};

use bytes::Bytes;
use cenote_engine::object::Object;
use cenote_engine::txg::Tx;
use cenote_engine::zap::{self, Value, Zap};
use cenote_format::bytes::ByteOrder;
use cenote_format::sa::{Attribute, AttributeTable, MAX_SPILL, bonus_split, encode_buffer};
use cenote_format::{ObjectId, ObjectType, master_node};
use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::attributes::Facts;
use crate::error::{EFBIG, EIO, EOPNOTSUPP, RETRY};
use crate::tree::{Errno, Result, Timestamp};
use crate::view::{File, View};

/// Bytes of a dnode that are no bonus: 64 of head and one block pointer of 128.
const NO_BONUS: usize = 192;
/// Bytes the spill pointer takes from the bonus.
const SPILL_POINTER: usize = 128;

/// An attribute's new value; `None` removes it.
pub type AttributeChange<'a> = (Attribute, Option<&'a [u8]>);

/// Attribute numbers with their values, little-endian, in storage order.
pub type Values = Vec<(u16, Vec<u8>)>;

/// The objects behind a filesystem's attribute table.
pub struct Layouts {
    registry: Object,
    layouts: Object,
    /// Held while an attribute or a layout is added.
    adding: Mutex<()>,
    /// The newest transaction group in which one was added: an older one must not use it.
    newest: AtomicU64,
}

/// The two words of a time.
pub fn time_value(time: Timestamp) -> [u8; 16] {
    let mut out = [0; 16];
    let (seconds, nanoseconds) = out.split_at_mut(8);
    seconds.copy_from_slice(&time.seconds.to_le_bytes());
    nanoseconds.copy_from_slice(&u64::from(time.nanoseconds).to_le_bytes());
    out
}

impl Layouts {
    /// Opens the registry and the layouts of `view`.
    pub fn open(view: &View) -> Result<Self> {
        let objects = view.objects();
        let none = || Errno::new(EIO, "the filesystem has no registry of system attributes");
        let number = |zap: &Zap<Object>, key: &[u8]| -> Result<ObjectId> {
            let value = zap.lookup(key)?.and_then(|value| value.as_u64());
            value.filter(|value| *value != 0).map(ObjectId).ok_or_else(none)
        };
        let master = Zap::open(objects.object(master_node::OBJECT)?)?;
        let attributes = number(&master, master_node::SYSTEM_ATTRIBUTES)?;
        let attributes = Zap::open(objects.object(attributes)?)?;
        Ok(Self {
            registry: objects.object(number(&attributes, master_node::SA_REGISTRY)?)?,
            layouts: objects.object(number(&attributes, master_node::SA_LAYOUTS)?)?,
            adding: Mutex::new(()),
            newest: AtomicU64::new(0),
        })
    }

    /// A change that began before a layout was added must begin anew: the layout is not on the
    /// disks yet when its group is.
    fn expect_newest(&self, tx: &Tx) -> Result<()> {
        match tx.txg().0 >= self.newest.load(Acquire) {
            true => Ok(()),
            false => Err(Errno::new(RETRY, "a layout was added in a later transaction group")),
        }
    }

    /// Changes a copy of the table and puts it in the table's place.
    fn grow<T>(
        &self,
        view: &View,
        tx: &Tx,
        change: impl FnOnce(&mut AttributeTable) -> Result<T>,
    ) -> Result<T> {
        self.expect_newest(tx)?;
        let Some(slot) = &view.table else {
            return Err(Errno::new(EIO, "the filesystem has no system attributes"));
        };
        let mut table = AttributeTable::clone(&slot.read());
        let result = change(&mut table)?;
        self.newest.store(tx.txg().0, Release);
        *slot.write() = Arc::new(table);
        Ok(result)
    }

    /// The number of `attribute`, registered if it was not.
    pub fn number(&self, view: &View, tx: &Tx, attribute: Attribute) -> Result<u16> {
        let known = || view.attribute_table().and_then(|table| table.number(attribute));
        if let Some(number) = known() {
            self.expect_newest(tx)?;
            return Ok(number);
        }
        let _adding = self.adding.lock();
        if let Some(number) = known() {
            self.expect_newest(tx)?;
            return Ok(number);
        }
        self.grow(view, tx, |table| {
            let registration = table.add_attribute(attribute)?;
            zap::insert_u64(&self.registry, tx, attribute.name(), registration.encode())?;
            Ok(registration.number)
        })
    }

    /// The number of the layout of exactly these attributes, stored if it was not.
    fn layout(&self, view: &View, tx: &Tx, numbers: &[u16]) -> Result<u16> {
        let known = || view.attribute_table().and_then(|table| table.find_layout(numbers));
        if let Some(number) = known() {
            self.expect_newest(tx)?;
            return Ok(number);
        }
        let _adding = self.adding.lock();
        if let Some(number) = known() {
            self.expect_newest(tx)?;
            return Ok(number);
        }
        self.grow(view, tx, |table| {
            let number = table.next_layout();
            table.add_layout(number, numbers.to_vec())?;
            // Arrays in ZAPs are big-endian.
            let raw = numbers.iter().flat_map(|number| number.to_be_bytes()).collect();
            let value = Value::from_raw(2, raw)?;
            zap::insert(&self.layouts, tx, number.to_string().as_str(), &value)?;
            Ok(number)
        })
    }

    /// The bonus of at most `capacity` bytes and the spill block that hold `values`.
    pub fn encode(
        &self,
        view: &View,
        tx: &Tx,
        capacity: usize,
        values: &Values,
    ) -> Result<(Vec<u8>, Option<Bytes>)> {
        let table = view.attribute_table();
        let is_variable = |number: u16| {
            let shape = table.as_ref().and_then(|table| table.shape(number));
            shape.is_some_and(|(_, length)| length == 0)
        };
        let kinds: SmallVec<[bool; 24]> =
            values.iter().map(|(number, _)| is_variable(*number)).collect();
        let sizes: SmallVec<[(usize, bool); 24]> =
            values.iter().zip(&kinds).map(|((_, value), kind)| (value.len(), *kind)).collect();
        let split = bonus_split(capacity, &sizes);
        let buffer = |from: usize, to: usize| -> Result<Vec<u8>> {
            let part = values.get(from..to).unwrap_or(&[]);
            let numbers: SmallVec<[u16; 24]> = part.iter().map(|(number, _)| *number).collect();
            let layout = self.layout(view, tx, &numbers)?;
            let kinds = kinds.get(from..to).unwrap_or(&[]);
            let parts: SmallVec<[(&[u8], bool); 24]> = part
                .iter()
                .zip(kinds)
                .map(|((_, value), kind)| (value.as_slice(), *kind))
                .collect();
            Ok(encode_buffer(layout, &parts)?)
        };
        let bonus = buffer(0, split)?;
        if split == values.len() {
            return Ok((bonus, None));
        }
        let mut spill = buffer(split, values.len())?;
        if spill.len() > MAX_SPILL {
            return Err(Errno::new(EFBIG, "the attributes do not fit a spill block"));
        }
        spill.resize(spill.len().next_multiple_of(512), 0);
        Ok((bonus, Some(spill.into())))
    }

    /// Makes `changes` to the attributes of `file`.
    pub fn change(
        &self,
        view: &View,
        tx: &Tx,
        file: &mut File,
        changes: &[AttributeChange<'_>],
    ) -> Result<()> {
        if changes.is_empty() {
            return Ok(());
        }
        if !file.has_system_attributes() {
            let reason = "a file with attributes from before ZPL version 5 cannot be changed yet";
            return Err(Errno::new(EOPNOTSUPP, reason));
        }
        if let Some(bonus) = patched(view, file, changes)? {
            file.object.set_bonus(tx, ObjectType::SYSTEM_ATTRIBUTES, &bonus)?;
            file.changed_bonus = Some(bonus);
            return Ok(());
        }
        let (mut values, had_spill) = values_of(view, file)?;
        for (attribute, value) in changes {
            let number = self.number(view, tx, *attribute)?;
            let at = values.iter().position(|(own, _)| *own == number);
            match (at, value) {
                (Some(at), Some(value)) => {
                    if let Some((_, old)) = values.get_mut(at) {
                        *old = value.to_vec();
                    }
                }
                (Some(at), None) => drop(values.remove(at)),
                (None, Some(value)) if *attribute == Attribute::Project => {
                    // It has its place behind the links: accounting looks for it there.
                    let links = self.number(view, tx, Attribute::Links)?;
                    let after = values.iter().position(|(own, _)| *own == links);
                    values
                        .insert(after.map_or(values.len(), |at| at + 1), (number, value.to_vec()));
                }
                (None, Some(value)) => values.push((number, value.to_vec())),
                (None, None) => {}
            }
        }
        let (bonus, spill) = self.encode(view, tx, capacity_of(file), &values)?;
        let object = &file.object;
        if spill.is_none() && had_spill {
            object.set_spill(tx, None)?;
        }
        object.set_bonus(tx, ObjectType::SYSTEM_ATTRIBUTES, &bonus)?;
        if spill.is_some() {
            object.set_spill(tx, spill)?;
        }
        file.changed_bonus = Some(bonus);
        Ok(())
    }

    /// Makes the object's attributes say what `facts` say, and makes `more` changes.
    pub fn store(
        &self,
        view: &View,
        tx: &Tx,
        file: &mut File,
        facts: &Facts,
        more: &[AttributeChange<'_>],
    ) -> Result<()> {
        let old = &file.facts;
        let mut words: SmallVec<[(Attribute, [u8; 8]); 12]> = SmallVec::new();
        for (attribute, old, new) in [
            (Attribute::Mode, u64::from(old.mode), u64::from(facts.mode)),
            (Attribute::Size, old.size, facts.size),
            (Attribute::Parent, old.parent, facts.parent),
            (Attribute::Links, old.links, facts.links),
            (Attribute::Owner, u64::from(old.uid), u64::from(facts.uid)),
            (Attribute::Group, u64::from(old.gid), u64::from(facts.gid)),
            (Attribute::Flags, old.flags, facts.flags),
            (Attribute::Project, old.project, facts.project),
        ] {
            if old != new {
                words.push((attribute, new.to_le_bytes()));
            }
        }
        let mut times: SmallVec<[(Attribute, [u8; 16]); 4]> = SmallVec::new();
        for (attribute, old, new) in [
            (Attribute::Accessed, old.accessed, facts.accessed),
            (Attribute::Modified, old.modified, facts.modified),
            (Attribute::Changed, old.changed, facts.changed),
            (Attribute::Created, old.created, facts.created),
        ] {
            if old != new {
                times.push((attribute, time_value(new)));
            }
        }
        let words = words.iter().map(|(attribute, word)| (*attribute, Some(word.as_slice())));
        let times = times.iter().map(|(attribute, pair)| (*attribute, Some(pair.as_slice())));
        let changes: SmallVec<[AttributeChange<'_>; 16]> =
            words.chain(times).chain(more.iter().copied()).collect();
        self.change(view, tx, file, &changes)?;
        file.facts = *facts;
        Ok(())
    }
}

/// Bytes a bonus of a dnode of `slots` slots has room for while there is no spill block.
pub fn capacity_of_slots(slots: u8) -> usize {
    (usize::from(slots) * 512).saturating_sub(NO_BONUS)
}

fn capacity_of(file: &File) -> usize {
    let dnode = file.object.dnode();
    dnode.bonus_area.len() + if dnode.spill.is_some() { SPILL_POINTER } else { 0 }
}

/// The bonus with `changes` made in place; `None` if they are not possible so.
fn patched(view: &View, file: &File, changes: &[AttributeChange<'_>]) -> Result<Option<Vec<u8>>> {
    let Some(table) = view.attribute_table() else { return Ok(None) };
    let buffer = table.view(file.bonus())?;
    if buffer.order() != ByteOrder::Little {
        return Ok(None);
    }
    let mut bonus = file.bonus().to_vec();
    for (attribute, value) in changes {
        let (Some(value), Some(range)) = (value, buffer.range(*attribute)?) else {
            return Ok(None);
        };
        match bonus.get_mut(range) {
            Some(old) if old.len() == value.len() => old.copy_from_slice(value),
            _ => return Ok(None),
        }
    }
    Ok(Some(bonus))
}

/// All attributes of a file, and whether it has a spill block.
fn values_of(view: &View, file: &File) -> Result<(Values, bool)> {
    let none = || Errno::new(EIO, "the filesystem has no system attributes");
    let table = view.attribute_table().ok_or_else(none)?;
    let spill = file.object.spill()?;
    let mut values = Values::new();
    for raw in [Some(file.bonus()), spill.as_deref()].into_iter().flatten() {
        let buffer = table.view(raw)?;
        for entry in buffer.iter() {
            let (number, value) = entry?;
            let mut value = value.to_vec();
            if let (ByteOrder::Big, Some((class, _))) = (buffer.order(), table.shape(number)) {
                class.swap(&mut value);
            }
            values.push((number, value));
        }
    }
    Ok((values, spill.is_some()))
}
