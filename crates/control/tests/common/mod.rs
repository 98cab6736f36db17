//! Reports of the pools whose listings by OpenZFS lie in `golden/`.
//!
//! Invariant: the numbers are those OpenZFS printed in exact form; nothing is made up to fit.

use cenote_control::report::*;

const MIB: u64 = 1 << 20;

/// A file device of 256 MiB.
pub fn file(number: u64, guid: u64, class: VdevClass) -> VdevReport {
    VdevReport {
        kind: "file".into(),
        path: Some(format!("/tmp/v/d{number}")),
        guid,
        class,
        physical_size: 256 * MIB,
        replacement_size: 256_376_832,
        trim_supported: true,
        ..VdevReport::default()
    }
}

/// An inner device.
pub fn inner(name: &str, guid: u64, class: VdevClass, children: Vec<VdevReport>) -> VdevReport {
    let kind = name.trim_end_matches(|c: char| c.is_ascii_digit()).trim_end_matches('-');
    let kind = if kind.starts_with("raidz") { "raidz" } else { kind };
    let kind = if kind.starts_with("draid") { "draid" } else { kind };
    VdevReport {
        name: name.into(),
        kind: kind.into(),
        guid,
        class,
        children,
        ..VdevReport::default()
    }
}

/// Gives a top-level device its space.
pub fn spaced(vdev: VdevReport, space: u64, allocated: u64, fragmentation: u64) -> VdevReport {
    VdevReport {
        space,
        deflated_space: space,
        allocated,
        fragmentation: Some(fragmentation),
        ..vdev
    }
}

/// A pool around a root device.
pub fn pool(guid: u64, tops: Vec<VdevReport>) -> PoolReport {
    let root = VdevReport {
        name: "g101".into(),
        kind: "root".into(),
        guid,
        space: tops.iter().filter(|t| t.class != VdevClass::Log).map(|t| t.space).sum(),
        allocated: tops.iter().map(|t| t.allocated).sum(),
        children: tops,
        ..VdevReport::default()
    };
    let root = VdevReport { deflated_space: root.space, ..root };
    PoolReport {
        name: "g101".into(),
        guid,
        pool_version: 5000,
        filesystem_version: 5,
        root,
        ..PoolReport::default()
    }
}

/// The pool `classes`, as `zpool list -Hvp` had it.
pub fn classes() -> PoolReport {
    use VdevClass::{Cache, Dedup, Log, Normal, Spare, Special};
    let mirror = |name: &str, guid, class, a: (u64, u64), b: (u64, u64)| {
        inner(name, guid, class, vec![file(a.0, a.1, class), file(b.0, b.1, class)])
    };
    let data = mirror(
        "mirror-0",
        2208248303072385739,
        Normal,
        (0, 13275270315301423052),
        (1, 8151605985759548958),
    );
    let special = mirror(
        "mirror-1",
        567483342095922944,
        Special,
        (2, 9093802580542557989),
        (3, 11130459513593613692),
    );
    let log = mirror(
        "mirror-3",
        17450424064214110292,
        Log,
        (5, 4782125577311024222),
        (6, 2706146082969875740),
    );
    let mut report = pool(
        16181374368291852753,
        vec![
            spaced(data, 240 * MIB, 9_306_112, 0),
            spaced(special, 240 * MIB, 973_824, 5),
            spaced(file(4, 10203170401533556450, Dedup), 240 * MIB, 10_752, 0),
            spaced(log, 240 * MIB, 0, 0),
        ],
    );
    let cache = file(7, 17681269129360010728, Cache);
    let cache = spaced(cache, 263_716_352, 0, 0);
    report.caches = vec![VdevReport { deflated_space: 0, ..cache }];
    report.spares = vec![file(8, 9984240161833658611, Spare)];
    let row = |refcount, blocks, size: u64, references, total: u64| DedupBucket {
        refcount,
        blocks,
        sizes: [size; 3],
        referenced_blocks: references,
        referenced_sizes: [total; 3],
    };
    report.dedup = Some(DedupReport {
        entries: 26,
        disk_bytes: 413,
        memory_bytes: 630,
        histogram: vec![row(2, 25, 3_276_800, 50, 6_553_600), row(4, 1, 131_072, 4, 524_288)],
    });
    report.properties = properties(include_str!("../golden/classes-get-Hp.txt"));
    report
}

/// Properties from `get -Hp`.
pub fn properties(text: &str) -> Properties {
    let mut all = Properties::default();
    for line in text.lines() {
        let mut cells = line.split('\t');
        let mut next = || cells.next().unwrap();
        let (_, name, value, source) = (next(), next(), next(), next());
        all.set(name, value, source_of(source));
    }
    all
}

fn source_of(text: &str) -> Source {
    match text {
        "-" => Source::None,
        "default" => Source::Default,
        "local" => Source::Local,
        "temporary" => Source::Temporary,
        "received" => Source::Received,
        other => Source::Inherited(other.strip_prefix("inherited from ").unwrap().to_owned()),
    }
}

/// The pool `degraded`: one device offline, one missing.
pub fn degraded() -> PoolReport {
    let mut devices: Vec<_> = [
        8559932028791495396,
        6080193011402337032,
        6773398139070153240,
        13199361685870741790,
        17754012082207198861,
    ]
    .into_iter()
    .zip(0..)
    .map(|(guid, number)| file(number, guid, VdevClass::Normal))
    .collect();
    devices[1].state = VdevState::Offline;
    devices[3].state = VdevState::CannotOpen;
    devices[3].reason = VdevReason::OpenFailed;
    devices[3].not_present = true;
    let mut raidz = inner("raidz2-0", 9232468298693919904, VdevClass::Normal, devices);
    raidz.state = VdevState::Degraded;
    let mut report = pool(9033484154635617575, vec![raidz]);
    report.root.state = VdevState::Degraded;
    report.state = VdevState::Degraded;
    report.status = PoolStatus::MissingDevice;
    report
}

/// The pool `draid2` with its distributed spare.
pub fn draid2() -> PoolReport {
    let devices = (0..11).map(|number| file(number, number + 1, VdevClass::Normal)).collect();
    let draid = inner("draid2:4d:11c:1s-0", 99, VdevClass::Normal, devices);
    let mut report = pool(1877001433370526881, vec![draid]);
    report.spares = vec![VdevReport {
        name: "draid2-0-0".into(),
        kind: "dspare".into(),
        class: VdevClass::Spare,
        ..VdevReport::default()
    }];
    report
}

/// The pool `history`: a removed mirror, a finished scrub, a checkpoint, trimmed devices.
pub fn history() -> PoolReport {
    let trimmed = |number, guid, time| VdevReport {
        trim: Some(Activity { state: ActivityState::Complete, done: 5, total: 5, time }),
        ..file(number, guid, VdevClass::Normal)
    };
    let mirror = inner(
        "mirror-0",
        13538876473611210923,
        VdevClass::Normal,
        vec![
            trimmed(0, 16351171128301809114, 1_795_199_687),
            trimmed(4, 15124164123972625383, 1_795_199_688),
            trimmed(5, 2890893862644932132, 1_795_199_687),
        ],
    );
    let indirect =
        VdevReport { name: "indirect-1".into(), kind: "indirect".into(), ..VdevReport::default() };
    let mut report = pool(7418444605670509354, vec![mirror, indirect]);
    report.scan = Some(ScanReport {
        function: ScanFunction::Scrub,
        state: ScanState::Finished,
        start_time: 1_795_199_680,
        end_time: 1_795_199_681,
        to_examine: 5_537_792,
        examined: 5_417_984,
        skipped: 0,
        processed: 0,
        errors: 0,
        pass_examined: 0,
        issued: 5_417_984,
        pass_issued: 0,
        pass_start: 1_795_235_751,
        paused: 0,
        spent_paused: 0,
        recent_rate: None,
    });
    report.removal = Some(RemovalReport {
        state: ScanState::Finished,
        vdev: 1,
        name: "indirect-1".into(),
        start_time: 1_795_199_665,
        end_time: 1_795_199_666,
        to_copy: 2_898_432,
        copied: 2_898_432,
        mapping_memory: 192,
    });
    report.checkpoint =
        Some(CheckpointReport { discarding: false, start_time: 1_795_199_682, space: 903_168 });
    report
}

/// The datasets of the pool `snaps`, as `zfs list -p -t all` had them.
pub fn snaps() -> Vec<DatasetReport> {
    let text = include_str!("../golden/snaps-list-p.txt");
    let rows = text.lines().skip(1).enumerate();
    rows.map(|(index, line)| {
        let mut cells = line.split_whitespace();
        let mut next = || cells.next().unwrap().to_owned();
        let name = next();
        let kind = match &name {
            name if name.contains('@') => DatasetKind::Snapshot,
            name if name.contains('#') => DatasetKind::Bookmark,
            name if name.ends_with("/vol") => DatasetKind::Volume,
            _ => DatasetKind::Filesystem,
        };
        let mut properties = Properties::default();
        for property in ["used", "available", "referenced", "mountpoint"] {
            properties.set(property, next(), Source::None);
        }
        let createtxg = u64::try_from(index).unwrap();
        DatasetReport { name, kind, createtxg, mounted_at: None, properties }
    })
    .collect()
}
