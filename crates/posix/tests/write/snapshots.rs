//! Descriptors kept of snapshots that go, on a pool.
//!
//! Invariant: a node of a snapshot means the file it meant when it was handed out, or nothing.

use cenote_posix::Filesystem;
use cenote_posix::error::ESTALE;
use cenote_posix::tree::{NodeId, ROOT, Tree};

use super::pool::{Disks, NAME};
use super::rig::{SUPERUSER, code, new_node};

/// Snapshots taken until one gets an object that another had.
const TRIES: u32 = 400;

/// The file `name` in the snapshot called `snapshot`.
fn in_snapshot(files: &Filesystem, snapshot: &str, name: &str) -> NodeId {
    [".zfs", "snapshot", snapshot, name]
        .iter()
        .fold(ROOT, |node, name| files.lookup(node, name.as_bytes()).unwrap().node)
}

#[test]
fn what_is_kept_of_a_destroyed_snapshot_is_stale_though_its_object_is_used_again() {
    let disks = Disks::new("disk");
    let live = disks.create_unrecorded();
    let files = disks.files(&live, "new");
    let file = files.create(SUPERUSER, ROOT, b"f", new_node(0o100_644)).unwrap().node;
    let take = |name: &str| {
        live.orders().snapshot(&[format!("{NAME}@{name}")], Vec::new()).unwrap();
        live.pool().catalog().dataset_named(&format!("{NAME}@{name}")).unwrap()
    };
    let destroy = |name: &str| live.orders().destroy(&[format!("{NAME}@{name}")], false).unwrap();
    files.write(SUPERUSER, file, 0, b"first", false).unwrap();
    let first = take("first");
    let kept = in_snapshot(&files, "first", "f");
    assert_eq!(files.read(kept, 0, 9).unwrap().concat(), b"first");
    destroy("first");
    // Nobody says so to the filesystem: a destruction may be put off until a hold ends.
    assert_eq!(code(files.read(kept, 0, 9)), ESTALE);
    files.write(SUPERUSER, file, 0, b"later", false).unwrap();
    let again = (0..TRIES).map(|number| format!("later{number}")).find(|name| {
        let found = take(name).id == first.id;
        if !found {
            destroy(name);
        }
        found
    });
    let again = again.expect("no object is used again");
    files.snapshots_changed();
    assert_eq!(code(files.attributes(kept)), ESTALE);
    assert_eq!(code(files.read(kept, 0, 9)), ESTALE);
    let new = in_snapshot(&files, &again, "f");
    assert_ne!(new, kept);
    assert_eq!(files.read(new, 0, 9).unwrap().concat(), b"later");
    live.close().unwrap();
}
