//! What an incremental stream goes on from: an earlier snapshot, or a bookmark of one.
//!
//! Invariant: it is older than what is sent, and of the same dataset or of one it was cloned from.

use cenote_format::dsl_dataset::{KEY_IVSET_GUID, KEY_REDACTED_DATASETS};
use cenote_format::{Guid, ObjectId, Txg};

use super::left_out::list_of;
use crate::dataset::{Catalog, Dataset, DatasetName};
use crate::{Error, Result};

/// Most clones of clones that are followed to their origins.
const CLONES_MAX: usize = 1 << 10;

/// Where an incremental stream begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Since {
    /// Identity of the snapshot.
    pub guid: Guid,
    /// Group it was taken in: what is older is not sent.
    pub creation_txg: Txg,
    /// Identity of its set of initialisation vectors; 0 if it is not encrypted.
    pub ivset_guid: u64,
    /// It belongs to a dataset that what is sent was cloned from.
    pub is_origin: bool,
    /// A receiver may lack blocks of it.
    pub lacking: Option<Lacking>,
}

/// Why blocks may be lacking: it was received redacted, or a redaction bookmark says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lacking {
    /// The snapshots they were left out for.
    pub guids: Vec<u64>,
    /// The list of the redaction bookmark.
    pub(super) list: Option<ObjectId>,
}

impl Since {
    /// The snapshot `from`, to send `to`.
    ///
    /// # Errors
    /// `InvalidArgument` if it is not an earlier one of `to`.
    pub fn snapshot(catalog: &Catalog, to: &Dataset, from: &Dataset) -> Result<Self> {
        let (directory, txg) = (from.directory.id, from.phys.creation_txg);
        if !from.is_snapshot() {
            return Err(Error::invalid(format!("'{}' is no snapshot", from.name)));
        }
        earlier(catalog, to, directory, txg, &from.name)?;
        Ok(Self {
            guid: from.phys.guid,
            creation_txg: txg,
            ivset_guid: catalog.dataset_field(from, KEY_IVSET_GUID)?.unwrap_or(0),
            is_origin: directory != to.directory.id,
            lacking: catalog
                .dataset_fields(from, KEY_REDACTED_DATASETS)?
                .map(|guids| Lacking { guids, list: None }),
        })
    }

    /// The snapshot that the bookmark `from` was made of, to send `to`.
    ///
    /// # Errors
    /// `NotFound`; `InvalidArgument` as above.
    pub fn bookmark(catalog: &Catalog, to: &Dataset, from: &DatasetName) -> Result<Self> {
        let bookmark = catalog.bookmark(from)?;
        let directory = catalog.directory(from.path())?.id;
        earlier(catalog, to, directory, bookmark.creation_txg, from)?;
        let lacking = |list| -> Result<_> {
            let snapshots = catalog.redaction_header(list)?.snapshots;
            let guids = snapshots.iter().map(|guid| guid.0).collect();
            Ok(Lacking { guids, list: Some(list) })
        };
        Ok(Self {
            guid: bookmark.guid,
            creation_txg: bookmark.creation_txg,
            ivset_guid: bookmark.details.map_or(0, |details| details.ivset_guid.0),
            is_origin: directory != to.directory.id,
            lacking: list_of(&bookmark).map(lacking).transpose()?,
        })
    }
}

/// Refuses what was taken in group `txg` of `directory`, unless it is earlier than `to` and leads to it.
fn earlier(
    catalog: &Catalog,
    to: &Dataset,
    directory: ObjectId,
    txg: Txg,
    name: &DatasetName,
) -> Result<()> {
    let refused = || Err(Error::invalid(format!("'{name}' is not an earlier snapshot of it")));
    if to.is_snapshot() && txg >= to.phys.creation_txg {
        return refused();
    }
    let mut at = to.directory.clone();
    for _ in 0..CLONES_MAX {
        if at.id == directory {
            return Ok(());
        }
        match catalog.origin(&at)? {
            Some(origin) if origin.phys.creation_txg >= txg => at = origin.directory,
            _ => return refused(),
        }
    }
    Err(Error::corrupt(format!("the origins of '{}' do not end", to.name)))
}
