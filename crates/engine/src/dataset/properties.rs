//! Properties of datasets: what is set, received, inherited or default, and by whom.
//!
//! Chapter 06, section 9. Invariant: a property is answered only for the types of dataset it
//! applies to; its source names where the value stands. What it is computed from comes from
//! [`Facts`], read on demand by a [`PropertyReader`] or long known to an
//! [`Inventory`](super::Inventory).

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use cenote_format::ObjectId;
use cenote_format::bookmark::Bookmark;
use cenote_format::property::{
    self, Attribute, Default, INHERIT_SUFFIX, Kind, Property, RECEIVED_SUFFIX, Types,
    UNSUPPORTED_SUFFIX,
};
use cenote_format::zap::Value as Stored;
use parking_lot::Mutex;

use super::facts::{Facts, OnDisk};
use super::{Catalog, Dataset, DatasetKind, DatasetName, Directory, Keys, PoolCapacity, Table};
use crate::{Error, Result};

/// Something that has properties.
#[derive(Clone, Debug)]
pub enum Listed {
    /// A head or snapshot.
    Dataset(Dataset),
    /// A bookmark.
    Bookmark(DatasetName, Bookmark),
}

impl Listed {
    /// Its name.
    pub fn name(&self) -> &DatasetName {
        match self {
            Self::Dataset(dataset) => &dataset.name,
            Self::Bookmark(name, _) => name,
        }
    }
}

/// Value of a property.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A number or an index.
    Number(u64),
    /// A ratio in hundredths.
    Ratio(u64),
    /// Text.
    Text(String),
}

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Nobody set it.
    Default,
    /// Set on the dataset itself.
    Local,
    /// Set on, or received by, this ancestor.
    Inherited(String),
    /// Received with the dataset.
    Received,
    /// Set for this import only.
    Temporary,
    /// Computed or fixed.
    None,
}

/// A property of a dataset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PropertyValue {
    /// The native property; `None` for user properties.
    pub property: Option<&'static Property>,
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: Value,
    /// Where that comes from.
    pub source: Source,
    /// The value that was received, effective or not.
    pub received: Option<Value>,
}

impl PropertyValue {
    /// The value as text without rounding, as `-p` prints it.
    pub fn parsable(&self) -> String {
        match &self.value {
            Value::Text(text) => text.clone(),
            Value::Ratio(ratio) => format!("{}.{:02}", ratio / 100, ratio % 100),
            Value::Number(u64::MAX) if is_count_limit(&self.name) => "none".to_owned(),
            Value::Number(number) => match self.property {
                Some(property) => property.number_text(*number),
                None => number.to_string(),
            },
        }
    }
}

/// A limit or count of datasets, whose greatest value means there is none.
fn is_count_limit(name: &str) -> bool {
    matches!(name, "filesystem_limit" | "snapshot_limit" | "filesystem_count" | "snapshot_count")
}

/// A property table as it is stored.
pub(super) type Entries = Arc<BTreeMap<String, Stored>>;

/// Reads the property table in object `id`; 0: an empty one.
pub(super) fn read_entries(catalog: &Catalog, id: ObjectId) -> Result<Entries> {
    Ok(Arc::new(match Table::open(catalog.mos(), id)? {
        Some(table) => table.entries()?.into_iter().collect(),
        None => BTreeMap::new(),
    }))
}

impl Catalog {
    /// The properties that a filesystem or volume has received values of.
    ///
    /// # Errors
    /// What cannot be read.
    pub fn received_properties(&self, directory: &Directory) -> Result<Vec<String>> {
        let entries = read_entries(self, directory.phys.properties)?;
        let names = entries.keys().filter_map(|entry| entry.strip_suffix(RECEIVED_SUFFIX));
        Ok(names.map(str::to_owned).collect())
    }
}

/// What properties depend on beside the dataset and what stands above it.
pub struct Surroundings<'a> {
    /// What the pool offers.
    pub capacity: PoolCapacity,
    /// The keys that are loaded.
    pub keys: &'a dyn Keys,
    altroot: String,
}

impl<'a> Surroundings<'a> {
    /// `altroot` goes before mountpoints; empty if there is none.
    pub fn new(capacity: PoolCapacity, keys: &'a dyn Keys, altroot: &str) -> Self {
        Self { capacity, keys, altroot: altroot.trim_end_matches('/').to_owned() }
    }
}

/// Reads properties. Keeps the property tables it has read; make a new one to see changes.
pub struct PropertyReader<'a> {
    catalog: &'a Catalog,
    around: Surroundings<'a>,
    tables: Mutex<HashMap<ObjectId, Entries>>,
}

/// A dataset with what several of its properties need.
pub(super) struct Subject<'a> {
    pub dataset: &'a Dataset,
    pub kind: DatasetKind,
    /// What is computed comes from here.
    pub facts: Box<dyn Facts + 'a>,
    /// Own table first: the snapshot's, the directory's, then the ancestors'.
    pub levels: Vec<(Source, Entries)>,
}

impl Subject<'_> {
    /// What stands on the dataset itself.
    fn own(&self) -> Option<&Entries> {
        let (source, entries) = self.levels.first()?;
        (*source == Source::Local).then_some(entries)
    }

    /// The property applies to the dataset; for snapshots also to the dataset it was taken of.
    pub fn applies(&self, property: &Property) -> bool {
        if !self.dataset.is_snapshot() {
            return property.types.intersects(self.kind.types());
        }
        property.types == Types::SNAPSHOT
            || property.types.intersects(Types::SNAPSHOT)
                && property.types.intersects(self.kind.types())
    }
}

impl<'a> PropertyReader<'a> {
    /// A reader over `catalog`. `altroot` goes before mountpoints; empty if there is none.
    pub fn new(
        catalog: &'a Catalog,
        capacity: PoolCapacity,
        keys: &'a dyn Keys,
        altroot: &str,
    ) -> Self {
        let around = Surroundings::new(capacity, keys, altroot);
        Self { catalog, around, tables: Mutex::new(HashMap::new()) }
    }

    /// A property that is a number; `None` if it is none, does not apply or has no value.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub fn number(&self, listed: &Listed, name: &str) -> Result<Option<u64>> {
        Ok(match self.get(listed, name)?.map(|property| property.value) {
            Some(Value::Number(number)) => Some(number),
            _ => None,
        })
    }

    /// One property by name; `None` if it does not apply or has no value.
    pub fn get(&self, listed: &Listed, name: &str) -> Result<Option<PropertyValue>> {
        match listed {
            Listed::Bookmark(_, bookmark) => match property::dataset(name) {
                Some(property) => {
                    let redaction = self.catalog.redaction(bookmark)?;
                    Ok(super::computed::of_bookmark(bookmark, redaction.as_deref(), property))
                }
                None => Ok(None),
            },
            Listed::Dataset(dataset) => {
                let subject = self.subject(dataset)?;
                match self.around.get(&subject, name) {
                    Some(known) => known,
                    None => self.per_snapshot(dataset, name),
                }
            }
        }
    }

    /// Every visible native property that has a value, then the user properties by name.
    pub fn all(&self, listed: &Listed) -> Result<Vec<PropertyValue>> {
        match listed {
            Listed::Bookmark(_, bookmark) => {
                let redaction = self.catalog.redaction(bookmark)?;
                Ok(all_of_bookmark(bookmark, redaction.as_deref()))
            }
            Listed::Dataset(dataset) => self.around.all(&self.subject(dataset)?),
        }
    }

    fn entries(&self, id: ObjectId) -> Result<Entries> {
        if let Some(entries) = self.tables.lock().get(&id) {
            return Ok(entries.clone());
        }
        let entries = read_entries(self.catalog, id)?;
        self.tables.lock().insert(id, entries.clone());
        Ok(entries)
    }

    fn subject<'d>(&'d self, dataset: &'d Dataset) -> Result<Subject<'d>> {
        let facts = OnDisk::new(self.catalog, dataset);
        let kind = facts.kind()?;
        let mut levels = Vec::new();
        let directory: &Directory = &dataset.directory;
        let own = self.entries(directory.phys.properties)?;
        if dataset.is_snapshot() {
            if dataset.phys.properties.0 != 0 {
                levels.push((Source::Local, self.entries(dataset.phys.properties)?));
            }
            levels.push((Source::Inherited(directory.path.clone()), own));
        } else {
            levels.push((Source::Local, own));
        }
        for ancestor in self.catalog.ancestors(directory)? {
            let entries = self.entries(ancestor.phys.properties)?;
            levels.push((Source::Inherited(ancestor.path), entries));
        }
        Ok(Subject { dataset, kind, facts: Box::new(facts), levels })
    }

    /// `written@snapshot` and `written#bookmark`.
    fn per_snapshot(&self, dataset: &Dataset, name: &str) -> Result<Option<PropertyValue>> {
        let catalog = self.catalog;
        let used = if let Some(snapshot) = name.strip_prefix("written@") {
            let head = catalog.head(&dataset.directory)?;
            match snapshot.contains('/') {
                true => catalog.written_since(dataset, &catalog.dataset_named(snapshot)?)?.used,
                false => catalog.written_since(dataset, &catalog.snapshot(&head, snapshot)?)?.used,
            }
        } else if let Some(bookmark) = name.strip_prefix("written#") {
            let bookmark = catalog.bookmark(&dataset.directory.name().bookmark(bookmark))?;
            catalog.written_since_bookmark(dataset, &bookmark)?.used
        } else {
            return Err(Error::invalid(format!("'{name}' is not a property")));
        };
        let (value, source, received) = (Value::Number(used), Source::None, None);
        Ok(Some(PropertyValue { property: None, name: name.to_owned(), value, source, received }))
    }
}

/// Every visible property of a bookmark that has a value.
pub(super) fn all_of_bookmark(
    bookmark: &Bookmark,
    redaction: Option<&[u64]>,
) -> Vec<PropertyValue> {
    let visible = property::DATASET.iter().filter(|property| property.visible);
    visible.filter_map(|one| super::computed::of_bookmark(bookmark, redaction, one)).collect()
}

impl Surroundings<'_> {
    /// One property of a dataset; `None` if no dataset has one of that name without an argument.
    pub(super) fn get(
        &self,
        subject: &Subject<'_>,
        name: &str,
    ) -> Option<Result<Option<PropertyValue>>> {
        match property::dataset(name) {
            Some(property) => Some(self.native(subject, property)),
            None if property::is_user_name(name) => Some(Ok(user(subject, name))),
            None => None,
        }
    }

    /// Every visible native property of a dataset that has a value, then the user properties by
    /// name.
    pub(super) fn all(&self, subject: &Subject<'_>) -> Result<Vec<PropertyValue>> {
        self.chosen(subject, &|_| true)
    }

    /// Those of [`Self::all`] whose names are `wanted`.
    pub(super) fn chosen(
        &self,
        subject: &Subject<'_>,
        wanted: &dyn Fn(&str) -> bool,
    ) -> Result<Vec<PropertyValue>> {
        let mut found = Vec::new();
        let visible = property::DATASET.iter().filter(|property| property.visible);
        for property in visible.filter(|property| wanted(property.name)) {
            found.extend(self.native(subject, property)?);
        }
        let names: std::collections::BTreeSet<&str> = subject
            .levels
            .iter()
            .flat_map(|(_, entries)| entries.keys())
            .map(|name| name.split_once('$').map_or(name.as_str(), |(base, _)| base))
            .filter(|name| property::is_user_name(name) && wanted(name))
            .collect();
        found.extend(names.into_iter().filter_map(|name| user(subject, name)));
        Ok(found)
    }

    /// A native property.
    fn native(
        &self,
        subject: &Subject<'_>,
        property: &'static Property,
    ) -> Result<Option<PropertyValue>> {
        if !subject.applies(property) {
            return Ok(None);
        }
        // Of what was received in part only, so far, nobody looks inside.
        if subject.dataset.phys.is_inconsistent() && INSIDE.contains(&property.name) {
            return Ok(None);
        }
        let answer = |value, source, received| {
            let name = property.name.to_owned();
            Ok(Some(PropertyValue { property: Some(property), name, value, source, received }))
        };
        if let Some((value, source)) = self.computed(subject, property)? {
            let kept = property.attribute == Attribute::Plain && has_default(property);
            let received = if kept { look_up(subject, property)?.2 } else { None };
            return answer(value, source, received);
        }
        if property.attribute == Attribute::ReadOnly && !has_default(property) {
            return Ok(None);
        }
        if property.name == "mountpoint" {
            let (value, source) = self.mountpoint(subject, property)?;
            return answer(value, source, None);
        }
        let (value, source, received) = look_up(subject, property)?;
        answer(value, source, received)
    }

    /// The effective number of a settable native property; 0 if it is text.
    pub(super) fn number(&self, subject: &Subject<'_>, name: &str) -> Result<u64> {
        let Some(property) = property::dataset(name) else { return Ok(0) };
        match look_up(subject, property)? {
            (Value::Number(number), ..) => Ok(number),
            _ => Ok(0),
        }
    }

    /// A path is extended by the components below where it was set.
    fn mountpoint(
        &self,
        subject: &Subject<'_>,
        property: &'static Property,
    ) -> Result<(Value, Source)> {
        let (value, source, _) = look_up(subject, property)?;
        let Value::Text(text) = &value else { return Ok((value, source)) };
        if !text.starts_with('/') {
            return Ok((value, source));
        }
        let path = subject.dataset.name.path();
        let below = match &source {
            Source::Inherited(ancestor) => path.strip_prefix(ancestor.as_str()).unwrap_or(""),
            Source::Default => path,
            _ => "",
        };
        let below = below.trim_start_matches('/');
        let base = text.trim_end_matches('/');
        let whole = match (below.is_empty(), base.is_empty() && self.altroot.is_empty()) {
            (true, true) => "/".to_owned(),
            (true, false) => format!("{}{base}", self.altroot),
            (false, _) => format!("{}{base}/{below}", self.altroot),
        };
        Ok((Value::Text(whole), source))
    }
}

/// Properties that are kept in the dataset itself.
const INSIDE: [&str; 6] =
    ["version", "utf8only", "normalization", "casesensitivity", "volsize", "volblocksize"];

fn has_default(property: &Property) -> bool {
    property.default != Default::Missing
}

/// The received value of `name` at one level.
fn received_at(entries: &Entries, name: &str) -> Option<Stored> {
    entries.get(&format!("{name}{RECEIVED_SUFFIX}")).cloned()
}

/// The value of `name` at one level, and whether it was received.
fn value_at(entries: &Entries, name: &str, property: Option<&Property>) -> Option<(Stored, bool)> {
    let newer = entries.get(&format!("{name}{UNSUPPORTED_SUFFIX}")).filter(|value| {
        let number = value.as_u64();
        number.is_some_and(|n| property.is_some_and(|p| p.index_name(n).is_some()))
    });
    if let Some(value) = newer.or_else(|| entries.get(name)) {
        return Some((value.clone(), false));
    }
    if entries.contains_key(&format!("{name}{INHERIT_SUFFIX}")) {
        return None;
    }
    received_at(entries, name).map(|value| (value, true))
}

/// What is stored, as the property holds it; `None` if the shapes differ.
fn typed(stored: &Stored, kind: Kind) -> Option<Value> {
    match kind {
        Kind::String => {
            let text = String::from_utf8_lossy(stored.as_c_string()?).into_owned();
            Some(Value::Text(text))
        }
        Kind::Number | Kind::Index(_) => stored.as_u64().map(Value::Number),
    }
}

fn source_at(source: &Source, received: bool) -> Source {
    match source {
        Source::Local if received => Source::Received,
        other => other.clone(),
    }
}

/// The effective value of a settable native property: the nearest one, or the default.
pub(super) fn look_up(
    subject: &Subject<'_>,
    property: &'static Property,
) -> Result<(Value, Source, Option<Value>)> {
    // A property that is not inherited stands on the dataset itself or nowhere.
    let own = subject.levels.iter().take_while(|(source, _)| *source == Source::Local).count();
    let depth = if property.is_inheritable() { subject.levels.len() } else { own.max(1) };
    let mut found = None;
    for (source, entries) in subject.levels.iter().take(depth) {
        if let Some((stored, received)) = value_at(entries, property.name, Some(property)) {
            found = typed(&stored, property.kind).map(|value| (value, source_at(source, received)));
            if found.is_none() {
                let reason = format!("property '{}' holds a value of another kind", property.name);
                return Err(Error::corrupt(reason).at_object(0, subject.dataset.directory.id.0));
            }
            break;
        }
    }
    let received = subject
        .own()
        .and_then(|entries| received_at(entries, property.name))
        .and_then(|stored| typed(&stored, property.kind));
    let (value, source) = found.unwrap_or_else(|| {
        let value = match property.default {
            Default::Number(number) => Value::Number(number),
            Default::Text(text) => Value::Text(text.to_owned()),
            Default::Missing => Value::Text("-".to_owned()),
        };
        (value, Source::Default)
    });
    Ok((value, source, received))
}

/// A user property.
fn user(subject: &Subject<'_>, name: &str) -> Option<PropertyValue> {
    let received = subject.own().and_then(|entries| received_at(entries, name));
    let received = received.and_then(|stored| typed(&stored, Kind::String));
    subject.levels.iter().find_map(|(source, entries)| {
        let (stored, was_received) = value_at(entries, name, None)?;
        let value = typed(&stored, Kind::String)?;
        let source = source_at(source, was_received);
        let (name, received) = (name.to_owned(), received.clone());
        Some(PropertyValue { property: None, name, value, source, received })
    })
}
