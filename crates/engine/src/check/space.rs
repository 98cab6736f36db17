//! What the space maps say is allocated, against what was found in use.
//!
//! Chapter 03, sections 6 and 8 to 14. Invariant: a byte is marked in use only through a pointer
//! that was visited; ranges that lie outside their vdev are refused, so memory follows the size of
//! the devices.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use cenote_format::config::{VdevConfig, VdevKind};
use cenote_format::indirect_mapping::Mapping;
use cenote_format::space_map::Action;
use cenote_format::{ObjectId, Txg};
use parking_lot::Mutex;

use crate::alloc::CHECKPOINT_MAP;
use crate::alloc::geometry::{Geometry, bad, metaslab_count};
use crate::dataset::Table;
use crate::object::ObjectSet;
use crate::pool::removed::read_mapping;
use crate::pool::space_maps::{each_logged, each_segment, map_header, numbers, read_unflushed};
use crate::walk::SparseBits;
use crate::{Error, Result};

/// Longest chain of removed vdevs an address is followed through.
const REMOVALS_MAX: u32 = 32;

/// A run of bytes on a top-level vdev.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Extent {
    /// Top-level vdev.
    pub vdev: u32,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
}

/// How a range just marked stood before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Marked {
    /// Bytes that were in use already.
    pub(super) again: u64,
}

/// One concrete top-level vdev.
struct Vdev {
    id: u32,
    /// log2 of the allocation unit.
    shift: u32,
    size: u64,
    /// Metaslabs: shift of their size, alignment of their starts.
    metaslab_shift: u32,
    alignment: u64,
    /// Logs older than this are in the map already, by metaslab.
    unflushed: Vec<Txg>,
    /// What the metaslabs' headers sum up to, before the logs.
    flushed: i64,
    allocated: SparseBits,
    checkpoint: SparseBits,
    seen: Mutex<SparseBits>,
}

/// Allocation of a pool.
#[derive(Default)]
pub(super) struct Space {
    vdevs: BTreeMap<u32, Vdev>,
    mappings: HashMap<u32, Mapping>,
    /// Vdevs being removed: where they were copied to so far.
    copies: HashMap<u32, Mapping>,
    /// Bytes of those copies that are in use.
    copied: AtomicU64,
}

impl Space {
    /// Replays the space maps of the vdevs in `tree`. What cannot be read goes to `failed`.
    pub(super) fn load(
        mos: &ObjectSet,
        tree: &VdevConfig,
        directory: &Table,
        mut failed: impl FnMut(Error),
    ) -> Self {
        let mut space = Self::default();
        for (id, config) in (0_u32..).zip(tree.children()) {
            let loaded = if config.kind == VdevKind::Indirect {
                space.load_mapping(mos, id, config)
            } else if config.kind.is_concrete() && config.top.is_some() {
                Vdev::load(mos, id, config).and_then(|vdev| {
                    space.vdevs.insert(id, vdev);
                    space.load_mapping(mos, id, config)
                })
            } else {
                Ok(())
            };
            if let Err(error) = loaded {
                failed(error);
            }
        }
        if let Err(error) = space.replay_logs(mos, directory) {
            failed(error);
        }
        space
    }

    fn load_mapping(&mut self, mos: &ObjectSet, id: u32, config: &VdevConfig) -> Result<()> {
        let Some(indirect) = &config.indirect else { return Ok(()) };
        let mapping = read_mapping(mos, indirect.mapping)?;
        match config.kind {
            VdevKind::Indirect => self.mappings.insert(id, mapping),
            _ => self.copies.insert(id, mapping),
        };
        Ok(())
    }

    fn replay_logs(&mut self, mos: &ObjectSet, directory: &Table) -> Result<()> {
        each_logged(mos, directory, |entry| {
            let Some(vdev) = self.vdevs.get_mut(&entry.vdev) else { return Ok(()) };
            let metaslab = usize::try_from(entry.offset >> vdev.metaslab_shift).ok();
            let unflushed = metaslab.and_then(|index| vdev.unflushed.get(index));
            if unflushed.is_some_and(|unflushed| entry.is_newer(*unflushed)) {
                vdev.apply(entry.action, entry.offset, entry.length)?;
            }
            Ok(())
        })
    }

    /// Bytes allocated on all vdevs.
    pub(super) fn allocated(&self) -> u64 {
        self.vdevs.values().map(|vdev| vdev.bytes(vdev.allocated.len())).sum()
    }

    /// Bytes that only the checkpoint holds.
    pub(super) fn checkpoint(&self) -> u64 {
        self.vdevs.values().map(|vdev| vdev.bytes(vdev.checkpoint.len())).sum()
    }

    /// Bytes allocated by the metaslabs' own maps, by vdev, before the logs are replayed.
    pub(super) fn flushed(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        self.vdevs.values().map(|vdev| (vdev.id, u64::try_from(vdev.flushed).unwrap_or(0)))
    }

    /// Marks a range in use.
    pub(super) fn mark(&self, extent: Extent) -> Result<Marked> {
        self.mark_at(extent, 0)
    }

    fn mark_at(&self, extent: Extent, depth: u32) -> Result<Marked> {
        let Extent { vdev: id, offset, length } = extent;
        if let Some(vdev) = self.vdevs.get(&id) {
            let (first, count) = vdev.units(offset, length)?;
            let again = vdev.seen.lock().insert(first, count);
            self.mark_copy(extent)?;
            return Ok(Marked { again: vdev.bytes(again) });
        }
        let Some(mapping) = self.mappings.get(&id) else {
            return Err(Error::corrupt(format!("there is no top-level vdev {id}")));
        };
        if depth >= REMOVALS_MAX {
            return Err(Error::corrupt("removed vdevs refer to each other without end"));
        }
        let mut marked = Marked::default();
        for piece in mapping.lookup(offset, length)? {
            let extent = Extent { vdev: piece.vdev, offset: piece.offset, length: piece.length };
            marked.again = marked.again.saturating_add(self.mark_at(extent, depth + 1)?.again);
        }
        Ok(marked)
    }

    /// What was copied already of a vdev that is being removed is in use twice.
    fn mark_copy(&self, extent: Extent) -> Result<()> {
        let Extent { vdev, offset, length } = extent;
        let Some(mapping) = self.copies.get(&vdev) else { return Ok(()) };
        let copied = mapping.max_offset().saturating_sub(offset).min(length);
        if copied == 0 {
            return Ok(());
        }
        for piece in mapping.lookup(offset, copied)? {
            let Some(vdev) = self.vdevs.get(&piece.vdev) else {
                let id = piece.vdev;
                return Err(Error::corrupt(format!("there is no top-level vdev {id}")));
            };
            let (first, count) = vdev.units(piece.offset, piece.length)?;
            let again = vdev.bytes(vdev.seen.lock().insert(first, count));
            self.copied.fetch_add(piece.length.saturating_sub(again), Relaxed);
        }
        Ok(())
    }

    /// Bytes in use that were copied from a vdev that is being removed.
    pub(super) fn copied(&self) -> u64 {
        self.copied.load(Relaxed)
    }

    /// Allocated but not in use, in order.
    pub(super) fn leaked(&self, mut found: impl FnMut(Extent)) {
        for vdev in self.vdevs.values() {
            let mut held = vdev.seen.lock().clone();
            vdev.checkpoint.difference(&SparseBits::default(), |first, count| {
                held.insert(first, count);
            });
            vdev.allocated.difference(&held, |first, count| found(vdev.extent(first, count)));
        }
    }

    /// In use but not allocated, in order.
    pub(super) fn unallocated(&self, mut found: impl FnMut(Extent)) {
        for vdev in self.vdevs.values() {
            let seen = vdev.seen.lock();
            seen.difference(&vdev.allocated, |first, count| found(vdev.extent(first, count)));
        }
    }
}

impl Vdev {
    fn load(mos: &ObjectSet, id: u32, config: &VdevConfig) -> Result<Self> {
        let top = config.top.unwrap_or_default();
        let shift = u32::try_from(top.ashift).ok().filter(|shift| (9..=16).contains(shift));
        let shift = shift.ok_or_else(|| bad(id, "impossible ashift"))?;
        let (metaslab_shift, count) = metaslab_count(id, top.asize, top.metaslab_shift)?;
        let mut vdev = Self {
            id,
            shift,
            size: top.asize,
            metaslab_shift,
            alignment: Geometry::of(config, top.ashift)?.alignment.max(1),
            unflushed: vec![Txg(0); usize::try_from(count).unwrap_or(0)],
            flushed: 0,
            allocated: SparseBits::default(),
            checkpoint: SparseBits::default(),
            seen: Mutex::default(),
        };
        if top.metaslab_array.0 != 0 {
            vdev.load_metaslabs(mos, top.metaslab_array)?;
        }
        if let Some(zap) = Table::open(mos, config.top_zap.unwrap_or_default())? {
            vdev.load_zap(mos, &zap)?;
        }
        Ok(vdev)
    }

    fn load_metaslabs(&mut self, mos: &ObjectSet, array: ObjectId) -> Result<()> {
        let count = self.unflushed.len();
        for (index, id) in (0_u64..).zip(numbers(mos, array, count)?).filter(|(_, id)| *id != 0) {
            let id = ObjectId(id);
            let nominal = index << self.metaslab_shift;
            let start = nominal.next_multiple_of(self.alignment);
            let shift = self.shift as u8;
            self.flushed = self.flushed.saturating_add(map_header(mos, id)?.allocated);
            each_segment(mos, id, |segment| {
                let (offset, length) = segment.bytes(start, shift)?;
                let end = nominal.saturating_add(1 << self.metaslab_shift);
                if offset.saturating_add(length) > end {
                    return Err(Error::corrupt("a segment lies outside its metaslab"));
                }
                self.apply(segment.action, offset, length)
            })?;
        }
        Ok(())
    }

    fn load_zap(&mut self, mos: &ObjectSet, zap: &Table) -> Result<()> {
        read_unflushed(mos, zap, &mut self.unflushed)?;
        if let Some(id) = zap.number(CHECKPOINT_MAP)?.filter(|id| *id != 0) {
            let shift = self.shift as u8;
            each_segment(mos, ObjectId(id), |segment| {
                let (offset, length) = segment.bytes(0, shift)?;
                let (first, count) = self.units(offset, length)?;
                if segment.action == Action::Free {
                    self.checkpoint.insert(first, count);
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    fn apply(&mut self, action: Action, offset: u64, length: u64) -> Result<()> {
        let (first, count) = self.units(offset, length)?;
        let wrong = match action {
            Action::Allocate => self.allocated.insert(first, count),
            Action::Free => self.allocated.remove(first, count),
        };
        if wrong == 0 {
            return Ok(());
        }
        let what = if action == Action::Allocate { "allocated twice" } else { "freed twice" };
        Err(Error::corrupt(format!("{length} bytes at {}:{offset:#x} are {what}", self.id)))
    }

    /// First unit and number of units of a range of bytes, which must lie in the vdev.
    fn units(&self, offset: u64, length: u64) -> Result<(u64, u64)> {
        let outside = |what: &str| {
            let id = self.id;
            Error::corrupt(format!("{length} bytes at {id}:{offset:#x} {what}"))
        };
        let end = offset.checked_add(length).filter(|end| *end <= self.size);
        if end.is_none() || length == 0 {
            return Err(outside("lie outside the vdev"));
        }
        let mask = (1 << self.shift) - 1;
        if offset & mask != 0 || length & mask != 0 {
            return Err(outside("are not aligned to its sectors"));
        }
        Ok((offset >> self.shift, length >> self.shift))
    }

    fn bytes(&self, units: u64) -> u64 {
        units.saturating_mul(1 << self.shift)
    }

    fn extent(&self, first: u64, count: u64) -> Extent {
        Extent { vdev: self.id, offset: self.bytes(first), length: self.bytes(count) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space() -> Space {
        let vdev = Vdev {
            id: 0,
            shift: 12,
            size: 1 << 30,
            metaslab_shift: 24,
            alignment: 1,
            unflushed: vec![Txg(0); 64],
            flushed: 0,
            allocated: SparseBits::default(),
            checkpoint: SparseBits::default(),
            seen: Mutex::default(),
        };
        Space { vdevs: BTreeMap::from([(0, vdev)]), ..Space::default() }
    }

    fn extent(offset: u64, length: u64) -> Extent {
        Extent { vdev: 0, offset, length }
    }

    #[test]
    fn leaks_and_strays_are_told_apart() {
        let mut space = space();
        let vdev = space.vdevs.get_mut(&0).unwrap();
        vdev.apply(Action::Allocate, 0x10000, 0x20000).unwrap();
        vdev.apply(Action::Free, 0x14000, 0x1000).unwrap();
        assert!(vdev.apply(Action::Free, 0x14000, 0x1000).is_err());
        assert!(vdev.apply(Action::Allocate, 0x10000, 0x1000).is_err());
        vdev.checkpoint.insert(0x20, 1);
        assert_eq!(space.allocated(), 0x1f000);
        assert_eq!(space.mark(extent(0x10000, 0x4000)).unwrap().again, 0);
        assert_eq!(space.mark(extent(0x12000, 0x4000)).unwrap().again, 0x2000);
        let (mut leaked, mut stray) = (Vec::new(), Vec::new());
        space.leaked(|extent| leaked.push(extent));
        space.unallocated(|extent| stray.push(extent));
        assert_eq!(leaked, [extent(0x16000, 0xa000), extent(0x21000, 0xf000)]);
        assert_eq!(stray, [extent(0x14000, 0x1000)]);
    }

    #[test]
    fn removed_vdevs_lead_to_others() {
        use cenote_format::Dva;
        use cenote_format::indirect_mapping::MappingEntry;
        let mut space = space();
        let to = |vdev, offset, asize| Dva { vdev, offset, asize, gang: false };
        let entry = |source, destination| MappingEntry { source, destination };
        let first =
            vec![entry(0x1000, to(0, 0x50000, 0x1000)), entry(0x2000, to(2, 0x8000, 0x1000))];
        let second = vec![entry(0x8000, to(0, 0x70000, 0x1000))];
        space.mappings.insert(1, Mapping::new(first).unwrap());
        space.mappings.insert(2, Mapping::new(second).unwrap());
        space.mark(Extent { vdev: 1, offset: 0x1000, length: 0x2000 }).unwrap();
        let mut stray = Vec::new();
        space.unallocated(|extent| stray.push(extent));
        assert_eq!(stray, [extent(0x50000, 0x1000), extent(0x70000, 0x1000)]);
        let circle = vec![entry(0, to(3, 0, 0x1000))];
        space.mappings.insert(3, Mapping::new(circle).unwrap());
        assert!(space.mark(Extent { vdev: 3, offset: 0, length: 0x1000 }).is_err());
        assert!(space.mark(Extent { vdev: 9, offset: 0, length: 0x1000 }).is_err());
        for bad in [(1 << 30, 0x1000), (u64::MAX - 5, 10), (0x100, 0x1000), (0x1000, 0)] {
            assert!(space.mark(extent(bad.0, bad.1)).is_err(), "{bad:?}");
        }
    }
}
