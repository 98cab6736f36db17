//! What a commit takes along, and who shares it.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use super::*;
use crate::txg::Gate;

/// Files that hold what their number says; 9 is gone.
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

/// What is in the log, by name.
fn names(world: &World) -> Vec<String> {
    let disk = Disk::after(&world.inner.lock().events, &BTreeSet::new());
    let name = |record: &Record| match &record.payload {
        Payload::Write { object, .. } => format!("{} {object}", record.payload.name()),
        payload => payload.name().to_owned(),
    };
    records_of(&disk, &disk.header).iter().map(name).collect()
}

/// A log whose chain is there.
fn begun() -> (Arc<World>, Arc<IntentLog>) {
    let (world, log) = World::start(10, Header::default());
    append(&log, &world.begin().unwrap(), 1, 0);
    log.commit(0).unwrap();
    (world, log)
}

fn rename() -> Payload {
    Payload::Rename {
        kind: cenote_format::zil::RenameKind::Plain,
        source_directory: 1,
        source: b"a".to_vec(),
        target_directory: 1,
        target: b"b".to_vec(),
    }
}

#[test]
fn a_commit_takes_what_its_object_needs() {
    let (world, log) = begun();
    let source: Arc<dyn WriteSource> = Arc::new(Source);
    log.set_source(Arc::downgrade(&source));
    let tx = world.begin().unwrap();
    log.append_later_write(&tx, 5, 0, 100);
    log.append_later_write(&tx, 6, 0, 100);
    log.append_later_write(&tx, 9, 0, 100);
    append(&log, &tx, 2, 0);
    log.append(&tx, 6, rename(), true).unwrap();
    drop(tx);
    log.commit(5).unwrap();
    // What was written to 6 comes before its rename; 9 waits for its own commit.
    assert_eq!(names(&world), ["TX_REMOVE", "TX_WRITE 6", "TX_RENAME", "TX_WRITE 5"]);
    let before = world.inner.lock().events.len();
    log.commit(5).unwrap();
    assert_eq!(world.inner.lock().events.len(), before);
    log.commit(9).unwrap();
    assert_eq!(names(&world).len(), 4);
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
    assert_eq!(names(&world)[4..], ["TX_CREATE", "TX_WRITE2"]);
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
fn records_of_extended_attributes_wait_for_their_feature() {
    let (world, log) = begun();
    let set = |name: &[u8]| {
        let payload = Payload::SetXattr { object: 5, name: name.to_vec(), value: Some(vec![1]) };
        let tx = world.begin().unwrap();
        log.note(&tx, 5, payload).unwrap();
        tx.txg()
    };
    assert!(!log.has_xattr_records());
    let first = set(b"a");
    // The group of the first is to write that the dataset has the feature, and is waited for.
    assert!(log.has_xattr_records() && world.synced() < first);
    set(b"b");
    log.commit(5).unwrap();
    assert_eq!((names(&world), world.synced()), (Vec::new(), first));
    let second = set(b"c");
    log.commit(5).unwrap();
    assert_eq!(names(&world), ["TX_SETSAXATTR"]);
    assert!(world.synced() < second);
}

/// While its data is read, an object is cut: only zeros are there.
struct Cutting {
    world: Arc<World>,
    log: Weak<IntentLog>,
}

impl WriteSource for Cutting {
    fn read(&self, object: u64, _offset: u64, length: u64) -> Result<Option<Bytes>> {
        let log = self.log.upgrade().unwrap();
        let cut = Payload::Truncate { object, offset: 0, length: 0 };
        log.note(&self.world.begin()?, object, cut)?;
        Ok(Some(Bytes::from(vec![0; length as usize])))
    }
    fn dirty(&self, _: Txg, _: u64, _: u64, _: u64) -> Result<Option<DirtyBlocks>> {
        Ok(None)
    }
}

#[test]
fn data_cut_while_it_is_read_is_not_logged() {
    let (world, log) = begun();
    let source: Arc<dyn WriteSource> =
        Arc::new(Cutting { world: world.clone(), log: Arc::downgrade(&log) });
    log.set_source(Arc::downgrade(&source));
    let tx = world.begin().unwrap();
    log.append_later_write(&tx, 5, 0, 100);
    let txg = tx.txg();
    drop(tx);
    log.commit(5).unwrap();
    // The group has the data, or the cut as well.
    assert_eq!((names(&world), world.synced()), (Vec::new(), txg));
}

#[test]
fn a_cut_goes_with_the_write_before_it() {
    let (world, log) = begun();
    let source: Arc<dyn WriteSource> = Arc::new(Source);
    log.set_source(Arc::downgrade(&source));
    let tx = world.begin().unwrap();
    log.append_later_write(&tx, 5, 0, 100);
    log.note(&tx, 5, rename()).unwrap();
    log.note(&tx, 5, Payload::Truncate { object: 5, offset: 0, length: 0 }).unwrap();
    log.append_later_write(&tx, 6, 0, 100);
    drop(tx);
    // Whoever commits another object commits the rename and the write, which is read after the cut.
    log.commit(7).unwrap();
    assert_eq!(names(&world), ["TX_WRITE 5", "TX_RENAME", "TX_TRUNCATE"]);
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
