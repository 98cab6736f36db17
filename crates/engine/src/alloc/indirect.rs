//! Removed vdevs, and the one being removed: where the blocks that still name them are freed.
//!
//! Chapter 03, section 6; chapter 08, section 18.4. A range of a removed vdev is freed piece by piece
//! where it lies now, and noted in the vdev's obsolete space map, from which mappings are condensed. On
//! the vdev being removed it is freed there, too. Invariant: a range is noted if and only if its pieces
//! are freed.

use cenote_format::indirect_mapping::{ENTRY, Mapping, MappingHeader};
use cenote_format::{Dva, ObjectId, Txg};

use super::map::{Delta, Frame, Moment, SpaceMap, encode};
use super::metaslab::{SLOTS, slot};
use super::ranges::RangeSet;
use super::state::{AllocatorState, at};
use super::store::{OBSOLETE_COUNTS, OBSOLETE_MAP, SpaceSource, SpaceStore};
use crate::{Error, Result};

/// Most entries of one mapping that are believed: 16 million, 384 MiB.
const MAX_ENTRIES: u64 = 1 << 24;
/// Longest chain of removed vdevs an address is followed through.
const REMOVALS_MAX: u32 = 32;

/// A removed vdev, or what has been copied so far of the one being removed.
#[derive(Debug)]
pub(super) struct Indirect {
    pub(super) mapping: Mapping,
    /// Bytes it maps.
    pub(super) mapped: u64,
    /// The vdev's ZAP; 0 if it has none.
    pub(super) zap: ObjectId,
    /// What is obsolete.
    pub(super) map: Option<SpaceMap>,
    /// What became obsolete and is not recorded, by group.
    pending: [RangeSet; SLOTS],
}

/// The vdev being removed.
#[derive(Debug)]
pub(super) struct Removing {
    pub(super) vdev: u32,
    /// What was copied.
    pub(super) moved: Indirect,
}

impl Indirect {
    /// Nothing is mapped yet.
    pub(super) fn nothing(zap: ObjectId) -> Self {
        Self { mapping: Mapping::default(), mapped: 0, zap, map: None, pending: Default::default() }
    }

    /// Reads the mapping of a removed vdev and the header of its obsolete space map.
    pub(super) fn read(source: &dyn SpaceSource, id: ObjectId, zap: ObjectId) -> Result<Self> {
        let named = |error: cenote_format::Error| Error::from(error).at_object(0, id.0);
        let header = MappingHeader::decode(&source.bonus(id)?).map_err(named)?;
        if header.entries > MAX_ENTRIES {
            let reason = format!("device mapping of {} entries", header.entries);
            return Err(Error::corrupt(reason).at_object(0, id.0));
        }
        let bytes = usize::try_from(header.entries).unwrap_or(usize::MAX).saturating_mul(ENTRY);
        let mapping =
            Mapping::decode(&source.read(id, 0, bytes)?, header.entries).map_err(named)?;
        let map = match zap.0 {
            0 => None,
            _ => source.zap_number(zap, OBSOLETE_MAP)?.filter(|id| *id != 0),
        };
        let map = map.map(|id| SpaceMap::open(source, ObjectId(id))).transpose()?;
        Ok(Self { mapping, mapped: header.bytes_mapped, zap, map, pending: Default::default() })
    }

    /// Something became obsolete in `txg`.
    pub(super) fn is_dirty(&self, txg: Txg) -> bool {
        self.pending.get(slot(txg)).is_some_and(|set| !set.is_empty())
    }

    /// Takes what became obsolete in `txg`, to be recorded.
    pub(super) fn take(&mut self, txg: Txg) -> (RangeSet, Option<SpaceMap>, ObjectId) {
        let obsolete = self.pending.get_mut(slot(txg)).map(std::mem::take).unwrap_or_default();
        (obsolete, self.map.clone(), self.zap)
    }

    /// The map as it is now.
    pub(super) fn set_map(&mut self, map: SpaceMap) {
        self.map = Some(map);
    }
}

/// Records what became obsolete; gives the map as it is now.
pub(super) fn record(
    store: &mut dyn SpaceStore,
    (obsolete, map, zap): (RangeSet, Option<SpaceMap>, ObjectId),
    moment: Moment,
) -> Result<Option<SpaceMap>> {
    if zap.0 == 0 || !store.feature_enabled(OBSOLETE_COUNTS) {
        return Ok(map);
    }
    let mut map = match map {
        Some(map) => map,
        None => {
            let map = SpaceMap::create(store)?;
            store.zap_set(zap, OBSOLETE_MAP, map.object.0)?;
            store.feature_add(OBSOLETE_COUNTS, 1)?;
            map
        }
    };
    let delta = Delta { allocated: obsolete, freed: RangeSet::default() };
    match append(store, &mut map, &delta, moment) {
        Err(error) if error.is_lasting() => {
            // Nothing can be put behind an end that cannot be read. What was noted stays in the mapping.
            tracing::error!(%error, "a map of what is obsolete is damaged: another one is begun");
            let damaged = std::mem::replace(&mut map, SpaceMap::create(store)?);
            store.zap_set(zap, OBSOLETE_MAP, map.object.0)?;
            append(store, &mut map, &delta, moment)?;
            if let Err(error) = damaged.destroy(store) {
                tracing::error!(%error, "the space of a damaged map is lost");
            }
        }
        appended => appended?,
    }
    Ok(Some(map))
}

fn append(
    store: &mut dyn SpaceStore,
    map: &mut SpaceMap,
    delta: &Delta,
    moment: Moment,
) -> Result<()> {
    let mut encoder = map.encoder(store);
    encode(&mut encoder, delta, Frame { start: 0, shift: 0, vdev: None }, moment)?;
    map.append(store, &encoder.finish(), delta.net())?;
    map.write_header(store)
}

/// Where a range to be freed lies.
#[derive(Debug, Default)]
pub(super) struct Places {
    /// On vdevs that exist.
    pub(super) concrete: Vec<Dva>,
    /// On removed ones: vdev, offset, length.
    removed: Vec<(u32, u64, u64)>,
}

impl AllocatorState {
    /// Where the data of an address lies now.
    pub(super) fn resolve(&self, dva: &Dva) -> Result<Places> {
        let mut places = Places::default();
        self.resolve_into(dva, 0, &mut places)?;
        Ok(places)
    }

    fn resolve_into(&self, dva: &Dva, depth: u32, places: &mut Places) -> Result<()> {
        let (indirect, length) = match self.indirect.get(&dva.vdev) {
            Some(indirect) => (indirect, dva.asize),
            None => {
                places.concrete.push(*dva);
                // Of the vdev being removed, what was copied is somewhere else as well.
                let Some(moving) = self.removing.as_ref().filter(|it| it.vdev == dva.vdev) else {
                    return Ok(());
                };
                let copied = moving.moved.mapping.max_offset().saturating_sub(dva.offset);
                (&moving.moved, copied.min(dva.asize))
            }
        };
        if length == 0 {
            return Ok(());
        }
        if depth >= REMOVALS_MAX {
            return Err(Error::corrupt("removed vdevs refer to each other without end"));
        }
        places.removed.push((dva.vdev, dva.offset, length));
        let pieces = indirect.mapping.lookup(dva.offset, length);
        for piece in pieces.map_err(|error| at(Error::from(error), dva.vdev, dva.offset))? {
            let (vdev, offset, asize) = (piece.vdev, piece.offset, piece.length);
            self.resolve_into(&Dva { vdev, offset, asize, gang: false }, depth + 1, places)?;
        }
        Ok(())
    }

    /// What is known of a removed vdev, or of the one being removed.
    pub(super) fn moved_mut(&mut self, vdev: u32) -> Option<&mut Indirect> {
        let moving = self.removing.as_mut().filter(|it| it.vdev == vdev);
        moving.map(|it| &mut it.moved).or_else(|| self.indirect.get_mut(&vdev))
    }

    /// Vdevs of which something became obsolete in `txg` that is not recorded.
    pub(super) fn with_obsolete(&self, txg: Txg) -> impl Iterator<Item = u32> + '_ {
        let moving = self.removing.iter().map(|it| (it.vdev, &it.moved));
        let all = self.indirect.iter().map(|(id, it)| (*id, it)).chain(moving);
        all.filter(move |(_, it)| it.is_dirty(txg)).map(|(id, _)| id)
    }

    /// Notes what is obsolete from `txg` on.
    pub(super) fn note_obsolete(&mut self, places: &Places, txg: Txg) -> Result<()> {
        for (vdev, offset, length) in &places.removed {
            let indirect = self.moved_mut(*vdev);
            let pending = indirect.and_then(|indirect| indirect.pending.get_mut(slot(txg)));
            let noted = pending.map(|pending| pending.insert(*offset, *length));
            if noted.is_some_and(|noted| noted.is_err()) {
                let reason = format!("{length:#x} bytes of a removed vdev are freed twice");
                return Err(at(Error::corrupt(reason), *vdev, *offset));
            }
        }
        Ok(())
    }
}
