//! The vdev room: a tree of devices that turns (top-level vdev, offset, size, birth) into bytes.
//!
//! Chapter 03, sections 1 to 7. Below is pure geometry ([`raidz`], [`draid`]), above
//! it the tree of open devices. Invariant: nothing here trusts a configuration or an address from
//! disk; what does not fit is a [`VdevError`], never a panic or a wrong read.

pub mod draid;
mod draid_table;
pub mod error;
pub mod layout;
mod permutation;
pub mod raidz;

pub use error::VdevError;
