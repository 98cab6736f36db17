//! Whether the device found for a leaf really is that leaf.
//!
//! Invariant: a device passes only if a verified label of it says so, and only if it is large enough for
//! what the pool keeps on it. Chapter 01, sections 11.3 and 19.1.

use cenote_format::config::{VdevConfig, VdevKind};
use cenote_format::label;
use cenote_format::{Guid, Txg};

use super::choose::best_label;
use super::discover::FoundDevice;
use super::health::{Health, VdevAux, VdevState};

/// How strictly labels are held against the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Strictness {
    /// Identity of the pool.
    pub pool: Guid,
    /// The tree is the pool's own, not one made of labels.
    pub trusted: bool,
    /// Labels after this group do not count; none when no uberblock is chosen yet.
    pub limit: Option<Txg>,
}

/// The health of the leaf `node` below the top-level vdev `top`, given the device found for it.
pub fn leaf_health(
    node: &VdevConfig,
    top: &VdevConfig,
    found: Option<&FoundDevice>,
    strictness: &Strictness,
) -> Health {
    if !node.kind.has_device() {
        // A placeholder stands for nothing that could fail; a distributed spare lives in its draid.
        return Health::ONLINE;
    }
    if node.aux_state.as_deref() == Some("external") {
        return Health::new(VdevState::Faulted, VdevAux::External);
    }
    if node.offline {
        return Health::new(VdevState::Offline, VdevAux::None);
    }
    let Some(found) = found else {
        return Health::new(VdevState::CannotOpen, VdevAux::OpenFailed);
    };
    if label::leaf_asize(found.device.size()) < minimum_asize(top) {
        return Health::new(VdevState::CannotOpen, VdevAux::BadLabel);
    }
    match check_label(node, top, found, strictness) {
        Ok(()) => Health::ONLINE,
        Err(aux) => Health::new(VdevState::CannotOpen, aux),
    }
}

fn check_label(
    node: &VdevConfig,
    top: &VdevConfig,
    found: &FoundDevice,
    strictness: &Strictness,
) -> Result<(), VdevAux> {
    let label = best_label(&found.labels, strictness.limit).ok_or(VdevAux::BadLabel)?;
    let config = &label.config;
    if config.split_guid == Some(strictness.pool) {
        return Err(VdevAux::SplitPool);
    }
    match config.pool_guid {
        Some(guid) if guid == strictness.pool || !strictness.trusted => {}
        _ => return Err(VdevAux::CorruptData),
    }
    let (Some(guid), Some(top_guid), Some(_)) = (config.guid, config.top_guid, config.state) else {
        return Err(VdevAux::CorruptData);
    };
    let original = config.vdev_tree.as_ref().and_then(|tree| tree.original_guid);
    if node.guid == guid || Some(node.guid) == original {
        return Ok(());
    }
    // After a detach the survivor has its former parent's guid, which labels tell only later.
    let is_top = node.guid == top.guid;
    let adopted = if strictness.trusted {
        is_top && node.guid == top_guid
    } else {
        node.guid == top_guid || top.guid == guid
    };
    if adopted { Ok(()) } else { Err(VdevAux::CorruptData) }
}

/// The fewest allocatable bytes a leaf below `top` must have; 0 where the config does not tell.
pub fn minimum_asize(top: &VdevConfig) -> u64 {
    let Some(keys) = top.top else { return 0 };
    let unit = 1u64.checked_shl(keys.metaslab_shift.min(63) as u32).unwrap_or(1);
    let whole = keys.asize / unit * unit;
    let children = top.children().len() as u64;
    match top.kind {
        VdevKind::Raidz => {
            let children = children.saturating_sub(u64::from(top.raidz_expanding));
            whole.div_ceil(children.max(1))
        }
        VdevKind::Draid => {
            const ROW: u64 = 16 << 20;
            let spares = top.draid.map_or(0, |draid| draid.spares);
            let share = whole.div_ceil(children.saturating_sub(spares).max(1));
            share
                .checked_next_multiple_of(ROW)
                .map_or(u64::MAX, |rows| rows.saturating_add(2 * ROW))
        }
        _ => whole,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::assemble::assemble;
    use crate::pool::testing::{POOL, leaf, mirror, top, write_label};
    use cenote_format::label::TAIL_SIZE;
    use std::path::Path;

    fn strict(limit: Option<u64>) -> Strictness {
        Strictness { pool: POOL, trusted: true, limit: limit.map(Txg) }
    }

    #[test]
    fn each_reason_has_its_word() {
        let (shelf, tree) = mirror(7);
        let device = shelf.devices[Path::new("/b")].clone();
        let pool = assemble(&shelf.scan()).pop().unwrap();
        let nodes = tree.children();
        let health = |node: &VdevConfig, strictness: &Strictness| {
            let found = pool.devices.get(&node.guid).map(|found| &**found);
            leaf_health(node, &tree, found, strictness)
        };
        assert_eq!(health(&nodes[0], &strict(Some(7))), Health::ONLINE);
        assert_eq!(health(&nodes[0], &strict(Some(6))).aux, VdevAux::BadLabel);
        let absent = leaf(2, 99, "/c");
        assert_eq!(health(&absent, &strict(None)).aux, VdevAux::OpenFailed);
        let other = Strictness { pool: Guid(5), ..strict(None) };
        assert_eq!(health(&nodes[0], &other).aux, VdevAux::CorruptData);
        let untrusted = Strictness { trusted: false, ..other };
        assert_eq!(health(&nodes[0], &untrusted), Health::ONLINE);
        let offline = VdevConfig { offline: true, ..nodes[0].clone() };
        assert_eq!(health(&offline, &strict(None)).state, VdevState::Offline);
        let faulted = VdevConfig { aux_state: Some("external".into()), ..nodes[0].clone() };
        assert_eq!(health(&faulted, &strict(None)).state, VdevState::Faulted);

        let split = cenote_format::config::PoolConfig {
            split_guid: Some(POOL),
            ..crate::pool::testing::config(&tree, 12, 9, 1)
        };
        write_label(&device, 1, &split);
        let labels = super::super::discover::read_labels(&*device).unwrap();
        let found = FoundDevice { labels, ..(**pool.devices.get(&Guid(12)).unwrap()).clone() };
        let aux = leaf_health(&nodes[1], &tree, Some(&found), &strict(None)).aux;
        assert_eq!(aux, VdevAux::SplitPool);
    }

    #[test]
    fn a_survivor_may_carry_its_parents_guid() {
        let (shelf, tree) = mirror(7);
        let pool = assemble(&shelf.scan()).pop().unwrap();
        let found = pool.devices.get(&Guid(11)).unwrap();
        let survivor = top(VdevKind::File, 0, 0, vec![leaf(0, tree.guid.0, "/a")]);
        let health = leaf_health(&survivor, &survivor, Some(found), &strict(None));
        assert_eq!(health, Health::ONLINE);
        let nested = leaf(0, tree.guid.0, "/a");
        let above = top(VdevKind::Mirror, 0, 55, vec![]);
        let health = leaf_health(&nested, &above, Some(found), &strict(None));
        assert_eq!(health.aux, VdevAux::CorruptData);
    }

    #[test]
    fn a_device_that_shrank_is_not_used() {
        let (shelf, mut tree) = mirror(7);
        let pool = assemble(&shelf.scan()).pop().unwrap();
        let found = pool.devices.get(&Guid(11)).unwrap();
        let asize = found.device.size() - label::DATA_START - TAIL_SIZE;
        let mut keys = tree.top.unwrap();
        (keys.asize, keys.metaslab_shift) = (asize, 12);
        tree.top = Some(keys);
        let node = tree.children()[0].clone();
        assert_eq!(leaf_health(&node, &tree, Some(found), &strict(None)), Health::ONLINE);
        keys.asize += 4096;
        tree.top = Some(keys);
        let health = leaf_health(&node, &tree, Some(found), &strict(None));
        assert_eq!(health.aux, VdevAux::BadLabel);
    }

    #[test]
    fn shares_of_a_raidz_child() {
        let children = (0..3).map(|id| leaf(id, 11 + id, "/x")).collect();
        let mut raidz = top(VdevKind::Raidz, 0, 10, children);
        let mut keys = raidz.top.unwrap();
        (keys.asize, keys.metaslab_shift) = (3 * (1 << 24) + 5, 24);
        raidz.top = Some(keys);
        assert_eq!(minimum_asize(&raidz), 1 << 24);
        raidz.raidz_expanding = true;
        assert_eq!(minimum_asize(&raidz), 3 << 23);
    }
}
