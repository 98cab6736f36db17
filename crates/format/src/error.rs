//! The one error of this crate: which structure is wrong, where in it, and why.

use std::borrow::Cow;

/// Result of decoding.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Bytes that do not form the structure they should.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("bad {structure}: {reason}")]
pub struct Error {
    /// Name of the structure in the field's terms, e.g. `"fat ZAP leaf"`.
    pub structure: &'static str,
    /// What is wrong with it.
    pub reason: Cow<'static, str>,
}

impl Error {
    /// An error in `structure` because of `reason`.
    pub fn new(structure: &'static str, reason: impl Into<Cow<'static, str>>) -> Self {
        Self { structure, reason: reason.into() }
    }

    /// The bytes end before the structure does.
    pub fn truncated(structure: &'static str) -> Self {
        Self::new(structure, "the bytes end before the structure does")
    }
}
