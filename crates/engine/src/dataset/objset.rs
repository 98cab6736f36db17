//! From a dataset to its object set, with its keys or without.
//!
//! Invariant: without keys nothing that is encrypted is read; what stands in the clear still is.

use std::sync::Arc;

use cenote_format::ObjectId;
use cenote_format::objset::ObjsetKind;
use cenote_format::property::Types;

use super::{Catalog, Dataset};
use crate::object::ObjectSet;
use crate::pipe::{Decryptor, ReadContext};
use crate::{Error, Result};

/// What a dataset holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DatasetKind {
    /// A filesystem.
    Filesystem,
    /// A volume.
    Volume,
}

impl DatasetKind {
    /// Which properties a head that holds this has.
    pub fn types(self) -> Types {
        match self {
            Self::Filesystem => Types::FILESYSTEM,
            Self::Volume => Types::VOLUME,
        }
    }
}

/// The loaded keys of a pool; declared here, implemented by the keys room.
pub trait Keys: Send + Sync {
    /// The key of the encryption root in directory `root` is loaded.
    fn is_loaded(&self, root: ObjectId) -> bool;
    /// What opens the blocks of an encrypted dataset; `None` when its key is not loaded or it is
    /// not encrypted.
    fn decryptor(&self, catalog: &Catalog, dataset: &Dataset)
    -> Result<Option<Arc<dyn Decryptor>>>;
}

/// No keys at all.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoKeys;

impl Keys for NoKeys {
    fn is_loaded(&self, _: ObjectId) -> bool {
        false
    }

    fn decryptor(&self, _: &Catalog, _: &Dataset) -> Result<Option<Arc<dyn Decryptor>>> {
        Ok(None)
    }
}

impl Catalog {
    /// The object set of a dataset, for reading its content.
    ///
    /// Encrypted content whose key is not loaded answers [`crate::ErrorKind::KeyNotLoaded`].
    pub fn object_set(&self, dataset: &Dataset, keys: &dyn Keys) -> Result<ObjectSet> {
        let decryptor = keys.decryptor(self, dataset)?;
        self.open_set(dataset, decryptor, false)
    }

    /// The object set of a dataset as it can be read without keys: dnodes are sealed, but their
    /// types, sizes and unencrypted data are readable.
    pub fn sealed_object_set(&self, dataset: &Dataset) -> Result<ObjectSet> {
        self.open_set(dataset, None, true)
    }

    fn open_set(
        &self,
        dataset: &Dataset,
        decryptor: Option<Arc<dyn Decryptor>>,
        sealed: bool,
    ) -> Result<ObjectSet> {
        let objset = dataset.id.0;
        let context = ReadContext { decryptor, objset, sealed, ..ReadContext::default() };
        let name: Arc<str> = dataset.name.to_string().into();
        ObjectSet::open_with(self.mos().io(), dataset.phys.pointer, context)
            .map_err(|error| error.at(|place| place.name = Some(name)))
    }

    /// What a dataset holds.
    pub fn kind(&self, dataset: &Dataset) -> Result<DatasetKind> {
        kind_of(&self.sealed_object_set(dataset)?, dataset)
    }

    /// Whether `dataset` holds neither files nor a volume, as those of OpenZFS's own tests do: it
    /// is kept as it is, and not shown.
    pub fn is_foreign(&self, dataset: &Dataset) -> Result<bool> {
        Ok(is_foreign(&self.sealed_object_set(dataset)?))
    }
}

/// Whether an object set holds neither files nor a volume.
pub(crate) fn is_foreign(set: &ObjectSet) -> bool {
    matches!(set.kind(), ObjsetKind::Meta | ObjsetKind::Other(_))
}

/// What the object set of `dataset` holds.
pub(super) fn kind_of(set: &ObjectSet, dataset: &Dataset) -> Result<DatasetKind> {
    match set.kind() {
        // A dataset whose first txg has not been written is a filesystem to be.
        ObjsetKind::Zfs | ObjsetKind::None => Ok(DatasetKind::Filesystem),
        ObjsetKind::Zvol => Ok(DatasetKind::Volume),
        other => {
            let reason = format!("'{}' is an object set of kind {}", dataset.name, other.raw());
            Err(Error::unsupported(reason).at_object(dataset.id.0, 0))
        }
    }
}
