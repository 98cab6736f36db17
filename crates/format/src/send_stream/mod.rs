//! Send streams: the records of `zfs send`, each a header of 312 bytes and a payload.
//!
//! Chapter 07. A stream is in the byte order of its sender, which the magic number of its first record tells
//! ([`order_of`]). Records are decoded from either order and encoded little-endian. The running checksum is
//! Fletcher-4 and kept by whoever reads or writes the stream (`engine/stream`); this room knows where it stands.
//!
//! Invariant: whatever the header, decoding ends in a [`Record`] or an error, and no record announces a payload
//! above [`MAX_PAYLOAD`], or above [`MAX_BEGIN_PAYLOAD`] for the list that opens a stream.

mod begin;
mod data;
mod fields;
mod object;
mod record;
#[cfg(test)]
mod tests;

pub use begin::{Begin, BeginFlags, End, Features, HeaderKind, MAGIC, order_of};
pub use data::{DedupKey, Free, Redact, Sealed, Spill, Write, WriteByReference, WriteEmbedded};
pub use object::{FreeObjects, Object, ObjectRange};
pub use record::{Record, payload_padding, stored_checksum};

use crate::Error;

/// Bytes of the header of every record.
pub const HEADER: usize = 312;
/// Where the running checksum stands in the header, four words; the header's last bytes.
pub const CHECKSUM_AT: usize = 280;
/// Largest payload of a record of data, in bytes.
pub const MAX_PAYLOAD: u64 = 16 << 20;
/// Largest list a stream may begin with, in bytes.
pub const MAX_BEGIN_PAYLOAD: u64 = 256 << 20;
/// Largest payload of an object record, in bytes: the bonus of a dnode of 32 slots.
pub const MAX_BONUS: u64 = 16 << 10;
/// A range that goes on to the end of the object.
pub const TO_END: u64 = u64::MAX;

/// Flag of objects, writes, spills and object ranges: the bytes were swapped for a raw stream.
pub const FLAG_RAW_BYTE_SWAP: u8 = 2;

fn bad(reason: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new("send stream record", reason)
}
