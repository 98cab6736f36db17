//! Writing: the same bytes as an independent writer's, what failures do, flushes, and the queue.

use super::rig::*;
use crate::vdev::*;
use bytes::Bytes;
use cenote_device::{Device, Health, SimEvent};
use cenote_format::config::VdevKind;
use cenote_format::{Guid, Txg};
use std::sync::Arc;

fn blocks(
    seed: u64,
    vdev: u32,
    unit: u64,
    sector: u64,
    sizes: &[u64],
    birth: u64,
) -> Vec<BlockWrite> {
    let mut random = Random(seed);
    let mut offset = 0;
    let mut writes = Vec::new();
    for &size in sizes {
        let data = Bytes::from(random.bytes(size as usize));
        // Far enough apart for any parity and padding.
        writes.push(BlockWrite { sides: None, vdev, offset, data, birth: Txg(birth) });
        offset = (offset + size * 4 + (1 << 20) + sector).next_multiple_of(unit);
    }
    writes
}

/// Every shape, the unit of its addresses, and its sector size.
fn shapes() -> Vec<(&'static str, cenote_format::config::VdevConfig, u64, u64)> {
    let mut expanded = raidz(100, 1, leaves(1..6));
    expanded.raidz_expand_txgs = Some(vec![50]);
    let mut expanded_twice = raidz(100, 2, leaves(1..8));
    expanded_twice.raidz_expand_txgs = Some(vec![50, 200]);
    let mut nested = raidz(100, 1, leaves(1..5));
    nested.children.as_mut().unwrap()[1] = group(VdevKind::Replacing, 101, leaves(11..13));
    nested.children.as_mut().unwrap()[2] = group(VdevKind::Spare, 102, leaves(21..23));
    let mirror = group(VdevKind::Mirror, 100, leaves(1..4));
    vec![
        ("disk", root(12, vec![leaf(1)]), 4096, 4096),
        ("mirror", root(9, vec![mirror]), 512, 512),
        ("raidz1", root(9, vec![raidz(100, 1, leaves(1..4))]), 512, 512),
        ("raidz1 of 5", root(12, vec![raidz(100, 1, leaves(1..6))]), 4096, 4096),
        ("raidz2", root(12, vec![raidz(100, 2, leaves(1..7))]), 4096, 4096),
        ("raidz3", root(9, vec![raidz(100, 3, leaves(1..9))]), 512, 512),
        ("expanded", root(12, vec![expanded]), 4096, 4096),
        ("expanded twice", root(9, vec![expanded_twice]), 512, 512),
        ("nested", root(12, vec![nested]), 4096, 4096),
        ("draid1", root(12, vec![draid(100, 1, 2, 1, leaves(1..8))]), 3 << 12, 4096),
        ("draid2", root(12, vec![draid(100, 2, 4, 2, leaves(1..12))]), 6 << 12, 4096),
    ]
}

const SIZES: [u64; 9] = [512, 4096, 8192, 12_288, 20_480, 131_072, 66_048, 1 << 20, 4608];

#[test]
fn the_bytes_are_those_of_an_independent_writer() {
    for (name, config, unit, sector) in shapes() {
        let births: &[u64] = if name.starts_with("expanded") { &[10, 100, 300] } else { &[10] };
        for &birth in births {
            let (own, other) = (Rig::new(config.clone()), Rig::new(config.clone()));
            let writes = blocks(birth, 0, unit, sector, &SIZES, birth);
            for answer in own.tree.write_batch(&writes) {
                answer.unwrap();
            }
            for write in &writes {
                other.write(&write.as_read(), &write.data);
                assert_eq!(own.read(&write.as_read()).unwrap(), write.data, "{name}");
            }
            for (guid, disk) in &own.disks {
                let same =
                    disk.read(0, DISK / 2).unwrap() == other.disk(*guid).read(0, DISK / 2).unwrap();
                assert!(same, "{name}: disk {guid} differs, born {birth}");
            }
            assert!(own.tree.missed().is_empty());
            own.tree.flush().unwrap();
        }
    }
}

/// Writes with `lost` broken reading them back afterwards, all disks healed.
fn survives(
    config: cenote_format::config::VdevConfig,
    unit: u64,
    lost: &[u64],
    health: Health,
) -> bool {
    let rig = Rig::new(config);
    let writes = blocks(7, 0, unit, 4096, &SIZES, 10);
    for &guid in lost {
        // Otherwise wrong bytes would be right by chance.
        rig.corrupt(guid);
        rig.disk(guid).set_health(health);
    }
    let answers = rig.tree.write_batch(&writes);
    let whole = answers.iter().all(Result::is_ok);
    let missed = rig.tree.missed();
    assert!(!missed.is_empty() || !whole);
    for (guid, txgs) in missed {
        assert!(
            lost.contains(&guid.0) && txgs.len() == 1 && txgs[0] == (10..11),
            "{guid} {txgs:?}"
        );
    }
    rig.disks.values().for_each(|disk| disk.set_health(Health::Well));
    rig.tree.clear(None);
    for (write, answer) in writes.iter().zip(answers) {
        match answer {
            // The fast path knows who missed it: no recovery needed.
            Ok(()) => assert_eq!(rig.read(&write.as_read()).unwrap(), write.data),
            Err(error) => assert!(matches!(error, VdevError::NotWritten { vdev: 0, .. })),
        }
    }
    whole
}

#[test]
fn failures_within_the_redundancy_are_noted_and_read_around() {
    for health in [Health::FailsWrites, Health::Hangs, Health::Gone] {
        let mirror = || root(12, vec![group(VdevKind::Mirror, 100, leaves(1..4))]);
        assert!(survives(mirror(), 4096, &[2], health));
        assert!(survives(mirror(), 4096, &[1, 3], health));
        let raidz = |parity| root(12, vec![raidz(100, parity, leaves(1..7))]);
        assert!(survives(raidz(1), 4096, &[4], health));
        assert!(survives(raidz(2), 4096, &[1, 6], health));
        assert!(survives(raidz(3), 4096, &[1, 2, 6], health));
        assert!(!survives(raidz(2), 4096, &[1, 2, 6], health));
        let draid = || root(12, vec![draid(100, 2, 4, 2, leaves(1..12))]);
        assert!(survives(draid(), 6 << 12, &[3, 9], health));
        // All blocks lie in the first group: on children 7, 8, 10, 6, 0 and 2.
        assert!(!survives(draid(), 6 << 12, &[1, 3, 9], health));
    }
    let rig = Rig::new(root(12, vec![leaf(1)]));
    rig.disk(1).set_health(Health::FailsWrites);
    let writes = blocks(7, 0, 4096, 4096, &[4096], 10);
    let error = rig.tree.write_batch(&writes).pop().unwrap().unwrap_err();
    assert!(error.to_string().starts_with("writing top-level vdev 0: "), "{error}");
    let status = rig.tree.status().unwrap();
    // It was tried again at once.
    assert_eq!(status.find(Guid(1)).unwrap().stats.write_errors, 2);
}

#[test]
fn a_disk_that_was_given_up_is_written_if_there_is_no_other() {
    let rig = Rig::new(root(12, vec![leaf(1)]));
    let writes = blocks(7, 0, 4096, 4096, &[4096], 10);
    rig.disk(1).set_health(Health::Hangs);
    assert!(rig.tree.write_batch(&writes)[0].is_err());
    assert_eq!(rig.state(1), VdevState::Unavailable);
    rig.disk(1).set_health(Health::Well);
    rig.tree.write_batch(&writes).pop().unwrap().unwrap();
    assert_eq!(rig.state(1), VdevState::Online);
}

#[test]
fn unavailable_leaves_are_noted_without_being_asked() {
    let mut children = leaves(1..4);
    children[1].offline = true;
    let rig = Rig::new(root(12, vec![raidz(100, 1, children)]));
    let before = rig.tree.missed_changes();
    for birth in [10, 11, 14] {
        let writes = blocks(7, 0, 4096, 4096, &[131_072], birth);
        rig.tree.write_batch(&writes).pop().unwrap().unwrap();
    }
    assert_eq!(rig.tree.missed(), [(Guid(2), vec![10..12, 14..15])]);
    assert_eq!(rig.tree.missed_changes(), before + 3);
    assert_eq!(rig.disk(2).counts(), (0, 0));
    rig.tree.flush().unwrap();
}

#[test]
fn a_failed_flush_is_a_failed_write() {
    let rig = Rig::new(root(12, vec![group(VdevKind::Mirror, 100, leaves(1..3))]));
    let writes = blocks(7, 0, 4096, 4096, &[4096, 8192], 20);
    assert!(rig.tree.write_batch(&writes).iter().all(Result::is_ok));
    rig.disk(1).set_health(Health::FailsWrites);
    rig.tree.flush().unwrap();
    let missed = rig.tree.missed();
    assert_eq!((missed.len(), missed[0].0, missed[0].1[0].clone()), (1, Guid(1), 20..21));
    assert_eq!(rig.tree.take_unflushed(), [Guid(1)].into());
    rig.disk(1).set_health(Health::Well);
    assert!(rig.tree.write_batch(&writes).iter().all(Result::is_ok));
    rig.disks.values().for_each(|disk| disk.set_health(Health::FailsWrites));
    let error = rig.tree.flush().unwrap_err();
    assert!(matches!(error, VdevError::NotWritten { vdev: 0, .. }), "{error}");
    // What was lost stays lost: no later flush can vouch for it.
    rig.disks.values().for_each(|disk| disk.set_health(Health::Well));
    assert!(rig.tree.flush().is_err());
    assert_eq!(rig.tree.failed_flushes(), 1);
    // Nor for what a resilver wrote: nobody writes that again by itself.
    assert_eq!(rig.tree.take_unflushed(), [Guid(1), Guid(2)].into());
    rig.tree.forgive_flush();
    assert!(rig.tree.write_batch(&writes).iter().all(Result::is_ok));
    rig.tree.flush().unwrap();
    // A block that was not written at all is missed by nobody.
    let after = blocks(8, 0, 4096, 4096, &[4096], 21);
    rig.disks.values().for_each(|disk| disk.set_health(Health::FailsWrites));
    assert!(rig.tree.write_batch(&after)[0].is_err());
    assert_eq!(rig.tree.missed(), missed);
}

#[test]
fn impossible_places_are_refused() {
    let mut expanding = raidz(101, 1, leaves(11..15));
    expanding.raidz_expanding = true;
    let removed = group(VdevKind::Indirect, 102, Vec::new());
    let hole = cenote_format::config::VdevConfig::placeholder(VdevKind::Hole, 3);
    let rig = Rig::new(root(12, vec![leaf(1), expanding, removed, hole]));
    let write = |vdev, offset, len: usize| BlockWrite {
        sides: None,
        vdev,
        offset,
        data: Bytes::from(vec![1; len]),
        birth: Txg(9),
    };
    for bad in [
        write(0, u64::MAX - 4095, 8192),
        write(0, DISK as u64, 4096),
        write(0, 0, 0),
        write(1, DISK as u64 * 3, 4096),
        write(2, 0, 4096),
        write(3, 0, 4096),
        write(4, 0, 4096),
    ] {
        assert!(rig.tree.write_batch(std::slice::from_ref(&bad))[0].is_err(), "{bad:?}");
    }
    assert!(rig.disks.values().all(|disk| disk.counts().1 == 0));
}

#[test]
fn neighbours_are_joined_over_unused_sectors() {
    // A sector of data and one of parity each, padded to an even count by nothing; three sectors
    // of data take 5 of 6 allocated.
    let rig = Rig::new(root(12, vec![raidz(100, 1, leaves(1..4))]));
    rig.disks.values().for_each(|disk| disk.record());
    let data = Random(3).bytes(3 << 12);
    let size = rig.tree.asize(0, 3 << 12, Txg(5)).unwrap();
    assert_eq!(size, 6 << 12);
    let writes: Vec<BlockWrite> = (0..4)
        .map(|i| BlockWrite {
            sides: None,
            vdev: 0,
            offset: i * size,
            data: data.clone().into(),
            birth: Txg(5),
        })
        .collect();
    assert!(rig.tree.write_batch(&writes).iter().all(Result::is_ok));
    let zeros = |disk: &cenote_device::SimDevice| {
        let is_zero = |event: &SimEvent| matches!(event, SimEvent::Write { data, .. } if data.iter().all(|b| *b == 0));
        disk.recorded().iter().filter(|recorded| is_zero(&recorded.event)).count()
    };
    // The last block's unused sector has nothing after it.
    assert_eq!(rig.disks.values().map(|disk| zeros(disk)).sum::<usize>(), 3);
    for write in &writes {
        assert_eq!(rig.read(&write.as_read()).unwrap(), write.data);
    }
}

#[test]
fn repairs_make_liars_whole() {
    for config in [
        root(12, vec![group(VdevKind::Mirror, 100, leaves(1..4))]),
        root(12, vec![raidz(100, 2, leaves(1..6))]),
    ] {
        let rig = Rig::new(config);
        let writes = blocks(7, 0, 4096, 4096, &[131_072], 10);
        rig.tree.write_batch(&writes).pop().unwrap().unwrap();
        let read = writes[0].as_read();
        rig.disk(1).corrupt_range(DATA_START..DATA_START + 4096, 0x55);
        let found = rig.tree.read_all_copies(&read, &mut |b| b == writes[0].data).unwrap();
        assert_eq!(found.liars, [Guid(1)]);
        assert!(rig.tree.repair(&found.repairs).iter().all(Result::is_ok));
        let found = rig.tree.read_all_copies(&read, &mut |b| b == writes[0].data).unwrap();
        assert!(found.liars.is_empty() && found.repairs.is_empty());
    }
}

#[test]
fn the_queue_writes_everything_and_tells_what_failed() {
    let rig = Rig::new(root(12, vec![leaf(1), raidz(100, 1, leaves(11..15))]));
    let disks = rig.disks.clone();
    let tree = Arc::new(rig.tree);
    let shared = tree.clone();
    let queue = WriteQueue::new(VdevHandle::new(shared), 3, 1 << 20).unwrap();
    let mut writes = Vec::new();
    for (vdev, seed) in [(0, 1), (1, 2)] {
        writes.extend(blocks(seed, vdev, 4096, 4096, &[SIZES[3]; 24], 30));
    }
    for write in &writes {
        queue.submit(write.clone());
        assert!(queue.bytes() <= 1 << 20);
        let pending = queue.pending(write.vdev, write.offset);
        assert!(pending.is_none_or(|data| data == write.data));
    }
    assert!(queue.settle().is_none());
    assert_eq!((queue.bytes(), queue.pending(0, 0)), (0, None));
    let reads: Vec<BlockRead> = writes.iter().map(BlockWrite::as_read).collect();
    for (write, answer) in writes.iter().zip(tree.read_batch(&reads)) {
        assert_eq!(answer.unwrap(), write.data);
    }
    // The later of two writes to one place stays, and overlapping ones are kept apart.
    for round in 0..50u8 {
        let data = Bytes::from(vec![round; 8192]);
        queue.submit(BlockWrite { sides: None, vdev: 0, offset: 4096, data, birth: Txg(31) });
        let data = Bytes::from(vec![round; 4096]);
        queue.submit(BlockWrite { sides: None, vdev: 0, offset: 8192, data, birth: Txg(31) });
    }
    assert!(queue.settle().is_none());
    queue.flushed();
    let read = tree.read_batch(&[block(0, 4096, 8192, 31)]).pop().unwrap().unwrap();
    assert!(read.iter().all(|byte| *byte == 49));
    disks[&1].set_health(Health::FailsWrites);
    writes.iter().for_each(|write| queue.submit(write.clone()));
    let (failed, _) = queue.settle().unwrap();
    assert_eq!(failed.vdev, 0);
    // What failed is read from here until it is written.
    let waiting = |queue: &WriteQueue| {
        let pending = |write: &&BlockWrite| queue.pending(write.vdev, write.offset).is_some();
        writes.iter().filter(pending).count()
    };
    assert_eq!(waiting(&queue), 24);
    queue.retry();
    assert!(queue.settle().is_some());
    disks[&1].set_health(Health::Well);
    queue.retry();
    assert!(queue.settle().is_none());
    assert_eq!(waiting(&queue), 0);
    // A cache of the disk was lost before it was flushed: everything is there to be written anew.
    disks[&1].crash();
    queue.rewrite();
    assert!(queue.settle().is_none());
    for (write, answer) in writes.iter().zip(tree.read_batch(&reads)) {
        assert_eq!(answer.unwrap(), write.data);
    }
    // Dropping writes what is queued.
    writes.iter().for_each(|write| queue.submit(write.clone()));
    drop(queue);
    for (write, answer) in writes.iter().zip(tree.read_batch(&reads)) {
        assert_eq!(answer.unwrap(), write.data);
    }
}

/// A block of 4 KiB of `fill` at the start of vdev 0.
fn first_block(fill: u8) -> BlockWrite {
    BlockWrite {
        sides: None,
        vdev: 0,
        offset: 0,
        data: Bytes::from(vec![fill; 4096]),
        birth: Txg(31),
    }
}

#[test]
fn a_block_is_written_anew_where_it_is_without_a_wait() {
    let rig = Rig::new(root(12, vec![leaf(1)]));
    let disk = rig.disks[&1].clone();
    let tree = Arc::new(rig.tree);
    let on_disk = || tree.read_batch(&[first_block(0).as_read()]).pop().unwrap().unwrap()[0];
    let data = |queue: &WriteQueue| queue.pending(0, 0).map(|data| data[0]);
    for threads in [0, 1, 3] {
        let shared = tree.clone();
        let queue = WriteQueue::new(VdevHandle::new(shared), threads, 1 << 20).unwrap();
        disk.set_delay(std::time::Duration::from_millis(5));
        for fill in 1..=20 {
            queue.submit(first_block(fill));
            // Readers get the newest bytes at once, which may have been written by now.
            assert!(data(&queue).is_none_or(|now| now == fill));
            assert!(queue.bytes() <= 2 * 4096, "what was replaced still counts");
        }
        assert_eq!(queue.waits(), 0, "{threads} threads");
        assert!(queue.settle().is_none());
        assert_eq!((queue.bytes(), queue.waits(), data(&queue), on_disk()), (0, 1, None, 20));

        // Of what fails only the newest is told and tried again.
        disk.set_health(Health::FailsWrites);
        for fill in 21..=25 {
            queue.submit(first_block(fill));
        }
        let (failed, _) = queue.settle().unwrap();
        assert_eq!((failed.data[0], data(&queue), on_disk()), (25, Some(25), 20));
        queue.submit(first_block(26));
        disk.set_health(Health::Well);
        assert!(queue.settle().is_none() || threads > 0);
        queue.retry();
        assert!(queue.settle().is_none());
        assert_eq!((data(&queue), on_disk()), (None, 26));
        // The disk's cache was lost: the newest is written once more, nothing older.
        disk.crash();
        queue.rewrite();
        assert!(queue.settle().is_none());
        assert_eq!(on_disk(), 26);
        disk.flush().unwrap();
        queue.flushed();
    }
}

#[test]
fn while_reads_come_a_mebibyte_is_under_way_at_most() {
    const DELAY: std::time::Duration = std::time::Duration::from_millis(20);
    let rig = Rig::new(root(12, vec![leaf(1)]));
    rig.disks[&1].set_delay(DELAY);
    let vdevs = VdevHandle::new(Arc::new(rig.tree));
    let queue = WriteQueue::new(vdevs.clone(), 3, 64 << 20).unwrap();
    let writes = blocks(3, 0, 4096, 4096, &[1 << 20; 8], 30);
    let done = std::sync::atomic::AtomicBool::new(false);
    let start = std::time::Instant::now();
    std::thread::scope(|scope| {
        vdevs.precedence().note(4096);
        scope.spawn(|| {
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                vdevs.precedence().note(4096);
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        });
        writes.into_iter().for_each(|write| queue.submit(write));
        assert!(queue.settle().is_none());
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    // One after another, then.
    assert!(start.elapsed() >= 8 * DELAY, "{:?}", start.elapsed());
}

#[test]
fn a_queue_that_is_left_while_reads_come_ends() {
    let rig = Rig::new(root(12, vec![leaf(1)]));
    rig.disks[&1].set_delay(std::time::Duration::from_millis(20));
    let vdevs = VdevHandle::new(Arc::new(rig.tree));
    let queue = WriteQueue::new(vdevs.clone(), 3, 64 << 20).unwrap();
    let (ended, end) = std::sync::mpsc::channel();
    let reads = std::thread::spawn(move || {
        loop {
            vdevs.precedence().note(4096);
            let answer = end.recv_timeout(std::time::Duration::from_millis(1));
            if answer != Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                return answer;
            }
        }
    });
    // One thread writes, and the others find that they should not.
    blocks(3, 0, 4096, 4096, &[1 << 20; 4], 30).into_iter().for_each(|write| queue.submit(write));
    std::thread::spawn(move || {
        drop(queue);
        ended.send(())
    });
    let start = std::time::Instant::now();
    while !reads.is_finished() {
        assert!(start.elapsed().as_secs() < 30, "the threads of the queue wait for ever");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert_eq!(reads.join().unwrap(), Ok(()));
}
