//! Names of datasets, snapshots and bookmarks.
//!
//! Chapter 06, sections 4, 5 and 16. Invariant: a [`DatasetName`] is well formed, so its parts can
//! be joined into paths and compared byte by byte.

use std::fmt;

use cenote_format::ObjectId;

use crate::{Error, Result};

/// Longest full name in bytes.
pub const NAME_MAX: usize = 255;
/// Fewest slashes of a name that is nested too deeply to be given to anything.
pub const NESTING_MAX: usize = 50;
/// Deepest nesting of directories a walk follows.
pub const DEPTH_MAX: usize = 128;

/// What follows the path.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Suffix {
    /// The live head.
    Head,
    /// `@name`.
    Snapshot(String),
    /// `#name`.
    Bookmark(String),
}

/// `pool/a/b`, `pool/a/b@snapshot` or `pool/a/b#bookmark`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DatasetName {
    path: String,
    suffix: Suffix,
}

fn is_component(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.: %".contains(&byte);
    !text.is_empty() && text != "." && text != ".." && text.bytes().all(allowed)
}

/// Checks a component that was read from the pool: with "/" or ".." in it, paths made of it would
/// lead elsewhere. Hidden ones begin with "$".
pub(super) fn check_stored(component: &str, id: ObjectId) -> Result<()> {
    if is_component(component.strip_prefix('$').unwrap_or(component)) {
        return Ok(());
    }
    let reason = format!("'{}' is no name of a dataset", component.escape_default());
    Err(Error::corrupt(reason).at_object(0, id.0))
}

/// Refuses a full name that no dataset may be given.
pub fn check_new_name(name: &str) -> Result<()> {
    let path = name.split('@').next().unwrap_or(name);
    if name.len() > NAME_MAX {
        return Err(Error::invalid("dataset name is too long"));
    }
    if path.matches('/').count() >= NESTING_MAX {
        return Err(Error::invalid("maximum name nesting depth exceeded"));
    }
    Ok(())
}

impl DatasetName {
    /// Parses and checks a name.
    pub fn parse(text: &str) -> Result<Self> {
        let bad = |why: &str| Error::invalid(format!("'{text}' is not a dataset name: {why}"));
        if text.len() > NAME_MAX {
            return Err(bad("it is too long"));
        }
        let (path, suffix) = match text.find(['@', '#']) {
            None => (text, Suffix::Head),
            Some(at) => {
                let (path, rest) = text.split_at(at);
                let name = rest.get(1..).unwrap_or("");
                if !is_component(name) {
                    return Err(bad("the part after '@' or '#' is empty or has a bad character"));
                }
                let snapshot = rest.starts_with('@');
                let name = name.to_owned();
                (path, if snapshot { Suffix::Snapshot(name) } else { Suffix::Bookmark(name) })
            }
        };
        if path.split('/').count() > DEPTH_MAX {
            return Err(bad("it is nested too deeply"));
        }
        if !path.split('/').all(is_component) {
            return Err(bad("a part is empty or has a bad character"));
        }
        Ok(Self { path: path.to_owned(), suffix })
    }

    /// The name of a head whose path was read from the pool.
    pub(super) fn head(path: impl Into<String>) -> Self {
        Self { path: path.into(), suffix: Suffix::Head }
    }

    /// The name of a snapshot of this dataset.
    #[must_use]
    pub fn snapshot(&self, name: impl Into<String>) -> Self {
        Self { path: self.path.clone(), suffix: Suffix::Snapshot(name.into()) }
    }

    /// The name of a bookmark of this dataset.
    #[must_use]
    pub fn bookmark(&self, name: impl Into<String>) -> Self {
        Self { path: self.path.clone(), suffix: Suffix::Bookmark(name.into()) }
    }

    /// The part before `@` or `#`.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The first component: the pool.
    pub fn pool(&self) -> &str {
        self.path.split('/').next().unwrap_or("")
    }

    /// Components after the pool.
    pub fn components(&self) -> impl Iterator<Item = &str> {
        self.path.split('/').skip(1)
    }

    /// What follows the path.
    pub fn suffix(&self) -> &Suffix {
        &self.suffix
    }

    /// The snapshot's own name.
    pub fn snapshot_name(&self) -> Option<&str> {
        match &self.suffix {
            Suffix::Snapshot(name) => Some(name),
            _ => None,
        }
    }
}

impl fmt::Display for DatasetName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.suffix {
            Suffix::Head => f.write_str(&self.path),
            Suffix::Snapshot(name) => write!(f, "{}@{name}", self.path),
            Suffix::Bookmark(name) => write!(f, "{}#{name}", self.path),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for text in ["p", "p/a b/c-1", "p/a@s", "p@s.1:x", "p/a#b", "p/%recv"] {
            assert_eq!(DatasetName::parse(text).unwrap().to_string(), text);
        }
        let name = DatasetName::parse("p/a/b@s").unwrap();
        assert_eq!((name.pool(), name.path(), name.snapshot_name()), ("p", "p/a/b", Some("s")));
        assert_eq!(name.components().collect::<Vec<_>>(), ["a", "b"]);
    }

    #[test]
    fn nonsense_is_refused() {
        let long = "a".repeat(256);
        let deep = "a/".repeat(127) + "a/a";
        for text in
            ["", "/", "p/", "/p", "p//a", "p@", "p#", "p@a@b", "p@a/b", "p/..", "p/ä", &long]
        {
            assert!(DatasetName::parse(text).is_err(), "{text}");
        }
        assert!(DatasetName::parse(&deep).is_err());
    }
}
