//! Whole-pool checks of pools made by OpenZFS, against what `zdb -bbbP` says of them.
//!
//! `zdb.txt` holds a line `pool NAME`, count, logical, physical and allocated bytes, gang
//! addresses, deduplicated bytes and entries, cloned bytes and references, embedded pointers,
//! copies on one vdev, and 1 if nothing leaks; then the rows of its tables: count and bytes by
//! level and type, and by size. Invariant: every number is the same.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

#[path = "../golden_properties/fixtures.rs"]
mod fixtures;

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions as FileOptions};
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use cenote_engine::check::{BlockKind, CheckOptions, FindingKind, Report, Tally, Verify, check};
use cenote_engine::pool::Pool;
use cenote_format::ObjectId;

const EXPECTED: &str = include_str!("zdb.txt");

fn run(pool: &Arc<Pool>, options: &CheckOptions) -> Report {
    check(pool, options, &mut |_| ControlFlow::Continue(())).unwrap()
}

fn fixture(name: &str) -> std::path::PathBuf {
    let all = fixtures::fixtures();
    all.into_iter().find(|path| path.file_name().unwrap() == name).unwrap()
}

/// The lines about the pool of a fixture.
fn expected(name: &str) -> Option<Vec<&'static str>> {
    let mut lines = EXPECTED.lines();
    let first = lines.find(|line| line.split(' ').take(2).eq(["pool", name]))?;
    let rest = lines.take_while(|line| !line.starts_with("pool "));
    Some(std::iter::once(first).chain(rest).collect())
}

fn row(tally: &Tally) -> [u64; 4] {
    [tally.count, tally.logical, tally.physical, tally.allocated]
}

fn compare(name: &str, report: &Report, lines: &[&str]) {
    let census = &report.census;
    let mut rows: BTreeMap<String, [u64; 4]> = BTreeMap::new();
    let kinds = BlockKind::all().map(|kind| (kind.name(), Some(kind)));
    for (label, kind) in kinds.chain([("Total".to_owned(), None)]) {
        let of = |level| kind.map_or(census.of_level(level), |kind| census.of(kind, level));
        let all = kind.map_or(census.total(), |kind| census.of_kind(kind));
        // What has one level only gets no row of that level, what takes no space none at all.
        let levels = (0..12).filter(|level| *level > 0 || of(0).allocated != all.allocated);
        rows.extend(levels.map(|level| (format!("L{level} {label}"), row(&of(level)))));
        rows.insert(label, row(&all));
    }
    // Printed since 2.2.
    if lines.iter().any(|line| line.ends_with("Metadata Total")) {
        rows.insert("Metadata Total".to_owned(), row(&census.metadata()));
    }
    rows.retain(|_, row| row[3] > 0);
    for line in lines.iter().skip(1) {
        if let Some(sizes) = line.strip_prefix("size ") {
            let numbers: Vec<u64> = sizes.split(' ').map(|n| n.parse().unwrap()).collect();
            let log = numbers[0].ilog2();
            let of = |h: &cenote_engine::check::SizeHistogram| {
                h.0.get(&log).copied().unwrap_or_default()
            };
            let (p, l, a) = (of(&census.physical), of(&census.logical), of(&census.allocated));
            assert_eq!([p.0, p.1, l.0, l.1, a.0, a.1], numbers[1..], "{name}: {line}");
            continue;
        }
        let mut parts = line.splitn(5, ' ');
        let numbers = [(); 4].map(|()| parts.next().unwrap().parse::<u64>().unwrap());
        let label = parts.next().unwrap();
        assert_eq!(rows.remove(label), Some(numbers), "{name}: {line}");
    }
    // `zdb` itself gives up before its tables on a pool with removed devices.
    if lines.len() > 1 {
        assert_eq!(rows, BTreeMap::new(), "{name}: rows that zdb does not have");
    }
    let total = census.total();
    // Up to 2.2 `zdb` counts entries of the dedup tables, later the references beyond the first.
    let shared =
        if report.clone_references > 0 { report.dedup_references } else { report.dedup_entries };
    let head = [
        total.count,
        total.logical,
        total.physical,
        total.allocated,
        total.gangs,
        report.dedup_saved,
        shared,
        report.clone_saved,
        report.clone_references,
        census.embedded_total(),
        total.copies_on_one_vdev,
        u64::from(report.found() == report.allocated),
    ];
    let wanted: Vec<u64> = lines[0].split(' ').skip(2).map(|n| n.parse().unwrap()).collect();
    assert_eq!(wanted, head, "{name}: totals");
}

#[test]
fn every_block_is_counted_as_zdb_does() {
    let mut compared = 0;
    for path in fixtures::fixtures() {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let Some(lines) = expected(&name) else { continue };
        let (_dir, pool) = fixtures::open(&path);
        let options = CheckOptions { verify: Verify::Everything, ..CheckOptions::default() };
        let report = run(&pool, &options);
        compare(&name, &report, &lines);
        assert!(report.is_clean(), "{name}: {:?} {:?}", report.findings, report.leaked);
        compared += 1;
    }
    assert!(compared >= 9, "only {compared} fixtures");
}

#[test]
fn a_broken_block_is_named_and_nothing_else() {
    let path = fixture("striped");
    let (dir, pool) = fixtures::open(&path);
    let (set, object) = largest_file(&pool);
    let bp = object.pointer(0, 0).unwrap();
    let dva = bp.first_dva().unwrap();
    break_byte(dir.path(), &pool, dva.vdev, dva.offset);
    drop(pool);
    let pool = reopen(dir.path());
    assert!(run(&pool, &CheckOptions::default()).is_clean());
    let report =
        run(&pool, &CheckOptions { verify: Verify::Everything, ..CheckOptions::default() });
    assert_eq!(report.findings_total, 1, "{:?}", report.findings);
    let finding = &report.findings[0];
    assert_eq!(finding.kind, FindingKind::Unreadable);
    let place = finding.error.place();
    assert_eq!((place.objset, place.object), (Some(set), Some(object.id().0)));
    assert_eq!((place.block, finding.pointer.as_deref()), (Some((0, 0)), Some(&bp)));
}

#[test]
fn a_bad_copy_hides_until_every_copy_is_read() {
    let path = fixture("raidz1x5");
    let (dir, pool) = fixtures::open(&path);
    // Nothing but the devices' labels lies there: take bytes of every device in turn.
    let (_, object) = largest_file(&pool);
    let bp = object.pointer(0, 0).unwrap();
    let dva = bp.first_dva().unwrap();
    let sector = dva.offset / 512;
    let device = image(dir.path(), (sector % 5) as usize);
    flip(&device, 0x40_0000 + sector / 5 * 512 + 7);
    drop(pool);
    let pool = reopen(dir.path());
    let everything = CheckOptions { verify: Verify::Everything, ..CheckOptions::default() };
    assert!(run(&pool, &everything).is_clean());
    let report = run(&pool, &CheckOptions { every_copy: true, ..everything });
    assert_eq!(report.findings_total, 1, "{:?}", report.findings);
    let FindingKind::BadCopy { liars, failed, lost } = &report.findings[0].kind else {
        panic!("{:?}", report.findings)
    };
    assert_eq!((liars.len(), failed.len(), *lost), (1, 0, 0));
}

#[test]
fn a_check_can_be_stopped() {
    let (_dir, pool) = fixtures::open(&fixture("striped"));
    let options = CheckOptions {
        interval: std::time::Duration::ZERO,
        verify: Verify::Everything,
        threads: 1,
        ..CheckOptions::default()
    };
    let report = check(&pool, &options, &mut |_| ControlFlow::Break(())).unwrap();
    assert!(report.stopped && !report.is_clean());
}

/// The file with most blocks in the first dataset that has one.
fn largest_file(pool: &Arc<Pool>) -> (u64, cenote_engine::object::Object) {
    let catalog = pool.catalog();
    let root = catalog.root().unwrap();
    let mut best: Option<(u64, cenote_engine::object::Object)> = None;
    for directory in catalog.walk(&root).unwrap() {
        let Ok(head) = catalog.head(&directory) else { continue };
        let Ok(set) = catalog.sealed_object_set(&head) else { continue };
        let mut after = 0;
        while let Some(ObjectId(id)) = set.next_object(after).unwrap() {
            after = id;
            let object = set.object(ObjectId(id)).unwrap();
            let is_file = object.dnode().object_type == cenote_format::ObjectType::PLAIN_FILE;
            let larger = best.as_ref().is_none_or(|(_, b)| object.block_count() > b.block_count());
            let stored = object.pointer(0, 0).is_ok_and(|bp| bp.first_dva().is_some());
            if is_file && larger && stored {
                best = Some((set.id(), object));
            }
        }
    }
    best.unwrap()
}

fn image(dir: &Path, index: usize) -> std::path::PathBuf {
    dir.join(format!("d{index}"))
}

/// Flips a byte on every side of a mirror, or on a single device.
fn break_byte(dir: &Path, pool: &Arc<Pool>, vdev: u32, offset: u64) {
    let tree = pool.config().vdev_tree.clone().unwrap();
    let top = &tree.children()[vdev as usize];
    let sides = if top.children().is_empty() { vec![top] } else { top.children().iter().collect() };
    for side in sides {
        let path = side.path.clone().unwrap();
        flip(&dir.join(Path::new(&path).file_name().unwrap()), 0x40_0000 + offset + 5);
    }
}

fn flip(path: &Path, at: u64) {
    let file: File = FileOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0xff], at).unwrap();
}

fn reopen(dir: &Path) -> Arc<Pool> {
    use cenote_engine::pool::{OpenOptions, assemble::assemble, discover};
    let opener: Arc<dyn discover::Opener> =
        Arc::new(discover::FileOpener { mode: cenote_device::Mode::ReadOnly });
    let options = discover::ScanOptions::new(vec![dir.to_owned()]);
    let pools = assemble(&discover::scan(&opener, &options));
    Pool::open(&pools[0], &OpenOptions::default()).unwrap()
}
