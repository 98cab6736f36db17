//! Names and numbers of the key object of an encrypted dataset.
//!
//! Chapter 06, section 19. The object is a ZAP; the wrapped keys themselves are opened in the
//! engine. Invariant: only key formats that exist have a value here.

use crate::{Error, Result};

/// ZAP key: the suite of the data (u64).
pub const SUITE: &str = "DSL_CRYPTO_SUITE";
/// ZAP key: identity of the master key (u64).
pub const GUID: &str = "DSL_CRYPTO_GUID";
/// ZAP key: version of the wrapping (u64).
pub const VERSION: &str = "DSL_CRYPTO_VERSION";
/// ZAP key: directories that use the object (u64).
pub const REFCOUNT: &str = "DSL_CRYPTO_REFCOUNT";
/// ZAP key: directory of the encryption root (u64).
pub const ROOT_DIRECTORY: &str = "DSL_CRYPTO_ROOT_DDOBJ";
/// ZAP key: initialisation vector of the wrapping (12 bytes).
pub const IV: &str = "DSL_CRYPTO_IV";
/// ZAP key: authentication tag of the wrapping (16 bytes).
pub const MAC: &str = "DSL_CRYPTO_MAC";
/// ZAP key: wrapped master key (32 bytes, of which the suite's key length counts).
pub const MASTER_KEY: &str = "DSL_CRYPTO_MASTER_KEY_1";
/// ZAP key: wrapped HMAC key (64 bytes).
pub const HMAC_KEY: &str = "DSL_CRYPTO_HMAC_KEY_1";
/// ZAP key: [`KeyFormat`] of the encryption root (u64).
pub const KEY_FORMAT: &str = "keyformat";
/// ZAP key: salt of a passphrase (u64).
pub const PBKDF2_SALT: &str = "pbkdf2salt";
/// ZAP key: iterations for a passphrase (u64).
pub const PBKDF2_ITERATIONS: &str = "pbkdf2iters";

/// The version written today.
pub const CURRENT_VERSION: u64 = 1;
/// Bytes of a wrapping key.
pub const WRAPPING_KEY: usize = 32;
/// Bytes of the master key entry.
pub const MASTER_KEY_MAX: usize = 32;
/// Bytes of the HMAC key.
pub const HMAC_KEY_LEN: usize = 64;
/// Fewest iterations a passphrase may have when a key is made.
pub const PBKDF2_MIN_ITERATIONS: u64 = 100_000;
/// Iterations used when none are asked for.
pub const PBKDF2_DEFAULT_ITERATIONS: u64 = 350_000;

/// What the user's key looks like (`keyformat` property).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum KeyFormat {
    /// Not an encryption root.
    #[default]
    None,
    /// 32 bytes.
    Raw,
    /// 64 hexadecimal digits.
    Hex,
    /// 8 to 512 bytes of text.
    Passphrase,
}

impl KeyFormat {
    /// From its number.
    pub fn from_raw(raw: u64) -> Result<Self> {
        Ok(match raw {
            0 => Self::None,
            1 => Self::Raw,
            2 => Self::Hex,
            3 => Self::Passphrase,
            _ => return Err(Error::new("crypto key", format!("key format {raw} does not exist"))),
        })
    }

    /// Its number.
    pub fn raw(self) -> u64 {
        match self {
            Self::None => 0,
            Self::Raw => 1,
            Self::Hex => 2,
            Self::Passphrase => 3,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_round_trip() {
        for raw in 0..=3 {
            assert_eq!(KeyFormat::from_raw(raw).unwrap().raw(), raw);
        }
        assert!(KeyFormat::from_raw(4).is_err());
    }
}
