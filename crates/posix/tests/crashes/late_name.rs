//! A file that was made without a name gets one, which waits for a transaction group, and is moved
//! meanwhile by somebody else who has that made durable.
//!
//! Invariant: an `fsync` never answers for a record that could not be replayed.

use std::sync::mpsc;
use std::time::Duration;

use cenote_device::{Keep, SimDevice};
use cenote_posix::tree::{Caller, NewNode, ROOT, RenameFlags, Tree};

use super::pool::Disks;

const SUPERUSER: Caller = Caller { uid: 0, gid: 0, pid: 0 };

#[test]
fn a_move_of_a_name_that_is_on_its_way_waits_for_it() {
    let disks = Disks::new("disk");
    let live = disks.create();
    let files = disks.files(&live, "new");
    let new = NewNode { mode: 0o100_644, umask: 0, rdev: 0, target: &[] };
    let other = files.create(SUPERUSER, ROOT, b"other", new).unwrap().node;
    // The first commit begins the chain, which waits for a group.
    files.sync(other, false).unwrap();
    let unnamed = files.create_unnamed(SUPERUSER, ROOT, new).unwrap().node;
    files.write(SUPERUSER, unnamed, 0, &[7; 5000], false).unwrap();
    let order = std::thread::scope(|scope| {
        let held = live.begin().unwrap();
        let (files, (send, receive)) = (&files, mpsc::channel());
        scope.spawn(move || files.link(SUPERUSER, unnamed, ROOT, b"late").unwrap());
        while files.lookup(ROOT, b"late").is_err() {
            std::thread::sleep(Duration::from_millis(1));
        }
        scope.spawn(move || {
            let flags = RenameFlags::default();
            files.rename(SUPERUSER, ROOT, b"late", ROOT, b"moved", flags).unwrap();
            files.sync(other, false).unwrap();
            send.send(SimDevice::newest_order() + 1).unwrap();
        });
        let early = receive.recv_timeout(Duration::from_millis(500));
        drop(held);
        early.or_else(|_| receive.recv()).unwrap()
    });
    let left = disks.cut(order, &mut |_| Keep::Nothing);
    let live = left.open("late");
    let files = left.files(&live, "late");
    let moved = files.lookup(ROOT, b"moved").unwrap();
    assert_eq!(files.read(moved.node, 0, 9000).unwrap().concat(), [7; 5000]);
    assert!(files.lookup(ROOT, b"late").is_err());
}
