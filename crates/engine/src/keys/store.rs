//! The keys of a pool that are loaded: wrapping keys by encryption root, opened keys by key object.
//!
//! Chapter 06, section 19. Invariant: opened keys of a root are forgotten together with its wrapping
//! key; a key enters the store only after it opened the root's own key object; opened keys are given
//! out only for the key object they were opened from, for its number may be another's by now.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use cenote_codec::cipher::{CipherError, SecretKey, unwrap};
use cenote_format::ObjectId;
use parking_lot::RwLock;

use super::{DatasetKeys, Wrapping};
use crate::dataset::{Catalog, Dataset, Directory, KeyObject, Keys};
use crate::pipe::Decryptor;
use crate::{Error, ErrorKind, Result};

/// Loaded keys of one pool.
#[derive(Default)]
pub struct KeyStore(RwLock<Loaded>);

#[derive(Default)]
struct Loaded {
    /// Wrapping keys by the directory of their encryption root.
    roots: HashMap<ObjectId, SecretKey>,
    /// Opened keys by key object.
    opened: HashMap<ObjectId, Opened>,
}

/// Opened keys of one key object.
struct Opened {
    /// Of the key object: it outlives changes of the user's key, and no other has it.
    guid: u64,
    /// Directory of their encryption root.
    root: ObjectId,
    keys: Arc<DatasetKeys>,
}

impl Opened {
    fn of(key: &KeyObject, keys: Arc<DatasetKeys>) -> Self {
        Self { guid: key.wrapped.guid, root: key.root, keys }
    }
}

/// Opens a key object.
pub fn open_keys(key: &KeyObject, wrapping: &SecretKey) -> Result<DatasetKeys> {
    let wrapped = &key.wrapped;
    match unwrap(wrapped, wrapping) {
        Ok(keys) => Ok(DatasetKeys::new(wrapped.suite, wrapped.version, keys)),
        Err(CipherError::Authentication) => {
            Err(Error::new(ErrorKind::WrongKey, "the key does not open the dataset's keys"))
        }
        Err(error) => Err(Error::corrupt(error.to_string()).at_object(0, key.id.0)),
    }
}

impl KeyStore {
    /// A store with no keys.
    pub fn new() -> Self {
        Self::default()
    }

    /// The key object of an encryption root, or why it is not one.
    fn root_key(catalog: &Catalog, directory: &Directory) -> Result<KeyObject> {
        let path = &directory.path;
        let key = catalog
            .key_object(directory)?
            .ok_or_else(|| Error::invalid(format!("'{path}' is not encrypted")))?;
        if key.root != directory.id {
            let root = catalog.directory_by_id(key.root)?.path;
            let reason = format!("'{path}' has no key of its own");
            return Err(Error::invalid(reason).with_advice(format!("load the key of '{root}'")));
        }
        Ok(key)
    }

    /// Checks that `material` is the key of the encryption root `directory`; loads nothing.
    pub fn check(&self, catalog: &Catalog, directory: &Directory, material: &[u8]) -> Result<()> {
        let key = Self::root_key(catalog, directory)?;
        let wrapping = key.wrapping_key(material)?;
        open_keys(&key, &wrapping).map(drop).map_err(|error| named(error, directory))
    }

    /// Loads the key of the encryption root `directory`.
    ///
    /// [`ErrorKind::WrongKey`] if it is not the key, [`ErrorKind::Exists`] if one is loaded.
    pub fn load(&self, catalog: &Catalog, directory: &Directory, material: &[u8]) -> Result<()> {
        let key = Self::root_key(catalog, directory)?;
        let already = || {
            let reason = format!("the key of '{}' is already loaded", directory.path);
            Err(Error::new(ErrorKind::Exists, reason))
        };
        if self.is_loaded(directory.id) {
            return already();
        }
        let wrapping = key.wrapping_key(material).map_err(|error| named(error, directory))?;
        let opened = open_keys(&key, &wrapping).map_err(|error| named(error, directory))?;
        let mut loaded = self.0.write();
        if loaded.roots.contains_key(&directory.id) {
            return already();
        }
        loaded.roots.insert(directory.id, wrapping);
        loaded.opened.insert(key.id, Opened::of(&key, Arc::new(opened)));
        Ok(())
    }

    /// Forgets the key of the encryption root `directory` and all keys opened with it.
    ///
    /// The caller makes sure that nothing below is in use.
    pub fn unload(&self, directory: &Directory) -> Result<()> {
        let mut loaded = self.0.write();
        if loaded.roots.remove(&directory.id).is_none() {
            let reason = format!("the key of '{}' is not loaded", directory.path);
            return Err(Error::new(ErrorKind::KeyNotLoaded, reason));
        }
        loaded.opened.retain(|_, opened| opened.root != directory.id);
        Ok(())
    }

    /// Forgets the user's key of an encryption root that may have another by now. What was opened with it stays open.
    pub fn forget_wrapping(&self, root: ObjectId) {
        self.0.write().roots.remove(&root);
    }

    /// The loaded user key of an encryption root, to wrap the keys of datasets below it; `None` if it
    /// is not loaded.
    pub fn wrapping(&self, root: &KeyObject) -> Option<Wrapping> {
        let key = self.0.read().roots.get(&root.root).cloned()?;
        Some(Wrapping::of(root, key))
    }

    /// Takes up the user key of an encryption root that was just made: `root` is its directory.
    pub fn adopt(&self, root: ObjectId, wrapping: &Wrapping) {
        self.0.write().roots.insert(root, wrapping.key.clone());
    }

    /// The user key of the key objects `objects` has changed: their root is now `root`, which opens
    /// with `wrapping`. Blocks go on being read and written with the keys opened before.
    pub fn changed(&self, objects: &[ObjectId], root: ObjectId, wrapping: &Wrapping) {
        let mut loaded = self.0.write();
        loaded.roots.insert(root, wrapping.key.clone());
        for object in objects {
            if let Some(opened) = loaded.opened.get_mut(object) {
                opened.root = root;
            }
        }
    }

    /// The key objects `objects` are under the encryption root `root` now; `ended` is none any more. What was opened
    /// stays so.
    pub fn given_root(&self, objects: &[ObjectId], root: ObjectId, ended: Option<ObjectId>) {
        let mut loaded = self.0.write();
        for object in objects {
            if let Some(opened) = loaded.opened.get_mut(object) {
                opened.root = root;
            }
        }
        if let Some(ended) = ended {
            loaded.roots.remove(&ended);
        }
    }

    /// The encryption root `from` has given its place to `to`: what was loaded of it stays so.
    pub fn root_moved(&self, from: ObjectId, to: ObjectId) {
        let mut loaded = self.0.write();
        let Some(key) = loaded.roots.remove(&from) else { return };
        loaded.roots.insert(to, key);
        for opened in loaded.opened.values_mut().filter(|opened| opened.root == from) {
            opened.root = to;
        }
    }

    /// The encryption roots whose keys are loaded now.
    pub fn loaded_roots(&self) -> LoadedRoots {
        LoadedRoots(self.0.read().roots.keys().copied().collect())
    }

    /// Forgets the user key of a directory that is gone or no encryption root any more, if it has one.
    pub fn forget_root(&self, directory: ObjectId) {
        self.0.write().roots.remove(&directory);
    }

    /// The opened keys of the dataset in `directory`; `None` if it is not encrypted or its key is
    /// not loaded.
    pub fn keys(
        &self,
        catalog: &Catalog,
        directory: &Directory,
    ) -> Result<Option<Arc<DatasetKeys>>> {
        let Some(key) = catalog.key_object(directory)? else { return Ok(None) };
        let wrapping = {
            let loaded = self.0.read();
            if let Some(opened) = loaded.opened.get(&key.id)
                && opened.guid == key.wrapped.guid
            {
                return Ok(Some(opened.keys.clone()));
            }
            match loaded.roots.get(&key.root) {
                Some(wrapping) => wrapping.clone(),
                None => return Ok(None),
            }
        };
        let keys = Arc::new(open_keys(&key, &wrapping).map_err(|error| named(error, directory))?);
        let mut loaded = self.0.write();
        // The root may have been unloaded in the meantime; then nothing is kept.
        if loaded.roots.contains_key(&key.root) {
            loaded.opened.insert(key.id, Opened::of(&key, keys.clone()));
        }
        Ok(Some(keys))
    }
}

/// The directories of the encryption roots whose keys were loaded at one moment. Opens nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadedRoots(BTreeSet<ObjectId>);

impl Keys for LoadedRoots {
    fn is_loaded(&self, root: ObjectId) -> bool {
        self.0.contains(&root)
    }

    fn decryptor(&self, _: &Catalog, _: &Dataset) -> Result<Option<Arc<dyn Decryptor>>> {
        Ok(None)
    }
}

fn named(error: Error, directory: &Directory) -> Error {
    error.at(|place| place.name = Some(directory.path.as_str().into()))
}

impl Keys for KeyStore {
    fn is_loaded(&self, root: ObjectId) -> bool {
        self.0.read().roots.contains_key(&root)
    }

    fn decryptor(
        &self,
        catalog: &Catalog,
        dataset: &Dataset,
    ) -> Result<Option<Arc<dyn Decryptor>>> {
        let keys = self.keys(catalog, &dataset.directory)?;
        Ok(keys.map(|keys| keys as Arc<dyn Decryptor>))
    }
}

#[cfg(test)]
mod tests {
    use cenote_codec::cipher::{Suite, WrappedKeys};
    use cenote_format::crypto_key::KeyFormat;

    use super::*;

    /// The key object of chapter 06's vector T7.
    fn vector() -> KeyObject {
        let bytes = |hex: &str| hex::decode(hex).unwrap();
        let mut master = [0; 32];
        master[..16].copy_from_slice(&bytes("72ad816b8702cb8249d9a26781dbf295"));
        let hmac = "f6d094bbc93f71ea5ae24529e12a4a884efc439f9149ccbc8c29c790ed669b6b\
                    020bd37f1dba871520e3897f084c38f2dfa23bb1d473374e034d64a21f3a5698";
        let wrapped = WrappedKeys {
            suite: Suite::from_id(3).unwrap(),
            guid: 12_691_905_618_607_966_835,
            version: 1,
            iv: bytes("ab327c5ffb111240aaa570d5").try_into().unwrap(),
            mac: bytes("8b93f8a9d232702a90c93f74bd4ec349").try_into().unwrap(),
            master,
            hmac: bytes(hmac).try_into().unwrap(),
        };
        let (id, root) = (ObjectId(1), ObjectId(2));
        let (references, format, salt, iterations) = (1, KeyFormat::Raw, 0, 0);
        KeyObject { id, references, root, wrapped, format, salt, iterations }
    }

    #[test]
    fn vector_t7_opens_with_its_key_only() {
        let key = vector();
        let material: Vec<u8> = (0..32).collect();
        let wrapping = key.wrapping_key(&material).unwrap();
        assert!(open_keys(&key, &wrapping).is_ok());
        let other = key.wrapping_key(&[0; 32]).unwrap();
        let error = open_keys(&key, &other).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::WrongKey);
        let mut damaged = key.clone();
        damaged.wrapped.hmac[63] ^= 1;
        assert!(open_keys(&damaged, &wrapping).is_err());
    }
}
