//! What a token of a receive that was cut off asks for.
//!
//! Chapter 07, section 10. Invariant: what is sent has the guid that the token says, whatever it is called now.

use cenote_format::NvList;

use super::since::Since;
use super::source::{Options, Resume};
use crate::dataset::{Catalog, Dataset, DatasetName, are_same_snapshots};
use crate::{Error, ErrorKind, Result};

/// The forms of blocks that a token lets the rest of a stream have, and where that begins.
pub fn resumed_options(token: &NvList) -> Options {
    let number = |key: &str| token.u64(key).unwrap_or(0);
    Options {
        large_blocks: token.flag("largeblockok"),
        embedded: token.flag("embedok"),
        compressed: token.flag("compressok"),
        raw: token.flag("rawok"),
        resume: Some(Resume {
            object: number("object"),
            offset: number("offset"),
            bytes: number("bytes"),
        }),
        saved: None,
    }
}

/// The snapshot of this guid, by its name or by another one of its dataset.
///
/// # Errors
/// `NotFound`; `Outdated`: another snapshot has its name.
pub fn resumed_snapshot(catalog: &Catalog, name: &str, guid: u64) -> Result<Dataset> {
    let by_name = catalog.dataset_named(name);
    if let Ok(found) = &by_name
        && found.phys.guid.0 == guid
    {
        return by_name;
    }
    let path = name.split('@').next().unwrap_or_default();
    if let Ok(directory) = catalog.directory(path) {
        let head = catalog.head(&directory)?;
        let mut all = catalog.snapshots(&head)?.into_iter();
        if let Some(found) = all.find(|snapshot| snapshot.phys.guid.0 == guid) {
            return Ok(found);
        }
    }
    by_name.and(Err(Error::new(ErrorKind::Outdated, "another snapshot has the name now")))
}

/// What an earlier stream went on from: a snapshot of the same dataset or of one above it, or a bookmark. `lacking`:
/// for which snapshots blocks were left out of that.
///
/// # Errors
/// What the disks say.
pub fn resumed_source(
    catalog: &Catalog,
    to: &Dataset,
    guid: u64,
    lacking: Option<&[u64]>,
) -> Result<Option<(Since, DatasetName)>> {
    let fitting = |since: Since| match (lacking, &since.lacking) {
        // The earlier stream took it for whole.
        (None, _) => Some(Since { lacking: None, ..since }),
        (_, own) => {
            let own = own.as_ref().map(|own| own.guids.as_slice());
            are_same_snapshots(own, lacking).then_some(since)
        }
    };
    let mut at = Some((*to.directory).clone());
    while let Some(directory) = at {
        let head = catalog.head(&directory)?;
        for snapshot in catalog.snapshots(&head)? {
            if snapshot.phys.guid.0 == guid {
                let since = Since::snapshot(catalog, to, &snapshot)?;
                if let Some(since) = fitting(since) {
                    return Ok(Some((since, snapshot.name)));
                }
            }
        }
        for (name, bookmark) in catalog.bookmarks(&head)? {
            if bookmark.guid.0 == guid {
                let since = Since::bookmark(catalog, to, &name)?;
                if let Some(since) = fitting(since) {
                    return Ok(Some((since, name)));
                }
            }
        }
        at = catalog.origin(&directory)?.map(|origin| (*origin.directory).clone());
    }
    Ok(None)
}
