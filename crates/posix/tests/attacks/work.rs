//! What is done to pools here: first to make one of everything, then to an attacked pool.
//!
//! Invariant: on an attacked pool every error is welcome and nothing is unwrapped; every loop is
//! bounded by a count of our own, so that what does not end is the engine's fault.

use std::sync::Arc;

use cenote_device::{Device, SimDevice};
use cenote_engine::dataset::change::{MosChange, NewDataset, PropertyInput};
use cenote_engine::dataset::{Catalog, Dataset};
use cenote_engine::pool::OpenOptions;
use cenote_engine::pool::group::{LivePool, WriteOptions};
use cenote_engine::{Error, Result};
use cenote_format::objset::ObjsetKind;
use cenote_posix::Filesystem;
use cenote_posix::create::{NewFilesystem, initialise};
use cenote_posix::tree::{
    Allocate, Caller, Errno, NewNode, ROOT, RenameFlags, SetAttributes, Tree, XattrWrite,
};

use crate::image::{self, Shelf};
use crate::pool::{Disks, NAME};
use crate::tally::Tally;

/// Who does everything here.
pub const SUPERUSER: Caller = Caller { uid: 0, gid: 0, pid: 0 };
/// Most entries of a directory that are touched.
const ENTRIES: usize = 200;

/// A node without content.
pub fn new_node(mode: u32) -> NewNode<'static> {
    NewNode { mode, umask: 0, rdev: 0, target: &[] }
}

fn put(files: &Filesystem, name: &str, data: &[u8]) -> Result<(), Errno> {
    let node = files.create(SUPERUSER, ROOT, name.as_bytes(), new_node(0o100_644))?.node;
    files.write(SUPERUSER, node, 0, data, false)
}

/// Bytes that do not compress.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..len).map(|_| next()).collect()
}

fn present(live: &LivePool, change: &MosChange<'_>) -> Result<Catalog> {
    Catalog::open(change.mos.clone(), live.pool().name())
}

/// Has `make` change what stands under `name`.
fn alter(
    live: &LivePool,
    name: &str,
    make: impl FnOnce(&LivePool, &MosChange<'_>, &Dataset) -> Result<()> + Send + 'static,
) -> Result<()> {
    let name = name.to_owned();
    live.change(move |live, change| {
        let dataset = present(live, change)?.dataset_named(&name)?;
        make(live, change, &dataset)?;
        live.wake_freeing();
        Ok(())
    })
}

fn snapshot(live: &LivePool, head: &str, name: &'static str) -> Result<()> {
    alter(live, head, move |_, change, head| {
        change.check_snapshot(head.id, name)?;
        change.create_snapshot(head.id, name, &[]).map(drop)
    })
}

fn filesystem(live: &LivePool, parent: &str, name: &'static str) -> Result<()> {
    alter(live, parent, move |live, change, parent| {
        let parent = parent.directory.id;
        let new = NewDataset { parent, name, ..NewDataset::default() };
        live.make_dataset(change, &new, ObjsetKind::Zfs, |set, tx| {
            initialise(set, tx, &NewFilesystem::default())
                .map_err(|error| Error::invalid(error.to_string()))
        })
        .map(drop)
    })
}

fn copy(live: &LivePool, origin: &str, name: &'static str) -> Result<()> {
    alter(live, origin, move |live, change, origin| {
        let parent = present(live, change)?.root()?.id;
        let origin = Some(origin.id);
        let new = NewDataset { parent, name, origin, ..NewDataset::default() };
        live.clone_dataset(change, &new).map(drop)
    })
}

fn destroy(live: &LivePool, name: &str) -> Result<()> {
    if let Ok(dataset) = live.pool().catalog().dataset_named(name) {
        live.close_dataset(dataset.id)?;
    }
    alter(live, name, |_, change, dataset| {
        if dataset.is_snapshot() {
            change.check_destroy_snapshot(dataset.id)?;
            return change.destroy_snapshot(dataset.id, false);
        }
        change.check_destroy_head(dataset.id)?;
        change.destroy_head(dataset.id)
    })
}

/// The files of a dataset.
pub fn files_of(live: &Arc<LivePool>, name: &str) -> Result<Arc<Filesystem>, Errno> {
    let dataset = cenote_posix::live::find(&live.pool().catalog(), name)?;
    cenote_posix::live::open(live, &dataset, false)
}

/// Fills a new pool on `disks` with one of everything; the disk's bytes, as a crash leaves them.
pub fn populate(disks: &Disks) -> Vec<u8> {
    let live = disks.create();
    let files = files_of(&live, NAME).unwrap();
    for number in 0..30 {
        put(&files, &format!("small{number}"), &noise(100 * number)).unwrap();
    }
    put(&files, "large", &noise(400_000)).unwrap();
    put(&files, "sparse", b"start").unwrap();
    let sparse = files.lookup(ROOT, b"sparse").unwrap().node;
    files.write(SUPERUSER, sparse, 1 << 30, &noise(5000), false).unwrap();
    let fat = files.create(SUPERUSER, ROOT, b"fat", new_node(0o040_755)).unwrap().node;
    for number in 0..120 {
        let name = format!("a rather long name that makes the directory fat, number {number}");
        files.create(SUPERUSER, fat, name.as_bytes(), new_node(0o100_644)).unwrap();
    }
    let link = NewNode { target: b"small1", ..new_node(0o120_777) };
    files.create(SUPERUSER, ROOT, b"link", link).unwrap();
    files.link(SUPERUSER, sparse, fat, b"another name").unwrap();
    files.set_xattr(SUPERUSER, sparse, b"user.a", b"value", XattrWrite::Any).unwrap();
    files.set_xattr(SUPERUSER, sparse, b"user.b", &noise(3000), XattrWrite::Any).unwrap();
    live.sync().unwrap();
    snapshot(&live, NAME, "one").unwrap();
    let large = files.lookup(ROOT, b"large").unwrap().node;
    files.write(SUPERUSER, large, 50_000, &noise(200_000), false).unwrap();
    for number in 0..10 {
        let name = format!("small{number}");
        files.unlink(SUPERUSER, ROOT, name.as_bytes()).unwrap();
    }
    live.sync().unwrap();
    snapshot(&live, NAME, "two").unwrap();
    put(&files, "between", &noise(100_000)).unwrap();
    snapshot(&live, NAME, "three").unwrap();
    files.unlink(SUPERUSER, ROOT, b"between").unwrap();
    live.sync().unwrap();
    copy(&live, "tank@two", "copy").unwrap();
    filesystem(&live, NAME, "child").unwrap();
    filesystem(&live, "tank/child", "grandchild").unwrap();
    {
        let copied = files_of(&live, "tank/copy").unwrap();
        put(&copied, "own", &noise(90_000)).unwrap();
        let large = copied.lookup(ROOT, b"large").unwrap().node;
        copied.write(SUPERUSER, large, 0, &noise(150_000), false).unwrap();
        live.sync().unwrap();
        copied.unlink(SUPERUSER, ROOT, b"own").unwrap();
        live.sync().unwrap();
    }
    alter(&live, NAME, |live, change, head| {
        let two = present(live, change)?.dataset_named("tank@two")?;
        change.create_bookmark(head.id, "mark", two.id)?;
        change.hold(two.id, "kept", false)?;
        change.set_property(head.id, &PropertyInput::number("quota", 50 << 20))?;
        change.set_property(head.id, &PropertyInput::text("test:note", "hello"))
    })
    .unwrap();
    // A file without a name, and records in the intent log.
    let open = files.lookup(ROOT, b"small20").unwrap().node;
    files.unlink(SUPERUSER, ROOT, b"small20").unwrap();
    live.sync().unwrap();
    put(&files, "logged", &noise(3000)).unwrap();
    files.sync(open, false).unwrap();
    files.sync(large, false).unwrap();
    let bytes = disks.bytes();
    drop(files);
    live.export().unwrap();
    bytes
}

/// Opens the pool on a device of these bytes for writing and does a little of everything to it.
pub fn attack(device: Vec<u8>) -> Tally {
    on_pool(device, change)
}

/// Opens the pool on a device of these bytes for writing, lets `work` change it, and exports it.
pub fn on_pool(device: Vec<u8>, work: impl Fn(&Arc<LivePool>, &mut Tally)) -> Tally {
    let disk: Arc<dyn Device> = Arc::new(SimDevice::from_bytes("/sim/d0", device));
    let options = OpenOptions {
        prefetch_threads: 0,
        cache_limit: 32 << 20,
        devices: Some(Arc::new(Shelf(vec![disk.clone()]))),
        ..OpenOptions::default()
    };
    let mut tally = Tally::default();
    for candidate in image::discover(vec![disk]) {
        let opened = LivePool::open(&candidate, &options, WriteOptions::default());
        let Some(live) = tally.of(opened) else { continue };
        work(&live, &mut tally);
        if live.suspension().is_some() {
            live.abandon();
        } else {
            tally.of(live.export());
        }
    }
    tally
}

fn change(live: &Arc<LivePool>, tally: &mut Tally) {
    for name in ["tank", "tank/copy"] {
        if let Some(files) = tally.of(files_of(live, name)) {
            change_files(&files, tally);
        }
        tally.of(live.sync());
    }
    datasets(live, tally);
    for _ in 0..3 {
        live.wake_freeing();
        tally.of(live.sync());
        tally.of(live.jobs().into_iter().find_map(|job| job.trouble).map_or(Ok(()), Err));
    }
}

fn change_files(files: &Filesystem, tally: &mut Tally) {
    tally.of(put(files, "new", &noise(70_000)));
    let mut found = Vec::new();
    tally.of(files.read_directory(ROOT, 0, &mut |entry| {
        found.push(entry);
        found.len() < ENTRIES
    }));
    for (number, entry) in found.iter().enumerate() {
        let (name, node) = (entry.name.as_slice(), entry.node);
        // Those with names come below; which entry comes when depends on a random salt.
        let comes_later: [&[u8]; 3] = [b"large", b"sparse", b"fat"];
        if name == b"." || name == b".." || comes_later.contains(&name) {
            continue;
        }
        match number % 7 {
            0 => drop(tally.of(files.unlink(SUPERUSER, ROOT, name))),
            1 => drop(tally.of(files.write(SUPERUSER, node, 3000, &noise(2000), false))),
            2 => {
                let change = SetAttributes { size: Some(1000), ..SetAttributes::default() };
                tally.of(files.set_attributes(SUPERUSER, node, &change));
            }
            3 => {
                let to = format!("moved{number}");
                let to = to.as_bytes();
                let flags = RenameFlags::default();
                tally.of(files.rename(SUPERUSER, ROOT, name, ROOT, to, flags));
            }
            4 => {
                tally.of(files.set_xattr(SUPERUSER, node, b"user.x", b"1", XattrWrite::Any));
            }
            5 => {
                let change = SetAttributes { uid: Some(7), ..SetAttributes::default() };
                tally.of(files.set_attributes(SUPERUSER, node, &change));
            }
            _ => drop(tally.of(files.read(node, 0, 10_000).map(drop))),
        }
    }
    if let Some(large) = tally.of(files.lookup(ROOT, b"large")) {
        tally.of(files.write(SUPERUSER, large.node, 120_000, &noise(140_000), false));
        tally.of(files.allocate(SUPERUSER, large.node, 10_000, 150_000, Allocate::PunchHole));
        tally.of(files.sync(large.node, false));
        let change = SetAttributes { size: Some(5), ..SetAttributes::default() };
        tally.of(files.set_attributes(SUPERUSER, large.node, &change));
    }
    if let Some(sparse) = tally.of(files.lookup(ROOT, b"sparse")) {
        tally.of(files.remove_xattr(SUPERUSER, sparse.node, b"user.b"));
        tally.of(files.write(SUPERUSER, sparse.node, 1 << 20, &noise(9000), false));
        tally.of(files.unlink(SUPERUSER, ROOT, b"sparse"));
        files.forget(sparse.node);
    }
    if let Some(fat) = tally.of(files.lookup(ROOT, b"fat")) {
        for number in 0..50 {
            let name = format!("one more name that grows the directory, number {number}");
            tally.of(files.create(SUPERUSER, fat.node, name.as_bytes(), new_node(0o100_644)));
        }
        tally.of(files.unlink(SUPERUSER, fat.node, b"another name"));
    }
    tally.of(files.sync_all());
}

fn datasets(live: &Arc<LivePool>, tally: &mut Tally) {
    tally.of(snapshot(live, NAME, "new"));
    tally.of(destroy(live, "tank@one"));
    tally.of(filesystem(live, NAME, "made"));
    tally.of(alter(live, NAME, |live, change, head| {
        let new = present(live, change)?.dataset_named("tank@new")?;
        change.create_bookmark(head.id, "newer", new.id)
    }));
    tally.of(alter(live, NAME, |_, change, head| change.destroy_bookmark(head.id, "mark")));
    tally.of(alter(live, "tank@two", |_, change, two| change.release(two.id, "kept").map(drop)));
    tally.of(alter(live, "tank/copy", |_, change, copy| change.promote(copy.id)));
    tally.of(alter(live, NAME, |_, change, head| {
        change.set_property(head.id, &PropertyInput::number("refquota", 40 << 20))
    }));
    tally.of(alter(live, "tank/child", |live, change, child| {
        let parent = present(live, change)?.root()?.id;
        change.rename_directory(child.directory.id, parent, "renamed")
    }));
    tally.of(destroy(live, "tank/renamed/grandchild"));
    tally.of(destroy(live, "tank@three"));
    if let Ok(head) = live.pool().catalog().dataset_named(NAME) {
        tally.of(live.close_dataset(head.id));
    }
    tally.of(alter(live, NAME, |live, change, head| live.rollback_dataset(change, head.id)));
    tally.of(destroy(live, "tank/copy"));
}
