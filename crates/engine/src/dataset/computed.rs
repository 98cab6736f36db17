//! Properties that are computed from a dataset's state instead of stored.
//!
//! Chapter 06, sections 8 and 9.2. Invariant: whatever is not known (a key that is missing, a pool
//! too old) is left out rather than guessed.

use std::collections::BTreeSet;

use cenote_format::ObjectId;
use cenote_format::bookmark::Bookmark;
use cenote_format::dsl_dataset::FLAG_DEFER_DESTROY;
use cenote_format::dsl_directory;
use cenote_format::property::{Default, Property, Types};

use super::DatasetKind;
use super::allowance::Allowance;
use super::properties::{PropertyValue, Source, Subject, Surroundings, Value, look_up};
use super::space::ratio;
use crate::Result;

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

impl Surroundings<'_> {
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
            "quota" => settable(directory.quota, look_up(subject, property)?.1, property),
            "reservation" => settable(directory.reserved, look_up(subject, property)?.1, property),
            "numclones" => number(phys.children.saturating_sub(1)),
            "defer_destroy" => number(u64::from(phys.flags & FLAG_DEFER_DESTROY != 0)),
            _ => self.computed_from_facts(subject, property)?,
        })
    }

    /// The value of a computed property that the dataset's own records do not tell.
    fn computed_from_facts(
        &self,
        subject: &Subject<'_>,
        property: &'static Property,
    ) -> Result<Computed> {
        let facts = &subject.facts;
        Ok(match property.name {
            "available" => self.available(subject)?,
            "written" => facts.written()?.and_then(number),
            "filesystem_count" => {
                count(facts.directory_number(dsl_directory::KEY_FILESYSTEM_COUNT)?, property)
            }
            "snapshot_count" => {
                count(facts.directory_number(dsl_directory::KEY_SNAPSHOT_COUNT)?, property)
            }
            "snapshots_changed" => facts.snapshots_changed()?.and_then(number),
            "origin" => facts.origin()?.and_then(text),
            "clones" => match facts.clones()? {
                names if names.is_empty() => None,
                names => text(names.join(",")),
            },
            "receive_resume_token" => facts.resume_token()?.and_then(text),
            "prevsnap" => facts.previous()?.and_then(text),
            "userrefs" => number(facts.holds()?),
            "ivsetguid" => facts.ivset_guid()?.and_then(number),
            "redacted" => number(u64::from(facts.redacted()?.is_some())),
            "redact_snaps" => facts.redacted()?.and_then(|words| text(guids(&words))),
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
            | "keystatus" | "keyguid" => self.encryption(subject, property)?,
            _ => None,
        })
    }

    fn type_name(&self, subject: &Subject<'_>) -> &'static str {
        match (subject.dataset.is_snapshot(), subject.kind) {
            (true, _) => "snapshot",
            (false, DatasetKind::Filesystem) => "filesystem",
            (false, DatasetKind::Volume) => "volume",
        }
    }

    fn available(&self, subject: &Subject<'_>) -> Result<Computed> {
        let head = &subject.dataset.phys;
        let allowance = Allowance {
            directories: subject.facts.limits()?,
            referenced: head.referenced_bytes,
            refquota: self.number(subject, "refquota")?,
            unique: head.unique_bytes,
            refreservation: self.number(subject, "refreservation")?,
        };
        Ok(number(allowance.available(&self.capacity, 0)))
    }

    fn volume(&self, subject: &Subject<'_>, property: &Property) -> Result<Computed> {
        Ok(match property.name {
            "volblocksize" => fixed(subject.facts.volume_block()?, property),
            _ => settable(subject.facts.volume_size()?, Source::Default, property),
        })
    }

    /// A value of the master node; absent ones are the format's, not the property's, default.
    fn master(&self, subject: &Subject<'_>, property: &Property, always: bool) -> Result<Computed> {
        let stored = subject.facts.master(property.name)?;
        let absent = match property.default {
            Default::Number(value) if always => Some(value),
            _ => None,
        };
        Ok(stored.or(absent).and_then(number))
    }

    fn encryption(&self, subject: &Subject<'_>, property: &Property) -> Result<Computed> {
        let Some(key) = subject.facts.key()? else { return Ok(None) };
        let root = key.root;
        Ok(match property.name {
            "encryption" => number(key.suite),
            "keyformat" => fixed(key.format, property),
            "pbkdf2iters" => fixed(key.iterations, property),
            "pbkdf2salt" => fixed(key.salt, property),
            "keyguid" => number(key.guid),
            "encryptionroot" => text(subject.facts.path_of(root)?),
            "keystatus" => {
                let loaded = self.keys.is_loaded(root);
                number(if loaded { KEY_AVAILABLE } else { KEY_UNAVAILABLE })
            }
            _ => None,
        })
    }
}

/// The property of a head or snapshot that counts what is below it.
fn count(count: Option<u64>, property: &Property) -> Computed {
    settable(count.unwrap_or(u64::MAX), Source::Default, property)
}

/// A property of a bookmark; `redaction`: the snapshots it is redacted for, by guid.
pub(super) fn of_bookmark(
    bookmark: &Bookmark,
    redaction: Option<&[u64]>,
    property: &'static Property,
) -> Option<PropertyValue> {
    if !property.types.intersects(Types::BOOKMARK) {
        return None;
    }
    let details = bookmark.details.as_ref();
    // Sizes are kept only together with what was freed before the next snapshot.
    let sizes = details
        .filter(|details| details.flags & cenote_format::bookmark::FLAG_HAS_FREED_BEFORE_NEXT != 0);
    let (value, source) = match property.name {
        "type" => text("bookmark".to_owned()),
        "creation" => number(bookmark.creation_time),
        "createtxg" => number(bookmark.creation_txg.0),
        "guid" => number(bookmark.guid.0),
        "referenced" => sizes.and_then(|sizes| number(sizes.referenced.used)),
        "logicalreferenced" => sizes.and_then(|sizes| number(sizes.referenced.uncompressed)),
        "ivsetguid" => details.map(|details| details.ivset_guid.0).and_then(number),
        "redact_snaps" => redaction.and_then(|words| text(guids(words))),
        _ => None,
    }?;
    let name = property.name.to_owned();
    Some(PropertyValue { property: Some(property), name, value, source, received: None })
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

    /// The snapshots a bookmark is redacted for, by guid; `None` if it is not.
    pub(super) fn redaction(&self, bookmark: &Bookmark) -> Result<Option<Vec<u64>>> {
        match bookmark.details.as_ref().map(|details| details.redaction_list) {
            None | Some(ObjectId(0)) => Ok(None),
            Some(list) => {
                let header = self.redaction_header(list)?;
                Ok(Some(header.snapshots.iter().map(|guid| guid.0).collect()))
            }
        }
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

/// Whether blocks were left out for the same snapshots, given by their guids in whatever order; `None`: none were.
pub fn are_same_snapshots(one: Option<&[u64]>, other: Option<&[u64]>) -> bool {
    let sorted = |guids: &[u64]| guids.iter().copied().collect::<BTreeSet<_>>();
    one.map(sorted) == other.map(sorted)
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
