//! Where tables make freeing dear, no group frees more than may be, whatever the call.

use std::sync::Arc;

use cenote_engine::txg::{Purpose, Reservation};
use cenote_posix::tree::{Allocate, Errno, ROOT, SetAttributes, Tree};
use cenote_posix::{SpaceCheck, WriteProperties};
use parking_lot::Mutex;

use super::rig::{SUPERUSER, Setup, code};

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
