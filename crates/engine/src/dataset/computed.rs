//! Properties that are computed from a dataset's state instead of stored.
//!
//! Chapter 06, sections 8 and 9.2. Invariant: whatever is not known (a key that is missing, a pool
//! too old) is left out rather than guessed.

use cenote_format::bookmark::Bookmark;
use cenote_format::dsl_dataset::{self, FLAG_DEFER_DESTROY};
use cenote_format::dsl_directory;
use cenote_format::property::{Default, Property, Types};
use cenote_format::{ObjectId, master_node};

use super::properties::{PropertyReader, PropertyValue, Source, Subject, Value, look_up};
use super::space::ratio;
use super::{Dataset, DatasetKind, KeyObject, Table};
use crate::{ErrorKind, Result};

/// Object of a volume that holds its data.
const VOLUME_DATA: ObjectId = ObjectId(1);
/// Object of a volume that holds its size.
const VOLUME_PROPERTIES: ObjectId = ObjectId(2);
/// Status of a key: no key, not loaded, loaded.
const KEY_UNAVAILABLE: u64 = 1;
const KEY_AVAILABLE: u64 = 2;

type Computed = Option<(Value, Source)>;

fn number(value: u64) -> Computed {
    Some((Value::Number(value), Source::None))
}

/// A number that is kept beside the properties as well: whoever set it there is its source, even if
/// it is the default; otherwise it counts as local unless it is the default.
fn settable(value: u64, set: Source, property: &Property) -> Computed {
    let default = property.default == Default::Number(value);
    let source = match set {
        Source::Default if !default => Source::Local,
        set => set,
    };
    Some((Value::Number(value), source))
}

/// A number fixed at creation: of no source unless it is the default.
fn fixed(value: u64, property: &Property) -> Computed {
    let default = property.default == Default::Number(value);
    Some((Value::Number(value), if default { Source::Default } else { Source::None }))
}

fn text(value: String) -> Computed {
    Some((Value::Text(value), Source::None))
}

fn guids(words: &[u64]) -> String {
    words.iter().map(u64::to_string).collect::<Vec<_>>().join(",")
}

impl PropertyReader<'_> {
    /// The value of a computed property; `None` if the property is not computed or has no value.
    pub(super) fn computed(
        &self,
        subject: &Subject<'_>,
        property: &'static Property,
    ) -> Result<Computed> {
        let dataset = subject.dataset;
        let (phys, directory) = (&dataset.phys, &dataset.directory.phys);
        let used = &directory.used_breakdown;
        Ok(match property.name {
            "type" => text(self.type_name(subject).to_owned()),
            "name" => text(dataset.name.to_string()),
            "creation" => number(phys.creation_time),
            "createtxg" => number(phys.creation_txg.0),
            "guid" => number(phys.guid.0),
            "objsetid" => number(dataset.id.0),
            "unique" => number(phys.unique_bytes),
            "inconsistent" => number(u64::from(phys.is_inconsistent())),
            "referenced" => number(phys.referenced_bytes),
            "logicalreferenced" => number(phys.uncompressed_bytes),
            "used" if dataset.is_snapshot() => number(phys.unique_bytes),
            "used" => number(directory.used_bytes),
            "logicalused" => number(directory.uncompressed_bytes),
            "available" => self.available(subject)?,
            "compressratio" if !dataset.is_snapshot() => {
                let ratio = ratio(directory.uncompressed_bytes, directory.compressed_bytes);
                Some((Value::Ratio(ratio), Source::None))
            }
            "compressratio" | "refcompressratio" => {
                let ratio = ratio(phys.uncompressed_bytes, phys.compressed_bytes);
                Some((Value::Ratio(ratio), Source::None))
            }
            "usedbysnapshots" => number(used.snapshots),
            "usedbydataset" => number(used.head),
            "usedbychildren" => number(used.children.saturating_add(used.child_reservations)),
            "usedbyrefreservation" => number(used.refreservation),
            "written" => match self.catalog.written(dataset) {
                Ok(written) => number(written),
                Err(error) if error.kind() == ErrorKind::Unsupported => None,
                Err(error) => return Err(error),
            },
            "quota" => settable(directory.quota, look_up(subject, property)?.1, property),
            "reservation" => settable(directory.reserved, look_up(subject, property)?.1, property),
            "filesystem_count" => {
                self.count(dataset, property, dsl_directory::KEY_FILESYSTEM_COUNT)?
            }
            "snapshot_count" => self.count(dataset, property, dsl_directory::KEY_SNAPSHOT_COUNT)?,
            "snapshots_changed" => {
                self.catalog.snapshots_changed(&dataset.directory)?.and_then(number)
            }
            "origin" => self.origin(dataset)?,
            "clones" => self.clones(dataset)?,
            "numclones" => number(phys.children.saturating_sub(1)),
            "receive_resume_token" => self.catalog.resume_token(dataset)?.and_then(text),
            "prevsnap" => self.previous_name(dataset)?,
            "defer_destroy" => number(u64::from(phys.flags & FLAG_DEFER_DESTROY != 0)),
            "userrefs" => number(self.catalog.holds(dataset)?.len() as u64),
            "ivsetguid" => {
                self.catalog.dataset_field(dataset, dsl_dataset::KEY_IVSET_GUID)?.and_then(number)
            }
            "redact_snaps" | "redacted" => self.redaction(dataset, property)?,
            "volsize" | "volblocksize" if subject.kind == DatasetKind::Volume => {
                self.volume(subject, property)?
            }
            "version" | "utf8only" | "normalization" | "casesensitivity" => {
                self.master(subject, property, true)?
            }
            name if name.starts_with("default") && name.ends_with("quota") => {
                self.master(subject, property, false)?
            }
            "encryption" | "keyformat" | "pbkdf2iters" | "pbkdf2salt" | "encryptionroot"
            | "keystatus" | "keyguid" => self.encryption(dataset, property)?,
            _ => None,
        })
    }

    /// A property of a bookmark.
    pub(super) fn bookmark_property(
        &self,
        bookmark: &Bookmark,
        property: &'static Property,
    ) -> Result<Option<PropertyValue>> {
        if !property.types.intersects(Types::BOOKMARK) {
            return Ok(None);
        }
        let details = bookmark.details.as_ref();
        // Sizes are kept only together with what was freed before the next snapshot.
        let sizes = details.filter(|details| {
            details.flags & cenote_format::bookmark::FLAG_HAS_FREED_BEFORE_NEXT != 0
        });
        let computed = match property.name {
            "type" => text("bookmark".to_owned()),
            "creation" => number(bookmark.creation_time),
            "createtxg" => number(bookmark.creation_txg.0),
            "guid" => number(bookmark.guid.0),
            "referenced" => sizes.and_then(|sizes| number(sizes.referenced.used)),
            "logicalreferenced" => sizes.and_then(|sizes| number(sizes.referenced.uncompressed)),
            "ivsetguid" => details.map(|details| details.ivset_guid.0).and_then(number),
            "redact_snaps" => match details.map(|details| details.redaction_list) {
                None | Some(ObjectId(0)) => None,
                Some(list) => {
                    let header = self.catalog.redaction_header(list)?;
                    let words: Vec<u64> = header.snapshots.iter().map(|guid| guid.0).collect();
                    text(guids(&words))
                }
            },
            _ => None,
        };
        Ok(computed.map(|(value, source)| {
            let name = property.name.to_owned();
            PropertyValue { property: Some(property), name, value, source, received: None }
        }))
    }

    fn type_name(&self, subject: &Subject<'_>) -> &'static str {
        match (subject.dataset.is_snapshot(), subject.kind) {
            (true, _) => "snapshot",
            (false, DatasetKind::Filesystem) => "filesystem",
            (false, DatasetKind::Volume) => "volume",
        }
    }

    fn available(&self, subject: &Subject<'_>) -> Result<Computed> {
        let refquota = self.number(subject, "refquota")?;
        let refreservation = self.number(subject, "refreservation")?;
        let dataset = subject.dataset;
        let available =
            self.catalog.available(dataset, &self.capacity, refquota, refreservation)?;
        Ok(number(available))
    }

    fn count(&self, dataset: &Dataset, property: &Property, key: &str) -> Result<Computed> {
        let count = self.catalog.directory_field(&dataset.directory, key)?.unwrap_or(u64::MAX);
        Ok(settable(count, Source::Default, property))
    }

    fn origin(&self, dataset: &Dataset) -> Result<Computed> {
        let origin = self.catalog.origin(&dataset.directory)?;
        Ok(origin.and_then(|origin| text(origin.name.to_string())))
    }

    fn clones(&self, dataset: &Dataset) -> Result<Computed> {
        let clones = self.catalog.clones(dataset)?;
        let names: Vec<String> = clones.iter().map(ToString::to_string).collect();
        Ok(if names.is_empty() { None } else { text(names.join(",")) })
    }

    fn previous_name(&self, dataset: &Dataset) -> Result<Computed> {
        let previous = self.catalog.previous(dataset)?;
        let previous = previous.filter(|previous| previous.directory.id == dataset.directory.id);
        Ok(previous.and_then(|previous| text(previous.name.to_string())))
    }

    fn redaction(&self, dataset: &Dataset, property: &Property) -> Result<Computed> {
        let key = dsl_dataset::KEY_REDACTED_DATASETS;
        let words = self.catalog.dataset_fields(dataset, key)?;
        Ok(match property.name {
            "redacted" => number(u64::from(words.is_some())),
            _ => words.and_then(|words| text(guids(&words))),
        })
    }

    fn volume(&self, subject: &Subject<'_>, property: &Property) -> Result<Computed> {
        if property.name == "volblocksize" {
            let size = subject.set.dnode(VOLUME_DATA)?.block_size();
            return Ok(fixed(size, property));
        }
        let size = match Table::open(&subject.set, VOLUME_PROPERTIES)? {
            Some(table) => table.number("size")?.unwrap_or(0),
            None => 0,
        };
        Ok(settable(size, Source::Default, property))
    }

    /// A value of the master node; absent ones are the format's, not the property's, default.
    fn master(&self, subject: &Subject<'_>, property: &Property, always: bool) -> Result<Computed> {
        let key = match property.name {
            "version" => String::from_utf8_lossy(master_node::VERSION).into_owned(),
            other => other.to_owned(),
        };
        let stored = match Table::open(&subject.set, master_node::OBJECT) {
            Ok(Some(table)) => table.number(&key)?,
            Ok(None) => None,
            // A dataset that was never mounted or is being received has no master node yet.
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let absent = match property.default {
            Default::Number(value) if always => Some(value),
            _ => None,
        };
        Ok(stored.or(absent).and_then(number))
    }

    fn encryption(&self, dataset: &Dataset, property: &Property) -> Result<Computed> {
        let Some(key) = self.catalog.key_object(&dataset.directory)? else { return Ok(None) };
        let KeyObject { wrapped, format, iterations, salt, root, .. } = key;
        Ok(match property.name {
            "encryption" => number(wrapped.suite.id()),
            "keyformat" => fixed(format.raw(), property),
            "pbkdf2iters" => fixed(iterations, property),
            "pbkdf2salt" => fixed(salt, property),
            "keyguid" => number(wrapped.guid),
            "encryptionroot" => text(self.catalog.directory_by_id(root)?.path),
            "keystatus" => {
                let loaded = self.keys.is_loaded(root);
                number(if loaded { KEY_AVAILABLE } else { KEY_UNAVAILABLE })
            }
            _ => None,
        })
    }
}

impl super::Catalog {
    /// Everything below `top` in the order of `list -t all`: each head, its snapshots by age, its
    /// bookmarks, then its children.
    pub fn list(&self, top: &super::Directory) -> Result<Vec<super::Listed>> {
        let mut listed = Vec::new();
        for directory in self.walk(top)? {
            if directory.phys.head_dataset.0 == 0 {
                continue;
            }
            let head = self.head(&directory)?;
            let snapshots = self.snapshots(&head)?;
            let bookmarks = self.bookmarks(&head)?;
            listed.push(super::Listed::Dataset(head));
            listed.extend(snapshots.into_iter().map(super::Listed::Dataset));
            let bookmark = |(name, bookmark)| super::Listed::Bookmark(name, bookmark);
            listed.extend(bookmarks.into_iter().map(bookmark));
        }
        Ok(listed)
    }

    /// The header of a redaction list: in its bonus, or in its spill when it is long.
    pub fn redaction_header(
        &self,
        list: ObjectId,
    ) -> Result<cenote_format::bookmark::RedactionHeader> {
        let object = self.mos().object(list)?;
        let header = match object.spill()? {
            Some(spill) => cenote_format::bookmark::RedactionHeader::decode(&spill),
            None => cenote_format::bookmark::RedactionHeader::decode(object.dnode().bonus()),
        };
        header.map_err(|error| crate::Error::from(error).at_object(0, list.0))
    }
}

#[cfg(test)]
mod tests {
    use cenote_format::property;

    use super::*;

    #[test]
    fn every_computed_name_is_a_property() {
        for name in ["usedbychildren", "snapshots_changed", "redact_snaps", "keystatus", "volsize"]
        {
            assert!(property::dataset(name).is_some(), "{name}");
        }
    }

    #[test]
    fn defaults_have_the_default_source() {
        let quota = property::dataset("quota").unwrap();
        assert_eq!(settable(0, Source::Default, quota), Some((Value::Number(0), Source::Default)));
        assert_eq!(settable(1, Source::Default, quota), Some((Value::Number(1), Source::Local)));
        assert_eq!(settable(0, Source::Local, quota), Some((Value::Number(0), Source::Local)));
        assert_eq!(fixed(1, quota), Some((Value::Number(1), Source::None)));
        assert_eq!(guids(&[1, 2]), "1,2");
    }
}
