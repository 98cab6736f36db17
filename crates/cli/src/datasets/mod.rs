//! Datasets as they are named on the command line.
//!
//! Invariant: a name is checked before a pool is asked.

pub mod names;
pub mod select;
