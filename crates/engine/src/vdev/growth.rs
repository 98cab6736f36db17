//! Devices that have grown, and vdevs whose devices are all larger than what is used of them.
//!
//! Chapter 03, section 1. Invariant: nothing is used of a device before the pool's configuration says so; what a
//! vdev could have is told only while all devices below it are there, for one that is away may be smaller.

use super::leaf::{DATA_START, Leaf, SMALLEST_DEVICE};
use super::state::VdevState;
use super::tree::{NodeId, Shape, VdevTree};
use cenote_device::Device;
use cenote_format::Guid;
use cenote_format::config::TopLevel;
use std::sync::Arc;

/// Bytes of a label.
const LABEL: u64 = 256 << 10;
/// Bytes at the end of a device that hold labels.
const END: u64 = 2 * LABEL;

/// Most metaslabs of a top-level vdev.
pub const METASLABS_MAX: u64 = 1 << 20;

/// Size of the smallest device of which so many bytes can be allocated.
fn size_of(allocatable: u64) -> u64 {
    let all = allocatable.saturating_add(DATA_START + END);
    all.checked_next_multiple_of(LABEL).unwrap_or(u64::MAX)
}

impl VdevTree {
    /// Looks how large the devices are now. True if one has grown: its labels belong elsewhere.
    pub fn measure(&self) -> bool {
        let grown = |before: u64, now: u64| now > before;
        let devices = self.leaves.iter().filter_map(|leaf| leaf.device());
        let any = devices.filter(|one| grown(one.size(), one.measure())).count() > 0;
        if any {
            self.refresh();
        }
        any
    }

    /// All that the device of the leaf `guid` has, or those of all leaves, counts for their vdevs from now on.
    pub fn count_all(&self, guid: Option<Guid>) {
        let wanted = |leaf: &&Leaf| guid.is_none_or(|guid| leaf.config.guid == guid);
        self.leaves.iter().filter(wanted).for_each(Leaf::count_all);
        self.refresh();
    }

    /// Bytes that a device needs which comes beside `vdev` or one of its devices, or in its place.
    pub fn size_needed(&self, vdev: Guid) -> Option<u64> {
        let below: Vec<Guid> =
            self.topology().find(vdev)?.devices().map(|leaf| leaf.guid).collect();
        let leaf = self.leaves.iter().find(|leaf| below.contains(&leaf.config.guid))?;
        Some(size_of(leaf.minimum).max(SMALLEST_DEVICE))
    }

    /// Allocatable bytes that the top-level vdev `id` has more than its configuration says, if leaves have
    /// what `of` says.
    fn unused(&self, id: u32, of: &dyn Fn(&Leaf) -> u64) -> u64 {
        let recorded = self.recorded(id).map_or(u64::MAX, |top| top.asize);
        let now = self.tops.get(id as usize).map_or(0, |top| self.node_asize(top.node, of));
        now.saturating_sub(recorded)
    }

    /// Whole metaslabs that the top-level vdev `id` would grow by if all of its devices counted.
    pub fn expandable(&self, id: u32) -> u64 {
        self.in_metaslabs(id, self.unused(id, &Leaf::asize))
    }

    /// Bytes by which a leaf has grown that do not count yet, in whole metaslabs of its vdev.
    pub(super) fn uncounted(&self, leaf: &Leaf) -> u64 {
        self.in_metaslabs(leaf.top, leaf.asize().saturating_sub(leaf.counted()))
    }

    fn in_metaslabs(&self, id: u32, bytes: u64) -> u64 {
        let shift = self.recorded(id).map_or(0, |top| top.metaslab_shift.min(63));
        bytes - bytes % (1 << shift)
    }

    /// The top-level vdevs that can grow, and the bytes they then have.
    pub fn growable(&self) -> Vec<(u32, u64)> {
        let all = (0..self.top_count()).filter_map(|id| {
            let (top, recorded) = (self.topology().top(id)?, self.recorded(id)?);
            let may = top.kind.is_concrete()
                && recorded.removing != Some(1)
                && !top.raidz_expanding
                && self.top_condition(id).is_some_and(|now| now.state == VdevState::Online);
            let unused = self.unused(id, &Leaf::counted);
            // What is cut into more metaslabs than that cannot be opened again.
            let most = METASLABS_MAX.checked_shl(recorded.metaslab_shift.min(43) as u32)?;
            let size = recorded.asize.saturating_add(unused).min(most);
            (may && size > recorded.asize).then_some((id, size))
        });
        all.collect()
    }

    /// Where a range of a top-level vdev's address space lies in the allocatable area of the leaf `guid` below
    /// it: bytes from and to, empty if nothing of it does. `None` where that is no single range.
    pub fn on_leaf(&self, guid: Guid, (start, end): (u64, u64)) -> Option<(u64, u64)> {
        let leaf = self.leaves.iter().find(|leaf| leaf.config.guid == guid)?;
        let top = self.tops.get(leaf.top as usize)?;
        let node = self.nodes.get(top.node)?;
        match &node.shape {
            Shape::Leaf(_) | Shape::Copies => Some((start, end)),
            Shape::Raidz(raidz) if !raidz.expanding() => {
                let own = node.children.iter().position(|child| self.is_at_or_below(*child, guid));
                let (column, width) = (own? as u64, node.children.len().max(1) as u64);
                // The first row in which a sector at or after this one is on the device.
                let row = |at: u64| {
                    let sector = at >> top.ashift;
                    let row = sector / width + u64::from(sector % width > column);
                    row.checked_shl(top.ashift)
                };
                Some((row(start)?, row(end)?))
            }
            _ => None,
        }
    }

    fn is_at_or_below(&self, node: NodeId, guid: Guid) -> bool {
        self.nodes.get(node).is_some_and(|node| {
            node.config.guid == guid || node.children.iter().any(|c| self.is_at_or_below(*c, guid))
        })
    }

    /// The leaf `guid` is there and is written to.
    pub fn is_written_to(&self, guid: Guid) -> bool {
        self.leaves.iter().any(|leaf| leaf.config.guid == guid && self.may_write(leaf))
    }

    /// The device of the leaf `guid`, if it is there.
    pub fn device_of(&self, guid: Guid) -> Option<Arc<dyn Device>> {
        self.leaves.iter().find(|leaf| leaf.config.guid == guid)?.device()
    }

    fn recorded(&self, id: u32) -> Option<TopLevel> {
        let top = self.topology().top(id)?.top?;
        (top.metaslab_shift != 0).then_some(top)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vdev::allocatable;

    #[test]
    fn the_smallest_device_that_does_is_told() {
        for bytes in [1, 4096, LABEL, LABEL + 1, 100 << 20, (100 << 20) + 512] {
            let size = size_of(bytes);
            assert!(allocatable(size) >= bytes && allocatable(size - 1) < bytes, "{bytes}");
        }
    }
}
