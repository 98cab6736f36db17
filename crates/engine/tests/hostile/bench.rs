//! A pool to be changed: finds where things lie, so that they can be patched.
//!
//! Invariant: what is patched is found through the pool as it was before the patch.

use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use cenote_engine::object::{Object, ObjectSet};
use cenote_engine::pool::Pool;
use cenote_engine::{Error, Result};
use cenote_format::dnode::{CORE, SLOT, SLOTS_PER_BLOCK};
use cenote_format::{BlockPointer, ObjectId, blkptr};

use crate::image::{self, DATA_START, Extent, FlatImage};
use crate::walk;

static BASE: LazyLock<FlatImage> = LazyLock::new(|| {
    image::load(include_bytes!("../../../../tests/fixtures/hostile/everything.zst")).remove(0)
});

/// An image, and the pool as it was.
pub struct Bench {
    /// What will be attacked.
    pub image: FlatImage,
    /// The pool before any change.
    pub pool: Arc<Pool>,
}

/// Opens the pool of an image.
pub fn open(image: FlatImage) -> Result<Arc<Pool>> {
    let candidates = image::discover(vec![image.device("/d0")]);
    let candidate = candidates.first().ok_or_else(|| Error::not_found("no pool"))?;
    walk::judge(candidate);
    Pool::open(candidate, &walk::options())
}

/// Runs `work`, which must not take longer than `seconds`.
pub fn soon<T>(seconds: u64, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let value = work();
    assert!(start.elapsed() < Duration::from_secs(seconds), "took {:?}", start.elapsed());
    value
}

impl Bench {
    /// The image before any change.
    pub fn base() -> FlatImage {
        BASE.clone()
    }

    /// The sound pool.
    pub fn new() -> Self {
        Self { image: Self::base(), pool: open(Self::base()).unwrap() }
    }

    /// The pool as it is now.
    pub fn attack(&self) -> Result<Arc<Pool>> {
        open(self.image.clone())
    }

    /// The extent a pointer leads to.
    pub fn extent(&self, bp: &BlockPointer) -> usize {
        let offset = DATA_START + bp.first_dva().unwrap().offset;
        self.image.extents.iter().position(|extent| extent.offset == offset).unwrap()
    }

    /// Extent and position of the dnode of object `id`.
    pub fn dnode(&self, set: &ObjectSet, id: u64) -> (usize, usize) {
        let bp = set.meta_object().pointer(0, id / SLOTS_PER_BLOCK).unwrap();
        (self.extent(&bp), (id % SLOTS_PER_BLOCK) as usize * SLOT)
    }

    /// Extent and position of the bonus of object `id`.
    pub fn bonus(&self, set: &ObjectSet, id: u64) -> (usize, usize) {
        let (extent, position) = self.dnode(set, id);
        let pointers = set.dnode(ObjectId(id)).unwrap().pointers.len();
        (extent, position + CORE + pointers * blkptr::SIZE)
    }

    /// Writes a word.
    pub fn word(&mut self, (extent, position): (usize, usize), value: u64) {
        self.image.patch(extent, position, &value.to_le_bytes());
    }

    /// Extent of a block of an object.
    pub fn block(&self, object: &Object, level: u8, id: u64) -> usize {
        self.extent(&object.pointer(level, id).unwrap())
    }

    /// Adds a block behind all others; gives a pointer to it like `like`, at `level`.
    pub fn add(&mut self, bytes: Vec<u8>, like: &BlockPointer, level: u8) -> BlockPointer {
        let last = self.image.extents.iter().filter(|e| e.kind < image::LABEL_CONFIG);
        let next = last.map(|e| e.offset + e.len as u64).max().unwrap();
        let len = bytes.len();
        let (kind, used) = (like.object_type().0, Arc::new(bytes));
        self.image.extents.push(Extent { offset: next, len, kind, level, used });
        self.image.extents.sort_by_key(|extent| extent.offset);
        let mut bp = *like;
        bp.words[..6].fill(0);
        bp.words[0] = (len as u64) >> 9;
        bp.words[1] = (next - DATA_START) >> 9;
        let sectors = (len as u64 >> 9) - 1;
        let kept = like.prop() & !(0xffff_ffff | 0x1f << 56);
        bp.words[6] = kept | sectors | sectors << 16 | u64::from(level) << 56;
        bp
    }
}
