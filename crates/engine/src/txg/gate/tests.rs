//! Tests of the gate.

use super::*;

#[test]
fn a_closed_group_waits_for_its_changes() {
    let gate = Gate::new(Txg(4), 1 << 30);
    let tx = gate.begin().unwrap();
    assert_eq!(tx.txg(), Txg(5));
    std::thread::scope(|scope| {
        let closer = scope.spawn(|| gate.close());
        std::thread::sleep(Duration::from_millis(20));
        assert!(!closer.is_finished());
        let next = gate.begin().unwrap();
        assert_eq!(next.txg(), Txg(6));
        drop(tx);
        assert_eq!(closer.join().unwrap(), Txg(5));
    });
    gate.finished(Txg(5));
    gate.wait_synced(Txg(5), Duration::ZERO).unwrap();
    let late = gate.wait_synced(Txg(6), Duration::from_millis(10)).unwrap_err();
    assert_eq!(late.kind(), ErrorKind::TimedOut);
}

#[test]
fn dirty_bytes_hold_writers_back() {
    let gate = Gate::new(Txg(4), 1 << 20);
    gate.begin().unwrap().add_dirty(2 << 20);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| gate.begin().map(|tx| tx.txg()));
        std::thread::sleep(Duration::from_millis(20));
        assert!(!writer.is_finished());
        let txg = gate.close();
        gate.finished(txg);
        assert_eq!(writer.join().unwrap().unwrap(), Txg(6));
    });
    gate.fail(Error::new(ErrorKind::Io, "gone"));
    assert!(gate.begin().is_err());
}

#[test]
fn who_is_not_wanted_any_more_stops_waiting_and_begins_nothing() {
    use crate::txg::Interrupt;
    let gate = Gate::new(Txg(4), 1 << 20);
    gate.suspend(Error::new(ErrorKind::Io, "gone"), false);
    let (writer, waiter) = (Arc::new(Interrupt::default()), Arc::new(Interrupt::default()));
    std::thread::scope(|scope| {
        let write = scope.spawn(|| writer.carry_out(|| gate.begin().map(drop)));
        let wait = scope.spawn(|| waiter.carry_out(|| gate.wait_synced(Txg(5), PATIENCE)));
        std::thread::sleep(Duration::from_millis(20));
        assert!(!write.is_finished() && !wait.is_finished());
        assert!(writer.take_back() && waiter.take_back());
        let ends = [write.join().unwrap(), wait.join().unwrap()];
        assert!(ends.into_iter().all(|end| end.unwrap_err().kind() == ErrorKind::Interrupted));
    });
    gate.resume();
    let late = writer.carry_out(|| gate.begin_now().map(drop)).unwrap_err();
    assert_eq!(late.kind(), ErrorKind::Interrupted);
    assert_eq!(gate.close(), Txg(5), "nobody holds the group");
}

#[test]
fn a_suspended_gate_holds_changes_or_refuses_them() {
    let gate = Gate::new(Txg(4), 1 << 20);
    let error = || Error::new(ErrorKind::Io, "gone");
    assert!(gate.suspend(error(), false) && !gate.suspend(error(), false));
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| gate.begin().map(|tx| tx.txg()));
        let waiter = scope.spawn(|| gate.wait_synced(Txg(5), Duration::from_millis(5)));
        std::thread::sleep(Duration::from_millis(40));
        assert!(!writer.is_finished() && !waiter.is_finished());
        assert!(gate.resume() && !gate.resume());
        assert_eq!(writer.join().unwrap().unwrap(), Txg(5));
        gate.finished(Txg(5));
        // It may have run out of patience right after.
        let _ = waiter.join().unwrap();
    });
    assert!(gate.suspension().is_none());
    gate.suspend(error(), true);
    let refused = gate.begin().err().unwrap();
    assert!(refused.to_string().contains("pool I/O is currently suspended"));
    assert!(gate.begin_now().is_err() && gate.wait_synced(Txg(6), PATIENCE).is_err());
    gate.fail(error());
    assert!(gate.begin().err().unwrap().to_string().contains("gone"));
}
