//! Blocks that take long to read while they are changed in parts.
//!
//! Invariant: who waits for such a block holds no transaction group open, and what comes of the change is
//! the same.

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use cenote_device::SimDevice;
use cenote_engine::dataset::change::NewDataset;
use cenote_engine::object::{Object, ObjectSet};
use cenote_engine::pool::group::LivePool;
use cenote_engine::vdev::DATA_START;
use cenote_format::objset::ObjsetKind;
use cenote_format::{BlockPointer, Dva, ObjectId};
use cenote_posix::create::initialise_volume;
use cenote_posix::tree::{Allocate, NodeId, ROOT, SetAttributes, Tree};
use cenote_posix::{Filesystem, Volume, VolumeWriteOptions};

use super::full::noise;
use super::pool::{Disks, NAME, census};
use super::rig::{SUPERUSER, new_node};

/// Longest wait for a group.
pub const PATIENCE: Duration = Duration::from_secs(30);
const BLOCK: u64 = 128 << 10;

/// Where the copies of a block lie on a pool of one disk.
pub fn places_of(pointer: &BlockPointer) -> Vec<Range<u64>> {
    let size = pointer.psize();
    let start = |dva: Dva| DATA_START + dva.offset;
    pointer.dvas().map(start).map(|start| start..start + size).collect()
}

/// Where the blocks of an object lie on a pool of one disk, and the one above them.
fn places(object: &Object) -> Vec<Range<u64>> {
    let last = object.block_count() - 1;
    let above = object.pointer(object.dnode().levels - 1, 0).unwrap();
    let pointers = object.pointers(0, last).unwrap().into_iter().chain([above]);
    pointers.flat_map(|pointer| places_of(&pointer)).collect()
}

/// Does `change` while nothing of `held` can be read, and has a group written meanwhile.
fn slowly(
    disk: &SimDevice,
    held: Vec<Range<u64>>,
    live: &Arc<LivePool>,
    change: impl FnOnce() + Send,
) {
    disk.hold_reads(held);
    std::thread::scope(|scope| {
        let changing = scope.spawn(change);
        let start = Instant::now();
        while disk.held_reads() == 0 && start.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
        }
        let is_held = disk.held_reads() > 0;
        let (done, written) = channel();
        scope.spawn(move || done.send(live.sync()).unwrap());
        let written = written.recv_timeout(PATIENCE);
        disk.hold_reads(Vec::new());
        changing.join().unwrap();
        assert!(is_held, "nothing was read");
        assert!(written.is_ok(), "a slow read held the group open");
        written.unwrap().unwrap();
    });
}

struct Slow {
    disks: Disks,
    /// What the file holds.
    model: Vec<u8>,
}

impl Slow {
    fn open(&self) -> (Arc<LivePool>, Arc<Filesystem>, NodeId, Object) {
        let live = self.disks.open("again");
        let files = self.disks.files(&live, "again");
        let node = files.lookup(ROOT, b"old").unwrap().node;
        let dataset = live.pool().catalog().dataset_named(NAME).unwrap();
        let set = live.open_dataset(&dataset).unwrap().set().clone();
        let object = set.object(ObjectId(node & ((1 << 48) - 1))).unwrap();
        (live, files, node, object)
    }

    /// Changes the file, whose blocks nobody has read, and the model; another file is written meanwhile.
    fn change(
        &mut self,
        what: &str,
        change: impl FnOnce(&Filesystem, NodeId) + Send,
        model: impl FnOnce(&mut Vec<u8>),
    ) {
        let (live, files, node, object) = self.open();
        let held = places(&object);
        let other = files.create(SUPERUSER, ROOT, what.as_bytes(), new_node(0o100_644)).unwrap();
        files.write(SUPERUSER, other.node, 0, b"meanwhile", false).unwrap();
        slowly(self.disks.disk(0), held, &live, || change(&files, node));
        model(&mut self.model);
        self.expect(&files, node, what);
        live.sync().unwrap();
        census(live.pool(), what);
        drop(files);
        live.export().unwrap();
        let (live, files, node, _) = self.open();
        self.expect(&files, node, what);
        drop(files);
        live.export().unwrap();
    }

    fn expect(&self, files: &Filesystem, node: NodeId, what: &str) {
        let found = files.read(node, 0, 1 << 20).unwrap().concat();
        assert!(found == self.model, "{what}: not what was written");
    }
}

#[test]
fn a_slow_read_holds_no_group_open() {
    let disks = Disks::new("disk");
    let live = disks.create_unrecorded();
    let files = disks.files(&live, "new");
    let made = files.create(SUPERUSER, ROOT, b"old", new_node(0o100_644)).unwrap();
    let model = noise(5000, 1);
    files.write(SUPERUSER, made.node, 0, &model, false).unwrap();
    live.sync().unwrap();
    drop(files);
    live.export().unwrap();
    let mut slow = Slow { disks, model };

    let put = |model: &mut Vec<u8>, at: usize, data: &[u8]| {
        model.resize(model.len().max(at + data.len()), 0);
        model[at..at + data.len()].copy_from_slice(data);
    };
    let mut write = |what: &str, at: usize, length: usize, seed: u64| {
        let data = noise(length, seed);
        let write = |files: &Filesystem, node| {
            files.write(SUPERUSER, node, at as u64, &data, false).unwrap();
        };
        slow.change(what, write, |model| put(model, at, &data));
    };
    write("grow the only block", 4000, 600_000, 2);
    write("a part", 140_000, 4096, 3);
    write("parts of two blocks", 2 * BLOCK as usize - 1000, 4096, 4);
    let punch = |files: &Filesystem, node| {
        files.allocate(SUPERUSER, node, 200_000, 5000, Allocate::PunchHole).unwrap();
    };
    slow.change("a hole", punch, |model| model[200_000..205_000].fill(0));
    let cut = |files: &Filesystem, node| {
        let size = SetAttributes { size: Some(300_000), ..SetAttributes::default() };
        files.set_attributes(SUPERUSER, node, &size).unwrap();
    };
    slow.change("a shorter file", cut, |model| model.truncate(300_000));
}

/// Makes a volume of 128 blocks of 8 KiB on a pool.
pub fn make_volume(live: &Arc<LivePool>) -> ObjectSet {
    let parent = live.pool().catalog().root().unwrap().id;
    let made = live.change(move |live, change| {
        let new = NewDataset { parent, name: "volume", ..NewDataset::default() };
        live.make_dataset(change, &new, ObjsetKind::Zvol, |set, tx| {
            initialise_volume(set, tx, 1 << 20, 8 << 10).unwrap();
            Ok(())
        })
    });
    made.unwrap();
    let dataset = live.pool().catalog().dataset_named(&format!("{NAME}/volume")).unwrap();
    live.open_dataset(&dataset).unwrap().set().clone()
}

#[test]
fn a_slow_read_of_a_volume_holds_no_group_open() {
    let disks = Disks::new("disk");
    let live = disks.create_unrecorded();
    make_volume(&live);
    let name = format!("{NAME}/volume");
    let open = |live: &Arc<LivePool>| {
        let dataset = live.pool().catalog().dataset_named(&name).unwrap();
        let set = live.open_dataset(&dataset).unwrap().set().clone();
        let gate = live.gate().clone();
        let options = VolumeWriteOptions { gate, durability: None, log: None, space: None };
        (Volume::open_writable(&set, options).unwrap(), set.object(ObjectId(1)).unwrap())
    };
    let mut model = noise(1 << 20, 5);
    let (volume, object) = open(&live);
    volume.write_at(0, &model).unwrap();
    live.sync().unwrap();
    let held = places(&object);
    drop((volume, object));
    live.export().unwrap();

    let live = disks.open("again");
    let (volume, _) = open(&live);
    let data = noise(512, 6);
    slowly(disks.disk(0), held.clone(), &live, || volume.write_at(99_000, &data).unwrap());
    model[99_000..99_512].copy_from_slice(&data);
    slowly(disks.disk(0), held, &live, || volume.discard(500_000, 100).unwrap());
    model[500_000..500_100].fill(0);
    assert!(volume.read_at(0, 1 << 20).unwrap().concat() == model);
    drop(volume);
    live.export().unwrap();
    let live = disks.open("once more");
    let (volume, _) = open(&live);
    assert!(volume.read_at(0, 1 << 20).unwrap().concat() == model);
}
