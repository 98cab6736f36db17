//! Opening the files of a dataset for writing, and replaying the intent logs of what is opened.
//!
//! Invariant: what a mounted filesystem shows besides its files (snapshots, free space) is that of
//! the newest transaction group on the disks.

use std::sync::Arc;

use cenote_engine::dataset::{Catalog, Dataset, Listed, PropertyReader, Value};
use cenote_engine::intent::{IntentLog, Replay};
use cenote_engine::pool::group::{LiveDataset, LivePool};
use cenote_engine::txg::{Purpose, Reservation};
use cenote_engine::{Error, ErrorKind, object::ObjectSet};
use cenote_format::ObjectId;

use crate::control_directory::{Snapshot, SnapshotSource};
use crate::error::{EACCES, ENOENT, EROFS};
use crate::filesystem::{Filesystem, MountOptions};
use crate::mount::{self, DatasetSnapshots};
use crate::tree::{Errno, Result, Space, Timestamp};
use crate::volume::{Volume, VolumeWriteOptions};
use crate::write::{
    AccessTimes, AclInherit, AclMode, ChangeLog, Durability, Intents, Promptness, SpaceCheck,
    WriteOptions, WriteProperties,
};

/// The properties of a dataset, as numbers and words.
struct Properties<'a> {
    reader: PropertyReader<'a>,
    listed: Listed,
}

impl Properties<'_> {
    fn number(&self, name: &str) -> Result<Option<u64>, Error> {
        Ok(self.reader.get(&self.listed, name)?.and_then(|property| match property.value {
            Value::Number(number) => Some(number),
            _ => None,
        }))
    }
}

/// How files of `dataset` are written, by its properties.
///
/// # Errors
/// If the properties cannot be read.
pub fn write_properties(live: &LivePool, dataset: &Dataset) -> Result<WriteProperties> {
    let catalog = live.pool().catalog();
    let reader = PropertyReader::new(&catalog, live.capacity(), live.pool().keys().as_ref(), "");
    let properties = Properties { reader, listed: Listed::Dataset(dataset.clone()) };
    let number = |name: &str, otherwise: u64| -> Result<u64> {
        Ok(properties.number(name)?.unwrap_or(otherwise))
    };
    let access_times = match (number("atime", 1)?, number("relatime", 0)?) {
        (0, _) => AccessTimes::Off,
        (_, 0) => AccessTimes::On,
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
        promptness: match number("sync", 0)? {
            1 => Promptness::Always,
            2 => Promptness::Disabled,
            _ => Promptness::Standard,
        },
        projects: live.feature_enabled("org.zfsonlinux:project_quota"),
        acl_mode: AclMode::from_number(number("aclmode", 0)?),
        acl_inherit: AclInherit::from_number(number("aclinherit", 4)?),
    })
}

/// Asks for room in a dataset.
struct Room {
    live: Arc<LivePool>,
    id: ObjectId,
}

impl SpaceCheck for Room {
    fn reserve(&self, blocks: u64, size: u64, purpose: Purpose) -> Result<Reservation> {
        Ok(self.live.reserve(self.id, blocks, size, purpose)?)
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

    fn open(&self, id: u64) -> cenote_engine::Result<ObjectSet> {
        self.now()?.open(id)
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
    let room = Arc::new(Room { live: live.clone(), id: dataset.id });
    let properties = write_properties(live, dataset)?;
    let record = u32::try_from(properties.record_size).unwrap_or(128 << 10);
    let space = {
        let (room, set) = (room.clone(), writable.set().clone());
        move || statfs(&room, &set, record)
    };
    let now = cenote_engine::environment::now();
    let mounted = Timestamp {
        seconds: i64::try_from(now.as_secs()).unwrap_or(i64::MAX),
        nanoseconds: now.subsec_nanos(),
    };
    let settings = mount::settings(&catalog, dataset, pool.keys().as_ref(), live.capacity())?;
    let records = live.feature_enabled("org.openzfs:zilsaxattr");
    let intents = writable.log().map(|log| Intents::new(log.clone(), records));
    let write = WriteOptions {
        gate: live.gate().clone(),
        properties,
        durability: intents.clone().map(|intents| intents as Arc<dyn Durability>),
        log: intents.map(|intents| intents as Arc<dyn ChangeLog>),
        space: Some(room),
        cloning: Some(cloning(live, dataset.id)),
    };
    let files = |write: Option<WriteOptions>| {
        let opened = Filesystem::open(MountOptions {
            objects: writable.set().clone(),
            xattr: settings.xattr,
            acl: settings.acl,
            snapshot_directory: settings.snapshot_directory,
            long_names: settings.long_names,
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

/// Whether files of the head `id` may share blocks, asked anew for each copy: features are enabled, and
/// datasets become clones, under a mount.
fn cloning(live: &Arc<LivePool>, id: ObjectId) -> Box<dyn Fn() -> bool + Send + Sync> {
    let live = live.clone();
    Box::new(move || {
        let head = live.pool().catalog().dataset_by_id(id);
        head.is_ok_and(|head| live.may_clone_blocks(&head))
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

fn statfs(room: &Room, set: &ObjectSet, record: u32) -> Space {
    let Some(allowance) = room.live.allowance(room.id) else { return Space::default() };
    let available = allowance.available(&room.live.capacity(), 0);
    mount::space(allowance.referenced, available, set.committed_root().fill(), record)
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
