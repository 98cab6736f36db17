//! Pools created and written here: checked by our own census, and by `zdb` where it is installed.
//!
//! Invariant: after every group the space maps hold exactly what the walk finds, and what was
//! written is read back from the disks alone.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod apart;
mod bases;
mod beside;
mod cached;
mod clones;
mod damaged;
mod damaged_removal;
mod damaged_tables;
mod dedup;
mod encrypted;
mod ending;
mod errors;
mod evacuation;
mod expansion;
mod expansion_both_ways;
mod foreign;
mod honest;
mod log;
mod log_of_snapshot;
mod members;
mod missing;
mod openings;
mod overwritten;
mod properties;
mod rebuild;
mod removal;
mod scan;
mod split;
mod suspended;
mod sweep;
mod waits;
mod worn;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use cenote_device::{Device, FileDevice, Mode};
use cenote_engine::check::{CheckOptions, Report, Verify, check};
use cenote_engine::object::{NewObject, ObjectSet};
use cenote_engine::pool::change::{NewPoolPlan, create};
use cenote_engine::pool::group::{LivePool, WriteOptions};
use cenote_engine::pool::{OpenOptions, Pool};
use cenote_engine::txg::Tx;
use cenote_engine::vdev::{AllocationClass, LeafUnavailable};
use cenote_format::config::{TopLevel, VdevConfig, VdevKind};
use cenote_format::zap::Normalization;
use cenote_format::{ObjectId, ObjectType, feature};

/// Bytes of a device.
const SIZE: u64 = 128 << 20;

fn leaf(path: &Path) -> VdevConfig {
    VdevConfig {
        kind: VdevKind::File,
        path: Some(path.display().to_string()),
        ..VdevConfig::default()
    }
}

fn top(kind: VdevKind, nparity: Option<u64>, leaves: Vec<VdevConfig>) -> VdevConfig {
    let recorded = TopLevel { ashift: 12, ..TopLevel::default() };
    match kind {
        VdevKind::File => VdevConfig { top: Some(recorded), ..leaves.into_iter().next().unwrap() },
        kind => VdevConfig {
            kind,
            nparity,
            top: Some(recorded),
            children: Some(leaves),
            ..VdevConfig::default()
        },
    }
}

fn devices(directory: &Path, count: usize) -> Vec<VdevConfig> {
    let make = |number| {
        let path = directory.join(format!("d{number}"));
        std::fs::File::create(&path).unwrap().set_len(SIZE).unwrap();
        leaf(&path)
    };
    (0..count).map(make).collect()
}

/// The features of OpenZFS 2.1.
fn features() -> Vec<String> {
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
    let all = feature::FEATURES.iter().map(|feature| feature.name().to_owned());
    all.filter(|name| !LATER.contains(&name.as_str())).collect()
}

fn plan(name: &str, tops: Vec<(VdevConfig, AllocationClass)>) -> NewPoolPlan {
    NewPoolPlan {
        name: name.into(),
        temporary_name: None,
        version: 5000,
        tops,
        spares: Vec::new(),
        caches: Vec::new(),
        features: features(),
        pool_properties: Vec::new(),
        properties: Vec::new(),
        encryption: None,
        command: Some((format!("zpool create {name}"), 0)),
        hostid: 0,
        hostname: "test".into(),
    }
}

fn open_leaf(config: &VdevConfig) -> Result<Arc<dyn Device>, LeafUnavailable> {
    let path: PathBuf = config.path.clone().unwrap().into();
    match FileDevice::open(path, Mode::ReadWrite) {
        Ok(device) => Ok(Arc::new(device)),
        Err(error) => Err(LeafUnavailable::open_failed(error.to_string())),
    }
}

fn make(
    name: &str,
    tops: Vec<(VdevConfig, AllocationClass)>,
    fill: impl FnOnce(&ObjectSet, &Tx) -> cenote_engine::Result<()> + Send + 'static,
) -> Arc<LivePool> {
    let options = OpenOptions::default();
    let opener = Arc::new(open_leaf);
    create(plan(name, tops), opener, &options, WriteOptions::default(), fill).unwrap()
}

fn census(pool: &Arc<Pool>) -> Report {
    let options =
        CheckOptions { verify: Verify::Everything, every_copy: true, ..CheckOptions::default() };
    let report = check(pool, &options, &mut |_| ControlFlow::Continue(())).unwrap();
    assert!(report.is_clean(), "{:#?}", (report.findings, report.leaked, report.unallocated));
    report
}

/// What `zdb -bcc` says of the exported pool; nothing without zdb.
fn zdb(directory: &Path, name: &str) {
    let found = Command::new("zdb")
        .args(["-e", "-bcc", "-p"])
        .args([directory.as_os_str(), name.as_ref()])
        .output();
    let Ok(output) = found else {
        eprintln!("skipped: zdb is not installed");
        return;
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("No leaks"), "{text}");
    for word in ["leaked space", "mismatch", "error", "cannot", "claims"] {
        assert!(!text.to_lowercase().contains(word), "{word}: {text}");
    }
}

fn nothing(set: &ObjectSet, tx: &Tx) -> cenote_engine::Result<()> {
    let new = NewObject::new(ObjectType::MASTER_NODE, 512);
    let master = set.claim_object(tx, ObjectId(1), &new)?;
    cenote_engine::zap::create(&master, tx, 77, Normalization::NONE)
}

/// The tops of a pool of every layout, on devices of its own.
fn layout(kind: &str, directory: &Path) -> Vec<(VdevConfig, AllocationClass)> {
    let normal = AllocationClass::Normal;
    let mut all = devices(directory, 6).into_iter();
    let mut some = |count| all.by_ref().take(count).collect::<Vec<_>>();
    match kind {
        "stripe" => some(2)
            .into_iter()
            .map(|leaf| (top(VdevKind::File, None, vec![leaf]), normal))
            .collect(),
        "mirror" => vec![(top(VdevKind::Mirror, None, some(2)), normal)],
        "raidz1" => vec![(top(VdevKind::Raidz, Some(1), some(3)), normal)],
        "raidz2" => vec![(top(VdevKind::Raidz, Some(2), some(5)), normal)],
        "raidz3" => vec![(top(VdevKind::Raidz, Some(3), some(6)), normal)],
        "special" => vec![
            (top(VdevKind::File, None, some(1)), normal),
            (top(VdevKind::Mirror, None, some(2)), AllocationClass::Special),
        ],
        other => panic!("no layout {other}"),
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
fn objects_of_every_shape_in_every_layout() {
    for kind in ["stripe", "mirror", "raidz1", "raidz2", "raidz3", "special"] {
        let directory = tempfile::tempdir().unwrap();
        let live = make(kind, layout(kind, directory.path()), nothing);
        let head = live.pool().catalog().head(&live.pool().catalog().root().unwrap()).unwrap();
        let dataset = live.open_dataset(&head).unwrap();
        let set = dataset.set();
        let mut files = Vec::new();
        for (number, block) in [512u64, 4096, 128 << 10, 1 << 20].into_iter().enumerate() {
            let tx = live.begin().unwrap();
            let file =
                set.create_object(&tx, &NewObject::new(ObjectType::OTHER_U64, block)).unwrap();
            let data = noise(3 << 20, number as u64 + 1);
            file.write(&tx, 0, &data).unwrap();
            // Far away, so that the tree grows.
            file.write(&tx, 1 << 36, &data[..70_000]).unwrap();
            files.push((file.id(), data));
        }
        live.sync().unwrap();
        census(live.pool());
        for (round, (id, data)) in files.iter_mut().enumerate() {
            let tx = live.begin().unwrap();
            let file = set.object(*id).unwrap();
            let change = noise(300_000, 100 + round as u64);
            file.write(&tx, 1_234_567, &change).unwrap();
            data[1_234_567..1_534_567].copy_from_slice(&change);
            file.free_range(&tx, 2_000_000, 500_000).unwrap();
            data[2_000_000..2_500_000].fill(0);
            file.free_range(&tx, 1 << 35, u64::MAX).unwrap();
        }
        live.sync().unwrap();
        census(live.pool());
        {
            let tx = live.begin().unwrap();
            set.free_object(&tx, files[0].0).unwrap();
        }
        live.sync().unwrap();
        let catalog = live.pool().catalog();
        let head = catalog.head(&catalog.root().unwrap()).unwrap();
        let read = ObjectSet::open(live.pool().io(), head.phys.pointer, head.id.0, None).unwrap();
        for (id, data) in &files[1..] {
            let found = read.object(*id).unwrap().read_vec(0, data.len()).unwrap();
            assert!(&found == data, "{kind}: object {id}");
        }
        assert!(read.object(files[0].0).is_err());
        live.export().unwrap();
        drop(live);
        zdb(directory.path(), kind);
    }
}

#[test]
fn a_new_pool_has_no_leaks() {
    let directory = tempfile::tempdir().unwrap();
    let tops = devices(directory.path(), 1)
        .into_iter()
        .map(|leaf| (top(VdevKind::File, None, vec![leaf]), AllocationClass::Normal))
        .collect();
    let live = make("first", tops, nothing);
    census(live.pool());
    for _ in 0..5 {
        live.sync().unwrap();
        census(live.pool());
    }
    live.export().unwrap();
    drop(live);
    zdb(directory.path(), "first");
}
