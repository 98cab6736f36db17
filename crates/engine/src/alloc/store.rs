//! What the allocator needs of the pool's metadata; implemented above, where objects are known.
//!
//! Chapter 03, sections 8 to 12. Invariant: every name and type the allocator puts on the disks is
//! spelled here once, for those above too that read it.

use cenote_format::{ObjectId, ObjectType};

use crate::Result;

/// Feature: space maps carry histograms; counts them.
pub const HISTOGRAM: &str = "com.delphix:spacemap_histogram";
/// Feature: entries of two words.
pub const TWO_WORDS: &str = "com.delphix:spacemap_v2";
/// Feature: changes of all metaslabs of a group in one log.
pub const LOGS: &str = "com.delphix:log_spacemap";

/// Feature: what became obsolete on removed vdevs is noted; counts the maps of it.
pub const OBSOLETE_COUNTS: &str = "com.delphix:obsolete_counts";

/// Entry of the object directory: ZAP of the logs.
pub(crate) const LOG_ZAP: &str = "com.delphix:log_spacemap_zap";
/// Entry of a removed vdev's ZAP: what is obsolete of it.
pub(super) const OBSOLETE_MAP: &str = "com.delphix:indirect_obsolete_sm";
/// Entry of a removed vdev's ZAP: what is obsolete of it was noted from the beginning.
pub const PRECISE: &str = "com.delphix:obsolete_counts_are_precise";
/// Entry of the object directory: the checkpointed uberblock.
pub const CHECKPOINT: &str = "com.delphix:zpool_checkpoint";
/// Entry of a top-level vdev's ZAP: object of the groups since which metaslabs are not flushed.
pub(crate) const UNFLUSHED: &str = "com.delphix:ms_unflushed_phys_txgs";
/// Entry of a top-level vdev's ZAP: what only the checkpoint holds.
pub(crate) const CHECKPOINT_MAP: &str = "com.delphix:pool_checkpoint_sm";

/// The object directory of any pool.
pub const DIRECTORY: ObjectId = ObjectId(1);

/// A plain object to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewSpaceObject {
    /// Type of its data.
    pub object_type: ObjectType,
    /// Bytes of a data block.
    pub block_size: u64,
    /// log2 of the bytes of an indirect block.
    pub indirect_shift: u8,
    /// Type of its bonus.
    pub bonus_type: ObjectType,
    /// The bonus; its length is that of the object's for good.
    pub bonus: Vec<u8>,
}

/// Reading metadata of the pool. Answers from threads that write blocks too, so it must not wait
/// for the writing of a group, and it sees what was changed a moment ago.
pub trait SpaceSource: Send + Sync {
    /// The bonus of an object.
    fn bonus(&self, object: ObjectId) -> Result<Vec<u8>>;
    /// Bytes of an object's data block.
    fn block_size(&self, object: ObjectId) -> Result<u64>;
    /// `bytes` bytes of an object from byte `offset` on; holes and what lies beyond read as zeros.
    fn read(&self, object: ObjectId, offset: u64, bytes: usize) -> Result<Vec<u8>>;
    /// The value of an entry that is one number.
    fn zap_number(&self, zap: ObjectId, name: &str) -> Result<Option<u64>>;
    /// The value of an entry that is an array of numbers.
    fn zap_words(&self, zap: ObjectId, name: &str) -> Result<Option<Vec<u64>>>;
    /// An entry of any shape is there.
    fn zap_has(&self, zap: ObjectId, name: &str) -> Result<bool>;
    /// Every entry of a ZAP whose values are numbers.
    fn zap_numbers(&self, zap: ObjectId) -> Result<Vec<(String, u64)>>;
    /// The feature of this guid is enabled, in use or not.
    fn feature_enabled(&self, guid: &str) -> bool;
}

/// Changing metadata of the pool, in the group being written and by its writer alone.
pub trait SpaceStore: SpaceSource {
    /// Makes an object without data.
    fn create(&mut self, new: &NewSpaceObject) -> Result<ObjectId>;
    /// Makes an empty ZAP of the pool's own metadata (type 196).
    fn create_zap(&mut self) -> Result<ObjectId>;
    /// Frees an object and its data.
    fn destroy(&mut self, object: ObjectId) -> Result<()>;
    /// Frees all data of an object.
    fn truncate(&mut self, object: ObjectId) -> Result<()>;
    /// Overwrites or appends bytes.
    fn write(&mut self, object: ObjectId, offset: u64, data: &[u8]) -> Result<()>;
    /// Replaces the bonus by one of the same length.
    fn set_bonus(&mut self, object: ObjectId, bonus: &[u8]) -> Result<()>;
    /// Adds or replaces an entry of one number.
    fn zap_set(&mut self, zap: ObjectId, name: &str, value: u64) -> Result<()>;
    /// Removes an entry.
    fn zap_remove(&mut self, zap: ObjectId, name: &str) -> Result<()>;
    /// Changes how often a feature is in use.
    fn feature_add(&mut self, guid: &str, change: i64) -> Result<()>;
}
