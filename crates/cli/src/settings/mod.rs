//! Values of properties as people write them, and what is wrong with those that are none.
//!
//! Invariant: what is accepted here is as it is stored; the words of a refusal are those of
//! OpenZFS, without the start that names the command's subject.

pub mod compatibility;
pub mod dataset;
pub mod number;
pub mod pool;
