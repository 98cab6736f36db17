//! Blocks that cannot be read, on purpose.
//!
//! Invariant: nothing is changed on the devices, and a block is only refused that somebody asked to be; without
//! any that costs one look at a flag.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use cenote_format::BlockPointer;
use parking_lot::Mutex;

use crate::vdev::ALWAYS;
use crate::{Error, ErrorKind};

/// How reading a block fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockFault {
    /// No device gives it.
    Io,
    /// Its bytes are not those that were written.
    Checksum,
    /// Its MAC does not fit.
    Decrypt,
    /// It cannot be decompressed.
    Decompress,
}

/// What is to fail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectFault {
    /// Number of the dataset (0: the meta object set).
    pub objset: u64,
    /// The object.
    pub object: u64,
    /// Level of the blocks.
    pub level: u8,
    /// The first block, and the one behind the last; all if there is none.
    pub blocks: Option<(u64, u64)>,
    /// How it fails.
    pub kind: BlockFault,
    /// The copies that fail, as bits by the order of their addresses; 0: whatever copies there are.
    pub copies: u8,
    /// How often, of [`ALWAYS`] times.
    pub chance: u32,
}

/// A fault that may happen.
#[derive(Debug, Clone)]
pub struct InjectedObject {
    /// Its number.
    pub id: u64,
    /// What was asked for.
    pub fault: ObjectFault,
    /// How often it happened.
    pub happened: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub struct FaultyBlocks {
    any: AtomicBool,
    all: Mutex<Faulty>,
    asked: AtomicU64,
}

#[derive(Debug, Default)]
struct Faulty {
    faults: Vec<InjectedObject>,
    /// The faults of blocks, by their first addresses.
    places: HashMap<(u32, u64), u64>,
}

impl FaultyBlocks {
    /// From now on these blocks fail as `fault` says.
    pub fn add(&self, id: u64, fault: ObjectFault, blocks: &[BlockPointer]) {
        let mut all = self.all.lock();
        let places = blocks.iter().filter_map(BlockPointer::first_dva);
        all.places.extend(places.map(|dva| ((dva.vdev, dva.offset), id)));
        all.faults.push(InjectedObject { id, fault, happened: 0 });
        self.any.store(true, Relaxed);
    }

    /// The faults that may happen.
    pub fn all(&self) -> Vec<InjectedObject> {
        self.all.lock().faults.clone()
    }

    /// The fault of this number, or all, happen no more; how many there were.
    pub fn forget(&self, id: Option<u64>) -> usize {
        let mut all = self.all.lock();
        let before = all.faults.len();
        let stays = |own: u64| id.is_some_and(|id| id != own);
        all.faults.retain(|fault| stays(fault.id));
        all.places.retain(|_, own| stays(*own));
        self.any.store(!all.faults.is_empty(), Relaxed);
        before - all.faults.len()
    }

    /// Why this block cannot be read now, from wherever.
    pub(super) fn failure(&self, bp: &BlockPointer) -> Option<Error> {
        self.happens(bp, |copies| copies == 0)
    }

    /// Why its copy of that number cannot be read now.
    pub(super) fn failure_of_copy(&self, bp: &BlockPointer, number: usize) -> Option<Error> {
        self.happens(bp, |copies| number < 8 && copies >> number & 1 == 1)
    }

    /// Whether some copies of this block fail, and others do not.
    pub(super) fn has_of_copies(&self, bp: &BlockPointer) -> bool {
        self.with_fault_of(bp, |fault| Some(fault.fault.copies)).is_some_and(|copies| copies != 0)
    }

    /// What `ask` makes of the fault of this block, if it has one.
    fn with_fault_of<T>(
        &self,
        bp: &BlockPointer,
        ask: impl FnOnce(&mut InjectedObject) -> Option<T>,
    ) -> Option<T> {
        if !self.any.load(Relaxed) {
            return None;
        }
        let dva = bp.first_dva()?;
        let mut all = self.all.lock();
        let id = *all.places.get(&(dva.vdev, dva.offset))?;
        all.faults.iter_mut().find(|fault| fault.id == id).and_then(ask)
    }

    fn happens(&self, bp: &BlockPointer, concerns: impl Fn(u8) -> bool) -> Option<Error> {
        self.with_fault_of(bp, |fault| match concerns(fault.fault.copies) {
            true => self.falls_to(fault),
            false => None,
        })
    }

    /// Why a read fails that `fault` concerns, if it is one of those by chance.
    fn falls_to(&self, fault: &mut InjectedObject) -> Option<Error> {
        // A number that follows from how often somebody asked (splitmix64).
        let mut z = self.asked.fetch_add(0x9e37_79b9_7f4a_7c15, Relaxed);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        if (z ^ (z >> 31)) % u64::from(ALWAYS) >= u64::from(fault.fault.chance) {
            return None;
        }
        fault.happened = fault.happened.saturating_add(1);
        let (kind, reason) = match fault.fault.kind {
            BlockFault::Io => (ErrorKind::Io, "cannot be read, on purpose"),
            BlockFault::Checksum => (ErrorKind::Checksum, "no copy is intact, on purpose"),
            BlockFault::Decrypt => (ErrorKind::Checksum, "authentication failed, on purpose"),
            BlockFault::Decompress => (ErrorKind::Checksum, "cannot be expanded, on purpose"),
        };
        let error = Error::new(kind, reason);
        Some(if fault.fault.kind == BlockFault::Decrypt { error.forged() } else { error })
    }
}
