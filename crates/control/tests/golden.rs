//! Renders reports of real pools and compares with what OpenZFS printed for them.
//!
//! `golden/*.txt` and `*.json` are outputs of `zpool` and `zfs` of OpenZFS 2.1 and 2.3. Where the
//! two differ (the class headings of `list -v`), the files have the form of 2.3.

#![allow(clippy::unwrap_used)]

mod common;

use cenote_control::json;
use cenote_control::protocol::DatasetQuery;
use cenote_control::report::*;
use cenote_control::text::dataset_get::Sources;
use cenote_control::text::pool_get::{ALL_FIELDS, DEFAULT_FIELDS, Field};
use cenote_control::text::vdev_name::Naming;
use cenote_control::text::*;

macro_rules! golden {
    ($name:literal) => {
        include_str!(concat!("golden/", $name))
    };
}

fn names(list: &str) -> Vec<String> {
    list.split(',').map(str::to_owned).collect()
}

/// Times are in the zone of the machine; the files are in UTC.
fn in_utc() -> bool {
    time::long(1_795_199_681) == "Fri Nov 20 18:34:41 2026"
}

#[track_caller]
fn same(ours: &str, theirs: &str) {
    assert!(ours == theirs, "ours:\n{ours}\ntheirs:\n{theirs}");
}

#[test]
fn status_of_every_device_class() {
    let pool = common::classes();
    let plain = pool_status::Options::default();
    same(&pool_status::render(&pool, &plain), golden!("classes-status.txt"));
    let dedup = pool_status::Options { dedup: true, ..plain };
    same(&pool_status::render(&pool, &dedup), golden!("classes-status-D.txt"));
    let slow = pool_status::Options { slow: true, ..plain };
    same(&pool_status::render(&pool, &slow), golden!("classes-status-s.txt"));
    let trim = pool_status::Options { trim: true, ..plain };
    same(&pool_status::render(&pool, &trim), golden!("classes-status-t.txt"));
    let initialize = pool_status::Options { initialize: true, ..plain };
    same(&pool_status::render(&pool, &initialize), golden!("classes-status-i.txt"));
}

#[test]
fn status_of_pools_that_are_not_well() {
    let plain = pool_status::Options::default();
    same(&pool_status::render(&common::degraded(), &plain), golden!("degraded-status.txt"));
    assert!(!pool_status::is_fine(&common::degraded()));
    same(&pool_status::render(&common::draid2(), &plain), golden!("draid2-status.txt"));
    if in_utc() {
        let trim = pool_status::Options { trim: true, ..plain };
        same(&pool_status::render(&common::history(), &trim), golden!("history-status-t.txt"));
    }
}

#[test]
fn what_cannot_be_freed_is_told() {
    let plain = pool_status::Options::default();
    let mut pool = common::classes();
    pool.status = PoolStatus::Healthy;
    assert!(pool_status::is_fine(&pool));
    pool.jobs.push(JobReport {
        name: "freeing".to_owned(),
        state: JobState::Stuck,
        done: 1 << 30,
        left: 4096,
        rate: 0,
        remaining: None,
        trouble: Some("object 7: no copy verifies".to_owned()),
    });
    assert!(!pool_status::is_fine(&pool));
    let alone = pool_status::render(&pool, &plain);
    assert!(
        alone.contains("\tblocks cannot be read:\n\tobject 7: no copy verifies\naction: The pool")
    );
    // Where more is wrong, it is told besides, and the greater trouble says what to do.
    pool.status = PoolStatus::CorruptData;
    let both = pool_status::render(&pool, &plain);
    assert!(
        both.contains("\tblocks cannot be read:\n\tobject 7: no copy verifies\naction: Restore")
    );
    let json = json::pool::status(&[pool], &plain, &Default::default());
    assert!(json.contains("object 7: no copy verifies"), "{json}");
    assert!(
        json.contains(r#""jobs":{"freeing":{"state":"STUCK","done":"1G","left":"4K""#),
        "{json}"
    );
}

#[test]
fn a_log_that_is_kept_is_told() {
    let plain = pool_status::Options::default();
    let mut pool = common::classes();
    pool.status = PoolStatus::Healthy;
    pool.unreplayed.push(UnreplayedLog {
        dataset: "g101/home".to_owned(),
        reason: "record 7: object 12: no copy verifies".to_owned(),
    });
    assert!(!pool_status::is_fine(&pool));
    let said = "\
status: One or more intent logs could not be replayed.  Their records are
\tkept, and the datasets are only accessible in read-only mode:
\tg101/home: record 7: object 12: no copy verifies
action: Restore the affected device(s), then unmount and mount the datasets or
\timport the pool again.  To discard the intent log records, export the
\tpool and import it with 'zpool import -m'.
";
    let alone = pool_status::render(&pool, &plain);
    assert!(alone.contains(said), "{alone}");
    let json = json::pool::status(&[pool], &plain, &Default::default());
    assert!(json.contains("g101/home: record 7"), "{json}");
}

#[test]
fn status_without_logs() {
    let mut pool = common::classes();
    pool.caches.clear();
    pool.spares.clear();
    pool.status = PoolStatus::MissingDevice;
    pool.state = VdevState::Degraded;
    pool.root.state = VdevState::Degraded;
    let log = &mut pool.root.children[3];
    (log.state, log.reason) = (VdevState::CannotOpen, VdevReason::NoReplicas);
    for leaf in &mut log.children {
        leaf.state = VdevState::CannotOpen;
        leaf.not_present = true;
    }
    let plain = pool_status::Options::default();
    same(&pool_status::render(&pool, &plain), golden!("nolog-status.txt"));
}

#[test]
fn list_of_pools() {
    let pools = [common::classes()];
    let columns = names(pool_list::DEFAULT_COLUMNS);
    let render = |options: pool_list::Options| pool_list::render(&pools, &columns, &options);
    let plain = pool_list::Options::default();
    let (exact, scripted, verbose) = (true, true, true);
    same(&render(plain), golden!("classes-list.txt"));
    same(&render(pool_list::Options { exact, ..plain }), golden!("classes-list-p.txt"));
    same(&render(pool_list::Options { scripted, ..plain }), golden!("classes-list-H.txt"));
    same(&render(pool_list::Options { scripted, exact, ..plain }), golden!("classes-list-Hp.txt"));
    same(&render(pool_list::Options { verbose, ..plain }), golden!("classes-list-v.txt"));
    let naming = Naming { guids: true, ..Naming::default() };
    same(&render(pool_list::Options { verbose, naming, ..plain }), golden!("classes-list-vg.txt"));
    let all = pool_list::Options { scripted, exact, verbose, ..plain };
    same(&render(all), golden!("classes-list-Hvp.txt"));
}

#[test]
fn get_of_pools() {
    let pools = [common::classes()];
    let text = pool_get::render(&pools, None, &DEFAULT_FIELDS, false, false);
    same(&text, golden!("classes-get.txt"));
    let text = pool_get::render(&pools, None, &DEFAULT_FIELDS, true, true);
    same(&text, golden!("classes-get-Hp.txt"));
    let wanted = names("size,free,feature@async_destroy");
    let text = pool_get::render(&pools, Some(&wanted), &DEFAULT_FIELDS, false, false);
    let theirs = "NAME  PROPERTY               VALUE                  SOURCE\n\
                  g101  size                   720M                   -\n\
                  g101  free                   710M                   -\n\
                  g101  feature@async_destroy  enabled                local\n";
    same(&text, theirs);
    let wanted = names("ashift,health");
    let text = pool_get::render(&pools, Some(&wanted), &DEFAULT_FIELDS, true, false);
    let theirs = "NAME  PROPERTY  VALUE     SOURCE\n\
                  g101  ashift    0         default\n\
                  g101  health    ONLINE    -\n";
    same(&text, theirs);
    let wanted = names("feature@nope");
    same(&pool_get::render(&pools, Some(&wanted), &DEFAULT_FIELDS, false, false), "");
}

fn import_vdev(vdev: &VdevReport) -> ImportVdev {
    let reason = words::reason(vdev);
    ImportVdev {
        name: vdev_name::name(vdev, Naming::default()),
        state: words::state(vdev.state, vdev.reason).to_owned(),
        reason: (!reason.is_empty()).then(|| reason.to_owned()),
        children: vdev.children.iter().map(import_vdev).collect(),
    }
}

fn import_of(pool: &PoolReport) -> ImportReport {
    let tops = |class| vdev_name::tops(&pool.root, class).map(import_vdev).collect();
    let names = |all: &[VdevReport]| {
        all.iter().map(|vdev| vdev_name::name(vdev, Naming::default())).collect()
    };
    let root = ImportVdev { children: tops(VdevClass::Normal), ..import_vdev(&pool.root) };
    ImportReport {
        name: pool.name.clone(),
        guid: pool.guid,
        state: words::pool_state(pool).to_owned(),
        action: "The pool can be imported using its name or numeric identifier.".into(),
        root,
        caches: names(&pool.caches),
        spares: names(&pool.spares),
        dedup: tops(VdevClass::Dedup),
        special: tops(VdevClass::Special),
        logs: tops(VdevClass::Log),
        ..ImportReport::default()
    }
}

#[test]
fn importable_pools() {
    let classes = import_of(&common::classes());
    same(&pool_import::render(&classes), golden!("classes-import.txt"));

    let mut degraded = common::degraded();
    degraded.root.children[0].children[3].not_present = false;
    let degraded = ImportReport {
        status: Some("One or more devices are missing from the system.".into()),
        action: "The pool can be imported despite missing or damaged devices.  The\nfault \
                 tolerance of the pool may be compromised if imported."
            .into(),
        article: Some("ZFS-8000-2Q".into()),
        ..import_of(&degraded)
    };
    same(&pool_import::render(&degraded), golden!("degraded-import.txt"));
}

#[test]
fn list_of_datasets() {
    let all = common::snaps();
    let columns = names(dataset_list::DEFAULT_COLUMNS);
    same(&dataset_list::render(&all, &columns, true, false), golden!("snaps-list-p.txt"));
    let query =
        DatasetQuery { root: Some("g101".into()), depth: Some(1), ..DatasetQuery::default() };
    let near: Vec<_> =
        all.iter().filter(|each| query.selects(&each.name, each.kind)).cloned().collect();
    same(&dataset_list::render(&near, &columns, false, false), golden!("snaps-list-d1.txt"));
    let mut sorted = all.clone();
    sorted.reverse();
    sorted.sort_by(|a, b| sort::compare(&[], a, b));
    assert_eq!(sorted, all);
}

#[test]
fn get_of_datasets() {
    let mut dataset = DatasetReport { name: "g101/a".into(), ..DatasetReport::default() };
    dataset.properties = common::properties(golden!("snaps-get-Hp.txt"));
    let datasets = [dataset];
    let get = |wanted: Option<&[String]>, fields: &[Field], exact, scripted| {
        dataset_get::render(&datasets, wanted, fields, Sources::ALL, exact, scripted)
    };
    if in_utc() {
        same(&get(None, &DEFAULT_FIELDS, false, false), golden!("snaps-get.txt"));
    }
    same(&get(None, &DEFAULT_FIELDS, true, true), golden!("snaps-get-Hp.txt"));
    let theirs = "NAME    PROPERTY    VALUE          RECEIVED  SOURCE\n\
                  g101/a  used        1.40M          -         -\n\
                  g101/a  quota       100M           -         local\n\
                  g101/a  mountpoint  /mnt/snapview  -         local\n";
    same(&get(Some(&names("used,quota,mountpoint")), &ALL_FIELDS, false, false), theirs);
    let theirs = "NAME    PROPERTY          VALUE             SOURCE\n\
                  g101/a  com.example:nope  -                 -\n";
    same(&get(Some(&names("com.example:nope")), &DEFAULT_FIELDS, false, false), theirs);
    let theirs = "NAME    PROPERTY      VALUE     SOURCE\n\
                  g101/a  volblocksize  -         -\n";
    same(&get(Some(&names("volblocksize")), &DEFAULT_FIELDS, false, false), theirs);
    let mut local = Sources::NOTHING;
    assert!(local.allow("local") && !local.allow("loca"));
    let text = dataset_get::render(&datasets, None, &DEFAULT_FIELDS, local, false, false);
    assert_eq!(text.lines().count(), 6, "{text}");
    assert!(text.contains("com.example:note      héllo wörld          local\n"), "{text}");
}

#[test]
fn history_lines() {
    let command = HistoryRecord {
        time: 1_795_198_769,
        command: Some("zfs create g101/a".into()),
        who: Some(0),
        user: Some("root".into()),
        host: Some("zvm".into()),
        zone: Some("linux".into()),
        ..HistoryRecord::default()
    };
    let ioctl = HistoryRecord {
        time: 1_795_198_769,
        ioctl: Some("create".into()),
        elapsed_nanoseconds: Some(112_345_678),
        input: Some("type: 2\nprops:\n".into()),
        ..HistoryRecord::default()
    };
    let event = HistoryRecord {
        time: 1_795_198_769,
        txg: Some(8),
        internal_name: Some("create".into()),
        internal_text: Some(" ".into()),
        dataset: Some(("g101/a".into(), 136)),
        ..HistoryRecord::default()
    };
    let all = [event, ioctl, command];
    let text = pool_history::render("g101", &all, true, false);
    let text = text.replace(&time::history(1_795_198_769), "2026-11-20.18:19:29");
    let theirs = "History for 'g101':\n\
                  2026-11-20.18:19:29 [txg:8] create g101/a (136)  \n\
                  2026-11-20.18:19:29 (112ms) ioctl create\n    input:\n        type: 2\n        \
                  props:\n\n\
                  2026-11-20.18:19:29 zfs create g101/a\n\n";
    same(&text, theirs);
    let text = pool_history::render("g101", &all, false, true);
    assert!(text.ends_with(" zfs create g101/a [user 0 (root) on zvm:linux]\n\n"), "{text}");
    assert_eq!(text.lines().count(), 3);
}

#[test]
fn iostat_tables() {
    let mut pools = [common::classes()];
    pools[0].root.counters =
        IoCounters { reads: 190, writes: 510, read_bytes: 3_461_120, write_bytes: 6_400_000 };
    pools[0].uptime_nanoseconds = 10_000_000_000;
    let plain = pool_iostat::Options::default();
    let width = pool_iostat::name_width(&pools, &plain);
    let theirs = "              capacity     operations     bandwidth \n\
                  pool        alloc   free   read  write   read  write\n\
                  ----------  -----  -----  -----  -----  -----  -----\n";
    same(&pool_iostat::headings(width, &plain), theirs);
    let row = pool_iostat::rows(&pools[0], None, width, &plain);
    same(&row, "g101        9.81M   710M     19     51   338K   625K\n");

    let later = PoolReport { uptime_nanoseconds: 11_000_000_000, ..pools[0].clone() };
    let row = pool_iostat::rows(&later, Some(&pools[0]), width, &plain);
    same(&row, "g101        9.81M   710M      0      0      0      0\n");

    let exact = pool_iostat::Options { exact: true, ..plain.clone() };
    let theirs = "                        capacity                         operations                         bandwidth           \n";
    assert!(pool_iostat::headings(width, &exact).starts_with(theirs));

    let verbose = pool_iostat::Options { verbose: true, ..plain.clone() };
    let width = pool_iostat::name_width(&pools, &verbose);
    assert_eq!(width, 13);
    let rows = pool_iostat::rows(&pools[0], None, width, &verbose);
    assert!(rows.contains("logs               -      -      -      -      -      -\n"), "{rows}");
    assert!(rows.contains("  /tmp/v/d4    10.5K   240M      0      0      0      0\n"), "{rows}");
    assert!(!rows.contains("/tmp/v/d8"), "{rows}");
}

#[test]
fn iostat_columns_and_histograms() {
    let mut pools = [common::classes()];
    let root = &mut pools[0].root;
    (root.name, root.counters.reads, root.counters.writes) = ("tank".into(), 4, 8);
    let waits = |count: u64| IoDetail {
        wait_nanoseconds: 11_883_861 * count,
        waits: [vec![0; 22], vec![1, 8]].concat(),
        sizes: [vec![0; 13], vec![9]].concat(),
        active: 3,
    };
    (root.reads, root.writes) = (waits(4), waits(8));
    pools[0].uptime_nanoseconds = 1_000_000_000;
    let options = |letters: &str| {
        let has = |letter| letters.contains(letter);
        let kind = match (has('r'), has('w')) {
            (true, _) => pool_iostat::Kind::Sizes,
            (_, true) => pool_iostat::Kind::Waits,
            _ => pool_iostat::Kind::Lines,
        };
        pool_iostat::Options {
            exact: has('p'),
            scripted: has('H'),
            latency: has('l'),
            queues: has('q'),
            kind,
            ..pool_iostat::Options::default()
        }
    };
    let lines = |text: &str, count| text.lines().take(count).collect::<Vec<_>>().join("\n");
    for (letters, theirs) in [
        ("l", golden!("iostat-l.txt")),
        ("q", golden!("iostat-q.txt")),
        ("lq", golden!("iostat-lq.txt")),
        ("lp", golden!("iostat-lp.txt")),
        ("qp", golden!("iostat-qp.txt")),
    ] {
        same(&lines(&pool_iostat::headings(10, &options(letters)), 3), &lines(theirs, 3));
    }
    let row = pool_iostat::rows(&pools[0], None, 10, &options("lq"));
    let numbers: Vec<&str> = row.split_whitespace().skip(7).collect();
    let theirs = "11ms 11ms 11ms 11ms - - - - - - 0 3 0 0 0 0 0 3 0 0 0 0";
    assert_eq!(numbers.join(" "), theirs);
    let row = pool_iostat::rows(&pools[0], None, 10, &options("lpH"));
    assert_eq!(row.split('\t').nth(7), Some("11883861"));

    // Everything but the numbers is theirs.
    let frame = |text: &str| {
        let plain = |line: &str| match line.contains(" 0 ") || line.contains('\t') {
            true => {
                line.split([' ', '\t']).next().unwrap_or("").to_owned() + &line.len().to_string()
            }
            false => line.to_owned(),
        };
        text.lines().map(plain).collect::<Vec<_>>()
    };
    for (letters, theirs) in [("r", golden!("iostat-r.txt")), ("w", golden!("iostat-w.txt"))] {
        assert_eq!(
            frame(&pool_iostat::rows(&pools[0], None, 10, &options(letters))),
            frame(theirs)
        );
    }
    let scripted = pool_iostat::rows(&pools[0], None, 10, &options("wH"));
    let labels = |text: &str| -> Vec<String> {
        text.lines().map(|line| line.split('\t').next().unwrap_or("").to_owned()).collect()
    };
    assert_eq!(labels(&scripted), labels(golden!("iostat-wH.txt")));
    assert!(scripted.contains("\n8388607\t1\t1\t1\t1\t0\t"), "{scripted}");

    let devices = vec![pools[0].root.children[0].children[0].guid];
    let options = pool_iostat::Options { devices, ..options("l") };
    let headings = pool_iostat::headings(13, &options);
    same(&lines(&headings, 3), &lines(golden!("iostat-device-l.txt"), 3));
    let rows = pool_iostat::rows(&pools[0], None, 13, &options);
    assert!(rows.starts_with("/tmp/v/d") && rows.ends_with("-\n\n\n\n\n"), "{rows:?}");
}

/// Keys of all objects, in order, without those an older kernel module misled OpenZFS into.
fn shape(value: &serde_json::Value, path: &str, out: &mut Vec<String>) {
    if let Some(object) = value.as_object() {
        for (key, below) in object {
            if ["noalloc", "phys_space", "rep_dev_size", "self_healed"].contains(&key.as_str()) {
                continue;
            }
            out.push(format!("{path}/{key}"));
            shape(below, &format!("{path}/{key}"), out);
        }
    }
}

#[track_caller]
fn same_shape(ours: &str, theirs: &str) {
    let (mut left, mut right) = (Vec::new(), Vec::new());
    shape(&serde_json::from_str(ours).unwrap(), "", &mut left);
    shape(&serde_json::from_str(theirs).unwrap(), "", &mut right);
    for (ours, theirs) in left.iter().zip(&right) {
        assert_eq!(ours, theirs);
    }
    assert_eq!(left.len(), right.len());
}

#[test]
fn json_of_pools() {
    let mut pools = [common::classes()];
    pools[0].txg = 38;
    pools[0].properties.set("altroot", "/mnt", Source::Local);
    let columns = names(pool_list::DEFAULT_COLUMNS);
    let options = json::Options::default();
    let list = json::pool::list(&pools, &columns, true, Naming::default(), &options);
    same_shape(&list, golden!("classes-list-jv.json"));
    let start = r#"{"output_version":{"command":"zpool list","vers_major":0,"vers_minor":1},"pools":{"g101":{"name":"g101","type":"POOL","state":"ONLINE","pool_guid":"16181374368291852753","txg":"38","spa_version":"5000","zpl_version":"5","properties":{"size":{"value":"720M","source":{"type":"NONE","data":"-"}}"#;
    assert!(list.starts_with(start), "{list}");

    let plain = pool_status::Options::default();
    let flat = json::Options { flat: true, ..options };
    same_shape(&json::pool::status(&pools, &plain, &flat), golden!("classes-status-flat.json"));
    let all = pool_status::Options { initialize: true, trim: true, dedup: true, ..plain };
    let exact = json::Options { exact: true, ..options };
    same_shape(&json::pool::status(&pools, &all, &exact), golden!("classes-status-int.json"));

    let integers = json::Options { integers: true, key_guid: true, ..options };
    let wanted = names("size,capacity,dedupratio,altroot");
    let get = json::pool::get(&pools, Some(&wanted), &integers);
    assert!(get.contains(r#""pools":{"16181374368291852753":{"name":"g101""#), "{get}");
    assert!(get.contains(r#""size":{"value":754974720,"#), "{get}");
    assert!(get.contains(r#""dedupratio":{"value":"2.07","#), "{get}");
    assert!(get.contains(r#"{"value":"/mnt","source":{"type":"LOCAL","data":"-"}}"#), "{get}");

    let mut history = common::history();
    history.checkpoint = None;
    let status = json::pool::status(&[history], &plain, &options);
    let scan = r#""scan_stats":{"function":"SCRUB","state":"FINISHED","start_time":"#;
    assert!(status.contains(scan), "{status}");
    assert!(status.contains(r#""to_copy":"2.76M","copied":"2.76M","mapping_memory":"192B""#));
}

#[test]
fn json_of_datasets() {
    let all = common::snaps();
    let options = json::Options::default();
    let list = json::dataset::list(&all, &names("name,used,mountpoint"), &options);
    assert!(list.contains(r#""g101@two":{"name":"g101@two","type":"SNAPSHOT","pool":"g101","createtxg":"1","dataset":"g101","snapshot_name":"two","properties":{"used":{"value":"14K","source":{"type":"NONE","data":"-"}},"mountpoint":{"value":"-","source":{"type":"NONE","data":"-"}}}}"#), "{list}");
    let integers = json::Options { integers: true, ..options };
    let get = json::dataset::get(&all[..1], None, Sources::ALL, &integers);
    assert!(get.contains(r#""used":{"value":45288448,"source""#), "{get}");
}
