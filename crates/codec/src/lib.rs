//! Bytes to bytes: the transformations between a logical block and what lies on the disks.
//!
//! * [`checksum`] — the four-word checksums of block pointers and the trailers of self-checksummed blocks;
//! * [`compress`] — every compression of the format, both ways;
//! * [`parity`] — P, Q and R of raidz and dRAID, and reconstruction from them;
//! * [`cipher`] — the authenticated ciphers, key derivation and MACs of encrypted datasets.
//!
//! Invariant: nothing here does I/O or knows a structure of the disk format beyond the bytes it is
//! handed, and hostile input gives an error, never a panic, a hang or an allocation larger than
//! the caller's own buffers.
#![deny(clippy::indexing_slicing)]

#[cfg(target_arch = "x86_64")]
mod simd;

pub mod checksum;
pub mod cipher;
pub mod compress;
pub mod parity;
