//! Devices that had too many errors: what is said of them, and until when.
//!
//! Invariant: one that was given up for its errors, or counts as worn, stays so until somebody says otherwise, also in
//! the next life of the pool where it is worn.

use cenote_device::Health;
use cenote_engine::pool::group::{ScanKind, ScanOrder};
use cenote_engine::vdev::{Aux, VdevState};
use cenote_format::config::VdevKind;

use super::members::{condition, guid_of, is_whole, until};
use super::scan::{copies_are_right, finished, write};
use super::suspended::{Disks, object, wait_until};
use super::{census, noise};

const WORN: (VdevState, Aux) = (VdevState::Degraded, Aux::ErrorsExceeded);
const FAULTED: (VdevState, Aux) = (VdevState::Faulted, Aux::ErrorsExceeded);
const WELL: (VdevState, Aux) = (VdevState::Online, Aux::None);

#[test]
fn a_device_given_up_for_its_errors_is_used_again_when_somebody_says_so() {
    for by_clear in [true, false] {
        let (disks, live) = Disks::create(VdevKind::Mirror, 2);
        write(&live, 2, 1);
        let leaf = guid_of(&live, "/sim/1");
        disks.disk(1).set_health(Health::FailsWrites);
        write(&live, 8, 20);
        assert_eq!(condition(&live, leaf), FAULTED);
        disks.disk(1).set_health(Health::Well);
        // It answers, and that is not enough.
        live.vdevs().probe_all();
        live.look_again().unwrap();
        write(&live, 2, 40);
        assert_eq!(condition(&live, leaf), FAULTED);
        match by_clear {
            true => live.vdevs().clear(Some(leaf)),
            false => assert!(live.online(leaf).unwrap().is_readable()),
        }
        until(&live, || is_whole(&live));
        assert_eq!(condition(&live, leaf), WELL);
        assert!(copies_are_right(&live));
        live.export().unwrap();
        census(live.pool());
    }
}

#[test]
fn one_given_up_that_nobody_can_do_without_is_used_as_worn() {
    let (disks, live) = Disks::create(VdevKind::Mirror, 2);
    write(&live, 2, 1);
    let [other, leaf] = [guid_of(&live, "/sim/0"), guid_of(&live, "/sim/1")];
    disks.disk(1).set_health(Health::FailsWrites);
    write(&live, 8, 20);
    assert_eq!(condition(&live, leaf), FAULTED);
    disks.disk(1).set_health(Health::Well);
    disks.disk(0).set_health(Health::Hangs);
    object(&live).write(&live.begin().unwrap(), 0, &noise(1 << 19, 30)).unwrap();
    // The pool may be suspended by that, or not any more.
    drop(live.sync());
    wait_until("it is used", || {
        condition(&live, other).0 == VdevState::Unavailable && condition(&live, leaf) == WORN
    });
    disks.disk(0).set_health(Health::Well);
    live.vdevs().clear(None);
    live.retry_now();
    wait_until("it goes on", || live.suspension().is_none());
    until(&live, || is_whole(&live));
    assert!(copies_are_right(&live));
    live.export().unwrap();
    census(live.pool());
}

#[test]
fn a_device_that_lied_too_often_is_degraded_until_it_is_trusted() {
    let (disks, live) = Disks::create(VdevKind::Mirror, 2);
    write(&live, 2, 1);
    let leaf = guid_of(&live, "/sim/1");
    disks.disk(1).lose_writes(true);
    write(&live, 16, 20);
    disks.disk(1).lose_writes(false);
    live.scan(ScanOrder::Begin(ScanKind::Scrub)).unwrap();
    assert_eq!(finished(&live).errors, 0);
    assert_eq!(condition(&live, leaf), WORN);
    wait_until("it is written down", || {
        live.vdevs().topology().find(leaf).is_some_and(|own| own.degraded)
    });
    let recorded = live.vdevs().topology().find(leaf).cloned().unwrap();
    assert_eq!(recorded.aux_state.as_deref(), Some("err_exceeded"));
    assert!(copies_are_right(&live));
    live.export().unwrap();
    drop(live);
    let live = disks.reopen();
    assert_eq!(condition(&live, leaf), WORN);
    write(&live, 2, 60);
    live.trust(Some(leaf)).unwrap();
    live.vdevs().clear(Some(leaf));
    assert_eq!(condition(&live, leaf), WELL);
    let recorded = live.vdevs().topology().find(leaf).cloned().unwrap();
    assert!(!recorded.degraded && recorded.aux_state.is_none(), "{recorded:?}");
    live.export().unwrap();
    drop(live);
    let live = disks.reopen();
    assert_eq!(condition(&live, leaf), WELL);
    live.export().unwrap();
    census(live.pool());
}
