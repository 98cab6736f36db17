//! Space of the pool's devices: size, allocated bytes, fragmentation, by top-level vdev.
//!
//! Chapter 03, sections 1 and 8 to 11. Of a pool that is only read, sums space-map headers and
//! replays the logs that are not in the maps yet; of one that is written, the allocator knows. Invariant: sums never wrap, and what claims more than its device has counts as
//! full.

use cenote_format::config::VdevConfig;
use cenote_format::space_map::Action;
use cenote_format::{ObjectId, Txg, brt, ddt};

use super::space_maps::{each_logged, map_header, numbers, read_unflushed};
use crate::alloc::geometry::{EMBEDDED_LOG_ABOVE, Geometry, metaslab_count};
use crate::alloc::histogram::fragmentation_percent;
use crate::alloc::{CHECKPOINT, CHECKPOINT_MAP, Figures, Logged, TopFigures};
use crate::dataset::{Catalog, PoolCapacity, Table, dedup_log};
use crate::object::ObjectSet;
use crate::vdev::AllocationClass;
use crate::zap::Zap;
use crate::{Error, ErrorKind, Result};

/// What a top-level vdev is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Everything.
    Normal,
    /// The intent log.
    Log,
    /// Metadata and small blocks.
    Special,
    /// Dedup tables.
    Dedup,
}

/// Space of a top-level vdev.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopSpace {
    /// Its id.
    pub id: u32,
    /// What it is for.
    pub class: Class,
    /// Bytes in its metaslabs.
    pub size: u64,
    /// Of these, allocated.
    pub allocated: u64,
    /// Percent; `None` if the pool does not keep the histograms.
    pub fragmentation: Option<u64>,
    /// 512ths of an allocated size that datasets are charged.
    pub deflate_ratio: u64,
    /// Bytes of the metaslab set aside for the intent log.
    pub embedded_log: u64,
    /// Bytes held only by the checkpoint.
    pub checkpoint: u64,
    /// Nothing new goes there.
    pub passive: bool,
    /// Bytes of memory its mapping takes if it is removed, about, where that is known.
    pub mapping_estimate: Option<u64>,
}

impl TopSpace {
    fn deflated(&self, bytes: u64) -> u64 {
        (bytes >> 9).saturating_mul(self.deflate_ratio)
    }
}

/// Space of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolSpace {
    /// By top-level vdev that holds data.
    pub tops: Vec<TopSpace>,
    /// What dedup saves.
    pub dedup: ddt::Statistics,
    /// The dedup tables.
    pub dedup_tables: DedupTables,
    /// Allocated bytes of cloned blocks.
    pub clone_used: u64,
    /// Allocated bytes that cloning saves.
    pub clone_saved: u64,
    /// Bytes held only by the checkpoint, or left of one that is discarded; `None` without.
    pub checkpoint: Option<u64>,
}

/// The dedup tables of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DedupTables {
    /// Entries.
    pub entries: u64,
    /// Bytes they take on disk.
    pub disk_bytes: u64,
    /// Bytes of their blocks, as they are read.
    pub memory_bytes: u64,
    /// Row `n`: blocks with 2^n references up to twice as many.
    pub histogram: Vec<ddt::Statistics>,
}

/// `part` of `whole`, in percent; 0 of nothing.
fn percent(part: u64, whole: u64) -> u64 {
    let hundredfold = u128::from(part) * 100;
    u64::try_from(hundredfold.checked_div(whole.into()).unwrap_or(0)).unwrap_or(u64::MAX)
}

impl PoolSpace {
    /// Reads the space of a pool whose vdevs are `tree`.
    pub fn read(catalog: &Catalog, tree: &VdevConfig) -> Result<Self> {
        let mos = catalog.mos();
        let directory = catalog.object_directory()?;
        let mut maps: Vec<VdevMaps> = Vec::new();
        for (id, top) in tree.children().iter().enumerate() {
            let id = u32::try_from(id).unwrap_or(u32::MAX);
            if top.kind.is_concrete() && top.top.is_some() {
                maps.push(VdevMaps::read(mos, id, top)?);
            }
        }
        replay_logs(mos, &directory, &mut maps)?;
        Self::with(catalog, maps.into_iter().map(VdevMaps::finish).collect())
    }

    /// The space of a pool whose allocator says `figures`; `held`: the bytes that only the checkpoint
    /// holds on a top-level vdev.
    pub fn of(catalog: &Catalog, figures: &Figures, held: impl Fn(u32) -> u64) -> Result<Self> {
        let top = |top: &TopFigures| TopSpace {
            id: top.id,
            class: match top.class {
                AllocationClass::Normal => Class::Normal,
                AllocationClass::Log => Class::Log,
                AllocationClass::Special => Class::Special,
                AllocationClass::Dedup => Class::Dedup,
            },
            size: top.size,
            allocated: top.allocated,
            fragmentation: top.fragmentation,
            deflate_ratio: top.deflate_ratio,
            embedded_log: top.embedded_log,
            checkpoint: held(top.id),
            passive: top.passive,
            mapping_estimate: top.mapping_estimate,
        };
        Self::with(catalog, figures.tops.iter().map(top).collect())
    }

    /// The space of a pool with these top-level vdevs.
    fn with(catalog: &Catalog, tops: Vec<TopSpace>) -> Result<Self> {
        let (mos, directory) = (catalog.mos(), catalog.object_directory()?);
        let (dedup, dedup_tables) = dedup(mos, &directory)?;
        let (clone_used, clone_saved) = clones(mos, &directory)?;
        let held = tops.iter().fold(0, |sum: u64, top| sum.saturating_add(top.checkpoint));
        let is_there = directory.value(CHECKPOINT)?.is_some();
        let checkpoint = (is_there || held > 0).then_some(held);
        Ok(Self { tops, dedup, dedup_tables, clone_used, clone_saved, checkpoint })
    }

    fn sum(&self, what: impl Fn(&TopSpace) -> u64) -> u64 {
        let counted = self.tops.iter().filter(|top| top.class != Class::Log);
        counted.fold(0, |sum: u64, top| sum.saturating_add(what(top)))
    }

    /// Bytes of all devices but log devices, parity included.
    pub fn size(&self) -> u64 {
        self.sum(|top| top.size)
    }

    /// Allocated bytes, parity included.
    pub fn allocated(&self) -> u64 {
        self.sum(|top| top.allocated)
    }

    /// Bytes not allocated.
    pub fn free(&self) -> u64 {
        self.size().saturating_sub(self.allocated())
    }

    /// Percent of the size that is allocated.
    pub fn capacity_percent(&self) -> u64 {
        percent(self.allocated(), self.size())
    }

    /// Fragmentation of free space in percent, by size of the vdevs; `None` if not known.
    pub fn fragmentation(&self) -> Option<u64> {
        let (mut weighted, mut size) = (0u128, 0u128);
        for top in self.tops.iter().filter(|top| top.class == Class::Normal) {
            weighted += u128::from(top.fragmentation?) * u128::from(top.size);
            size += u128::from(top.size);
        }
        u64::try_from(weighted.checked_div(size).unwrap_or(0)).ok()
    }

    /// What the pool offers to its datasets.
    pub fn capacity(&self) -> PoolCapacity {
        let normal = |what: &dyn Fn(&TopSpace) -> u64| {
            let tops = self.tops.iter().filter(|top| top.class == Class::Normal && !top.passive);
            tops.fold(0, |sum: u64, top| sum.saturating_add(top.deflated(what(top))))
        };
        let size = normal(&|top| top.size.saturating_sub(top.embedded_log));
        let embedded = normal(&|top| top.embedded_log);
        let dedup = self.dedup.referenced_dsize.saturating_sub(self.dedup.dsize);
        let saved = dedup.saturating_add(self.clone_saved);
        PoolCapacity::new(size, embedded, saved, self.checkpoint.unwrap_or(0))
    }

    /// How many times over deduplicated blocks are referenced, in hundredths.
    pub fn dedup_ratio(&self) -> u64 {
        match self.dedup.dsize {
            0 => 100,
            stored => percent(self.dedup.referenced_dsize, stored),
        }
    }

    /// How many times over cloned blocks are referenced, in hundredths.
    pub fn clone_ratio(&self) -> u64 {
        match self.clone_used {
            0 => 100,
            used => percent(used.saturating_add(self.clone_saved), used),
        }
    }
}

/// What the space maps of one vdev say.
struct VdevMaps {
    top: TopSpace,
    metaslab_shift: u64,
    /// Allocated less freed, by metaslab, not below or above what fits.
    allocated: Vec<i64>,
    sizes: Vec<u64>,
    /// Percent by metaslab; `None` without histogram.
    fragmentation: Vec<Option<u64>>,
    /// Logs older than this are in the map already, by metaslab.
    unflushed: Vec<Txg>,
    checkpoint: u64,
}

impl VdevMaps {
    fn read(mos: &ObjectSet, id: u32, config: &VdevConfig) -> Result<Self> {
        let top = config.top.unwrap_or_default();
        let (shift, count) = metaslab_count(id, top.asize, top.metaslab_shift)?;
        let geometry = Geometry::of(config, top.ashift)?;
        let sizes: Vec<u64> = (0..count).map(|index| geometry.metaslab(index, shift).1).collect();
        let zap = Table::open(mos, config.top_zap.unwrap_or_default())?;
        let mut maps = Self {
            top: TopSpace {
                id,
                class: class(&top, zap.as_ref())?,
                size: sizes.iter().fold(0, |sum: u64, size| sum.saturating_add(*size)),
                allocated: 0,
                fragmentation: None,
                deflate_ratio: geometry.deflate_ratio,
                embedded_log: 0,
                checkpoint: 0,
                passive: top.non_allocating == Some(1) || top.removing == Some(1),
                mapping_estimate: None,
            },
            metaslab_shift: top.metaslab_shift,
            allocated: vec![0; sizes.len()],
            fragmentation: vec![Some(0); sizes.len()],
            unflushed: vec![Txg(0); sizes.len()],
            sizes,
            checkpoint: 0,
        };
        if maps.top.class == Class::Normal && count > EMBEDDED_LOG_ABOVE {
            maps.top.embedded_log = 1 << shift;
        }
        let ashift = u32::try_from(top.ashift).unwrap_or(9);
        maps.read_metaslabs(mos, top.metaslab_array, ashift)?;
        if let Some(zap) = zap {
            maps.read_zap(mos, &zap)?;
        }
        Ok(maps)
    }

    fn read_metaslabs(&mut self, mos: &ObjectSet, array: ObjectId, ashift: u32) -> Result<()> {
        if array.0 == 0 {
            return Ok(());
        }
        let maps = numbers(mos, array, self.sizes.len())?;
        let slots = self.allocated.iter_mut().zip(&mut self.fragmentation);
        for ((allocated, fragmentation), id) in slots.zip(maps) {
            if id != 0 {
                let header = map_header(mos, ObjectId(id))?;
                *allocated = header.allocated;
                *fragmentation =
                    header.histogram.map(|buckets| fragmentation_percent(&buckets, ashift));
            }
        }
        Ok(())
    }

    fn read_zap(&mut self, mos: &ObjectSet, zap: &Table) -> Result<()> {
        read_unflushed(mos, zap, &mut self.unflushed)?;
        if let Some(id) = zap.number(CHECKPOINT_MAP)?.filter(|id| *id != 0) {
            // Only frees are recorded there, so the sum is not above zero.
            self.checkpoint = map_header(mos, ObjectId(id))?.allocated.unsigned_abs();
        }
        Ok(())
    }

    /// Counts one entry of a log.
    fn apply(&mut self, entry: Logged) {
        let index = usize::try_from(entry.offset >> self.metaslab_shift).unwrap_or(usize::MAX);
        let slots = self.allocated.get_mut(index).zip(self.unflushed.get(index));
        if let Some((allocated, unflushed)) = slots
            && entry.is_newer(*unflushed)
        {
            let length = i64::try_from(entry.length).unwrap_or(i64::MAX);
            *allocated = match entry.action {
                Action::Allocate => allocated.saturating_add(length),
                Action::Free => allocated.saturating_sub(length),
            };
        }
    }

    fn finish(self) -> TopSpace {
        let mut top = self.top;
        top.checkpoint = self.checkpoint;
        for (allocated, size) in self.allocated.iter().zip(&self.sizes) {
            let allocated = u64::try_from(*allocated).unwrap_or(0).min(*size);
            top.allocated = top.allocated.saturating_add(allocated);
        }
        let known: Vec<u64> = self.fragmentation.iter().copied().flatten().collect();
        // Without a histogram for more than half of the metaslabs the average means nothing.
        if known.len() > self.fragmentation.len() / 2 {
            top.fragmentation = known.iter().sum::<u64>().checked_div(known.len() as u64);
        }
        top
    }
}

fn class(top: &cenote_format::config::TopLevel, zap: Option<&Table>) -> Result<Class> {
    if top.is_log {
        return Ok(Class::Log);
    }
    let bias = match zap {
        Some(zap) => zap.text("org.zfsonlinux:allocation_bias")?,
        None => None,
    };
    Ok(match bias.as_deref() {
        Some("special") => Class::Special,
        Some("dedup") => Class::Dedup,
        Some("log") => Class::Log,
        _ => Class::Normal,
    })
}

/// Counts what the log space maps say beyond the metaslabs' own maps.
fn replay_logs(mos: &ObjectSet, directory: &Table, maps: &mut [VdevMaps]) -> Result<()> {
    each_logged(mos, directory, |entry| {
        let map = maps.iter_mut().find(|map| map.top.id == entry.vdev);
        if let Some(map) = map {
            map.apply(entry);
        }
        Ok(())
    })
}

/// What is known of one metaslab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metaslab {
    /// Its first byte on the vdev.
    pub start: u64,
    /// Bytes that can be allocated.
    pub size: u64,
    /// Allocated bytes according to its own map.
    pub flushed: i64,
    /// Allocated bytes, the logs included.
    pub allocated: u64,
    /// Logs older than this are in its map.
    pub unflushed: Txg,
    /// Percent, if the map has a histogram.
    pub fragmentation: Option<u64>,
}

/// The metaslabs of a top-level vdev.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopMetaslabs {
    /// Id of the vdev.
    pub id: u32,
    /// What it is for.
    pub class: Class,
    /// log2 of the distance of metaslabs.
    pub shift: u64,
    /// log2 of the unit of the maps.
    pub ashift: u8,
    /// Object that lists the space maps.
    pub array: ObjectId,
    /// In the order of their addresses.
    pub metaslabs: Vec<Metaslab>,
}

/// The metaslabs of a pool whose vdevs are `tree`.
pub fn metaslabs(catalog: &Catalog, tree: &VdevConfig) -> Result<Vec<TopMetaslabs>> {
    let mos = catalog.mos();
    let mut found = Vec::new();
    let mut maps = Vec::new();
    for (id, top) in tree.children().iter().enumerate() {
        let Some(state) = top.top.as_ref().filter(|_| top.kind.is_concrete()) else { continue };
        let map = VdevMaps::read(mos, u32::try_from(id).unwrap_or(u32::MAX), top)?;
        let alignment = Geometry::of(top, state.ashift)?.alignment;
        let slabs = map.sizes.iter().enumerate().map(|(index, size)| Metaslab {
            start: ((index as u64) << map.metaslab_shift).next_multiple_of(alignment.max(1)),
            size: *size,
            flushed: map.allocated.get(index).copied().unwrap_or(0),
            allocated: 0,
            unflushed: map.unflushed.get(index).copied().unwrap_or(Txg(0)),
            fragmentation: map.fragmentation.get(index).copied().flatten(),
        });
        found.push(TopMetaslabs {
            id: map.top.id,
            class: map.top.class,
            shift: map.metaslab_shift,
            ashift: u8::try_from(state.ashift).unwrap_or(9),
            array: state.metaslab_array,
            metaslabs: slabs.collect(),
        });
        maps.push(map);
    }
    replay_logs(mos, &catalog.object_directory()?, &mut maps)?;
    for (top, map) in found.iter_mut().zip(&maps) {
        for (slab, allocated) in top.metaslabs.iter_mut().zip(&map.allocated) {
            slab.allocated = u64::try_from(*allocated).unwrap_or(0).min(slab.size);
        }
    }
    Ok(found)
}

/// Totals of the dedup tables, and the bytes they take.
fn dedup(mos: &ObjectSet, directory: &Table) -> Result<(ddt::Statistics, DedupTables)> {
    let mut tables = DedupTables::default();
    let id = directory.number(ddt::STATISTICS)?.unwrap_or(0);
    if let Some(table) = Table::open(mos, ObjectId(id))? {
        for (_, value) in table.entries()? {
            let buckets = ddt::histogram(&value.as_u64s().unwrap_or_default())?;
            tables.histogram.resize(buckets.len(), ddt::Statistics::default());
            tables.histogram.iter_mut().zip(&buckets).for_each(|(sum, bucket)| sum.add(bucket));
        }
    }
    for (checksum, _) in ddt::CHECKSUMS {
        let own = directory.number(&ddt::directory_name(checksum))?;
        let own = Table::open(mos, ObjectId(own.unwrap_or(0)))?;
        if let Some(own) = &own {
            count_logged(mos, own, checksum, &mut tables)?;
        }
        let place = own.as_ref().unwrap_or(directory);
        let names = ddt::Class::ALL.map(|class| ddt::table_name(checksum, class));
        let logs = [0, 1].map(|index| ddt::log_name(checksum, index));
        for (name, is_table) in
            names.iter().map(|n| (n, true)).chain(logs.iter().map(|n| (n, false)))
        {
            let Some(id) = place.number(name)? else { continue };
            let object = mos.object(ObjectId(id))?;
            let dnode = object.dnode();
            tables.disk_bytes = tables.disk_bytes.saturating_add(dnode.used_bytes());
            let filled = dnode.pointers.iter().fold(0u64, |sum, bp| sum.saturating_add(bp.fill()));
            let bytes = filled.saturating_mul(dnode.block_size());
            tables.memory_bytes = tables.memory_bytes.saturating_add(bytes);
            if is_table {
                let count = Zap::open(object)?.count()?;
                tables.entries = tables.entries.saturating_add(count);
            }
        }
    }
    let mut total = ddt::Statistics::default();
    tables.histogram.iter().for_each(|bucket| total.add(bucket));
    Ok((total, tables))
}

/// Counts the entries in the logs of a table of fast dedup: the histograms leave them out. An entry
/// that is in the table too counts as two, as in OpenZFS.
fn count_logged(
    mos: &ObjectSet,
    own: &Table,
    checksum: &str,
    tables: &mut DedupTables,
) -> Result<()> {
    let vdevs = mos.io().pipe.vdevs();
    for (key, entry) in dedup_log::read(mos, own, checksum)? {
        tables.entries = tables.entries.saturating_add(1);
        let sum = ddt::Statistics::of(&key, &[entry.value], |vdev| vdevs.deflate_ratio(vdev));
        let Some((bucket, sum)) = sum else { continue };
        tables.histogram.resize(ddt::BUCKETS, ddt::Statistics::default());
        if let Some(bucket) = tables.histogram.get_mut(bucket) {
            bucket.add(&sum);
        }
    }
    Ok(())
}

/// Bytes of cloned blocks, and bytes that cloning saves.
fn clones(mos: &ObjectSet, directory: &Table) -> Result<(u64, u64)> {
    let (mut used, mut saved) = (0u64, 0u64);
    for (name, value) in directory.entries()? {
        if !name.starts_with(brt::VDEV_KEY_PREFIX) {
            continue;
        }
        let Some(id) = value.as_u64() else { continue };
        let dnode = match mos.dnode(ObjectId(id)) {
            Ok(dnode) => dnode,
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        let header = brt::BrtHeader::decode(dnode.bonus())
            .map_err(|error| Error::from(error).at_object(0, id))?;
        used = used.saturating_add(header.used_space);
        saved = saved.saturating_add(header.saved_space);
    }
    Ok((used, saved))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn top(class: Class, size: u64, allocated: u64) -> TopSpace {
        TopSpace {
            id: 0,
            class,
            size,
            allocated,
            fragmentation: Some(10),
            deflate_ratio: 512,
            embedded_log: 0,
            checkpoint: 0,
            passive: false,
            mapping_estimate: None,
        }
    }

    #[test]
    fn logs_do_not_count() {
        let tops = vec![top(Class::Normal, 1000 << 20, 100 << 20), top(Class::Log, 1 << 30, 5)];
        let space = PoolSpace { tops, ..PoolSpace::default() };
        assert_eq!((space.size(), space.allocated()), (1000 << 20, 100 << 20));
        assert_eq!((space.capacity_percent(), space.fragmentation()), (10, Some(10)));
        assert_eq!(space.capacity().usable, (1000 - 128) << 20);
        assert_eq!((space.dedup_ratio(), space.clone_ratio()), (100, 100));
    }
}
