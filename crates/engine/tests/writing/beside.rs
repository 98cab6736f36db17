//! Orders beside changes of datasets that are being made.
//!
//! Invariant: an order finds what was acknowledged before it was given, and who opens a dataset after it what it did.

use std::sync::Arc;
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
