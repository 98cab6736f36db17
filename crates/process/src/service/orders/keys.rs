//! `zfs load-key` and `zfs unload-key`.
//!
//! Invariant: a key that something mounted needs is not forgotten; what was decrypted with a key is forgotten
//! with it.

use std::cell::RefCell;
use std::sync::Arc;

use cenote_control::changes::LoadKeyRequest;
use cenote_control::peer::Peer;
use cenote_control::protocol::{Failure, FailureKind};
use cenote_control::report::DatasetReport;
use cenote_control::secret::Secret;
use cenote_engine::pool::Pool;
use cenote_engine::{Error, ErrorKind};

use super::{Doing, Order, Warnings};
use crate::service::datasets::{Datasets, Shown};
use crate::service::delegation::Need;
use crate::service::mounts::Place;
use crate::service::{Service, failure};

pub(super) struct LoadKey<'a> {
    request: &'a LoadKeyRequest,
    key: RefCell<Secret>,
}

impl<'a> LoadKey<'a> {
    pub(super) fn new(request: &'a LoadKeyRequest) -> Self {
        Self { request, key: RefCell::default() }
    }
}

impl Order for LoadKey<'_> {
    fn cannot(&self, _: &str) -> String {
        "Key load error".to_owned()
    }

    fn needs(&self, _: &Shown, _: &Peer) -> Option<Vec<Need>> {
        Some(vec![Need::new("load-key", &self.request.dataset)])
    }

    fn words(&self, error: &Error) -> Option<String> {
        let dataset = &self.request.dataset;
        Some(match error.kind() {
            ErrorKind::WrongKey => format!("Incorrect key provided for '{dataset}'."),
            ErrorKind::Exists => format!("Key already loaded for '{dataset}'."),
            ErrorKind::NotFound => return None,
            // Theirs first, for those who look for it.
            _ => format!("encryption failure ({error})"),
        })
    }

    fn suits_read_only(&self) -> bool {
        true
    }

    fn carry_out_suspended(&self, doing: &Doing<'_>) -> Result<Warnings, Failure> {
        doing.as_ever()
    }

    fn take(&self, doing: &Doing<'_>) -> Result<(), Failure> {
        let key = doing.key().map_err(|error| {
            let words = format!("Failed to read key material: {error}");
            doing.refuse(FailureKind::Other, &words)
        })?;
        self.key.replace(key);
        Ok(())
    }

    fn carry_out(&self, doing: &Doing<'_>) -> Result<Warnings, Failure> {
        let key = self.key.borrow();
        let (keys, catalog) = (doing.pool.keys(), doing.pool.catalog());
        let taken = catalog.directory(&self.request.dataset).and_then(|directory| {
            let take = |material: &[u8]| match self.request.check_only {
                true => keys.check(&catalog, &directory, material),
                false => keys.load(&catalog, &directory, material),
            };
            match (take(&key.0), key.0.strip_suffix(b"\r")) {
                // Earlier versions left out what files from elsewhere have at the ends of their lines.
                (Err(error), Some(shorter)) if error.kind() == ErrorKind::WrongKey => take(shorter),
                (taken, _) => taken,
            }
        });
        taken.map_err(|error| doing.refused(&error))?;
        doing.service.changes.keys_loaded();
        Ok(Vec::new())
    }
}

/// Of this encryption root.
pub(super) struct UnloadKey<'a>(pub(super) &'a str);

impl Order for UnloadKey<'_> {
    fn cannot(&self, _: &str) -> String {
        UNLOAD.to_owned()
    }

    fn needs(&self, _: &Shown, _: &Peer) -> Option<Vec<Need>> {
        Some(vec![Need::new("load-key", self.0)])
    }

    fn suits_read_only(&self) -> bool {
        true
    }

    fn carry_out_suspended(&self, doing: &Doing<'_>) -> Result<Warnings, Failure> {
        doing.as_ever()
    }

    fn carry_out(&self, doing: &Doing<'_>) -> Result<Warnings, Failure> {
        doing.service.drop_key(doing.pool, self.0)?;
        Ok(Vec::new())
    }
}

/// The start of every refusal to unload a key.
const UNLOAD: &str = "Key unload error";

impl Service {
    /// Forgets the key of an encryption root.
    fn drop_key(&self, pool: &Arc<Pool>, dataset: &str) -> Result<(), Failure> {
        self.refuse_key_in_use(pool, &self.shown()?, dataset)?;
        let directory = pool.catalog().directory(dataset).map_err(|error| failure(&error))?;
        pool.keys().unload(&directory).map_err(|error| {
            let words = match error.kind() {
                ErrorKind::KeyNotLoaded => format!("Key already unloaded for '{dataset}'."),
                _ => error.to_string(),
            };
            Failure::new(FailureKind::Other, format!("{UNLOAD}: {words}"))
        })?;
        // What was decrypted with the key is forgotten with it.
        pool.io().pipe.cache().purge_encrypted();
        Ok(())
    }

    /// Refuses to unload the key of the encryption root `root` if something mounted or open needs it.
    fn refuse_key_in_use(
        &self,
        pool: &Pool,
        all: &dyn Datasets,
        root: &str,
    ) -> Result<(), Failure> {
        let directory = pool.catalog().directory(root).map_err(|error| failure(&error))?;
        let is_open = self.changes.is_key_in_use(directory.id).map_err(|error| failure(&error))?;
        match is_open || self.needs_key(all, root) {
            true => Err(Failure::new(FailureKind::Busy, format!("{UNLOAD}: '{root}' is busy."))),
            false => Ok(()),
        }
    }

    /// Whether something that is mounted needs the key of the encryption root `root`.
    fn needs_key(&self, all: &dyn Datasets, root: &str) -> bool {
        self.mounts.names().iter().filter_map(|name| all.find(name)).any(|other| {
            other.properties.value("encryptionroot") == Some(root)
                && self.mounts.of(&other.name).is_some()
        })
    }

    /// Unloads the keys of the encryption roots that were mounted and are not any more. None of them
    /// if one is in use elsewhere (`goes_on`: all others, and a line for each that is), or not his to
    /// unload who gives the order.
    pub(super) fn unload_unmounted(
        &self,
        doing: &Doing<'_>,
        all: &dyn Datasets,
        before: &[Place],
        goes_on: bool,
    ) -> Result<Warnings, Failure> {
        let went = before.iter().filter(|place| self.mounts.of(&place.dataset).is_none());
        let is_loaded_root = |dataset: &DatasetReport| {
            dataset.properties.value("encryptionroot") == Some(dataset.name.as_str())
                && dataset.properties.value("keystatus") == Some("available")
        };
        let went = went.filter_map(|place| all.find(&place.dataset)).filter(is_loaded_root);
        let mut roots: Vec<String> = went.map(|dataset| dataset.name).collect();
        roots.sort();
        let needs: Vec<Need> = roots.iter().map(|root| Need::new("load-key", root)).collect();
        doing.check(&needs)?;
        let mut lines = Warnings::new();
        let mut may_stay = |done: Result<(), Failure>| match done {
            Err(failure) if goes_on => {
                lines.push(failure.message);
                Ok(false)
            }
            done => done.map(|()| true),
        };
        let mut free = Vec::new();
        for root in roots {
            if may_stay(self.refuse_key_in_use(doing.pool, all, &root))? {
                free.push(root);
            }
        }
        for root in free.iter().rev() {
            may_stay(self.drop_key(doing.pool, root))?;
        }
        Ok(lines)
    }
}
