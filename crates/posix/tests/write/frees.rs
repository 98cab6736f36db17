//! Where tables make freeing dear, no group frees more than may be, whatever the call.

use std::sync::Arc;

use cenote_engine::intent::Replay;
use cenote_engine::txg::{Purpose, Reservation};
use cenote_format::Txg;
use cenote_format::zil::{Payload, Record};
use cenote_posix::tree::{Allocate, Errno, ROOT, SetAttributes, Tree};
use cenote_posix::{ChangeLog, SpaceCheck, Volume, VolumeWriteOptions, WriteProperties};
use parking_lot::Mutex;

use super::pool::Disks;
use super::replayed::{Notes, apply};
use super::rig::{SUPERUSER, Setup, code};
use super::slow_reads::make_volume;

/// Lets 64 blocks be freed at once, and keeps what was asked for.
#[derive(Default)]
struct Dear(Mutex<Vec<u64>>);

impl SpaceCheck for Dear {
    fn reserve(&self, _: u64, _: u64, _: Purpose) -> Result<Reservation, Errno> {
        Ok(Reservation::none())
    }

    fn reserve_at_once(&self, _: u64, _: u64, _: Purpose) -> Option<Reservation> {
        Some(Reservation::none())
    }

    fn most_frees(&self) -> u64 {
        64
    }

    fn admit_frees(&self, blocks: u64) -> Result<(), Errno> {
        self.0.lock().push(blocks);
        Ok(())
    }
}

#[test]
fn holes_are_punched_in_parts_and_what_is_refused_asks_for_nothing() {
    let dear = Arc::new(Dear::default());
    let asked = || std::mem::take(&mut *dear.0.lock());
    let properties = WriteProperties { record_size: 512, ..WriteProperties::default() };
    let space: Option<Arc<dyn SpaceCheck>> = Some(dear.clone());
    let rig = Setup { properties, space, ..Setup::default() }.make();
    let file = rig.file(ROOT, "file");
    rig.write(file, 0, &[7; 512 * 200]);
    // A hole of its own, and what comes after it.
    rig.write(file, 512 * 100_000, &[8; 512 * 10]);
    asked();
    let end = 512 * 100_005;
    rig.tree.allocate(SUPERUSER, file, 100, end - 100, Allocate::PunchHole).unwrap();
    let parts = asked();
    assert!(parts.len() >= 4 && parts.iter().all(|blocks| *blocks <= 64), "{parts:?}");
    assert!(parts.iter().sum::<u64>() < 400, "holes cost nothing: {parts:?}");
    assert_eq!(rig.read(file, 0, 200), [[7; 100], [0; 100]].concat());
    assert_eq!(rig.read(file, 512 * 150, 512), [0; 512]);
    assert_eq!(rig.read(file, end - 512, 1024), [[0; 512], [8; 512]].concat());
    // A directory has no length.
    let directory = rig.directory(ROOT, "directory");
    let shorter = SetAttributes { size: Some(0), ..SetAttributes::default() };
    assert_ne!(code(rig.tree.set_attributes(SUPERUSER, directory, &shorter)), 0);
    assert_ne!(code(rig.tree.allocate(SUPERUSER, directory, 0, end, Allocate::PunchHole)), 0);
    assert_eq!(asked(), [0; 0]);
}

/// The parts of a hole that `notes` tell of.
fn noted(notes: &Notes) -> Vec<(u64, u64)> {
    let of = |payload: &Payload| match payload {
        Payload::Truncate { offset, length, .. } => (*offset, *length),
        other => panic!("{other:?}"),
    };
    notes.records.lock().iter().map(of).collect()
}

#[test]
fn a_hole_punched_again_in_parts_is_done_with_the_last() {
    let (dear, notes) = (Arc::new(Dear::default()), Arc::new(Notes::default()));
    let properties = WriteProperties { record_size: 512, ..WriteProperties::default() };
    let space: Option<Arc<dyn SpaceCheck>> = Some(dear.clone());
    let log: Option<Arc<dyn ChangeLog>> = Some(notes.clone());
    let rig = Setup { properties, space, log, ..Setup::default() }.make();
    let file = rig.file(ROOT, "file");
    let length = 512 * 200;
    rig.write(file, 0, &[7; 512 * 210]);
    notes.records.lock().clear();
    let writer = rig.tree.writer().unwrap();
    writer.set_replaying(true);
    // What the log is told in a replay ends the record.
    apply(&rig, 1, &Payload::Truncate { object: file, offset: 0, length }).unwrap();
    writer.set_replaying(false);
    let told = noted(&notes);
    assert!(told.len() == 1 && told[0].0 > 512 * 128, "{told:?}");
    assert_eq!(told[0].0 + told[0].1, length);
    assert_eq!(rig.read(file, 0, length as usize), vec![0; length as usize]);
    assert_eq!(rig.read(file, length, 512), [7; 512]);
    // Else each part has a record.
    notes.records.lock().clear();
    rig.write(file, 0, &[7; 512 * 200]);
    notes.records.lock().clear();
    rig.tree.allocate(SUPERUSER, file, 0, length, Allocate::PunchHole).unwrap();
    assert!(noted(&notes).len() >= 3);
}

#[test]
fn a_range_of_a_volume_discarded_again_in_parts_is_done_with_the_last() {
    let disks = Disks::new("disk");
    let live = disks.create_unrecorded();
    let set = make_volume(&live);
    let notes = Arc::new(Notes::default());
    let options = VolumeWriteOptions {
        gate: live.gate().clone(),
        durability: None,
        log: Some(notes.clone()),
        space: Some(Arc::new(Dear::default())),
    };
    let volume = Volume::open_writable(&set, options).unwrap();
    let part = 64 * volume.block_size();
    let length = 3 * part / 2;
    assert!(length <= volume.size());
    let payload = Payload::Truncate { object: 1, offset: 0, length };
    let record = Record { txg: Txg(9), sequence: 1, case_insensitive: false, payload };
    volume.apply(&record, None).unwrap();
    assert_eq!(noted(&notes), [(part, length - part)]);
    notes.records.lock().clear();
    volume.discard(0, length).unwrap();
    assert_eq!(noted(&notes), [(0, part), (part, length - part)]);
}
