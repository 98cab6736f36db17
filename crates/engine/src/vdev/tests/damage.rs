//! Every layout survives what its parity promises, blames the right devices, and beyond that gives
//! an error.

use super::rig::*;
use crate::vdev::*;
use cenote_device::{Device, Health};
use cenote_format::config::{VdevConfig, VdevKind};
use std::collections::BTreeSet;

/// Sizes in bytes: single sectors, odd sizes, many rows.
const SIZES: [u64; 9] = [512, 1536, 4096, 5632, 12 << 10, 20 << 10, 68 << 10, 128 << 10, 1 << 20];

/// A set of `count` of `guids`.
fn choose(random: &mut Random, guids: &[u64], count: usize) -> Vec<u64> {
    let mut left = guids.to_vec();
    (0..count.min(guids.len()))
        .map(|_| left.swap_remove(random.below(left.len() as u64) as usize))
        .collect()
}

/// Damages a block in many ways: up to `tolerance` of the devices, some dead, some lying.
fn torture(rig: &Rig, offset: u64, size: u64, birth: u64, tolerance: usize, random: &mut Random) {
    let read = block(0, offset, size, birth);
    let data = random.bytes(size as usize);
    let holders = rig.write(&read, &data);
    assert_eq!(rig.read(&read).unwrap(), data, "{read:?}");
    assert!(rig.recover(&read, &data).unwrap().repairs.is_empty());
    for count in 1..=tolerance {
        let victims = choose(random, &holders, count);
        let dead = random.below(count as u64 + 1) as usize;
        for (index, &guid) in victims.iter().enumerate() {
            match (index < dead, random.below(3)) {
                (true, 0) => rig.disk(guid).set_health(Health::Gone),
                (true, 1) => rig.disk(guid).set_health(Health::Hangs),
                (true, _) => rig.disk(guid).set_health(Health::FailsReads),
                (false, _) => rig.corrupt(guid),
            }
        }
        let set = |guids: &[u64]| guids.iter().copied().collect::<BTreeSet<_>>();
        if dead == count {
            assert_eq!(rig.read(&read).unwrap(), data, "{read:?} without {victims:?}");
            rig.tree.clear(None);
        }
        let recovered = rig.recover(&read, &data).unwrap();
        assert_eq!(recovered.data, data, "{read:?} {victims:?} {dead}");
        let liars: Vec<u64> = recovered.liars.iter().map(|guid| guid.0).collect();
        let failed: Vec<u64> = recovered.failed.iter().map(|guid| guid.0).collect();
        assert_eq!(set(&liars), set(&victims[dead..]), "{read:?}");
        assert_eq!(set(&failed), set(&victims[..dead]), "{read:?}");
        for guid in &holders {
            let (reads, checksums) = rig.errors(*guid);
            assert_eq!(reads > 0, failed.contains(guid), "{read:?} {guid}");
            assert_eq!(checksums, u64::from(liars.contains(guid)), "{read:?} {guid}");
        }
        rig.heal();
        // Writing the repairs makes the block whole.
        victims[dead..].iter().for_each(|&guid| rig.corrupt(guid));
        let all = rig.tree.read_all_copies(&read, &mut |b| b == data).unwrap();
        for repair in &all.repairs {
            rig.disk(repair.leaf.0).write(repair.offset, &repair.data).unwrap();
        }
        assert_eq!(rig.read(&read).unwrap(), data);
        assert!(rig.tree.read_all_copies(&read, &mut |b| b == data).unwrap().liars.is_empty());
        rig.heal();
    }
    let victims = choose(random, &holders, tolerance + 1);
    if victims.len() > tolerance && holders.len() > tolerance {
        victims.iter().for_each(|&guid| rig.corrupt(guid));
        // All candidates are wrong, unless what is left holds the whole block.
        match rig.recover(&read, &data) {
            Ok(recovered) => assert_eq!(recovered.data, data),
            Err(error) => assert!(matches!(error, VdevError::NoIntactCopy { .. }), "{error}"),
        }
        rig.heal();
    }
}

fn sweep(ashift: u64, top: VdevConfig, tolerance: usize, random: &mut Random, unit: u64) {
    let rig = Rig::new(root(ashift, vec![top]));
    let space = rig.tree.top_asize(0).unwrap();
    let unit = unit << ashift;
    for _ in 0..3 {
        let size = SIZES[random.below(SIZES.len() as u64) as usize];
        let offset = random.below((space - (8 << 20)) / unit) * unit;
        torture(&rig, offset, size, 10, tolerance, random);
    }
}

#[test]
fn raidz_of_every_width() {
    let mut random = Random(1);
    for parity in 1..=3u64 {
        for width in parity + 1..=12 {
            for ashift in [9, 12] {
                let top = raidz(100, parity, leaves(1..width + 1));
                sweep(ashift, top, parity as usize, &mut random, 1);
            }
        }
    }
}

#[test]
fn mirrors_of_every_width() {
    let mut random = Random(2);
    for width in 2..=6 {
        let top = group(VdevKind::Mirror, 100, leaves(1..width + 1));
        sweep(9 + width % 2 * 3, top, width as usize - 1, &mut random, 1);
    }
}

#[test]
fn draid_of_many_shapes() {
    let mut random = Random(3);
    for (parity, data, spares, children) in [
        (1, 1, 0, 2),
        (1, 2, 1, 4),
        (2, 4, 2, 11),
        (2, 4, 1, 11),
        (1, 8, 1, 12),
        (3, 5, 2, 10),
        (3, 1, 0, 9),
    ] {
        for ashift in [9, 12] {
            let top = draid(100, parity, data, spares, leaves(1..children + 1));
            let unit = parity + data;
            sweep(ashift, top, parity as usize, &mut random, unit);
        }
    }
}

#[test]
fn draid_blocks_over_the_end_of_a_group() {
    let mut random = Random(4);
    let rig = Rig::new(root(12, vec![draid(100, 2, 4, 2, leaves(1..12))]));
    let group = 6 * (16 << 20);
    for size in [32 << 10, 100 << 10, 1 << 20] {
        let read = block(0, group - 2 * (6 << 12), size, 10);
        let data = random.bytes(size as usize);
        let holders = rig.write(&read, &data);
        for _ in 0..6 {
            // Two devices are within the promise whatever rows they are in.
            let victims = choose(&mut random, &holders, 2);
            rig.corrupt(victims[0]);
            rig.disk(victims[1]).set_health(Health::FailsReads);
            assert_eq!(rig.recover(&read, &data).unwrap().data, data);
            rig.heal();
        }
    }
}

#[test]
fn raidz_after_expansions() {
    let mut random = Random(5);
    for (parity, original, grown) in [(1, 3, 1), (1, 4, 3), (2, 5, 2), (3, 5, 1)] {
        let children = original + grown;
        let mut top = raidz(100, parity, leaves(1..children + 1));
        top.raidz_expand_txgs = Some((0..grown).map(|i| 100 + i * 100).collect());
        let rig = Rig::new(root(12, vec![top]));
        let space = rig.tree.top_asize(0).unwrap();
        for birth in [10, 150, 1000] {
            for _ in 0..3 {
                let size = SIZES[random.below(SIZES.len() as u64) as usize];
                let offset = random.below((space >> 12) - 2048) << 12;
                torture(&rig, offset, size, birth, parity as usize, &mut random);
            }
        }
    }
}

#[test]
fn damage_from_before_an_expansion() {
    // A device lied while its sectors were copied: now they are spread over all of them.
    let mut random = Random(6);
    let mut top = raidz(100, 2, leaves(1..8));
    top.raidz_expand_txgs = Some(vec![100]);
    let rig = Rig::new(root(12, vec![top]));
    let read = block(0, 37 << 12, 200 << 10, 10);
    let data = random.bytes(200 << 10);
    rig.write(&read, &data);
    let crate::vdev::tree::Shape::Raidz(shape) = &rig.tree.nodes[1].shape else { panic!() };
    let map = shape.map(read.offset, read.size, read.birth, Default::default()).unwrap();
    for column in map.columns().iter().filter(|c| c.sector % 6 == 3 || c.sector % 6 == 4) {
        let start = DATA_START + column.offset;
        rig.disk(u64::from(column.child) + 1).corrupt_range(start..start + 4096, 1);
    }
    let recovered = rig.recover(&read, &data).unwrap();
    assert_eq!(recovered.data, data);
    assert!(recovered.liars.len() > 2);
}

#[test]
fn an_expansion_under_way_reads_old_and_new_places() {
    let mut random = Random(7);
    let mut top = raidz(100, 1, leaves(1..6));
    top.raidz_expanding = true;
    let rig = Rig::new(root(12, vec![top]));
    for (word, offset) in [
        ((300 << 12 >> 9) | (4 << 55), 280u64),
        ((300 << 12 >> 9) | (4 << 55), 100),
        ((300 << 12 >> 9) | (1 << 55), 280),
        ((300 << 12 >> 9) | (4 << 55), 400),
        (0, 20),
    ] {
        rig.tree.set_reflow_word(word);
        torture(&rig, offset << 12, 120 << 10, 10, 1, &mut random);
    }
}

#[test]
fn unavailable_devices_are_never_asked_and_parity_only_when_needed() {
    let rig = Rig::new(root(12, vec![raidz(100, 2, leaves(1..7))]));
    let read = block(0, 0, 64 << 10, 10);
    let data = Random(8).bytes(64 << 10);
    rig.write(&read, &data);
    let reads = |rig: &Rig| (1..7).map(|guid| rig.disk(guid).counts().0).collect::<Vec<_>>();
    assert_eq!(rig.read(&read).unwrap(), data);
    // Offset 0: children 0 and 1 are parity.
    assert_eq!(reads(&rig), [0, 0, 1, 1, 1, 1]);
    rig.disk(3).set_health(Health::Gone);
    assert_eq!(rig.read(&read).unwrap(), data);
    let before = reads(&rig);
    assert_eq!(rig.read(&read).unwrap(), data);
    let after = reads(&rig);
    let asked: Vec<u64> = before.iter().zip(after).map(|(before, after)| after - before).collect();
    assert_eq!(asked, [1, 0, 0, 1, 1, 1]);
    assert_eq!(rig.state(3), VdevState::Removed);
    assert_eq!(rig.state(100), VdevState::Degraded);
}

#[test]
fn one_copy_is_handed_on_without_copying_and_many_blocks_go_as_one_batch() {
    let rig = Rig::new(root(9, vec![group(VdevKind::Mirror, 100, leaves(1..3)), leaf(3)]));
    let mut random = Random(9);
    let blocks: Vec<(BlockRead, Vec<u8>)> = (0..40u64)
        .map(|i| {
            let read = block((i % 2) as u32, i * (128 << 10), 100 << 10, 10);
            let data = random.bytes(100 << 10);
            rig.write(&read, &data);
            (read, data)
        })
        .collect();
    let reads: Vec<BlockRead> = blocks.iter().map(|(read, _)| *read).collect();
    for ((_, data), answer) in blocks.iter().zip(rig.tree.read_batch(&reads)) {
        assert_eq!(answer.unwrap(), data);
    }
    // Both sides of the mirror work.
    assert!(rig.disk(1).counts().0 > 5 && rig.disk(2).counts().0 > 5);
    let status = rig.tree.status().unwrap();
    assert_eq!(status.stats.bytes, 40 * (100 << 10));
    assert_eq!(status.stats.reads, 40);
    assert_eq!(status.stats.latency.iter().sum::<u64>(), 40);
}
