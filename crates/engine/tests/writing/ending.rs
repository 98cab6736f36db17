//! Exporting a pool whose devices fail in the middle of it, and one that has stopped.
//!
//! Invariant: an export that fails leaves a pool that goes on; one that is done leaves nothing behind.

use std::time::{Duration, Instant};

use cenote_device::Health;
use cenote_engine::pool::group::{ScanKind, ScanOrder};
use cenote_engine::{Error, ErrorKind};
use cenote_format::config::{PoolState, VdevKind};

use super::census;
use super::log::head;
use super::suspended::{Disks, object, stored, wait_until};

#[test]
fn an_export_that_meets_an_outage_leaves_a_pool_that_goes_on() {
    let (mut refused, mut stopped) = (0, 0);
    for writes in (0..).step_by(5) {
        let (disks, live) = Disks::create(VdevKind::File, 1);
        let object = object(&live);
        live.sync().unwrap();
        object.write(&live.begin().unwrap(), 0, &[5; 4096]).unwrap();
        let log = head(&live).log().unwrap().clone();
        log.append_later_write(&live.gate().begin_now().unwrap(), object.id().0, 0, 4096);
        log.commit(object.id().0).unwrap();
        let until = disks.disk(0).counts().1 + writes;
        disks.disk(0).set_health_after(until, Health::FailsWrites);
        let start = Instant::now();
        let exported = live.export();
        assert!(start.elapsed() < Duration::from_secs(20), "after {writes} writes");
        disks.disk(0).set_health(Health::Well);
        let Err(error) = exported else { break };
        assert!(error.to_string().contains("suspended"), "after {writes} writes: {error}");
        if live.gate().failure().is_some() {
            // Labels may say that it is exported: it is not written any more, and nothing is lost.
            stopped += 1;
            let id = object.id();
            drop((object, log, live));
            let live = disks.reopen();
            census(live.pool());
            assert_eq!(stored(&live, id, 4096), [5; 4096], "after {writes} writes");
            live.export().unwrap();
            continue;
        }
        refused += 1;
        live.retry_now();
        wait_until("going on", || live.suspension().is_none());
        // It is the pool it was.
        object.write(&live.begin().unwrap(), 0, &[6; 4096]).unwrap();
        live.change(|_, _| Ok(())).unwrap();
        assert_eq!(live.pool().config().state, Some(PoolState::Active), "after {writes} writes");
        live.scan(ScanOrder::Begin(ScanKind::Scrub)).unwrap();
        wait_until("scrubbing", || live.is_scanning().is_none());
        live.export().unwrap();
        let id = object.id();
        drop((object, log, live));
        let live = disks.reopen();
        census(live.pool());
        assert_eq!(stored(&live, id, 4096), [6; 4096]);
        live.export().unwrap();
    }
    assert!(refused > 5 && stopped > 0, "{refused} and {stopped} exports met the outage");
}

#[test]
fn a_pool_that_has_stopped_can_be_exported() {
    let (disks, live) = Disks::create(VdevKind::File, 1);
    let object = object(&live);
    object.write(&live.begin().unwrap(), 0, &[1; 4096]).unwrap();
    live.sync().unwrap();
    object.write(&live.begin().unwrap(), 0, &[2; 4096]).unwrap();
    live.gate().fail(Error::new(ErrorKind::Io, "a test stops it"));
    let error = live.export().unwrap_err().to_string();
    assert!(error.contains("a test stops it"), "{error}");
    let id = object.id();
    drop((object, live));
    let live = disks.reopen();
    census(live.pool());
    assert_eq!(stored(&live, id, 4096), [1; 4096]);
    live.export().unwrap();
}
