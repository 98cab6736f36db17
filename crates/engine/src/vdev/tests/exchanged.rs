//! One tree follows another: what both have goes on, what only one has does not touch the other.

#![allow(clippy::single_range_in_vec_init, reason = "lists of ranges are what this is about")]

use super::rig::*;
use crate::vdev::*;
use cenote_device::{Device, Health, SimDevice};
use cenote_format::config::{VdevConfig, VdevKind};
use cenote_format::indirect_mapping::{Mapping, MappingEntry};
use cenote_format::{Dva, Guid, ObjectId, Txg};
use std::sync::Arc;

const T: Txg = Txg(50);

/// Opens one new disk of guid `guid`, and nothing else.
fn only(guid: u64) -> (Arc<SimDevice>, Arc<dyn LeafOpener>) {
    let disk = Arc::new(SimDevice::new(guid.to_string(), DISK));
    let new = disk.clone();
    let opener = move |leaf: &VdevConfig| match leaf.guid == Guid(guid) {
        true => Ok(new.clone() as Arc<dyn Device>),
        false => panic!("device {} is opened again", leaf.guid),
    };
    (disk, Arc::new(opener))
}

fn checksum_errors(tree: &VdevTree, guid: u64) -> u64 {
    tree.status().unwrap().find(Guid(guid)).unwrap().stats.checksum_errors
}

fn state(tree: &VdevTree, guid: u64) -> VdevState {
    tree.status().unwrap().find(Guid(guid)).unwrap().condition.state
}

#[test]
fn a_disk_becomes_a_mirror_and_one_again() {
    let rig = Rig::new(root(12, vec![leaf(1), leaf(2)]));
    let read = block(0, 0, 8192, 10);
    let data = Random(1).bytes(8192);
    rig.write(&read, &data);
    rig.tree.add_missing_txgs(Guid(1), 40..42);
    let (disk, opener) = only(3);
    let topology = rig.tree.topology().attach(Guid(1), leaf(3), Guid(9), T).unwrap();
    let two = rig.tree.succeeded_by(topology, opener).unwrap();
    two.set_missing_txgs(Guid(3), vec![4..50]);
    assert_eq!(two.missed(), [(Guid(1), vec![40..42]), (Guid(3), vec![4..50])]);
    assert_eq!((two.top_asize(0), two.ashift(0)), (rig.tree.top_asize(0), Some(12)));
    assert_eq!(two.read_batch(&[read])[0].as_ref().unwrap(), &data);
    // What is written from now on is on both; either tree sees what becomes of the device both have.
    let late = Random(2).bytes(4096);
    let write = BlockWrite {
        sides: None,
        vdev: 0,
        offset: 1 << 20,
        data: late.clone().into(),
        birth: Txg(60),
    };
    assert!(two.write_batch(&[write]).iter().all(Result::is_ok));
    let late_read = block(0, 1 << 20, 4096, 60);
    assert_eq!(rig.tree.read_batch(&[late_read])[0].as_ref().unwrap(), &late);
    rig.corrupt(1);
    assert!(two.read_recover(&late_read, &mut |bytes| bytes[..] == late[..]).is_ok());
    assert_eq!((checksum_errors(&two, 1), checksum_errors(&rig.tree, 1)), (1, 1));

    // The new one alone takes over the guid, and keeps its device and what it missed.
    let detached = two.topology().detach(Guid(1), T).unwrap();
    let one = two.with_topology(detached.topology).unwrap();
    assert_eq!(one.missed(), [(Guid(9), vec![4..50])]);
    let devices = one.devices();
    assert_eq!((devices.len(), devices[0].guid), (2, Guid(9)));
    assert_eq!(devices[0].device.path(), Device::path(&*disk));
    assert_eq!(one.read_batch(&[late_read])[0].as_ref().unwrap(), &late);
    assert_eq!(one.topology().guid_before(Guid(9)), Guid(9));
    assert!(!one.has_away());
}

#[test]
fn a_tree_nobody_takes_changes_nothing() {
    let rig = Rig::new(root(12, vec![leaf(1), group(VdevKind::Mirror, 10, leaves(2..4))]));
    let away = |_: &VdevConfig| Err(LeafUnavailable::open_failed("not there"));
    let new = root(12, vec![leaf(5)]).children()[0].clone();
    let topology = rig.tree.topology().add([(new, AllocationClass::Normal)], T).unwrap();
    let grown = rig.tree.succeeded_by(topology, Arc::new(away)).unwrap();
    assert_eq!(grown.condition().state, VdevState::Unavailable);
    let topology = rig.tree.topology().attach(Guid(3), leaf(6), Guid(9), T).unwrap();
    let wider = rig.tree.succeeded_by(topology, Arc::new(away)).unwrap();
    assert_eq!(state(&wider, 10), VdevState::Degraded);
    assert_eq!(
        (state(&rig.tree, 10), rig.tree.condition()),
        (VdevState::Online, Condition::ONLINE)
    );
    // What lies below both alike is the same for both.
    rig.disk(1).set_health(Health::Gone);
    assert!(grown.read_batch(&[block(0, 0, 4096, 1)])[0].is_err());
    assert_eq!((state(&grown, 1), state(&rig.tree, 1)), (VdevState::Removed, VdevState::Removed));
}

#[test]
fn notes_of_the_same_devices_leave_states_alone() {
    let rig = Rig::new(root(12, vec![group(VdevKind::Mirror, 10, leaves(1..3)), leaf(3)]));
    let topology = rig.tree.topology().with_dirty_time_logs(&[(Guid(1), ObjectId(7))], T);
    let next = rig.tree.with_topology(topology).unwrap();
    let log = |tree: &VdevTree| tree.status().unwrap().find(Guid(1)).unwrap().config.dirty_time_log;
    assert_eq!((log(&next), log(&rig.tree)), (Some(ObjectId(7)), None));
    // A group that began with the tree before notes what it meets there.
    rig.tree.add_missing_txgs(Guid(1), 40..42);
    assert_eq!((next.missed(), next.missed_changes()), (rig.tree.missed(), 1));
    assert_eq!([next.condition().state, state(&next, 10)], [VdevState::Degraded; 2]);
}

#[test]
fn holes_and_removed_vdevs_keep_their_places() {
    let mut config = root(12, vec![leaf(1), leaf(2), group(VdevKind::Indirect, 30, Vec::new())]);
    config.children.as_mut().unwrap()[1].top.as_mut().unwrap().is_log = true;
    let rig = Rig::new(config);
    let destination = Dva { vdev: 0, offset: 1 << 20, asize: 4096, gang: false };
    let entry = MappingEntry { source: 0, destination };
    rig.tree.set_mapping(2, Mapping::new(vec![entry]).unwrap()).unwrap();
    let data = Random(3).bytes(4096);
    rig.write(&block(0, 1 << 20, 4096, 10), &data);
    rig.disk(2).set_health(Health::Gone);
    rig.tree.set_missing_txgs(Guid(2), vec![1..9]);
    assert_eq!(rig.tree.class(1), AllocationClass::Log);
    let next = rig.tree.with_topology(rig.tree.topology().leave_hole(1, T).unwrap()).unwrap();
    assert_eq!((next.condition(), next.missed().len()), (Condition::ONLINE, 0));
    assert!(!next.is_readable(1) && next.top_asize(1).is_none());
    assert_eq!(next.read_batch(&[block(2, 0, 4096, 10)])[0].as_ref().unwrap(), &data);
    let again = next.with_topology(next.topology().with_guid(Guid(77), T).unwrap()).unwrap();
    assert_eq!((again.condition(), again.top_count()), (Condition::ONLINE, 3));
}

#[test]
fn everybody_takes_what_is_current() {
    let rig = Rig::new(root(12, vec![leaf(1)]));
    let handle = VdevHandle::new(Arc::new(rig.tree));
    let (copy, before) = (handle.clone(), handle.current());
    let new = root(12, vec![leaf(2)]).children()[0].clone();
    let (_disk, opener) = only(2);
    handle
        .change(|tree| {
            let topology = tree.topology().add([(new.clone(), AllocationClass::Special)], T)?;
            tree.succeeded_by(topology, opener.clone())
        })
        .unwrap();
    assert_eq!((copy.load().top_count(), before.top_count()), (2, 1));
    assert_eq!(copy.current().class(1), AllocationClass::Special);
    let twice = handle.change(|tree| {
        let topology = tree.topology().add([(new.clone(), AllocationClass::Normal)], T)?;
        tree.succeeded_by(topology, opener.clone())
    });
    assert!(matches!(twice, Err(VdevError::Config(_))));
    assert_eq!(copy.load().top_count(), 2);
}
