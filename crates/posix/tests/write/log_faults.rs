//! Intent logs on disks that lost, tore or spoiled what they had acknowledged, or keep it to
//! themselves.
//!
//! Invariant: what `fsync` answered for is there as long as the redundancy has it; a log that cannot
//! be read or replayed now is kept until it can be.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cenote_device::{Device, Keep, Recorded, SimDevice, SimEvent};
use cenote_engine::dataset::Table;
use cenote_engine::intent::{SetSource, WriteSource};
use cenote_engine::object::DirtyBlocks;
use cenote_engine::pool::group::{LivePool, WriteOptions};
use cenote_format::{ObjectId, Txg};
use cenote_posix::Filesystem;
use cenote_posix::error::EROFS;
use cenote_posix::tree::{Caller, NewNode, ROOT, SetAttributes, Tree};

use crate::pool::{Disks, census, zdb};
use crate::rig::code;

const SUPERUSER: Caller = Caller { uid: 0, gid: 0, pid: 0 };
const NEW: NewNode<'static> = NewNode { mode: 0o100_644, umask: 0, rdev: 0, target: &[] };
/// Files that are written with `fsync` each.
const FILES: u64 = 16;
/// Stands in every log block, at this offset.
const MAGIC: u64 = 0x0210_da7a_b10c_7a11;
const MAGIC_AT: usize = 144;

fn content(number: u64) -> Vec<u8> {
    let len = [700, 9000, 90_000, 3000][number as usize % 4];
    (0..len).map(|at: u64| (at * 7 + number * 31 + at / 255) as u8).collect()
}

/// A pool that was cut off after its files were written.
struct Cut {
    disks: Disks,
    /// Order of the last event before the files, and of the last of theirs.
    since: u64,
    end: u64,
}

impl Cut {
    fn make(kind: &'static str) -> Self {
        let disks = Disks::new(kind);
        let live = disks.create();
        let files = disks.files(&live, kind);
        // The first commit begins the chain, which waits for a group.
        let first = files.create(SUPERUSER, ROOT, b"first", NEW).unwrap().node;
        files.sync(first, false).unwrap();
        live.sync().unwrap();
        // Until the end no group makes the log useless.
        let held = live.begin().unwrap();
        let since = SimDevice::newest_order();
        for number in 0..FILES {
            let name = format!("f{number}");
            let file = files.create(SUPERUSER, ROOT, name.as_bytes(), NEW).unwrap().node;
            files.write(SUPERUSER, file, 0, &content(number), false).unwrap();
            files.sync(file, false).unwrap();
        }
        let end = SimDevice::newest_order();
        drop(held);
        Self { disks, since, end }
    }

    /// The disks as they were at the end.
    fn left(&self) -> Disks {
        self.disks.cut(self.end + 1, &mut |_| Keep::All)
    }

    /// A disk as it was before the files.
    fn stale(&self, number: usize) -> SimDevice {
        self.disks.disk(number).after_crash(self.since + 1, &mut |_| Keep::All)
    }

    /// What was written to a disk with the files.
    fn writes(&self, number: usize) -> Vec<(u64, Bytes)> {
        let of_files =
            |recorded: &Recorded| recorded.order > self.since && recorded.order <= self.end;
        let all = self.disks.disk(number).recorded().into_iter().filter(of_files);
        all.filter_map(|recorded| match recorded.event {
            SimEvent::Write { offset, data } => Some((offset, data)),
            SimEvent::Flush => None,
        })
        .collect()
    }

    /// Where the log blocks lie on a disk, as far as they were written.
    fn log_blocks(&self, number: usize) -> Vec<std::ops::Range<u64>> {
        let is_log = |data: &Bytes| {
            data.get(MAGIC_AT..MAGIC_AT + 8).is_some_and(|word| *word == MAGIC.to_le_bytes())
        };
        let blocks = self.writes(number).into_iter().filter(|(_, data)| is_log(data));
        blocks.map(|(offset, data)| offset..offset + data.len() as u64).collect()
    }
}

/// Files of which all the content is there; the others are not there at all.
fn whole(files: &Filesystem, place: &str) -> u64 {
    let is_there = |number: &u64| {
        let Ok(found) = files.lookup(ROOT, format!("f{number}").as_bytes()) else { return false };
        let read = files.read(found.node, 0, 1 << 20).unwrap().concat();
        assert!(read == content(*number), "{place}: file {number} has {} bytes", read.len());
        true
    };
    (0..FILES).filter(is_there).count() as u64
}

/// Opens the pool; all files are there, and nothing is wrong with it then.
fn all_there(disks: &Disks, place: &str) {
    let live = disks.open(place);
    let files = disks.files(&live, place);
    assert_eq!(whole(&files, place), FILES, "{place}");
    assert!(live.unreplayed().is_empty(), "{place}");
    drop(files);
    live.export().unwrap();
    census(live.pool(), place);
}

/// Layouts, and the disks of them that are harmed.
const KINDS: [(&str, &[usize]); 3] =
    [("mirror", &[0, 1]), ("raidz1", &[0, 1, 2]), ("draid1", &[3])];

#[test]
fn a_stale_disk_loses_nothing() {
    for (kind, harmed) in KINDS {
        let cut = Cut::make(kind);
        for &number in harmed {
            let disks = cut.left().with_disk(number, cut.stale(number));
            all_there(&disks, &format!("{kind}, disk {number} stale"));
            if number == 0 {
                zdb(&disks, kind);
            }
        }
    }
    let cut = Cut::make("raidz2");
    let disks = cut.left().with_disk(0, cut.stale(0)).with_disk(2, cut.stale(2));
    all_there(&disks, "two disks of a raidz2 stale");
}

#[test]
fn a_spoiled_or_torn_disk_loses_nothing() {
    for (kind, harmed) in KINDS {
        let cut = Cut::make(kind);
        for &number in harmed.iter().take(2) {
            let disks = cut.left();
            for (offset, data) in cut.writes(number) {
                disks.disk(number).corrupt_range(offset..offset + data.len() as u64, 0x5a);
            }
            all_there(&disks, &format!("{kind}, disk {number} spoiled"));
            let torn = cut.stale(number);
            for (index, (offset, data)) in cut.writes(number).into_iter().enumerate() {
                let kept = [512, 1024, 4096, 8192][index % 4].min(data.len() / 2);
                torn.write(offset, &data[..kept]).unwrap();
            }
            let disks = cut.left().with_disk(number, torn);
            all_there(&disks, &format!("{kind}, disk {number} torn"));
        }
    }
}

#[test]
fn an_end_that_was_never_written_is_nobodys_fault() {
    for (kind, _) in &KINDS[..2] {
        let disks = Cut::make(kind).left();
        let live = disks.open(kind);
        let files = disks.files(&live, kind);
        assert_eq!(whole(&files, kind), FILES, "{kind}");
        fn errors(status: &cenote_engine::vdev::VdevStatus) -> u64 {
            let stats = &status.stats;
            let own = stats.checksum_errors + stats.read_errors;
            own + status.children.iter().map(errors).sum::<u64>()
        }
        assert_eq!(errors(&live.vdevs().status().unwrap()), 0, "{kind}");
    }
}

#[test]
fn a_device_that_does_not_answer_for_a_while_is_waited_for() {
    let cut = Cut::make("disk");
    let disks = cut.left();
    let blocks = cut.log_blocks(0);
    assert!(blocks.len() >= FILES as usize);
    disks.disk(0).fail_range(blocks[FILES as usize / 2].clone());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(400));
            disks.disk(0).heal();
        });
        all_there(&disks, "for a while");
    });
}

#[test]
fn a_log_that_devices_keep_to_themselves_is_not_taken_for_short() {
    let cut = Cut::make("disk");
    let middle = cut.log_blocks(0)[FILES as usize / 2].clone();
    let disks = cut.left();
    disks.disk(0).fail_range(middle.clone());
    let refused = disks.try_open("one disk", WriteOptions::default()).err().unwrap().to_string();
    assert!(refused.contains("/sim/d0") && refused.contains("'-m'"), "{refused}");
    // Nothing was changed: when the disk answers again, all is there.
    disks.disk(0).heal();
    all_there(&disks, "the disk answers again");

    // The other side does not have it: that is not the end of the log either.
    let cut = Cut::make("mirror");
    let disks = cut.left().with_disk(1, cut.stale(1));
    disks.disk(0).fail_range(cut.log_blocks(0)[FILES as usize / 2].clone());
    let refused = disks.try_open("mirror", WriteOptions::default()).err().unwrap().to_string();
    assert!(refused.contains("/sim/d0"), "{refused}");
    disks.disk(0).heal();
    all_there(&disks, "the good side answers again");

    // Whoever wants the pool as it is gets what comes before.
    let disks = cut.left().with_disk(1, cut.stale(1));
    disks.disk(0).fail_range(cut.log_blocks(0)[FILES as usize / 2].clone());
    let write = WriteOptions { accepts_log_losses: true, ..WriteOptions::default() };
    let live = disks.try_open("accepted", write).unwrap();
    let files = disks.files(&live, "accepted");
    assert!((1..FILES).contains(&whole(&files, "accepted")));
    files.create(SUPERUSER, ROOT, b"goes on", NEW).unwrap();
    drop(files);
    live.export().unwrap();
    census(live.pool(), "accepted");
}

/// The log cannot be replayed to its end now: the files can be read, not changed.
fn kept(live: &Arc<LivePool>, disks: &Disks, place: &str) -> u64 {
    let files = disks.files(live, place);
    let failures = live.unreplayed();
    assert_eq!(failures.len(), 1, "{place}");
    assert!(failures[0].1.to_string().contains("/sim/d0"), "{place}: {:?}", failures[0]);
    assert_eq!(code(files.create(SUPERUSER, ROOT, b"new", NEW)), EROFS, "{place}");
    let found = whole(&files, place);
    drop(files);
    let head = cenote_posix::live::find(&live.pool().catalog(), crate::pool::NAME).unwrap();
    live.close_dataset(head.id).unwrap();
    found
}

#[test]
fn a_log_that_cannot_be_replayed_is_kept() {
    let cut = Cut::make("disk");
    let blocks = cut.log_blocks(0);
    let disks = cut.left();
    let live = disks.open("claimed");
    live.sync().unwrap();
    let middle = blocks[blocks.len() / 2].clone();
    disks.disk(0).fail_range(middle.clone());
    let found = kept(&live, &disks, "first");
    assert!(found > 0 && found < FILES, "{found}");
    // Once more, with nothing done twice.
    assert_eq!(kept(&live, &disks, "second"), found);
    // It survives an export, and a crash too.
    live.export().unwrap();
    drop(live);
    disks.disk(0).heal();
    let live = disks.open("exported");
    disks.disk(0).fail_range(middle);
    assert_eq!(kept(&live, &disks, "third"), found);
    live.sync().unwrap();
    let crashed = disks.cut(u64::MAX, &mut |_| Keep::All);
    drop(live);
    crashed.disk(0).heal();
    all_there(&crashed, "replayed in the end");
}

/// Gives data, but not that of one object, which cannot be read.
struct FailingSource {
    inner: SetSource,
    unreadable: u64,
}

impl WriteSource for FailingSource {
    fn read(&self, object: u64, offset: u64, length: u64) -> cenote_engine::Result<Option<Bytes>> {
        match object == self.unreadable {
            true => Err(cenote_engine::Error::new(cenote_engine::ErrorKind::Io, "unreadable")),
            false => self.inner.read(object, offset, length),
        }
    }

    fn dirty(
        &self,
        txg: Txg,
        object: u64,
        offset: u64,
        length: u64,
    ) -> cenote_engine::Result<Option<DirtyBlocks>> {
        match object == self.unreadable {
            true => Ok(None),
            false => self.inner.dirty(txg, object, offset, length),
        }
    }
}

#[test]
fn data_that_got_its_place_in_vain_is_freed() {
    let disks = Disks::new("disk");
    let live = disks.create();
    let files = disks.files(&live, "new");
    let make = |name: &[u8]| files.create(SUPERUSER, ROOT, name, NEW).unwrap().node;
    let (placed, unreadable) = (make(b"placed"), make(b"unreadable"));
    files.sync(placed, false).unwrap();
    let head = cenote_posix::live::find(&live.pool().catalog(), crate::pool::NAME).unwrap();
    let writable = live.open_dataset(&head).unwrap();
    let inner = SetSource(writable.set().clone());
    let source: Arc<dyn WriteSource> = Arc::new(FailingSource { inner, unreadable });
    writable.log().unwrap().set_source(Arc::downgrade(&source));
    let held = live.begin().unwrap();
    for file in [placed, unreadable] {
        files.write(SUPERUSER, file, 0, &[7; 128 << 10], false).unwrap();
    }
    assert!(files.sync_all().is_err());
    drop((held, files, writable));
    live.export().unwrap();
    census(live.pool(), "exported");
}

#[test]
fn what_a_group_cloned_and_freed_is_taken_again_with_its_log() {
    let disks = Disks::new("disk").with(&["block_cloning"], &[]);
    let live = disks.create();
    let files = disks.files(&live, "before");
    let make = |name: &str| files.create(SUPERUSER, ROOT, name.as_bytes(), NEW).unwrap().node;
    let (source, copy, other) = (make("source"), make("copy"), make("other"));
    let data: Vec<u8> = (0..128_u32 << 10).map(|at| (at * 7 + at / 255) as u8).collect();
    files.write(SUPERUSER, source, 0, &data, false).unwrap();
    // There is a chain, whose next block waits to be written.
    files.write(SUPERUSER, other, 0, b"first", false).unwrap();
    files.sync(other, false).unwrap();
    live.sync().unwrap();
    files.write(SUPERUSER, other, 0, b"again", false).unwrap();
    files.sync(other, false).unwrap();
    live.sync().unwrap();
    let cut = |size| SetAttributes { size: Some(size), ..SetAttributes::default() };
    let copied = files.copy_range(SUPERUSER, (source, 0), (copy, 0), data.len() as u64).unwrap();
    assert_eq!(copied, data.len() as u64);
    files.set_attributes(SUPERUSER, source, &cut(0)).unwrap();
    files.set_attributes(SUPERUSER, copy, &cut(0)).unwrap();
    // The log is written while the group of all that is, whose part of the log is settled by then.
    let commits = files.clone();
    live.change(move |_, _| {
        commits.sync(copy, false).map_err(|error| cenote_engine::Error::invalid(error.reason))
    })
    .unwrap();
    let left = disks.cut(SimDevice::newest_order() + 1, &mut |_| Keep::All);
    // Its filesystem is not mounted at first.
    let again = left.open("claimed");
    again.sync().unwrap();
    again.export().unwrap();
    census(again.pool(), "claimed");
    // Nothing counts as shared that the space maps do not know.
    let directory = Table::open(&again.pool().mos(), ObjectId(1)).unwrap().unwrap();
    let tables = directory.entries().unwrap();
    let counted = tables.iter().find(|(name, _)| name.starts_with("com.fudosecurity:brt"));
    assert!(counted.is_none(), "{counted:?}");
    drop(again);
    let again = left.open("mounted");
    let files = left.files(&again, "mounted");
    for name in ["source", "copy"] {
        let found = files.lookup(ROOT, name.as_bytes()).unwrap();
        assert_eq!(files.attributes(found.node).unwrap().size, 0);
    }
    drop(files);
    again.export().unwrap();
    census(again.pool(), "mounted");
}
