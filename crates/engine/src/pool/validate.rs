//! Whether the device found for a leaf really is that leaf.
//!
//! Invariant: a device passes only if a verified label of it says so. Chapter 01, section 11.3.

use cenote_format::config::VdevConfig;
use cenote_format::{Guid, Txg};

use super::discover::FoundDevice;
use super::found_labels::{FoundLabel, best_label};
use crate::vdev::Aux;

/// How strictly labels are held against the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strictness {
    /// Identity of the pool.
    pub pool: Guid,
    /// The tree is the pool's own, not one made of labels.
    pub trusted: bool,
    /// Labels after this group do not count; none when no uberblock is chosen yet, or when going
    /// back further than labels can tell.
    pub limit: Option<Txg>,
}

/// Checks that `found` is the leaf `node` below the top-level vdev of guid `top`; else tells what to
/// call it.
pub fn check_label(
    node: &VdevConfig,
    top: Guid,
    found: &FoundDevice,
    strictness: &Strictness,
) -> Result<(), Aux> {
    let is_split_off = |label: &FoundLabel| label.config.split_guid == Some(strictness.pool);
    let Some(label) = best_label(&found.labels, strictness.limit) else {
        // The new pool counts on from the group of the split, where this one may not have come to yet.
        let has_left = best_label(&found.labels, None).is_some_and(is_split_off);
        return Err(if has_left { Aux::SplitPool } else { Aux::BadLabel });
    };
    let config = &label.config;
    if is_split_off(label) {
        return Err(Aux::SplitPool);
    }
    match config.pool_guid {
        Some(guid) if guid == strictness.pool || !strictness.trusted => {}
        _ => return Err(Aux::CorruptData),
    }
    let (Some(guid), Some(top_guid), Some(_)) = (config.guid, config.top_guid, config.state) else {
        return Err(Aux::CorruptData);
    };
    let original = config.vdev_tree.as_ref().and_then(|tree| tree.original_guid);
    if node.guid == guid || Some(node.guid) == original {
        return Ok(());
    }
    // After a detach the survivor has its former parent's guid, which labels tell only later.
    let adopted = if strictness.trusted {
        node.guid == top && node.guid == top_guid
    } else {
        node.guid == top_guid || top == guid
    };
    if adopted { Ok(()) } else { Err(Aux::CorruptData) }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::pool::assemble::assemble;
    use crate::pool::found_labels::read_labels;
    use crate::pool::testing::{POOL, config, leaf, mirror, write_label};
    use cenote_format::config::PoolConfig;

    fn strict(limit: Option<u64>) -> Strictness {
        Strictness { pool: POOL, trusted: true, limit: limit.map(Txg) }
    }

    #[test]
    fn each_reason_has_its_name() {
        let (shelf, tree) = mirror(7);
        let device = shelf.devices[Path::new("/b")].clone();
        let pool = assemble(&shelf.scan()).pop().unwrap();
        let (first, second) = (&tree.children()[0], &tree.children()[1]);
        let found = pool.device(first).unwrap();
        let check = |strictness| check_label(first, tree.guid, found, &strictness);
        assert_eq!(check(strict(Some(7))), Ok(()));
        assert_eq!(check(strict(Some(6))), Err(Aux::BadLabel));
        let other = Strictness { pool: Guid(5), ..strict(None) };
        assert_eq!(check(other), Err(Aux::CorruptData));
        assert_eq!(check(Strictness { trusted: false, ..other }), Ok(()));
        assert_eq!(check_label(second, tree.guid, found, &strict(None)), Err(Aux::CorruptData));

        let split = PoolConfig { split_guid: Some(POOL), ..config(&tree, 12, 9, 1) };
        write_label(&device, 1, &split);
        let labels = read_labels(&*device).unwrap();
        let found = FoundDevice { labels, ..(**pool.device(second).unwrap()).clone() };
        assert_eq!(check_label(second, tree.guid, &found, &strict(None)), Err(Aux::SplitPool));
        let (labels, limit) = (found.labels.clone(), strict(Some(6)));
        let only = |index| labels.iter().filter(|label| label.index == index).cloned().collect();
        let split = FoundDevice { labels: only(1), ..found.clone() };
        assert_eq!(check_label(second, tree.guid, &split, &limit), Err(Aux::SplitPool));
        let newer = FoundDevice { labels: only(0), ..found };
        assert_eq!(check_label(second, tree.guid, &newer, &limit), Err(Aux::BadLabel));
    }

    #[test]
    fn a_survivor_may_carry_its_parents_guid() {
        let (shelf, tree) = mirror(7);
        let pool = assemble(&shelf.scan()).pop().unwrap();
        let found = pool.devices.get(&Guid(11)).unwrap();
        let survivor = leaf(0, tree.guid.0, "/a");
        assert_eq!(check_label(&survivor, tree.guid, found, &strict(None)), Ok(()));
        let nested = check_label(&survivor, Guid(55), found, &strict(None));
        assert_eq!(nested, Err(Aux::CorruptData));
    }
}
