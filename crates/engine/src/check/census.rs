//! Counting blocks: how many, how large, of which type and level.
//!
//! Invariant: the same sums as `zdb -b` for the same pool: every pointer visited counts once,
//! embedded ones apart from those that have an address.

use std::collections::BTreeMap;

use cenote_format::{BlockPointer, ObjectType};

/// What a block is counted as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BlockKind {
    /// An old-style object type.
    Type(u8),
    /// Freed, but not given back yet.
    Deferred,
    /// Extra copies of deduplicated blocks (no longer made).
    Ditto,
    /// A new-style object type.
    Other,
}

impl BlockKind {
    /// Old-style types there are.
    pub const TYPES: u8 = 54;

    /// The kind of a block in use.
    pub fn of(object_type: ObjectType) -> Self {
        if object_type.0 < Self::TYPES { Self::Type(object_type.0) } else { Self::Other }
    }

    /// Every kind, in the order of `zdb`'s table.
    pub fn all() -> impl Iterator<Item = Self> {
        let apart = [Self::Deferred, Self::Ditto, Self::Other];
        (0..Self::TYPES).map(Self::Type).chain(apart)
    }

    /// Name as `zdb` prints it.
    pub fn name(self) -> String {
        match self {
            Self::Type(number) => ObjectType(number).name(),
            Self::Deferred => "deferred free".to_owned(),
            Self::Ditto => "dedup ditto".to_owned(),
            Self::Other => "other".to_owned(),
        }
    }
}

/// Sums over some blocks; sizes in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Block pointers.
    pub count: u64,
    /// Logical size.
    pub logical: u64,
    /// Stored size.
    pub physical: u64,
    /// Allocated size, all copies.
    pub allocated: u64,
    /// Gang addresses.
    pub gangs: u64,
    /// Pointers with two copies on one top-level vdev.
    pub copies_on_one_vdev: u64,
}

impl Tally {
    fn add_pointer(&mut self, bp: &BlockPointer) {
        self.count += 1;
        self.logical = self.logical.saturating_add(bp.lsize());
        // Embedded data is stored in the pointer itself, which its parent accounts for.
        let stored = if bp.is_embedded() { 0 } else { bp.psize() };
        self.physical = self.physical.saturating_add(stored);
        self.allocated = self.allocated.saturating_add(allocated(bp));
        let mut vdevs: Vec<u32> = bp.dvas().map(|dva| dva.vdev).collect();
        self.gangs += bp.dvas().filter(|dva| dva.gang).count() as u64;
        let copies = vdevs.len();
        vdevs.sort_unstable();
        vdevs.dedup();
        self.copies_on_one_vdev += u64::from(vdevs.len() < copies);
    }

    fn add(&mut self, other: &Self) {
        self.count += other.count;
        self.logical = self.logical.saturating_add(other.logical);
        self.physical = self.physical.saturating_add(other.physical);
        self.allocated = self.allocated.saturating_add(other.allocated);
        self.gangs += other.gangs;
        self.copies_on_one_vdev += other.copies_on_one_vdev;
    }

    /// Nothing was counted.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
}

/// Bytes all copies of a block allocate.
pub fn allocated(bp: &BlockPointer) -> u64 {
    bp.dvas().fold(0, |sum: u64, dva| sum.saturating_add(dva.asize))
}

/// Blocks by the binary logarithm of a size.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SizeHistogram(pub BTreeMap<u32, (u64, u64)>);

impl SizeHistogram {
    fn add(&mut self, size: u64) {
        let slot = self.0.entry(size.checked_ilog2().unwrap_or(0)).or_default();
        *slot = (slot.0 + 1, slot.1.saturating_add(size));
    }

    fn merge(&mut self, other: &Self) {
        for (log, (count, bytes)) in &other.0 {
            let slot = self.0.entry(*log).or_default();
            *slot = (slot.0 + count, slot.1.saturating_add(*bytes));
        }
    }
}

/// Counts of a whole pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Census {
    tallies: BTreeMap<(BlockKind, u8), Tally>,
    /// Of embedded pointers: number by kind of payload and its length in bytes.
    pub embedded: BTreeMap<(u8, u64), u64>,
    /// By logical size.
    pub logical: SizeHistogram,
    /// By stored size.
    pub physical: SizeHistogram,
    /// By allocated size.
    pub allocated: SizeHistogram,
}

impl Census {
    /// Counts `bp`, neither hole nor redacted, as `kind`.
    pub fn count(&mut self, bp: &BlockPointer, kind: BlockKind) {
        self.tallies.entry((kind, bp.level().0)).or_default().add_pointer(bp);
        if bp.is_embedded() {
            let key = (embedded_type(bp), bp.psize());
            *self.embedded.entry(key).or_default() += 1;
            return;
        }
        self.logical.add(bp.lsize());
        self.physical.add(bp.psize());
        self.allocated.add(allocated(bp));
    }

    /// Adds the counts of another part of the pool.
    pub fn merge(&mut self, other: &Self) {
        for (key, tally) in &other.tallies {
            self.tallies.entry(*key).or_default().add(tally);
        }
        for (key, count) in &other.embedded {
            *self.embedded.entry(*key).or_default() += count;
        }
        self.logical.merge(&other.logical);
        self.physical.merge(&other.physical);
        self.allocated.merge(&other.allocated);
    }

    /// Everything.
    pub fn total(&self) -> Tally {
        self.sum(|_, _| true)
    }

    /// All levels of a kind.
    pub fn of_kind(&self, kind: BlockKind) -> Tally {
        self.sum(|counted, _| counted == kind)
    }

    /// All kinds of a level.
    pub fn of_level(&self, level: u8) -> Tally {
        self.sum(|_, counted| counted == level)
    }

    /// Metadata: what old-style types call so, and everything above level 0. Like `zdb`, without
    /// kinds and levels that consist of embedded pointers only.
    pub fn metadata(&self) -> Tally {
        self.sum(|kind, level| match kind {
            BlockKind::Type(number) => {
                let is_metadata = level > 0 || ObjectType(number).is_metadata();
                is_metadata && self.of(kind, level).allocated > 0
            }
            _ => false,
        })
    }

    /// One kind at one level.
    pub fn of(&self, kind: BlockKind, level: u8) -> Tally {
        self.tallies.get(&(kind, level)).copied().unwrap_or_default()
    }

    /// Embedded pointers of all kinds of payload.
    pub fn embedded_total(&self) -> u64 {
        self.embedded.values().sum()
    }

    fn sum(&self, wanted: impl Fn(BlockKind, u8) -> bool) -> Tally {
        let mut sum = Tally::default();
        for ((kind, level), tally) in &self.tallies {
            if wanted(*kind, *level) {
                sum.add(tally);
            }
        }
        sum
    }
}

fn embedded_type(bp: &BlockPointer) -> u8 {
    // Bits 40..48 of the properties word.
    (bp.prop() >> 40) as u8
}
