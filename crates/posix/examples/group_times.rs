//! How long groups of many dirty datasets take, and how long 4 KiB writes take meanwhile.
//!
//! `group_times DIRECTORY [DATASETS] [SECONDS]` makes a pool on one sparse file of 4 GiB in `DIRECTORY`.
//! First each round overwrites eight times 4 KiB in a file of each dataset and times the group: with what
//! it needs in the cache, and right after the pool was opened. Then 4 KiB are written over and over at
//! random places of a file of 512 MiB, more than the cache holds, while groups follow one another.

#![allow(clippy::unwrap_used, reason = "a measurement ends at the first surprise")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use cenote_device::{FileDevice, Mode};
use cenote_engine::dataset::change::NewDataset;
use cenote_engine::pool::OpenOptions;
use cenote_engine::pool::assemble::candidates;
use cenote_engine::pool::change::{NewPoolPlan, create};
use cenote_engine::pool::group::{LivePool, WriteOptions};
use cenote_engine::vdev::{AllocationClass, LeafUnavailable};
use cenote_format::config::{TopLevel, VdevConfig, VdevKind};
use cenote_format::feature;
use cenote_format::objset::ObjsetKind;
use cenote_posix::Filesystem;
use cenote_posix::create::{NewFilesystem, initialise};
use cenote_posix::tree::{Caller, NewNode, NodeId, ROOT, Tree};

const POOL: &str = "group_times";
const DEVICE: u64 = 4 << 30;
const CACHE: u64 = 64 << 20;
/// Bytes of the file of each dataset, and of the large one.
const SMALL: u64 = 4 << 20;
const LARGE: u64 = 512 << 20;
const WRITE: usize = 4 << 10;
const ROUNDS: usize = 30;
const SUPERUSER: Caller = Caller { uid: 0, gid: 0, pid: 0 };

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn bytes(&mut self, length: usize) -> Vec<u8> {
        let words = std::iter::repeat_with(|| self.next().to_le_bytes());
        words.take(length.div_ceil(8)).flatten().take(length).collect()
    }

    fn place(&mut self, size: u64) -> u64 {
        self.next() % (size / WRITE as u64) * WRITE as u64
    }
}

fn options() -> OpenOptions {
    OpenOptions { cache_limit: CACHE, ..OpenOptions::default() }
}

fn make(device: &Path, datasets: usize) -> Arc<LivePool> {
    std::fs::File::create(device).unwrap().set_len(DEVICE).unwrap();
    let top = VdevConfig {
        kind: VdevKind::File,
        path: Some(device.display().to_string()),
        top: Some(TopLevel { ashift: 12, ..TopLevel::default() }),
        ..VdevConfig::default()
    };
    let plan = NewPoolPlan {
        name: POOL.into(),
        temporary_name: None,
        version: 5000,
        tops: vec![(top, AllocationClass::Normal)],
        spares: Vec::new(),
        caches: Vec::new(),
        features: feature::FEATURES.iter().map(|feature| feature.name().to_owned()).collect(),
        pool_properties: Vec::new(),
        properties: Vec::new(),
        encryption: None,
        command: None,
        hostid: 0,
        hostname: "bench".into(),
    };
    let open = |leaf: &VdevConfig| {
        let path: PathBuf = leaf.path.clone().unwrap().into();
        let opened = FileDevice::open(path, Mode::ReadWrite);
        let opened = opened.map_err(|error| LeafUnavailable::open_failed(error.to_string()))?;
        Ok(Arc::new(opened) as Arc<dyn cenote_device::Device>)
    };
    let fill = |set: &_, tx: &_| {
        initialise(set, tx, &NewFilesystem::default()).unwrap();
        Ok(())
    };
    let live = create(plan, Arc::new(open), &options(), WriteOptions::default(), fill).unwrap();
    let parent = live.pool().catalog().root().unwrap().id;
    let made = live.change(move |live, change| {
        for number in 0..datasets {
            let name = format!("d{number}");
            let new = NewDataset { parent, name: &name, ..NewDataset::default() };
            live.make_dataset(change, &new, ObjsetKind::Zfs, fill)?;
        }
        Ok(())
    });
    made.unwrap();
    live
}

fn reopen(device: &Path) -> Arc<LivePool> {
    let directory = device.parent().unwrap().to_path_buf();
    let pools = candidates(&[directory]);
    let pool = pools.iter().find(|pool| pool.name == POOL).unwrap();
    LivePool::open(pool, &options(), WriteOptions::default()).unwrap()
}

/// A filesystem and a file in it.
type Target = (Arc<Filesystem>, NodeId);

/// The file `name` of a dataset, made with `size` bytes if it is not there.
fn target(live: &Arc<LivePool>, dataset: &str, name: &str, size: u64) -> Target {
    let dataset = cenote_posix::live::find(&live.pool().catalog(), dataset).unwrap();
    let files = cenote_posix::live::open(live, &dataset, false).unwrap();
    if let Ok(found) = files.lookup(ROOT, name.as_bytes()) {
        return (files, found.node);
    }
    let new = NewNode { mode: 0o100_644, umask: 0o022, rdev: 0, target: &[] };
    let node = files.create(SUPERUSER, ROOT, name.as_bytes(), new).unwrap().node;
    let mut random = Random(size | 1);
    for part in 0..size >> 20 {
        files.write(SUPERUSER, node, part << 20, &random.bytes(1 << 20), false).unwrap();
    }
    (files, node)
}

fn targets(live: &Arc<LivePool>, datasets: usize) -> Vec<Target> {
    (0..datasets).map(|number| target(live, &format!("{POOL}/d{number}"), "f", SMALL)).collect()
}

/// Makes every target dirty.
fn dirty(targets: &[Target], random: &mut Random) {
    let data = random.bytes(WRITE);
    for (files, node) in targets {
        for _ in 0..8 {
            files.write(SUPERUSER, *node, random.place(SMALL), &data, false).unwrap();
        }
    }
}

fn timed(live: &LivePool) -> Duration {
    let start = Instant::now();
    live.sync().unwrap();
    start.elapsed()
}

fn show(what: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |part: f64| {
        let index = (times.len().saturating_sub(1) as f64 * part) as usize;
        times.get(index).copied().unwrap_or_default().as_secs_f64() * 1e3
    };
    let count = times.len();
    println!(
        "{what}: {count} times, ms: median {:.2}, p99 {:.2}, p99.9 {:.2}, most {:.2}",
        at(0.5),
        at(0.99),
        at(0.999),
        at(1.0)
    );
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let directory = PathBuf::from(arguments.next().unwrap());
    let number =
        |text: Option<String>, otherwise| text.map_or(otherwise, |text| text.parse().unwrap());
    let datasets = number(arguments.next(), 100);
    let seconds = Duration::from_secs(number(arguments.next(), 20) as u64);
    let device = directory.join("device");
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut live = make(&device, datasets);
    let mut all = targets(&live, datasets);
    live.sync().unwrap();
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        dirty(&all, &mut random);
        times.push(timed(&live));
    }
    show(&format!("groups of {datasets} datasets"), times);

    let mut times = Vec::new();
    for _ in 0..ROUNDS / 10 {
        drop(all);
        live.export().unwrap();
        drop(live);
        live = reopen(&device);
        all = targets(&live, datasets);
        dirty(&all, &mut random);
        let limit = live.pool().io().pipe.cache().limit();
        live.pool().io().pipe.cache().set_limit(0);
        live.pool().io().pipe.cache().set_limit(limit);
        times.push(timed(&live));
    }
    show("such groups with nothing in the cache", times);

    let (files, node) = target(&live, POOL, "large", LARGE);
    live.sync().unwrap();
    let stop = AtomicBool::new(false);
    let mut waits = Vec::new();
    let mut groups = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = Random(77);
            while !stop.load(Relaxed) {
                dirty(&all, &mut random);
                groups.push(timed(&live));
            }
        });
        let (start, data) = (Instant::now(), random.bytes(WRITE));
        while start.elapsed() < seconds {
            let begun = Instant::now();
            files.write(SUPERUSER, node, random.place(LARGE), &data, false).unwrap();
            waits.push(begun.elapsed());
            std::thread::sleep(Duration::from_micros(500));
        }
        stop.store(true, Relaxed);
    });
    show("4 KiB writes meanwhile", waits);
    show("groups meanwhile", groups);
    drop((files, all));
    live.export().unwrap();
}
