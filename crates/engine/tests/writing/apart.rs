//! Pools that more than one process wrote: one after the other, or apart from each other.
//!
//! Invariant: the state that is opened holds everything any process had written, or none is opened.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use cenote_device::{Bytes, Device, DeviceError, Health, SimDevice};
use cenote_engine::ErrorKind;
use cenote_engine::dataset::change::PropertyInput;
use cenote_engine::object::Object;
use cenote_engine::pool::activity::{self, Need, Settings, SystemClock};
use cenote_engine::pool::assemble::{PoolCandidate, assemble};
use cenote_engine::pool::choose::read_uberblocks;
use cenote_engine::pool::discover::{Candidate, Opener, ScanOptions, scan};
use cenote_engine::pool::group::{LivePool, WriteOptions};
use cenote_engine::pool::host::HostIdentity;
use cenote_engine::pool::inspect::{Inspection, Inspector, inspect};
use cenote_engine::pool::search::search;
use cenote_engine::pool::{OpenOptions, Pool, Rewind};
use cenote_engine::vdev::Aux;
use cenote_format::config::{PoolState, VdevKind};
use cenote_format::{Txg, Uberblock};
use parking_lot::Mutex;

use super::suspended::{Disks, object, stored, wait_until};
use super::{census, noise};

/// Whose devices are to be had only after another process has written on and ended.
struct Waiting {
    disks: Disks,
    other: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Opener for Waiting {
    fn candidates(&self, place: &Path) -> Result<Vec<Candidate>, DeviceError> {
        self.disks.candidates(place)
    }

    fn open(&self, path: &Path) -> Result<Arc<dyn Device>, DeviceError> {
        if let Some(other) = self.other.lock().take() {
            other();
        }
        self.disks.open(path)
    }
}

#[test]
fn what_was_written_while_the_devices_were_waited_for_is_seen() {
    for rewind in [Rewind::None, Rewind::Safe] {
        what_was_written_meanwhile_is_seen(rewind);
    }
}

fn what_was_written_meanwhile_is_seen(rewind: Rewind) {
    let (disks, live) = Disks::create(VdevKind::Mirror, 2);
    let object = object(&live);
    live.sync().unwrap();
    let opener: Arc<dyn Opener> = Arc::new(disks.clone());
    let found = assemble(&scan(&opener, &ScanOptions::new(vec!["/sim".into()])));
    let writes_on = move || {
        for seed in 0..3 {
            object.write(&live.begin().unwrap(), seed << 17, &noise(1 << 17, seed)).unwrap();
            live.sync().unwrap();
        }
        // As when it is killed: not exported.
        live.close().unwrap();
    };
    let waiting = Waiting { disks: disks.clone(), other: Mutex::new(Some(Box::new(writes_on))) };
    let devices: Option<Arc<dyn Opener>> = Some(Arc::new(waiting));
    let options = OpenOptions { devices, rewind, ..OpenOptions::default() };
    let write = WriteOptions::default();
    let error = LivePool::open(&found[0], &options, write).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Outdated, "{error}");
    let again = disks.reopen();
    assert!(again.pool().gone_back().is_none());
    again.export().unwrap();
    census(again.pool());
}

/// Whose devices are in use the first time.
struct BusyOnce(Disks, AtomicBool);

impl Opener for BusyOnce {
    fn candidates(&self, place: &Path) -> Result<Vec<Candidate>, DeviceError> {
        self.0.candidates(place)
    }

    fn open(&self, path: &Path) -> Result<Arc<dyn Device>, DeviceError> {
        match self.1.swap(false, Relaxed) {
            true => Err(DeviceError::Busy(path.to_path_buf())),
            false => self.0.open(path),
        }
    }
}

#[test]
fn nothing_is_given_up_for_devices_that_are_in_use_for_a_moment() {
    let (disks, live) = Disks::create(VdevKind::Mirror, 2);
    for seed in 0..3 {
        let object = object(&live);
        object.write(&live.begin().unwrap(), 0, &noise(1 << 17, seed)).unwrap();
        live.sync().unwrap();
    }
    live.close().unwrap();
    drop(live);
    let opener: Arc<dyn Opener> = Arc::new(disks.clone());
    let found = assemble(&scan(&opener, &ScanOptions::new(vec!["/sim".into()])));
    let busy: Arc<dyn Opener> = Arc::new(BusyOnce(disks, AtomicBool::new(true)));
    let options =
        OpenOptions { devices: Some(busy), rewind: Rewind::Safe, ..OpenOptions::default() };
    let open = || LivePool::open(&found[0], &options, WriteOptions::default());
    assert_eq!(open().err().unwrap().kind(), ErrorKind::Busy);
    let live = open().unwrap();
    assert!(live.pool().gone_back().is_none());
    live.export().unwrap();
}

impl Disks {
    /// Opens the pool with these of its disks.
    fn open_with(&self, numbers: &[usize]) -> cenote_engine::Result<Arc<LivePool>> {
        let all = self.0.iter().enumerate().filter(|(number, _)| numbers.contains(number));
        let some = Self(all.map(|(_, (path, disk))| (path.clone(), disk.clone())).collect());
        let opener: Arc<dyn Opener> = Arc::new(some);
        let pools = assemble(&scan(&opener, &ScanOptions::new(vec!["/sim".into()])));
        let options = OpenOptions { devices: Some(opener), ..OpenOptions::default() };
        LivePool::open(&pools[0], &options, WriteOptions::default())
    }

    /// Some groups written with these of its disks; the pool is left as by a crash or exported.
    fn go_on_with(&self, numbers: &[usize], groups: u64, exported: bool) {
        let live = self.open_with(numbers).unwrap();
        for seed in 0..groups {
            let object = object(&live);
            object.write(&live.begin().unwrap(), 0, &noise(1 << 16, seed)).unwrap();
            live.sync().unwrap();
        }
        match exported {
            true => live.export().unwrap(),
            false => live.close().unwrap(),
        }
    }
}

#[test]
fn halves_that_went_on_apart_are_refused_together() {
    for (first, second) in [(2, 5), (5, 2), (3, 3), (200, 1)] {
        let (disks, live) = Disks::create(VdevKind::Mirror, 2);
        live.export().unwrap();
        disks.go_on_with(&[0], first, true);
        disks.go_on_with(&[1], second, second % 2 == 0);
        let refused = disks.open_with(&[0, 1]).err().unwrap();
        let words = refused.to_string();
        assert!(words.contains("written apart from each other"), "{first} {second}: {words}");
        assert!(words.contains("labelclear"), "{words}");
        // Either side alone can be had.
        for side in [0, 1] {
            disks.open_with(&[side]).unwrap().export().unwrap();
        }
    }
}

/// Disks of which a search finds only one.
struct Named(Disks, usize);

impl Opener for Named {
    fn candidates(&self, place: &Path) -> Result<Vec<Candidate>, DeviceError> {
        Ok(self.0.candidates(place)?.into_iter().skip(self.1).take(1).collect())
    }

    fn open(&self, path: &Path) -> Result<Arc<dyn Device>, DeviceError> {
        self.0.open(path)
    }
}

#[test]
fn a_side_that_went_on_apart_is_not_taken_in_by_its_path() {
    for (first, second) in [(40, 5), (5, 40), (3, 3)] {
        let (disks, live) = Disks::create(VdevKind::Mirror, 2);
        live.export().unwrap();
        disks.go_on_with(&[0], first, false);
        disks.go_on_with(&[1], second, true);
        for named in [0, 1] {
            let other = content(disks.disk(1 - named));
            let opener: Arc<dyn Opener> = Arc::new(Named(disks.clone(), named));
            let pools = assemble(&scan(&opener, &ScanOptions::new(vec!["/sim".into()])));
            let options = OpenOptions { devices: Some(opener), ..OpenOptions::default() };
            let live = LivePool::open(&pools[0], &options, WriteOptions::default()).unwrap();
            assert_eq!(live.vdevs().devices().len(), 1, "{first} {second} {named}");
            live.vdevs().reopen();
            for seed in 0..2 {
                let object = object(&live);
                object.write(&live.begin().unwrap(), 0, &noise(1 << 16, seed)).unwrap();
                live.sync().unwrap();
            }
            assert_eq!(live.vdevs().devices().len(), 1, "{first} {second} {named}");
            live.close().unwrap();
            assert!(content(disks.disk(1 - named)) == other, "{first} {second} {named}");
        }
        let refused = disks.open_with(&[0, 1]).err().map(|error| error.to_string());
        let is_said = refused.is_some_and(|words| words.contains("written apart from each other"));
        assert!(is_said, "{first} {second}");
    }
}

#[test]
fn a_side_that_was_not_found_but_is_at_its_path_is_taken_in() {
    let (disks, live) = Disks::create(VdevKind::Mirror, 2);
    live.export().unwrap();
    disks.go_on_with(&[0], 5, true);
    let opener: Arc<dyn Opener> = Arc::new(Named(disks.clone(), 0));
    let pools = assemble(&scan(&opener, &ScanOptions::new(vec!["/sim".into()])));
    let options = OpenOptions { devices: Some(opener), ..OpenOptions::default() };
    let live = LivePool::open(&pools[0], &options, WriteOptions::default()).unwrap();
    assert_eq!(live.vdevs().devices().len(), 2);
    let is_whole = || live.pool().vdevs().missed().is_empty() && live.sync().is_ok();
    wait_until("it is resilvered", is_whole);
    live.export().unwrap();
}

#[test]
fn a_side_that_was_written_elsewhere_while_it_rested_is_not_taken_back() {
    for (elsewhere, here) in [(40, 2), (5, 40)] {
        let (disks, live) = opened_fresh(VdevKind::Mirror, 2);
        let devices = live.vdevs().devices();
        let path = Path::new("/sim/1");
        let guid = devices.iter().find(|leaf| leaf.device.path() == path).unwrap().guid;
        drop(devices);
        live.offline(guid, true).unwrap();
        let other = disks.copied();
        other.go_on_with(&[1], elsewhere, true);
        let foreign = content(other.disk(1));
        disks.disk(1).replace_content(&foreign);
        let object = object(&live);
        for seed in 0..here {
            object.write(&live.begin().unwrap(), 0, &noise(1 << 16, seed)).unwrap();
            live.sync().unwrap();
        }
        let state = live.online(guid).unwrap();
        assert!(!state.is_readable(), "{elsewhere} {here}: {state:?}");
        live.sync().unwrap();
        live.export().unwrap();
        assert!(content(disks.disk(1)) == foreign, "{elsewhere} {here}");
    }
}

#[test]
fn a_side_that_lacks_groups_is_noted_when_the_pool_is_taken_back_too() {
    let (disks, live) = Disks::create(VdevKind::Mirror, 2);
    let object = object(&live);
    let write = |seed| {
        object.write(&live.begin().unwrap(), seed << 17, &noise(1 << 17, seed)).unwrap();
        live.sync().unwrap();
    };
    write(1);
    let old = content(disks.disk(1));
    (2..6).for_each(write);
    live.close().unwrap();
    disks.disk(1).replace_content(&old);
    let opener: Arc<dyn Opener> = Arc::new(disks.clone());
    let pools = assemble(&scan(&opener, &ScanOptions::new(vec!["/sim".into()])));
    let open = |max_txg| {
        let options = OpenOptions { max_txg, ..OpenOptions::default() };
        Pool::open(&pools[0], &options).unwrap()
    };
    let newest = open(None);
    let behind: Vec<_> = newest.vdevs().missed().into_iter().map(|(leaf, _)| leaf).collect();
    assert_eq!(behind.len(), 1);
    let before = Txg(newest.uberblock().txg.0 - 1);
    let back = open(Some(before));
    let missed = back.vdevs().missed();
    assert_eq!(missed.len(), 1);
    assert_eq!(missed[0].0, behind[0]);
    assert_eq!(missed[0].1.last().map(|range| range.end), Some(before.0 + 1));
}

/// Disks one of which takes until this moment to answer.
struct SpinsUp(Disks, PathBuf, Instant);

impl Opener for SpinsUp {
    fn candidates(&self, place: &Path) -> Result<Vec<Candidate>, DeviceError> {
        self.0.candidates(place)
    }

    fn open(&self, path: &Path) -> Result<Arc<dyn Device>, DeviceError> {
        if path == self.1 {
            std::thread::sleep(self.2.saturating_duration_since(Instant::now()));
        }
        self.0.open(path)
    }
}

#[test]
fn a_disk_that_spins_up_is_waited_for() {
    let (disks, live) = Disks::create(VdevKind::Mirror, 2);
    live.export().unwrap();
    let guid = live.pool().guid();
    drop(live);
    disks.go_on_with(&[0], 5, true);
    let newest = newest(&disks).txg;
    let places = ScanOptions::new(vec!["/sim".into()]);
    let slow = |disk: usize, seconds| -> Arc<dyn Opener> {
        let end = Instant::now() + Duration::from_secs(seconds);
        Arc::new(SpinsUp(disks.clone(), format!("/sim/{disk}").into(), end))
    };
    // What the first look shows is an older state of it.
    let opener = slow(0, 20);
    let alone = search(&opener, &places, guid, Duration::ZERO);
    assert_eq!(alone.candidate.as_ref().unwrap().devices.len(), 1);
    assert!(alone.may_be_stale());
    let opener = slow(0, 5);
    let found = search(&opener, &places, guid, Duration::from_secs(30));
    assert!(found.silent.is_empty() && !found.may_be_stale());
    let pool = Pool::open(&found.candidate.unwrap(), &OpenOptions::default()).unwrap();
    assert_eq!(pool.uberblock().txg, newest);
    // One that is nothing of the pool is not waited for.
    let start = Instant::now();
    let mut more = disks.clone();
    let other = Arc::new(SimDevice::new("/sim/9", 64 << 20));
    more.0.insert("/sim/9".into(), other);
    let end = start + Duration::from_secs(60);
    let opener: Arc<dyn Opener> = Arc::new(SpinsUp(more, "/sim/9".into(), end));
    let found = search(&opener, &places, guid, Duration::from_secs(30));
    assert_eq!(found.candidate.as_ref().unwrap().devices.len(), 2);
    assert!(!found.silent.is_empty() && !found.may_be_stale());
    assert!(start.elapsed() < Duration::from_secs(20));
}

#[test]
fn a_disk_that_was_only_away_is_no_other_side() {
    let (disks, live) = Disks::create(VdevKind::Mirror, 3);
    live.export().unwrap();
    // Away, back, another one away; one that was there for a while without being complete.
    for (with, groups, exported) in
        [(vec![0, 1], 3, true), (vec![0, 1, 2], 2, false), (vec![1, 2], 3, false)]
    {
        disks.go_on_with(&with, groups, exported);
        disks.open_with(&[0, 1, 2]).unwrap().close().unwrap();
    }
    // It fails in the midst of a group, and is there again later.
    let live = disks.reopen();
    disks.disk(0).set_health(Health::FailsWrites);
    let object = object(&live);
    object.write(&live.begin().unwrap(), 0, &noise(1 << 20, 9)).unwrap();
    live.sync().unwrap();
    live.close().unwrap();
    drop((object, live));
    disks.disk(0).set_health(Health::Well);
    disks.go_on_with(&[1, 2], 3, true);
    disks.open_with(&[0, 1, 2]).unwrap().export().unwrap();
}

/// Disks that are opened anew each time, as devices of a machine are.
struct Fresh(Disks);

/// A pool on such disks.
fn opened_fresh(kind: VdevKind, count: usize) -> (Disks, Arc<LivePool>) {
    let (disks, live) = Disks::create(kind, count);
    live.export().unwrap();
    drop(live);
    let opener: Arc<dyn Opener> = Arc::new(Fresh(disks.clone()));
    let pools = assemble(&scan(&opener, &ScanOptions::new(vec!["/sim".into()])));
    let options = OpenOptions { devices: Some(opener), ..OpenOptions::default() };
    let live = LivePool::open(&pools[0], &options, WriteOptions::default()).unwrap();
    (disks, live)
}

/// An open disk.
#[derive(Debug)]
struct Handle(Arc<dyn Device>);

impl Opener for Fresh {
    fn candidates(&self, place: &Path) -> Result<Vec<Candidate>, DeviceError> {
        self.0.candidates(place)
    }

    fn open(&self, path: &Path) -> Result<Arc<dyn Device>, DeviceError> {
        Ok(Arc::new(Handle(self.0.open(path)?)))
    }
}

impl Device for Handle {
    fn path(&self) -> PathBuf {
        self.0.path()
    }
    fn size(&self) -> u64 {
        self.0.size()
    }
    fn sector_size(&self) -> u32 {
        self.0.sector_size()
    }
    fn read(&self, offset: u64, len: usize) -> Result<Bytes, DeviceError> {
        self.0.read(offset, len)
    }
    fn write(&self, offset: u64, data: &[u8]) -> Result<(), DeviceError> {
        self.0.write(offset, data)
    }
    fn flush(&self) -> Result<(), DeviceError> {
        self.0.flush()
    }
}

/// Largest piece that is read or written at once.
const PIECE: usize = 1 << 20;

/// All that the first disk holds.
fn content(disk: &SimDevice) -> Vec<u8> {
    let mut bytes = Vec::new();
    while (bytes.len() as u64) < disk.size() {
        let piece = PIECE.min(disk.size() as usize - bytes.len());
        bytes.extend(disk.read(bytes.len() as u64, piece).unwrap());
    }
    bytes
}

/// A pool whose last disk has just vanished.
struct Vanished {
    disks: Disks,
    live: Arc<LivePool>,
    object: Object,
    /// What the object holds; the last third was written without the disk.
    data: Vec<u8>,
    /// What the disk held when the first third was written, and the second.
    old: Vec<u8>,
    newest: Vec<u8>,
}

impl Vanished {
    fn made(kind: VdevKind, count: usize) -> Self {
        let (disks, live) = opened_fresh(kind, count);
        let (object, data) = (object(&live), noise(3 << 20, 5));
        let write = |place: usize| {
            let part = &data[place << 20..(place + 1) << 20];
            object.write(&live.begin().unwrap(), (place as u64) << 20, part).unwrap();
        };
        write(0);
        live.sync().unwrap();
        let old = content(disks.disk(count - 1));
        write(1);
        live.sync().unwrap();
        let newest = content(disks.disk(count - 1));
        disks.disk(count - 1).set_health(Health::Gone);
        write(2);
        Self { disks, live, object, data, old, newest }
    }
}

#[test]
fn a_lone_disk_that_comes_back_older_is_refused() {
    let Vanished { disks, live, object, data, old, newest } = Vanished::made(VdevKind::File, 1);
    assert!(live.sync().is_err());
    // It changes before it is back: the pool tries by itself, too.
    disks.disk(0).replace_content(&old);
    disks.disk(0).set_health(Health::Well);
    let start = Instant::now();
    live.retry_now();
    while start.elapsed() < Duration::from_secs(3) {
        assert!(live.suspension().is_some(), "it was written on");
        std::thread::sleep(Duration::from_millis(50));
    }
    // The right one does.
    disks.disk(0).replace_content(&newest);
    while live.suspension().is_some() {
        live.retry_now();
        assert!(start.elapsed() < Duration::from_secs(20), "it does not go on");
        std::thread::sleep(Duration::from_millis(50));
    }
    live.sync().unwrap();
    assert_eq!(stored(&live, object.id(), data.len()), data);
    live.export().unwrap();
    census(live.pool());
}

#[test]
fn a_side_of_a_mirror_that_comes_back_older_is_given_all_it_lacks() {
    let Vanished { disks, live, object, data, old, .. } = Vanished::made(VdevKind::Mirror, 2);
    live.sync().unwrap();

    disks.disk(1).replace_content(&old);
    disks.disk(1).set_health(Health::Well);
    assert!(live.vdevs().reopen());
    live.retry_now();
    let is_whole = || {
        let vdevs = live.pool().vdevs();
        vdevs.devices().len() == 2 && vdevs.missed().is_empty() && live.sync().is_ok()
    };
    wait_until("it is back, and resilvered", is_whole);
    live.export().unwrap();
    drop(live);
    disks.disk(0).set_health(Health::Gone);
    let live = disks.reopen();
    assert_eq!(stored(&live, object.id(), data.len()), data);
}

/// What a host with another id finds out about the pool before it imports it.
fn seen_by_another_host(disks: &Disks) -> Inspection {
    let opener: Arc<dyn Opener> = Arc::new(disks.clone());
    let pools = assemble(&scan(&opener, &ScanOptions::new(vec!["/sim".into()])));
    let inspector = Inspector {
        host: &HostIdentity { id: HostIdentity::of_this_machine().id ^ 1, name: "other".into() },
        loader: None,
        clock: &SystemClock,
        settings: Settings::default(),
        deadline: Duration::from_secs(10),
        max_txg: None,
        missing_log: false,
    };
    inspect(&pools[0], &inspector)
}

/// The newest uberblock of a disk.
fn newest(disks: &Disks) -> Uberblock {
    // One disk may have been copied just before the other was written to.
    let all = [0, 1].map(|number| read_uberblocks(disks.disk(number), Some(12)).unwrap());
    all.into_iter().flatten().max_by(|a, b| a.compare_recency(b)).unwrap()
}

/// A mirror that has the property, and writes activity often; none where hosts cannot be told apart.
fn shared() -> Option<(Disks, Arc<LivePool>)> {
    if HostIdentity::of_this_machine().id == 0 {
        eprintln!("skipped: this machine has no host id");
        return None;
    }
    let (disks, live) = Disks::create(VdevKind::Mirror, 2);
    live.export().unwrap();
    drop(live);
    let opener: Arc<dyn Opener> = Arc::new(disks.clone());
    let pools = assemble(&scan(&opener, &ScanOptions::new(vec!["/sim".into()])));
    let options = OpenOptions { devices: Some(opener), ..OpenOptions::default() };
    let activity_interval = Duration::from_millis(150);
    let write = WriteOptions { activity_interval, ..WriteOptions::default() };
    let live = LivePool::open(&pools[0], &options, write).unwrap();
    live.set_pool_property(PropertyInput::number("multihost", 1)).unwrap();
    live.sync().unwrap();
    Some((disks, live))
}

#[test]
fn who_was_cut_off_does_not_go_on_when_another_host_has_the_pool() {
    let Some((disks, live)) = shared() else { return };
    let object = object(&live);
    object.write(&live.begin().unwrap(), 0, &noise(1 << 20, 1)).unwrap();
    live.sync().unwrap();
    let all = |health| [0, 1].map(|number| disks.disk(number).set_health(health));
    all(Health::FailsWrites);
    // A group is under way, and one is open: the other host writes no more than these.
    object.write(&live.begin().unwrap(), 0, &noise(1 << 20, 2)).unwrap();
    assert!(live.sync().is_err());
    let held = || live.suspension().is_some_and(|now| now.error.to_string().contains("multihost"));
    wait_until("it is held", held);
    let other = disks.copied();
    let taken = other.reopen();
    taken.sync().unwrap();
    assert!(taken.pool().uberblock().txg <= live.gate().figures().open);
    taken.abandon();
    drop(taken);
    let left = newest(&other);
    for number in [0, 1] {
        disks.disk(number).replace_content(&content(other.disk(number)));
    }
    all(Health::Well);
    live.retry_now();
    wait_until("it has stopped", || live.gate().failure().is_some());
    let reason = live.gate().failure().unwrap().to_string();
    assert!(reason.contains("another host took the pool"), "{reason}");
    assert_eq!(newest(&disks), left);
    live.abandon();
}

#[test]
fn a_pool_of_several_hosts_shows_that_it_is_in_use() {
    let Some((disks, live)) = shared() else { return };
    std::thread::sleep(Duration::from_millis(1200));
    let first = newest(&disks);
    std::thread::sleep(Duration::from_millis(1200));
    let second = newest(&disks);
    assert!(second.compare_recency(&first).is_gt(), "{first:?} {second:?}");
    assert_eq!((second.txg, second.root), (first.txg, first.root));
    assert_eq!(second.activity_interval(), Some(150));
    assert_eq!(second.activity_fail_intervals(), Some(10));
    assert!(second.activity_sequence().is_some_and(|sequence| sequence > 0));
    assert!((50_000_000..5_000_000_000).contains(&second.activity_delay));
    let need = |uberblock: &Uberblock, own| activity::need(uberblock, PoolState::Active, 5, own);
    assert_eq!(need(&second, 6), Need::Check);
    let aux = |disks: &Disks| seen_by_another_host(disks).status.condition.aux;
    assert_eq!(aux(&disks), Aux::Active, "another host does not see that it is in use");

    // Writes that do not get through for too long suspend it; it goes on with them.
    let suspended_by = || live.suspension().map(|now| now.error.to_string()).unwrap_or_default();
    for number in [0, 1] {
        disks.disk(number).set_health(Health::FailsWrites);
    }
    let start = Instant::now();
    while !suspended_by().contains("multihost") {
        assert!(start.elapsed() < Duration::from_secs(20), "not suspended: {}", suspended_by());
        std::thread::sleep(Duration::from_millis(100));
    }
    for number in [0, 1] {
        disks.disk(number).set_health(Health::Well);
    }
    while live.suspension().is_some() {
        live.retry_now();
        live.vdevs().clear(None);
        assert!(start.elapsed() < Duration::from_secs(40), "it does not go on");
        std::thread::sleep(Duration::from_millis(100));
    }
    // As it is left by a host that dies.
    let died = disks.copied();
    let start = Instant::now();
    assert_eq!(aux(&died), Aux::None, "nobody uses it, and another host does not see that");
    assert!(start.elapsed() >= Duration::from_secs(3), "watched for {:?}", start.elapsed());
    // Who has looked, and finds later that it was written since, does not write.
    let opener: Arc<dyn Opener> = Arc::new(died.clone());
    let pools = assemble(&scan(&opener, &ScanOptions::new(vec!["/sim".into()])));
    let foreign = PoolCandidate { hostid: 5, ..pools[0].clone() };
    let seen = newest(&died).recency();
    let open = |watched| {
        let devices = Some(opener.clone());
        let options = OpenOptions { devices, watched: Some(watched), ..OpenOptions::default() };
        LivePool::open(&foreign, &options, WriteOptions::default())
    };
    let error = open((seen.0, seen.1 - 1, seen.2)).err().unwrap().to_string();
    assert!(error.contains("another host has written"), "{error}");
    open(seen).unwrap().abandon();
    live.set_pool_property(PropertyInput::number("multihost", 0)).unwrap();
    live.sync().unwrap();
    live.export().unwrap();
    assert_eq!(need(&newest(&disks), 6), Need::Nothing);
    census(live.pool());
}
