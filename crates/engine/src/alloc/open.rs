//! What the disks say of free space when a pool is opened for writing, and new vdevs.
//!
//! Chapter 03, sections 8 to 12. Reads the headers of all space maps and all logs; maps themselves
//! are read when their metaslab is needed. Invariant: a pool whose space this code could not keep
//! right is refused here, before anything is written.

use std::collections::BTreeMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use cenote_format::config::{VdevConfig, VdevKind};
use cenote_format::uberblock::Uberblock;
use cenote_format::{ObjectId, ObjectType, Txg};
use parking_lot::{Condvar, Mutex};

use super::allocator::Allocator;
use super::geometry::{Geometry, bad, metaslab_count, new_metaslab_shift};
use super::indirect::{Indirect, Removing};
use super::logs::{self, Logged, each_logged};
use super::map::{SpaceMap, each_segment};
use super::state::{AllocatorState, Log};
use super::store::{
    CHECKPOINT, CHECKPOINT_MAP, DIRECTORY, LOG_ZAP, NewSpaceObject, SpaceSource, SpaceStore,
    UNFLUSHED,
};
use super::top::{Top, TopFacts};
use crate::vdev::{AllocationClass, VdevHandle};
use crate::{Error, Result};

/// What a new vdev's configuration gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewVdev {
    /// Object that lists the space maps.
    pub metaslab_array: ObjectId,
    /// log2 of a metaslab's bytes.
    pub metaslab_shift: u32,
}

/// A top-level vdev to be prepared for blocks.
#[derive(Clone, Copy, Debug)]
pub struct VdevToInit<'a> {
    /// Its id.
    pub id: u32,
    /// Its configuration, with ashift and asize.
    pub config: &'a VdevConfig,
    /// Its ZAP; 0 for pools without.
    pub zap: ObjectId,
    /// What it takes.
    pub class: AllocationClass,
    /// The first group whose blocks may go there: the one after that which adds the vdev, but for
    /// the vdevs a pool is created with.
    pub from: Txg,
}

/// Why a pool of these vdevs cannot be written yet, if so.
pub fn check_writable(tree: &VdevConfig) -> Result<()> {
    for (id, top) in tree.children().iter().enumerate() {
        let state = top.top.unwrap_or_default();
        // Log devices are emptied while they are removed, and nothing else is.
        if state.removing == Some(1) && top.indirect.is_none() && !state.is_log {
            return Err(Error::corrupt(format!("top-level vdev {id} is removed to nowhere")));
        }
    }
    Ok(())
}

fn passive(config: &VdevConfig) -> bool {
    let top = config.top.unwrap_or_default();
    let rests = top.is_log && config.devices().all(|leaf| leaf.offline);
    top.non_allocating == Some(1) || top.removing == Some(1) || rests
}

impl Allocator {
    /// The allocator of a pool of these vdevs whose newest group on the disks is `synced`.
    pub fn open(vdevs: VdevHandle, source: Arc<dyn SpaceSource>, synced: Txg) -> Result<Self> {
        let tree = vdevs.current();
        check_writable(tree.topology().root())?;
        let mut state = AllocatorState { synced, ..AllocatorState::default() };
        for (id, config) in (0_u32..).zip(tree.topology().tops()) {
            if let (VdevKind::Indirect, Some(objects)) = (config.kind, config.indirect) {
                let zap = config.top_zap.unwrap_or_default();
                let indirect = Indirect::read(source.as_ref(), objects.mapping, zap)?;
                state.indirect.insert(id, indirect);
            }
            let top = config.top.filter(|_| config.kind.is_concrete());
            let Some(top) = top.filter(|top| top.metaslab_shift != 0) else { continue };
            let (metaslab_shift, count) = metaslab_count(id, top.asize, top.metaslab_shift)?;
            let facts = TopFacts {
                id,
                ashift: ashift(id, top.ashift)?,
                class: tree.class(id),
                geometry: Geometry::of(config, top.ashift)?,
                passive: passive(config),
                width: config.children().len().max(1) as u64,
                metaslab_shift,
                array: top.metaslab_array,
                zap: config.top_zap.unwrap_or_default(),
                from: Txg(0),
            };
            if let (Some(1), Some(objects)) = (top.removing, config.indirect) {
                let moved = Indirect::read(source.as_ref(), objects.mapping, facts.zap)?;
                state.removing = Some(Removing { vdev: id, moved });
            }
            let mut top = Top::new(facts, count);
            read_headers(source.as_ref(), &mut top)?;
            state.put(top);
        }
        if let Some(words) = source.zap_words(DIRECTORY, CHECKPOINT)? {
            state.checkpoint = Some(Uberblock::from_words(&words)?.txg);
        }
        read_logs(source.as_ref(), &mut state)?;
        for top in state.tops.iter_mut().flatten() {
            let id = top.facts.id;
            for slab in &top.metaslabs {
                let fits = u64::try_from(slab.recorded).is_ok_and(|bytes| bytes <= slab.size);
                if !fits {
                    return Err(bad(id, "a metaslab has more allocated than it holds"));
                }
            }
            top.sum_up();
        }
        let published = ArcSwap::from_pointee(state.figures());
        Ok(Self { vdevs, source, state: Mutex::new(state), changed: Condvar::new(), published })
    }

    /// Cuts a new top-level vdev into metaslabs and makes the object that lists their maps, in the
    /// group being written. Its blocks can be allocated at once, in groups from `vdev.from` on.
    pub fn init_vdev(&self, store: &mut dyn SpaceStore, vdev: &VdevToInit<'_>) -> Result<NewVdev> {
        let VdevToInit { id, config, zap, class, from } = *vdev;
        let top = config.top.unwrap_or_default();
        let shift = new_metaslab_shift(top.asize);
        let (_, count) = metaslab_count(id, top.asize, shift.into())?;
        if count == 0 {
            return Err(Error::invalid(format!("top-level vdev {id} is too small")));
        }
        let geometry = Geometry::of(config, top.ashift)?;
        let array = store.create(&NewSpaceObject {
            object_type: ObjectType::OBJECT_ARRAY,
            block_size: (count * 8).next_power_of_two().clamp(512, 16 << 10),
            indirect_shift: 17,
            bonus_type: ObjectType::NONE,
            bonus: Vec::new(),
        })?;
        let facts = TopFacts {
            id,
            ashift: ashift(id, top.ashift)?,
            class,
            geometry,
            passive: passive(config),
            width: config.children().len().max(1) as u64,
            metaslab_shift: shift,
            array,
            zap,
            from,
        };
        let mut state = self.state.lock();
        if state.top(id).is_some() {
            return Err(Error::invalid(format!("top-level vdev {id} is in use")));
        }
        state.put(Top::new(facts, count));
        self.published.store(Arc::new(state.figures()));
        Ok(NewVdev { metaslab_array: array, metaslab_shift: shift })
    }
}

impl Allocator {
    /// A top-level vdev that has `asize` allocatable bytes by now, as the configuration on the disks says: the
    /// metaslabs it has more are free.
    ///
    /// # Errors
    /// If it has no space, or would have too many metaslabs.
    pub fn grow_vdev(&self, id: u32, asize: u64) -> Result<()> {
        let mut state = self.state.lock();
        let top = state.top_mut(id).ok_or_else(|| bad(id, "it holds no space"))?;
        let (_, count) = metaslab_count(id, asize, top.facts.metaslab_shift.into())?;
        top.grow(count);
        self.published.store(Arc::new(state.figures()));
        self.changed.notify_all();
        Ok(())
    }
}

impl Allocator {
    /// Bytes of metaslabs that a vdev of `asize` allocatable bytes has; 0 of one that holds no space.
    pub fn size_with(&self, id: u32, asize: u64) -> u64 {
        let state = self.state.lock();
        state
            .top(id)
            .map_or(0, |top| (asize >> top.facts.metaslab_shift) << top.facts.metaslab_shift)
    }
}

fn ashift(id: u32, ashift: u64) -> Result<u32> {
    let ashift = u32::try_from(ashift).ok().filter(|ashift| (9..=16).contains(ashift));
    ashift.ok_or_else(|| bad(id, "impossible ashift"))
}

/// The numbers of a list with one per metaslab.
fn numbers(source: &dyn SpaceSource, object: ObjectId, count: usize) -> Result<Vec<u64>> {
    let list = source.read(object, 0, count.saturating_mul(8))?;
    Ok(logs::numbers(&list, count).collect())
}

/// Reads what is known of a vdev's metaslabs without their maps.
fn read_headers(source: &dyn SpaceSource, top: &mut Top) -> Result<()> {
    let count = top.metaslabs.len();
    if top.facts.array.0 != 0 {
        let maps = numbers(source, top.facts.array, count)?;
        for (slab, id) in top.metaslabs.iter_mut().zip(maps).filter(|(_, id)| *id != 0) {
            slab.set_map(SpaceMap::open(source, ObjectId(id))?, top.facts.ashift);
        }
    }
    if top.facts.zap.0 == 0 {
        return Ok(());
    }
    if let Some(id) = source.zap_number(top.facts.zap, CHECKPOINT_MAP)?.filter(|id| *id != 0) {
        top.kept.map = Some(SpaceMap::open(source, ObjectId(id))?);
    }
    let unflushed = source.zap_number(top.facts.zap, UNFLUSHED)?;
    top.unflushed = unflushed.filter(|id| *id != 0).map(ObjectId);
    if let Some(object) = top.unflushed {
        let since = numbers(source, object, count)?;
        for (slab, txg) in top.metaslabs.iter_mut().zip(since) {
            slab.unflushed_since = Txg(txg);
        }
    }
    Ok(())
}

/// Reads all logs, and applies to every metaslab what is not in its map.
fn read_logs(source: &dyn SpaceSource, state: &mut AllocatorState) -> Result<()> {
    let Some(zap) = source.zap_number(DIRECTORY, LOG_ZAP)?.filter(|id| *id != 0) else {
        return Ok(());
    };
    state.log_zap = Some(ObjectId(zap));
    let mut maps = BTreeMap::new();
    let read = |txg, id, each: &mut logs::Each<'_>| {
        let map = SpaceMap::open(source, id)?;
        each_segment(source, map.extent(), each)?;
        maps.insert(txg, Log { map });
        Ok(())
    };
    each_logged(source.zap_numbers(ObjectId(zap))?, read, |txg, segment| {
        // Also ends the reading of a log whose length is a lie: holes name no vdev.
        let nowhere = || Error::corrupt("an entry of a log of space maps names no vdev");
        let entry = Logged::of(txg, segment)?.ok_or_else(nowhere)?;
        let Logged { offset, length, .. } = entry;
        let Some(top) = state.top_mut(entry.vdev) else { return Ok(()) };
        let wrong = |what: &str| {
            Error::corrupt(format!("the log of group {}: {length:#x} bytes {what}", txg.0))
                .at(|place| place.dva = Some((top.facts.id, offset)))
        };
        let index = top.metaslab_of(offset, length);
        let index = index.ok_or_else(|| wrong("lie outside the metaslabs"))?;
        let Some(slab) = top.metaslabs.get_mut(index) else { return Ok(()) };
        if entry.is_newer(slab.unflushed_since) {
            let net = slab.unflushed.net();
            let applied = slab.unflushed.apply(entry.action, offset, length);
            applied.map_err(|_| wrong("are allocated or freed twice"))?;
            let change = slab.unflushed.net().saturating_sub(net);
            slab.recorded = slab.recorded.saturating_add(change);
            slab.weighed = false;
        }
        Ok(())
    })?;
    state.logs.extend(maps);
    Ok(())
}
