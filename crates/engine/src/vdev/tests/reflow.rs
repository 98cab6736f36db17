//! An expansion from its beginning to its end, at the level of sectors.

use super::rig::*;
use crate::vdev::*;
use bytes::Bytes;
use cenote_format::Txg;
use std::time::Duration;

const SECTOR: u64 = 4096;
/// Bytes of the vdev that are looked at.
const SPACE: u64 = 40 << 20;
/// The word of an uberblock: the scratch area counts; everything before lies at its new place.
const VALID: u64 = 1 << 55;
const MOVED: u64 = 4 << 55;

fn write(rig: &Rig, blocks: &[(BlockRead, Vec<u8>)]) {
    for (read, data) in blocks {
        let BlockRead { vdev, offset, birth, .. } = *read;
        let data = Bytes::from(data.clone());
        let write = BlockWrite { sides: None, vdev, offset, data, birth };
        rig.tree.write_batch(&[write]).pop().unwrap().unwrap();
    }
}

fn check(rig: &Rig, blocks: &[(BlockRead, Vec<u8>)], place: &str) {
    for (read, data) in blocks {
        assert!(rig.read(read).unwrap() == *data, "{place}: {read:?}");
    }
}

/// Blocks of many sizes, with holes between them.
fn fill(rig: &Rig, random: &mut Random) -> Vec<(BlockRead, Vec<u8>)> {
    let (mut blocks, mut offset) = (Vec::new(), 0);
    while offset < SPACE {
        let size = [512, 4096, 12_288, 70_000, 128 << 10][random.below(5) as usize];
        let read = block(0, offset, size, 10);
        blocks.push((read, random.bytes(size as usize)));
        offset += rig.tree.asize(0, size, Txg(10)).unwrap() + random.below(3) * 9 * SECTOR;
    }
    blocks
}

#[test]
fn every_block_is_there_whatever_was_moved() {
    for (parity, count) in [(1, 3), (2, 4), (3, 6)] {
        let mut random = Random(parity);
        let mut top = raidz(100, parity, leaves(1..count + 2));
        top.raidz_expanding = true;
        let rig = Rig::new(root(12, vec![top]));
        let mut blocks = fill(&rig, &mut random);
        write(&rig, &blocks);
        check(&rig, &blocks, "before");
        rig.tree.check_movable(0).unwrap();
        rig.tree.fill_scratch(0).unwrap();
        check(&rig, &blocks, "scratch filled");
        let reach = rig.tree.scratch_reach(0);
        assert_eq!(reach, (0x38_0000) * (count + 1));
        {
            let moving = rig.tree.move_sectors(Duration::from_secs(1)).unwrap();
            moving.came_to(VALID | reach >> 9);
        }
        check(&rig, &blocks, "scratch valid");
        // What is written now goes to the scratch area, and from there to its place.
        for (_, data) in blocks.iter_mut().step_by(7) {
            *data = random.bytes(data.len());
        }
        write(&rig, &blocks);
        check(&rig, &blocks, "written to the scratch area");
        let mut at = reach;
        {
            let moving = rig.tree.move_sectors(Duration::from_secs(1)).unwrap();
            rig.tree.empty_scratch(0).unwrap();
            check(&rig, &blocks, "scratch emptied");
            moving.came_to(MOVED | at >> 9);
        }
        check(&rig, &blocks, "first part moved");
        let mut rounds = 0;
        while at < SPACE + (1 << 20) {
            let limit = rig.tree.reach(0, at);
            assert!(limit > at);
            let moving = rig.tree.move_sectors(Duration::from_secs(1)).unwrap();
            let (moved, done) = rig.tree.move_ranges(0, &[(at, limit)], &|| true);
            done.unwrap();
            rig.tree.flush_moved(0).unwrap();
            assert_eq!(moved, Some(limit));
            // The uberblock may not get to the disks.
            check(&rig, &blocks, "moved, not told");
            at = limit;
            moving.came_to(MOVED | at >> 9);
            drop(moving);
            check(&rig, &blocks, "moved");
            rounds += 1;
            for (_, data) in blocks.iter_mut().skip(rounds).step_by(11) {
                *data = random.bytes(data.len());
            }
            write(&rig, &blocks);
            check(&rig, &blocks, "written again");
        }
        assert!(rounds > 1);
        for guid in 1..=parity {
            rig.corrupt(guid + 1);
        }
        for (read, data) in blocks.iter().step_by(9) {
            assert_eq!(rig.recover(read, data).unwrap().data, *data);
        }
    }
}

/// A row that was moved in part is written where it was; what of it was moved already is not moved again.
#[test]
fn what_is_written_over_the_edge_of_an_expansion_is_whole_after_it() {
    for (parity, count) in [(1, 3), (2, 4), (3, 6)] {
        let mut random = Random(40 + parity);
        let mut top = raidz(100, parity, leaves(1..count + 2));
        top.raidz_expanding = true;
        let rig = Rig::new(root(12, vec![top]));
        let is_whole = |(read, data): &(BlockRead, Vec<u8>), when: &str| {
            let found = rig.tree.read_all_copies(read, &mut |bytes| bytes == data).unwrap();
            assert!(found.liars.is_empty() && found.repairs.is_empty(), "{when} {read:?}");
        };
        let mut at = 24 << 20;
        rig.tree.set_reflow_word(MOVED | at >> 9);
        for round in 0..40 {
            let size = [4096, 12_288, 70_000, 128 << 10][round % 4];
            let before = random.below(size / 2048 + 1) * SECTOR;
            let over = (block(0, at - before, size, 10), random.bytes(size as usize));
            write(&rig, std::slice::from_ref(&over));
            is_whole(&over, "written");
            // A device that lacked it has all of it again after a resilver.
            let lost = 1 + random.below(count + 1);
            rig.disk(lost).set_health(cenote_device::Health::FailsWrites);
            let over = (over.0, random.bytes(size as usize));
            write(&rig, std::slice::from_ref(&over));
            rig.disk(lost).set_health(cenote_device::Health::Well);
            rig.wait(3600);
            rig.tree.clear(None);
            let found = rig.tree.read_all_copies(&over.0, &mut |bytes| bytes == over.1).unwrap();
            let born: Vec<_> = found.repairs.into_iter().map(|it| (it, Txg(10))).collect();
            let repaired = rig.tree.resilver(&born);
            assert!(repaired.iter().all(Result::is_ok), "{repaired:?}");
            is_whole(&over, "resilvered");
            rig.tree.set_missing_txgs(cenote_format::Guid(lost), Vec::new());
            let limit = at + (1 + random.below(60)) * SECTOR;
            let moving = rig.tree.move_sectors(Duration::from_secs(1)).unwrap();
            assert_eq!(rig.tree.move_ranges(0, &[(at, limit)], &|| true).0, Some(limit));
            moving.came_to(MOVED | limit >> 9);
            drop(moving);
            is_whole(&over, "moved");
            at = limit;
        }
    }
}

#[test]
fn nothing_is_moved_while_somebody_reads_by_an_older_place_or_a_device_is_away() {
    let mut top = raidz(100, 1, leaves(1..5));
    top.raidz_expanding = true;
    let rig = Rig::new(root(12, vec![top]));
    let planner = crate::vdev::plan::Planner::new(&rig.tree, false);
    rig.tree.set_reflow_word(MOVED | 100 << 3);
    let moment = Duration::from_millis(5);
    assert!(matches!(rig.tree.move_sectors(moment), Err(VdevError::Unfit(_))));
    drop(planner);
    assert!(rig.tree.move_sectors(moment).is_ok());
    rig.tree.add_missing_txgs(cenote_format::Guid(3), 7..8);
    assert!(matches!(rig.tree.check_movable(0), Err(VdevError::Unavailable { .. })));
    rig.tree.set_missing_txgs(cenote_format::Guid(3), Vec::new());
    rig.tree.check_movable(0).unwrap();
    rig.disk(2).set_health(cenote_device::Health::FailsReads);
    let (moved, done) = rig.tree.move_ranges(0, &[(4 << 20, 5 << 20)], &|| true);
    assert!(moved.is_none() && done.is_err());
}
