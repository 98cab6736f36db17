//! Large writes: their data goes where it is to stay, and the log only says where.
//!
//! Chapter 05, section 18. Invariant: a record points only at blocks that are written together with
//! it, made durable by the same flush; the group of the write uses them or frees them, so what a
//! record points at lies untouched until that group is on the disks.

use bytes::Bytes;
use cenote_format::Txg;
use cenote_format::zil::{Payload, Record};

use super::WriteSource;
use super::data::Placement;
use super::pool::LogPool;
use super::records::Item;
use crate::object::DirtyBlocks;
use crate::txg::Tx;
use crate::vdev::BlockWrite;
use crate::{Error, Result};

/// A batch of records whose large writes have their places.
pub(super) struct Placed {
    /// The records, none of them a later write.
    pub items: Vec<(Txg, Item)>,
    places: Option<Placement>,
}

impl Placed {
    /// Gives the later writes of `batch` their places, or reads their data, while `tx` holds their
    /// group open.
    pub(super) fn new(
        pool: &dyn LogPool,
        source: Option<&dyn WriteSource>,
        tx: &Tx,
        batch: Vec<(Txg, Item)>,
    ) -> Result<Self> {
        let mut found = Vec::new();
        let mut ranges = Vec::new();
        for (txg, item) in &batch {
            let dirty = match (item, source) {
                // Of a group that is closed already the blocks are on their way.
                (Item::LaterWrite { object, offset, length }, Some(source)) if *txg == tx.txg() => {
                    source.dirty(*txg, *object, *offset, *length)?
                }
                _ => None,
            };
            found.push(dirty.is_some());
            ranges.extend(dirty);
        }
        let places = match ranges.is_empty() {
            true => None,
            false => pool.place(tx, &ranges)?,
        };
        let mut placed = Self { items: Vec::with_capacity(batch.len()), places };
        match placed.fill(source, batch, &found, ranges) {
            Ok(()) => Ok(placed),
            Err(error) => {
                // Nothing points at what got its place: the group frees it.
                placed.adopt(tx, false);
                Err(error)
            }
        }
    }

    /// Makes the records of `batch`: those `found` in dirty blocks have their `ranges`, in order.
    fn fill(
        &mut self,
        source: Option<&dyn WriteSource>,
        batch: Vec<(Txg, Item)>,
        found: &[bool],
        ranges: Vec<DirtyBlocks>,
    ) -> Result<()> {
        let mut ranges = ranges.into_iter();
        for ((txg, item), found) in batch.into_iter().zip(found) {
            let Item::LaterWrite { object, offset, length } = item else {
                self.items.push((txg, item));
                continue;
            };
            let range = if *found { ranges.next() } else { None };
            match range {
                Some(range) => {
                    let write = Write { txg, object, offset, length };
                    write.push(&range, self.places.as_ref(), &mut self.items)?;
                }
                None => {
                    let none = || Error::invalid("a later write without a source");
                    let item = with_data(source.ok_or_else(none)?, object, offset, length)?;
                    self.items.extend(item.map(|item| (txg, item)));
                }
            }
        }
        Ok(())
    }

    /// What has to be written together with the records.
    pub(super) fn take_writes(&mut self) -> Vec<BlockWrite> {
        self.places.as_mut().map(Placement::take_writes).unwrap_or_default()
    }

    /// Hands the blocks over to their group.
    pub(super) fn adopt(&mut self, tx: &Tx, written: bool) {
        if let Some(mut places) = self.places.take() {
            places.adopt(tx, written);
        }
    }
}

/// The record of a later write with its data; `None` if nothing of it is left.
pub(super) fn with_data(
    source: &dyn WriteSource,
    object: u64,
    offset: u64,
    length: u64,
) -> Result<Option<Item>> {
    let data = source.read(object, offset, length)?.filter(|data| !data.is_empty());
    Ok(data.map(|data| Item::Write { object, offset, data }))
}

/// A write that is in dirty blocks.
struct Write {
    txg: Txg,
    object: u64,
    offset: u64,
    length: u64,
}

impl Write {
    /// The records of this write, one a block.
    fn push(
        &self,
        range: &DirtyBlocks,
        places: Option<&Placement>,
        items: &mut Vec<(Txg, Item)>,
    ) -> Result<()> {
        let end = self.offset.saturating_add(self.length);
        for block in &range.blocks {
            let start = block.number.saturating_mul(range.block_size);
            let offset = self.offset.max(start);
            let length = end.min(start.saturating_add(range.block_size)).saturating_sub(offset);
            let item = match places.and_then(|places| places.pointer(self.object, block.number)) {
                Some(pointer) => Item::Encoded(
                    Record {
                        txg: self.txg,
                        sequence: 0,
                        case_insensitive: false,
                        payload: Payload::Write {
                            object: self.object,
                            offset,
                            length,
                            block_offset: 0,
                            block: pointer,
                            data: None,
                        },
                    }
                    .encode()?,
                ),
                None => {
                    let data = part(&block.data, offset.saturating_sub(start), length);
                    Item::Write { object: self.object, offset, data }
                }
            };
            items.push((self.txg, item));
        }
        Ok(())
    }
}

fn part(data: &Bytes, from: u64, length: u64) -> Bytes {
    let bound = |at: u64| usize::try_from(at).unwrap_or(usize::MAX).min(data.len());
    let (from, to) = (bound(from), bound(from.saturating_add(length)));
    data.slice(from..to.max(from))
}
