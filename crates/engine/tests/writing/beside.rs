//! Orders beside changes of datasets that are being made.
//!
//! Invariant: an order finds what was acknowledged before it was given, and who opens a dataset after it what it did.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cenote_device::Health;
use cenote_engine::ErrorKind;
use cenote_format::config::VdevKind;

use super::log::head;
use super::suspended::{Disks, object, stored, wait_until};
use super::{census, noise};

#[test]
fn a_snapshot_has_what_was_written_before_it_was_asked_for() {
    let (_disks, live) = Disks::create(VdevKind::File, 1);
    let one = object(&live);
    live.sync().unwrap();
    // A change keeps its group from being written, which another waits for.
    let kept = live.begin().unwrap();
    let open = live.gate().figures().open;
    let syncs = std::thread::spawn({
        let live = live.clone();
        move || live.sync()
    });
    wait_until("the group is closed", || live.gate().figures().open > open);
    let data = noise(1 << 17, 3);
    one.write(&live.begin().unwrap(), 0, &data).unwrap();
    let takes = std::thread::spawn({
        let live = live.clone();
        move || live.orders().snapshot(&["tank@s".to_owned()], Vec::new())
    });
    std::thread::sleep(Duration::from_millis(300));
    drop(kept);
    syncs.join().unwrap().unwrap();
    takes.join().unwrap().unwrap();
    let catalog = live.pool().catalog();
    let snapshot = catalog.dataset_named("tank@s").unwrap();
    let set = catalog.object_set(&snapshot, live.pool().keys().as_ref()).unwrap();
    assert!(set.object(one.id()).unwrap().read_vec(0, data.len()).unwrap() == data);
    live.export().unwrap();
    census(live.pool());
}

#[test]
fn what_an_order_changes_when_the_pool_goes_on_is_not_opened_before() {
    let (disks, live) = Disks::create(VdevKind::File, 1);
    let one = object(&live);
    let (old, new) = (noise(1 << 20, 1), noise(1 << 20, 2));
    one.write(&live.begin().unwrap(), 0, &old).unwrap();
    live.orders().snapshot(&["tank@s".to_owned()], Vec::new()).unwrap();
    one.write(&live.begin().unwrap(), 0, &new).unwrap();
    live.sync().unwrap();
    let id = one.id();
    drop(one);
    let catalog = live.pool().catalog();
    let dataset = catalog.head(&catalog.root().unwrap()).unwrap();
    live.close_dataset(dataset.id).unwrap();
    disks.disk(0).set_health(Health::FailsWrites);
    let error = live.orders().rollback("tank@s", &[]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    let refused = live.open_dataset(&dataset).err().unwrap();
    assert!(refused.to_string().contains("suspended"), "{refused}");
    disks.disk(0).set_health(Health::Well);
    live.retry_now();
    // Who asked with what was known before gets what is there now.
    let start = std::time::Instant::now();
    let opened = loop {
        match live.open_dataset(&dataset) {
            Ok(opened) => break opened,
            Err(error) => assert!(start.elapsed() < Duration::from_secs(20), "{error}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!(opened.set().object(id).unwrap().read_vec(0, old.len()).unwrap() == old);
    let more = noise(1 << 17, 4);
    opened.set().object(id).unwrap().write(&live.begin().unwrap(), 0, &more).unwrap();
    live.sync().unwrap();
    assert!(stored(&live, id, more.len()) == more);
    assert!(Arc::ptr_eq(&opened, &head(&live)));
    // What is open is not destroyed or taken back from under its users.
    let back = live.change(move |live, change| live.rollback_dataset(change, dataset.id));
    assert_eq!(back.unwrap_err().kind(), ErrorKind::Busy);
    live.export().unwrap();
    census(live.pool());
}

#[test]
fn who_looks_for_holes_finds_none_where_there_is_data_while_groups_are_shown() {
    const BLOCK: u64 = 128 << 10;
    let (_disks, live) = Disks::create(VdevKind::File, 1);
    let object = object(&live);
    let written = Arc::new(AtomicU64::new(0));
    let writes = std::thread::spawn({
        let (live, written, data) = (live.clone(), written.clone(), noise(BLOCK as usize, 1));
        let object = object.set().object(object.id()).unwrap();
        move || {
            for block in 0..200 {
                object.write(&live.begin().unwrap(), block * BLOCK, &data).unwrap();
                written.store(block + 1, Ordering::SeqCst);
                live.sync().unwrap();
            }
        }
    });
    while !writes.is_finished() {
        let there = written.load(Ordering::SeqCst);
        if let Some(last) = there.checked_sub(1) {
            let hole = object.next_hole_block(0).unwrap();
            assert!(hole.is_none_or(|hole| hole >= there), "a hole at {hole:?} of {there}");
            assert_eq!(object.next_data_block(last).unwrap(), Some(last));
        }
    }
    writes.join().unwrap();
    live.export().unwrap();
}
