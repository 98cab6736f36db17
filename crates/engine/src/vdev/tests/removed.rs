//! Removed vdevs: blocks in pieces, chains of removals, and copies that differ.

use super::rig::*;
use crate::vdev::*;
use cenote_device::Health;
use cenote_format::config::{VdevConfig, VdevKind};
use cenote_format::indirect_mapping::{Mapping, MappingEntry};
use cenote_format::{Dva, Guid};

fn removed(guid: u64) -> VdevConfig {
    group(VdevKind::Indirect, guid, Vec::new())
}

fn mapping(entries: &[(u64, u32, u64, u64)]) -> Mapping {
    let entries = entries.iter().map(|&(source, vdev, offset, asize)| MappingEntry {
        source,
        destination: Dva { vdev, offset, asize, gang: false },
    });
    Mapping::new(entries.collect()).unwrap()
}

fn rig() -> Rig {
    let mirror = |guid, leaves| group(VdevKind::Mirror, guid, leaves);
    let rig = Rig::new(root(
        9,
        vec![mirror(10, leaves(1..4)), removed(20), removed(30), mirror(40, leaves(4..6))],
    ));
    let first = [(0x1000, 0, 0x20_0000, 0x2000), (0x3000, 2, 0x400, 0x1800), (0x4800, 3, 0, 0x800)];
    rig.tree.set_mapping(1, mapping(&first)).unwrap();
    let second = [(0, 3, 0x1000, 0x1000), (0x1000, 0, 0x40_0000, 0x1000)];
    rig.tree.set_mapping(2, mapping(&second)).unwrap();
    rig
}

#[test]
fn pieces_and_chains() {
    let rig = rig();
    let removed: Vec<u32> = rig.tree.removed_vdevs().map(|(id, _)| id).collect();
    assert_eq!(removed, [1, 2]);
    let read = block(1, 0x1200, 0x3c00, 10);
    let data = Random(1).bytes(0x3c00);
    let holders = rig.write(&read, &data);
    assert_eq!(holders, [1, 2, 3, 4, 5]);
    assert_eq!(rig.read(&read).unwrap(), data);
    // Every piece has a different good side.
    rig.corrupt(1);
    rig.corrupt(2);
    rig.corrupt(5);
    let recovered = rig.recover(&read, &data).unwrap();
    assert_eq!(recovered.data, data);
    let mut liars: Vec<u64> = recovered.liars.iter().map(|guid| guid.0).collect();
    liars.sort_unstable();
    assert_eq!(liars, [1, 2, 5]);
    rig.disk(4).set_health(Health::Gone);
    let error = rig.recover(&read, &data).unwrap_err();
    assert!(matches!(error, VdevError::NoIntactCopy { .. }), "{error}");
}

#[test]
fn unmapped_cyclic_and_unloaded_are_errors() {
    let rig = rig();
    for read in [block(1, 0, 512, 1), block(1, 0x4e00, 0x400, 1), block(1, 0x10_0000, 512, 1)] {
        assert!(rig.read(&read).is_err());
        assert!(rig.recover(&read, &[]).is_err());
    }
    rig.tree.set_mapping(2, mapping(&[(0, 1, 0, 0x10000)])).unwrap();
    rig.tree.set_mapping(1, mapping(&[(0, 2, 0, 0x10000)])).unwrap();
    let error = rig.read(&block(1, 0, 4096, 1)).unwrap_err();
    assert!(error.to_string().contains("point at each other"), "{error}");
    assert!(rig.recover(&block(1, 0, 4096, 1), &[]).is_err());
    rig.tree.set_mapping(1, mapping(&[(0, 77, 0, 0x10000)])).unwrap();
    assert!(rig.read(&block(1, 0, 4096, 1)).is_err());
    let fresh = Rig::new(root(9, vec![removed(20), leaf(1)]));
    let error = fresh.read(&block(0, 0, 512, 1)).unwrap_err();
    assert!(matches!(error, VdevError::MappingNotLoaded(0)));
    assert!(fresh.tree.set_mapping(1, mapping(&[])).is_err());
    assert_eq!(fresh.tree.condition().state, VdevState::Online);
    assert_eq!(fresh.tree.topology().top(0).unwrap().guid, Guid(20));
}
