//! The directories of a view that were opened lately: a large micro ZAP is indexed once, not at every
//! lookup.
//!
//! Invariant: whoever changes a directory closes it here first, so that nobody finds old entries.

use cenote_engine::object::Object;
use cenote_engine::zap::Zap;
use cenote_format::ObjectId;
use quick_cache::Weighter;
use quick_cache::sync::Cache;

use crate::tree::Result;

/// Bytes of open directories kept (their first block and its index).
const CACHE_BYTES: u64 = 32 << 20;

/// The directories of a view that were opened lately.
pub struct OpenDirectories {
    kept: Cache<u64, Zap<Object>, ByBlockSize>,
}

#[derive(Clone)]
struct ByBlockSize;

impl Weighter<u64, Zap<Object>> for ByBlockSize {
    fn weight(&self, _object: &u64, zap: &Zap<Object>) -> u64 {
        // The index of a micro ZAP takes less than half of its block.
        zap.source().block_size().saturating_mul(3) / 2 + 256
    }
}

impl Default for OpenDirectories {
    fn default() -> Self {
        Self { kept: Cache::with_weighter(1024, CACHE_BYTES, ByBlockSize) }
    }
}

impl OpenDirectories {
    /// The ZAP of a directory object.
    pub fn zap(&self, object: &Object) -> Result<Zap<Object>> {
        if let Some(zap) = self.kept.get(&object.id().0) {
            return Ok(zap);
        }
        let zap = Zap::open(object.clone())?;
        self.kept.insert(object.id().0, zap.clone());
        Ok(zap)
    }

    /// Forgets the open ZAP of a directory: it changes.
    pub fn close(&self, id: ObjectId) {
        self.kept.remove(&id.0);
    }
}
