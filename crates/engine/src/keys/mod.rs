//! Encryption keys: from what the user knows to opened blocks.
//!
//! Invariant: key material is wiped when dropped and never printed.

pub mod blocks;
pub mod sealed;

pub use blocks::DatasetKeys;
