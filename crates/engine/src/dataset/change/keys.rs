//! Key objects of encrypted directories: which belong to a root, and writing rewrapped keys.
//!
//! Chapter 06, section 19. Invariant: every key object under an encryption root names it and is
//! wrapped with its key; nothing here is secret.

use cenote_format::ObjectId;
use cenote_format::crypto_key::ROOT_DIRECTORY;
use cenote_format::dsl_directory::KEY_CRYPTO_KEY_OBJECT;

use super::super::name::DEPTH_MAX;
use super::{MosChange, NewKeys};
use crate::{Error, Result};

impl MosChange<'_> {
    /// The directories at and below `top` whose encryption root is `root`, with their key objects;
    /// clones share theirs.
    pub fn directories_of_root(
        &self,
        top: ObjectId,
        root: ObjectId,
    ) -> Result<Vec<(ObjectId, ObjectId)>> {
        let mut found = Vec::new();
        let mut rest = vec![(top, 0)];
        while let Some((directory, depth)) = rest.pop() {
            if depth > DEPTH_MAX {
                let reason = "directories are nested too deeply";
                return Err(Error::corrupt(reason).at_object(0, directory.0));
            }
            if let Some(keys) = self.number_field(directory, KEY_CRYPTO_KEY_OBJECT)?.map(ObjectId)
                && self.number(keys, ROOT_DIRECTORY)? == Some(root.0)
            {
                found.push((directory, keys));
            }
            let children = self.members(self.directory(directory)?.child_map)?;
            rest.extend(children.into_iter().map(|child| (child, depth + 1)));
        }
        Ok(found)
    }

    /// Writes a key object anew: wrapped with another key, under another encryption root, or both.
    pub fn rewrap_keys(&self, object: ObjectId, root: ObjectId, keys: &NewKeys) -> Result<()> {
        self.put_number(object, ROOT_DIRECTORY, root.0)?;
        self.write_wrapped(object, keys)
    }
}
