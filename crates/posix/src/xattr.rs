//! Extended attributes: in a packed list in the system attributes, or as files in a hidden
//! directory.
//!
//! Chapter 05, section 11. A name lives in one of the two; the list is asked first. Invariant: the
//! names that are listed are those that can be read, and what OpenZFS on Linux would list.

use std::borrow::Cow;

use cenote_engine::ErrorKind;
use cenote_format::ObjectId;
use cenote_format::nvlist::{NvList, Value};
use cenote_format::posix_acl::{ACCESS_NAME, DEFAULT_NAME, PosixAcl};
use cenote_format::sa::Attribute;
use cenote_format::znode::Znode;

use crate::directory::entry_value;
use crate::error::{EIO, ENODATA, EOPNOTSUPP};
use crate::tree::{Errno, Result};
use crate::view::{File, View};

/// Property `xattr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum XattrMode {
    /// No extended attributes.
    Off,
    /// New ones go into the hidden directory.
    #[default]
    Directory,
    /// New ones go into the system attributes.
    SystemAttributes,
}

/// Property `acltype`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum AclType {
    /// Mode bits only.
    #[default]
    Off,
    /// POSIX access control lists, kept as extended attributes.
    Posix,
    /// NFSv4 access control lists.
    Nfs4,
}

/// Largest value that is believed.
const VALUE_MAX: u64 = 16 << 20;
/// Prefixes that a name of the user namespace does not have when it is stored without its own.
const NAMESPACES: [&[u8]; 5] = [b"user.", b"trusted.", b"security.", b"system.", b"freebsd:"];
const USER: &[u8] = b"user.";
const SYSTEM: &[u8] = b"system.";

/// What the properties say of extended attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Property `xattr`.
    pub mode: XattrMode,
    /// Property `acltype`.
    pub acl: AclType,
}

impl Rules {
    /// The name under which a stored one is listed; none if it is hidden.
    fn shown(self, stored: &[u8]) -> Option<Cow<'_, [u8]>> {
        if stored == ACCESS_NAME || stored == DEFAULT_NAME {
            return (self.acl == AclType::Posix).then_some(Cow::Borrowed(stored));
        }
        if stored.starts_with(SYSTEM) || stored.starts_with(b"freebsd:") {
            return None;
        }
        if has_namespace(stored) {
            return Some(Cow::Borrowed(stored));
        }
        // Stored by FreeBSD, illumos or with zfs_xattr_compat: the user namespace, unprefixed.
        Some(Cow::Owned([USER, stored].concat()))
    }

    /// The stored names to try for one that is asked for.
    pub(crate) fn candidates(self, name: &[u8]) -> Result<Vec<&[u8]>> {
        let unsupported = || Errno::new(EOPNOTSUPP, "no such namespace of extended attributes");
        if self.mode == XattrMode::Off {
            return Err(Errno::new(EOPNOTSUPP, "extended attributes are off"));
        }
        if name == ACCESS_NAME || name == DEFAULT_NAME {
            let on = self.acl == AclType::Posix;
            return if on { Ok(vec![name]) } else { Err(unsupported()) };
        }
        if name.starts_with(SYSTEM) || name.starts_with(b"freebsd:") || !has_namespace(name) {
            return Err(unsupported());
        }
        let bare = name.strip_prefix(USER).filter(|bare| !bare.is_empty() && !has_namespace(bare));
        Ok([Some(name), bare].into_iter().flatten().collect())
    }
}

fn has_namespace(name: &[u8]) -> bool {
    NAMESPACES.iter().any(|prefix| name.starts_with(prefix))
}

impl View {
    /// Value of the extended attribute `name`.
    pub fn get_xattr(&self, file: &File, name: &[u8], rules: Rules) -> Result<Vec<u8>> {
        let candidates = rules.candidates(name)?;
        if let Some(list) = self.xattr_list(file)? {
            for candidate in &candidates {
                if let Some(value) = list.get(candidate) {
                    return bytes_of(value).map(<[u8]>::to_vec);
                }
            }
        }
        if let Some(directory) = self.xattr_directory(file)? {
            let zap = self.directories.zap(&directory.object)?;
            for candidate in candidates {
                if let Some(value) = zap.lookup(candidate)? {
                    return self.xattr_value(entry_value(candidate, &value)?.object);
                }
            }
        }
        Err(Errno::new(ENODATA, "no such extended attribute"))
    }

    /// Names of all extended attributes.
    pub fn list_xattr(&self, file: &File, rules: Rules) -> Result<Vec<Vec<u8>>> {
        let mut names = Vec::new();
        if rules.mode == XattrMode::Off {
            return Ok(names);
        }
        let mut add = |stored: &[u8]| names.extend(rules.shown(stored).map(Cow::into_owned));
        if let Some(list) = self.xattr_list(file)? {
            list.iter().for_each(|pair| add(&pair.name));
        }
        if let Some(directory) = self.xattr_directory(file)? {
            for entry in self.directories.zap(&directory.object)?.entries() {
                add(entry?.name());
            }
        }
        Ok(names)
    }

    /// The access list of a file.
    pub fn access_acl(&self, file: &File, rules: Rules) -> Result<Option<PosixAcl>> {
        if rules.acl != AclType::Posix {
            return Ok(None);
        }
        match self.get_xattr(file, ACCESS_NAME, rules) {
            Ok(value) => Ok(Some(PosixAcl::decode(&value)?)),
            Err(error) if error.code == ENODATA || error.code == EOPNOTSUPP => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn xattr_list(&self, file: &File) -> Result<Option<NvList>> {
        if !file.has_system_attributes() {
            return Ok(None);
        }
        match self.value(file, Attribute::XattrList)? {
            Some(packed) if !packed.is_empty() => Ok(Some(NvList::decode(&packed)?)),
            _ => Ok(None),
        }
    }

    pub(crate) fn xattr_directory(&self, file: &File) -> Result<Option<File>> {
        let object = if file.has_system_attributes() {
            self.word(file, Attribute::XattrDirectory)?.unwrap_or(0)
        } else {
            Znode::decode(file.bonus())?.xattr
        };
        match object {
            0 => Ok(None),
            object => self.directory(ObjectId(object)).map(Some).map_err(|error| {
                let reason = format!("the extended attribute directory: {}", error.reason);
                Errno::new(EIO, reason)
            }),
        }
    }

    fn xattr_value(&self, object: ObjectId) -> Result<Vec<u8>> {
        let file = self.file(object)?;
        if file.facts.size > VALUE_MAX {
            let reason = format!("an extended attribute of {} bytes", file.facts.size);
            return Err(Errno::new(EIO, reason));
        }
        Ok(file.object.read_vec(0, file.facts.size as usize)?)
    }
}

fn bytes_of(value: &Value) -> Result<&[u8]> {
    match value {
        Value::ByteArray(bytes) => Ok(bytes),
        _ => Err(cenote_engine::Error::new(
            ErrorKind::Corrupt,
            "an extended attribute is not an array of bytes",
        )
        .into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: Rules = Rules { mode: XattrMode::Directory, acl: AclType::Off };
    const POSIX: Rules = Rules { mode: XattrMode::SystemAttributes, acl: AclType::Posix };

    #[test]
    fn names_that_are_shown() {
        let shown = |rules: Rules, name: &[u8]| rules.shown(name).map(Cow::into_owned);
        for same in ["user.x", "trusted.overlay.opaque", "security.selinux"] {
            assert_eq!(shown(RULES, same.as_bytes()), Some(same.as_bytes().to_vec()));
        }
        assert_eq!(shown(RULES, b"bare"), Some(b"user.bare".to_vec()));
        assert_eq!(shown(RULES, b"freebsd:system:x"), None);
        assert_eq!(shown(RULES, b"system.other"), None);
        assert_eq!(shown(RULES, ACCESS_NAME), None);
        assert_eq!(shown(POSIX, ACCESS_NAME), Some(ACCESS_NAME.to_vec()));
    }

    #[test]
    fn names_that_are_tried() {
        let tried = |rules: Rules, name: &'static [u8]| rules.candidates(name);
        assert_eq!(tried(RULES, b"user.x").unwrap(), [&b"user.x"[..], b"x"]);
        assert_eq!(tried(RULES, b"user.user.x").unwrap(), [&b"user.user.x"[..]]);
        assert_eq!(tried(RULES, b"trusted.x").unwrap(), [&b"trusted.x"[..]]);
        for unsupported in [ACCESS_NAME, b"system.x", b"x", b"freebsd:system:x"] {
            assert_eq!(tried(RULES, unsupported).unwrap_err().code, EOPNOTSUPP);
        }
        assert_eq!(tried(POSIX, DEFAULT_NAME).unwrap(), [DEFAULT_NAME]);
        let off = Rules { mode: XattrMode::Off, ..POSIX };
        assert_eq!(tried(off, b"user.x").unwrap_err().code, EOPNOTSUPP);
    }
}
