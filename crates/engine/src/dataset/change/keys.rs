//! Key objects of encrypted directories: which belong to a root, and writing rewrapped keys.
//!
//! Chapter 06, section 19. Invariant: every key object under an encryption root names it and is
//! wrapped with its key; nothing here is secret.

use std::collections::HashSet;

use cenote_format::ObjectId;
use cenote_format::crypto_key::ROOT_DIRECTORY;
use cenote_format::dsl_directory::KEY_CRYPTO_KEY_OBJECT;

use super::{MosChange, NewKeys};
use crate::Result;

impl MosChange<'_> {
    /// The directories at and below `top` whose encryption root is `root`, and the clones of their
    /// snapshots with what is below those, with their key objects; clones share theirs.
    pub fn directories_of_root(
        &self,
        top: ObjectId,
        root: ObjectId,
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
            rest.extend(self.members(phys.child_map)?);
            if phys.clones.0 != 0 {
                for head in self.members(phys.clones)? {
                    rest.push(self.dataset(head)?.directory);
                }
            }
        }
        Ok(found)
    }

    /// Writes a key object anew: wrapped with another key, under another encryption root, or both.
    pub fn rewrap_keys(&self, object: ObjectId, root: ObjectId, keys: &NewKeys) -> Result<()> {
        self.put_number(object, ROOT_DIRECTORY, root.0)?;
        self.write_wrapped(object, keys)
    }
}
