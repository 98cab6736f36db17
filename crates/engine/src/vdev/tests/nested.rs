//! Trees of trees: mirrors of raidz, raidz of replacing and spare vdevs, dRAID with its spares.

use super::rig::*;
use crate::vdev::*;
use cenote_device::{Device, Health};
use cenote_format::config::{VdevConfig, VdevKind};
use cenote_format::{Guid, Txg};

fn dspare(guid: u64, draid: u64, spare: u64) -> VdevConfig {
    VdevConfig {
        kind: VdevKind::DistributedSpare,
        guid: Guid(guid),
        top_guid: Some(Guid(draid)),
        spare_id: Some(spare),
        ..VdevConfig::default()
    }
}

#[test]
fn mirror_of_raidz() {
    let sides = vec![raidz(10, 1, leaves(1..4)), raidz(20, 1, leaves(4..8))];
    let rig = Rig::new(root(12, vec![group(VdevKind::Mirror, 100, sides)]));
    let read = block(0, 0x123000, 40 << 10, 10);
    let data = Random(1).bytes(40 << 10);
    rig.write(&read, &data);
    assert_eq!(rig.read(&read).unwrap(), data);
    // One side lost, one lie on the other.
    rig.disk(4).set_health(Health::Gone);
    rig.disk(5).set_health(Health::Gone);
    rig.corrupt(2);
    let recovered = rig.recover(&read, &data).unwrap();
    assert_eq!(recovered.liars, [Guid(2)]);
    assert_eq!(rig.state(20), VdevState::Unavailable);
    assert_eq!(rig.state(10), VdevState::Online);
    assert_eq!(rig.state(100), VdevState::Degraded);
    // Two lies on one side: the other has it.
    rig.heal();
    [1, 2, 3].into_iter().for_each(|guid| rig.corrupt(guid));
    rig.disk(6).set_health(Health::FailsReads);
    assert_eq!(rig.recover(&read, &data).unwrap().data, data);
}

#[test]
fn raidz_of_replacing_and_spare() {
    let replacing = group(VdevKind::Replacing, 30, leaves(3..5));
    let spare =
        group(VdevKind::Spare, 40, vec![leaf(5), group(VdevKind::Replacing, 41, leaves(6..8))]);
    let children = vec![leaf(1), replacing, spare, leaf(2)];
    let rig = Rig::new(root(9, vec![raidz(100, 1, children)]));
    let mut random = Random(2);
    for i in 0..8 {
        let read = block(0, i * 0x8600, 9 << 10, 10);
        let data = random.bytes(9 << 10);
        rig.write(&read, &data);
        assert_eq!(rig.read(&read).unwrap(), data);
        // More liars than parity, but each column still has one good copy or parity.
        rig.corrupt(3);
        rig.corrupt(5);
        rig.corrupt(1);
        let recovered = rig.recover(&read, &data).unwrap();
        let mut liars: Vec<u64> = recovered.liars.iter().map(|guid| guid.0).collect();
        liars.sort_unstable();
        assert_eq!(liars, [1, 3, 5], "{i}");
        rig.heal();
    }
}

#[test]
fn stale_devices_are_avoided_and_not_blamed() {
    let replacing = group(VdevKind::Replacing, 30, leaves(3..5));
    let rig = Rig::new(root(9, vec![raidz(100, 1, vec![leaf(1), leaf(2), replacing])]));
    let (old, new) = (block(0, 0, 9 << 10, 10), block(0, 0x8000, 9 << 10, 60));
    let data = Random(3).bytes(9 << 10);
    rig.write(&old, &data);
    rig.write(&new, &data);
    rig.tree.set_missing_txgs(Guid(4), std::iter::once(4..50).collect());
    rig.tree.set_missing_txgs(Guid(2), std::iter::once(4..50).collect());
    rig.corrupt(2);
    rig.corrupt(4);
    assert_eq!(rig.read(&old).unwrap(), data);
    let recovered = rig.tree.read_all_copies(&old, &mut |b| b == data).unwrap();
    assert!(recovered.liars.is_empty());
    assert!(recovered.repairs.len() >= 2);
    assert_eq!((rig.errors(2), rig.errors(4)), ((0, 0), (0, 0)));
    let recovered = rig.recover(&new, &data).unwrap();
    assert_eq!(recovered.liars.len(), 2);
    // A stale copy is still better than none.
    rig.heal();
    rig.disk(1).set_health(Health::Gone);
    assert_eq!(rig.read(&old).unwrap(), data);
}

#[test]
fn distributed_spares_stand_in() {
    // Disk 4 is replaced by spare 0; then disk 6 by spare 1.
    let mut children = leaves(1..12);
    children[3] = group(VdevKind::Spare, 50, vec![leaf(4), dspare(51, 100, 0)]);
    children[5] = group(VdevKind::Spare, 60, vec![leaf(6), dspare(61, 100, 1)]);
    let rig = Rig::with_disk_size(root(12, vec![draid(100, 2, 4, 2, children)]), 160 << 20);
    assert_eq!(rig.state(51), VdevState::Online);
    let mut random = Random(4);
    let mut blocks = Vec::new();
    for i in 0..48u64 {
        let read = block(0, i * (6 << 12) * 700, 44 << 10, 10);
        let data = random.bytes(44 << 10);
        rig.write(&read, &data);
        blocks.push((read, data));
    }
    for guid in [4, 6] {
        rig.disk(guid).set_health(Health::Gone);
    }
    for (read, data) in &blocks {
        assert_eq!(&rig.read(read).unwrap(), data);
    }
    // With both spares in use two more may be lost.
    for guid in [1, 11] {
        rig.disk(guid).set_health(Health::Gone);
    }
    for (read, data) in &blocks {
        assert_eq!(rig.recover(read, data).unwrap().data, data, "{read:?}");
    }
    assert_eq!(rig.state(100), VdevState::Degraded);
}

#[test]
fn spares_of_unknown_draids_are_unavailable() {
    let pair = group(VdevKind::Spare, 50, vec![leaf(1), dspare(51, 77, 0)]);
    let rig = Rig::new(root(12, vec![pair]));
    assert_eq!(rig.state(51), VdevState::Unavailable);
    let read = block(0, 0, 4096, 10);
    rig.disk(1).write(DATA_START, &[7; 4096]).unwrap();
    assert_eq!(rig.read(&read).unwrap(), [7; 4096]);
}

#[test]
fn sizes_and_ratios_of_the_top() {
    let rig = Rig::new(root(
        12,
        vec![
            leaf(1),
            group(VdevKind::Mirror, 10, leaves(2..4)),
            raidz(20, 1, leaves(4..9)),
            draid(30, 2, 4, 1, leaves(40..51)),
        ],
    ));
    let tree = &rig.tree;
    let child = allocatable(DISK as u64);
    assert_eq!(tree.top_asize(1), Some(child));
    assert_eq!(tree.top_asize(2), Some(child * 5));
    assert_eq!([0, 1, 2, 3].map(|vdev| tree.deflate_ratio(vdev)), [512, 512, 409, 341]);
    assert_eq!(tree.asize(1, 5000, Txg(4)), Some(8192));
    assert_eq!(tree.asize(2, 128 << 10, Txg(4)), Some(0x28000));
    assert_eq!(tree.min_allocation(3), Some(16 << 10));
    assert_eq!(tree.min_allocation(2), Some(4096));
    assert_eq!(tree.min_allocation(9), None);
}
