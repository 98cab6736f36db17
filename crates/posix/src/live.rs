//! Opening the files of a dataset for writing, and replaying the intent logs of what is opened.
//!
//! Invariant: what a mounted filesystem shows besides its files (snapshots, free space) is that of
//! the newest transaction group on the disks.

use std::sync::Arc;

use cenote_engine::dataset::{Catalog, Dataset};
use cenote_engine::intent::{IntentLog, Replay};
use cenote_engine::pool::group::{LiveDataset, LivePool};
use cenote_engine::txg::{Purpose, Reservation};
use cenote_engine::{Error, ErrorKind, object::ObjectSet};
use cenote_format::ObjectId;

use crate::control_directory::{Snapshot, SnapshotIdentity, SnapshotSource};
use crate::dataset_files::{self, DatasetProperties, DatasetSnapshots};
use crate::error::{EACCES, ENOENT, EROFS};
use crate::filesystem::{Filesystem, FilesystemOptions};
use crate::tree::{Errno, Result, Space, Timestamp};
use crate::volume::{Volume, VolumeWriteOptions};
use crate::write::{
    AccessTimes, AclInherit, AclMode, ChangeLog, Cloning, Durability, Intents, SpaceCheck,
    SyncMode, WriteOptions, WriteProperties,
};

/// Feature: logs hold records of extended attributes.
const XATTR_RECORDS: &str = "org.openzfs:zilsaxattr";

/// How files of `dataset` are written, by its properties.
///
/// # Errors
/// If the properties cannot be read.
pub fn write_properties(live: &LivePool, dataset: &Dataset) -> Result<WriteProperties> {
    let catalog = live.pool().catalog();
    let keys = live.pool().keys().as_ref();
    let properties = DatasetProperties::new(&catalog, dataset, keys, live.capacity());
    let number = |name, otherwise| properties.number(name, otherwise);
    let access_times = match (number("atime", 1)?, number("relatime", 0)?) {
        (0, _) => AccessTimes::Never,
        (_, 0) => AccessTimes::Always,
        _ => AccessTimes::Relative,
    };
    let slots = match number("dnodesize", 0)? {
        0 => 1,
        1 => 2,
        bytes => u8::try_from(bytes / 512).unwrap_or(1).clamp(1, 32),
    };
    Ok(WriteProperties {
        record_size: number("recordsize", 128 << 10)?,
        slots,
        access_times,
        sync_mode: match number("sync", 0)? {
            1 => SyncMode::Always,
            2 => SyncMode::Disabled,
            _ => SyncMode::Standard,
        },
        projects: live.feature_enabled("org.zfsonlinux:project_quota"),
        acl_mode: AclMode::from_number(number("aclmode", 0)?),
        acl_inherit: AclInherit::from_number(number("aclinherit", 4)?),
    })
}

/// Whether what files of `dataset` hold may be kept in memory.
///
/// # Errors
/// If the properties cannot be read.
pub fn keeps_data(live: &LivePool, dataset: &Dataset) -> Result<bool> {
    let catalog = live.pool().catalog();
    let keys = live.pool().keys().as_ref();
    Ok(DatasetProperties::new(&catalog, dataset, keys, live.capacity()).keeps_data()?)
}

/// The space of one dataset, of which changes of its files reserve a part.
struct DatasetSpace {
    live: Arc<LivePool>,
    id: ObjectId,
}

impl SpaceCheck for DatasetSpace {
    fn reserve(&self, blocks: u64, size: u64, purpose: Purpose) -> Result<Reservation> {
        Ok(self.live.reserve(self.id, blocks, size, purpose)?)
    }

    fn reserve_at_once(&self, blocks: u64, size: u64, purpose: Purpose) -> Option<Reservation> {
        self.live.reserve_at_once(self.id, blocks, size, purpose)
    }

    fn most_frees(&self) -> u64 {
        self.live.most_frees()
    }

    fn admit_frees(&self, blocks: u64) -> Result<()> {
        Ok(self.live.admit_frees(blocks)?)
    }
}

/// The snapshots of a head, as of now.
struct LiveSnapshots {
    live: Arc<LivePool>,
    id: ObjectId,
}

impl LiveSnapshots {
    fn now(&self) -> cenote_engine::Result<DatasetSnapshots> {
        let catalog = self.live.pool().catalog();
        let head = catalog.dataset_by_id(self.id)?;
        Ok(DatasetSnapshots::new(catalog, head, self.live.pool().keys().clone()))
    }
}

impl SnapshotSource for LiveSnapshots {
    fn list(&self) -> cenote_engine::Result<Vec<Snapshot>> {
        self.now()?.list()
    }

    fn find(&self, name: &[u8]) -> cenote_engine::Result<Option<Snapshot>> {
        self.now()?.find(name)
    }

    fn open(&self, snapshot: SnapshotIdentity) -> cenote_engine::Result<ObjectSet> {
        self.now()?.open(snapshot)
    }

    fn is_there(&self, snapshot: SnapshotIdentity) -> cenote_engine::Result<bool> {
        self.now()?.is_there(snapshot)
    }

    /// The transaction group that is shown.
    fn state(&self) -> u64 {
        self.live.pool().uberblock().txg.0
    }

    fn head_name(&self) -> cenote_engine::Result<String> {
        Ok(self.live.pool().catalog().dataset_by_id(self.id)?.name.to_string())
    }
}

/// Opens the files of the head `dataset` for writing. `read_only`: nothing is to be changed for
/// now, as its mount says; what the intent log holds is still done. If that fails, the log is kept,
/// the files can only be read, and [`LivePool::unreplayed`] says why.
///
/// # Errors
/// EROFS for a snapshot, EACCES without its key, and what the disks say.
pub fn open(live: &Arc<LivePool>, dataset: &Dataset, read_only: bool) -> Result<Arc<Filesystem>> {
    if dataset.is_snapshot() {
        return Err(Errno::new(EROFS, format!("'{}' is a snapshot", dataset.name)));
    }
    let writable = live.open_dataset(dataset)?;
    let pool = live.pool();
    let catalog = pool.catalog();
    let dataset_space = Arc::new(DatasetSpace { live: live.clone(), id: dataset.id });
    let properties = write_properties(live, dataset)?;
    let record = u32::try_from(properties.record_size).unwrap_or(128 << 10);
    let space = {
        let (dataset_space, set) = (dataset_space.clone(), writable.set().clone());
        move || statfs(&dataset_space, &set, record)
    };
    let mounted = Timestamp::now();
    let keys = pool.keys().as_ref();
    let settings = DatasetProperties::new(&catalog, dataset, keys, live.capacity()).settings()?;
    let records = live.feature_enabled(XATTR_RECORDS);
    if let Some(log) = writable.log()
        && catalog.dataset_features(dataset)?.contains(&XATTR_RECORDS)
    {
        log.set_xattr_records();
    }
    let intents = writable.log().map(|log| Intents::new(log.clone(), records));
    let write = WriteOptions {
        gate: live.gate().clone(),
        properties,
        durability: intents.clone().map(|intents| intents as Arc<dyn Durability>),
        log: intents.map(|intents| intents as Arc<dyn ChangeLog>),
        space: Some(dataset_space),
        cloning: Some(cloning(live, dataset.id)),
    };
    let files = |write: Option<WriteOptions>| {
        let opened = Filesystem::open(FilesystemOptions {
            objects: writable.set().clone(),
            xattr: settings.xattr,
            acl: settings.acl,
            snapshot_directory: settings.snapshot_directory,
            long_names: settings.long_names,
            keeps_data: settings.keeps_data,
            read_only: write.is_none(),
            write,
            mounted,
            snapshots: Some(Box::new(LiveSnapshots { live: live.clone(), id: dataset.id })),
            space: Box::new(space.clone()),
        });
        opened.map(Arc::new)
    };
    let filesystem = files(Some(write))?;
    let replaying = |now| {
        filesystem.writer().into_iter().for_each(|writer| writer.set_replaying(now));
    };
    let left = match writable.log() {
        Some(log) => {
            replaying(true);
            replay(live, &writable, log, filesystem.as_ref(), dataset)?
        }
        None => None,
    };
    replaying(false);
    if left.is_some() {
        // What the log still holds must not meet files that were changed since.
        drop(filesystem);
        return files(None);
    }
    if let Some(writer) = filesystem.writer().filter(|_| !read_only) {
        writer.drain()?;
    }
    Ok(filesystem)
}

/// Which blocks files of the head `id` may share, asked anew for each copy: features are enabled, and
/// datasets become clones, under a mount. What a damaged table cannot count is copied.
fn cloning(live: &Arc<LivePool>, id: ObjectId) -> Cloning {
    let live = live.clone();
    Box::new(move |blocks| {
        let head = live.pool().catalog().dataset_by_id(id).ok()?;
        live.may_clone_blocks(&head).then(|| live.countable_clones(blocks))
    })
}

/// Does again what the intent logs of the volumes hold whose keys are loaded: nobody opens a volume
/// for writing before somebody may look at it. A volume whose log cannot be replayed keeps it, and
/// has its turn again at the next call.
pub fn replay_volumes(live: &Arc<LivePool>) {
    let mut waiting = std::mem::take(&mut *live.logged_volumes().lock());
    waiting.retain(|id| match replay_volume(live, *id) {
        Err(error) if error.code == EACCES => {
            tracing::info!(dataset = id.0, "its intent log waits for its key");
            true
        }
        // It was destroyed meanwhile.
        Err(error) if error.code == ENOENT => false,
        Err(error) => {
            tracing::warn!(dataset = id.0, %error, "intent log not replayed");
            true
        }
        Ok(()) => false,
    });
    live.logged_volumes().lock().extend(waiting);
}

fn replay_volume(live: &Arc<LivePool>, id: ObjectId) -> Result<()> {
    let dataset = live.pool().catalog().dataset_by_id(id)?;
    let writable = live.open_dataset(&dataset)?;
    let Some(log) = writable.log() else { return Ok(()) };
    let intents: Arc<dyn ChangeLog> = Intents::new(log.clone(), false);
    let options = VolumeWriteOptions {
        gate: live.gate().clone(),
        durability: None,
        log: Some(intents),
        space: None,
    };
    let volume = Volume::open_writable(writable.set(), options)?;
    let failure = replay(live, &writable, log, &volume, &dataset)?;
    drop((volume, writable));
    live.close_dataset(id)?;
    failure.map_or(Ok(()), |error| Err(error.into()))
}

/// Does again what the intent log holds; if that fails, the log is kept, and the answer is why.
fn replay(
    live: &LivePool,
    writable: &LiveDataset,
    log: &Arc<IntentLog>,
    target: &dyn Replay,
    dataset: &Dataset,
) -> Result<Option<Error>> {
    let reader = writable.log_reader();
    let replayed = log.replay(&reader, target)?;
    let (applied, skipped) = (replayed.applied, replayed.skipped);
    if applied + skipped > 0 {
        tracing::info!(dataset = %dataset.name, applied, skipped, "intent log replayed");
    }
    let kept = match replayed.failure {
        Some(error) if reader.accepts_losses => {
            tracing::warn!(dataset = %dataset.name, %error, "the rest of the intent log is lost");
            None
        }
        Some(error) => {
            tracing::error!(dataset = %dataset.name, %error, "the intent log is not replayed, and kept");
            Some(error)
        }
        None => None,
    };
    live.set_unreplayed(dataset.id, kept.clone());
    Ok(kept)
}

fn statfs(space: &DatasetSpace, set: &ObjectSet, record: u32) -> Space {
    let Some(allowance) = space.live.allowance(space.id) else { return Space::default() };
    let available = allowance.available(&space.live.capacity(), 0);
    dataset_files::space(allowance.referenced, available, set.committed_root().fill(), record)
}

/// The dataset called `name` in the newest group on the disks.
///
/// # Errors
/// ENOENT if there is none.
pub fn find(catalog: &Catalog, name: &str) -> Result<Dataset> {
    catalog.dataset_named(name).map_err(|error| match error.kind() {
        ErrorKind::NotFound => Errno::new(ENOENT, error.to_string()),
        _ => error.into(),
    })
}
