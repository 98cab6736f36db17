//! Making encrypted datasets, and changing their user keys, in a pool open for writing.
//!
//! Chapter 06, section 19. Invariant: a dataset below an encrypted one is encrypted with keys of its
//! own under the same user key, unless it was asked to be otherwise; every key object under a root
//! is wrapped with that root's key in the group that changes it.

use std::collections::HashSet;
use std::sync::Arc;

use cenote_codec::cipher::Suite;
use cenote_format::ObjectId;
use cenote_format::objset::ObjsetKind;

use crate::dataset::change::{MadeDataset, MosChange, NewDataset, NewKeys, PropertyInput};
use crate::dataset::{Catalog, Directory, KeyObject};
use crate::keys::{DatasetKeys, Wrapping};
use crate::object::ObjectSet;
use crate::pool::group::LivePool;
use crate::txg::Tx;
use crate::{Error, ErrorKind, Result};

/// Property that says where a user key is found.
pub(super) const KEY_LOCATION: &str = "keylocation";

/// How a new dataset is encrypted.
#[derive(Clone, Debug, Default)]
pub enum Encryption {
    /// As the dataset above.
    #[default]
    Inherited,
    /// Not at all.
    Off,
    /// Encrypted.
    On {
        /// `None`: as the dataset above.
        suite: Option<Suite>,
        /// The user key of a new encryption root; `None`: that of the dataset above.
        wrapping: Option<Wrapping>,
    },
}

impl LivePool {
    /// Makes a dataset whose object set `fill` fills, in the group being written. For work given to
    /// [`LivePool::change`].
    ///
    /// The user key it is encrypted with must be loaded ([`ErrorKind::KeyNotLoaded`]); one of its
    /// own is loaded from now on, and `keylocation` is among the properties of `new`.
    pub fn make_encrypted_dataset(
        &self,
        change: &MosChange<'_>,
        new: &NewDataset<'_>,
        encryption: &Encryption,
        kind: ObjsetKind,
        fill: impl FnOnce(&ObjectSet, &Tx) -> Result<()>,
    ) -> Result<MadeDataset> {
        if new.keys.is_some() {
            return Err(Error::invalid("keys are made with the dataset, not given"));
        }
        let Some((keys, sealed)) = self.new_keys(change, new.parent, encryption)? else {
            let made = change.create_dataset(new)?;
            self.fill_dataset(change, made, kind, None, fill)?;
            return Ok(made);
        };
        let made = change.create_dataset(&NewDataset { keys: Some(keys), ..new.clone() })?;
        self.fill_dataset(change, made, kind, Some(Arc::new(sealed)), fill)?;
        if let Encryption::On { wrapping: Some(wrapping), .. } = encryption {
            self.pool.keys().adopt(made.directory, wrapping);
            self.when_undone(move |live| live.pool.keys().forget_root(made.directory));
        }
        Ok(made)
    }

    /// Gives the root dataset of a pool that is being made a user key.
    pub(super) fn encrypt_root(
        &self,
        change: &MosChange<'_>,
        root: MadeDataset,
        suite: Suite,
        wrapping: &Wrapping,
    ) -> Result<Arc<DatasetKeys>> {
        let (keys, sealed) = wrapping.new_dataset(suite, None)?;
        change.give_keys(root, &keys)?;
        self.pool.keys().adopt(root.directory, wrapping);
        Ok(Arc::new(sealed))
    }

    /// The keys of a new dataset below `parent`; `None` if it is not encrypted.
    fn new_keys(
        &self,
        change: &MosChange<'_>,
        parent: ObjectId,
        encryption: &Encryption,
    ) -> Result<Option<(NewKeys, DatasetKeys)>> {
        let catalog = change.catalog()?;
        let above = catalog.directory_by_id(parent)?;
        let key = catalog.key_object(&above)?;
        let (suite, own) = match encryption {
            Encryption::Off => return Ok(None),
            Encryption::Inherited if key.is_none() => return Ok(None),
            Encryption::Inherited => (None, None),
            Encryption::On { suite, wrapping } => (*suite, wrapping.as_ref()),
        };
        if !change.is_enabled("encryption")? {
            return Err(Error::unsupported("Encryption feature not enabled."));
        }
        let inherited = key.as_ref().map(|key| key.wrapped.suite);
        let suite = suite.or(inherited);
        let suite = suite.ok_or_else(|| Error::invalid("an encryption root without a suite"))?;
        if let Some(own) = own {
            return own.new_dataset(suite, None).map(Some);
        }
        let key = key.ok_or_else(|| Error::invalid("an encryption root without a key"))?;
        let wrapping = self.loaded(&key, &above)?;
        wrapping.new_dataset(suite, Some(key.root)).map(Some)
    }

    fn loaded(&self, key: &KeyObject, directory: &Directory) -> Result<Wrapping> {
        self.pool.keys().wrapping(key).ok_or_else(|| {
            let reason = format!("the key of '{}' is not loaded", directory.path);
            Error::new(ErrorKind::KeyNotLoaded, reason)
        })
    }

    /// Makes the dataset `name` an encryption root with the user key `new`, found at a location; or,
    /// with `None`, ends its being one: it takes over the user key of the dataset above. For work
    /// given to [`LivePool::change`].
    ///
    /// [`ErrorKind::KeyNotLoaded`] if the present key, or that of the dataset above, is not loaded.
    pub fn change_key(
        &self,
        change: &MosChange<'_>,
        name: &str,
        new: Option<(&Wrapping, &str)>,
    ) -> Result<()> {
        let catalog = change.catalog()?;
        let head = catalog.dataset_named(name)?;
        let directory = &head.directory;
        let plain = || Error::invalid("Dataset not encrypted.");
        let key = catalog.key_object(directory)?.ok_or_else(plain)?;
        if self.is_clone(&catalog, directory)? {
            let reason = "Keys cannot be changed on clones.";
            return Err(Error::invalid(reason));
        }
        let old = self.loaded(&key, directory)?;
        let (root, wrapping) = match new {
            Some((wrapping, _)) => (directory.id, wrapping.clone()),
            None if key.root != directory.id => {
                let reason = "Key inheritting can only be performed on encryption roots.";
                return Err(Error::invalid(reason));
            }
            None => {
                let unencrypted = || Error::invalid("Parent must be encrypted.");
                if directory.phys.parent.0 == 0 {
                    return Err(unencrypted());
                }
                let above = catalog.directory_by_id(directory.phys.parent)?;
                let of_above = catalog.key_object(&above)?.ok_or_else(unencrypted)?;
                (of_above.root, self.loaded(&of_above, &above)?)
            }
        };
        // Everything that can fail comes before the first change.
        let mut rewrapped = Vec::new();
        let mut seen = HashSet::new();
        for (below, object) in change.directories_of_root(directory.id, key.root)? {
            if !seen.insert(object) {
                continue;
            }
            let below = catalog.directory_by_id(below)?;
            let key = catalog.key_object(&below)?.ok_or_else(plain)?;
            let wrapped = wrapping.rewrap(&key, &old.key)?;
            let Wrapping { format, salt, iterations, .. } = wrapping;
            rewrapped.push((object, NewKeys { wrapped, root: None, format, salt, iterations }));
        }
        for (object, keys) in &rewrapped {
            change.rewrap_keys(*object, root, keys)?;
        }
        match new {
            Some((_, location)) => {
                change.set_property(head.id, &PropertyInput::text(KEY_LOCATION, location))?;
            }
            None => change.inherit_property(head.id, KEY_LOCATION, true)?,
        }
        let objects: Vec<ObjectId> = rewrapped.into_iter().map(|(object, _)| object).collect();
        let ended = new.is_none().then_some(directory.id);
        self.when_done(move |live| {
            live.pool.keys().changed(&objects, root, &wrapping);
            if let Some(directory) = ended {
                live.pool.keys().forget_root(directory);
            }
        });
        Ok(())
    }

    pub(super) fn is_clone(&self, catalog: &Catalog, directory: &Directory) -> Result<bool> {
        let origin = directory.phys.origin;
        if origin.0 == 0 {
            return Ok(false);
        }
        let from = catalog.dataset_by_id(origin)?;
        Ok(!crate::dataset::is_hidden(from.directory.component()))
    }

    /// Whether a dataset that is open for writing needs the user key of the encryption root in
    /// directory `root`.
    pub fn is_key_in_use(&self, root: ObjectId) -> Result<bool> {
        let catalog = self.pool.catalog();
        let open: Vec<ObjectId> = self.datasets.lock().keys().copied().collect();
        for id in open {
            let dataset = catalog.dataset_by_id(id)?;
            if catalog.key_object(&dataset.directory)?.is_some_and(|key| key.root == root) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
