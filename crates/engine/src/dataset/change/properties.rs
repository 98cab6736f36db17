//! Setting and inheriting properties: the entries of the tables, and what else a value changes.
//!
//! Chapter 06, sections 8.4 and 9. Invariant: a value that software before it would not understand
//! is stored beside a stand-in that it does; limits of space stand in the directory too.

use cenote_format::dsl_dataset::DslDataset;
use cenote_format::dsl_directory::DslDirectory;
use cenote_format::property::{
    self, HAS_RECEIVED, INHERIT_SUFFIX, RECEIVED_SUFFIX, UNSUPPORTED_SUFFIX,
};
use cenote_format::zap::Value;
use cenote_format::{ObjectId, ObjectType};

use super::super::name::DEPTH_MAX;
use super::{Delta, MosChange, Share};
use crate::{Error, Result};

/// A value to be stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PropertyData {
    /// A number or an index.
    Number(u64),
    /// Text.
    Text(String),
}

/// A property and a value for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PropertyInput {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: PropertyData,
}

impl PropertyInput {
    /// A property that holds a number.
    pub fn number(name: &str, value: u64) -> Self {
        Self { name: name.to_owned(), value: PropertyData::Number(value) }
    }

    /// A property that holds text.
    pub fn text(name: &str, value: &str) -> Self {
        Self { name: name.to_owned(), value: PropertyData::Text(value.to_owned()) }
    }

    pub(super) fn stored(&self) -> Result<Value> {
        Ok(match &self.value {
            PropertyData::Number(number) => Value::of_u64(*number),
            PropertyData::Text(text) => {
                let mut bytes = text.as_bytes().to_vec();
                bytes.push(0);
                Value::of_bytes(&bytes)?
            }
        })
    }

    fn as_number(&self) -> Result<u64> {
        match &self.value {
            PropertyData::Number(number) => Ok(*number),
            PropertyData::Text(_) => {
                Err(Error::invalid(format!("'{}' must be a number", self.name)))
            }
        }
    }
}

impl std::fmt::Display for PropertyInput {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.value {
            PropertyData::Number(number) => write!(f, "{}={number}", self.name),
            PropertyData::Text(text) => write!(f, "{}={text}", self.name),
        }
    }
}

/// Values that software before them does not know, and what is stored in their place.
fn stand_in(name: &str, number: u64) -> Option<u64> {
    match (name, number) {
        ("redundant_metadata", 2 | 3) | ("snapdir", 2) => Some(0),
        _ => None,
    }
}

/// Properties that live elsewhere than in tables of properties.
const ELSEWHERE: &[&str] = &[
    "volsize",
    "volblocksize",
    "version",
    "utf8only",
    "normalization",
    "casesensitivity",
    "encryption",
    "keyformat",
    "pbkdf2salt",
    "pbkdf2iters",
];

/// Whether a stream can bring values of this property: not those a dataset is made with, nor where its key is.
pub(super) fn comes_with_streams(name: &str) -> bool {
    match property::dataset(name) {
        Some(native) => {
            let is_made = native.is_read_only() || native.is_settable_once();
            !is_made && name != "keylocation" && !ELSEWHERE.contains(&name)
        }
        None => property::is_user_name(name),
    }
}

impl MosChange<'_> {
    /// Sets a property of a head or a snapshot. The value is checked already
    /// ([`Self::check_property`]).
    pub fn set_property(&self, dataset: ObjectId, input: &PropertyInput) -> Result<()> {
        let phys = self.dataset(dataset)?;
        let name = input.name.as_str();
        if ELSEWHERE.contains(&name) {
            let reason = format!("'{name}' is not kept among the properties of datasets");
            return Err(Error::invalid(reason).at_object(0, dataset.0));
        }
        let before = self.directory(phys.directory)?;
        let refreserved = self.refreservation(&before)?;
        let table = match phys.is_snapshot() {
            true => self.snapshot_properties(dataset)?,
            false => before.properties,
        };
        self.put_local(table, input)?;
        if phys.is_snapshot() {
            return self.log_event("set", Some(dataset), &input.to_string());
        }
        self.follow_value(&phys, input, refreserved)?;
        self.log_event("set", Some(dataset), &input.to_string())
    }

    /// Does what a value that counts from now on changes beside the table; `refreserved`: what was held back
    /// for the head before.
    pub(super) fn follow_value(
        &self,
        phys: &DslDataset,
        input: &PropertyInput,
        refreserved: u64,
    ) -> Result<()> {
        match input.name.as_str() {
            "quota" => {
                let quota = input.as_number()?;
                self.alter_directory(phys.directory, |phys| phys.quota = quota)?;
            }
            "reservation" => self.reserve(phys.directory, input.as_number()?)?,
            "refreservation" => {
                let unused = |reserved: u64| i128::from(reserved.saturating_sub(phys.unique_bytes));
                let change = unused(input.as_number()?) - unused(refreserved);
                self.charge(phys.directory, Share::Refreservation, Delta::used(change))?;
            }
            "filesystem_limit" | "snapshot_limit" if input.as_number()? != u64::MAX => {
                self.begin_limits(phys.directory)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Writes a local value into a table.
    fn put_local(&self, table: ObjectId, input: &PropertyInput) -> Result<()> {
        let name = input.name.as_str();
        self.remove(table, &format!("{name}{INHERIT_SUFFIX}"))?;
        let newer = format!("{name}{UNSUPPORTED_SUFFIX}");
        let known = match &input.value {
            PropertyData::Number(number) => stand_in(name, *number),
            PropertyData::Text(_) => None,
        };
        match known {
            Some(known) => {
                self.put_number(table, name, known)?;
                self.put(table, &newer, &input.stored()?)
            }
            None => {
                self.remove(table, &newer)?;
                self.put(table, name, &input.stored()?)
            }
        }
    }

    /// The table of properties of a snapshot, made if there is none.
    pub(super) fn snapshot_properties(&self, snapshot: ObjectId) -> Result<ObjectId> {
        let mut phys = self.dataset(snapshot)?;
        if phys.properties.0 == 0 {
            phys.properties = self.new_table(ObjectType::DSL_PROPS)?;
            self.set_dataset(snapshot, &phys)?;
        }
        Ok(phys.properties)
    }

    /// Whether a value was set on a filesystem or volume itself.
    pub fn has_local_value(&self, head: ObjectId, name: &str) -> Result<bool> {
        let table = self.directory(self.dataset(head)?.directory)?.properties;
        let is_set = |entry: &str| Ok::<_, Error>(self.value(table, entry)?.is_some());
        Ok(table.0 != 0 && (is_set(name)? || is_set(&format!("{name}{UNSUPPORTED_SUFFIX}"))?))
    }

    /// Gives up the value set on a dataset: it is inherited, or the received one with `received`.
    pub fn inherit_property(&self, dataset: ObjectId, name: &str, received: bool) -> Result<()> {
        let phys = self.dataset(dataset)?;
        let native = property::dataset(name);
        if native.is_some_and(|native| native.is_read_only()) {
            return Err(Error::invalid(format!("'{name}' is readonly")));
        }
        if native.is_some_and(|native| !native.is_inheritable()) && !received {
            return Err(Error::invalid(format!("'{name}' property cannot be inherited"))
                .with_advice(format!("use 'zfs set {name}=none' to clear it")));
        }
        if native.is_none() && !property::is_user_name(name) {
            return Err(Error::invalid(format!("invalid property '{name}'")));
        }
        let directory = self.directory(phys.directory)?;
        let table = if phys.is_snapshot() { phys.properties } else { directory.properties };
        if table.0 == 0 {
            return Ok(());
        }
        let shown = if phys.is_snapshot() { None } else { self.shown_instead(table, name)? };
        if let Some(shown) = &shown {
            self.check_value(dataset, shown)?;
        }
        let refreserved = self.refreservation(&directory)?;
        self.remove(table, name)?;
        self.remove(table, &format!("{name}{UNSUPPORTED_SUFFIX}"))?;
        let explicit = format!("{name}{INHERIT_SUFFIX}");
        let was_received = self.value(table, &format!("{name}{RECEIVED_SUFFIX}"))?.is_some();
        if received {
            self.remove(table, &explicit)?;
        } else if was_received && self.value(table, HAS_RECEIVED)?.is_some() {
            self.put_number(table, &explicit, 0)?;
        }
        if let Some(shown) = &shown {
            self.follow_value(&phys, shown, refreserved)?;
        }
        if phys.is_snapshot() && self.entries(table)?.is_empty() {
            self.free_object(table)?;
            self.alter_dataset(dataset, |phys| phys.properties = ObjectId(0))?;
        }
        // A snapshot's table may be gone by now.
        let now = self.stored_text(&self.dataset(dataset)?, name)?;
        self.log_event("inherit", Some(dataset), &format!("{name}={now}"))
    }

    /// What shows when a value set for one of the properties that are more than an entry of `table` is given
    /// up: the received value, else the default.
    pub(super) fn shown_instead(
        &self,
        table: ObjectId,
        name: &str,
    ) -> Result<Option<PropertyInput>> {
        let default = match name {
            "quota" | "refquota" | "reservation" | "refreservation" => 0,
            "filesystem_limit" | "snapshot_limit" => u64::MAX,
            _ => return Ok(None),
        };
        let received = self.value(table, &format!("{name}{RECEIVED_SUFFIX}"))?;
        let number = received.and_then(|value| value.as_u64()).unwrap_or(default);
        Ok(Some(PropertyInput::number(name, number)))
    }

    /// What a dataset has for a property as it is stored: its own, an ancestor's or the default.
    fn stored_text(&self, phys: &DslDataset, name: &str) -> Result<String> {
        let text = |value: Value| match (value.as_c_string(), value.as_u64()) {
            (_, Some(number)) => number.to_string(),
            (Some(text), None) => String::from_utf8_lossy(text).into_owned(),
            (None, None) => String::new(),
        };
        let mut directory = phys.directory;
        let mut table = phys.properties;
        for _ in 0..=DEPTH_MAX {
            if let Some(value) = self.own_value(table, name)? {
                return Ok(text(value));
            }
            if directory.0 == 0 {
                break;
            }
            let level = self.directory(directory)?;
            (table, directory) = (level.properties, level.parent);
        }
        Ok(match property::dataset(name).map(|native| native.default) {
            Some(property::Default::Number(number)) => number.to_string(),
            Some(property::Default::Text(text)) => text.to_owned(),
            Some(property::Default::Missing) | None => String::new(),
        })
    }

    /// Reserves bytes for a directory.
    pub(super) fn reserve(&self, directory: ObjectId, reserved: u64) -> Result<()> {
        let mut phys = self.directory(directory)?;
        let before = phys.used_bytes.max(phys.reserved);
        phys.reserved = reserved;
        let change = Delta::between(before, phys.used_bytes.max(reserved));
        self.set_directory(directory, &phys)?;
        if phys.parent.0 == 0 {
            return Ok(());
        }
        self.charge(phys.parent, Share::ChildReservations, Delta::used(change))
    }

    /// The number that a table of properties holds for `name`: set there, or received and not
    /// given up.
    pub(super) fn own_number(&self, table: ObjectId, name: &str) -> Result<Option<u64>> {
        let Some(value) = self.own_value(table, name)? else { return Ok(None) };
        let odd = || Error::corrupt(format!("'{name}' is not a number")).at_object(0, table.0);
        value.as_u64().map(Some).ok_or_else(odd)
    }

    /// The same of a property of any kind.
    fn own_value(&self, table: ObjectId, name: &str) -> Result<Option<Value>> {
        for entry in [format!("{name}{UNSUPPORTED_SUFFIX}"), name.to_owned()] {
            if let Some(value) = self.value(table, &entry)? {
                return Ok(Some(value));
            }
        }
        if self.value(table, &format!("{name}{INHERIT_SUFFIX}"))?.is_some() {
            return Ok(None);
        }
        self.value(table, &format!("{name}{RECEIVED_SUFFIX}"))
    }

    /// Bytes that are held back for the head of a directory.
    pub fn refreservation(&self, directory: &DslDirectory) -> Result<u64> {
        Ok(self.own_number(directory.properties, "refreservation")?.unwrap_or(0))
    }

    /// Bytes that the head of a directory may refer to; 0 for any.
    pub fn refquota(&self, directory: &DslDirectory) -> Result<u64> {
        Ok(self.own_number(directory.properties, "refquota")?.unwrap_or(0))
    }
}
