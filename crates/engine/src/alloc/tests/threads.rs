//! Many threads allocate while groups are recorded and maps are read.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cenote_format::{Dva, ObjectId, Txg};

use super::rig::{ALL, MemoryStore, NO_LOGS, Rig, disk};
use crate::Result;
use crate::alloc::{AllocRequest, SpaceSource};

fn run(features: &[&str]) {
    let mut rig = Rig::new(features, &[disk(1 << 30), disk(1 << 30)]);
    // Every metaslab gets a map, then none is in memory.
    let mut all = Vec::new();
    while let Ok(dvas) = rig.allocate(16 << 20) {
        all.extend(dvas);
    }
    rig.sync();
    all.iter().for_each(|dva| rig.allocator.free(dva, Txg(0), rig.txg).unwrap());
    for _ in 0..3 {
        rig.sync();
    }
    rig.reopen();
    let open = AtomicU64::new(rig.txg.0 + 1);
    let stop = AtomicBool::new(false);
    let used: Mutex<BTreeMap<(u32, u64), Dva>> = Mutex::default();
    let Rig { store, allocator, txg, .. } = &mut rig;
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (open, stop, used, allocator) = (&open, &stop, &used, &*allocator);
            scope.spawn(move || {
                let mut number = thread;
                while !stop.load(Relaxed) {
                    number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let psize = ((number >> 33) % 60 + 1) << 14;
                    let txg = Txg(open.load(Relaxed));
                    let request = AllocRequest { copies: 2, ..AllocRequest::new(psize, txg) };
                    // The group may have been closed a moment ago; that is an error here.
                    if let Ok(dvas) = allocator.allocate(&request) {
                        let mut used = used.lock().unwrap();
                        for dva in dvas {
                            let before =
                                used.range(..(dva.vdev, dva.offset + dva.asize)).next_back();
                            assert!(before.is_none_or(|(_, other)| {
                                other.vdev != dva.vdev || other.offset + other.asize <= dva.offset
                            }));
                            used.insert((dva.vdev, dva.offset), dva);
                        }
                    }
                    std::thread::sleep(Duration::from_micros(50));
                }
            });
        }
        let deadline = std::time::Instant::now() + Duration::from_millis(600);
        while std::time::Instant::now() < deadline {
            let mut pass = 1;
            while allocator.sync(store, *txg, pass).unwrap() {
                pass += 1;
            }
            allocator.sync_done(*txg).unwrap();
            txg.0 += 1;
            // Frees of what earlier groups hold, never to be reused while this runs.
            open.store(txg.0 + 1, Relaxed);
            std::thread::sleep(Duration::from_millis(2));
        }
        stop.store(true, Relaxed);
    });
    for _ in 0..4 {
        rig.sync();
    }
    let used = used.into_inner().unwrap();
    let bytes: u64 = used.values().map(|dva| dva.asize).sum();
    assert!(used.len() > 100);
    assert_eq!(rig.allocator.figures().allocated(crate::vdev::AllocationClass::Normal), bytes);
    let reopened = rig.reopened(&rig.store).unwrap();
    assert_eq!(Rig::free_space(&reopened), Rig::free_space(&rig.allocator));
}

#[test]
fn threads_get_different_addresses() {
    run(ALL);
    run(NO_LOGS);
}

/// Metadata that is not read before it may be.
struct Held {
    store: MemoryStore,
    may_read: AtomicBool,
    is_asked: AtomicBool,
}

impl SpaceSource for Held {
    fn bonus(&self, object: ObjectId) -> Result<Vec<u8>> {
        self.store.bonus(object)
    }
    fn block_size(&self, object: ObjectId) -> Result<u64> {
        self.store.block_size(object)
    }
    fn read(&self, object: ObjectId, offset: u64, bytes: usize) -> Result<Vec<u8>> {
        self.is_asked.store(true, SeqCst);
        while !self.may_read.load(SeqCst) {
            std::thread::yield_now();
        }
        self.store.read(object, offset, bytes)
    }
    fn zap_number(&self, zap: ObjectId, name: &str) -> Result<Option<u64>> {
        self.store.zap_number(zap, name)
    }
    fn zap_words(&self, zap: ObjectId, name: &str) -> Result<Option<Vec<u64>>> {
        self.store.zap_words(zap, name)
    }
    fn zap_has(&self, zap: ObjectId, name: &str) -> Result<bool> {
        self.store.zap_has(zap, name)
    }
    fn zap_numbers(&self, zap: ObjectId) -> Result<Vec<(String, u64)>> {
        self.store.zap_numbers(zap)
    }
    fn feature_enabled(&self, guid: &str) -> bool {
        self.store.feature_enabled(guid)
    }
}

#[test]
fn what_is_lent_when_its_map_is_there_is_not_given_to_who_waited_for_that() {
    let mut rig = Rig::new(ALL, &[disk(16 << 20)]);
    for _ in 0..3 {
        rig.allocate(4096).unwrap();
        rig.sync();
    }
    let held = Arc::new(Held {
        store: rig.store.clone(),
        may_read: AtomicBool::new(true),
        is_asked: AtomicBool::new(false),
    });
    let allocator = rig.reopened_from(held.clone()).unwrap();
    let allocator = &Arc::new(allocator);
    held.may_read.store(false, SeqCst);
    held.is_asked.store(false, SeqCst);
    let request = AllocRequest::new(4096, rig.txg);
    let was_lent = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let swept = allocator.sweep(0, 0).unwrap();
            assert!(!swept.free().is_empty());
            let start = Instant::now();
            while !swept.is_wanted() && start.elapsed() < Duration::from_secs(5) {
                std::thread::yield_now();
            }
            was_lent.store(true, SeqCst);
        });
        while !held.is_asked.load(SeqCst) {
            std::thread::yield_now();
        }
        let wants = scope.spawn(|| {
            let given = allocator.allocate(&request);
            // Only when it was given back.
            (given, was_lent.load(SeqCst))
        });
        std::thread::sleep(Duration::from_millis(100));
        held.may_read.store(true, SeqCst);
        let (given, is_back) = wants.join().unwrap();
        given.unwrap();
        assert!(is_back, "it was given what another has");
    });
}
