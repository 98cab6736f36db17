//! A space map on the disks: its object, its header, reading and appending.
//!
//! Chapter 03, section 9. Invariant: the header is written in the same group as what it counts,
//! and entries are appended behind its length only.

use cenote_format::space_map::{
    Action, BONUS, BONUS_SHORT, BUCKETS, Encoder, Record, Segment, SpaceMapHeader,
};
use cenote_format::{ObjectId, ObjectType, Txg};

use super::histogram::Histogram;
use super::logs::each_in;
use super::ranges::{Conflict, RangeSet};
use super::store::{HISTOGRAM, LOGS, NewSpaceObject, SpaceSource, SpaceStore, TWO_WORDS};
use crate::{Error, Result};

/// Bytes of a data block of maps and logs.
pub(super) const BLOCK: u64 = 128 << 10;
/// The same where maps are written in every group.
const SMALL_BLOCK: u64 = 16 << 10;
/// log2 of the bytes of their indirect blocks.
const INDIRECT_SHIFT: u8 = 14;
/// Bytes read at once.
const STEP: u64 = 1 << 20;

/// What was allocated and freed since some moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Delta {
    pub(super) allocated: RangeSet,
    pub(super) freed: RangeSet,
}

impl Delta {
    pub(super) fn is_empty(&self) -> bool {
        self.allocated.is_empty() && self.freed.is_empty()
    }

    /// Bytes allocated less bytes freed.
    pub(super) fn net(&self) -> i64 {
        self.allocated.bytes().cast_signed().wrapping_sub(self.freed.bytes().cast_signed())
    }

    /// Adds a later allocation or free of the same addresses: a free of what was allocated since
    /// then, or an allocation of what was freed since then, leaves nothing.
    pub(super) fn apply(
        &mut self,
        action: Action,
        start: u64,
        length: u64,
    ) -> Result<(), Conflict> {
        let (undone, done) = match action {
            Action::Allocate => (&mut self.freed, &mut self.allocated),
            Action::Free => (&mut self.allocated, &mut self.freed),
        };
        if length == 0 || done.overlaps(start, length) {
            return Err(Conflict);
        }
        let rest = undone.cut(start, length);
        rest.into_iter().try_for_each(|(from, to)| done.insert(from, to - from))
    }

    /// Adds all of a later delta: its allocations, then its frees.
    pub(super) fn apply_all(&mut self, later: &Self) -> Result<(), Conflict> {
        for (from, to) in later.allocated.iter() {
            self.apply(Action::Allocate, from, to - from)?;
        }
        for (from, to) in later.freed.iter() {
            self.apply(Action::Free, from, to - from)?;
        }
        Ok(())
    }
}

/// Which units and places the entries of a map are in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    /// Byte offset 0 stands for.
    pub(super) start: u64,
    /// log2 of the unit in bytes.
    pub(super) shift: u8,
    /// The vdev that entries of a log name.
    pub(super) vdev: Option<u32>,
}

/// The group and pass that entries are marked with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Moment {
    pub(super) txg: Txg,
    pub(super) pass: u32,
}

/// Appends the records of one action: the mark and the segments, ascending.
fn encode_set(
    encoder: &mut Encoder,
    set: &RangeSet,
    action: Action,
    frame: Frame,
    moment: Moment,
) -> Result<()> {
    if set.is_empty() {
        return Ok(());
    }
    let pass = u16::try_from(moment.pass).unwrap_or(u16::MAX);
    encoder.push(&Record::Debug { action, pass, txg: moment.txg })?;
    for (from, to) in set.iter() {
        let outside = || Error::corrupt("a segment lies before its metaslab");
        let offset = from.checked_sub(frame.start).ok_or_else(outside)?;
        let (offset, run) = (offset >> frame.shift, (to - from) >> frame.shift);
        let Frame { vdev, .. } = frame;
        encoder.push(&Record::Segment(Segment { action, vdev, offset, run }))?;
    }
    Ok(())
}

/// Appends the records of a delta: allocations, then frees.
pub(super) fn encode(
    encoder: &mut Encoder,
    delta: &Delta,
    frame: Frame,
    moment: Moment,
) -> Result<()> {
    encode_set(encoder, &delta.allocated, Action::Allocate, frame, moment)?;
    encode_set(encoder, &delta.freed, Action::Free, frame, moment)
}

/// Where a map's entries are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) object: ObjectId,
    pub(super) length: u64,
    pub(super) block_size: u64,
}

/// One space map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SpaceMap {
    pub(super) object: ObjectId,
    pub(super) header: SpaceMapHeader,
    pub(super) block_size: u64,
}

/// Longest map that is believed, in bytes.
const LENGTH_MAX: u64 = 1 << 34;

impl SpaceMap {
    /// The map in object `id`.
    pub(super) fn open(source: &dyn SpaceSource, id: ObjectId) -> Result<Self> {
        let named = |error: cenote_format::Error| Error::from(error).at_object(0, id.0);
        let header = SpaceMapHeader::decode(&source.bonus(id)?).map_err(named)?;
        if header.length > LENGTH_MAX || !header.length.is_multiple_of(8) {
            let reason = format!("a space map of {} bytes", header.length);
            return Err(Error::corrupt(reason).at_object(0, id.0));
        }
        let block_size = source.block_size(id)?;
        Ok(Self { object: id, header, block_size })
    }

    /// Makes an empty map; a log or a metaslab's.
    pub(super) fn create(store: &mut dyn SpaceStore) -> Result<Self> {
        let block_size = if store.feature_enabled(LOGS) { BLOCK } else { SMALL_BLOCK };
        Self::create_with(store, block_size)
    }

    /// Makes an empty map with data blocks of `block_size` bytes.
    pub(super) fn create_with(store: &mut dyn SpaceStore, block_size: u64) -> Result<Self> {
        let histogram = store.feature_enabled(HISTOGRAM);
        let object = store.create(&NewSpaceObject {
            object_type: ObjectType::SPACE_MAP,
            block_size,
            indirect_shift: INDIRECT_SHIFT,
            bonus_type: ObjectType::SPACE_MAP_HEADER,
            bonus: vec![0; if histogram { BONUS } else { BONUS_SHORT }],
        })?;
        if histogram {
            store.feature_add(HISTOGRAM, 1)?;
        }
        let histogram = histogram.then_some([0; BUCKETS]);
        let header = SpaceMapHeader { object, length: 0, allocated: 0, histogram };
        let map = Self { object, header, block_size };
        map.write_header(store)?;
        Ok(map)
    }

    /// Frees the object.
    pub(super) fn destroy(self, store: &mut dyn SpaceStore) -> Result<()> {
        store.destroy(self.object)?;
        if self.header.histogram.is_some() {
            store.feature_add(HISTOGRAM, -1)?;
        }
        Ok(())
    }

    /// An encoder for what comes next.
    pub(super) fn encoder(&self, store: &dyn SpaceStore) -> Encoder {
        Encoder::new(self.header.length, self.block_size, store.feature_enabled(TWO_WORDS))
    }

    /// Writes encoded entries behind the others; `change` is what they add to the allocated bytes.
    /// The header is not written yet.
    pub(super) fn append(
        &mut self,
        store: &mut dyn SpaceStore,
        encoded: &[u8],
        change: i64,
    ) -> Result<()> {
        if !encoded.is_empty() {
            store.write(self.object, self.header.length, encoded)?;
        }
        self.header.length += encoded.len() as u64;
        self.header.allocated = self.header.allocated.saturating_add(change);
        Ok(())
    }

    /// What is appended next begins a data block.
    pub(super) fn skip_to_next_block(&mut self) {
        self.header.length = self.header.length.next_multiple_of(self.block_size.max(1));
    }

    /// Drops all entries. The header is not written yet.
    pub(super) fn clear(&mut self, store: &mut dyn SpaceStore) -> Result<()> {
        store.truncate(self.object)?;
        self.header.length = 0;
        self.header.allocated = 0;
        Ok(())
    }

    /// Replaces the histogram, if the map has one. The header is not written yet.
    pub(super) fn set_histogram(&mut self, histogram: Histogram) {
        self.header.histogram = self.header.histogram.map(|_| histogram);
    }

    /// Writes the header.
    pub(super) fn write_header(&self, store: &mut dyn SpaceStore) -> Result<()> {
        store.set_bonus(self.object, &self.header.encode())
    }

    /// Where the entries are at this moment.
    pub(super) fn extent(&self) -> Extent {
        let Self { object, header, block_size } = self;
        Extent { object: *object, length: header.length, block_size: *block_size }
    }
}

/// Tells `each` every segment of a map, in order.
pub(super) fn each_segment(
    source: &dyn SpaceSource,
    extent: Extent,
    mut each: impl FnMut(Segment) -> Result<()>,
) -> Result<()> {
    let Extent { object, length, block_size } = extent;
    // Entries of two words do not cross blocks, and a step is a whole number of blocks.
    let step = STEP.next_multiple_of(block_size.max(8));
    let mut at = 0;
    while at < length {
        let part = usize::try_from(step.min(length - at)).unwrap_or(usize::MAX);
        let words = source.read(object, at, part)?;
        // A length that is a lie: what is no block reads as zeros, which say the same over and over.
        if words.len() > 8 && words.iter().all(|byte| *byte == 0) {
            let reason = format!("object {}: a space map has nothing in it at {at:#x}", object.0);
            return Err(Error::corrupt(reason));
        }
        each_in(&words, object, &mut each)?;
        at = at.saturating_add(step);
    }
    Ok(())
}

/// The free ranges of `start..start + size` according to a map whose units are `1 << shift`.
pub(super) fn read_free(
    source: &dyn SpaceSource,
    extent: Extent,
    (start, size): (u64, u64),
    shift: u8,
) -> Result<RangeSet> {
    let mut free = RangeSet::default();
    let wrong = |offset: u64, length: u64, what: &str| {
        Error::corrupt(format!("{length:#x} bytes at {offset:#x} {what}"))
    };
    free.insert(start, size).map_err(|_| wrong(start, size, "make no metaslab"))?;
    each_segment(source, extent, |segment| {
        let (offset, length) = segment.bytes(start, shift)?;
        if offset + length > start + size {
            return Err(wrong(offset, length, "lie outside their metaslab"));
        }
        let (done, what) = match segment.action {
            Action::Allocate => (free.remove(offset, length), "are allocated twice"),
            Action::Free => (free.insert(offset, length), "are freed twice"),
        };
        done.map_err(|_| wrong(offset, length, what))
    })?;
    Ok(free)
}
