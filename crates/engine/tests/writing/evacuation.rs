//! Top-level vdevs that hold data leave a pool in use.
//!
//! Invariant: at every moment, also after a crash, everything written is there and nothing leaks, in our
//! own census and in `zdb`'s.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cenote_device::Health;
use cenote_engine::job::JobState;
use cenote_engine::object::{NewObject, ObjectSet};
use cenote_engine::pool::OpenOptions;
use cenote_engine::pool::change::{Additions, Newcomer, create};
use cenote_engine::pool::group::{LivePool, WriteOptions};
use cenote_engine::pool::leaves::HeldDevices;
use cenote_engine::vdev::AllocationClass;
use cenote_engine::{Error, ErrorKind};
use cenote_format::config::{VdevConfig, VdevKind};
use cenote_format::scan_state::{ScanFunction, ScanPhase};
use cenote_format::{Guid, ObjectId, ObjectType, Txg};

use super::log::{head, try_reopen};
use super::suspended::Disks;
use super::{census, devices, leaf, noise, nothing, open_leaf, plan, top, zdb};

/// So that a removal takes many groups, and mappings of few entries are condensed.
fn slowly() -> WriteOptions {
    WriteOptions {
        copied_at_once: Some(64 << 10),
        condensed_above: Some(0),
        ..WriteOptions::default()
    }
}

fn pool(
    name: &str,
    tops: Vec<(VdevConfig, AllocationClass)>,
    write: WriteOptions,
) -> Arc<LivePool> {
    create(plan(name, tops), Arc::new(open_leaf), &OpenOptions::default(), write, nothing).unwrap()
}

fn reopen(directory: &Path, write: WriteOptions) -> Arc<LivePool> {
    try_reopen(directory, write).unwrap()
}

fn mirrors(directory: &Path, count: usize) -> Vec<(VdevConfig, AllocationClass)> {
    let all = devices(directory, count * 2);
    let pairs = all.chunks(2).map(|pair| top(VdevKind::Mirror, None, pair.to_vec()));
    pairs.map(|top| (top, AllocationClass::Normal)).collect()
}

fn singles(directory: &Path, count: usize) -> Vec<(VdevConfig, AllocationClass)> {
    let all = devices(directory, count).into_iter();
    all.map(|leaf| (top(VdevKind::File, None, vec![leaf]), AllocationClass::Normal)).collect()
}

fn guid_of(live: &LivePool, id: usize) -> Guid {
    live.vdevs().topology().tops()[id].guid
}

fn kinds(live: &LivePool) -> Vec<&'static str> {
    live.vdevs().topology().tops().iter().map(|top| top.kind.name()).collect()
}

pub(super) fn is_removing(live: &LivePool) -> bool {
    live.vdevs()
        .topology()
        .tops()
        .iter()
        .any(|top| top.top.is_some_and(|top| top.removing == Some(1)))
}

fn until(what: &str, done: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn gone(live: &LivePool, id: usize) {
    until("the removal ends", || kinds(live)[id] == "indirect");
    live.sync().unwrap();
}

/// Objects with noise in them, and what they hold.
pub(super) struct Files {
    files: Vec<(ObjectId, Vec<u8>)>,
    next: u64,
}

impl Files {
    pub(super) fn new() -> Self {
        Self { files: Vec::new(), next: 0 }
    }

    pub(super) fn write(&mut self, live: &LivePool, set: &ObjectSet, count: usize) {
        for _ in 0..count {
            self.next += 1;
            let block = [512, 4096, 16 << 10, 128 << 10][(self.next % 4) as usize];
            let size = [700, 9000, 70_000, 300_000, 1 << 20][(self.next % 5) as usize];
            let tx = live.begin().unwrap();
            let file =
                set.create_object(&tx, &NewObject::new(ObjectType::OTHER_U64, block)).unwrap();
            let data = noise(size, self.next);
            file.write(&tx, 0, &data).unwrap();
            self.files.push((file.id(), data));
        }
    }

    /// Frees some, and overwrites others.
    pub(super) fn churn(&mut self, live: &LivePool, set: &ObjectSet, count: usize) {
        for _ in 0..count.min(self.files.len()) {
            self.next += 1;
            let place = (self.next as usize * 7) % self.files.len();
            let tx = live.begin().unwrap();
            if self.next.is_multiple_of(2) {
                let (id, _) = self.files.remove(place);
                set.free_object(&tx, id).unwrap();
            } else {
                let (id, data) = &mut self.files[place];
                let part = noise(data.len().min(40_000), self.next);
                set.object(*id).unwrap().write(&tx, 0, &part).unwrap();
                data[..part.len()].copy_from_slice(&part);
            }
        }
    }

    /// What the disks hold.
    pub(super) fn check(&self, live: &LivePool) {
        let catalog = live.pool().catalog();
        let head = catalog.head(&catalog.root().unwrap()).unwrap();
        let cache = live.pool().io().pipe.cache();
        let limit = cache.limit();
        cache.set_limit(0);
        cache.set_limit(limit);
        let set = ObjectSet::open(live.pool().io(), head.phys.pointer, head.id.0, None).unwrap();
        for (id, data) in &self.files {
            let found = set.object(*id).unwrap().read_vec(0, data.len()).unwrap();
            assert!(&found == data, "object {id}");
        }
    }
}

#[test]
fn mirrors_are_emptied_one_after_another_while_files_change() {
    let directory = tempfile::tempdir().unwrap();
    let live = pool("emptied", mirrors(directory.path(), 4), slowly());
    let mut files = Files::new();
    {
        let dataset = head(&live);
        let set = dataset.set();
        for _ in 0..4 {
            files.write(&live, set, 25);
            live.sync().unwrap();
            files.churn(&live, set, 8);
        }
        live.sync().unwrap();
        live.remove_vdev(guid_of(&live, 1)).unwrap();
        let again = live.remove_vdev(guid_of(&live, 1)).unwrap_err();
        assert_eq!(again.reason(), "removal for this vdev is already in progress.");
        assert_eq!(live.remove_vdev(guid_of(&live, 0)).unwrap_err().kind(), ErrorKind::Busy);
        let mut rounds = 0;
        while is_removing(&live) {
            files.churn(&live, set, 3);
            files.write(&live, set, 1);
            live.sync().unwrap();
            if rounds % 5 == 0 {
                // Groups are written meanwhile.
                let _held = live.allocator().hold_all();
                census(live.pool());
            }
            rounds += 1;
        }
        assert!(rounds > 0, "{rounds}");
        gone(&live, 1);
        assert_eq!(kinds(&live), ["mirror", "indirect", "mirror", "mirror"]);
        census(live.pool());
        files.check(&live);
        // The devices are free for something else, and blocks that were moved are freed where they are.
        files.churn(&live, set, 30);
        live.sync().unwrap();
        census(live.pool());
        live.remove_vdev(guid_of(&live, 2)).unwrap();
        gone(&live, 2);
        assert_eq!(kinds(&live), ["mirror", "indirect", "indirect", "mirror"]);
        files.churn(&live, set, 20);
        live.sync().unwrap();
        census(live.pool());
        files.check(&live);
    }
    live.export().unwrap();
    drop(live);
    zdb(directory.path(), "emptied");
    let live = reopen(directory.path(), slowly());
    files.check(&live);
    {
        let dataset = head(&live);
        let count = files.files.len();
        files.churn(&live, dataset.set(), count);
        live.sync().unwrap();
    }
    until("nothing is condensed any more", || {
        live.jobs().iter().all(|job| job.state == JobState::Idle)
    });
    census(live.pool());
    files.check(&live);
    live.export().unwrap();
    drop(live);
    zdb(directory.path(), "emptied");
}

#[test]
fn a_removal_goes_on_after_a_crash_and_can_be_given_up() {
    let directory = tempfile::tempdir().unwrap();
    let live = pool("cut", singles(directory.path(), 3), slowly());
    let mut files = Files::new();
    let write = |live: &LivePool, files: &mut Files, rounds: usize| {
        let dataset = head(live);
        for _ in 0..rounds {
            files.write(live, dataset.set(), 20);
            live.sync().unwrap();
            files.churn(live, dataset.set(), 6);
            live.sync().unwrap();
        }
    };
    write(&live, &mut files, 4);
    let moved = |live: &LivePool| live.allocator().moved_until();
    // OpenZFS from 2.2 on puts new blocks on what is only being removed.
    let rests = |live: &LivePool| {
        live.vdevs().topology().top(0).and_then(|top| top.top).unwrap().non_allocating
    };
    live.remove_vdev(guid_of(&live, 0)).unwrap();
    until("something is copied", || moved(&live) > 0);
    write(&live, &mut files, 1);
    assert!(is_removing(&live));
    assert_eq!(rests(&live), Some(1));
    live.cancel_removal().unwrap();
    assert!(!is_removing(&live));
    assert_eq!(rests(&live), None);
    assert_eq!(live.cancel_removal().unwrap_err().kind(), ErrorKind::NotFound);
    census(live.pool());
    files.check(&live);
    // Once more, and as if the power had gone in the middle.
    live.remove_vdev(guid_of(&live, 0)).unwrap();
    until("something is copied", || moved(&live) > 0);
    write(&live, &mut files, 1);
    assert!(is_removing(&live));
    live.gate().fail(Error::invalid("crash"));
    drop(live);
    zdb(directory.path(), "cut");
    let live = reopen(directory.path(), slowly());
    assert!(is_removing(&live) && moved(&live) > 0);
    write(&live, &mut files, 1);
    gone(&live, 0);
    census(live.pool());
    files.check(&live);
    let freed = directory.path().join("d0");
    assert!(freed.exists());
    live.export().unwrap();
    drop(live);
    zdb(directory.path(), "cut");
}

/// Overwrites these mebibytes of a device.
fn spoil(directory: &Path, name: &str, pieces: std::ops::Range<u64>) {
    let device = std::fs::File::options().write(true).open(directory.join(name)).unwrap();
    let garbage = noise(1 << 20, 99);
    for piece in pieces {
        device.write_all_at(&garbage, piece << 20).unwrap();
    }
}

#[test]
fn a_mirror_that_is_emptied_into_single_devices_leaves_nothing_behind_that_one_side_had() {
    let directory = tempfile::tempdir().unwrap();
    let mut tops = mirrors(directory.path(), 1);
    let lone = devices(directory.path(), 4).split_off(2);
    let lone = lone.into_iter().map(|leaf| top(VdevKind::File, None, vec![leaf]));
    tops.extend(lone.map(|top| (top, AllocationClass::Normal)));
    let live = pool("narrow", tops, slowly());
    let mut files = Files::new();
    {
        let dataset = head(&live);
        files.write(&live, dataset.set(), 60);
        live.sync().unwrap();
    }
    // Of each half something is overwritten.
    spoil(directory.path(), "d0", 5..30);
    spoil(directory.path(), "d1", 30..100);
    live.remove_vdev(guid_of(&live, 0)).unwrap();
    gone(&live, 0);
    let scan = live.scan_progress().record.unwrap();
    assert_eq!((scan.function, scan.phase), (ScanFunction::Scrub, ScanPhase::Finished));
    assert!(scan.processed > 0 && scan.errors == 0, "{scan:?}");
    files.check(&live);
    live.export().unwrap();
    drop(live);
    zdb(directory.path(), "narrow");
}

#[test]
fn sides_of_a_mirror_are_copied_side_by_side() {
    let directory = tempfile::tempdir().unwrap();
    let live = pool("sides", mirrors(directory.path(), 3), WriteOptions::default());
    let mut files = Files::new();
    {
        let dataset = head(&live);
        files.write(&live, dataset.set(), 60);
        live.sync().unwrap();
    }
    // One half of the mirror that is to leave is overwritten, the labels left alone.
    spoil(directory.path(), "d2", 8..100);
    live.remove_vdev(guid_of(&live, 1)).unwrap();
    gone(&live, 1);
    files.check(&live);
    live.export().unwrap();
}

#[test]
fn what_cannot_be_removed_is_refused_and_nothing_changes() {
    let directory = tempfile::tempdir().unwrap();
    let refusal = |live: &LivePool, id: usize| {
        let error = live.remove_vdev(guid_of(live, id)).unwrap_err();
        assert!(!is_removing(live));
        (error.kind(), error.reason().to_owned())
    };
    let words =
        "invalid config; all top-level vdevs must have the same sector size and not be raidz.";
    let mut leaves = devices(directory.path(), 10).into_iter();
    let mut some = |count| leaves.by_ref().take(count).collect::<Vec<_>>();
    let normal = AllocationClass::Normal;
    let mixed = vec![
        (top(VdevKind::File, None, some(1)), normal),
        (top(VdevKind::Raidz, Some(1), some(3)), normal),
    ];
    let live = pool("mixed", mixed, WriteOptions::default());
    assert_eq!(refusal(&live, 0), (ErrorKind::InvalidArgument, words.into()));
    live.export().unwrap();
    let three = (0..3).map(|_| (top(VdevKind::File, None, some(1)), normal)).collect();
    let live = pool("three", three, slowly());
    let dataset = head(&live);
    let mut files = Files::new();
    files.write(&live, dataset.set(), 120);
    live.sync().unwrap();
    live.take_checkpoint().unwrap();
    assert_eq!(refusal(&live, 0), (ErrorKind::Exists, "checkpoint exists".into()));
    live.discard_checkpoint().unwrap();
    until("the checkpoint is gone", || live.pool().space().unwrap().checkpoint.is_none());
    live.remove_vdev(guid_of(&live, 1)).unwrap();
    // Beside it.
    assert_eq!(live.take_checkpoint().unwrap_err().reason(), "device removal in progress");
    let mirror = (top(VdevKind::Mirror, None, some(2)), normal);
    let mut other = mirror.clone();
    other.0.top.as_mut().unwrap().ashift = 9;
    let add = |tops| {
        let plan = Additions { tops, ..Additions::default() };
        live.add_vdevs(plan, HeldDevices::new().new_leaves())
    };
    assert_eq!(add(vec![other]).unwrap_err().kind(), ErrorKind::InvalidArgument);
    let newcomer = Newcomer {
        beside: guid_of(&live, 0),
        leaf: leaf(&directory.path().join("d9")),
        replaces: false,
        goes_back: false,
        sequential: false,
    };
    let busy = live.take_in(newcomer, HeldDevices::new().new_leaves()).unwrap_err();
    assert_eq!(busy.kind(), ErrorKind::Busy);
    assert!(is_removing(&live));
    add(vec![mirror]).unwrap();
    gone(&live, 1);
    assert_eq!(kinds(&live), ["file", "indirect", "file", "mirror"]);
    census(live.pool());
    files.check(&live);
    drop(dataset);
    live.export().unwrap();
}

#[test]
fn a_mirror_with_a_device_away_is_emptied_onto_others_with_one_away() {
    let directory = tempfile::tempdir().unwrap();
    let live = create(
        plan("degraded", mirrors(directory.path(), 3)),
        HeldDevices::new().new_leaves(),
        &OpenOptions::default(),
        slowly(),
        nothing,
    )
    .unwrap();
    let device = |id: usize, side: usize| live.vdevs().topology().tops()[id].children()[side].guid;
    let (first, last) = (device(0, 0), device(1, 1));
    let mut files = Files::new();
    let dataset = head(&live);
    files.write(&live, dataset.set(), 20);
    live.sync().unwrap();
    for guid in [first, last] {
        live.offline(guid, false).unwrap();
    }
    // What those two lack.
    files.write(&live, dataset.set(), 40);
    files.churn(&live, dataset.set(), 5);
    live.sync().unwrap();
    live.remove_vdev(guid_of(&live, 0)).unwrap();
    gone(&live, 0);
    files.check(&live);
    live.online(last).unwrap();
    until("the device that was away has everything", || live.vdevs().missed().is_empty());
    // It has the copies, too: the other may go now.
    live.offline(device(1, 0), true).unwrap();
    files.check(&live);
    live.online(device(1, 0)).unwrap();
    until("both have everything", || live.vdevs().missed().is_empty());
    census(live.pool());
    drop(dataset);
    live.export().unwrap();
    drop(live);
    zdb(directory.path(), "degraded");
}

#[test]
fn devices_of_metadata_leave_and_full_pools_refuse() {
    let directory = tempfile::tempdir().unwrap();
    let mut leaves = devices(directory.path(), 4).into_iter();
    let mut some = |count| leaves.by_ref().take(count).collect::<Vec<_>>();
    let normal = AllocationClass::Normal;
    let tops = vec![
        (top(VdevKind::File, None, some(1)), normal),
        (top(VdevKind::File, None, some(1)), normal),
        (top(VdevKind::Mirror, None, some(2)), AllocationClass::Special),
    ];
    let live = pool("special", tops, WriteOptions::default());
    let dataset = head(&live);
    let mut files = Files::new();
    files.write(&live, dataset.set(), 60);
    live.sync().unwrap();
    live.remove_vdev(guid_of(&live, 2)).unwrap();
    gone(&live, 2);
    files.churn(&live, dataset.set(), 10);
    live.sync().unwrap();
    census(live.pool());
    // 128 MiB are the slop of so small a pool, and what is left is less than what is to go.
    files.write(&live, dataset.set(), 200);
    live.sync().unwrap();
    let full = live.remove_vdev(guid_of(&live, 0)).unwrap_err();
    assert_eq!((full.kind(), full.reason()), (ErrorKind::NoSpace, "out of space"));
    files.check(&live);
    drop(dataset);
    live.export().unwrap();
    drop(live);
    zdb(directory.path(), "special");
}

/// Gives `order` in a thread, and lets `groups` be written for it; in the next one all disks fail, and the order is
/// told that it is done later. They are well again after `meanwhile`.
fn suspended_in_its_own_group(
    (disks, live): (&Disks, &Arc<LivePool>),
    groups: u64,
    order: impl FnOnce() -> cenote_engine::Result<()> + Send,
    meanwhile: impl FnOnce(),
) {
    let health = |health| disks.0.values().for_each(|disk| disk.set_health(health));
    std::thread::scope(|scope| {
        let mut held = live.begin().unwrap();
        let order = scope.spawn(order);
        for _ in 0..groups {
            // The next one opens when this one is asked for, and is held before it is asked for itself.
            let next = Txg(held.txg().0 + 1);
            until("the next group opens", || {
                assert!(!order.is_finished(), "refused before its own group");
                live.gate().figures().open == next
            });
            let before = std::mem::replace(&mut held, live.begin().unwrap());
            assert_eq!(held.txg(), next);
            drop(before);
        }
        until("its group is waited for", || live.gate().is_wanted(held.txg()));
        health(Health::FailsWrites);
        drop(held);
        let later = order.join().unwrap().unwrap_err();
        assert_eq!(later.kind(), ErrorKind::TimedOut, "{later}");
    });
    assert!(live.suspension().is_some());
    meanwhile();
    health(Health::Well);
    live.retry_now();
    until("going on", || live.suspension().is_none());
}

#[test]
fn a_removal_whose_first_group_meets_a_suspension_copies_what_is_written_meanwhile() {
    let (disks, live) = Disks::create_singles(3, slowly());
    let dataset = head(&live);
    let mut files = Files::new();
    files.write(&live, dataset.set(), 60);
    live.sync().unwrap();
    let guid = guid_of(&live, 1);
    let is_passive = |live: &LivePool| {
        let figures = live.allocator().figures();
        figures.tops.iter().any(|top| top.id == 1 && top.passive)
    };
    let order = || live.remove_vdev(guid);
    // One that fails when the pool goes on leaves everything as it was.
    live.fail_order_at(1);
    suspended_in_its_own_group((&disks, &live), 4, order, || ());
    live.sync().unwrap();
    assert!(!is_removing(&live) && !is_passive(&live));
    let order = || live.remove_vdev(guid);
    suspended_in_its_own_group((&disks, &live), 4, order, || assert!(is_passive(&live)));
    until("the removal begins", || is_removing(&live) || kinds(&live)[1] == "indirect");
    for _ in 0..20 {
        files.write(&live, dataset.set(), 2);
        live.sync().unwrap();
    }
    gone(&live, 1);
    files.check(&live);
    census(live.pool());
    drop(dataset);
    live.export().unwrap();
    drop(live);
    let live = disks.reopen();
    files.check(&live);
    census(live.pool());
    live.export().unwrap();
}

/// Unpacks a pool that OpenZFS 2.1.11 has exported in the middle of a removal
/// (`tests/fixtures/scripts/mkleaving.sh`).
fn leaving() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let images = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/leaving.tar.zst");
    let mut tar = std::process::Command::new("tar")
        .args(["-S", "-xf", "-", "-C"])
        .arg(directory.path())
        .stdin(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut pipe = tar.stdin.take().unwrap();
    let images = std::fs::File::open(images).unwrap();
    std::io::copy(&mut zstd::Decoder::new(images).unwrap(), &mut pipe).unwrap();
    drop(pipe);
    assert!(tar.wait().unwrap().success());
    directory
}

#[test]
fn what_openzfs_has_begun_goes_on() {
    let directory = leaving();
    let live = reopen(directory.path(), slowly());
    let from = live.allocator().moved_until();
    assert!(is_removing(&live) && from > 0);
    gone(&live, 1);
    assert_eq!(kinds(&live), ["file", "indirect", "file"]);
    census(live.pool());
    live.export().unwrap();
    drop(live);
    zdb(directory.path(), "leaving");
}

#[test]
fn what_openzfs_has_begun_is_given_up() {
    let directory = leaving();
    let live = reopen(directory.path(), slowly());
    live.cancel_removal().unwrap();
    assert!(!is_removing(&live));
    assert_eq!(kinds(&live), ["file", "file", "file"]);
    census(live.pool());
    live.export().unwrap();
    drop(live);
    zdb(directory.path(), "leaving");
}
