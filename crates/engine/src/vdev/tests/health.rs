//! States of the tree as devices fail, are given up, and come back.

use super::rig::*;
use crate::vdev::*;
use cenote_device::{Device, Health, SimDevice};
use cenote_format::Guid;
use cenote_format::config::{VdevConfig, VdevKind};
use parking_lot::Mutex;
use std::sync::Arc;

fn mirror_rig() -> (Rig, BlockRead, Vec<u8>) {
    let rig = Rig::new(root(12, vec![group(VdevKind::Mirror, 100, leaves(1..3))]));
    let read = block(0, 0, 4096, 10);
    let data = Random(1).bytes(4096);
    rig.write(&read, &data);
    (rig, read, data)
}

#[test]
fn a_silent_disk_is_given_up_and_comes_back() {
    let (rig, read, data) = mirror_rig();
    rig.disk(1).set_health(Health::Hangs);
    assert_eq!(rig.read(&read).unwrap(), data);
    assert_eq!(rig.state(1), VdevState::Unavailable);
    assert_eq!(rig.tree.condition().state, VdevState::Degraded);
    let asked = rig.disk(1).counts().0;
    assert_eq!(rig.read(&read).unwrap(), data);
    assert_eq!(rig.disk(1).counts().0, asked);
    rig.disk(1).heal();
    assert!(!rig.tree.probe());
    rig.wait(FIRST_PAUSE.as_secs() + 1);
    assert!(rig.tree.probe());
    assert_eq!(rig.state(1), VdevState::Online);
    assert_eq!(rig.tree.condition(), Condition::ONLINE);
    rig.disk(2).set_health(Health::Gone);
    assert_eq!(rig.read(&block(0, 1 << 21, 4096, 10)).unwrap().len(), 4096);
    assert_eq!(rig.read(&read).unwrap(), data);
    assert_eq!(rig.state(2), VdevState::Removed);
    assert_eq!(rig.errors(1), (1, 0));
}

#[test]
fn failing_disks_are_faulted_unless_they_are_the_last() {
    let (rig, read, data) = mirror_rig();
    rig.disk(1).fail_range(DATA_START..DATA_START + 4096);
    for _ in 0..ERROR_LIMIT {
        assert_eq!(rig.read(&read).unwrap(), data);
    }
    assert_eq!(rig.state(1), VdevState::Faulted);
    rig.disk(2).fail_range(DATA_START..DATA_START + 4096);
    for _ in 0..ERROR_LIMIT {
        assert!(rig.read(&read).is_err());
    }
    // Shown as it is, and used all the same.
    assert_eq!(rig.state(2), VdevState::Faulted);
    assert_eq!(rig.tree.condition().state, VdevState::Degraded);
    assert!(rig.tree.is_readable(0));
    rig.tree.clear(None);
    assert_eq!(rig.tree.condition(), Condition::ONLINE);
    assert_eq!(rig.errors(1), (0, 0));
}

#[test]
fn recovery_asks_even_devices_that_were_given_up() {
    let (rig, read, data) = mirror_rig();
    rig.disk(1).set_health(Health::Hangs);
    assert_eq!(rig.read(&read).unwrap(), data);
    rig.disk(1).heal();
    rig.corrupt(2);
    assert_eq!(rig.recover(&read, &data).unwrap().liars, [Guid(2)]);
    assert_eq!(rig.state(1), VdevState::Online);
}

#[test]
fn liars_are_degraded_and_the_whole_pool_with_them() {
    let (rig, read, data) = mirror_rig();
    rig.corrupt(1);
    for _ in 0..ERROR_LIMIT {
        assert_eq!(rig.recover(&read, &data).unwrap().data, data);
    }
    assert_eq!(rig.state(1), VdevState::Degraded);
    assert_eq!(rig.errors(1), (0, ERROR_LIMIT as u64));
    // A worn side is asked last.
    assert_eq!(rig.read(&read).unwrap(), data);
}

#[test]
fn nothing_intact_is_counted_where_it_belongs() {
    let (rig, read, data) = mirror_rig();
    rig.corrupt(1);
    rig.corrupt(2);
    let error = rig.recover(&read, &data).unwrap_err();
    assert!(matches!(error, VdevError::NoIntactCopy { .. }));
    assert_eq!((rig.errors(1), rig.errors(2), rig.errors(100)), ((0, 1), (0, 1), (0, 0)));
    let rig = Rig::new(root(12, vec![raidz(100, 1, leaves(1..4))]));
    rig.write(&read, &data);
    rig.corrupt(1);
    rig.corrupt(2);
    assert!(rig.recover(&block(0, 0, 8192, 10), &data).is_err());
    assert_eq!((rig.errors(1), rig.errors(3), rig.errors(100)), ((0, 0), (0, 0), (0, 1)));
}

#[test]
fn configured_states_and_late_devices() {
    let mut children = leaves(1..6);
    children[0].offline = true;
    children[1].aux_state = Some("external".into());
    children[1].faulted = true;
    children[2].degraded = true;
    children[3].removed = true;
    let root = root(12, vec![raidz(100, 3, children)]);
    let present: Arc<Mutex<Vec<u64>>> = Arc::new(Mutex::new(vec![1, 2, 3, 5]));
    let seen = present.clone();
    let opener = move |leaf: &VdevConfig| {
        assert!(leaf.guid != Guid(1) && leaf.guid != Guid(2));
        if !seen.lock().contains(&leaf.guid.0) {
            return Err(LeafUnavailable::open_failed("not there"));
        }
        Ok(Arc::new(SimDevice::new(leaf.guid.to_string(), DISK)) as Arc<dyn Device>)
    };
    let tree = VdevTree::build(&root, Arc::new(opener)).unwrap();
    let states = |tree: &VdevTree| {
        let status = tree.status().unwrap();
        [1, 2, 3, 4, 5, 100].map(|guid| status.find(Guid(guid)).unwrap().condition.state)
    };
    use VdevState::{Degraded, Faulted, Offline, Online, Removed};
    assert_eq!(states(&tree), [Offline, Faulted, Degraded, Removed, Online, Degraded]);
    present.lock().push(4);
    assert!(tree.reopen());
    assert_eq!(states(&tree)[3], Online);
    assert!(!tree.reopen());
    assert_eq!(tree.devices().len(), 3);
}

#[test]
fn too_small_devices_are_refused() {
    let mut top = raidz(100, 1, leaves(1..4));
    let rig = Rig::new(root(12, vec![top.clone()]));
    assert_eq!(rig.tree.condition(), Condition::ONLINE);
    let size = allocatable(DISK as u64) * 3 + (1 << 24);
    let mut config = root(12, vec![top.clone()]);
    let children = config.children.as_mut().unwrap();
    let record = children[0].top.as_mut().unwrap();
    (record.asize, record.metaslab_shift) = (size, 20);
    let rig = Rig::new(config);
    let status = rig.tree.status().unwrap();
    assert_eq!(status.find(Guid(1)).unwrap().condition.aux, Aux::BadLabel);
    assert_eq!(rig.tree.condition(), Condition::new(VdevState::Unavailable, Aux::NoReplicas));
    top.children = Some(leaves(1..4));
    let rig = Rig::with_disk_size(root(12, vec![top]), 32 << 20);
    let status = rig.tree.status().unwrap();
    assert_eq!(status.find(Guid(2)).unwrap().condition.aux, Aux::TooSmall);
}

#[test]
fn logs_may_be_missing() {
    let mut config = root(12, vec![leaf(1), leaf(2)]);
    config.children.as_mut().unwrap()[1].top.as_mut().unwrap().is_log = true;
    let opener = |leaf: &VdevConfig| match leaf.guid {
        Guid(1) => Ok(Arc::new(SimDevice::new("1", DISK)) as Arc<dyn Device>),
        _ => Err(LeafUnavailable::open_failed("not there")),
    };
    let tree = VdevTree::build(&config, Arc::new(opener)).unwrap();
    assert_eq!(tree.condition().state, VdevState::Degraded);
    assert_eq!(tree.class(1), AllocationClass::Log);
    assert!(tree.is_readable(0) && !tree.is_readable(1));
    let classes = [AllocationClass::Special, AllocationClass::Log];
    let tree = tree.with_topology(tree.topology().with_classes(&classes)).unwrap();
    assert_eq!(tree.status().unwrap().children[0].class, AllocationClass::Special);
}

#[test]
#[allow(clippy::single_range_in_vec_init, reason = "lists of ranges are what this is about")]
fn a_leaf_is_required_where_something_is_out_of_reach_without_it() {
    let (rig, ..) = mirror_rig();
    assert!(!rig.tree.is_required(Guid(1)) && !rig.tree.is_required(Guid(2)));
    // Blocks of one group: some are on this leaf only, some on that.
    for guid in [1, 2] {
        rig.tree.set_missing_txgs(Guid(guid), vec![10..12]);
    }
    assert!(rig.tree.is_required(Guid(1)) && rig.tree.is_required(Guid(2)));
    // What the one that is away may bring back is nowhere else.
    rig.tree.set_missing_txgs(Guid(2), Vec::new());
    rig.tree.rest(Guid(2));
    assert!(rig.tree.is_required(Guid(2)) && !rig.tree.is_blank(Guid(2)));
    rig.tree.wake(Guid(2));
    rig.tree.set_missing_txgs(Guid(1), Vec::new());
    assert!(!rig.tree.is_required(Guid(2)));
}
