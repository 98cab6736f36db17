//! Directories: finding names by the rules of their filesystem, listing from a cursor.
//!
//! Chapter 05, section 9. Positions: 0 is ".", 1 "..", 2 ".zfs", larger ones are cursors of the
//! ZAP, which OpenZFS hands out likewise. Invariant: a listing resumed at an entry's `next`
//! neither repeats nor skips names that stay.

use cenote_format::ObjectId;
use cenote_format::directory_entry::{DIRECTORY, EntryValue};
use cenote_format::zap::{Cursor, MatchKind, Value};

use crate::error::{EILSEQ, EIO, ENAMETOOLONG, ENOENT};
use crate::tree::{DirectoryEntry, Errno, NodeId, Result};
use crate::view::{File, View};

/// Longest name without the feature `longname`, in bytes.
pub const NAME_MAX: usize = 255;
/// Longest name with it.
pub const LONG_NAME_MAX: usize = 1023;

/// Positions below this are not cursors of the ZAP.
const FIRST_CURSOR: u64 = 3;

/// Decodes an entry's value: further integers are tolerated.
pub fn entry_value(name: &[u8], value: &Value) -> Result<EntryValue> {
    let word = value.integers().next().filter(|_| value.integer_size() == 8);
    let bad = || {
        let name = String::from_utf8_lossy(name).into_owned();
        Errno::new(EIO, format!("the directory entry '{name}' is no object number"))
    };
    word.map(EntryValue::decode).ok_or_else(bad)
}

/// What stands around the entries of a directory.
pub struct Surroundings {
    /// Node of ".".
    pub own: NodeId,
    /// Node of "..".
    pub parent: NodeId,
    /// Node of ".zfs", if it is shown.
    pub control: Option<NodeId>,
}

impl View {
    /// The object `name` stands for in `directory`.
    pub fn find(&self, directory: &File, name: &[u8]) -> Result<EntryValue> {
        if name.len() > LONG_NAME_MAX {
            return Err(Errno::new(ENAMETOOLONG, "name too long"));
        }
        let naming = self.naming();
        if naming.utf8_only && std::str::from_utf8(name).is_err() {
            return Err(Errno::new(EILSEQ, "the name is not UTF-8"));
        }
        let absent = || Errno::new(ENOENT, "no such name");
        if name.is_empty() {
            return Err(absent());
        }
        let zap = self.directories.zap(&directory.object)?;
        let value = match naming.match_kind() {
            MatchKind::Exact => zap.lookup(name)?,
            kind => zap.lookup_normalized(name, kind)?.map(|found| found.value),
        };
        entry_value(name, &value.ok_or_else(absent)?)
    }

    /// Lists `directory` from `position` on.
    pub fn list(
        &self,
        directory: &File,
        around: &Surroundings,
        position: u64,
        each: &mut dyn FnMut(DirectoryEntry) -> bool,
    ) -> Result<()> {
        let fixed = [
            (&b"."[..], Some(around.own)),
            (&b".."[..], Some(around.parent)),
            (&b".zfs"[..], around.control),
        ];
        for (at, (name, node)) in fixed.into_iter().enumerate() {
            let next = at as u64 + 1;
            if let Some(node) = node.filter(|_| position < next) {
                let entry = DirectoryEntry { name: name.to_vec(), node, kind: DIRECTORY, next };
                if !each(entry) {
                    return Ok(());
                }
            }
        }
        let cursor = if position <= FIRST_CURSOR { Cursor::START } else { Cursor(position) };
        let zap = self.directories.zap(&directory.object)?;
        for entry in zap.iterate(cursor) {
            let entry = entry?;
            let value = entry_value(entry.name(), &entry.value)?;
            let entry = DirectoryEntry {
                name: entry.name().to_vec(),
                node: self.node(value.object),
                kind: value.kind,
                next: entry.next.0,
            };
            if !each(entry) {
                break;
            }
        }
        Ok(())
    }

    /// The parent directory of a directory of this view, inside this view.
    pub fn parent(&self, directory: &File) -> ObjectId {
        ObjectId(directory.facts.parent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_may_have_further_integers() {
        let value = Value::of_u64s(&[0x8000_0000_0000_0007, 5]).unwrap();
        let entry = entry_value(b"x", &value).unwrap();
        assert_eq!((entry.object.0, entry.kind), (7, 8));
        let bytes = Value::of_bytes(b"12345678").unwrap();
        assert_eq!(entry_value(b"x", &bytes).unwrap_err().code, EIO);
        let empty = Value::of_u64s(&[]).unwrap();
        assert_eq!(entry_value(b"x", &empty).unwrap_err().code, EIO);
    }
}
