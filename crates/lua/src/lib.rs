//! The Lua of channel programs: Lua 5.2 whose numbers are 64-bit integers that wrap around, with `string`, `table`,
//! `coroutine` and the harmless part of the base library. It knows nothing of pools.
//!
//! Invariant: whatever the program, running it ends with values or with a [`Stop`] that says why, within its limits of
//! instructions and memory; nothing panics, nothing recurses deeper than a bound, and nothing outlives the [`Vm`].
#![forbid(unsafe_code)]
#![deny(clippy::indexing_slicing)]

mod arena;
mod compile;
mod error;
mod lex;
mod library;
mod op;
mod pattern;
mod table;
#[cfg(test)]
mod tests;
mod value;
mod vm;

pub use error::{Result, Stop};
pub use library::machine;
pub use value::{Str, TableId, Value};
pub use vm::{Limits, Vm};
