//! Why a program ends before its end.
//!
//! Invariant: only [`Stop::Error`] can be caught by a program (`coroutine.resume`); the others end it.

use crate::value::Value;

/// Why a program ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// It failed, or called `error` with this value.
    Error(Value),
    /// It needs more memory than it may have.
    Memory,
    /// It has carried out as many instructions as it may.
    Instructions,
    /// Whoever runs it does not want it to go on.
    Interrupted,
}

/// What is found, or why the program ends.
pub type Result<T> = std::result::Result<T, Stop>;
