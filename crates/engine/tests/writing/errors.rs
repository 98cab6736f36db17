//! Error logs: what is lost is known in the pool's next lives, until a scrub finds it well.
//!
//! Invariant: a log tells of just what could not be read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cenote_engine::ErrorKind;
use cenote_engine::cache::BlockKey;
use cenote_engine::dataset::Table;
use cenote_engine::dataset::change::{NewDataset, read_error_scrub};
use cenote_engine::object::{NewObject, Object};
use cenote_engine::pipe::Fault;
use cenote_engine::pool::group::{LivePool, ScanKind, ScanOrder, read_error_logs};
use cenote_engine::vdev::DATA_START;
use cenote_engine::zap::{self, Value, Zap};
use cenote_format::config::VdevKind;
use cenote_format::error_log::HeadKey;
use cenote_format::objset::ObjsetKind;
use cenote_format::scan_state::{ErrorScrubState, ScanPhase};
use cenote_format::{BlockPointer, ObjectId, ObjectType};

use super::scan::finished;
use super::suspended::{Disks, object, wait_until};
use super::{census, noise, nothing};

fn lost(live: &LivePool) -> BTreeSet<Fault> {
    live.pool().io().pipe.faults().lost()
}

fn fault(live: &LivePool, object: &Object, block: u64) -> Fault {
    let catalog = live.pool().catalog();
    let head = catalog.head(&catalog.root().unwrap()).unwrap();
    Fault { objset: head.id.0, object: object.id().0, block: Some((0, block)) }
}

/// Every copy of a block shows other bytes.
fn damage(disks: &Disks, live: &LivePool, pointer: &BlockPointer) {
    for dva in pointer.dvas() {
        let from = DATA_START + dva.offset;
        disks.disk(0).corrupt_range(from..from + dva.asize, 0x55);
    }
    if let Some(key) = BlockKey::of(pointer) {
        live.pool().io().pipe.cache().remove(&key);
    }
}

fn scrub(live: &Arc<LivePool>) -> u64 {
    live.scan(ScanOrder::Begin(ScanKind::Scrub)).unwrap();
    let errors = finished(live).errors;
    live.sync().unwrap();
    errors
}

#[test]
fn what_is_lost_is_known_in_the_next_life_until_a_scrub_finds_it_well() {
    let (disks, live) = Disks::create(VdevKind::File, 1);
    let (one, two) = (object(&live), object(&live));
    for object in [&one, &two] {
        object.write(&live.begin().unwrap(), 0, &noise(1 << 20, object.id().0)).unwrap();
    }
    live.sync().unwrap();
    let (first, second) = (one.pointer(0, 3).unwrap(), two.pointer(0, 5).unwrap());
    damage(&disks, &live, &first);
    assert!(one.read_vec(3 << 17, 1 << 17).is_err());
    let met: BTreeSet<Fault> = [fault(&live, &one, 3)].into();
    assert_eq!(lost(&live), met);
    live.sync().unwrap();
    let on_disk = |live: &LivePool| read_error_logs(&live.pool().mos()).unwrap();
    assert_eq!(on_disk(&live), [met.clone(), BTreeSet::new()]);
    live.close().unwrap();
    drop((live, one, two));

    let live = disks.reopen();
    assert_eq!(lost(&live), met);
    damage(&disks, &live, &second);
    assert_eq!(scrub(&live), 2);
    let both = lost(&live);
    assert_eq!((both.len(), both.is_superset(&met)), (2, true));
    assert_eq!(on_disk(&live), [both.clone(), BTreeSet::new()]);
    live.export().unwrap();
    drop(live);

    let live = disks.reopen();
    assert_eq!(lost(&live), both);
    disks.disk(0).heal();
    // A scrub that is given up says nothing.
    live.scan(ScanOrder::Begin(ScanKind::Scrub)).unwrap();
    if live.scan(ScanOrder::Stop).is_ok() {
        live.sync().unwrap();
        assert_eq!(lost(&live), both);
    }
    assert_eq!(scrub(&live), 0);
    assert!(lost(&live).is_empty());
    assert_eq!(on_disk(&live), [BTreeSet::new(), BTreeSet::new()]);
    live.export().unwrap();
    census(live.pool());
}

/// The record of the newest scrub of the error log.
fn record(live: &LivePool) -> ErrorScrubState {
    read_error_scrub(&live.pool().mos()).unwrap().unwrap()
}

fn error_scrub_ends(live: &LivePool) -> ErrorScrubState {
    let start = Instant::now();
    while record(live).is_active() {
        assert!(start.elapsed() < Duration::from_secs(60), "{:?}", record(live));
        live.sync().unwrap();
        std::thread::sleep(Duration::from_millis(20));
    }
    live.sync().unwrap();
    record(live)
}

/// Loses blocks 2 to 4 of an object: their pointers, and all that is known to be lost, which is in the log.
fn lose_three(
    disks: &Disks,
    live: &LivePool,
    object: &Object,
) -> (Vec<BlockPointer>, BTreeSet<Fault>) {
    let pointers: Vec<_> = (2..5).map(|block| object.pointer(0, block).unwrap()).collect();
    pointers.iter().for_each(|pointer| damage(disks, live, pointer));
    for block in 2..5_u64 {
        assert!(object.read_vec(block << 17, 1 << 17).is_err());
    }
    live.sync().unwrap();
    let all = lost(live);
    assert_eq!(all.len(), 3);
    (pointers, all)
}

#[test]
fn a_scrub_of_the_error_log_reads_only_what_is_lost() {
    let (disks, live) = Disks::create(VdevKind::File, 1);
    let refused = live.scan(ScanOrder::ScrubErrors).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    live.change(|_, change| change.enable_feature("head_errlog")).unwrap();
    // Nothing is lost: nothing is begun.
    live.scan(ScanOrder::ScrubErrors).unwrap();
    assert!(read_error_scrub(&live.pool().mos()).unwrap().is_none());
    let one = object(&live);
    one.write(&live.begin().unwrap(), 0, &noise(1 << 20, 9)).unwrap();
    live.sync().unwrap();
    let (pointers, all) = lose_three(&disks, &live, &one);
    live.scan(ScanOrder::ScrubErrors).unwrap();
    let done = error_scrub_ends(&live);
    assert_eq!((done.phase, done.examined, done.errors), (ScanPhase::Finished, 3, 3));
    assert_eq!(lost(&live), all);
    // It pauses, across an import too; nothing else is scrubbed meanwhile.
    disks.disk(0).set_delay(Duration::from_millis(30));
    live.scan(ScanOrder::ScrubErrors).unwrap();
    if live.scan(ScanOrder::Pause).is_ok() && record(&live).is_active() {
        let again = live.scan(ScanOrder::Pause).unwrap_err();
        assert_eq!(again.kind(), ErrorKind::Exists, "{again}");
        let other = live.scan(ScanOrder::Begin(ScanKind::Scrub)).unwrap_err();
        assert_eq!(other.kind(), ErrorKind::Busy, "{other}");
    }
    disks.disk(0).set_delay(Duration::ZERO);
    live.close().unwrap();
    drop((live, one));
    disks.disk(0).heal();
    // If it did not pause, it does not end before it is looked at.
    let first = DATA_START + pointers[0].first_dva().unwrap().offset;
    disks.disk(0).hold_reads(std::iter::once(first..first + 1).collect());
    let live = disks.reopen();
    assert_eq!(lost(&live), all);
    disks.disk(0).hold_reads(Vec::new());
    if record(&live).is_paused() {
        live.scan(ScanOrder::ScrubErrors).unwrap();
    } else {
        error_scrub_ends(&live);
        live.scan(ScanOrder::ScrubErrors).unwrap();
    }
    let done = error_scrub_ends(&live);
    assert_eq!((done.phase, done.errors), (ScanPhase::Finished, 0), "{done:?}");
    assert!(lost(&live).is_empty());
    assert_eq!(read_error_logs(&live.pool().mos()).unwrap(), [BTreeSet::new(), BTreeSet::new()]);
    live.export().unwrap();
    census(live.pool());
}

#[test]
fn a_scrub_of_the_error_log_that_was_cut_off_forgets_what_it_had_met() {
    let (disks, live) = Disks::create(VdevKind::File, 1);
    enable(&live);
    let one = filled(&live, object(&live));
    let (pointers, all) = lose_three(&disks, &live, &one);
    // Power goes when one of three was read.
    let second = DATA_START + pointers[1].first_dva().unwrap().offset;
    let disk = disks.disk(0);
    disk.hold_reads(std::iter::once(second..second + 1).collect());
    live.scan(ScanOrder::ScrubErrors).unwrap();
    wait_until("one was read", || disk.held_reads() == 1);
    live.sync().unwrap();
    let [_, by_scan] = read_error_logs(&live.pool().mos()).unwrap();
    assert_eq!(by_scan.len(), 1);
    // What is there then is well again.
    let later = disks.copied();
    disk.hold_reads(Vec::new());
    live.close().unwrap();
    // It does not end before it is looked at.
    later.disk(0).hold_reads(std::iter::once(second..second + 1).collect());
    let live = later.reopen();
    assert_eq!(lost(&live), all);
    later.disk(0).hold_reads(Vec::new());
    let done = error_scrub_ends(&live);
    assert_eq!((done.phase, done.examined, done.errors), (ScanPhase::Finished, 3, 0));
    assert!(lost(&live).is_empty());
    assert_eq!(read_error_logs(&live.pool().mos()).unwrap(), [BTreeSet::new(), BTreeSet::new()]);
    live.export().unwrap();
    census(live.pool());
}

/// What the log has on the disks: the keys of each table by the name of its head; those that name a
/// dataset themselves under an empty name.
fn tables(live: &LivePool, log: &str) -> BTreeMap<String, Vec<String>> {
    let mos = live.pool().mos();
    let directory = Table::open(&mos, ObjectId(1)).unwrap().unwrap();
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let Some(id) = directory.number(log).unwrap().filter(|id| *id != 0) else { return found };
    for (name, value) in Table::open(&mos, ObjectId(id)).unwrap().unwrap().entries().unwrap() {
        match value.as_u64() {
            Some(table) => {
                let table = Zap::open(mos.object(ObjectId(table)).unwrap()).unwrap();
                let keys = table.entries().map(|entry| entry.unwrap().name().to_vec());
                let mut keys: Vec<_> = keys.map(|key| String::from_utf8(key).unwrap()).collect();
                keys.sort();
                found.insert(name, keys);
            }
            None => found.entry(String::new()).or_default().push(name),
        }
    }
    found
}

fn by_head<const N: usize>(heads: [(u64, &[String]); N]) -> BTreeMap<String, Vec<String>> {
    let sorted =
        |keys: &[String]| keys.iter().cloned().collect::<BTreeSet<_>>().into_iter().collect();
    heads.into_iter().map(|(head, keys)| (format!("{head:x}"), sorted(keys))).collect()
}

/// The key of block 3 of an object.
fn key(object: &Object, pointer: &BlockPointer) -> String {
    let birth = pointer.physical_birth();
    HeadKey { object: object.id().0, level: 0, block: 3, birth }.name()
}

/// Writes to an object.
fn filled(live: &Arc<LivePool>, object: Object) -> Object {
    object.write(&live.begin().unwrap(), 0, &noise(1 << 20, object.id().0)).unwrap();
    live.sync().unwrap();
    object
}

/// An object of which block 3 is lost, and logged.
fn with_loss(disks: &Disks, live: &Arc<LivePool>, object: Object) -> (Object, String) {
    let object = filled(live, object);
    let pointer = object.pointer(0, 3).unwrap();
    damage(disks, live, &pointer);
    assert!(object.read_vec(3 << 17, 1 << 17).is_err());
    live.sync().unwrap();
    let key = key(&object, &pointer);
    (object, key)
}

fn enable(live: &LivePool) {
    live.change(|_, change| change.enable_feature("head_errlog")).unwrap();
}

#[test]
fn logs_are_divided_by_heads_when_the_feature_is_enabled() {
    let (disks, live) = Disks::create(VdevKind::File, 1);
    let (one, key) = with_loss(&disks, &live, object(&live));
    let head = fault(&live, &one, 3).objset;
    let old = format!("{head:x}:{:x}:0:3", one.id().0);
    assert_eq!(tables(&live, "errlog_last"), [(String::new(), vec![old.clone()])].into());
    enable(&live);
    let divided = by_head([(head, &[key])]);
    assert_eq!(tables(&live, "errlog_last"), divided);

    // Earlier versions of this program left the old form: the next import mends that.
    let name = old.clone();
    live.change(move |_, change| {
        let directory = Table::open(change.mos, ObjectId(1))?.unwrap();
        let log = change.mos.object(ObjectId(directory.number("errlog_last")?.unwrap()))?;
        zap::update(&log, change.tx, name.as_bytes(), &Value::of_bytes(&[0])?)?;
        zap::remove(&log, change.tx, format!("{head:x}").as_bytes())
    })
    .unwrap();
    assert_eq!(tables(&live, "errlog_last"), [(String::new(), vec![old])].into());
    live.close().unwrap();
    drop((live, one));
    let live = disks.reopen();
    assert_eq!(lost(&live).len(), 1);
    live.sync().unwrap();
    assert_eq!(tables(&live, "errlog_last"), divided);
    assert_eq!(scrub(&live), 1);
    disks.disk(0).heal();
    assert_eq!(scrub(&live), 0);
    assert!(tables(&live, "errlog_last").is_empty());
    live.export().unwrap();
}

/// A new object of a dataset.
fn object_of(live: &Arc<LivePool>, name: &str) -> Object {
    let dataset = live.open_dataset(&live.pool().catalog().dataset_named(name).unwrap()).unwrap();
    let new = NewObject::new(ObjectType::OTHER_U64, 128 << 10);
    dataset.set().create_object(&live.begin().unwrap(), &new).unwrap()
}

#[test]
fn logs_follow_heads_that_go_and_exchange_content() {
    let (disks, live) = Disks::create(VdevKind::File, 1);
    enable(&live);
    let id = |name: &str| live.pool().catalog().dataset_named(name).unwrap().id;
    let parent = live.pool().catalog().root().unwrap().id;
    for name in ["a", "b"] {
        live.change(move |live, change| {
            let new = NewDataset { parent, name, ..NewDataset::default() };
            live.make_dataset(change, &new, ObjsetKind::Zfs, nothing).map(|_| ())
        })
        .unwrap();
    }
    let (a, b) = (id("tank/a"), id("tank/b"));
    let (one, old) = with_loss(&disks, &live, object_of(&live, "tank/a"));
    let early = filled(&live, object_of(&live, "tank/a"));
    live.change(move |_, change| change.create_snapshot(a, "s", &[])).unwrap();
    let (two, new) = with_loss(&disks, &live, object_of(&live, "tank/a"));
    let (other, of_b) = with_loss(&disks, &live, object_of(&live, "tank/b"));
    let (both, of_b) = ([old.clone(), new], [of_b]);
    assert_eq!(tables(&live, "errlog_last"), by_head([(a.0, &both), (b.0, &of_b)]));

    // What a rollback throws away is not lost any more, what it keeps is; also what is found in its group.
    let pointer = early.pointer(0, 3).unwrap();
    let kept = [old, key(&early, &pointer)];
    damage(&disks, &live, &pointer);
    drop((one, two, other));
    live.close_dataset(a).unwrap();
    live.change(move |live, change| {
        assert!(early.read_vec(3 << 17, 1 << 17).is_err());
        live.rollback_dataset(change, a)
    })
    .unwrap();
    assert_eq!(tables(&live, "errlog_last"), by_head([(a.0, &kept), (b.0, &of_b)]));
    assert_eq!(lost(&live).len(), 3);

    live.orders().destroy(&["tank/b".to_owned()], false).unwrap();
    assert_eq!(tables(&live, "errlog_last"), by_head([(a.0, &kept)]));
    assert!(lost(&live).iter().all(|fault| fault.objset == a.0));

    // The snapshot belongs to the clone afterwards, and its blocks with it.
    live.orders().clone_snapshot("tank/a@s", "tank/c", Vec::new(), 0).unwrap();
    let clone = id("tank/c");
    live.orders().promote("tank/c").unwrap();
    assert_eq!(tables(&live, "errlog_last"), by_head([(a.0, &[]), (clone.0, &kept)]));
    live.orders().destroy(&["tank/a".to_owned()], false).unwrap();
    assert_eq!(tables(&live, "errlog_last"), by_head([(clone.0, &kept)]));
    disks.disk(0).heal();
    assert_eq!(scrub(&live), 0);
    assert!(tables(&live, "errlog_last").is_empty() && lost(&live).is_empty());
    live.export().unwrap();
    census(live.pool());
}
