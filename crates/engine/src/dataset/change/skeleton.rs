//! What a new pool's meta object set holds before anything is stored in the pool.
//!
//! Chapter 06, sections 6 and 7. Invariant: everything a loader requires is there, whatever
//! features are enabled; objects are made in the order OpenZFS makes them.

use cenote_format::feature::{FEATURE_VERSION, LAST_LEGACY_VERSION};
use cenote_format::history::HistoryHeader;
use cenote_format::{ObjectId, ObjectType, blkptr};

use super::objects::{LARGE_BLOCK, SMALL_BLOCK};
use super::space::{FREE_DIRECTORY, MOS_DIRECTORY, ORIGIN_DIRECTORY};
use super::{MadeDataset, MosChange, OBJECT_DIRECTORY};
use crate::object::NewObject;
use crate::{Error, Result};

/// Block size of the configuration and of the list of deferred frees.
const MEDIUM_BLOCK: u64 = 16 << 10;
/// Compression id for "none": the list of deferred frees must not change its size.
const COMPRESSION_OFF: u8 = 2;
/// First version whose pools are made here: all that has deadlists.
const VERSION_MIN: u64 = 26;
/// Least and most bytes of the ring of the history.
const HISTORY_MIN: u64 = 128 << 10;
const HISTORY_MAX: u64 = 1 << 30;

/// Entry of the directory of objects: blocks of destroyed snapshots that wait to be freed.
pub const FREE_LIST: &str = "free_bpobj";
/// Entry of the directory of objects: frees put off to the next group.
pub const DEFERRED_LIST: &str = "sync_bplist";

/// What a new pool is to be.
#[derive(Clone, Copy, Debug)]
pub struct NewPool<'a> {
    /// Short names of the features to enable; their dependencies come with them.
    pub features: &'a [&'a str],
    /// Bytes of the normal class, for the length of the history.
    pub size: u64,
}

/// What was made for a new pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Skeleton {
    /// The root dataset; its object set is to be written.
    pub root: MadeDataset,
    /// The object for the configuration: claimed, empty.
    pub config: ObjectId,
    /// The list of deferred frees.
    pub deferred: ObjectId,
    /// The history.
    pub history: ObjectId,
}

impl MosChange<'_> {
    /// Fills the empty meta object set of a new pool. Configuration, devices' ZAPs and space maps
    /// are the pool's to add.
    pub fn create_pool_skeleton(&self, new: &NewPool<'_>) -> Result<Skeleton> {
        let known = self.version == FEATURE_VERSION
            || (VERSION_MIN..=LAST_LEGACY_VERSION).contains(&self.version);
        if !known {
            let reason = format!("pools of version {} cannot be made", self.version);
            return Err(Error::unsupported(reason));
        }
        let directory = NewObject::new(ObjectType::OBJECT_DIRECTORY, SMALL_BLOCK);
        self.mos.claim_object(self.tx, OBJECT_DIRECTORY, &directory)?;
        self.fill_table(OBJECT_DIRECTORY)?;

        let root = self.create_directory(None, "")?;
        for hidden in [MOS_DIRECTORY, FREE_DIRECTORY] {
            self.create_directory(Some(root), hidden)?;
        }
        let free = self.new_list(LARGE_BLOCK)?;
        self.add_number(OBJECT_DIRECTORY, FREE_LIST, free.0)?;
        let origin = self.create_directory(Some(root), ORIGIN_DIRECTORY)?;
        let empty = self.create_head(origin, None)?;
        self.take_snapshot(empty, ORIGIN_DIRECTORY)?;
        if self.version >= FEATURE_VERSION {
            self.create_feature_objects()?;
        }
        let dataset = self.create_head(root, Some(self.empty_snapshot()?))?;

        let history = self.create_history(new.size)?;
        let config = self.new_object(
            ObjectType::PACKED_NVLIST,
            MEDIUM_BLOCK,
            ObjectType::PACKED_NVLIST_SIZE,
            vec![0; 8],
        )?;
        self.add_number(OBJECT_DIRECTORY, "config", config.0)?;
        self.add_number(OBJECT_DIRECTORY, "creation_version", self.version)?;
        self.add_number(OBJECT_DIRECTORY, "deflate", 1)?;
        let deferred = self.new_list(MEDIUM_BLOCK)?;
        self.object(deferred)?.set_storage(self.tx, COMPRESSION_OFF, 0)?;
        self.add_number(OBJECT_DIRECTORY, DEFERRED_LIST, deferred.0)?;
        new.features.iter().try_for_each(|feature| self.enable_silently(feature))?;
        Ok(Skeleton { root: MadeDataset { directory: root, dataset }, config, deferred, history })
    }

    fn create_history(&self, size: u64) -> Result<ObjectId> {
        let ring = (size / 1000).clamp(HISTORY_MIN, HISTORY_MAX) / blkptr::SECTOR * blkptr::SECTOR;
        let header = HistoryHeader { physical_max: ring, ..HistoryHeader::default() };
        let bonus = header.encode();
        let history =
            self.new_object(ObjectType::HISTORY, LARGE_BLOCK, ObjectType::HISTORY_OFFSETS, bonus)?;
        self.add_number(OBJECT_DIRECTORY, "history", history.0)?;
        Ok(history)
    }
}
