//! Devices that fail while a pool is written: within the redundancy, and beyond it.
//!
//! Invariant: what was acknowledged is there afterwards, whatever the disks lost that was not
//! flushed; nobody who only looks waits, and writing goes on when the devices are back.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cenote_device::{Device, DeviceError, Health, SimDevice};
use cenote_engine::cache::BlockKey;
use cenote_engine::dataset::change::PropertyInput;
use cenote_engine::object::{NewObject, Object, ObjectSet};
use cenote_engine::pool::OpenOptions;
use cenote_engine::pool::assemble::assemble;
use cenote_engine::pool::change::create;
use cenote_engine::pool::discover::{Candidate, Opener, ScanOptions, scan};
use cenote_engine::pool::group::{LivePool, WriteOptions};
use cenote_engine::vdev::{AllocationClass, LeafUnavailable, VdevState};
use cenote_format::config::{Draid, VdevConfig, VdevKind};
use cenote_format::{ObjectId, ObjectType};

use super::honest::copy;
use super::log::head;
use super::{census, leaf, noise, nothing, plan, top};

/// Simulated disks by path.
#[derive(Clone, Default)]
pub(super) struct Disks(pub(super) BTreeMap<PathBuf, Arc<SimDevice>>);

impl Opener for Disks {
    fn candidates(&self, _place: &Path) -> Result<Vec<Candidate>, DeviceError> {
        let all = self.0.keys();
        Ok(all.map(|path| Candidate { path: path.clone(), identity: None }).collect())
    }

    fn open(&self, path: &Path) -> Result<Arc<dyn Device>, DeviceError> {
        let disk = self.0.get(path).ok_or(DeviceError::Gone)?;
        Ok(disk.clone())
    }
}

impl Disks {
    /// A new pool on `count` disks.
    pub(super) fn create(kind: VdevKind, count: usize) -> (Self, Arc<LivePool>) {
        Self::create_with(kind, count, 1)
    }

    /// The same with another parity.
    pub(super) fn create_with(kind: VdevKind, count: usize, parity: u64) -> (Self, Arc<LivePool>) {
        let disks = Self::of(count, 96);
        let has_parity = matches!(kind, VdevKind::Raidz | VdevKind::Draid);
        let mut only = top(kind, has_parity.then_some(parity), disks.leaves());
        // Of five disks: two for data and one for parity, and room of one disk to spare.
        let shape = Draid { data: 2, spares: 1, groups: 4, children: None };
        only.draid = (kind == VdevKind::Draid).then_some(shape);
        let live = disks.pool(vec![(only, AllocationClass::Normal)], WriteOptions::default());
        (disks, live)
    }

    /// A new pool on disks of which each is a vdev of its own.
    pub(super) fn create_singles(count: usize, write: WriteOptions) -> (Self, Arc<LivePool>) {
        let disks = Self::of(count, 192);
        let single = |leaf| (top(VdevKind::File, None, vec![leaf]), AllocationClass::Normal);
        let live = disks.pool(disks.leaves().into_iter().map(single).collect(), write);
        (disks, live)
    }

    pub(super) fn of(count: usize, mebibytes: usize) -> Self {
        let disk = |number| {
            let path = PathBuf::from(format!("/sim/{number}"));
            let disk = SimDevice::new(path.display().to_string(), mebibytes << 20);
            (path, Arc::new(disk))
        };
        Self((0..count).map(disk).collect())
    }

    pub(super) fn leaves(&self) -> Vec<VdevConfig> {
        self.0.keys().map(|path| leaf(path)).collect()
    }

    pub(super) fn pool(
        &self,
        tops: Vec<(VdevConfig, AllocationClass)>,
        write: WriteOptions,
    ) -> Arc<LivePool> {
        let all = self.clone();
        let open = move |leaf: &VdevConfig| {
            let path = leaf.path.clone().unwrap();
            let opened = Opener::open(&all, Path::new(&path));
            opened.map_err(|error| LeafUnavailable::open_failed(error.to_string()))
        };
        create(plan("tank", tops), Arc::new(open), &OpenOptions::default(), write, nothing).unwrap()
    }

    pub(super) fn reopen(&self) -> Arc<LivePool> {
        self.try_reopen().unwrap()
    }

    pub(super) fn try_reopen(&self) -> cenote_engine::Result<Arc<LivePool>> {
        let opener: Arc<dyn Opener> = Arc::new(self.clone());
        let pools = assemble(&scan(&opener, &ScanOptions::new(vec!["/sim".into()])));
        let options = OpenOptions { devices: Some(opener), ..OpenOptions::default() };
        LivePool::open(&pools[0], &options, WriteOptions::default())
    }

    /// Disks with what is on these now, without any fault.
    pub(super) fn copied(&self) -> Self {
        Self(self.0.iter().map(|(path, disk)| (path.clone(), copy(disk))).collect())
    }

    pub(super) fn disk(&self, number: usize) -> &SimDevice {
        self.0.values().nth(number).unwrap()
    }
}

pub(super) fn object(live: &Arc<LivePool>) -> Object {
    let dataset = head(live);
    let tx = live.begin().unwrap();
    dataset.set().create_object(&tx, &NewObject::new(ObjectType::OTHER_U64, 128 << 10)).unwrap()
}

pub(super) fn wait_until(what: &str, is: impl Fn() -> bool) {
    let start = Instant::now();
    while !is() {
        assert!(start.elapsed() < Duration::from_secs(20), "not in time: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The object as the newest group has it.
pub(super) fn stored(live: &LivePool, id: ObjectId, len: usize) -> Vec<u8> {
    let catalog = live.pool().catalog();
    let head = catalog.head(&catalog.root().unwrap()).unwrap();
    let set = ObjectSet::open(live.pool().io(), head.phys.pointer, head.id.0, None).unwrap();
    set.object(id).unwrap().read_vec(0, len).unwrap()
}

#[test]
fn a_pool_waits_for_its_only_disk() {
    for health in [Health::FailsWrites, Health::Hangs, Health::Gone] {
        let (disks, live) = Disks::create(VdevKind::File, 1);
        let object = object(&live);
        let data = noise(3 << 20, 5);
        object.write(&live.begin().unwrap(), 0, &data[..1 << 20]).unwrap();
        live.sync().unwrap();
        let before = live.gate().figures().synced;

        disks.disk(0).set_health(health);
        object.write(&live.begin().unwrap(), 1 << 20, &data[1 << 20..2 << 20]).unwrap();
        let refused = live.sync().unwrap_err().to_string();
        assert!(refused.contains("suspended"), "{health:?}: {refused}");
        assert!(live.suspension().is_some());
        // Orders are refused, looking is answered.
        let refused = live.change(|_, _| Ok(())).unwrap_err().to_string();
        assert!(refused.contains("pool I/O is currently suspended"), "{refused}");
        assert!(live.export().is_err());
        assert_eq!(live.pool().uberblock().txg, before);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                object.write(&live.begin().unwrap(), 2 << 20, &data[2 << 20..]).unwrap();
            });
            let (dataset, id, gate) = (head(&live), object.id().0, live.gate());
            let waiter = scope.spawn(move || {
                let log = dataset.log().unwrap();
                log.append_later_write(&gate.begin_now().unwrap(), id, 1 << 20, 4096);
                log.commit(id)
            });
            std::thread::sleep(Duration::from_millis(300));
            assert!(!writer.is_finished() && !waiter.is_finished());
            // What the disk had not made durable is lost.
            disks.disk(0).crash();
            disks.disk(0).set_health(Health::Well);
            live.retry_now();
            writer.join().unwrap();
            waiter.join().unwrap().unwrap();
        });
        wait_until("going on", || live.suspension().is_none());
        live.sync().unwrap();
        census(live.pool());
        // A disk that is the only one misses nothing.
        assert!(live.vdevs().missed().is_empty(), "{health:?}: {:?}", live.vdevs().missed());
        live.export().unwrap();
        let id = object.id();
        drop((object, live));
        let live = disks.reopen();
        census(live.pool());
        assert!(stored(&live, id, 3 << 20) == data, "{health:?}");
    }
}

#[test]
fn failmode_continue_refuses_new_changes() {
    let (disks, live) = Disks::create(VdevKind::File, 1);
    live.set_pool_property(PropertyInput::number("failmode", 1)).unwrap();
    let object = object(&live);
    live.sync().unwrap();
    disks.disk(0).set_health(Health::FailsWrites);
    object.write(&live.begin().unwrap(), 0, &[7; 4096]).unwrap();
    assert!(live.sync().is_err());
    wait_until("suspending", || live.suspension().is_some_and(|now| now.refuses));
    let refused = live.begin().err().unwrap().to_string();
    assert!(refused.contains("pool I/O is currently suspended"), "{refused}");
    disks.disk(0).set_health(Health::Well);
    wait_until("going on", || live.suspension().is_none());
    live.sync().unwrap();
    assert_eq!(stored(&live, object.id(), 4096), [7; 4096]);
    live.export().unwrap();
    // The property is known when the pool is opened again.
    drop((object, live));
    let live = disks.reopen();
    disks.disk(0).set_health(Health::FailsWrites);
    let object = self::object(&live);
    assert!(live.sync().is_err());
    wait_until("suspending", || live.suspension().is_some_and(|now| now.refuses));
    drop(object);
    disks.disk(0).set_health(Health::Well);
    wait_until("going on", || live.suspension().is_none());
    live.export().unwrap();
}

#[test]
fn a_suspended_pool_can_be_given_up() {
    let (disks, live) = Disks::create(VdevKind::File, 1);
    let object = object(&live);
    object.write(&live.begin().unwrap(), 0, &[1; 4096]).unwrap();
    live.sync().unwrap();
    let last = live.gate().figures().synced;
    object.write(&live.begin().unwrap(), 0, &[2; 4096]).unwrap();
    disks.disk(0).set_health(Health::Hangs);
    assert!(live.sync().is_err());
    let start = Instant::now();
    assert_eq!(live.abandon(), last);
    assert!(start.elapsed() < Duration::from_secs(10));
    assert!(live.begin().is_err());
    let id = object.id();
    drop((object, live));
    disks.disk(0).crash();
    disks.disk(0).set_health(Health::Well);
    let live = disks.reopen();
    assert!(live.pool().uberblock().txg >= last);
    let set = head(&live);
    assert_eq!(set.set().object(id).unwrap().read_vec(0, 4096).unwrap(), [1; 4096]);
    census(live.pool());
    live.export().unwrap();
}

#[test]
fn a_side_that_fails_in_the_middle_is_remembered() {
    for (kind, count) in [(VdevKind::Mirror, 2), (VdevKind::Raidz, 3)] {
        for health in [Health::FailsWrites, Health::Gone, Health::Hangs] {
            let (disks, live) = Disks::create(kind, count);
            let object = object(&live);
            let data = noise(4 << 20, 3);
            object.write(&live.begin().unwrap(), 0, &data[..2 << 20]).unwrap();
            live.sync().unwrap();
            disks.disk(1).set_health(health);
            object.write(&live.begin().unwrap(), 2 << 20, &data[2 << 20..]).unwrap();
            live.sync().unwrap();
            assert!(live.suspension().is_none());
            assert_eq!(live.vdevs().missed().len(), 1, "{health:?}");
            live.export().unwrap();
            let missed = live.vdevs().missed();
            drop((object, live));
            disks.disk(1).set_health(Health::Well);
            let live = disks.reopen();
            assert_eq!(live.vdevs().condition().state, VdevState::Degraded);
            let loaded = live.vdevs().missed();
            assert_eq!(loaded[0].0, missed[0].0);
            census(live.pool());
            let leaves = live.vdevs().status().unwrap().children[0].children.clone();
            assert!(leaves.iter().all(|leaf| leaf.stats.checksum_errors == 0), "{health:?}");
            live.export().unwrap();
        }
    }
}

#[test]
fn sectors_that_cannot_be_read_suspend_nothing() {
    let (disks, live) = Disks::create(VdevKind::File, 1);
    let (bad, good) = (object(&live), object(&live));
    for object in [&bad, &good] {
        object.write(&live.begin().unwrap(), 0, &noise(2 << 20, object.id().0)).unwrap();
    }
    live.sync().unwrap();
    bad.write(&live.begin().unwrap(), 0, &noise(128 << 10, 77)).unwrap();
    good.write(&live.begin().unwrap(), 0, &noise(128 << 10, 78)).unwrap();
    // What the group needs fails after the change was accepted, and only that.
    let above = bad.pointer(1, 0).unwrap();
    assert_eq!(above.level().0, 1);
    for dva in above.dvas() {
        let start = dva.offset + (4 << 20);
        disks.disk(0).fail_range(start..start + dva.asize);
    }
    live.pool().io().pipe.cache().remove(&BlockKey::of(&above).unwrap());
    let start = Instant::now();
    live.sync().unwrap();
    assert!(start.elapsed() < Duration::from_secs(10) && live.suspension().is_none());
    live.change(|_, _| Ok(())).unwrap();
    assert_eq!(stored(&live, good.id(), 128 << 10), noise(128 << 10, 78));
    live.export().unwrap();
}
