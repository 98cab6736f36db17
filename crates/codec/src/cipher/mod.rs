//! Encryption of blocks and of the keys that open them.
//!
//! Chapter 02, section 8. Invariant: plaintext leaves [`Cipher::open`] only after its tag matched;
//! keys are wiped from memory when dropped and never printed.

mod aead;
mod ccm;
mod keys;

pub use aead::{Cipher, decrypt, decrypt_segments, encrypt};
pub use keys::{
    BlockKey, MasterKeys, SecretKey, WrappedKeys, block_key, dedup_salt_and_nonce, fill_random,
    hmac_sha512, key_from_passphrase, mac_matches, sha512_mac, unwrap, wrap,
};

/// Bytes of a nonce (initialisation vector) in every suite.
pub const NONCE: usize = 12;
/// Bytes of an authentication tag in every suite.
pub const TAG: usize = 16;

/// An encryption suite, by its on-disk number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Suite {
    /// `aes-128-ccm`
    Aes128Ccm,
    /// `aes-192-ccm`
    Aes192Ccm,
    /// `aes-256-ccm`
    Aes256Ccm,
    /// `aes-128-gcm`
    Aes128Gcm,
    /// `aes-192-gcm`
    Aes192Gcm,
    /// `aes-256-gcm`
    Aes256Gcm,
}

impl Suite {
    /// The suite with on-disk number `id` (3 to 8).
    pub fn from_id(id: u64) -> Option<Self> {
        Some(match id {
            3 => Self::Aes128Ccm,
            4 => Self::Aes192Ccm,
            5 => Self::Aes256Ccm,
            6 => Self::Aes128Gcm,
            7 => Self::Aes192Gcm,
            8 => Self::Aes256Gcm,
            _ => return None,
        })
    }

    /// The on-disk number.
    pub fn id(self) -> u64 {
        match self {
            Self::Aes128Ccm => 3,
            Self::Aes192Ccm => 4,
            Self::Aes256Ccm => 5,
            Self::Aes128Gcm => 6,
            Self::Aes192Gcm => 7,
            Self::Aes256Gcm => 8,
        }
    }

    /// Bytes of the master key and of block keys.
    pub fn key_len(self) -> usize {
        match self {
            Self::Aes128Ccm | Self::Aes128Gcm => 16,
            Self::Aes192Ccm | Self::Aes192Gcm => 24,
            Self::Aes256Ccm | Self::Aes256Gcm => 32,
        }
    }

    /// The name shown to users.
    pub fn name(self) -> &'static str {
        match self {
            Self::Aes128Ccm => "aes-128-ccm",
            Self::Aes192Ccm => "aes-192-ccm",
            Self::Aes256Ccm => "aes-256-ccm",
            Self::Aes128Gcm => "aes-128-gcm",
            Self::Aes192Gcm => "aes-192-gcm",
            Self::Aes256Gcm => "aes-256-gcm",
        }
    }

    /// The suite of the same mode with a 256-bit key: it wraps the master keys.
    pub fn wrapping(self) -> Self {
        match self {
            Self::Aes128Ccm | Self::Aes192Ccm | Self::Aes256Ccm => Self::Aes256Ccm,
            Self::Aes128Gcm | Self::Aes192Gcm | Self::Aes256Gcm => Self::Aes256Gcm,
        }
    }
}

/// Why a message was not opened or sealed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CipherError {
    /// The tag does not match: another key, or damaged bytes.
    #[error("the authentication tag does not match")]
    Authentication,
    /// The key does not have the suite's length.
    #[error("a key of the wrong length")]
    KeyLength,
    /// The message is too long for the suite, or its segments do not lie inside it.
    #[error("the message does not fit the suite")]
    Message,
    /// The operating system gave no random bytes.
    #[error("the system has no randomness")]
    Randomness,
}

#[cfg(test)]
mod tests;
