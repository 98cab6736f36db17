//! What is recorded, and what the next one to open the pool makes of it.

use cenote_format::space_map::SpaceMapHeader;
use cenote_format::{Dva, ObjectId, Txg};

use super::rig::{ALL, NO_LOGS, Rig, disk};
use crate::alloc::store::{LOG_ZAP, UNFLUSHED};
use crate::alloc::{AllocRequest, DIRECTORY, HISTOGRAM, LOGS, SpaceSource, TWO_WORDS};
use crate::vdev::AllocationClass::Normal;

const GIB: u64 = 1 << 30;

/// Another process finds the same free space, once what is held back is released.
fn check(rig: &mut Rig) {
    for _ in 0..3 {
        rig.sync();
    }
    let reopened = rig.reopened(&rig.store).unwrap();
    assert_eq!(reopened.figures().tops, rig.allocator.figures().tops);
    assert_eq!(Rig::free_space(&reopened), Rig::free_space(&rig.allocator));
}

#[test]
fn what_is_recorded_is_read_back() {
    for features in [ALL, NO_LOGS, &[HISTOGRAM, TWO_WORDS, "x"], &[TWO_WORDS], &[]] {
        let mut rig = Rig::new(features, &[disk(GIB), disk(2 * GIB)]);
        let mut taken = Vec::new();
        for round in 0..20u64 {
            for index in 0..50 {
                taken.extend(rig.allocate(4096 * (1 + (index * 7 + round) % 40)).unwrap());
            }
            for _ in 0..20 {
                let dva = taken.swap_remove((round as usize * 31) % taken.len());
                rig.allocator.free(&dva, Txg(0), rig.txg).unwrap();
            }
            assert_eq!(rig.sync(), 1);
        }
        let used: u64 = taken.iter().map(|dva| dva.asize).sum();
        assert_eq!(rig.allocator.figures().allocated(Normal), used);
        check(&mut rig);
        rig.reopen();
        for dva in taken.drain(..) {
            assert!(!rig.allocator.is_free(&dva).unwrap());
            rig.allocator.free(&dva, Txg(0), rig.txg).unwrap();
        }
        check(&mut rig);
        assert_eq!(rig.allocator.figures().allocated(Normal), 0);
        let memory = rig.store.0.lock();
        let maps = memory.objects.values().filter(|object| object.bonus.len() == 320).count();
        assert_eq!(memory.features.get(HISTOGRAM).copied().unwrap_or(0), maps as i64);
        let logs = memory.features.get(LOGS).copied();
        assert!(logs.is_none_or(|count| count == 1));
    }
}

#[test]
fn histograms_on_disk_count_what_is_free_now() {
    for features in [ALL, NO_LOGS] {
        let mut rig = Rig::new(features, &[disk(GIB)]);
        for _ in 0..30 {
            for _ in 0..20 {
                rig.allocate(1 << 20).unwrap();
            }
            rig.sync();
            let state = rig.allocator.state.lock();
            let top = state.top(0).unwrap();
            let slabs = top.metaslabs.iter().filter(|slab| slab.loaded().is_some());
            for (slab, map) in slabs.filter_map(|slab| Some((slab, slab.map.as_ref()?))) {
                let bonus = rig.store.bonus(map.object).unwrap();
                let recorded = SpaceMapHeader::decode(&bonus).unwrap().histogram;
                assert_eq!(recorded, slab.histogram(top.facts.ashift));
            }
        }
    }
}

#[test]
fn empty_groups_write_nothing() {
    for features in [ALL, NO_LOGS] {
        let mut rig = Rig::new(features, &[disk(GIB)]);
        assert_eq!(rig.sync(), 0);
        let dva = rig.allocate(4096).unwrap()[0];
        rig.allocator.unalloc(&dva, rig.txg).unwrap();
        assert_eq!(Rig::free_space(&rig.allocator)[&0].iter().map(|r| r.1 - r.0).sum::<u64>(), GIB);
        rig.allocate(4096).unwrap();
        assert_eq!(rig.sync(), 1);
        for _ in 0..5 {
            assert_eq!(rig.sync(), 0);
        }
    }
}

#[test]
fn freed_space_waits_for_two_groups_more() {
    for features in [ALL, NO_LOGS] {
        let mut rig = Rig::new(features, &[disk(GIB)]);
        let dva = rig.allocate(4096).unwrap()[0];
        rig.sync();
        rig.allocator.free(&dva, Txg(0), rig.txg).unwrap();
        let freed = rig.txg;
        while rig.txg.0 <= freed.0 + 2 {
            assert!(!rig.allocator.is_free(&dva).unwrap(), "{:?}", rig.txg);
            rig.sync();
            let figures = rig.allocator.figures();
            assert_eq!(figures.allocated(Normal), 0);
            let waits = figures.txg.0 < freed.0 + 2;
            assert_eq!(figures.deferred(Normal), if waits { 4096 } else { 0 });
        }
        assert!(rig.allocator.is_free(&dva).unwrap());
    }
}

#[test]
fn held_space_comes_back_while_holders_follow_one_another() {
    for features in [ALL, NO_LOGS] {
        let mut rig = Rig::new(features, &[disk(GIB)]);
        let dva = rig.allocate(4096).unwrap()[0];
        rig.sync();
        let mut held = rig.allocator.hold_all();
        rig.allocator.free(&dva, Txg(0), rig.txg).unwrap();
        // Whoever began before it was freed may be reading it, however many groups that takes.
        for _ in 0..40 {
            let other = rig.allocate(4096).unwrap()[0];
            rig.sync();
            rig.allocator.free(&other, Txg(0), rig.txg).unwrap();
            assert!(!rig.allocator.is_free(&dva).unwrap());
        }
        // Those who begin afterwards find it freed, and there is always one of them.
        for _ in 0..3 {
            let next = rig.allocator.hold_all();
            drop(std::mem::replace(&mut held, next));
            rig.sync();
        }
        assert!(rig.allocator.is_free(&dva).unwrap());
        assert!(rig.allocator.figures().deferred(Normal) <= 2 * 4096);
        drop(held);
        check(&mut rig);
    }
}

#[test]
fn double_frees_and_claims_are_errors() {
    for features in [ALL, NO_LOGS] {
        let mut rig = Rig::new(features, &[disk(GIB)]);
        let dva = rig.allocate(8192).unwrap()[0];
        let half = Dva { asize: 4096, ..dva };
        assert!(rig.allocator.claim(&half, rig.txg).is_err());
        rig.sync();
        assert!(rig.allocator.unalloc(&dva, rig.txg).is_err());
        rig.allocator.free(&dva, Txg(0), rig.txg).unwrap();
        for _ in 0..4 {
            assert!(rig.allocator.free(&half, Txg(0), rig.txg).is_err());
            assert!(rig.allocator.free(&dva, Txg(0), rig.txg).is_err());
            assert_eq!(rig.allocator.claim(&half, rig.txg).is_ok(), rig.txg.0 > 7);
            rig.sync();
        }
        let outside = Dva { offset: 1 << 40, ..dva };
        let odd = Dva { offset: 512, ..dva };
        let across = Dva { offset: (64 << 20) - 4096, ..dva };
        for dva in [outside, odd, across, Dva { vdev: 7, ..dva }, Dva { asize: 0, ..dva }] {
            assert!(rig.allocator.free(&dva, Txg(0), rig.txg).is_err(), "{dva:?}");
        }
    }
}

#[test]
fn unloaded_metaslabs_notice_double_frees_too() {
    let mut rig = Rig::new(ALL, &[disk(GIB)]);
    let dva = rig.allocate(8192).unwrap()[0];
    rig.sync();
    rig.reopen();
    rig.allocator.free(&dva, Txg(0), rig.txg).unwrap();
    assert!(rig.allocator.free(&dva, Txg(0), rig.txg).is_err());
    rig.sync();
    assert!(rig.allocator.free(&dva, Txg(0), rig.txg).is_err());
    rig.sync();
    rig.reopen();
    assert!(rig.allocator.is_free(&dva).unwrap());
}

#[test]
fn claims_take_what_the_log_says() {
    for features in [ALL, NO_LOGS] {
        let mut rig = Rig::new(features, &[disk(GIB)]);
        rig.allocate(1 << 20).unwrap();
        rig.sync();
        // Allocated for a group that never reached the disks.
        let lost = rig.allocate(128 << 10).unwrap()[0];
        rig.reopen();
        rig.allocator.claim(&lost, rig.txg).unwrap();
        assert!(rig.allocator.claim(&lost, rig.txg).is_err());
        for _ in 0..100 {
            let dva = rig.allocate(128 << 10).unwrap()[0];
            assert_ne!(dva.offset, lost.offset);
        }
        rig.sync();
        check(&mut rig);
    }
}

#[test]
fn blocks_of_a_group_may_die_in_it() {
    for features in [ALL, NO_LOGS] {
        let mut rig = Rig::new(features, &[disk(GIB)]);
        // As the pool's own metadata: every pass rewrites what the one before wrote.
        let mut last: Option<Dva> = None;
        for pass in 1..=5 {
            if let Some(dva) = last.take() {
                rig.allocator.free(&dva, Txg(0), rig.txg).unwrap();
            }
            last = rig.allocate(128 << 10).unwrap().pop();
            assert!(rig.allocator.sync(&mut rig.store, rig.txg, pass).unwrap());
        }
        assert!(!rig.allocator.sync(&mut rig.store, rig.txg, 6).unwrap());
        rig.allocator.sync_done(rig.txg).unwrap();
        rig.txg.0 += 1;
        assert_eq!(rig.allocator.figures().allocated(Normal), 128 << 10);
        assert_eq!(rig.allocator.figures().deferred(Normal), 4 * (128 << 10));
        check(&mut rig);
    }
}

#[test]
fn groups_overlap() {
    let mut rig = Rig::new(ALL, &[disk(GIB)]);
    let allocate =
        |rig: &Rig, txg| rig.allocator.allocate(&AllocRequest::new(4096, txg)).unwrap()[0];
    let (first, second) = (allocate(&rig, Txg(4)), allocate(&rig, Txg(5)));
    assert!(rig.allocator.free(&second, Txg(0), Txg(4)).is_err());
    rig.allocator.free(&first, Txg(0), Txg(6)).unwrap();
    assert!(rig.allocator.sync(&mut rig.store, Txg(5), 1).is_err());
    let mut rig = Rig::new(ALL, &[disk(GIB)]);
    let (first, second) = (allocate(&rig, Txg(4)), allocate(&rig, Txg(5)));
    rig.allocator.free(&first, Txg(0), Txg(6)).unwrap();
    rig.sync();
    assert_eq!(rig.allocator.figures().allocated(Normal), 4096);
    let reopened = rig.reopened(&rig.store).unwrap();
    assert!(reopened.is_free(&second).unwrap() && !reopened.is_free(&first).unwrap());
    rig.sync();
    rig.sync();
    assert_eq!(rig.allocator.figures().allocated(Normal), 4096);
    check(&mut rig);
}

/// Every log that a metaslab refers to is there (OpenZFS refuses to import otherwise), and no more
/// than bounded.
fn check_logs(rig: &Rig) -> usize {
    let memory = rig.store.0.lock();
    let zap = memory.zaps[&DIRECTORY.0].get(LOG_ZAP).copied();
    let logs = zap.map(|zap| memory.zaps[&zap].clone()).unwrap_or_default();
    let mut oldest = u64::MAX;
    for top in &rig.tops {
        let zap = &memory.zaps[&top.top_zap.unwrap().0];
        let Some(object) = zap.get(UNFLUSHED) else { continue };
        for word in memory.objects[object].data.chunks_exact(8) {
            let txg = u64::from_le_bytes(word.try_into().unwrap());
            assert!(txg == 0 || logs.contains_key(&format!("{txg:x}")), "{txg}");
            oldest = oldest.min(if txg == 0 { u64::MAX } else { txg });
        }
    }
    for name in logs.keys() {
        assert!(u64::from_str_radix(name, 16).unwrap() >= oldest);
    }
    logs.len()
}

#[test]
fn logs_are_bounded() {
    let mut rig = Rig::new(ALL, &[disk(GIB)]);
    let mut taken = Vec::new();
    for round in 0..120u64 {
        for _ in 0..20 {
            taken.extend(rig.allocate(1 << 20).unwrap());
        }
        if taken.len() > 500 {
            for dva in taken.drain(..20) {
                rig.allocator.free(&dva, Txg(0), rig.txg).unwrap();
            }
        }
        if taken.len() > 520 {
            for _ in 0..20 {
                let dva = taken.swap_remove((round * 7919) as usize % taken.len());
                rig.allocator.free(&dva, Txg(0), rig.txg).unwrap();
            }
        }
        rig.sync();
        let logs = check_logs(&rig);
        assert!(logs <= 17, "{logs}");
        if round % 10 == 0 {
            let reopened = rig.reopened(&rig.store).unwrap();
            assert_eq!(
                reopened.figures().allocated(Normal),
                rig.allocator.figures().allocated(Normal)
            );
            Rig::free_space(&reopened);
        }
    }
    rig.allocator.flush_all();
    rig.sync();
    assert_eq!(check_logs(&rig), 1);
    check(&mut rig);
}

/// Groups that only change the pool's metadata record nothing before their second pass.
#[test]
fn logs_are_bounded_without_data() {
    let mut rig = Rig::new(ALL, &[disk(GIB)]);
    let mut last: Option<Dva> = None;
    for _ in 0..60 {
        assert!(!rig.allocator.sync(&mut rig.store, rig.txg, 1).unwrap());
        if let Some(dva) = last.take() {
            rig.allocator.free(&dva, Txg(0), rig.txg).unwrap();
        }
        let copies = AllocRequest { copies: 3, ..AllocRequest::new(4096, rig.txg) };
        let dvas = rig.allocator.allocate(&copies).unwrap();
        last = Some(dvas[0]);
        assert!(rig.allocator.sync(&mut rig.store, rig.txg, 2).unwrap());
        assert!(!rig.allocator.sync(&mut rig.store, rig.txg, 3).unwrap());
        rig.allocator.sync_done(rig.txg).unwrap();
        rig.txg.0 += 1;
        let logs = check_logs(&rig);
        assert!(logs <= 5, "{logs}");
    }
    check(&mut rig);
}

#[test]
fn long_maps_are_condensed() {
    let mut rig = Rig::new(NO_LOGS, &[disk(GIB)]);
    let mut longest = 0;
    for _ in 0..60 {
        let mut dvas: Vec<Dva> = (0..400).flat_map(|_| rig.allocate(4096).unwrap()).collect();
        rig.sync();
        dvas.sort_by_key(|dva| dva.offset % 8191);
        for dva in dvas.iter().step_by(2).chain(dvas.iter().skip(1).step_by(2)) {
            rig.allocator.free(dva, Txg(0), rig.txg).unwrap();
            // Holes between make the records long.
            rig.allocate(4096)
                .map(|kept| rig.allocator.free(&kept[0], Txg(0), rig.txg).unwrap())
                .unwrap();
        }
        rig.sync();
        let memory = rig.store.0.lock();
        for object in memory.objects.values().filter(|object| object.bonus.len() == 320) {
            let header = SpaceMapHeader::decode(&object.bonus).unwrap();
            assert!(header.length <= object.data.len() as u64);
            longest = longest.max(header.length);
        }
    }
    assert!(longest < 128 << 10, "{longest}");
    check(&mut rig);
}

#[test]
fn what_cannot_be_kept_right_is_refused() {
    let mut rig = Rig::new(ALL, &[disk(GIB)]);
    // It is being removed, and nothing tells where to.
    if let Some(facts) = &mut rig.tops[0].top {
        facts.removing = Some(1);
    }
    let error = rig.reopened(&rig.store).unwrap_err();
    assert_eq!(error.kind(), crate::ErrorKind::Corrupt);
}

#[test]
fn damaged_maps_are_not_used() {
    let mut rig = Rig::new(NO_LOGS, &[disk(GIB)]);
    let dva = rig.allocate(1 << 20).unwrap()[0];
    rig.sync();
    // The first record is repeated: allocated twice.
    let array = rig.tops[0].top.unwrap().metaslab_array;
    let index = dva.offset >> rig.tops[0].top.unwrap().metaslab_shift;
    let numbers = rig.store.read(array, index * 8, 8).unwrap();
    let map = ObjectId(u64::from_le_bytes(numbers.try_into().unwrap()));
    {
        let mut memory = rig.store.0.lock();
        let object = memory.objects.get_mut(&map.0).unwrap();
        let again = object.data.clone();
        object.data.extend(again);
        let mut header = SpaceMapHeader::decode(&object.bonus).unwrap();
        header.length *= 2;
        object.bonus = header.encode();
    }
    rig.reopen();
    assert!(!rig.allocator.is_free(&dva).unwrap());
    for _ in 0..100 {
        let other = rig.allocate(1 << 20).unwrap()[0];
        assert_ne!(other.offset >> 26, dva.offset >> 26);
    }
}

#[test]
fn maps_that_do_not_verify_cost_their_metaslab_only() {
    for features in [ALL, NO_LOGS] {
        let mut rig = Rig::new(features, &[disk(GIB)]);
        let dva = rig.allocate(1 << 20).unwrap()[0];
        rig.sync();
        rig.allocator.flush_all();
        rig.allocate(4096).unwrap();
        rig.sync();
        let array = rig.tops[0].top.unwrap().metaslab_array;
        let shift = rig.tops[0].top.unwrap().metaslab_shift;
        let numbers = rig.store.read(array, (dva.offset >> shift) * 8, 8).unwrap();
        let map = u64::from_le_bytes(numbers.try_into().unwrap());
        rig.store.0.lock().damaged.insert(map);
        rig.reopen();
        let usable = rig.allocator.figures().usable();
        assert!(!rig.allocator.is_free(&dva).unwrap());
        for _ in 0..100 {
            let other = rig.allocate(1 << 20).unwrap()[0];
            assert_ne!(other.offset >> shift, dva.offset >> shift);
        }
        rig.sync();
        // What is free there is offered to nobody.
        let lost = (1 << shift) - (1 << 20) - 4096;
        let figures = rig.allocator.figures();
        let used = (101 << 20) + 4096;
        assert_eq!(figures.free(Normal), GIB - used - lost);
        assert_eq!(figures.usable(), usable - lost);
        // What is freed there is recorded, and the pool goes on.
        rig.allocator.flush_all();
        rig.allocator.free(&dva, Txg(0), rig.txg).unwrap();
        for _ in 0..4 {
            rig.sync();
        }
        let figures = rig.allocator.figures();
        assert_eq!(figures.free(Normal), GIB - used - lost);
        assert_eq!(figures.allocated(Normal), used - (1 << 20));
    }
}
