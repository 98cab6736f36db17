//! Pools and datasets that are full: who does not fit is told so before anything is accepted, what was
//! acknowledged is there after a crash, and what makes room always works.
//!
//! Invariant: whatever the files do, the pool goes on writing its groups.

use std::sync::Arc;

use cenote_device::Keep;
use cenote_engine::ErrorKind;
use cenote_engine::dataset::change::PropertyInput;
use cenote_engine::pool::group::LivePool;
use cenote_posix::Filesystem;
use cenote_posix::tree::{Errno, NodeId, ROOT, RenameFlags, SetAttributes, Tree};

use super::pool::{Disks, NAME, census};
use super::rig::{SUPERUSER, code, new_node};

const ENOSPC: i32 = 28;
const EDQUOT: i32 = 122;

/// Bytes that cannot be compressed.
pub(super) fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let words = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    let mut bytes: Vec<u8> = words.take(length.div_ceil(8)).flatten().collect();
    bytes.truncate(length);
    bytes
}

struct Full {
    live: Arc<LivePool>,
    files: Arc<Filesystem>,
}

impl Full {
    fn new(disks: &Disks) -> Self {
        let live = disks.create();
        let files = disks.files(&live, "new");
        Self { live, files }
    }

    fn file(&self, name: &str) -> Result<NodeId, Errno> {
        let made = self.files.create(SUPERUSER, ROOT, name.as_bytes(), new_node(0o100_644))?;
        Ok(made.node)
    }

    fn write(&self, node: NodeId, offset: u64, data: &[u8]) -> Result<(), Errno> {
        self.files.write(SUPERUSER, node, offset, data, false)
    }

    fn set(&self, node: NodeId, change: SetAttributes) -> Result<(), Errno> {
        self.files.set_attributes(SUPERUSER, node, &change).map(drop)
    }

    /// A file that grows until there is no room: its length, and why it ended.
    fn fill(&self, name: &str, piece: usize) -> (u64, i32) {
        let mut length = 0;
        let node = match self.file(name) {
            Ok(node) => node,
            Err(error) => return (0, error.code),
        };
        loop {
            if let Err(error) = self.write(node, length, &noise(piece, length + 1)) {
                return (length, error.code);
            }
            length += piece as u64;
        }
    }

    fn set_number(&self, name: &'static str, value: u64) {
        let id = self.live.pool().catalog().dataset_named(NAME).unwrap().id;
        let input = PropertyInput::number(name, value);
        self.live.change(move |_, change| change.set_property(id, &input)).unwrap();
    }

    fn used(&self) -> u64 {
        self.live.sync().unwrap();
        let dataset = self.live.pool().catalog().dataset_named(NAME).unwrap();
        dataset.phys.referenced_bytes
    }
}

/// A pool that is full to the last byte of small files with `fsync` and a large one.
fn fills_and_empties(disks: &Disks) {
    let full = Full::new(disks);
    let mut acknowledged = Vec::new();
    let (_, why) = full.fill("large", 300_000);
    assert_eq!(why, ENOSPC);
    for number in 0..60_u64 {
        let name = format!("small{number}");
        let done = full.file(&name).and_then(|node| {
            full.write(node, 0, &noise(16_000, number))?;
            full.files.sync(node, false)
        });
        match done {
            Ok(()) => acknowledged.push((name, number)),
            Err(error) => assert_eq!(error.code, ENOSPC, "{error}"),
        }
        if number == 20 {
            let large = full.files.lookup(ROOT, b"large").unwrap().node;
            full.set(large, SetAttributes { size: Some(100_000), ..Default::default() }).unwrap();
            full.live.sync().unwrap();
        }
        if number == 25 {
            assert_eq!(full.fill("second", 100_000).1, ENOSPC);
        }
    }
    assert!(!acknowledged.is_empty());
    assert!(full.live.gate().failure().is_none() && full.live.suspension().is_none());
    // As the power goes now, whatever was acknowledged is there again.
    let after = disks.cut(u64::MAX, &mut |_| Keep::All);
    full.live.abandon();
    let live = after.open("after the cut");
    let files = after.files(&live, "after the cut");
    let full = Full { live, files };
    for (name, seed) in &acknowledged {
        let node = full.files.lookup(ROOT, name.as_bytes()).unwrap().node;
        let read = full.files.read(node, 0, 16_000).unwrap().concat();
        assert!(read == noise(16_000, *seed), "{name} has changed");
    }
    // What keeps up and makes room works.
    assert_eq!(full.fill("third", 100_000).1, ENOSPC);
    if full.files.lookup(ROOT, b"third").is_ok() {
        let renamed =
            full.files.rename(SUPERUSER, ROOT, b"third", ROOT, b"fourth", RenameFlags::default());
        renamed.unwrap();
    }
    let node = full.files.lookup(ROOT, b"second").unwrap().node;
    full.set(node, SetAttributes { mode: Some(0o600), ..Default::default() }).unwrap();
    full.write(node, 4096, &noise(4096, 99)).unwrap();
    full.files.sync(node, false).unwrap();
    full.set(node, SetAttributes { size: Some(0), ..Default::default() }).unwrap();
    full.files.unlink(SUPERUSER, ROOT, b"second").unwrap();
    let _ = full.files.unlink(SUPERUSER, ROOT, b"fourth");
    full.live.sync().unwrap();
    let node = full.file("again").unwrap();
    full.write(node, 0, &noise(100_000, 7)).unwrap();
    let Full { live, files } = full;
    drop(files);
    live.export().unwrap();
    drop(live);
    census(&after.open_to_look("exported"), "exported");
}

#[test]
fn a_full_pool_keeps_what_it_acknowledged() {
    fills_and_empties(&Disks::new("disk"));
}

#[test]
fn parity_and_small_blocks_are_counted() {
    let small = PropertyInput::number("recordsize", 4096);
    fills_and_empties(&Disks::new("raidz2").with(&[], &[small]));
}

#[test]
fn copies_are_counted() {
    fills_and_empties(&Disks::new("disk").with(&[], &[PropertyInput::number("copies", 3)]));
}

#[test]
fn synchronous_overwrites_go_on_for_ever() {
    let disks = Disks::new("disk");
    let full = Full::new(&disks);
    let node = full.file("one").unwrap();
    let piece = 256 << 10;
    for round in 0..400_u64 {
        let offset = round % 16 * piece;
        full.write(node, offset, &noise(piece as usize, round)).unwrap();
        full.files.sync(node, true).unwrap();
    }
    let Full { live, files } = full;
    drop(files);
    live.export().unwrap();
}

#[test]
fn quotas_count_what_is_on_its_way() {
    for name in ["quota", "refquota"] {
        let disks = Disks::sized("disk", 256 << 20);
        let full = Full::new(&disks);
        let quota = 40 << 20;
        full.set_number(name, quota);
        let (length, why) = full.fill("large", 1 << 20);
        assert_eq!(why, EDQUOT, "{name}");
        let used = full.used();
        assert!(used <= quota + (2 << 20), "{name}: {used} bytes are used");
        assert!(length >= quota / 100 * 85, "{name}: only {length} bytes fit");
        if name == "refquota" {
            // What a snapshot refers to must fit as well.
            let id = full.live.pool().catalog().dataset_named(NAME).unwrap().id;
            full.live
                .change(move |_, change| change.create_snapshot(id, "s", &[]).map(drop))
                .unwrap();
            full.set_number(name, quota / 2);
            let back = full.live.change(move |_, change| change.check_rollback(id));
            assert_eq!(back.unwrap_err().kind(), ErrorKind::Quota);
            let snapshot =
                full.live.pool().catalog().dataset_named(&format!("{NAME}@s")).unwrap().id;
            full.live.change(move |_, change| change.destroy_snapshot(snapshot, false)).unwrap();
            // At once, too, where a file was just made.
            full.set_number(name, 2 * quota);
            let another = full.file("another").unwrap();
            let used = full.used();
            full.set_number(name, used);
            assert_eq!(code(full.write(another, 0, &[1])), EDQUOT);
        }
        let large = full.files.lookup(ROOT, b"large").unwrap().node;
        full.files.unlink(SUPERUSER, ROOT, b"large").unwrap();
        full.files.forget(large);
        let before = full.used();
        let (again, why) = full.fill("second", 1 << 20);
        assert!(
            again >= length / 100 * 85,
            "{name}: {again} bytes fit ({why}) where {before} were used"
        );
    }
}
