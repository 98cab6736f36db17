//! Deduplicated blocks: what the tables say is what the pointers say, whatever is written and freed.
//!
//! Invariant: after every group each entry has as many references as there are pointers to its
//! copies, the histograms are those of the entries, and tables without entries are gone.

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_engine::dataset::Table;
use cenote_engine::object::NewObject;
use cenote_engine::pool::OpenOptions;
use cenote_engine::pool::change::{NewPoolPlan, create};
use cenote_engine::pool::group::{DatasetPolicy, LiveDataset, LivePool, WriteOptions};
use cenote_engine::vdev::AllocationClass;
use cenote_engine::zap::Zap;
use cenote_format::config::VdevKind;
use cenote_format::ddt::{self, CHECKSUMS, Class, Key, LogHeader, Statistics, Value};
use cenote_format::{BlockPointer, ObjectId, ObjectType};

use super::{census, devices, make, noise, nothing, open_leaf, plan, top, zdb};

/// Bytes of a record.
const RECORD: u64 = 8192;

pub(super) struct Files {
    pub(super) live: Arc<LivePool>,
    pub(super) dataset: Arc<LiveDataset>,
    pub(super) files: BTreeMap<ObjectId, Vec<u8>>,
}

impl Files {
    pub(super) fn new(live: Arc<LivePool>) -> Self {
        let catalog = live.pool().catalog();
        let head = catalog.head(&catalog.root().unwrap()).unwrap();
        let dataset = live.open_dataset(&head).unwrap();
        Self { live, dataset, files: BTreeMap::new() }
    }

    pub(super) fn dedup(&self, value: u64, copies: u8, compression: u64) {
        let policy = self.dataset.policy();
        let policy = DatasetPolicy { dedup: value, copies, compression, ..policy };
        self.dataset.set_policy(policy);
    }

    /// A new file of these contents, by record.
    pub(super) fn write(&mut self, records: impl IntoIterator<Item = u64>) -> ObjectId {
        let new = NewObject::new(ObjectType::PLAIN_FILE, RECORD);
        let tx = self.live.begin().unwrap();
        let file = self.dataset.set().create_object(&tx, &new).unwrap();
        let data: Vec<u8> = records.into_iter().flat_map(record).collect();
        file.write(&tx, 0, &data).unwrap();
        self.files.insert(file.id(), data);
        file.id()
    }

    pub(super) fn change(&mut self, file: ObjectId, at: u64, seed: u64) {
        let tx = self.live.begin().unwrap();
        let data = record(seed);
        self.dataset.set().object(file).unwrap().write(&tx, at * RECORD, &data).unwrap();
        let start = (at * RECORD) as usize;
        self.files.get_mut(&file).unwrap()[start..start + data.len()].copy_from_slice(&data);
    }

    pub(super) fn remove(&mut self, file: ObjectId) {
        let tx = self.live.begin().unwrap();
        self.dataset.set().free_object(&tx, file).unwrap();
        self.files.remove(&file);
    }

    /// Everything reads back; tables and pointers agree. The totals of the tables.
    fn check(&self) -> Statistics {
        self.live.sync().unwrap();
        census(self.live.pool());
        let mut pointers: BTreeMap<([u64; 2], u64), u64> = BTreeMap::new();
        for (id, data) in &self.files {
            let object = self.dataset.set().object(*id).unwrap();
            assert!(object.read_vec(0, data.len()).unwrap() == *data, "object {id} differs");
            let last = (data.len() as u64).div_ceil(RECORD).saturating_sub(1);
            for pointer in object.pointers(0, last).unwrap().iter().filter(|bp| bp.is_dedup()) {
                let address = [pointer.words[0], pointer.words[1]];
                *pointers.entry((address, pointer.physical_birth().0)).or_default() += 1;
            }
        }
        let pool = self.live.pool();
        let catalog = pool.catalog();
        let (mos, directory) = (catalog.mos(), catalog.object_directory().unwrap());
        let statistics = directory.number(ddt::STATISTICS).unwrap().unwrap_or(0);
        let statistics = Table::open(mos, ObjectId(statistics)).unwrap();
        let mut total = Statistics::default();
        for (checksum, id) in CHECKSUMS {
            let mut entries = 0;
            let mut tables = 0;
            let own = directory.number(&ddt::directory_name(checksum)).unwrap();
            let own = own.map(|own| Table::open(mos, ObjectId(own)).unwrap().unwrap());
            let place = own.as_ref().unwrap_or(&directory);
            if let Some(own) = &own {
                assert_eq!(own.number(ddt::KEY_VERSION).unwrap(), Some(ddt::FAST_VERSION));
                let log = |index| own.number(&ddt::log_name(checksum, index)).unwrap().unwrap();
                let header = |index| {
                    let dnode = mos.dnode(ObjectId(log(index))).unwrap();
                    LogHeader::decode(dnode.bonus()).unwrap()
                };
                let [first, second] = [header(0), header(1)];
                assert!(first.flushing != second.flushing && first.length + second.length == 0);
                tables += 1;
            }
            for class in Class::ALL {
                let name = ddt::table_name(checksum, class);
                let Some(object) = place.number(&name).unwrap() else { continue };
                tables += 1;
                let mut histogram = vec![Statistics::default(); ddt::BUCKETS];
                for entry in Zap::open(mos.object(ObjectId(object)).unwrap()).unwrap().entries() {
                    let entry = entry.unwrap();
                    let key = Key::from_words(entry.key.words().try_into().unwrap());
                    let value = Value::decode(entry.value.raw(), own.is_some()).unwrap();
                    let wanted =
                        if value.references() == 1 { Class::Unique } else { Class::Duplicate };
                    assert_eq!(class, wanted);
                    let slots = match value {
                        Value::Legacy(slots) => slots.to_vec(),
                        Value::Flat(slot, since) => {
                            assert_ne!(since, 0);
                            vec![slot]
                        }
                    };
                    for slot in slots.iter().filter(|slot| slot.is_used()) {
                        let found = pointers.remove(&(slot.addresses[0], slot.birth.0));
                        assert_eq!(found, Some(slot.references), "{key:x?}");
                        let pointer: BlockPointer = key.pointer(slot, id);
                        assert!(pointer.validate().is_ok());
                    }
                    let ratio = |vdev| pool.vdevs().deflate_ratio(vdev);
                    let (bucket, sum) = Statistics::of(&key, &slots[..], ratio).unwrap();
                    histogram[bucket].add(&sum);
                    entries += 1;
                }
                let words = statistics.as_ref().unwrap().numbers_of(&name).unwrap().unwrap();
                assert_eq!(ddt::histogram(&words).unwrap(), histogram, "{name}");
                histogram.iter().for_each(|bucket| total.add(bucket));
            }
            assert!(entries > 0 || tables == 0, "{checksum} has empty tables");
        }
        assert!(pointers.is_empty(), "in no table: {pointers:x?}");
        assert_eq!(pool.space().unwrap().dedup, total);
        total
    }
}

fn record(seed: u64) -> Vec<u8> {
    // Most of it compresses.
    let mut data = noise(RECORD as usize / 4, seed + 1);
    data.resize(RECORD as usize, b'x');
    data
}

#[test]
fn tables_follow_what_is_written_and_freed() {
    let directory = tempfile::tempdir().unwrap();
    let mut leaves = devices(directory.path(), 3).into_iter();
    let mut file = || top(VdevKind::File, None, vec![leaves.next().unwrap()]);
    let (normal, dedup) = (AllocationClass::Normal, AllocationClass::Dedup);
    let tops = vec![(file(), normal), (file(), dedup), (file(), normal)];
    let mut files = Files::new(make("dd", tops, nothing));
    files.dedup(1, 1, 15);
    // Equal blocks in one group, and in one file.
    let first = files.write((0..40).chain(0..20));
    let second = files.write(10..30);
    let total = files.check();
    assert_eq!((total.blocks, total.referenced_blocks), (40, 80));
    // In later groups; other sizes and another number of copies are other copies.
    let third = files.write(35..50);
    let total = files.check();
    assert_eq!((total.blocks, total.referenced_blocks), (50, 95));
    files.dedup(0x101, 2, 2);
    let fourth = files.write(0..10);
    let fifth = files.write(5..10);
    let total = files.check();
    assert_eq!((total.blocks, total.referenced_blocks), (60, 110));
    files.dedup(1, 2, 15);
    let sixth = files.write(0..10);
    let total = files.check();
    assert_eq!((total.blocks, total.referenced_blocks), (70, 120));
    // The last reference goes and comes back in one group, and a block changes to what it is.
    files.dedup(8, 1, 15);
    files.change(third, 14, 200);
    let seventh = files.write([49, 49]);
    files.change(first, 3, 3);
    files.change(second, 0, 25);
    let total = files.check();
    assert_eq!((total.blocks, total.referenced_blocks), (71, 122));
    for value in [0x10d, 11, 0x10c] {
        files.dedup(value, 1, 15);
        files.write(300..320);
        files.write(310..330);
        files.live.sync().unwrap();
    }
    // Zeros are holes even without compression.
    files.dedup(1, 1, 2);
    let holes = files.write([]);
    let tx = files.live.begin().unwrap();
    let zeros = vec![0; 2 * RECORD as usize];
    files.dataset.set().object(holes).unwrap().write(&tx, 0, &zeros).unwrap();
    drop(tx);
    let total = files.check();
    assert_eq!((total.blocks, total.referenced_blocks), (71 + 90, 122 + 120));
    // Not deduplicated any more: what there was stays.
    files.dedup(2, 1, 15);
    files.write(0..40);
    files.check();
    files.remove(second);
    files.remove(fourth);
    files.remove(seventh);
    files.check();
    files.remove(first);
    files.remove(third);
    files.remove(fifth);
    files.remove(sixth);
    let total = files.check();
    assert_eq!((total.blocks, total.referenced_blocks), (90, 120));
    // Many entries: tables of several blocks.
    files.dedup(1, 1, 15);
    let many = files.write(1000..4000);
    files.check();
    let again = files.write((1000..4000).rev());
    let total = files.check();
    assert_eq!((total.blocks, total.referenced_blocks), (3090, 6120));
    files.remove(many);
    files.check();
    files.live.export().unwrap();
    drop(files.live);
    zdb(directory.path(), "dd");
    let live = super::log::reopen(directory.path());
    let written = files.files;
    let mut files = Files::new(live);
    files.files = written;
    files.check();
    files.remove(again);
    for file in files.files.keys().copied().collect::<Vec<_>>() {
        if files.files.contains_key(&file) {
            files.remove(file);
        }
    }
    assert_eq!(files.check(), Statistics::default());
    files.live.export().unwrap();
    drop(files.live);
    zdb(directory.path(), "dd");
}

#[test]
fn entries_of_fast_dedup_are_given_more_copies() {
    let directory = tempfile::tempdir().unwrap();
    let leaves = devices(directory.path(), 3).into_iter();
    let tops = leaves.map(|leaf| (top(VdevKind::File, None, vec![leaf]), AllocationClass::Normal));
    let mut features = plan("fast", Vec::new()).features;
    features.push("fast_dedup".to_owned());
    let plan = NewPoolPlan { features, ..plan("fast", tops.collect()) };
    let options = OpenOptions::default();
    let opener = Arc::new(open_leaf);
    let live = create(plan, opener, &options, WriteOptions::default(), nothing).unwrap();
    let mut files = Files::new(live);
    files.dedup(1, 1, 15);
    let first = files.write(0..40);
    let second = files.write(10..30);
    let single = files.check();
    assert_eq!((single.blocks, single.referenced_blocks), (40, 60));
    // Half of the entries get a second copy, once.
    files.dedup(0x101, 2, 15);
    let third = files.write(0..20);
    let double = files.check();
    assert_eq!((double.blocks, double.referenced_blocks), (40, 80));
    assert_eq!(double.dsize, single.dsize / 2 * 3);
    let fourth = files.write((0..20).chain(100..105));
    let more = files.check();
    assert_eq!((more.blocks, more.referenced_blocks), (45, 105));
    assert_eq!(more.dsize, double.dsize + 10 * single.dsize / 40);
    // Whoever wants fewer is given what there is; a third copy comes behind two.
    files.dedup(1, 1, 15);
    let fifth = files.write(0..3);
    assert_eq!(files.check().dsize, more.dsize);
    files.dedup(1, 3, 15);
    let sixth = files.write(0..5);
    let triple = files.check();
    assert_eq!((triple.blocks, triple.dsize), (45, more.dsize + 5 * single.dsize / 40));
    // Pointers with all copies go; the copies stay with the entry.
    for file in [third, fourth, fifth, sixth] {
        files.remove(file);
    }
    let less = files.check();
    assert_eq!((less.blocks, less.referenced_blocks), (40, 60));
    assert_eq!(less.dsize, double.dsize + 5 * single.dsize / 40);
    files.live.export().unwrap();
    drop(files.live);
    let live = super::log::reopen(directory.path());
    let written = files.files;
    let mut files = Files::new(live);
    files.files = written;
    assert_eq!(files.check(), less);
    files.remove(first);
    files.remove(second);
    assert_eq!(files.check(), Statistics::default());
    files.dedup(0x10c, 1, 15);
    files.write([1, 2, 1]);
    let last = files.check();
    assert_eq!((last.blocks, last.referenced_blocks), (2, 3));
    files.live.export().unwrap();
}
