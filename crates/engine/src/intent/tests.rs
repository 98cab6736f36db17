//! The log over a disk in memory that can be stopped after any write.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use bytes::Bytes;
use cenote_codec::checksum::{Algorithm, Width, verify_embedded};
use cenote_format::blkptr::Dva;
use cenote_format::zil::{Header, LogBlock, Payload, REPLAY_NEEDED, Record};
use cenote_format::{BlockPointer, Txg};
use parking_lot::Mutex;

use super::walk::Met;
use super::*;
use crate::object::DirtyBlocks;
use crate::txg::{Gate, Tx};
use crate::vdev::BlockWrite;
use crate::{Error, ErrorKind, Result};

const OBJSET: u64 = 0x84;

/// What reached the disk, in order.
#[derive(Clone)]
enum Event {
    Write {
        batch: u64,
        offset: u64,
        data: Bytes,
    },
    Synced {
        txg: Txg,
        header: Header,
    },
    /// Records up to this one were acknowledged.
    Acked(u64),
}

/// A pool in memory whose groups are written when somebody waits for them.
#[derive(Default)]
struct World {
    inner: Mutex<Inner>,
    log: OnceLock<Weak<IntentLog>>,
}

#[derive(Default)]
struct Inner {
    synced: u64,
    next: u64,
    free: Vec<(u64, u64)>,
    events: Vec<Event>,
    batches: u64,
    /// Allocations left before there is no space; none means there is always.
    room: Option<u64>,
    /// Writes that fail.
    failing: u64,
    /// Who waits next is told that nobody wants it any more.
    interrupts: bool,
    /// Bytes of parity per block, to look like raidz.
    parity: u64,
}

impl World {
    fn start(synced: u64, header: Header) -> (Arc<Self>, Arc<IntentLog>) {
        let world = Arc::new(Self::default());
        world.inner.lock().synced = synced;
        world.inner.lock().next = 1 << 20;
        let log = Arc::new(IntentLog::new(world.clone(), OBJSET, header, None));
        world.log.set(Arc::downgrade(&log)).unwrap();
        (world, log)
    }

    /// Writes the open group.
    fn sync(&self) {
        let log = self.log.get().and_then(Weak::upgrade).unwrap();
        let txg = Txg(self.inner.lock().synced + 1);
        let change = log.sync(txg).unwrap();
        let header = Header::decode(&change.header).unwrap();
        let mut inner = self.inner.lock();
        for pointer in change.freed {
            let dva = pointer.first_dva().unwrap();
            assert!(!inner.free.iter().any(|(offset, _)| *offset == dva.offset), "freed twice");
            inner.free.push((dva.offset, dva.asize));
        }
        inner.synced = txg.0;
        inner.events.push(Event::Synced { txg, header });
        drop(inner);
        log.synced(txg);
    }
}

impl LogPool for World {
    fn begin(&self) -> Result<Tx> {
        Ok(Tx::detached(Txg(self.inner.lock().synced + 1)))
    }
    fn synced(&self) -> Txg {
        Txg(self.inner.lock().synced)
    }
    fn wait_synced(&self, txg: Txg) -> Result<()> {
        if std::mem::take(&mut self.inner.lock().interrupts) {
            return Err(Error::new(ErrorKind::Interrupted, "killed"));
        }
        while self.synced() < txg {
            self.sync();
        }
        Ok(())
    }
    fn allocate(&self, _tx: &Tx, size: u64) -> Result<Dva> {
        let mut inner = self.inner.lock();
        if let Some(room) = &mut inner.room {
            *room = room.checked_sub(1).ok_or_else(|| Error::new(ErrorKind::NoSpace, "full"))?;
        }
        let asize = size + inner.parity;
        // What was freed is used again at once.
        let at = inner.free.iter().position(|(_, free)| *free == asize);
        let offset = match at {
            Some(at) => inner.free.remove(at).0,
            None => {
                inner.next += asize;
                inner.next - asize
            }
        };
        Ok(Dva { vdev: 0, offset, asize, gang: false })
    }
    fn write(&self, writes: Vec<LogWrite>, _data: Vec<BlockWrite>) -> Result<()> {
        let mut inner = self.inner.lock();
        if inner.failing > 0 {
            inner.failing -= 1;
            return Err(Error::new(ErrorKind::Io, "the device is gone"));
        }
        inner.batches += 1;
        let batch = inner.batches;
        for write in writes {
            assert!(write.data.len() % 4096 == 0 && write.data.len() as u64 <= write.dva.asize);
            if write.dva.asize % 4096 != 0 {
                assert_eq!(write.data.len() as u64 + inner.parity, write.dva.asize);
            }
            inner.events.push(Event::Write { batch, offset: write.dva.offset, data: write.data });
        }
        Ok(())
    }
    fn placed_from(&self) -> Option<u64> {
        None
    }
    fn place(&self, _tx: &Tx, _blocks: &[DirtyBlocks]) -> Result<Option<Placement>> {
        Ok(None)
    }
    fn random(&self) -> [u64; 2] {
        let mut inner = self.inner.lock();
        inner.batches += 1;
        [inner.batches.wrapping_mul(0x9e37_79b9_7f4a_7c15), inner.next]
    }
}

/// The disk as a crash left it.
#[derive(Default)]
struct Disk {
    blocks: HashMap<u64, Bytes>,
    header: Header,
    synced: u64,
    acked: u64,
}

impl Disk {
    /// What events leave of which those in `lost` never happened.
    fn after(events: &[Event], lost: &BTreeSet<usize>) -> Self {
        let mut disk = Self::default();
        for (index, event) in events.iter().enumerate() {
            match event {
                _ if lost.contains(&index) => {}
                Event::Write { offset, data, .. } => {
                    let mut block = data.to_vec();
                    // Beyond what is written, a block holds what it held.
                    if let Some(old) = disk.blocks.get(offset) {
                        block.extend_from_slice(old.get(block.len()..).unwrap_or(&[]));
                    }
                    disk.blocks.insert(*offset, block.into());
                }
                Event::Synced { txg, header } => (disk.synced, disk.header) = (txg.0, *header),
                Event::Acked(record) => disk.acked = *record,
            }
        }
        disk
    }
}

impl LogReader for Disk {
    fn read_log_block(&self, pointer: &BlockPointer) -> Result<Option<Bytes>> {
        let offset = pointer.first_dva().unwrap().offset;
        let Some(data) = self.blocks.get(&offset) else { return Ok(None) };
        let mut data = data.to_vec();
        data.resize(pointer.psize() as usize, 0);
        let verifier = pointer.checksum();
        let is_good = verify_embedded(&data, Algorithm::Zilog2, &verifier, Width::Full).is_ok();
        Ok(is_good.then(|| data.into()))
    }
    fn read_data(&self, _pointer: &BlockPointer) -> Result<Bytes> {
        Err(Error::corrupt("no data blocks here"))
    }
}

#[derive(Default)]
struct Claims(Mutex<Vec<BlockPointer>>);

impl Claimer for Claims {
    fn is_written(&self, _pointer: &BlockPointer) -> Result<bool> {
        Ok(true)
    }
    fn claim(&self, pointer: &BlockPointer) -> Result<()> {
        self.0.lock().push(*pointer);
        Ok(())
    }
    fn complete(&self, _pointer: &BlockPointer) {}
    fn refer(&self, _pointer: &BlockPointer) -> Result<()> {
        Ok(())
    }
}

/// The record with this number: a name, or a write of as many bytes as it says.
fn append(log: &IntentLog, tx: &Tx, number: u64, bytes: usize) {
    match bytes {
        0 => {
            let name = format!("{number}").into_bytes();
            let payload = Payload::Remove { directory: 1, name, is_directory: false };
            log.append(tx, 1, payload, false).unwrap();
        }
        bytes => {
            let data = Bytes::from(vec![number as u8; bytes]);
            log.append_write(tx, number, 0, data, true);
        }
    }
}

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

fn records_of(disk: &Disk, header: &Header) -> Vec<Record> {
    let mut records: Vec<Record> = Vec::new();
    walk(disk, header, None, |met| {
        if let Met::Record(raw) = met {
            records.push(raw.decode()?);
        }
        Ok(true)
    })
    .unwrap();
    assert!(records.windows(2).all(|pair| pair[1].sequence == pair[0].sequence + 1));
    records
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

#[test]
fn a_commit_takes_what_its_object_needs() {
    let (world, log) = World::start(10, Header::default());
    // The chain is there.
    append(&log, &world.begin().unwrap(), 1, 0);
    log.commit(0).unwrap();
    struct Source;
    impl WriteSource for Source {
        fn read(&self, object: u64, _offset: u64, length: u64) -> Result<Option<Bytes>> {
            let data = Bytes::from(vec![object as u8; length as usize]);
            Ok((object != 9).then_some(data))
        }
        fn dirty(&self, _: Txg, _: u64, _: u64, _: u64) -> Result<Option<DirtyBlocks>> {
            Ok(None)
        }
    }
    let source: Arc<dyn WriteSource> = Arc::new(Source);
    log.set_source(Arc::downgrade(&source));
    let tx = world.begin().unwrap();
    log.append_later_write(&tx, 5, 0, 100);
    log.append_later_write(&tx, 6, 0, 100);
    log.append_later_write(&tx, 9, 0, 100);
    append(&log, &tx, 2, 0);
    let rename = Payload::Rename {
        kind: cenote_format::zil::RenameKind::Plain,
        source_directory: 1,
        source: b"a".to_vec(),
        target_directory: 1,
        target: b"b".to_vec(),
    };
    log.append(&tx, 6, rename, true).unwrap();
    drop(tx);
    log.commit(5).unwrap();
    let names = |log: &IntentLog| {
        let disk = Disk::after(&world.inner.lock().events, &BTreeSet::new());
        let _ = log;
        records_of(&disk, &disk.header)
            .iter()
            .map(|record| match &record.payload {
                Payload::Write { object, .. } => format!("{} {object}", record.payload.name()),
                payload => payload.name().to_owned(),
            })
            .collect::<Vec<_>>()
    };
    // What was written to 6 comes before its rename; 9 waits for its own commit.
    assert_eq!(names(&log), ["TX_REMOVE", "TX_WRITE 6", "TX_RENAME", "TX_WRITE 5"]);
    let before = world.inner.lock().events.len();
    log.commit(5).unwrap();
    assert_eq!(world.inner.lock().events.len(), before);
    log.commit(9).unwrap();
    assert_eq!(names(&log).len(), 4);
    // A new object of the number has nothing to do with what was written to the old one.
    let tx = world.begin().unwrap();
    log.append_later_write(&tx, 5, 0, 100);
    let create = cenote_format::zil::Create {
        what: cenote_format::zil::Created::File,
        directory: 1,
        object: cenote_format::zil::LogId { object: 5, extra_slots: 0 },
        mode: 0o100644,
        owner: 0,
        group: 0,
        generation: 1,
        created: [0; 2],
        device: 0,
        acl: None,
        attributes: None,
        domains: Vec::new(),
        name: b"new".to_vec(),
    };
    log.note(&tx, 5, Payload::Create(Box::new(create))).unwrap();
    log.note(&tx, 5, Payload::WriteExtend { object: 5, offset: 0, length: 9 }).unwrap();
    log.commit(5).unwrap();
    assert_eq!(names(&log)[4..], ["TX_CREATE", "TX_WRITE2"]);
    // What no record can tell brings the group to the disks.
    let synced = world.synced();
    log.append_whole(&world.begin().unwrap());
    log.commit(3).unwrap();
    assert_eq!(world.synced().0, synced.0 + 1);
    // So does more than it pays to write twice.
    let tx = world.begin().unwrap();
    log.append_later_write(&tx, 5, 0, 100 << 20);
    log.commit(5).unwrap();
    assert_eq!(world.synced().0, synced.0 + 2);
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

#[test]
fn a_block_of_openzfs_is_made_again() {
    let fixture = include_bytes!("../../../format/tests/fixtures/zil/block-namespace.bin");
    let (pointer, used) = fixture.split_at(cenote_format::blkptr::SIZE);
    let pointer = BlockPointer::decode(pointer).unwrap();
    let mut data = used.to_vec();
    data.resize(pointer.lsize() as usize, 0);
    let block = LogBlock::decode(&data, &pointer).unwrap();
    let mut builder = BlockBuilder::new(pointer);
    for raw in block.raw_records(&data) {
        let record = raw.unwrap().decode().unwrap();
        builder.push(&record.encode().unwrap(), record.sequence).unwrap();
    }
    let made = builder.finish(&block.chain.next, None).unwrap();
    assert_eq!(made.dva, pointer.first_dva().unwrap());
    assert_eq!(made.data, data[..4096]);
    // Pointers are those OpenZFS makes of the same addresses.
    for (of, verifier) in
        [(pointer, pointer.checksum()), (block.chain.next, block.chain.next.checksum())]
    {
        let size = of.psize() as usize;
        let again = block::pointer_to(of.first_dva().unwrap(), size, of.logical_birth(), verifier);
        assert_eq!(again, of);
    }
}

/// A pool whose groups a thread of its own writes, and whose devices take their time.
struct Threaded {
    gate: Arc<Gate>,
    next: AtomicU64,
    writes: AtomicU64,
    flush: Duration,
}

impl LogPool for Threaded {
    fn begin(&self) -> Result<Tx> {
        self.gate.begin_now()
    }
    fn synced(&self) -> Txg {
        self.gate.figures().synced
    }
    fn wait_synced(&self, txg: Txg) -> Result<()> {
        self.gate.wait_synced(txg, Duration::from_secs(20))
    }
    fn allocate(&self, _tx: &Tx, size: u64) -> Result<Dva> {
        let offset = self.next.fetch_add(size, Relaxed);
        Ok(Dva { vdev: 0, offset, asize: size, gang: false })
    }
    fn write(&self, _writes: Vec<LogWrite>, _data: Vec<BlockWrite>) -> Result<()> {
        self.writes.fetch_add(1, Relaxed);
        std::thread::sleep(self.flush);
        Ok(())
    }
    fn placed_from(&self) -> Option<u64> {
        None
    }
    fn place(&self, _tx: &Tx, _blocks: &[DirtyBlocks]) -> Result<Option<Placement>> {
        Ok(None)
    }
    fn random(&self) -> [u64; 2] {
        [1, 2]
    }
}

#[test]
fn callers_share_what_is_written() {
    let pool = Arc::new(Threaded {
        gate: Gate::new(Txg(4), 1 << 30),
        next: AtomicU64::new(0),
        writes: AtomicU64::new(0),
        flush: Duration::from_millis(2),
    });
    let log = IntentLog::new(pool.clone(), OBJSET, Header::default(), None);
    let commits = 8 * 50;
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            while pool.gate.wait_for_work(Duration::from_millis(30)) {
                let txg = pool.gate.close();
                log.sync(txg).unwrap();
                pool.gate.finished(txg);
                log.synced(txg);
            }
        });
        let callers: Vec<_> = (1..=8_u64)
            .map(|object| {
                let (log, pool) = (&log, &pool);
                scope.spawn(move || {
                    for _ in 0..50 {
                        let tx = pool.begin().unwrap();
                        log.append_write(&tx, object, 0, Bytes::from(vec![1; 4096]), true);
                        drop(tx);
                        log.commit(object).unwrap();
                    }
                })
            })
            .collect();
        for caller in callers {
            caller.join().unwrap();
        }
        pool.gate.stop();
        let tx = pool.begin().unwrap().txg();
        pool.gate.want(tx);
        writer.join().unwrap();
    });
    let writes = pool.writes.load(Relaxed);
    println!("{commits} commits in {writes} writes");
    assert!(writes < commits);
}

#[test]
fn speed_is_told() {
    let pool = Arc::new(Threaded {
        gate: Gate::new(Txg(4), 1 << 30),
        next: AtomicU64::new(0),
        writes: AtomicU64::new(0),
        flush: Duration::ZERO,
    });
    let log = IntentLog::new(pool.clone(), OBJSET, Header::default(), None);
    let data = Bytes::from(vec![1; 4096]);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..2 {
                pool.gate.wait_for_work(Duration::from_secs(3));
                let txg = pool.gate.close();
                log.sync(txg).unwrap();
                pool.gate.finished(txg);
                log.synced(txg);
            }
        });
        let one = || {
            let tx = pool.begin().unwrap();
            log.append_write(&tx, 3, 0, data.clone(), true);
            drop(tx);
            log.commit(3).unwrap();
        };
        one();
        one();
        let start = std::time::Instant::now();
        for _ in 0..5000 {
            one();
        }
        println!("a synchronous write of 4 KiB without the disk: {:?}", start.elapsed() / 5000);
        pool.gate.want(pool.begin().unwrap().txg());
    });
}

#[test]
fn encrypted_blocks_open_again_and_only_whole() {
    use cenote_codec::cipher::{MasterKeys, SecretKey, Suite};
    for suite in [Suite::Aes256Gcm, Suite::Aes192Ccm] {
        let master = SecretKey::new(vec![3; suite.key_len()]);
        let keys = MasterKeys { master, hmac: SecretKey::new(vec![4; 64]) };
        let keys = crate::keys::DatasetKeys::new(suite, 1, keys);
        let dva = Dva { vdev: 0, offset: 4096, asize: 12288, gang: false };
        let mut pointer = block::pointer_to(dva, 12288, Txg(9), [1, 2, OBJSET, 1]);
        keys.prepare(&mut pointer).unwrap();
        let next = block::pointer_to(dva, 4096, Txg(9), [1, 2, OBJSET, 2]);
        let mut builder = BlockBuilder::new(pointer);
        let name = b"secret name".to_vec();
        let payload = Payload::Remove { directory: 1, name, is_directory: false };
        let record = Record { txg: Txg(9), sequence: 1, case_insensitive: false, payload };
        builder.push(&record.encode().unwrap(), 1).unwrap();
        builder.push_write(Txg(9), 2, 5, 0, b"secret data").unwrap();
        let made = builder.finish(&next, Some(&keys)).unwrap();
        verify_embedded(&made.data, Algorithm::Zilog2, &pointer.checksum(), Width::Truncated)
            .unwrap();
        assert!(!made.data.windows(6).any(|bytes| bytes == b"secret"));
        let mut opened = made.data.to_vec();
        keys.open(&pointer, &mut opened).unwrap();
        let block = LogBlock::decode(&opened, &pointer).unwrap();
        let records: Vec<Record> =
            block.raw_records(&opened).map(|raw| raw.unwrap().decode().unwrap()).collect();
        assert_eq!(records[0], record);
        let Payload::Write { data: Some(data), .. } = &records[1].payload else { panic!() };
        assert!(data.starts_with(b"secret data"));
        // Neither the records' headers nor what is encrypted can be changed.
        for at in [16, 184 + 16, 184 + 40, 184 + 56 + 70, 184 + 56 + 200] {
            let mut damaged = made.data.to_vec();
            damaged[at] ^= 1;
            assert!(keys.open(&pointer, &mut damaged).is_err(), "byte {at}");
        }
        // A block without records has a MAC all the same.
        let empty = BlockBuilder::new(pointer).finish(&next, Some(&keys)).unwrap();
        keys.open(&pointer, &mut empty.data.to_vec()).unwrap();
    }
}
