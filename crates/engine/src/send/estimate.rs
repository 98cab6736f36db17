//! How large a stream will be, told without making it.
//!
//! Chapter 07, section 16. Invariant: no block is read for it.

use cenote_format::blkptr;
use cenote_format::send_stream::HEADER;

use super::source::Options;
use crate::Result;
use crate::dataset::{Catalog, Dataset, DatasetName, Suffix};

/// What a stream goes on from.
pub enum Before<'a> {
    /// Nothing: everything is sent.
    Nothing,
    /// A snapshot or bookmark.
    Name(&'a DatasetName),
}

/// Bytes a stream of `to` will have, about. `block_size`: the `recordsize` or `volblocksize` of the dataset.
///
/// # Errors
/// What cannot be read; bookmarks that do not carry sizes.
pub fn estimate(
    catalog: &Catalog,
    to: &Dataset,
    before: &Before<'_>,
    block_size: u64,
    options: &Options,
) -> Result<u64> {
    let written = match before {
        Before::Nothing => {
            let phys = &to.phys;
            (phys.compressed_bytes, phys.uncompressed_bytes)
        }
        Before::Name(name) => {
            let space = match name.suffix() {
                Suffix::Bookmark(_) => {
                    catalog.written_since_bookmark(to, &catalog.bookmark(name)?)?
                }
                _ => catalog.written_since(to, &catalog.dataset(name)?)?,
            };
            (space.compressed, space.uncompressed)
        }
    };
    let (compressed, uncompressed) = written;
    let records = uncompressed.checked_div(block_size).unwrap_or(0);
    let size = if options.compressed || options.raw { compressed } else { uncompressed };
    let size = size.saturating_sub(records.saturating_mul(blkptr::SIZE as u64));
    let headers = records.saturating_add(2).saturating_mul(HEADER as u64);
    let received = options.resume.map_or(0, |resume| resume.bytes);
    Ok(size.saturating_add(headers).saturating_sub(received))
}
