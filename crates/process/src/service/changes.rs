//! The seam between orders that change a pool and the engine that makes the changes.
//!
//! Invariant: each method makes its whole change or none of it, and returns when what it changed
//! can be seen by whoever opens the catalog anew. Names are well-formed and exist (or do not) as
//! the method needs, as far as the caller could see; the engine checks again.

use std::sync::Arc;

use cenote_control::changes::{Grant, NewDataset};
use cenote_control::plan::{NewKey, PropertySetting, VdevPlan};
use cenote_control::report::UnreplayedLog;
use cenote_device::HostLock;
use cenote_engine::dataset::Dataset;
use cenote_engine::pool::Pool;
use cenote_engine::{Error, Result};
use cenote_format::{Guid, ObjectId};
use cenote_posix::Filesystem;
use cenote_posix::tree::Errno;

/// Files that can be mounted.
pub type Files = Arc<Filesystem>;

/// What a pool can be told to change.
pub trait PoolChanges: Send + Sync {
    /// Whether the pool can be changed at all; else why not (`pool is read-only`).
    fn refusal(&self) -> Option<String> {
        None
    }

    /// What keeps a pool from being written that was not to be opened for reading only.
    fn read_only_because(&self) -> Option<String> {
        None
    }

    /// Datasets whose intent log could not be replayed and is kept.
    fn unreplayed(&self) -> Vec<UnreplayedLog> {
        Vec::new()
    }

    /// Why blocks of destroyed datasets and snapshots stay in use.
    fn stuck_freeing(&self) -> Option<String> {
        None
    }

    /// The pool was opened, or keys were loaded: what waited for that is done.
    fn keys_loaded(&self) {}

    /// The newest transaction group on the disks: what is published is read again when it moves.
    /// `None`: it never does.
    fn synced_txg(&self) -> Option<u64> {
        None
    }

    /// Creates one filesystem or volume whose parent exists. `NewDataset::parents` and `mount` are
    /// the caller's affair.
    ///
    /// # Errors
    /// `Exists`, `NotFound` (parent), no space, `KeyNotLoaded`.
    fn create_dataset(&self, new: &NewDataset) -> Result<()> {
        not_yet(&format!("creating '{}'", new.name))
    }

    /// Destroys filesystems, volumes and snapshots in this order; none is mounted. `defer`:
    /// snapshots that are held or cloned are marked instead.
    ///
    /// # Errors
    /// `Busy` (held, cloned, has children), `NotFound`.
    fn destroy(&self, names: &[String], defer: bool) -> Result<()> {
        let _ = defer;
        not_yet(&format!("destroying '{}'", names.join("', '")))
    }

    /// Renames, all in one transaction group: either one filesystem or volume (with what is below
    /// it), or snapshots, each within its dataset.
    ///
    /// # Errors
    /// `Exists`, `NotFound`.
    fn rename(&self, pairs: &[(String, String)]) -> Result<()> {
        let from: Vec<&str> = pairs.iter().map(|(from, _)| from.as_str()).collect();
        not_yet(&format!("renaming '{}'", from.join("', '")))
    }

    /// Sets properties of a filesystem, volume or snapshot. A size of a quota or reservation is in
    /// bytes, zero for none; `filesystem_limit` and `snapshot_limit` are `u64::MAX` for none;
    /// `userquota@1000` and its like carry the number of the user, group or project; other names
    /// are as the property tables have them.
    ///
    /// # Errors
    /// No space (a reservation that does not fit), `InvalidArgument`.
    fn set_properties(&self, dataset: &str, properties: &[PropertySetting]) -> Result<()> {
        let _ = properties;
        not_yet(&format!("setting properties of '{dataset}'"))
    }

    /// Removes the local value of a property; `received`: the received one shows again, else it is
    /// hidden too.
    ///
    /// # Errors
    /// What the disks say.
    fn inherit(&self, dataset: &str, property: &str, received: bool) -> Result<()> {
        let _ = (property, received);
        not_yet(&format!("inheriting properties of '{dataset}'"))
    }

    /// Takes snapshots, all or none, in one transaction group.
    ///
    /// # Errors
    /// `Exists`, `NotFound`, no space.
    fn snapshot(&self, names: &[String], properties: &[PropertySetting]) -> Result<()> {
        let _ = properties;
        not_yet(&format!("taking '{}'", names.join("', '")))
    }

    /// Makes a filesystem or volume of a snapshot; its parent exists.
    ///
    /// # Errors
    /// `Exists`, `NotFound`, no space.
    fn clone_snapshot(&self, origin: &str, new: &NewDataset) -> Result<()> {
        let _ = origin;
        not_yet(&format!("creating '{}'", new.name))
    }

    /// Lets a clone and what it was cloned from change places.
    ///
    /// # Errors
    /// `InvalidArgument` (no clone), `Exists` (a snapshot of both has the same name).
    fn promote(&self, name: &str) -> Result<()> {
        not_yet(&format!("promoting '{name}'"))
    }

    /// Takes a filesystem, which is not mounted, or a volume back to its newest snapshot.
    ///
    /// # Errors
    /// `Exists` if there are newer snapshots or bookmarks, no space.
    fn rollback(&self, snapshot: &str) -> Result<()> {
        not_yet(&format!("going back to '{snapshot}'"))
    }

    /// Holds snapshots, all or none.
    ///
    /// # Errors
    /// `Exists`, `NotFound`.
    fn hold(&self, snapshots: &[String], tag: &str) -> Result<()> {
        let _ = tag;
        not_yet(&format!("holding '{}'", snapshots.join("', '")))
    }

    /// Releases holds, all or none.
    ///
    /// # Errors
    /// `NotFound`.
    fn release(&self, snapshots: &[String], tag: &str) -> Result<()> {
        let _ = tag;
        not_yet(&format!("releasing '{}'", snapshots.join("', '")))
    }

    /// Makes a bookmark of a snapshot or of another bookmark.
    ///
    /// # Errors
    /// `Exists`, `NotFound`, `InvalidArgument` (not of the same dataset).
    fn bookmark(&self, from: &str, to: &str) -> Result<()> {
        let _ = to;
        not_yet(&format!("bookmarking '{from}'"))
    }

    /// Gives permissions on a dataset.
    ///
    /// # Errors
    /// `NotFound`, `InvalidArgument`.
    fn allow(&self, dataset: &str, grants: &[Grant]) -> Result<()> {
        let _ = grants;
        not_yet(&format!("giving permissions on '{dataset}'"))
    }

    /// Takes permissions on datasets away, in one transaction group.
    ///
    /// # Errors
    /// `NotFound`, `InvalidArgument`.
    fn disallow(&self, datasets: &[String], grants: &[Grant]) -> Result<()> {
        let _ = grants;
        not_yet(&format!("taking permissions on '{}'", datasets.join("', '")))
    }

    /// How many files of a filesystem wait to be deleted; 0 if it is not mounted.
    ///
    /// # Errors
    /// What the disks say.
    fn delete_queue(&self, dataset: ObjectId) -> Result<u64> {
        let _ = dataset;
        Ok(0)
    }

    /// Gives an encryption root a new key, or makes a dataset one; `None`: takes over its parent's.
    ///
    /// # Errors
    /// `KeyNotLoaded`.
    fn change_key(&self, dataset: &str, key: Option<&NewKey>) -> Result<()> {
        let _ = key;
        not_yet(&format!("changing the key of '{dataset}'"))
    }

    /// Whether files that are open need the user key of the encryption root in directory `root`.
    ///
    /// # Errors
    /// What the disks say.
    fn is_key_in_use(&self, root: ObjectId) -> Result<bool> {
        let _ = root;
        Ok(false)
    }

    /// Sets a stored property of the pool.
    ///
    /// # Errors
    /// `InvalidArgument`.
    fn set_pool_property(&self, property: &PropertySetting) -> Result<()> {
        not_yet(&format!("setting '{}'", property.name))
    }

    /// Enables features by their short names, dependencies first; those enabled already stay so.
    ///
    /// # Errors
    /// What the disks say.
    fn enable_features(&self, names: &[String]) -> Result<()> {
        not_yet(&format!("enabling {}", names.join(", ")))
    }

    /// Adds top-level devices, cache devices and spares.
    ///
    /// # Errors
    /// What the disks say.
    fn add_vdevs(&self, plan: &[VdevPlan]) -> Result<()> {
        let _ = plan;
        not_yet("adding devices")
    }

    /// Takes the device of this guid out of the pool.
    ///
    /// # Errors
    /// `NotFound`, `Busy`, what the disks say.
    fn remove_vdev(&self, guid: Guid) -> Result<()> {
        let _ = guid;
        not_yet("removing devices")
    }

    /// Gives the pool a new guid, this one or a random one.
    ///
    /// # Errors
    /// `Io` if devices are not healthy; what the disks say.
    fn reguid(&self, guid: Option<Guid>) -> Result<()> {
        let _ = guid;
        not_yet("changing the guid of a pool")
    }

    /// Takes a checkpoint of the pool, or discards it.
    ///
    /// # Errors
    /// `Exists`, `NotFound`, `Busy`.
    fn checkpoint(&self, discard: bool) -> Result<()> {
        let _ = discard;
        not_yet("a checkpoint")
    }

    /// Whether writing is suspended because devices failed; true: changes of files are refused
    /// meanwhile, else they wait.
    fn suspended(&self) -> Option<bool> {
        None
    }

    /// After devices were forgiven: if writing is suspended, it is tried again now.
    fn cleared(&self) {}

    /// Stops writing a suspended pool, without what is not on the disks. The newest group that is.
    fn abandon(&self) -> u64 {
        0
    }

    /// Returns when everything done before is on the disks.
    ///
    /// # Errors
    /// What the disks say.
    fn sync(&self) -> Result<()> {
        not_yet("writing")
    }

    /// Writes what is dirty, marks the labels exported and stops. Nothing is mounted. Also called
    /// for pools that are only read.
    ///
    /// # Errors
    /// What the disks say; the pool stays as it is.
    fn export(&self) -> Result<()> {
        Ok(())
    }

    /// Marks the pool destroyed and stops. Nothing is mounted.
    ///
    /// # Errors
    /// What the disks say; the pool stays as it is.
    fn destroy_pool(&self) -> Result<()> {
        not_yet("destroying pools")
    }

    /// The files of `dataset`, to be mounted. `read_only`: nothing is to be changed for now, but
    /// may be after a remount.
    ///
    /// # Errors
    /// With the errno and the reason.
    fn open_files(
        &self,
        pool: &Arc<Pool>,
        dataset: &Dataset,
        read_only: bool,
    ) -> std::result::Result<Files, Errno> {
        let _ = read_only;
        cenote_posix::mount::open_in(pool, dataset).map(Arc::new)
    }

    /// The files of the dataset `name` are no longer mounted.
    ///
    /// # Errors
    /// What the disks say.
    fn closed_files(&self, name: &str) -> Result<()> {
        let _ = name;
        Ok(())
    }

    /// Adds a command line to the history.
    ///
    /// # Errors
    /// What the disks say.
    fn log_command(&self, line: &str) -> Result<()> {
        let _ = line;
        not_yet("writing the history")
    }
}

fn not_yet(what: &str) -> Result<()> {
    Err(Error::unsupported(format!("{what} is not supported yet")))
}

/// The changes of a pool that is only read.
#[derive(Debug, Default, Clone)]
pub struct ReadOnly {
    /// What keeps it from being written; `None` if it was to be read only.
    pub because: Option<String>,
    /// This machine's lock of the pool.
    pub _lock: Option<Arc<HostLock>>,
}

impl PoolChanges for ReadOnly {
    fn refusal(&self) -> Option<String> {
        Some(match &self.because {
            Some(because) => format!("pool is read-only: {because}"),
            None => "pool is read-only".to_owned(),
        })
    }

    fn read_only_because(&self) -> Option<String> {
        self.because.clone()
    }
}
