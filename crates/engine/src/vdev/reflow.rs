//! Moving the sectors of a RAID-Z vdev to where they belong with one child more.
//!
//! Chapter 03, section 4; chapter 08, sections 21.2 and 21.3. Invariant: what is called moved lies at its new place
//! on every child, and is durable there; sectors that were not moved lie where they were as long as
//! [`VdevTree::reach`] is heeded.

use super::batch::Batch;
use super::error::VdevError;
use super::expansion::Moving;
use super::extent::Extent;
use super::flush::LeafWrite;
use super::leaf::{BOOT_START, DATA_START, Leaf};
use super::raidz::{BOOT_TO_DATA, Reflow};
use super::tree::{LeafId, Shape, VdevTree};
use bytes::{Bytes, BytesMut};
use cenote_device::DeviceError;
use cenote_format::Guid;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

/// Ranges closer together than this many bytes are read as one.
const GAP: u64 = 64 << 10;
/// Bytes that are moved together.
const TOGETHER: u64 = 16 << 20;

/// The children of the vdev that is being expanded, all of them there.
struct Children<'a> {
    tree: &'a VdevTree,
    vdev: u32,
    shift: u32,
    leaves: Vec<(LeafId, &'a Leaf)>,
}

/// A range of sectors on a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    /// Its first sector on the child.
    row: u64,
    /// Sectors.
    rows: u64,
}

/// Where the sectors `first..end` of a vdev of `width` children lie on child `child`.
fn part(child: u64, width: u64, first: u64, end: u64) -> Part {
    // The first row whose sector on the child is not before `sector`.
    let row = |sector: u64| (sector / width) + u64::from(sector % width > child);
    Part { row: row(first), rows: row(end).saturating_sub(row(first)) }
}

impl<'a> Children<'a> {
    fn unfit(vdev: u32, reason: impl Into<String>) -> VdevError {
        VdevError::Unavailable { vdev, reason: reason.into() }
    }

    fn of(tree: &'a VdevTree, vdev: u32) -> Result<Self, VdevError> {
        let unfit = |reason: String| Self::unfit(vdev, reason);
        let top = tree.tops.get(vdev as usize);
        let node = top.and_then(|top| tree.nodes.get(top.node));
        let (Some(top), Some(node)) = (top, node) else { return Err(unfit("it is gone".into())) };
        if !matches!(&node.shape, Shape::Raidz(raidz) if raidz.expanding()) {
            return Err(unfit("it is not being expanded".into()));
        }
        let mut leaves = Vec::with_capacity(node.children.len());
        for child in &node.children {
            match tree.nodes.get(*child).map(|node| &node.shape) {
                Some(Shape::Leaf(id)) => {
                    let leaf =
                        tree.leaves.get(*id).ok_or_else(|| unfit("a child is gone".into()))?;
                    let is_there = leaf.device().is_some() && tree.may_write(leaf);
                    // What it has not answered yet may be written at any time.
                    let is_there = is_there && leaf.stalls().is_none();
                    if !is_there || !leaf.is_complete() {
                        return Err(unfit(format!("{} is away, or lacks something", leaf.name())));
                    }
                    leaves.push((*id, leaf));
                }
                _ => return Err(unfit("a device is being replaced".into())),
            }
        }
        Ok(Self { tree, vdev, shift: top.ashift, leaves })
    }

    fn width(&self) -> u64 {
        self.leaves.len() as u64
    }

    fn guids(&self) -> Vec<Guid> {
        self.leaves.iter().map(|(_, leaf)| leaf.config.guid).collect()
    }

    fn failed(&self, what: &str, leaf: usize, error: &DeviceError) -> VdevError {
        let name = self.leaves.get(leaf).map_or_else(String::new, |(_, leaf)| leaf.name());
        Self::unfit(self.vdev, format!("{what} {name}: {error}"))
    }

    /// Reads an extent of each of the first children.
    fn read(&self, extents: &[Extent]) -> Result<Vec<Bytes>, VdevError> {
        let mut batch = Batch::new(self.tree);
        let mut places = Vec::with_capacity(extents.len());
        for (index, ((id, leaf), extent)) in self.leaves.iter().zip(extents).enumerate() {
            if extent.len == 0 {
                places.push(None);
                continue;
            }
            let place = batch.add(*id, leaf, *extent);
            let place = place.ok_or_else(|| self.failed("reading", index, &DeviceError::Gone))?;
            places.push(Some(place));
        }
        let answers = batch.run(true);
        let mut out = Vec::with_capacity(places.len());
        for (index, (place, extent)) in places.into_iter().zip(extents).enumerate() {
            let Some((op, skip)) = place else {
                out.push(Bytes::new());
                continue;
            };
            let error = match answers.get(op) {
                Some(Ok(bytes)) if bytes.len() as u64 >= skip as u64 + extent.len => {
                    out.push(bytes.slice(skip..skip + extent.len as usize));
                    continue;
                }
                Some(Err(error)) => error.clone(),
                _ => DeviceError::Gone,
            };
            return Err(self.failed("reading", index, &error));
        }
        Ok(out)
    }

    /// Writes bytes of the children to these places of their devices; all must take them.
    fn write(&self, parts: Vec<(usize, u64, Bytes)>) -> Result<(), VdevError> {
        let mut writes = Vec::with_capacity(parts.len());
        let mut of = Vec::with_capacity(parts.len());
        for (child, offset, data) in parts {
            let Some((_, leaf)) = self.leaves.get(child) else { continue };
            of.push(child);
            writes.push(LeafWrite { leaf: leaf.config.guid, offset, data });
        }
        for (child, answer) in of.into_iter().zip(self.tree.write_leaves(writes, false)) {
            answer.map_err(|error| self.failed("writing", child, &error))?;
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), VdevError> {
        let answers = self.tree.flush_leaves(&self.guids(), false);
        for (child, answer) in answers.into_iter().enumerate() {
            answer.map_err(|error| self.failed("flushing", child, &error))?;
        }
        Ok(())
    }

    /// The sectors `first..end` as the old children hold them, as the new ones will.
    fn relaid(&self, first: u64, end: u64) -> Result<Vec<(Part, Bytes)>, VdevError> {
        let (new, old) = (self.width(), self.width().saturating_sub(1).max(1));
        let from: Vec<Part> = (0..old).map(|child| part(child, old, first, end)).collect();
        let extent = |part: &Part| Extent::new(part.row << self.shift, part.rows << self.shift);
        let extents: Vec<Extent> = from.iter().map(extent).collect();
        let held = self.read(&extents)?;
        let unit = 1_usize << self.shift;
        let mut relaid = Vec::with_capacity(self.leaves.len());
        for child in 0..new {
            let to = part(child, new, first, end);
            let mut bytes = BytesMut::with_capacity((to.rows as usize).saturating_mul(unit));
            for row in to.row..to.row.saturating_add(to.rows) {
                let sector = row.saturating_mul(new).saturating_add(child);
                let (source, at) = (sector % old, sector / old);
                let start = from.get(source as usize).and_then(|part| at.checked_sub(part.row));
                let start = start.and_then(|rows| usize::try_from(rows).ok()?.checked_mul(unit));
                let found = start
                    .zip(held.get(source as usize))
                    .and_then(|(start, bytes)| bytes.get(start..start.checked_add(unit)?));
                let found = found.ok_or_else(|| Self::unfit(self.vdev, "a sector is missing"))?;
                bytes.extend_from_slice(found);
            }
            relaid.push((to, bytes.freeze()));
        }
        Ok(relaid)
    }

    /// Moves the sectors `first..end`.
    fn relay(&self, first: u64, end: u64) -> Result<(), VdevError> {
        let relaid = self.relaid(first, end)?.into_iter().enumerate();
        let parts =
            relaid.filter(|(_, (_, bytes))| !bytes.is_empty()).map(|(child, (to, bytes))| {
                (child, (to.row << self.shift).saturating_add(DATA_START), bytes)
            });
        self.write(parts.collect())
    }

    /// The scratch area's bytes of each child.
    fn scratch(&self) -> u64 {
        BOOT_TO_DATA - BOOT_TO_DATA % (1 << self.shift)
    }
}

impl VdevTree {
    /// Whether sectors of vdev `vdev` can be moved now: all of its children are devices, there, and lack nothing.
    ///
    /// # Errors
    /// [`VdevError::Unavailable`] tells which of them is not.
    pub fn check_movable(&self, vdev: u32) -> Result<(), VdevError> {
        Children::of(self, vdev).map(drop)
    }

    /// Guids of the children of vdev `vdev`.
    ///
    /// # Errors
    /// As [`VdevTree::check_movable`].
    pub fn movable_children(&self, vdev: u32) -> Result<Vec<Guid>, VdevError> {
        Children::of(self, vdev).map(|children| children.guids())
    }

    /// Up to which byte of vdev `vdev` sectors may be moved while the newest uberblock says that those before
    /// `offset` were: rows of blocks that are moved in part are still read where they were.
    pub fn reach(&self, vdev: u32, offset: u64) -> u64 {
        let Some(top) = self.tops.get(vdev as usize) else { return 0 };
        let children = self.nodes.get(top.node).map_or(0, |node| node.children.len() as u64);
        let old = children.saturating_sub(1).max(1);
        let sector = offset >> top.ashift;
        let next = sector.saturating_add(sector / old).saturating_sub(old);
        next.saturating_mul(1 << top.ashift)
    }

    /// Bytes of vdev `vdev` that go by way of the scratch area.
    pub fn scratch_reach(&self, vdev: u32) -> u64 {
        let Some(top) = self.tops.get(vdev as usize) else { return 0 };
        let children = self.nodes.get(top.node).map_or(0, |node| node.children.len() as u64);
        (BOOT_TO_DATA - BOOT_TO_DATA % (1 << top.ashift)).saturating_mul(children)
    }

    /// Moves ranges of vdev `vdev`, whole sectors, ascending, in order until `goes_on` says no: up to where all
    /// was moved, and why no more was. Not durable before [`VdevTree::flush_moved`].
    pub fn move_ranges(
        &self,
        vdev: u32,
        ranges: &[(u64, u64)],
        goes_on: &dyn Fn() -> bool,
    ) -> (Option<u64>, Result<(), VdevError>) {
        let children = match Children::of(self, vdev) {
            Ok(children) => children,
            Err(error) => return (None, Err(error)),
        };
        let shift = children.shift;
        let mut moved = None;
        for (start, end) in joined(ranges, 1 << shift) {
            let mut at = start;
            while at < end {
                if !goes_on() {
                    return (moved, Ok(()));
                }
                let stop = end.min(at.saturating_add(TOGETHER));
                if let Err(error) = children.relay(at >> shift, stop >> shift) {
                    return (moved, Err(error));
                }
                at = stop;
                moved = Some(at);
            }
        }
        (moved, Ok(()))
    }

    /// Makes durable on all children what was moved.
    ///
    /// # Errors
    /// [`VdevError::Unavailable`]: one of them did not do it.
    pub fn flush_moved(&self, vdev: u32) -> Result<(), VdevError> {
        Children::of(self, vdev)?.flush()
    }

    /// Writes the first part of vdev `vdev`, as it will lie, into the scratch areas of its children.
    ///
    /// # Errors
    /// [`VdevError::Unavailable`]: a child does not give or take it. Nothing has changed then.
    pub fn fill_scratch(&self, vdev: u32) -> Result<(), VdevError> {
        let children = Children::of(self, vdev)?;
        let sectors = (children.scratch() >> children.shift).saturating_mul(children.width());
        let relaid = children.relaid(0, sectors)?.into_iter().enumerate();
        let parts = relaid.map(|(child, (_, bytes))| (child, BOOT_START, bytes));
        children.write(parts.collect())?;
        children.flush()
    }

    /// Copies the scratch areas of the children of vdev `vdev` to where their content belongs.
    ///
    /// # Errors
    /// [`VdevError::Unavailable`]: a child does not give or take it; what is in the scratch areas counts then.
    pub fn empty_scratch(&self, vdev: u32) -> Result<(), VdevError> {
        let children = Children::of(self, vdev)?;
        let extent = Extent { offset: 0, len: children.scratch(), scratch: true };
        let held = children.read(&vec![extent; children.leaves.len()])?.into_iter().enumerate();
        children.write(held.map(|(child, bytes)| (child, DATA_START, bytes)).collect())?;
        children.flush()
    }
}

impl VdevTree {
    /// Has nobody write blocks to vdevs that are being expanded, until what this gives is dropped. Nobody reads by
    /// places that were left before, either.
    ///
    /// # Errors
    /// [`VdevError::Unfit`] if somebody does so for longer than `patience`.
    pub fn move_sectors(&self, patience: Duration) -> Result<Moving<'_>, VdevError> {
        self.expansion.alone(patience)
    }

    /// How far a running expansion has come, as of the newest uberblock on the disks.
    pub fn reflow(&self) -> Reflow {
        *self.expansion.place()
    }

    /// Sets how far a running raidz expansion has come, from the uberblock's word at byte 208.
    pub fn set_reflow_word(&self, word: u64) {
        self.expansion.set(Reflow::from_word(word));
    }

    /// The id of the vdev that is being expanded.
    pub fn expanding(&self) -> Option<u32> {
        self.topology().top_of(self.expansion.of?)
    }

    /// An uberblock is not on all devices.
    pub fn note_unspread(&self) {
        self.expansion.unspread.store(true, SeqCst);
    }

    /// Whether the newest uberblock may not be on all devices; not any more from now on.
    pub fn take_unspread(&self) -> bool {
        self.expansion.unspread.swap(false, SeqCst)
    }

    /// Whether somebody wanted that since this was last asked.
    pub fn take_move_again(&self) -> bool {
        self.expansion.again.swap(false, SeqCst)
    }
}

/// The ranges, those joined that lie near each other.
fn joined(ranges: &[(u64, u64)], unit: u64) -> Vec<(u64, u64)> {
    let mut out: Vec<(u64, u64)> = Vec::with_capacity(ranges.len());
    for (start, end) in ranges.iter().filter(|(start, end)| start < end) {
        match out.last_mut() {
            Some(last) if start.saturating_sub(last.1) <= GAP.max(unit) => {
                last.1 = last.1.max(*end)
            }
            _ => out.push((*start, *end)),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sectors_lie_on_children_row_by_row() {
        for width in 1..6 {
            for first in 0..20 {
                for end in first..30 {
                    for child in 0..width {
                        let own: Vec<u64> = (first..end)
                            .filter(|s| s % width == child)
                            .map(|s| s / width)
                            .collect();
                        let found = part(child, width, first, end);
                        assert_eq!(found.rows, own.len() as u64);
                        if let Some(row) = own.first() {
                            assert_eq!(found.row, *row);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn near_ranges_are_joined() {
        let ranges = [(0, 4096), (8192, 12288), (1 << 20, 2 << 20), (2 << 20, 3 << 20)];
        assert_eq!(joined(&ranges, 4096), [(0, 12288), (1 << 20, 3 << 20)]);
    }
}
