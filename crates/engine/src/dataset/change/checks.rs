//! What can be refused before anything is changed: new datasets and values of properties.
//!
//! Chapter 06, sections 8.4, 9 and 17. Invariant: nothing is changed here; what passes does not fail
//! for a reason that could have been seen before.

use cenote_format::feature;
use cenote_format::property::{self, Kind, Types};
use cenote_format::{ObjectId, crypto_key, dsl_directory};

use super::super::DatasetKind;
use super::super::name::{DatasetName, check_new_name};
use super::{MosChange, NewDataset, PropertyData, PropertyInput};
use crate::{Error, ErrorKind, Result};

/// Largest block of a pool without the feature large_blocks.
const SMALL_RECORD_MAX: u64 = 128 << 10;
/// Words for values that need a feature which is not enabled.
const UPGRADE: &str = "pool and or dataset must be upgraded to set this property or value";

impl MosChange<'_> {
    /// Whether a dataset can be made. `limited`: limits on numbers of datasets count, as they do
    /// for unprivileged users.
    pub fn check_new_dataset(&self, new: &NewDataset<'_>, limited: bool) -> Result<()> {
        let parent = self.directory(new.parent)?;
        let located = |error: Error| Err(error.at_object(0, new.parent.0));
        if parent.head_dataset.0 == 0 {
            return located(Error::not_found("parent does not exist"));
        }
        let path = format!("{}/{}", self.name_of(parent.head_dataset)?, new.name);
        if new.name.contains(['/', '@', '#']) {
            return located(Error::invalid(format!("'{path}' is not a dataset name")));
        }
        check_new_name(&path)?;
        DatasetName::parse(&path)?;
        if self.number(parent.child_map, new.name)?.is_some() {
            return located(Error::new(ErrorKind::Exists, "dataset already exists"));
        }
        if limited {
            self.check_filesystem_limit(new.parent, 1)?;
        }
        if self.available_to(new.parent)? == 0 {
            return located(Error::new(ErrorKind::NoSpace, "out of space"));
        }
        let own_keys = new.keys.iter().map(|_| "encryption");
        for name in new.features.iter().copied().chain(own_keys) {
            if !self.is_enabled(name)? {
                return located(Error::unsupported(UPGRADE));
            }
        }
        self.check_new_values(new)?;
        let Some(origin) = new.origin else { return Ok(()) };
        let from = self.dataset(origin)?;
        if !from.is_snapshot() {
            return located(Error::invalid("the origin of a clone must be a snapshot"));
        }
        if new.keys.is_some() {
            let reason = "a clone shares the keys of its origin";
            return located(Error::invalid(reason));
        }
        Ok(())
    }

    /// Whether a property of a head or snapshot that holds `kind` can get a value now.
    pub fn check_property(
        &self,
        dataset: ObjectId,
        kind: DatasetKind,
        input: &PropertyInput,
    ) -> Result<()> {
        let phys = self.dataset(dataset)?;
        let name = input.name.as_str();
        let located = |error: Error| error.at_object(0, dataset.0);
        let invalid = |reason: String| Err(located(Error::invalid(reason)));
        let Some(native) = property::dataset(name) else {
            return check_user(input).map_err(located);
        };
        let types = if phys.is_snapshot() { Types::SNAPSHOT } else { kind.types() };
        if !native.types.intersects(types) {
            return invalid(format!("'{name}' does not apply to datasets of this type"));
        }
        if native.is_settable_once() {
            return invalid(format!("'{name}' must be set at creation time"));
        }
        if native.is_read_only() {
            return invalid(format!("'{name}' is readonly"));
        }
        match (native.kind, &input.value) {
            (Kind::String, PropertyData::Number(_)) => {
                return invalid(format!("'{name}' must be a string"));
            }
            (Kind::Number | Kind::Index(_), PropertyData::Text(_)) => {
                return invalid(format!("'{name}' must be a number"));
            }
            (Kind::Index(values), PropertyData::Number(number))
                if !values.iter().any(|value| value.1 == *number) =>
            {
                let names: Vec<&str> = values.iter().map(|value| value.0).collect();
                let names = names.join(" | ");
                return invalid(format!("'{name}' must be one of '{names}'"));
            }
            _ => {}
        }
        self.check_value(dataset, input)
    }

    /// Whether a value that is well-formed fits the pool's features and space.
    pub fn check_value(&self, dataset: ObjectId, input: &PropertyInput) -> Result<()> {
        self.check_features(input).map_err(|error| error.at_object(0, dataset.0))?;
        match input.value {
            PropertyData::Number(number) => self.check_size(dataset, &input.name, number),
            PropertyData::Text(_) => Ok(()),
        }
    }

    /// The same for those that a dataset begins with.
    fn check_new_values(&self, new: &NewDataset<'_>) -> Result<()> {
        let (mut held, mut most) = (0, self.available_to(new.parent)?);
        for input in new.properties {
            self.check_features(input)?;
            let PropertyData::Number(size) = input.value else { continue };
            match input.name.as_str() {
                "reservation" | "refreservation" => held = size.max(held),
                "quota" | "refquota" if size != 0 => most = size.min(most),
                _ => {}
            }
        }
        if held > most {
            let words = "out of space";
            return Err(Error::new(ErrorKind::NoSpace, words).at_object(0, new.parent.0));
        }
        Ok(())
    }

    /// Whether the features are enabled that blocks written by this value of a property need.
    pub fn check_features(&self, input: &PropertyInput) -> Result<()> {
        let PropertyData::Number(number) = input.value else { return Ok(()) };
        let needed = match (input.name.as_str(), number) {
            ("recordsize", size) if size > SMALL_RECORD_MAX => "large_blocks",
            ("compression", 15) => "lz4_compress",
            ("compression", id) if id & 0x7f == 16 => "zstd_compress",
            ("checksum", 11) => "sha512",
            ("checksum", 12) => "skein",
            ("checksum", 13) => "edonr",
            ("checksum", 14) => "blake3",
            ("dedup", id) if id & 0xff == 11 => "sha512",
            ("dedup", id) if id & 0xff == 12 => "skein",
            ("dedup", id) if id & 0xff == 13 => "edonr",
            ("dedup", id) if id & 0xff == 14 => "blake3",
            ("dnodesize", size) if size != 0 => "large_dnode",
            ("longname", 1) => "longname",
            ("filesystem_limit" | "snapshot_limit", limit) if limit != u64::MAX => {
                "filesystem_limits"
            }
            ("recordsize", size) if !size.is_power_of_two() || size < 512 => {
                return Err(Error::invalid("'recordsize' must be power of 2 from 512B to 16M"));
            }
            _ => return Ok(()),
        };
        if feature::by_name(needed).is_some() && self.is_enabled(needed)? {
            return Ok(());
        }
        Err(Error::unsupported(UPGRADE))
    }

    /// Limits of space.
    fn check_size(&self, dataset: ObjectId, name: &str, size: u64) -> Result<()> {
        let phys = self.dataset(dataset)?;
        let directory = self.directory(phys.directory)?;
        let no_space =
            |words: &str| Err(Error::new(ErrorKind::NoSpace, words).at_object(0, dataset.0));
        let small = "size is less than current used or reserved space";
        let large = "size is greater than available space";
        let more = |now: u64, before: u64| size.max(now).saturating_sub(before.max(now));
        match name {
            "quota" if size != 0 && size < directory.used_bytes.max(directory.reserved) => {
                no_space(small)
            }
            "refquota" if size != 0 => {
                let reserved = self.refreservation(&directory)?;
                if size < phys.referenced_bytes.max(reserved) { no_space(small) } else { Ok(()) }
            }
            "reservation" => {
                let growth = more(directory.used_bytes, directory.reserved);
                let available = match directory.parent.0 {
                    0 => self.available_to(phys.directory)?,
                    _ => self.available_to(directory.parent)?,
                };
                let beyond = directory.quota != 0 && size > directory.quota;
                if growth > 0 && (growth > available || beyond) { no_space(large) } else { Ok(()) }
            }
            "refreservation" => {
                let growth = more(phys.unique_bytes, self.refreservation(&directory)?);
                let refquota = self.refquota(&directory)?;
                let beyond = refquota != 0 && size > refquota;
                let available = self.available_to(phys.directory)?;
                if growth > 0 && (growth > available || beyond) { no_space(large) } else { Ok(()) }
            }
            _ => Ok(()),
        }
    }

    /// The encryption root of a directory; `None` if it is not encrypted.
    pub fn encryption_root(&self, directory: ObjectId) -> Result<Option<ObjectId>> {
        match self.number_field(directory, dsl_directory::KEY_CRYPTO_KEY_OBJECT)? {
            Some(keys) => {
                let root = self.number(ObjectId(keys), crypto_key::ROOT_DIRECTORY)?;
                Ok(root.map(ObjectId))
            }
            None => Ok(None),
        }
    }
}

fn check_user(input: &PropertyInput) -> Result<()> {
    let name = &input.name;
    if name.len() > property::USER_NAME_MAX {
        return Err(Error::invalid(format!("property name '{name}' is too long")));
    }
    if !property::is_user_name(name) {
        return Err(Error::invalid(format!("invalid property '{name}'")));
    }
    match &input.value {
        PropertyData::Number(_) => Err(Error::invalid(format!("'{name}' must be a string"))),
        PropertyData::Text(text) if text.len() > property::USER_VALUE_MAX => {
            Err(Error::invalid(format!("property value for '{name}' is too long")))
        }
        PropertyData::Text(_) => Ok(()),
    }
}
