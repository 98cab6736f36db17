//! The key object of an encrypted directory: its wrapped keys and what opens them.
//!
//! Chapter 06, section 19. Invariant: nothing here is secret; the wrapped keys are as on disk.

use cenote_codec::cipher::{Suite, WrappedKeys};
use cenote_format::ObjectId;
use cenote_format::crypto_key::{self as names, KeyFormat};
use cenote_format::dsl_directory::KEY_CRYPTO_KEY_OBJECT;

use super::{Catalog, Directory, Table};
use crate::{Error, Result};

/// A key object.
#[derive(Clone, Debug)]
pub struct KeyObject {
    /// Its object in the MOS.
    pub id: ObjectId,
    /// Directories that use this object.
    pub references: u64,
    /// Directory of the encryption root.
    pub root: ObjectId,
    /// The keys, encrypted with the wrapping key; with them suite, guid and version.
    pub wrapped: WrappedKeys,
    /// What the user's key looks like.
    pub format: KeyFormat,
    /// Salt of a passphrase.
    pub salt: u64,
    /// Iterations for a passphrase.
    pub iterations: u64,
}

impl Catalog {
    /// The key object of a directory; `None` if it is not encrypted.
    pub fn key_object(&self, directory: &Directory) -> Result<Option<KeyObject>> {
        match self.directory_field(directory, KEY_CRYPTO_KEY_OBJECT)? {
            None | Some(0) => Ok(None),
            Some(id) => self.read_key_object(ObjectId(id)).map(Some),
        }
    }

    fn read_key_object(&self, id: ObjectId) -> Result<KeyObject> {
        let missing = |name: &str| {
            Error::corrupt(format!("the key object lacks '{name}'")).at_object(0, id.0)
        };
        let table = Table::open(self.mos(), id)?.ok_or_else(|| missing("everything"))?;
        let number = |name: &str| table.number(name)?.ok_or_else(|| missing(name));
        let suite = number(names::SUITE)?;
        let bad_suite =
            || Error::unsupported(format!("encryption suite {suite}")).at_object(0, id.0);
        let wrapped = WrappedKeys {
            suite: Suite::from_id(suite).ok_or_else(bad_suite)?,
            guid: number(names::GUID)?,
            // The version was added later; its absence is the first version.
            version: table.number(names::VERSION)?.unwrap_or(0),
            iv: fixed(&table, names::IV)?.ok_or_else(|| missing(names::IV))?,
            mac: fixed(&table, names::MAC)?.ok_or_else(|| missing(names::MAC))?,
            master: fixed(&table, names::MASTER_KEY)?.ok_or_else(|| missing(names::MASTER_KEY))?,
            hmac: fixed(&table, names::HMAC_KEY)?.ok_or_else(|| missing(names::HMAC_KEY))?,
        };
        Ok(KeyObject {
            id,
            references: table.number(names::REFCOUNT)?.unwrap_or(1),
            root: ObjectId(number(names::ROOT_DIRECTORY)?),
            wrapped,
            format: KeyFormat::from_raw(number(names::KEY_FORMAT)?)?,
            salt: table.number(names::PBKDF2_SALT)?.unwrap_or(0),
            iterations: table.number(names::PBKDF2_ITERATIONS)?.unwrap_or(0),
        })
    }
}

/// Exactly `N` bytes; any other number is no value.
fn fixed<const N: usize>(table: &Table, name: &str) -> Result<Option<[u8; N]>> {
    Ok(table.bytes(name)?.and_then(|bytes| bytes.try_into().ok()))
}
