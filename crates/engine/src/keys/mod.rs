//! Encryption keys: from what the user knows to opened blocks.
//!
//! Invariant: key material is wiped when dropped and never printed.

pub mod blocks;
pub mod material;
pub mod sealed;
pub mod store;

pub use blocks::DatasetKeys;
pub use store::{KeyStore, open_keys};
