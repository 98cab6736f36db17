//! Blocks that are examined together, for those who make right what is wrong.
//!
//! Invariant: what leaves lack is found without asking them, and no more is read than was asked for, unless a
//! block cannot be made of it.

use super::rig::*;
use crate::vdev::*;
use cenote_format::config::{VdevConfig, VdevKind};
use cenote_format::{Guid, Txg};

/// Eight blocks on vdev 0, born in group 10, of which leaf 2 has nothing but garbage, and lacks that group.
fn lacking(top: VdevConfig) -> (Rig, Vec<BlockWrite>) {
    let rig = Rig::new(root(12, vec![top]));
    let size = rig.tree.asize(0, 131_072, Txg(10)).unwrap();
    let mut random = Random(9);
    let write = |number| BlockWrite {
        sides: None,
        vdev: 0,
        offset: number * size,
        data: random.bytes(131_072).into(),
        birth: Txg(10),
    };
    let writes: Vec<BlockWrite> = (0..8).map(write).collect();
    assert!(rig.tree.write_batch(&writes).iter().all(Result::is_ok));
    rig.disk(2).corrupt_range(DATA_START..DATA_START + (2 << 20), 0x55);
    rig.tree.add_missing_txgs(Guid(2), 10..11);
    (rig, writes)
}

/// Reads of these leaves so far.
fn read(rig: &Rig, leaves: std::ops::Range<u64>) -> Vec<u64> {
    let status = rig.tree.status().unwrap();
    let own = |guid| status.find(Guid(guid)).unwrap().stats.bytes;
    leaves.map(own).collect()
}

/// Examines all blocks, writes what is lacking, and tells what was written.
fn resilver(rig: &Rig, writes: &[BlockWrite], reading: Reading) -> usize {
    let reads: Vec<BlockRead> = writes.iter().map(BlockWrite::as_read).collect();
    let mut verify = |number: usize, data: &[u8]| writes[number].data == data;
    let found = rig.tree.read_copies_of(&reads, reading, &|_| true, &mut verify);
    let mut repairs = Vec::new();
    for (found, write) in found.into_iter().zip(writes) {
        let found = found.unwrap();
        assert!(found.data == write.data && found.failed.is_empty());
        repairs.extend(found.repairs.into_iter().map(|repair| (repair, write.birth)));
    }
    assert!(rig.tree.resilver(&repairs).iter().all(Result::is_ok));
    repairs.len()
}

/// Nobody has anything wrong.
fn is_well(rig: &Rig, writes: &[BlockWrite]) -> bool {
    writes.iter().all(|write| {
        let found = rig.tree.read_all_copies(&write.as_read(), &mut |data| write.data == data);
        found.unwrap().repairs.is_empty()
    })
}

#[test]
fn a_side_that_lacks_blocks_gets_them_from_one_other() {
    let mirror = || group(VdevKind::Mirror, 100, leaves(1..4));
    for (reading, copies) in [(Reading::Enough, 1), (Reading::Held, 2)] {
        let (rig, writes) = lacking(mirror());
        assert_eq!(resilver(&rig, &writes, reading), 8);
        let bytes = read(&rig, 1..4);
        assert_eq!((bytes[1], bytes[0] + bytes[2]), (0, copies * (1 << 20)), "{reading:?}");
        assert!(is_well(&rig, &writes));
        assert_eq!(rig.errors(2), (0, 0));
    }
    // Nobody else has it: what it lacks is what it has.
    let (rig, writes) = lacking(mirror());
    for other in [1, 3] {
        rig.disk(other).corrupt_range(DATA_START..DATA_START + (2 << 20), 0x55);
    }
    rig.disk(2).corrupt_range(DATA_START..DATA_START + (2 << 20), 0x55);
    assert_eq!(resilver(&rig, &writes, Reading::Enough), 16);
    assert!(is_well(&rig, &writes));
    assert_eq!((rig.errors(1), rig.errors(2), rig.errors(3)), ((0, 8), (0, 0), (0, 8)));
}

#[test]
fn a_column_that_is_lacking_is_made_of_no_more_parity_than_it_takes() {
    let (rig, writes) = lacking(raidz(100, 2, leaves(1..7)));
    assert_eq!(resilver(&rig, &writes, Reading::Enough), 8);
    let bytes = read(&rig, 1..7);
    // Four columns of five make a block.
    assert_eq!((bytes[1], bytes.iter().sum()), (0, 8 * 131_072_u64), "{bytes:?}");
    assert!(is_well(&rig, &writes));
    // One of those lies: all are asked.
    let (rig, writes) = lacking(raidz(100, 2, leaves(1..7)));
    rig.disk(4).corrupt_range(DATA_START..DATA_START + (2 << 20), 0x55);
    assert_eq!(resilver(&rig, &writes, Reading::Enough), 16);
    assert!(is_well(&rig, &writes));
    assert_eq!((rig.errors(4), rig.errors(2)), ((0, 8), (0, 0)));
}

#[test]
fn parity_that_is_lacking_itself_is_no_reason_to_leave_out_the_other() {
    let (rig, writes) = lacking(raidz(100, 2, leaves(1..7)));
    rig.disk(1).corrupt_range(DATA_START..DATA_START + (2 << 20), 0x55);
    rig.tree.add_missing_txgs(Guid(1), 10..11);
    assert_eq!(resilver(&rig, &writes, Reading::Enough), 16);
    let bytes = read(&rig, 1..7);
    assert_eq!((bytes[0], bytes[1], bytes.iter().sum()), (0, 0, 8 * 131_072_u64), "{bytes:?}");
    assert!(is_well(&rig, &writes));
}

#[test]
fn a_read_that_fails_is_counted_once_though_it_is_tried_again() {
    let (rig, writes) = lacking(group(VdevKind::Mirror, 100, leaves(1..4)));
    for other in [1, 3] {
        rig.disk(other).fail_range(DATA_START..DATA_START + 4096);
    }
    let reads: Vec<BlockRead> = writes[..1].iter().map(BlockWrite::as_read).collect();
    let mut verify = |number: usize, data: &[u8]| writes[number].data == data;
    let found = rig.tree.read_copies_of(&reads, Reading::Held, &|_| true, &mut verify);
    assert!(found.into_iter().all(|found| found.is_err()));
    assert_eq!((rig.errors(1), rig.errors(3)), ((1, 0), (1, 0)));
    // Nobody can tell that what is there instead is wrong: it is not taken for the block.
    let found = rig.tree.read_copies_of(&reads, Reading::Held, &|_| false, &mut |_, _| true);
    assert!(found.into_iter().all(|found| found.is_err()));
}
