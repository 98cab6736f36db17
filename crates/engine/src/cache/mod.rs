//! The cache of decoded blocks, bounded by a number of bytes.
//!
//! Keyed by identity (first address and physical birth), so an overwritten block can never answer
//! for its successor. Invariant: the weight of all entries stays within the limit; a block being
//! loaded by one thread is waited for, not loaded twice.

use std::time::Duration;

use bytes::Bytes;
use cenote_format::BlockPointer;
use quick_cache::sync::{Cache, DefaultLifecycle, GuardResult, PlaceholderGuard};
use quick_cache::{OptionsBuilder, Weighter};

/// Fewest bytes a cache may hold.
const SMALLEST: u64 = 8 << 20;

/// Identity of a block: where its first copy lies and when it was written there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockKey {
    vdev: u32,
    encrypted: bool,
    offset: u64,
    birth: u64,
}

impl BlockKey {
    /// The identity of the block behind `bp`; none for holes and embedded blocks.
    pub fn of(bp: &BlockPointer) -> Option<Self> {
        let dva = bp.first_dva()?;
        Some(Self {
            vdev: dva.vdev,
            encrypted: bp.is_crypt(),
            offset: dva.offset,
            birth: bp.physical_birth().0,
        })
    }
}

/// Weight of an entry besides its bytes: key, handle, allocator.
const OVERHEAD: u64 = 160;

#[derive(Clone)]
struct ByBytes;

impl Weighter<BlockKey, Bytes> for ByBytes {
    fn weight(&self, _key: &BlockKey, value: &Bytes) -> u64 {
        value.len() as u64 + OVERHEAD
    }
}

type Hasher = std::hash::RandomState;
type Guard<'a> =
    PlaceholderGuard<'a, BlockKey, Bytes, ByBytes, Hasher, DefaultLifecycle<BlockKey, Bytes>>;

/// What a lookup found.
pub enum Found<'a> {
    /// The block.
    Block(Bytes),
    /// Nobody has it: the caller loads it and fills the slot.
    Load(Slot<'a>),
    /// Another thread is loading it.
    Loading,
}

/// The right to fill one entry. Dropped unfilled, the next thread loads.
pub struct Slot<'a>(Guard<'a>);

impl Slot<'_> {
    /// Stores the block and wakes whoever waits for it.
    pub fn fill(self, block: Bytes) {
        // An error means the entry was removed meanwhile (a purge): then it is not wanted.
        let _ = self.0.insert(block);
    }
}

/// Decoded blocks, shared by all of a pool's readers.
pub struct BlockCache {
    cache: Cache<BlockKey, Bytes, ByBytes, Hasher>,
}

impl BlockCache {
    /// A cache of at most `limit` bytes.
    pub fn new(limit: u64) -> Self {
        let estimated_items = usize::try_from(limit / (32 << 10)).unwrap_or(1 << 20).max(64);
        let options = OptionsBuilder::new()
            .estimated_items_capacity(estimated_items)
            .weight_capacity(limit.max(SMALLEST))
            .shards(8)
            .build();
        let cache = match options {
            Ok(options) => Cache::with_options(
                options,
                ByBytes,
                Hasher::default(),
                DefaultLifecycle::default(),
            ),
            Err(_) => Cache::with(
                estimated_items,
                limit.max(SMALLEST),
                ByBytes,
                Hasher::default(),
                DefaultLifecycle::default(),
            ),
        };
        Self { cache }
    }

    /// The block, if it is here.
    pub fn get(&self, key: &BlockKey) -> Option<Bytes> {
        self.cache.get(key)
    }

    /// The block, the right to load it, or the word that another thread is at it.
    /// Waits at most `patience` for another thread.
    pub fn find(&self, key: &BlockKey, patience: Duration) -> Found<'_> {
        match self.cache.get_value_or_guard(key, Some(patience)) {
            GuardResult::Value(block) => Found::Block(block),
            GuardResult::Guard(guard) => Found::Load(Slot(guard)),
            GuardResult::Timeout => Found::Loading,
        }
    }

    /// Stores a block that was just written, in place of what is known under its identity.
    pub fn put(&self, key: BlockKey, block: Bytes) {
        self.cache.insert(key, block);
    }

    /// Forgets one block.
    pub fn remove(&self, key: &BlockKey) {
        self.cache.remove(key);
    }

    /// Forgets every block of encrypted datasets: their keys were unloaded.
    pub fn purge_encrypted(&self) {
        self.cache.retain(|key, _| !key.encrypted);
    }

    /// Bytes held now.
    pub fn weight(&self) -> u64 {
        self.cache.weight()
    }

    /// Allows `limit` bytes from now on; what is over that goes at once.
    pub fn set_limit(&self, limit: u64) {
        self.cache.set_capacity(limit.max(SMALLEST));
    }

    /// Bytes allowed.
    pub fn limit(&self) -> u64 {
        self.cache.capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(offset: u64) -> BlockKey {
        BlockKey { vdev: 0, encrypted: offset % 2 == 1, offset, birth: 1 }
    }

    #[test]
    fn stays_within_its_limit() {
        let cache = BlockCache::new(8 << 20);
        for i in 0..1000 {
            if let Found::Load(slot) = cache.find(&key(i), Duration::ZERO) {
                slot.fill(Bytes::from(vec![0; 64 << 10]));
            }
            assert!(cache.weight() <= cache.limit());
        }
        assert!(cache.weight() > 4 << 20);
    }

    #[test]
    fn one_loads_the_other_waits() {
        let cache = BlockCache::new(8 << 20);
        let Found::Load(slot) = cache.find(&key(2), Duration::ZERO) else { panic!("not empty") };
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                assert!(matches!(cache.find(&key(2), Duration::ZERO), Found::Loading));
                matches!(cache.find(&key(2), Duration::from_secs(5)), Found::Block(b) if b == "x")
            });
            std::thread::sleep(Duration::from_millis(20));
            slot.fill(Bytes::from_static(b"x"));
            assert!(waiter.join().unwrap());
        });
        cache.find(&key(3), Duration::ZERO);
        if let Found::Load(slot) = cache.find(&key(3), Duration::ZERO) {
            slot.fill(Bytes::from_static(b"secret"));
        }
        cache.purge_encrypted();
        assert!(cache.get(&key(3)).is_none() && cache.get(&key(2)).is_some());
    }
}
