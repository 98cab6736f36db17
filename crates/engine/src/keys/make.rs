//! New keys: for a dataset that is being made, and for one whose user key changes.
//!
//! Chapter 06, section 19. Nothing is stored here: the values go into the key object. Invariant: a
//! master key is random and never wrapped twice with one initialisation vector.

use cenote_codec::cipher::{self, CipherError, MasterKeys, SecretKey, Suite, WrappedKeys, wrap};
use cenote_format::ObjectId;
use cenote_format::crypto_key::{
    CURRENT_VERSION, HMAC_KEY_LEN, KeyFormat, PBKDF2_DEFAULT_ITERATIONS, PBKDF2_MIN_ITERATIONS,
};

use super::DatasetKeys;
use super::material::wrapping_key;
use crate::dataset::KeyObject;
use crate::dataset::change::NewKeys;
use crate::{Error, ErrorKind, Result};

/// The suite that `encryption=on` means.
const DEFAULT_SUITE: Suite = Suite::Aes256Gcm;

/// The suite an `encryption` property value stands for; `None` for "off", "inherit" and values that
/// do not exist.
pub fn suite_of_property(raw: u64) -> Option<Suite> {
    if raw == 1 { Some(DEFAULT_SUITE) } else { Suite::from_id(raw) }
}

/// A user's key, ready to wrap with, and what a key object says of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrapping {
    /// The 32-byte wrapping key.
    pub key: SecretKey,
    /// What the user's key looks like.
    pub format: KeyFormat,
    /// Salt of a passphrase, else 0.
    pub salt: u64,
    /// Iterations for a passphrase, else 0.
    pub iterations: u64,
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Io, format!("no key can be made: {error}"))
}

fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    crate::environment::fill_random(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

fn random_number() -> Result<u64> {
    loop {
        let number = u64::from_le_bytes(random()?);
        if number != 0 {
            return Ok(number);
        }
    }
}

fn random_key(length: usize) -> Result<SecretKey> {
    let mut bytes = vec![0; length];
    crate::environment::fill_random(&mut bytes).map_err(failed)?;
    Ok(SecretKey::new(bytes))
}

impl Wrapping {
    /// A new user key. A passphrase gets a new salt, and `iterations` or the usual number of them;
    /// other formats have neither.
    pub fn new(format: KeyFormat, material: &[u8], iterations: Option<u64>) -> Result<Self> {
        let (salt, iterations) = match format {
            KeyFormat::Passphrase => {
                let iterations = iterations.unwrap_or(PBKDF2_DEFAULT_ITERATIONS);
                if iterations < PBKDF2_MIN_ITERATIONS {
                    let reason = format!("a passphrase needs {PBKDF2_MIN_ITERATIONS} iterations");
                    return Err(Error::invalid(format!("{reason} at least, not {iterations}")));
                }
                (random_number()?, iterations)
            }
            _ if iterations.is_some() => {
                return Err(Error::invalid("only passphrases have iterations"));
            }
            _ => (0, 0),
        };
        let key = wrapping_key(format, material, salt, iterations)?;
        Ok(Self { key, format, salt, iterations })
    }

    /// A key that is in use already: `key` is the wrapping key of the root `object` belongs to.
    pub fn of(object: &KeyObject, key: SecretKey) -> Self {
        let (format, salt, iterations) = (object.format, object.salt, object.iterations);
        Self { key, format, salt, iterations }
    }

    /// Makes the keys of a new dataset: wrapped for its key object, and ready to seal its blocks.
    pub fn new_keys(&self, suite: Suite) -> Result<(WrappedKeys, DatasetKeys)> {
        let keys =
            MasterKeys { master: random_key(suite.key_len())?, hmac: random_key(HMAC_KEY_LEN)? };
        let blank = WrappedKeys {
            suite,
            guid: random_number()?,
            version: CURRENT_VERSION,
            iv: [0; 12],
            mac: [0; 16],
            master: [0; 32],
            hmac: [0; 64],
        };
        let wrapped = wrap(&keys, &blank, random()?, &self.key).map_err(failed)?;
        Ok((wrapped, DatasetKeys::new(suite, CURRENT_VERSION, keys)))
    }

    /// What a new encrypted dataset is made with. `root` is the directory of its encryption root;
    /// `None`: the dataset has a user key of its own, this one.
    pub fn new_dataset(
        &self,
        suite: Suite,
        root: Option<ObjectId>,
    ) -> Result<(NewKeys, DatasetKeys)> {
        let (wrapped, keys) = self.new_keys(suite)?;
        let Self { format, salt, iterations, .. } = *self;
        Ok((NewKeys { wrapped, root, format, salt, iterations }, keys))
    }

    /// Wraps the keys of `object` anew, which the wrapping key `old` opens. Guid, suite and version
    /// stay; every other value of the key object that a change of key touches is in the result and
    /// in `self`.
    ///
    /// [`ErrorKind::WrongKey`] if `old` does not open them.
    pub fn rewrap(&self, object: &KeyObject, old: &SecretKey) -> Result<WrappedKeys> {
        let keys = match cipher::unwrap(&object.wrapped, old) {
            Ok(keys) => keys,
            Err(CipherError::Authentication) => {
                let reason = "the key does not open the dataset's keys";
                return Err(Error::new(ErrorKind::WrongKey, reason));
            }
            Err(error) => return Err(Error::corrupt(error.to_string()).at_object(0, object.id.0)),
        };
        wrap(&keys, &object.wrapped, random()?, &self.key).map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::open_keys;
    use crate::pipe::Encryptor;

    const SUITES: [Suite; 6] = [
        Suite::Aes128Ccm,
        Suite::Aes192Ccm,
        Suite::Aes256Ccm,
        Suite::Aes128Gcm,
        Suite::Aes192Gcm,
        Suite::Aes256Gcm,
    ];

    fn object(wrapping: &Wrapping, wrapped: WrappedKeys) -> KeyObject {
        KeyObject {
            id: ObjectId(7),
            references: 1,
            root: ObjectId(9),
            wrapped,
            format: wrapping.format,
            salt: wrapping.salt,
            iterations: wrapping.iterations,
        }
    }

    #[test]
    fn new_keys_open_with_the_users_key_only() {
        let wrapping = Wrapping::new(KeyFormat::Raw, &[5; 32], None).unwrap();
        let other = Wrapping::new(KeyFormat::Raw, &[6; 32], None).unwrap();
        for suite in SUITES {
            let (wrapped, keys) = wrapping.new_keys(suite).unwrap();
            assert_eq!((wrapped.suite, wrapped.version), (suite, 1));
            assert_ne!(wrapped.guid, 0);
            let object = object(&wrapping, wrapped);
            let again = object.wrapping_key(&[5; 32]).unwrap();
            let opened = open_keys(&object, &again).unwrap();
            // The same keys: they make the same MACs.
            assert_eq!(keys.mac(b"some bytes").unwrap(), opened.mac(b"some bytes").unwrap());
            assert!(open_keys(&object, &other.key).is_err());
            let (second, _) = wrapping.new_keys(suite).unwrap();
            assert_ne!((second.guid, second.iv), (object.wrapped.guid, object.wrapped.iv));
        }
    }

    #[test]
    fn a_change_of_key_keeps_the_master_keys() {
        let old = Wrapping::new(KeyFormat::Raw, &[5; 32], None).unwrap();
        let (wrapped, keys) = old.new_keys(Suite::Aes192Gcm).unwrap();
        let before = object(&old, wrapped);
        let new =
            Wrapping::new(KeyFormat::Passphrase, b"a passphrase", Some(PBKDF2_MIN_ITERATIONS))
                .unwrap();
        assert_ne!(new.salt, 0);
        let wrapped = new.rewrap(&before, &old.key).unwrap();
        assert_eq!(wrapped.guid, before.wrapped.guid);
        assert_ne!((wrapped.iv, wrapped.mac), (before.wrapped.iv, before.wrapped.mac));
        let after = object(&new, wrapped);
        let key = after.wrapping_key(b"a passphrase").unwrap();
        let opened = open_keys(&after, &key).unwrap();
        assert_eq!(keys.mac(b"x").unwrap(), opened.mac(b"x").unwrap());
        assert!(open_keys(&after, &old.key).is_err());
        let error = old.rewrap(&after, &old.key).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WrongKey);
        assert_eq!(Wrapping::of(&after, key), new);
    }

    #[test]
    fn nonsense_is_refused() {
        let new = |format, material: &[u8], iterations| {
            Wrapping::new(format, material, iterations).map(|_| ())
        };
        assert!(new(KeyFormat::Passphrase, b"a passphrase", Some(99_999)).is_err());
        assert!(new(KeyFormat::Passphrase, b"short", Some(100_000)).is_err());
        assert!(new(KeyFormat::Raw, &[0; 32], Some(100_000)).is_err());
        assert!(new(KeyFormat::Raw, &[0; 31], None).is_err());
        assert!(new(KeyFormat::None, &[0; 32], None).is_err());
        assert_eq!(suite_of_property(1), Some(Suite::Aes256Gcm));
        assert_eq!(suite_of_property(3), Some(Suite::Aes128Ccm));
        assert_eq!((suite_of_property(0), suite_of_property(2)), (None, None));
    }
}
