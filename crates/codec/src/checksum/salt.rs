//! The pool's checksum salt and what the salted algorithms derive from it.
//!
//! Invariant: a derived state is made at most once for a salt, on first use, so that a pool which
//! never uses a salted algorithm pays nothing. (Chapter 02, section 6.6.)

use std::fmt;
use std::sync::OnceLock;

use super::edonr::Edonr;
use super::skein::Skein;

/// The 32-byte salt of a pool with the keyed states of skein and edonr.
#[derive(Clone, Default)]
pub struct Salt {
    bytes: [u8; 32],
    skein: OnceLock<Skein>,
    edonr: OnceLock<Edonr>,
}

impl Salt {
    /// The salt stored in the MOS under `org.illumos:checksum_salt`.
    ///
    /// A pool that has none (it never enabled a salted algorithm) is served by
    /// [`Salt::default`], which no block of such a pool depends on.
    pub fn new(bytes: [u8; 32]) -> Self {
        Self { bytes, ..Self::default() }
    }

    /// The salt itself.
    pub fn bytes(&self) -> &[u8; 32] {
        &self.bytes
    }

    pub(super) fn skein(&self) -> &Skein {
        self.skein.get_or_init(|| Skein::keyed(&self.bytes))
    }

    pub(super) fn edonr(&self) -> &Edonr {
        self.edonr.get_or_init(|| Edonr::salted(&self.bytes))
    }

    pub(super) fn blake3_hash(&self, data: &[u8]) -> [u8; 32] {
        *blake3::keyed_hash(&self.bytes, data).as_bytes()
    }
}

impl fmt::Debug for Salt {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Salt").field(&self.bytes).finish()
    }
}
