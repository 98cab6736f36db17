//! Datasets of a pool on devices: snapshots, clones, destruction, checked by our own census after
//! every step and by `zdb`, where it is installed, at the end.
//!
//! Invariant: after every group the space maps hold exactly what the walk finds.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod keys;
mod older;
mod orders;
mod programs;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use cenote_device::{Device, FileDevice, Mode};
use cenote_engine::Result;
use cenote_engine::check::{CheckOptions, Verify, check};
use cenote_engine::dataset::change::{FreeingPass, MosChange, NewDataset};
use cenote_engine::dataset::{
    DatasetName, InventoryReader, PropertyReader, PropertyValue, Surroundings,
};
use cenote_engine::job::Budget;
use cenote_engine::object::{NewObject, ObjectSet};
use cenote_engine::pool::OpenOptions;
use cenote_engine::pool::change::{NewPoolPlan, create};
use cenote_engine::pool::group::{LivePool, WriteOptions};
use cenote_engine::txg::Tx;
use cenote_engine::vdev::{AllocationClass, LeafUnavailable};
use cenote_format::config::{TopLevel, VdevConfig, VdevKind};
use cenote_format::objset::ObjsetKind;
use cenote_format::zap::Normalization;
use cenote_format::{ObjectId, ObjectType, feature};

/// Bytes of the device.
const SIZE: u64 = 256 << 20;
/// Features that came after OpenZFS 2.1.
const LATER: [&str; 14] = [
    "zilsaxattr",
    "head_errlog",
    "blake3",
    "block_cloning",
    "vdev_zaps_v2",
    "redaction_list_spill",
    "raidz_expansion",
    "fast_dedup",
    "longname",
    "large_microzap",
    "block_cloning_endian",
    "dynamic_gang_header",
    "physical_rewrite",
    "draid_failure_domains",
];

fn open_leaf(config: &VdevConfig) -> std::result::Result<Arc<dyn Device>, LeafUnavailable> {
    let path: PathBuf = config.path.clone().unwrap().into();
    match FileDevice::open(path, Mode::ReadWrite) {
        Ok(device) => Ok(Arc::new(device)),
        Err(error) => Err(LeafUnavailable::open_failed(error.to_string())),
    }
}

fn nothing(set: &ObjectSet, tx: &Tx) -> Result<()> {
    let master =
        set.claim_object(tx, ObjectId(1), &NewObject::new(ObjectType::MASTER_NODE, 512))?;
    cenote_engine::zap::create(&master, tx, 77, Normalization::NONE)
}

struct World {
    live: Arc<LivePool>,
    directory: tempfile::TempDir,
    survey: std::cell::RefCell<InventoryReader>,
}

impl World {
    fn new(without: &[&str]) -> Self {
        Self::sized(SIZE, without)
    }

    fn sized(size: u64, without: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("d0");
        std::fs::File::create(&path).unwrap().set_len(size).unwrap();
        let leaf = VdevConfig {
            kind: VdevKind::File,
            path: Some(path.display().to_string()),
            top: Some(TopLevel { ashift: 12, ..TopLevel::default() }),
            ..VdevConfig::default()
        };
        let names = feature::FEATURES.iter().map(|feature| feature.name());
        let plan = NewPoolPlan {
            name: "p".into(),
            temporary_name: None,
            version: 5000,
            tops: vec![(leaf, AllocationClass::Normal)],
            spares: Vec::new(),
            caches: Vec::new(),
            features: names
                .filter(|name| !LATER.contains(name) && !without.contains(name))
                .map(str::to_owned)
                .collect(),
            pool_properties: Vec::new(),
            properties: Vec::new(),
            encryption: None,
            command: Some(("zpool create p".into(), 0)),
            hostid: 0,
            hostname: "test".into(),
        };
        let options = OpenOptions::default();
        let write = WriteOptions::default();
        let live = create(plan, Arc::new(open_leaf), &options, write, nothing).unwrap();
        Self { live, directory, survey: Default::default() }
    }

    fn change<T: Send + 'static>(
        &self,
        work: impl FnOnce(&MosChange<'_>) -> Result<T> + Send + 'static,
    ) -> T {
        self.live
            .change(move |live, change| {
                let made = work(change)?;
                live.wake_freeing();
                Ok(made)
            })
            .unwrap()
    }

    /// What is known of all datasets, where only what was written since the last time is read again,
    /// is what a reading of everything finds.
    fn survey(&self, after: &str) {
        let pool = self.live.pool();
        let (catalog, changed) = pool.take_changed();
        let keys = pool.keys().as_ref();
        let inventory = self.survey.borrow_mut().next(&catalog, keys, &changed, false).unwrap();
        let around = Surroundings::new(pool.capacity(), keys, "");
        let reader = PropertyReader::new(&catalog, pool.capacity(), keys, "");
        let mut read = Vec::new();
        for listed in catalog.list(&catalog.root().unwrap()).unwrap() {
            match reader.all(&listed) {
                Ok(all) => read.push((listed.name().clone(), all)),
                Err(error) => println!("{}: {error}", listed.name()),
            }
        }
        let known =
            inventory.all().map(|one| (one.name().clone(), one.properties(&around).unwrap()));
        let known: Vec<_> = known.collect();
        let names = |all: &[(DatasetName, Vec<PropertyValue>)]| -> Vec<String> {
            all.iter().map(|(name, _)| name.to_string()).collect()
        };
        assert_eq!(names(&known), names(&read), "after {after}");
        for ((name, known), (_, read)) in known.iter().zip(&read) {
            assert_eq!(known, read, "{name} after {after}");
        }
        for known in inventory.all() {
            let found = inventory.find(&known.name().to_string()).unwrap();
            assert_eq!(found.name(), known.name());
            if let Some(facts) = known.facts() {
                let permissions = catalog.permissions(&known.entry().directory).unwrap();
                assert_eq!(*known.entry().permissions, permissions, "{}", known.name());
                assert_eq!(facts.holds, catalog.holds(&facts.dataset).unwrap());
            }
        }
    }

    fn id(&self, name: &str) -> ObjectId {
        self.live.pool().catalog().dataset_named(name).unwrap().id
    }

    fn filesystem(&self, name: &'static str) {
        let catalog = self.live.pool().catalog();
        let parent = catalog.root().unwrap().id;
        self.live
            .change(move |live, change| {
                let new = NewDataset { parent, name, ..NewDataset::default() };
                live.make_dataset(change, &new, ObjsetKind::Zfs, nothing).map(|_| ())
            })
            .unwrap();
    }

    /// Writes `len` bytes of noise into a new object of a dataset.
    fn write(&self, name: &str, seed: u64, len: usize) -> ObjectId {
        let dataset = self.live.pool().catalog().dataset_named(name).unwrap();
        let set = self.live.open_dataset(&dataset).unwrap();
        let tx = self.live.begin().unwrap();
        let new = NewObject::new(ObjectType::OTHER_U64, 4096);
        let object = set.set().create_object(&tx, &new).unwrap();
        object.write(&tx, 0, &noise(len, seed)).unwrap();
        object.id()
    }

    fn overwrite(&self, name: &str, object: ObjectId, offset: u64, seed: u64, len: usize) {
        let dataset = self.live.pool().catalog().dataset_named(name).unwrap();
        let set = self.live.open_dataset(&dataset).unwrap();
        let tx = self.live.begin().unwrap();
        set.set().object(object).unwrap().write(&tx, offset, &noise(len, seed)).unwrap();
    }

    fn close(&self, name: &str) {
        self.live.close_dataset(self.id(name)).unwrap();
    }

    fn snapshot(&self, name: &'static str, snapshot: &'static str) {
        self.live.sync().unwrap();
        let head = self.id(name);
        self.change(move |change| change.create_snapshot(head, snapshot, &[]));
        self.census();
    }

    fn census(&self) {
        self.live.sync().unwrap();
        let options = CheckOptions { verify: Verify::Everything, ..CheckOptions::default() };
        let report = check(self.live.pool(), &options, &mut |_| ControlFlow::Continue(())).unwrap();
        let found = (&report.findings, &report.leaked, &report.unallocated);
        assert!(report.is_clean(), "{found:#?}");
    }

    fn read(&self, name: &str, object: ObjectId, len: usize) -> Vec<u8> {
        let dataset = self.live.pool().catalog().dataset_named(name).unwrap();
        let io = self.live.pool().io();
        let set = ObjectSet::open(io, dataset.phys.pointer, dataset.id.0, None).unwrap();
        set.object(object).unwrap().read_vec(0, len).unwrap()
    }

    /// Waits until nothing waits to be freed.
    fn settle(&self) {
        for _ in 0..20 {
            self.live.sync().unwrap();
        }
        let catalog = self.live.pool().catalog();
        let root = catalog.root().unwrap();
        let hidden = catalog.all_children(&root).unwrap();
        let free = hidden.iter().find(|child| child.component() == "$FREE").unwrap();
        assert_eq!(free.phys.used_bytes, 0);
        let waiting = ["bptree_obj", "com.delphix:deleted_clones"];
        let directory = catalog.object_directory().unwrap();
        assert!(waiting.iter().all(|name| directory.number(name).unwrap().is_none()));
    }

    /// Exports the pool and asks zdb about it.
    fn finish(self) {
        self.settle();
        self.census();
        self.live.export().unwrap();
        drop(self.live);
        for options in [&["-bcc"][..], &["-dd"], &["-y"]] {
            zdb(self.directory.path(), options);
        }
    }
}

fn zdb(directory: &Path, options: &[&str]) {
    let found = Command::new("zdb")
        .arg("-e")
        .args(options)
        .args(["-p".as_ref(), directory.as_os_str(), "p".as_ref()])
        .output();
    let Ok(output) = found else {
        eprintln!("skipped: zdb is not installed");
        return;
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{options:?}: {text}");
    for word in ["leaked space", "mismatch", "error:", "cannot", "claims", "ERROR", "incorrect"] {
        assert!(!text.contains(word), "{options:?}: {word}: {text}");
    }
}

/// Bytes that do not compress.
fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.extend_from_slice(&state.to_le_bytes());
    }
    out.truncate(len);
    out
}

#[test]
fn snapshots_and_clones_come_and_go() {
    for without in [&[][..], &["livelist"], &["async_destroy", "livelist", "empty_bpobj"]] {
        let world = World::new(without);
        world.filesystem("a");
        let object = world.write("p/a", 1, 400_000);
        world.snapshot("p/a", "one");
        world.overwrite("p/a", object, 100_000, 2, 50_000);
        world.write("p/a", 3, 100_000);
        world.snapshot("p/a", "two");
        world.overwrite("p/a", object, 200_000, 4, 50_000);
        world.census();
        let (head, one, two) = (world.id("p/a"), world.id("p/a@one"), world.id("p/a@two"));
        world.change(move |change| change.create_bookmark(head, "mark", one));
        let parent = world.live.pool().catalog().root().unwrap().id;
        world.change(move |change| {
            let new = NewDataset { parent, name: "c", origin: Some(one), ..NewDataset::default() };
            change.create_dataset(&new).map(|_| ())
        });
        world.census();
        world.overwrite("p/c", object, 0, 5, 30_000);
        world.census();
        world.overwrite("p/c", object, 0, 6, 20_000);
        world.snapshot("p/c", "own");
        world.overwrite("p/c", object, 350_000, 7, 20_000);
        world.census();
        let mut expected = noise(400_000, 1);
        expected[..30_000].copy_from_slice(&noise(30_000, 5));
        expected[..20_000].copy_from_slice(&noise(20_000, 6));
        assert!(world.read("p/c@own", object, 400_000) == expected);
        assert!(world.read("p/a@one", object, 400_000) == noise(400_000, 1));

        world.close("p/c");
        world.close("p/a");
        let clone = world.id("p/c");
        world.change(move |change| change.promote(clone));
        world.census();
        assert_eq!(world.id("p/c@one"), one);
        world.change(move |change| change.rollback(head));
        world.census();
        world.change(move |change| change.destroy_snapshot(two, false));
        world.census();
        // The former parent is a clone now, and goes.
        world.change(move |change| change.destroy_head(head));
        world.census();
        let own = world.id("p/c@own");
        world.change(move |change| change.destroy_snapshot(one, false));
        world.census();
        world.change(move |change| change.destroy_snapshot(own, false));
        world.census();
        world.finish();
    }
}

#[test]
fn large_datasets_are_destroyed_in_portions() {
    let world = World::new(&[]);
    world.filesystem("big");
    for seed in 0..40 {
        world.write("p/big", seed, 200_000);
    }
    world.live.sync().unwrap();
    world.close("p/big");
    let head = world.id("p/big");
    // Without waking the background: each portion is asked for here.
    world.live.change(move |_, change| change.destroy_head(head)).unwrap();
    let mut portions = 0;
    loop {
        let freed = world
            .live
            .change(|_, change| {
                change.process_async_destroy(&mut FreeingPass::default(), Budget::blocks(37))
            })
            .unwrap();
        assert!(freed.trouble.is_none());
        world.census();
        portions += 1;
        if freed.finished {
            break;
        }
    }
    assert!(portions > 20, "{portions}");
    world.finish();
}

#[test]
fn a_full_pool_goes_back() {
    let world = World::new(&[]);
    world.filesystem("a");
    let object = world.write("p/a", 1, 400_000);
    world.snapshot("p/a", "one");
    let is_full = || world.live.change(|_, change| Ok(change.hooks.check_room().is_err())).unwrap();
    for seed in 2.. {
        world.write("p/a", seed, 4 << 20);
        world.live.sync().unwrap();
        if is_full() {
            break;
        }
        assert!(seed < 100, "the pool has no end");
    }
    world.overwrite("p/a", object, 0, 1000, 100_000);
    world.close("p/a");
    let orders = world.live.orders().given_by("zfs rollback p/a@one", 0);
    orders.rollback("p/a@one", &[]).unwrap();
    assert!(world.read("p/a", object, 400_000) == noise(400_000, 1));
    world.settle();
    assert!(!is_full());
    world.finish();
}
