//! How large a stream will be, told without making it.
//!
//! Chapter 07, section 16. Invariant: no block is read for it.

use cenote_format::blkptr;
use cenote_format::send_stream::HEADER;

use super::left_out::Redaction;
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
/// What is left out by `redaction` is left out where everything is sent: of what came after something, the list
/// does not say which of it that is.
///
/// # Errors
/// What cannot be read; bookmarks that do not carry sizes.
pub fn estimate(
    catalog: &Catalog,
    to: &Dataset,
    before: &Before<'_>,
    block_size: u64,
    options: &Options,
    redaction: Option<&Redaction>,
) -> Result<u64> {
    let written = match before {
        Before::Nothing => {
            let (all, left_out) =
                (to.phys.uncompressed_bytes, redaction.map_or(0, Redaction::bytes));
            let sent = all.saturating_sub(left_out);
            // Which of the blocks compress well, the list does not say.
            let share = |bytes: u64| u128::from(bytes) * u128::from(sent) / u128::from(all.max(1));
            let compressed = share(to.phys.compressed_bytes);
            (u64::try_from(compressed).unwrap_or(u64::MAX), sent)
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
