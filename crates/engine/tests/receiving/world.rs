//! A pool on a device in a temporary directory, for receives.
//!
//! Invariant: when it is finished its space maps hold exactly what a walk finds, and zdb finds nothing.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use cenote_device::{Device, FileDevice, Mode, SimDevice};
use cenote_engine::Result;
use cenote_engine::check::{CheckOptions, Verify, check};
use cenote_engine::dataset::InventoryReader;
use cenote_engine::object::{NewObject, ObjectSet};
use cenote_engine::pool::OpenOptions;
use cenote_engine::pool::change::{NewPoolPlan, create};
use cenote_engine::pool::group::{LiveDataset, LivePool, WriteOptions};
use cenote_engine::receive::give_up_partial;
use cenote_engine::send::{Options, Sending, Since};
use cenote_engine::stream::StreamWriter;
use cenote_engine::txg::Tx;
use cenote_engine::vdev::{AllocationClass, LeafOpener, LeafUnavailable};
use cenote_format::config::{TopLevel, VdevConfig, VdevKind};
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

pub fn nothing(set: &ObjectSet, tx: &Tx) -> Result<()> {
    let master =
        set.claim_object(tx, ObjectId(1), &NewObject::new(ObjectType::MASTER_NODE, 512))?;
    cenote_engine::zap::create(&master, tx, 77, Normalization::NONE)
}

pub struct World {
    pub live: Arc<LivePool>,
    directory: Option<tempfile::TempDir>,
}

fn made(path: &Path, open: Arc<dyn LeafOpener>, write: WriteOptions) -> Arc<LivePool> {
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
        features: names.filter(|name| !LATER.contains(name)).map(str::to_owned).collect(),
        pool_properties: Vec::new(),
        properties: Vec::new(),
        encryption: None,
        command: Some(("zpool create p".into(), 0)),
        hostid: 0,
        hostname: "test".into(),
    };
    create(plan, open, &OpenOptions::default(), write, nothing).unwrap()
}

impl World {
    pub fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("d0");
        std::fs::File::create(&path).unwrap().set_len(SIZE).unwrap();
        let live = made(&path, Arc::new(open_leaf), WriteOptions::default());
        Self { live, directory: Some(directory) }
    }

    /// A pool on a disk in memory: waking threads for it would take longer than what they do.
    pub fn in_memory() -> Self {
        let disk = Arc::new(SimDevice::new("d0", SIZE as usize));
        let open = move |_: &VdevConfig| Ok(disk.clone() as Arc<dyn Device>);
        let write = WriteOptions { inline: true, ..WriteOptions::default() };
        Self { live: made(Path::new("/sim/d0"), Arc::new(open), write), directory: None }
    }

    /// Takes away what a receive may have made of a dataset, or put on top of its first snapshot. Nothing is
    /// ordered that changes nothing: groups are what most of the time goes into.
    pub fn clear(&self, dataset: &str, whole: bool) {
        let catalog = || self.live.pool().catalog();
        let Ok(head) = catalog().dataset_named(dataset) else { return };
        if head.phys.is_inconsistent() || catalog().child(&head.directory, "%recv").is_ok() {
            drop(give_up_partial(&self.live, dataset));
        }
        let orders = self.live.orders();
        let mut newer = vec![format!("{dataset}@s")];
        newer.retain(|name| catalog().dataset_named(name).is_ok());
        if whole && catalog().dataset_named(dataset).is_ok() {
            newer.push(dataset.to_owned());
        }
        let is_changed = !whole && (!newer.is_empty() || self.is_changed(dataset));
        match is_changed {
            true => orders.rollback(&format!("{dataset}@one"), &newer).unwrap(),
            false if newer.is_empty() => {}
            false => orders.destroy(&newer, false).unwrap(),
        }
    }

    /// Whether a dataset holds something else than its first snapshot.
    pub fn is_changed(&self, dataset: &str) -> bool {
        let catalog = self.live.pool().catalog();
        let pointer = |name: &str| catalog.dataset_named(name).unwrap().phys.pointer;
        pointer(dataset) != pointer(&format!("{dataset}@one"))
    }

    /// The head of a dataset, open.
    pub fn head(&self, dataset: &str) -> Arc<LiveDataset> {
        let found = self.live.pool().catalog().dataset_named(dataset).unwrap();
        self.live.open_dataset(&found).unwrap()
    }

    /// Takes a snapshot of everything written up to now.
    pub fn snapshot(&self, name: &str) {
        self.live.sync().unwrap();
        self.live.orders().snapshot(&[name.to_owned()], Vec::new()).unwrap();
    }

    /// The stream of the snapshot `to`.
    pub fn sent(&self, from: Option<&str>, to: &str, options: &Options) -> Vec<u8> {
        let catalog = self.live.pool().catalog();
        let to = catalog.dataset_named(to).unwrap();
        let since = from.map(|from| {
            let from = catalog.dataset_named(from).unwrap();
            Since::snapshot(&catalog, &to, &from).unwrap()
        });
        let sending = Sending::new(self.live.pool(), &catalog, &to, since, options).unwrap();
        let mut writer = StreamWriter::new(Vec::new());
        sending.write(&mut writer, &mut |_| Ok(())).unwrap();
        std::mem::take(writer.sink())
    }

    /// What everybody who looks is shown can be read, whatever was received.
    pub fn survey(&self) {
        let catalog = self.live.pool().catalog();
        let keys = self.live.pool().keys().as_ref();
        let shown = InventoryReader::default().next(&catalog, keys, &Default::default(), false);
        shown.unwrap();
    }

    pub fn census(&self) {
        self.live.sync().unwrap();
        let options = CheckOptions { verify: Verify::Everything, ..CheckOptions::default() };
        let report = check(self.live.pool(), &options, &mut |_| ControlFlow::Continue(())).unwrap();
        let found = (&report.findings, &report.leaked, &report.unallocated);
        assert!(report.is_clean(), "{found:#?}");
    }

    /// Exports the pool and asks zdb about it.
    pub fn finish(self) {
        for _ in 0..20 {
            self.live.sync().unwrap();
        }
        self.census();
        self.live.export().unwrap();
        drop(self.live);
        for options in [&["-bcc"][..], &["-dd"]] {
            zdb(self.directory.as_ref().unwrap().path(), options);
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

impl World {
    /// Every object of a snapshot: its number, kind, bonus, and what it holds.
    pub fn content(&self, snapshot: &str) -> Vec<Content> {
        let found = self.live.pool().catalog().dataset_named(snapshot).unwrap();
        let io = self.live.pool().io();
        content_of(&ObjectSet::open(io, found.phys.pointer, found.id.0, None).unwrap())
    }

    /// The same of a dataset whose key is loaded.
    pub fn opened(&self, snapshot: &str) -> Vec<Content> {
        let catalog = self.live.pool().catalog();
        let found = catalog.dataset_named(snapshot).unwrap();
        content_of(&catalog.object_set(&found, self.live.pool().keys().as_ref()).unwrap())
    }
}

/// An object: its number, kind, bonus with the spill block, and what it holds.
pub type Content = (u64, u8, Vec<u8>, Vec<u8>);

fn content_of(set: &ObjectSet) -> Vec<Content> {
    let (mut all, mut at) = (Vec::new(), 0);
    while let Some(id) = set.next_object(at).unwrap() {
        let object = set.object(id).unwrap();
        let dnode = object.dnode();
        let len = (object.block_count() * object.block_size()) as usize;
        let data = object.read_vec(0, len).unwrap();
        let mut bonus = dnode.bonus().to_vec();
        bonus.extend(object.spill().unwrap().into_iter().flatten());
        all.push((id.0, dnode.object_type.0, bonus, data));
        at = id.0;
    }
    all
}
