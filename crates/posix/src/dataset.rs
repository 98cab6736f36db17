//! From a dataset of an open pool to the tree it is served as.
//!
//! Invariant: the properties are those of the dataset at the time it is opened; a pool that is only
//! read does not change them.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use cenote_engine::dataset::{Dataset, DatasetName, Listed, PropertyReader, Value};
use cenote_engine::object::ObjectSet;
use cenote_engine::pool::Pool;
use cenote_format::ObjectId;

use crate::control_directory::{Snapshot, SnapshotDirectory, SnapshotSource};
use crate::filesystem::{Filesystem, MountOptions};
use crate::tree::{Result, Space, Timestamp};
use crate::xattr::{AclType, XattrMode};

/// Unit of `statfs` in bytes.
const BLOCK: u32 = 512;

/// Opens the files of `dataset`, a filesystem or a snapshot of one.
pub fn open(pool: &Arc<Pool>, dataset: &Dataset) -> Result<Filesystem> {
    let objects = pool.catalog().object_set(dataset, &**pool.keys())?;
    let capacity = pool.space()?.capacity();
    let reader = PropertyReader::new(pool.catalog(), capacity, &**pool.keys(), "");
    let listed = Listed::Dataset(dataset.clone());
    let number = |name: &str| -> Result<Option<u64>> {
        Ok(reader.get(&listed, name)?.and_then(|property| match property.value {
            Value::Number(number) => Some(number),
            _ => None,
        }))
    };
    let xattr = match number("xattr")? {
        Some(0) => XattrMode::Off,
        Some(2) => XattrMode::SystemAttributes,
        _ => XattrMode::Directory,
    };
    let acl = match number("acltype")? {
        Some(1) => AclType::Posix,
        Some(2) => AclType::Nfs4,
        _ => AclType::Off,
    };
    let snapshot_directory = match number("snapdir")? {
        Some(1) => SnapshotDirectory::Visible,
        Some(2) => SnapshotDirectory::Disabled,
        _ => SnapshotDirectory::Hidden,
    };
    let features = pool.catalog().dataset_features(dataset)?;
    let available = number("available")?.unwrap_or(0);
    let referenced = dataset.phys.referenced_bytes;
    let files = objects.root_pointer().fill();
    let space = Space {
        block_size: BLOCK,
        blocks: (referenced.saturating_add(available)) / u64::from(BLOCK),
        free: available / u64::from(BLOCK),
        files: files.saturating_add(available / u64::from(BLOCK)),
        files_free: available / u64::from(BLOCK),
        name_max: 255,
    };
    let snapshots: Option<Box<dyn SnapshotSource>> = if dataset.is_snapshot() {
        None
    } else {
        Some(Box::new(PoolSnapshots { pool: pool.clone(), head: dataset.clone() }))
    };
    Filesystem::open(MountOptions {
        objects,
        xattr,
        acl,
        snapshot_directory,
        long_names: features.contains(&"org.zfsonlinux:longname"),
        read_only: true,
        mounted: now(),
        snapshots,
        space: Box::new(move || space),
    })
}

/// Opens the dataset or snapshot called `name`.
pub fn open_named(pool: &Arc<Pool>, name: &DatasetName) -> Result<Filesystem> {
    open(pool, &pool.catalog().dataset(name)?)
}

fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp {
        seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
        nanoseconds: since.subsec_nanos(),
    }
}

/// The snapshots of one head.
struct PoolSnapshots {
    pool: Arc<Pool>,
    head: Dataset,
}

impl SnapshotSource for PoolSnapshots {
    fn list(&self) -> cenote_engine::Result<Vec<Snapshot>> {
        let snapshots = self.pool.catalog().snapshots(&self.head)?;
        let named = |dataset: Dataset| {
            let name = dataset.name.to_string();
            let name = name.split_once('@').map_or("", |(_, name)| name).as_bytes().to_vec();
            Snapshot { name, id: dataset.id.0 }
        };
        Ok(snapshots.into_iter().map(named).collect())
    }

    fn open(&self, id: u64) -> cenote_engine::Result<ObjectSet> {
        let catalog = self.pool.catalog();
        let dataset = catalog.dataset_by_id(ObjectId(id))?;
        catalog.object_set(&dataset, &**self.pool.keys())
    }
}
