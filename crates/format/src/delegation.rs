//! Keys of delegated permissions (`zfs allow`).
//!
//! Chapter 06, section 18. A directory's delegation ZAP maps such a key to another ZAP whose names
//! are permissions or permission sets. Invariant: a parsed key gives back the same name.

use crate::{Error, Result};

/// To whom a permission is given.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Who {
    /// A user id.
    User(u32),
    /// A group id.
    Group(u32),
    /// Everyone.
    Everyone,
    /// Whoever creates a descendant.
    Creator,
    /// A named set of permissions (with its `@`).
    Set(String),
}

/// Where a permission holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    /// On the dataset itself.
    Local,
    /// On its descendants.
    Descendant,
    /// Not applicable (sets, creators).
    NotApplicable,
}

/// A parsed key.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// To whom.
    pub who: Who,
    /// Where.
    pub scope: Scope,
    /// The entry lists permission sets (else permissions).
    pub sets: bool,
}

/// Every permission that is not the name of a settable property.
pub const PERMISSIONS: &[&str] = &[
    "allow",
    "bookmark",
    "change-key",
    "clone",
    "create",
    "destroy",
    "diff",
    "groupobjquota",
    "groupobjused",
    "groupquota",
    "groupused",
    "hold",
    "load-key",
    "mount",
    "projectobjquota",
    "projectobjused",
    "projectquota",
    "projectused",
    "promote",
    "receive",
    "receive:append",
    "release",
    "rename",
    "rollback",
    "send",
    "send:encrypted",
    "send:raw",
    "share",
    "snapshot",
    "userobjquota",
    "userobjused",
    "userprop",
    "userquota",
    "userused",
];

impl Key {
    /// Parses a name such as `ul$1000`.
    pub fn parse(name: &[u8]) -> Result<Self> {
        let bad = || Error::new("delegation", String::from_utf8_lossy(name).into_owned());
        let text = std::str::from_utf8(name).map_err(|_| bad())?;
        let (head, id) = text.split_once('$').ok_or_else(bad)?;
        let [kind, scope] = <[u8; 2]>::try_from(head.as_bytes()).map_err(|_| bad())?;
        let number = || id.parse::<u32>().ok().filter(|_| !id.starts_with('+')).ok_or_else(bad);
        let who = match kind.to_ascii_lowercase() {
            b'u' => Who::User(number()?),
            b'g' => Who::Group(number()?),
            b'e' if id.is_empty() => Who::Everyone,
            b'c' if id.is_empty() => Who::Creator,
            b's' if id.starts_with('@') => Who::Set(id.to_owned()),
            _ => return Err(bad()),
        };
        let scope = match scope {
            b'l' => Scope::Local,
            b'd' => Scope::Descendant,
            b'-' => Scope::NotApplicable,
            _ => return Err(bad()),
        };
        Ok(Self { who, scope, sets: kind.is_ascii_uppercase() })
    }

    /// The name of this key.
    pub fn name(&self) -> String {
        let (kind, id) = match &self.who {
            Who::User(id) => ('u', id.to_string()),
            Who::Group(id) => ('g', id.to_string()),
            Who::Everyone => ('e', String::new()),
            Who::Creator => ('c', String::new()),
            Who::Set(name) => ('s', name.clone()),
        };
        let kind = if self.sets { kind.to_ascii_uppercase() } else { kind };
        let scope = match self.scope {
            Scope::Local => 'l',
            Scope::Descendant => 'd',
            Scope::NotApplicable => '-',
        };
        format!("{kind}{scope}${id}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_chapter_06_round_trip() {
        for name in ["ul$1000", "gd$50", "ed$", "c-$", "s-$@ops", "Ul$1000"] {
            assert_eq!(Key::parse(name.as_bytes()).unwrap().name(), name);
        }
        let key = Key::parse(b"Ul$1000").unwrap();
        assert_eq!((key.who, key.scope, key.sets), (Who::User(1000), Scope::Local, true));
        for bad in
            ["", "ul", "ul$", "xl$1", "ux$1", "e-$x", "s-$ops", "ul$+1", "u$1", "ul$99999999999"]
        {
            assert!(Key::parse(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
