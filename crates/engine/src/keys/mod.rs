//! Encryption keys: from what the user knows to opened and sealed blocks.
//!
//! Invariant: key material is wiped when dropped and never printed.

pub mod blocks;
pub mod make;
pub mod material;
pub mod received;
pub mod sealed;
pub mod store;

pub use blocks::DatasetKeys;
pub use make::{Wrapping, suite_of_property};
pub use received::ReceivedSeals;
pub use store::{KeyStore, LoadedRoots, open_keys};

#[cfg(test)]
mod tests;
