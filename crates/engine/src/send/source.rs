//! What a stream is made of: a snapshot, what of it is sent, and in which forms.
//!
//! Chapter 07, sections 4 to 8. Invariant: a stream announces every feature that its records use.

use cenote_format::master_node;
use cenote_format::objset::ObjsetKind;
use cenote_format::send_stream::Features;
use cenote_format::{Guid, ObjectId, Txg};

use super::left_out::Redaction;
use crate::dataset::{Catalog, Dataset, Table};
use crate::object::ObjectSet;
use crate::{Error, ErrorKind, Result};

/// First ZPL version that has system attributes, and so spill blocks.
const VERSION_WITH_SPILLS: u64 = 5;

/// Which forms of blocks a stream may have, and where it begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Blocks above 128 KiB as they are (`-L`).
    pub large_blocks: bool,
    /// Blocks that lie in their pointers as they are (`-e`).
    pub embedded: bool,
    /// Blocks as they are compressed (`-c`).
    pub compressed: bool,
    /// Blocks as they lie on the disks, encrypted (`-w`).
    pub raw: bool,
    /// Where an earlier stream was cut off (`-t`).
    pub resume: Option<Resume>,
    /// What was received up to there is sent, and no more (`-S`): the stream has no end.
    pub saved: Option<Resume>,
}

/// Where a stream was cut off, and goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resume {
    /// The object that is sent first.
    pub object: u64,
    /// Byte in it from which on data is sent.
    pub offset: u64,
    /// Bytes of the stream that were received: no more than an estimate needs.
    pub bytes: u64,
}

/// Object numbers end here; the accounting objects lie above, and are not sent.
const OBJECTS_END: u64 = 1 << 48;

/// See the module.
pub(super) struct Source {
    pub(super) set: ObjectSet,
    pub(super) features: Features,
    pub(super) to_guid: Guid,
    /// Blocks of this group and of older ones are not sent.
    pub(super) after: Txg,
    pub(super) resume: Option<Resume>,
    /// Objects from this number on are not sent: they do not count, or were not received.
    pub(super) end: u64,
    /// Blocks that are left out.
    pub(super) redaction: Option<Redaction>,
    /// Blocks that what it goes on from lacks: they are sent whether they changed or not.
    pub(super) before: Option<Redaction>,
}

impl Options {
    /// The number behind that of the last object that is sent.
    pub(super) fn end(&self) -> u64 {
        let saved = self.saved.map_or(OBJECTS_END, |last| last.object.saturating_add(1));
        saved.min(OBJECTS_END)
    }
}

impl Source {
    /// All of `set` that changed after that group.
    pub(super) fn new(set: ObjectSet, features: Features, to_guid: Guid, after: Txg) -> Self {
        let (resume, redaction, before) = (None, None, None);
        Self { set, features, to_guid, after, resume, end: OBJECTS_END, redaction, before }
    }

    /// Where a block of an object begins, in bytes; the size of so many of them.
    pub(super) fn bytes_of(&self, object: u64, block_size: u64, blocks: u64) -> Result<u64> {
        blocks.checked_mul(block_size).ok_or_else(|| {
            let reason = format!("block {blocks} lies beyond 2^64 bytes");
            Error::corrupt(reason).at_object(self.set.id(), object)
        })
    }

    /// Blocks are sent as they lie on the disks.
    pub(super) fn is_raw(&self) -> bool {
        self.features.contains(Features::RAW)
    }
}

/// What the stream may use.
pub(super) fn features(
    catalog: &Catalog,
    to: &Dataset,
    set: &ObjectSet,
    encrypted: bool,
    options: &Options,
) -> Result<Features> {
    let own = catalog.dataset_features(to)?;
    let has = |name: &str| {
        cenote_format::feature::by_name(name).is_some_and(|feature| own.contains(&feature.guid))
    };
    let active = |name: &str| is_active(catalog, name);
    let (raw, packed) = (options.raw && encrypted, options.compressed || options.raw);
    let plain_raw = options.raw && !encrypted;
    let embedded = (options.embedded || plain_raw) && !encrypted && active("embedded_data")?;
    let large = (options.large_blocks || options.raw) && has("large_blocks");
    if has("large_microzap") && !large {
        let reason = format!("'{}' has directories of blocks above 128 KiB", to.name);
        return Err(Error::unsupported(reason).with_advice("send with -L"));
    }
    let wanted = [
        (Features::SA_SPILL, set.kind() == ObjsetKind::Zfs && has_spills(set)?),
        (Features::EMBED_DATA, embedded),
        (Features::LZ4, (embedded || packed) && active("lz4_compress")?),
        (Features::LARGE_BLOCKS, large),
        (Features::RESUMING, options.resume.is_some()),
        (Features::COMPRESSED, packed),
        (Features::LARGE_DNODE, has("large_dnode")),
        (Features::RAW, raw),
        (Features::ZSTD, packed && has("zstd_compress")),
        (Features::LONG_NAME, has("longname")),
        (Features::LARGE_MICROZAP, has("large_microzap")),
    ];
    let wanted = wanted.into_iter().filter(|(_, wanted)| *wanted);
    Ok(wanted.fold(Features::empty(), |all, (one, _)| all | one))
}

/// Whether the feature of this short name is in use in the pool.
fn is_active(catalog: &Catalog, name: &str) -> Result<bool> {
    let Some(feature) = cenote_format::feature::by_name(name) else { return Ok(false) };
    let directory = catalog.object_directory()?;
    let table = match feature.read_only_compatible() {
        true => "features_for_write",
        false => "features_for_read",
    };
    let id = ObjectId(directory.number(table)?.unwrap_or(0));
    let Some(table) = Table::open(catalog.mos(), id)? else { return Ok(false) };
    Ok(table.number(feature.guid)?.is_some_and(|count| count != 0))
}

/// A filesystem of a version that has spill blocks.
fn has_spills(set: &ObjectSet) -> Result<bool> {
    let name = String::from_utf8_lossy(master_node::VERSION);
    let version = match Table::open(set, master_node::OBJECT) {
        Ok(Some(table)) => table.number(&name)?,
        Ok(None) => None,
        // Of what was received in part it may not have come yet.
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    Ok(version.unwrap_or(master_node::NEWEST_VERSION) >= VERSION_WITH_SPILLS)
}
