//! Many threads allocate while groups are recorded and maps are read.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use cenote_format::{Dva, Txg};

use super::rig::{ALL, NO_LOGS, Rig, disk};
use crate::alloc::AllocRequest;

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
