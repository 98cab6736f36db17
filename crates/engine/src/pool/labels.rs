//! Writing labels and uberblocks.
//!
//! Invariant: nothing is written here yet; whoever asks is told so.

use cenote_format::config::PoolConfig;
use cenote_format::uberblock::Uberblock;

use crate::vdev::VdevTree;
use crate::{Error, Result};

fn later<T>() -> Result<T> {
    Err(Error::unsupported("writing labels is not supported yet"))
}

/// Writes all labels of all leaves and the uberblock of `uberblock.txg`.
pub fn write_labels(_: &VdevTree, _: &PoolConfig, _: &Uberblock) -> Result<()> {
    later()
}

/// Writes the uberblock alone.
pub fn write_uberblock(_: &VdevTree, _: &Uberblock) -> Result<()> {
    later()
}

/// Clears what older pools left on new devices: labels, uberblocks, boot headers.
pub fn initialise(_: &VdevTree) -> Result<()> {
    later()
}
