//! Settings of new and existing datasets as orders bring them, and as the engine takes them.
//!
//! Invariant: what shapes a filesystem or volume when it is made is told apart from what is stored.

use cenote_control::changes::Grant;
use cenote_control::plan::{NewKey, PropertySetting, PropertyValue};
use cenote_engine::dataset::change::{PropertyData, PropertyInput};
use cenote_engine::keys::Wrapping;
use cenote_engine::pool::change::Encryption;
use cenote_engine::{Error, Result};
use cenote_format::crypto_key::KeyFormat;
use cenote_format::delegation::Key;
use cenote_format::master_node::CaseSensitivity;
use cenote_posix::create::NewFilesystem;
use cenote_posix::tree::Timestamp;
use cenote_posix::write::{Quota, QuotaKind};

/// Block size of a volume that does not say one, in bytes.
const VOLUME_BLOCK: u64 = 16 << 10;
/// Number of `encryption=off`.
const ENCRYPTION_OFF: u64 = 2;

/// A setting as the engine takes it.
pub fn input(setting: &PropertySetting) -> PropertyInput {
    match &setting.value {
        PropertyValue::Number(number) => PropertyInput::number(&setting.name, *number),
        PropertyValue::Text(text) => PropertyInput::text(&setting.name, text),
    }
}

pub(super) fn unsupported<T>(what: impl std::fmt::Display) -> Result<T> {
    Err(Error::unsupported(format!("{what} is not supported yet")))
}

/// The user that this process runs as: whoever gives it orders, or root.
pub fn user() -> u64 {
    rustix::process::getuid().as_raw().into()
}

/// What settings of a new dataset come to.
pub struct NewSettings {
    /// What shapes a filesystem when it is made.
    pub files: NewFilesystem,
    /// Block size of a volume in bytes.
    pub block: u64,
    /// The `encryption` property, if it is set.
    pub encryption: Option<u64>,
    /// The rest, which is stored.
    pub stored: Vec<PropertyInput>,
    /// Quotas of somebody, which are kept in the filesystem.
    pub quotas: Vec<Quota>,
}

/// The number a setting is.
pub fn number(setting: &PropertySetting) -> Result<u64> {
    let missing = || Error::invalid(format!("'{}' is a number", setting.name));
    setting.value.number().ok_or_else(missing)
}

/// The quota that a setting as `userquota@1000` is.
pub fn quota(setting: &PropertySetting) -> Result<Quota> {
    let odd = || Error::invalid(setting.name.clone());
    let (kind, id) = setting.name.split_once('@').unwrap_or_default();
    let kind = QuotaKind::of_property(kind).ok_or_else(odd)?;
    let id = id.parse().map_err(|_| odd())?;
    Ok(Quota { kind, id, limit: number(setting)? })
}

/// Sorts the settings of a new dataset.
pub fn split_settings(settings: &[PropertySetting]) -> Result<NewSettings> {
    let mut files = NewFilesystem {
        uid: rustix::process::getuid().as_raw(),
        gid: rustix::process::getgid().as_raw(),
        time: Timestamp::now(),
        ..NewFilesystem::default()
    };
    let (mut block, mut encryption) = (VOLUME_BLOCK, None);
    let (mut stored, mut quotas) = (Vec::new(), Vec::new());
    for setting in settings {
        let number = setting.value.number().unwrap_or(0);
        match setting.name.as_str() {
            "normalization" => {
                files.normalization = number;
                files.utf8_only |= number != 0;
            }
            "utf8only" => files.utf8_only = number != 0,
            "casesensitivity" => {
                files.case = CaseSensitivity::from_raw(number)
                    .ok_or_else(|| Error::invalid(format!("case sensitivity {number}")))?;
            }
            "version" if number != 5 => return unsupported("another version than 5"),
            "version" => {}
            "volblocksize" => block = number,
            "encryption" => encryption = Some(number).filter(|number| *number != 0),
            "keyformat" | "pbkdf2iters" => {}
            name if name.contains('@') => quotas.push(quota(setting)?),
            _ => stored.push(input(setting)),
        }
    }
    Ok(NewSettings { files, block, encryption, stored, quotas })
}

/// A user key ready to wrap with; for a passphrase this takes a while.
pub fn wrapping_of(key: &NewKey) -> Result<Wrapping> {
    let format = match key.format.as_str() {
        "raw" => KeyFormat::Raw,
        "hex" => KeyFormat::Hex,
        "passphrase" => KeyFormat::Passphrase,
        other => return Err(Error::invalid(format!("key format {other}"))),
    };
    let iterations = (key.iterations != 0).then_some(key.iterations);
    Wrapping::new(format, &key.secret.0, iterations)
}

/// How a dataset with these settings and this key is encrypted.
pub fn encryption_of(setting: Option<u64>, key: Option<&NewKey>) -> Result<Encryption> {
    if setting == Some(ENCRYPTION_OFF) {
        return Ok(Encryption::Off);
    }
    let suite = match setting {
        Some(raw) => {
            let suite = cenote_engine::keys::suite_of_property(raw);
            Some(suite.ok_or_else(|| Error::invalid(format!("encryption {raw}")))?)
        }
        None => None,
    };
    Ok(match (suite, key) {
        (None, None) => Encryption::Inherited,
        (suite, key) => Encryption::On { suite, wrapping: key.map(wrapping_of).transpose()? },
    })
}

/// Whom a grant is for.
pub fn key_of(grant: &Grant) -> Result<Key> {
    Ok(Key::parse(grant.key.as_bytes())?)
}

/// For the root of a new pool.
pub fn root_properties(stored: &[PropertyInput]) -> Vec<PropertyInput> {
    stored
        .iter()
        .filter(|input| !matches!(&input.value, PropertyData::Text(text) if text.is_empty()))
        .cloned()
        .collect()
}
