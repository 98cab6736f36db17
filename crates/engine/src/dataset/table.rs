//! ZAPs as the dataset layer uses them: names to numbers, words or text.
//!
//! Invariant: object number 0 is "no table"; a value of another shape than asked for is corruption.

use cenote_format::ObjectId;
use cenote_format::zap::{MatchKind, Value};

use crate::object::{Object, ObjectSet};
use crate::zap::Zap;
use crate::{Error, Result};

/// Most entries a listing returns; no honest table of datasets comes near.
const ENTRIES_MAX: usize = 1 << 24;

/// A ZAP of the dataset layer.
pub struct Table {
    zap: Zap,
    set: u64,
    id: u64,
}

impl Table {
    /// Opens the ZAP in object `id`; `None` when the number is 0.
    pub fn open(set: &ObjectSet, id: ObjectId) -> Result<Option<Self>> {
        if id.0 == 0 {
            return Ok(None);
        }
        Self::of(set.object(id)?).map(Some)
    }

    /// Opens the ZAP in `object`.
    pub fn of(object: Object) -> Result<Self> {
        let (set, id) = (object.set().id(), object.id().0);
        Ok(Self { zap: Zap::open(object)?, set, id })
    }

    fn odd(&self, name: &str) -> Error {
        Error::corrupt(format!("entry '{name}' has an unexpected shape"))
            .at_object(self.set, self.id)
    }

    /// The value of `name`.
    pub fn value(&self, name: &str) -> Result<Option<Value>> {
        self.zap.lookup(name.as_bytes())
    }

    /// The value of `name` as one number.
    pub fn number(&self, name: &str) -> Result<Option<u64>> {
        let Some(value) = self.value(name)? else { return Ok(None) };
        value.as_u64().map(Some).ok_or_else(|| self.odd(name))
    }

    /// The value of `name` as one number, matched as the table normalizes names.
    pub fn number_ignoring_case(&self, name: &str) -> Result<Option<u64>> {
        let found = self.zap.lookup_normalized(name.as_bytes(), MatchKind::Normalized)?;
        let Some(found) = found else { return Ok(None) };
        found.value.as_u64().map(Some).ok_or_else(|| self.odd(name))
    }

    /// The value of `name` as an array of numbers.
    pub fn numbers_of(&self, name: &str) -> Result<Option<Vec<u64>>> {
        let Some(value) = self.value(name)? else { return Ok(None) };
        value.as_u64s().map(Some).ok_or_else(|| self.odd(name))
    }

    /// The value of `name` as bytes.
    pub fn bytes(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let Some(value) = self.value(name)? else { return Ok(None) };
        value.as_bytes().map(|bytes| Some(bytes.to_vec())).ok_or_else(|| self.odd(name))
    }

    /// The value of `name` as text, its final NUL left out.
    pub fn text(&self, name: &str) -> Result<Option<String>> {
        let Some(value) = self.value(name)? else { return Ok(None) };
        let text = value.as_c_string().ok_or_else(|| self.odd(name))?;
        Ok(Some(String::from_utf8_lossy(text).into_owned()))
    }

    /// Every entry.
    pub fn entries(&self) -> Result<Vec<(String, Value)>> {
        let mut entries = Vec::new();
        for entry in self.zap.entries() {
            let entry = entry?;
            if entries.len() >= ENTRIES_MAX {
                let reason = "more entries than can be listed";
                return Err(Error::unsupported(reason).at_object(self.set, self.id));
            }
            let name = String::from_utf8_lossy(entry.name()).into_owned();
            entries.push((name, entry.value));
        }
        self.zap.source().set().io().pipe.note_listed(entries.len() as u64);
        Ok(entries)
    }

    /// Every entry as one number.
    pub fn numbers(&self) -> Result<Vec<(String, u64)>> {
        let number = |(name, value): (String, Value)| match value.as_u64() {
            Some(number) => Ok((name, number)),
            None => Err(self.odd(&name)),
        };
        self.entries()?.into_iter().map(number).collect()
    }

    /// A name whose value is the number `wanted`.
    pub fn name_of(&self, wanted: u64) -> Result<Option<String>> {
        let found = self.entries()?.into_iter().find(|(_, value)| value.as_u64() == Some(wanted));
        Ok(found.map(|(name, _)| name))
    }
}
