//! What a crash after any write leaves, and what a replay makes of it.

use std::collections::BTreeMap;

use cenote_format::zil::REPLAY_NEEDED;

use super::*;

/// Numbers of whole records, in order, given what each should be.
fn recovered(records: &[Record], sizes: &BTreeMap<u64, usize>) -> Vec<u64> {
    let mut whole = Vec::new();
    let mut written: HashMap<u64, usize> = HashMap::new();
    for record in records {
        match &record.payload {
            Payload::Remove { name, .. } => {
                whole.push(String::from_utf8(name.clone()).unwrap().parse().unwrap());
            }
            Payload::Write { object, offset, length, data: Some(data), .. } => {
                let sum = written.entry(*object).or_default();
                assert_eq!((*offset, *length), (*sum as u64, data.len() as u64));
                assert!(data.iter().all(|byte| *byte == *object as u8));
                *sum += data.len();
                if *sum == sizes[object] {
                    whole.push(*object);
                }
            }
            other => panic!("{other:?}"),
        }
    }
    whole
}

struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }
}

/// Does `steps` random things and checks what every crash would leave.
fn torture(seed: u64, steps: u64, troubled: bool) {
    let mut random = Random(seed);
    let (world, log) = World::start(10, Header::default());
    if troubled {
        world.inner.lock().parity = 1024;
    }
    let (mut number, mut sizes, mut groups) = (0, BTreeMap::new(), BTreeMap::new());
    for _ in 0..steps {
        match random.below(10) {
            0 => world.sync(),
            1 if troubled => {
                let mut inner = world.inner.lock();
                match random.below(4) {
                    0 => inner.room = Some(random.below(4)),
                    1 => inner.failing = 1,
                    2 => inner.interrupts = true,
                    _ => (inner.room, inner.failing) = (None, 0),
                }
            }
            1..=6 => {
                number += 1;
                let bytes = match random.below(6) {
                    0..=2 => 0,
                    3 => 1 + random.below(5000),
                    4 => 1 + random.below(60_000),
                    _ => 1 + random.below(400_000),
                };
                let tx = world.begin().unwrap();
                append(&log, &tx, number, bytes as usize);
                sizes.insert(number, bytes as usize);
                groups.insert(number, tx.txg().0);
            }
            _ => {
                if let Err(error) = log.commit(0) {
                    assert_eq!(error.kind(), ErrorKind::Interrupted);
                    continue;
                }
                world.inner.lock().events.push(Event::Acked(number));
            }
        }
    }
    let events = world.inner.lock().events.clone();
    for end in 0..=events.len() {
        let events = &events[..end];
        // Of the batch in flight, any part may be lost.
        let mut lost = BTreeSet::new();
        if let Some(Event::Write { batch: last, .. }) = events.last() {
            for (index, event) in events.iter().enumerate() {
                let flying = matches!(event, Event::Write { batch, .. } if batch == last);
                if flying && random.below(3) == 0 {
                    lost.insert(index);
                }
            }
        }
        let disk = Disk::after(events, &lost);
        let claims = Claims::default();
        let first = Txg(disk.synced + 1);
        let header = match claim(&disk, &claims, &disk.header, first).unwrap() {
            Some(header) => header,
            None => disk.header,
        };
        assert!(claims.0.lock().iter().all(|pointer| pointer.logical_birth() >= first));
        let records: Vec<Record> = records_of(&disk, &header)
            .into_iter()
            .filter(|record| record.txg >= header.claim_txg)
            .collect();
        let mut known: BTreeSet<u64> = groups
            .iter()
            .filter(|(_, txg)| **txg <= disk.synced)
            .map(|(number, _)| *number)
            .collect();
        let replayed = recovered(&records, &sizes);
        assert!(replayed.is_sorted(), "{replayed:?}");
        known.extend(replayed);
        // No number is left out, and none that was promised.
        let count = known.len() as u64;
        assert!(known.iter().copied().eq(1..=count), "seed {seed}, {end} events: {known:?}");
        assert!(count >= disk.acked, "seed {seed}, {end} events: {count} of {}", disk.acked);
    }
}

#[test]
fn every_crash_leaves_what_was_promised() {
    for seed in 0..12 {
        torture(seed, 150, false);
    }
}

#[test]
fn full_pools_and_failing_devices_break_no_promise() {
    for seed in 100..124 {
        torture(seed, 150, true);
    }
}

#[test]
fn a_closed_log_leaves_nothing() {
    let (world, log) = World::start(10, Header::default());
    for number in 1..50 {
        append(&log, &world.begin().unwrap(), number, 9000);
        log.commit(0).unwrap();
    }
    assert!(!log.has_work());
    log.close().unwrap();
    let inner = world.inner.lock();
    let Some(Event::Synced { header, .. }) = inner.events.last() else { panic!() };
    assert_eq!(*header, Header::default());
    let free: u64 = inner.free.iter().map(|(_, size)| size).sum();
    assert_eq!(free, inner.next - (1 << 20));
}

/// A file system that only remembers which records it was given.
struct Target<'a> {
    world: &'a World,
    log: &'a IntentLog,
    done: Mutex<Vec<(Txg, u64)>>,
    /// Fails at this record, once.
    fails: Mutex<Option<u64>>,
    /// Groups are written at random.
    random: Mutex<Random>,
}

fn target<'a>(world: &'a World, log: &'a IntentLog, fails: Option<u64>, seed: u64) -> Target<'a> {
    Target {
        world,
        log,
        done: Mutex::default(),
        fails: Mutex::new(fails),
        random: Mutex::new(Random(seed)),
    }
}

impl Replay for Target<'_> {
    fn exists(&self, object: u64) -> Result<bool> {
        Ok(object != 7)
    }
    fn apply(&self, record: &Record, _block: Option<&Bytes>) -> Result<()> {
        if self.fails.lock().take_if(|at| *at == record.sequence).is_some() {
            return Err(Error::invalid("not now"));
        }
        let tx = self.world.begin()?;
        self.log.append(&tx, 1, record.payload.clone(), false)?;
        self.done.lock().push((tx.txg(), record.sequence));
        drop(tx);
        if self.random.lock().below(3) == 0 {
            self.world.sync();
        }
        Ok(())
    }
}

#[test]
fn a_replay_goes_on_where_a_crash_stopped_it() {
    let (world, log) = World::start(10, Header::default());
    append(&log, &world.begin().unwrap(), 1, 0);
    log.commit(0).unwrap();
    for number in 2..60 {
        append(&log, &world.begin().unwrap(), number, if number == 7 { 100 } else { 0 });
        log.commit(0).unwrap();
    }
    let events = world.inner.lock().events.clone();
    let disk = Disk::after(&events, &BTreeSet::new());
    let header =
        claim(&disk, &Claims::default(), &disk.header, Txg(disk.synced + 1)).unwrap().unwrap();
    assert_eq!((header.flags & REPLAY_NEEDED, header.claim_record_seq), (1, 58));
    for seed in 0..30 {
        let (first, log) = World::start(disk.synced, header);
        first.sync();
        let one = target(&first, &log, Some(9 + seed), seed);
        let report = log.replay(&disk, &one).unwrap();
        assert!(report.failure.is_none(), "{report:?}");
        assert_eq!((report.applied, report.skipped), (57, 1));
        let done = one.done.lock().clone();
        let ends = first.inner.lock().events.clone();
        let Some(Event::Synced { header, .. }) = ends.last() else { panic!() };
        assert_eq!(*header, Header::default());
        // Crash after any group: what is done plus what a second replay does is everything, once.
        for event in &ends {
            let Event::Synced { txg, header } = event else { continue };
            let (again, log) = World::start(txg.0, *header);
            let two = target(&again, &log, None, seed);
            log.replay(&disk, &two).unwrap();
            let kept = done.iter().filter(|(when, _)| when <= txg).map(|(_, sequence)| *sequence);
            let more = two.done.lock().iter().map(|(_, sequence)| *sequence).collect::<Vec<_>>();
            let all: Vec<u64> = kept.chain(more).collect();
            let expected: Vec<u64> = (1..=58).filter(|sequence| *sequence != 6).collect();
            assert_eq!(all, expected, "crash after {txg}");
        }
        // All blocks of the log are free: the chain, and the one never written.
        assert!(first.inner.lock().free.len() >= 2);
    }
}
