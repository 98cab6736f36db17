//! What this engine says of pools made by OpenZFS, against what OpenZFS said of them.
//!
//! Fixtures hold `list.txt`, `props.txt`, `pool-props.txt` and maybe `history.txt`, written just
//! before the export. Invariant: every difference is either one between releases, listed here, or
//! explained by what the export itself wrote, with a bound.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod fixtures;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use cenote_engine::ErrorKind;

use cenote_engine::dataset::{
    Catalog, Keys, Listed, Principal, PrincipalUsage, PropertyReader, PropertyValue, Source,
};
use cenote_engine::keys::KeyStore;
use cenote_engine::pool::Pool;
use cenote_engine::pool::history::History;
use cenote_engine::pool::properties::{self, Runtime};
use cenote_engine::pool::space::PoolSpace;
use cenote_format::ObjectType;
use cenote_format::dnode::{FLAG_USEROBJUSED_ACCOUNTED, FLAG_USERUSED_ACCOUNTED};
use cenote_format::objset::ObjsetKind;

/// Values by name and property: value and source.
type Lines = BTreeMap<(String, String), (String, String)>;

/// What depends on the import, not on the pool.
const MOMENTARY: [&str; 4] = ["mounted", "load_guid", "health", "ashift"];
/// What changes while a pool is unmounted and exported, and by how much at most: access times are
/// written, frees wait for a few transaction groups, and the pool's own metadata is written again.
const SETTLES: [(&str, u64); 14] = [
    ("used", 512 << 10),
    ("usedbychildren", 512 << 10),
    ("available", 512 << 10),
    ("logicalused", 256 << 10),
    ("referenced", 40 << 10),
    ("logicalreferenced", 4 << 10),
    ("usedbydataset", 64 << 10),
    ("usedbysnapshots", 16 << 10),
    ("written", 64 << 10),
    ("allocated", 8 << 20),
    ("free", 8 << 20),
    ("checkpoint", 1 << 20),
    ("capacity", 2),
    ("fragmentation", 3),
];
/// Whose default or spelling differs between releases.
const RELEASE: [&str; 9] = [
    "compression",
    "relatime",
    "xattr",
    "volblocksize",
    "filesystem_limit",
    "snapshot_limit",
    "filesystem_count",
    "snapshot_count",
    "special_small_blocks",
];
/// What older releases do not list.
const NEWER: [&str; 18] = [
    "defaultuserquota",
    "defaultgroupquota",
    "defaultprojectquota",
    "defaultuserobjquota",
    "defaultgroupobjquota",
    "defaultprojectobjquota",
    "prefetch",
    "volthreading",
    "direct",
    "longname",
    "snapshots_changed",
    "special_small_blocks",
    "bcloneused",
    "bclonesaved",
    "bcloneratio",
    "dedup_table_size",
    "dedup_table_quota",
    "last_scrubbed_txg",
];

fn source_text(source: &Source) -> String {
    match source {
        Source::Default => "default".to_owned(),
        Source::Local => "local".to_owned(),
        Source::Inherited(from) => format!("inherited from {from}"),
        Source::Received => "received".to_owned(),
        Source::Temporary => "temporary".to_owned(),
        Source::None => "-".to_owned(),
    }
}

fn add(lines: &mut Lines, name: &str, property: &PropertyValue) {
    let key = (name.to_owned(), property.name.clone());
    lines.insert(key, (property.parsable(), source_text(&property.source)));
}

fn read_lines(path: &Path) -> Lines {
    let mut lines = Lines::new();
    for line in fs::read_to_string(path).unwrap().lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let [name, property, value, source] = fields[..] else { panic!("{line}") };
        let key = (name.to_owned(), property.to_owned());
        lines.insert(key, (value.to_owned(), source.to_owned()));
    }
    assert!(!lines.is_empty());
    lines
}

fn is_near(property: &str, expected: &str, found: &str) -> bool {
    // Ratios of a root count the pool's own metadata.
    if let (true, Ok(a), Ok(b)) =
        (property.ends_with("compressratio"), expected.parse(), found.parse())
    {
        let (a, b): (f64, f64) = (a, b);
        return (a - b).abs() <= a / 50.0;
    }
    let limit = SETTLES.iter().find(|(name, _)| *name == property);
    match (limit, expected.parse::<u64>(), found.parse::<u64>()) {
        (Some((_, limit)), Ok(a), Ok(b)) => a.abs_diff(b) <= *limit,
        _ => false,
    }
}

/// The same in the words of another release.
fn is_respelled(property: &str, expected: (&str, &str), found: (&str, &str)) -> bool {
    let both_default = expected.1 == "default" || found.1 == "default";
    let xattr =
        property == "xattr" && matches!((expected.0, found.0), ("on", "dir") | ("sa", "on"));
    RELEASE.contains(&property) && both_default || xattr && expected.1 == found.1
}

fn differences(expected: &Lines, found: &Lines) -> Vec<String> {
    let mut list = Vec::new();
    for (key, (value, source)) in expected {
        let property = key.1.as_str();
        if MOMENTARY.contains(&property) {
            continue;
        }
        let Some((other_value, other_source)) = found.get(key) else {
            list.push(format!("{} {property}: expected {value}, found nothing", key.0));
            continue;
        };
        let same = value == other_value || is_near(property, value, other_value);
        let respelled = is_respelled(property, (value, source), (other_value, other_source));
        if !(respelled || same && source == other_source) {
            list.push(format!(
                "{} {property}: expected {value} ({source}), found {other_value} ({other_source})",
                key.0
            ));
        }
    }
    for (key, (value, _)) in found {
        let property = key.1.as_str();
        let newer = NEWER.contains(&property) || MOMENTARY.contains(&property);
        let feature = property.starts_with("feature@") && value == "disabled";
        if !expected.contains_key(key) && !newer && !feature {
            list.push(format!("{} {property}: expected nothing, found {value}", key.0));
        }
    }
    list
}

fn load_keys(fixture: &Path, catalog: &Catalog) -> KeyStore {
    let store = KeyStore::new();
    let files = ["pp", "rawkey", "hexkey"].map(|file| fs::read(fixture.join(file)));
    let materials: Vec<Vec<u8>> = files.into_iter().flatten().collect();
    for directory in catalog.walk(&catalog.root().unwrap()).unwrap() {
        let key = catalog.key_object(&directory).unwrap();
        if key.is_some_and(|key| key.root == directory.id) {
            let opens = |m: &Vec<u8>| store.load(catalog, &directory, m).is_ok();
            assert!(materials.iter().any(opens), "no key opens {}", directory.path);
        }
    }
    store
}

/// The images of these pools are older than the texts: they crashed, and were repaired from their
/// intent logs before they were asked.
fn is_crashed(fixture: &Path) -> bool {
    fixture.file_name().is_some_and(|name| name.to_string_lossy().starts_with("crash-"))
}

fn check_datasets(fixture: &Path, pool: &Pool, space: &PoolSpace) -> Vec<String> {
    let catalog = pool.catalog();
    let keys = load_keys(fixture, &catalog);
    let reader = PropertyReader::new(&catalog, space.capacity(), &keys, "/mnt");
    let (mut found, mut names) = (Lines::new(), Vec::new());
    for listed in catalog.list(&catalog.root().unwrap()).unwrap() {
        let name = listed.name().to_string();
        for property in reader.all(&listed).unwrap() {
            add(&mut found, &name, &property);
            let one = reader.get(&listed, &property.name).unwrap();
            assert_eq!(one.as_ref(), Some(&property), "{name}");
        }
        if let Listed::Dataset(dataset) = &listed {
            assert_eq!(catalog.dataset_by_id(dataset.id).unwrap().name, dataset.name);
            assert_eq!(catalog.dataset(&dataset.name).unwrap().phys, dataset.phys);
            let encrypted = catalog.key_object(&dataset.directory).unwrap().is_some();
            assert_eq!(keys.decryptor(&catalog, dataset).unwrap().is_some(), encrypted, "{name}");
        }
        names.push(name);
    }
    let list = fs::read_to_string(fixture.join("list.txt")).unwrap();
    let expected: Vec<&str> = list.lines().filter_map(|line| line.split('\t').next()).collect();
    assert_eq!(names, expected);
    differences(&read_lines(&fixture.join("props.txt")), &found)
}

fn check_pool(fixture: &Path, pool: &Pool, space: &PoolSpace) -> Vec<String> {
    let runtime = Runtime {
        altroot: Some("/mnt".to_owned()),
        cachefile: Some("none".to_owned()),
        ..Runtime::default()
    };
    let mut found = Lines::new();
    for property in properties::all(&pool.catalog(), &pool.config(), space, &runtime).unwrap() {
        add(&mut found, pool.name(), &property);
    }
    differences(&read_lines(&fixture.join("pool-props.txt")), &found)
}

/// Allocated space must be what the datasets account for.
fn check_accounts(pool: &Pool, space: &PoolSpace) {
    let used = pool.catalog().root().unwrap().phys.used_bytes;
    let held = pool.catalog().list(&pool.catalog().root().unwrap()).unwrap();
    let reserved = held.iter().any(|listed| match listed {
        Listed::Dataset(dataset) => {
            let phys = &dataset.directory.phys;
            phys.reserved != 0 || phys.used_breakdown.refreservation != 0
        }
        Listed::Bookmark(..) => false,
    });
    let plain = space.tops.iter().all(|top| top.deflate_ratio == 512);
    let simple = space.checkpoint.is_none() && space.dedup.blocks == 0 && space.clone_used == 0;
    if !reserved && plain && simple {
        // Intent-log blocks and gang headers are allocated and not accounted.
        let more = space.allocated().checked_sub(used);
        assert!(more.is_some_and(|more| more < 1 << 20), "{}: {more:?}", pool.name());
    }
}

fn strip_time(line: &str) -> String {
    match line.split_once(' ') {
        Some((time, rest)) if time.starts_with("20") => format!("TIME {rest}"),
        _ => line.to_owned(),
    }
}

#[test]
fn properties_are_those_that_openzfs_reports() {
    let mut failures = Vec::new();
    for fixture in fixtures::fixtures() {
        let (_dir, pool) = fixtures::open(&fixture);
        let tree = pool.config().vdev_tree.clone().unwrap();
        let space = PoolSpace::read(&pool.catalog(), &tree).unwrap();
        if is_crashed(&fixture) {
            continue;
        }
        let mut list = check_datasets(&fixture, &pool, &space);
        list.extend(check_pool(&fixture, &pool, &space));
        check_accounts(&pool, &space);
        failures.extend(list.into_iter().map(|line| format!("{}: {line}", fixture.display())));
    }
    assert!(failures.is_empty(), "{} differences\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn history_reads_as_openzfs_prints_it() {
    let mut seen = 0;
    for fixture in fixtures::fixtures() {
        let Ok(expected) = fs::read_to_string(fixture.join("history.txt")) else { continue };
        let (_dir, pool) = fixtures::open(&fixture);
        let name = |id| (id == 0).then(|| "root".to_owned());
        let records = History::open(&pool.catalog()).unwrap();
        let text: Vec<String> =
            records.map(|record| record.unwrap().text("TIME", true, &name)).collect();
        let text = text.join("\n");
        let expected: Vec<String> = expected.trim_end().lines().skip(1).map(strip_time).collect();
        // The export came after the listing.
        let found: Vec<&str> = text.lines().take(expected.len()).collect();
        assert_eq!(found, expected);
        seen += 1;
    }
    assert!(seen > 0 || std::env::var("CENOTE_FIXTURE").is_ok());
}

/// What owners are charged is what their objects take.
#[test]
fn owners_account_for_their_objects() {
    let mut seen = 0;
    for fixture in fixtures::fixtures() {
        let (_dir, pool) = fixtures::open(&fixture);
        let catalog = pool.catalog();
        let keys = load_keys(&fixture, &catalog);
        for directory in catalog.walk(&catalog.root().unwrap()).unwrap() {
            let head = catalog.head(&directory).unwrap();
            let set = catalog.object_set(&head, &keys).unwrap();
            if set.kind() != ObjsetKind::Zfs {
                continue;
            }
            let (mut used, mut objects, mut last) = (0, 0, 0);
            while let Some(id) = set.next_object(last).unwrap() {
                last = id.0;
                let dnode = set.dnode(id).unwrap();
                // What has no owner is marked as accounted too.
                let owned = [ObjectType::ZNODE, ObjectType::SYSTEM_ATTRIBUTES];
                if !owned.contains(&dnode.bonus_type) {
                    continue;
                }
                if dnode.flags & FLAG_USERUSED_ACCOUNTED != 0 {
                    used += dnode.used_bytes() + 512;
                }
                objects += u64::from(dnode.flags & FLAG_USEROBJUSED_ACCOUNTED != 0);
            }
            let usage = catalog.usage(&head, &keys).unwrap();
            let sum = |kind: fn(&Principal) -> bool, what: fn(&PrincipalUsage) -> u64| -> u64 {
                usage.iter().filter(|(who, _)| kind(who)).map(|(_, usage)| what(usage)).sum()
            };
            let users = |who: &Principal| matches!(who, Principal::User(_));
            let groups = |who: &Principal| matches!(who, Principal::Group(_));
            let name = format!("{} {}", fixture.display(), directory.path);
            assert_eq!(sum(users, |usage| usage.used), used, "{name}");
            assert_eq!(sum(groups, |usage| usage.used), used, "{name}");
            assert_eq!(sum(users, |usage| usage.objects.unwrap_or(0)), objects, "{name}");
            seen += usize::from(objects > 0);
        }
    }
    assert!(seen > 0);
}

fn fixture(name: &str) -> Option<PathBuf> {
    fixtures::fixtures().into_iter().find(|dir| dir.file_name().is_some_and(|n| n == name))
}

#[test]
fn holds_bookmarks_quotas_and_permissions_are_read() {
    let Some(fixture) = fixture("snaps") else { return };
    let (_dir, pool) = fixtures::open(&fixture);
    let catalog = pool.catalog();
    let head = catalog.dataset_named("g101/a").unwrap();
    let one = catalog.snapshot(&head, "one").unwrap();
    let holds: Vec<String> = catalog.holds(&one).unwrap().into_iter().map(|hold| hold.0).collect();
    assert_eq!(holds, ["keep"]);
    let clones: Vec<String> =
        catalog.clones(&one).unwrap().iter().map(ToString::to_string).collect();
    assert_eq!(clones, ["g101/cl2"]);
    let bookmarks = catalog.bookmarks(&head).unwrap();
    let two = catalog.snapshot(&head, "two").unwrap();
    assert_eq!((bookmarks.len(), bookmarks[0].1.guid), (1, two.phys.guid));
    // Space written since a snapshot and since its bookmark are the same.
    let since = catalog.written_since(&head, &two).unwrap().used;
    assert_eq!(catalog.written_since_bookmark(&head, &bookmarks[0].1).unwrap().used, since);
    assert!(since > catalog.written(&head).unwrap());
    assert!(catalog.written_since(&one, &two).is_err());
    let usage = catalog.usage(&head, &KeyStore::new()).unwrap();
    assert_eq!(usage[&Principal::User(1000)].quota, Some(7 << 20));
    let permissions = catalog.permissions(&head.directory).unwrap();
    let granted: Vec<(String, String)> =
        permissions.iter().map(|(key, names)| (key.name(), names.join(","))).collect();
    let expected =
        ["ul$1000", "ud$1000"].map(|key| (key.to_owned(), "create,mount,snapshot".into()));
    assert_eq!(granted, expected);
    // Names on this filesystem are matched without regard to case.
    let folded = catalog.dataset_named("g101/ci").unwrap();
    assert!(catalog.snapshot(&folded, "none").is_err());
}

#[test]
fn keys_open_check_and_unload() {
    let Some(fixture) = fixture("crypt-small").or_else(|| fixture("crypt")) else { return };
    let (_dir, pool) = fixtures::open(&fixture);
    let catalog = pool.catalog();
    let store = KeyStore::new();
    let space = PoolSpace::read(&catalog, pool.config().vdev_tree.as_ref().unwrap()).unwrap();
    let reader = PropertyReader::new(&catalog, space.capacity(), &store, "");
    let root = catalog.directory(&format!("{}/gcm", pool.name())).unwrap();
    let head = Listed::Dataset(catalog.head(&root).unwrap());
    let status = || reader.get(&head, "keystatus").unwrap().unwrap().parsable();
    // Everything can be listed without any key.
    for listed in catalog.list(&catalog.root().unwrap()).unwrap() {
        assert!(reader.all(&listed).unwrap().len() > 4, "{}", listed.name());
    }
    assert_eq!(status(), "unavailable");
    let wrong = store.load(&catalog, &root, b"not the passphrase").unwrap_err();
    assert_eq!(wrong.kind(), ErrorKind::WrongKey);
    let material = fs::read(fixture.join("pp")).unwrap();
    store.check(&catalog, &root, &material).unwrap();
    assert_eq!(status(), "unavailable");
    store.load(&catalog, &root, &material).unwrap();
    assert_eq!(status(), "available");
    assert_eq!(store.load(&catalog, &root, &material).unwrap_err().kind(), ErrorKind::Exists);
    let child = catalog.children(&root).unwrap().remove(0);
    assert!(store.keys(&catalog, &child).unwrap().is_some());
    let refused = store.load(&catalog, &child, &material).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    store.unload(&root).unwrap();
    assert!(store.keys(&catalog, &child).unwrap().is_none());
    assert_eq!((status().as_str(), store.unload(&root).is_err()), ("unavailable", true));
    let plain = catalog.root().unwrap();
    assert!(store.load(&catalog, &plain, &material).is_err());
}
