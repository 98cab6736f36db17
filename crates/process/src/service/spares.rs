//! What the list of spares says of spares in use, and how large distributed spares are.
//!
//! Invariant: a spare is in use if and only if it stands in the tree of devices, too.

use std::collections::BTreeSet;

use cenote_control::report::{PoolReport, VdevReason, VdevReport, VdevState};

/// Sizes are cut down to a multiple of this many bytes: that of a label.
const LABEL: u64 = 256 << 10;
/// The kind of distributed spares.
const DISTRIBUTED: &str = "dspare";

/// Marks the spares that stand in for another device, and gives distributed spares their size. The
/// sizes of devices are known already.
pub fn mark(report: &mut PoolReport) {
    for top in &mut report.root.children {
        if top.kind != "draid" {
            continue;
        }
        let Some(size) = smallest(top).map(|size| size - size % LABEL) else { continue };
        give(top, size);
        // `draid1-ID-NUMBER` is a spare of `draid1:3d:6c:1s-ID`.
        let id = top.name.rsplit('-').next();
        let own = |spare: &&mut VdevReport| {
            spare.kind == DISTRIBUTED && spare.name.split('-').nth(1) == id
        };
        report.spares.iter_mut().filter(own).for_each(|spare| give(spare, size));
    }
    let mut in_use = BTreeSet::new();
    note(&report.root, &mut in_use);
    for spare in report.spares.iter_mut().filter(|spare| in_use.contains(&spare.guid)) {
        spare.state = VdevState::CannotOpen;
        spare.reason = VdevReason::Spared;
    }
}

/// The size of the smallest device of a group.
fn smallest(vdev: &VdevReport) -> Option<u64> {
    let own = vdev.is_leaf() && vdev.kind != DISTRIBUTED && vdev.physical_size != 0;
    let below = vdev.children.iter().filter_map(smallest);
    below.chain(own.then_some(vdev.physical_size)).min()
}

/// Gives the distributed spares from here on down their size.
fn give(vdev: &mut VdevReport, size: u64) {
    if vdev.kind == DISTRIBUTED && matches!(vdev.state, VdevState::Online | VdevState::Degraded) {
        vdev.physical_size = size;
    }
    vdev.children.iter_mut().for_each(|child| give(child, size));
}

fn note(vdev: &VdevReport, guids: &mut BTreeSet<u64>) {
    if vdev.is_leaf() {
        guids.insert(vdev.guid);
    }
    vdev.children.iter().for_each(|child| note(child, guids));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vdev(kind: &str, name: &str, guid: u64, children: Vec<VdevReport>) -> VdevReport {
        let physical_size = if kind == "file" { (112 << 20) + guid } else { 0 };
        let (kind, name, state) = (kind.to_owned(), name.to_owned(), VdevState::Online);
        VdevReport { kind, name, guid, state, physical_size, children, ..VdevReport::default() }
    }

    /// As OpenZFS 2.1.11 says it of such a pool.
    #[test]
    fn a_distributed_spare_in_use_is_marked_and_has_a_size() {
        let files = |from, to| (from..to).map(|guid| vdev("file", "d", guid, Vec::new()));
        let spare = || vdev("dspare", "draid1-0-0", 51, Vec::new());
        let mut off = vdev("file", "d", 50, Vec::new());
        (off.state, off.physical_size) = (VdevState::Offline, 0);
        let pair = vdev("spare", "spare-1", 60, vec![off, spare()]);
        let children = files(1, 6).chain([pair]).collect();
        let top = vdev("draid", "draid1:3d:6c:1s-0", 70, children);
        let mut report = PoolReport {
            root: vdev("root", "tank", 80, vec![top]),
            spares: vec![spare(), vdev("file", "d9", 9, Vec::new())],
            ..PoolReport::default()
        };
        mark(&mut report);
        let [used, free] = &report.spares[..] else { panic!() };
        assert_eq!((used.state, used.reason), (VdevState::CannotOpen, VdevReason::Spared));
        assert_eq!((free.state, free.reason), (VdevState::Online, VdevReason::None));
        let active = &report.root.children[0].children[5].children[1];
        assert_eq!((used.physical_size, active.physical_size), (112 << 20, 112 << 20));
        assert_eq!(active.state, VdevState::Online);
    }
}
