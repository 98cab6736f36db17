//! Datasets that were received raw get the encryption roots that they have where they come from.
//!
//! Chapter 07, section 15. Invariant: what is wrapped stays as it is, for the keys came wrapped with those of their
//! root there; nothing gets a root whose user key cannot be the one it is wrapped with.

use cenote_format::ObjectId;

use super::keys::KEY_LOCATION;
use crate::dataset::change::{MosChange, PropertyInput};
use crate::dataset::{Catalog, Dataset, KeyObject};
use crate::pool::group::LivePool;
use crate::{ErrorKind, Result};

/// Which encryption root a dataset has where it comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SentRoot {
    /// Its name here.
    pub dataset: String,
    /// It is an encryption root itself; else it has that of the dataset above.
    pub is_root: bool,
    /// Where its key is found, if it is one and that is known.
    pub location: Option<String>,
}

impl LivePool {
    /// Gives these datasets, those above first, the encryption roots they have where they come from. What is not there,
    /// not encrypted, or a clone is passed over.
    ///
    /// # Errors
    /// What the disks say.
    pub fn follow_roots(&self, all: &[SentRoot]) -> Result<()> {
        let all = all.to_vec();
        self.change(move |live, change| {
            all.iter().try_for_each(|sent| live.follow_root(change, sent))
        })
    }

    /// The same of one dataset, for work given to [`LivePool::change`].
    pub(crate) fn follow_root(&self, change: &MosChange<'_>, sent: &SentRoot) -> Result<()> {
        let catalog = change.catalog()?;
        let head = match catalog.dataset_named(&sent.dataset) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            found => found?,
        };
        let Some(key) = catalog.key_object(&head.directory)? else { return Ok(()) };
        let directory = head.directory.id;
        if self.is_clone(&catalog, &head.directory)? {
            return Ok(());
        }
        match (sent.is_root, key.root == directory) {
            (true, false) => {
                let location = sent.location.as_deref().unwrap_or("prompt");
                self.move_root(change, directory, (key.root, directory))?;
                change.set_property(head.id, &PropertyInput::text(KEY_LOCATION, location))
            }
            (false, true) => {
                let Some(above) = root_above(&catalog, &head, &key)? else { return Ok(()) };
                self.move_root(change, directory, (directory, above))?;
                change.inherit_property(head.id, KEY_LOCATION, true)
            }
            _ => Ok(()),
        }
    }

    /// What has the first of two encryption roots, at and below `directory`, has the second from now on.
    fn move_root(
        &self,
        change: &MosChange<'_>,
        directory: ObjectId,
        (from, to): (ObjectId, ObjectId),
    ) -> Result<()> {
        let found = change.directories_of_root(directory, from)?;
        let objects: Vec<ObjectId> = found.into_iter().map(|(_, object)| object).collect();
        objects.iter().try_for_each(|object| change.set_root(*object, to))?;
        let ended = (from == directory).then_some(from);
        self.when_done(move |live| live.pool.keys().given_root(&objects, to, ended));
        Ok(())
    }
}

/// The encryption root of the dataset above, if the keys of `head` can be wrapped with its user key, as far as can be
/// told without it.
fn root_above(catalog: &Catalog, head: &Dataset, key: &KeyObject) -> Result<Option<ObjectId>> {
    let parent = head.directory.phys.parent;
    if parent.0 == 0 {
        return Ok(None);
    }
    let Some(above) = catalog.key_object(&catalog.directory_by_id(parent)?)? else {
        return Ok(None);
    };
    let root = catalog.key_object(&catalog.directory_by_id(above.root)?)?;
    let fits = |root: &KeyObject| {
        (root.format, root.salt, root.iterations) == (key.format, key.salt, key.iterations)
    };
    Ok(root.filter(fits).map(|root| root.root))
}
