//! Key objects of encrypted directories: which belong to a root, and writing rewrapped keys.
//!
//! Chapter 06, section 19. Invariant: every key object under an encryption root names it, is
//! wrapped with its key, and is reached from it; nothing here is secret.

use std::collections::HashSet;

use cenote_format::ObjectId;
use cenote_format::crypto_key::ROOT_DIRECTORY;
use cenote_format::dsl_directory::KEY_CRYPTO_KEY_OBJECT;

use super::{MosChange, NewKeys};
use crate::Result;

/// A way from a directory to another that may have the same encryption root.
pub(super) struct Way {
    /// From here.
    pub from: ObjectId,
    /// To there.
    pub to: ObjectId,
    /// There is a clone of a snapshot of here, rather than what lies below.
    pub is_clone: bool,
}

impl MosChange<'_> {
    /// The directories at and below `top` whose encryption root is `root`, and the clones of their
    /// snapshots with what is below those, with their key objects; clones share theirs.
    pub fn directories_of_root(
        &self,
        top: ObjectId,
        root: ObjectId,
    ) -> Result<Vec<(ObjectId, ObjectId)>> {
        self.directories_of_root_by(top, root, |_| true)
    }

    /// Whether `directory` is reached from its encryption root `root` by ways that `follows` says stay.
    /// What is not reached would not get the root's new key, and lose the root itself.
    pub(super) fn is_reached_from_root(
        &self,
        root: ObjectId,
        directory: ObjectId,
        follows: impl Fn(&Way) -> bool,
    ) -> Result<bool> {
        let reached = self.directories_of_root_by(root, root, follows)?;
        Ok(reached.iter().any(|(reached, _)| *reached == directory))
    }

    fn directories_of_root_by(
        &self,
        top: ObjectId,
        root: ObjectId,
        follows: impl Fn(&Way) -> bool,
    ) -> Result<Vec<(ObjectId, ObjectId)>> {
        let mut found = Vec::new();
        let mut seen = HashSet::new();
        let mut rest = vec![top];
        while let Some(directory) = rest.pop() {
            let keys = self.number_field(directory, KEY_CRYPTO_KEY_OBJECT)?.map(ObjectId);
            let Some(keys) = keys.filter(|_| seen.insert(directory)) else { continue };
            if self.number(keys, ROOT_DIRECTORY)? != Some(root.0) {
                continue;
            }
            found.push((directory, keys));
            let phys = self.directory(directory)?;
            let mut ways = Vec::new();
            for to in self.members(phys.child_map)? {
                ways.push(Way { from: directory, to, is_clone: false });
            }
            if phys.clones.0 != 0 {
                for head in self.members(phys.clones)? {
                    let to = self.dataset(head)?.directory;
                    ways.push(Way { from: directory, to, is_clone: true });
                }
            }
            rest.extend(ways.iter().filter(|way| follows(way)).map(|way| way.to));
        }
        Ok(found)
    }

    /// A key object is under another encryption root from now on, with the same user key.
    pub fn set_root(&self, object: ObjectId, root: ObjectId) -> Result<()> {
        self.put_number(object, ROOT_DIRECTORY, root.0)
    }

    /// Writes a key object anew: wrapped with another key, under another encryption root, or both.
    pub fn rewrap_keys(&self, object: ObjectId, root: ObjectId, keys: &NewKeys) -> Result<()> {
        self.put_number(object, ROOT_DIRECTORY, root.0)?;
        self.write_wrapped(object, keys)
    }
}
