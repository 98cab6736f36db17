//! How properties are stored: numbers, texts and objects as OpenZFS reads them.
//!
//! Invariant: the tables here say for every property of pools and datasets what OpenZFS 2.1.11 and
//! 2.3 keep for it (`tests/properties` compares with the real module); one that is new must be
//! added.

use cenote_engine::dataset::Table;
use cenote_engine::dataset::change::{MosChange, PropertyData, PropertyInput};
use cenote_engine::pool::group::LivePool;
use cenote_engine::zap::{self, Value};
use cenote_format::ObjectId;
use cenote_format::config::VdevKind;
use cenote_format::property::{self, Attribute, Kind};
use std::sync::Arc;

use super::census;
use super::suspended::Disks;

/// The pool's table of properties, as the last group has it.
fn table(live: &LivePool) -> Table {
    let catalog = live.pool().catalog();
    let id = catalog.object_directory().unwrap().number("pool_props").unwrap().unwrap();
    Table::open(catalog.mos(), ObjectId(id)).unwrap().unwrap()
}

fn shown(live: &Arc<LivePool>, name: &str) -> String {
    let pool = live.pool();
    let runtime = cenote_engine::pool::properties::Runtime::default();
    let space = pool.space().unwrap();
    let all =
        cenote_engine::pool::properties::all(&pool.catalog(), &pool.config(), &space, &runtime);
    all.unwrap().iter().find(|property| property.name == name).unwrap().parsable()
}

/// Where a property of pools is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kept {
    /// A number in the table.
    Number,
    /// The object of a dataset, in the table.
    Object,
    /// In the configuration.
    Config,
    /// Nowhere, or not by being set.
    Not,
}

const POOL: &[(&str, Kept)] = &[
    ("altroot", Kept::Not),
    ("version", Kept::Not),
    ("bootfs", Kept::Object),
    ("delegation", Kept::Number),
    ("autoreplace", Kept::Number),
    ("cachefile", Kept::Not),
    ("failmode", Kept::Number),
    ("listsnapshots", Kept::Number),
    ("autoexpand", Kept::Number),
    ("dedupditto", Kept::Not),
    ("readonly", Kept::Not),
    ("ashift", Kept::Number),
    ("comment", Kept::Config),
    ("tname", Kept::Not),
    ("multihost", Kept::Number),
    ("autotrim", Kept::Number),
    ("compatibility", Kept::Config),
    ("dedup_table_quota", Kept::Number),
];

#[test]
fn properties_of_pools_are_kept_as_openzfs_reads_them() {
    let settable = property::POOL.iter().filter(|p| p.attribute != Attribute::ReadOnly);
    let known: Vec<&str> = POOL.iter().map(|(name, _)| *name).collect();
    assert_eq!(settable.map(|p| p.name).collect::<Vec<_>>(), known);
    let (disks, live) = Disks::create(VdevKind::File, 1);
    let root = live.pool().catalog().dataset_named("tank").unwrap().id;
    for (name, kept) in POOL {
        let inputs = match kept {
            Kept::Number if *name == "multihost" => continue, // needs more than a disk
            Kept::Number => vec![PropertyInput::number(name, 0), PropertyInput::number(name, 1)],
            Kept::Object => vec![PropertyInput::text(name, ""), PropertyInput::text(name, "tank")],
            Kept::Config => vec![PropertyInput::text(name, "a b")],
            Kept::Not => continue,
        };
        for input in inputs {
            live.set_pool_property(input.clone()).unwrap();
            let stored = table(&live).value(name).unwrap();
            let expected = match (kept, &input.value) {
                (Kept::Number, PropertyData::Number(number)) => Some(Value::of_u64(*number)),
                (Kept::Object, PropertyData::Text(text)) if text.is_empty() => {
                    Some(Value::of_u64(0))
                }
                (Kept::Object, _) => Some(Value::of_u64(root.0)),
                _ => None,
            };
            assert_eq!(stored, expected, "{input}");
        }
    }
    assert_eq!(live.pool().config().comment.as_deref(), Some("a b"));
    live.export().unwrap();
    drop(live);
    let live = disks.reopen();
    assert_eq!(shown(&live, "bootfs"), "tank");
    assert_eq!(shown(&live, "comment"), "a b");
    assert_eq!(shown(&live, "ashift"), "1");
    census(live.pool());
    live.export().unwrap();
}

#[test]
fn a_dataset_that_cannot_be_booted_is_refused() {
    let (_disks, live) = Disks::create(VdevKind::File, 1);
    for name in ["tank/none", "tank@none", "other", "tank#b", "/", "@"] {
        assert!(live.set_pool_property(PropertyInput::text("bootfs", name)).is_err(), "{name}");
        assert!(live.gate().failure().is_none(), "{name}");
    }
    assert!(live.set_pool_property(PropertyInput::number("bootfs", 1)).is_err());
    assert_eq!(shown(&live, "bootfs"), "-");
    live.export().unwrap();
}

/// What Cenote did before November 2026.
fn put_text(change: &MosChange<'_>, table: ObjectId, name: &str) {
    let object = change.mos.object(table).unwrap();
    let text = Value::of_bytes(format!("{name}\0").as_bytes()).unwrap();
    zap::update(&object, change.tx, "bootfs", &text).unwrap();
}

#[test]
fn a_name_where_bootfs_has_its_object_is_mended() {
    for (name, then) in [("tank", "tank"), ("tank/gone", "-"), ("", "-"), ("\u{1}\u{ff}@", "-")] {
        let (disks, live) = Disks::create(VdevKind::File, 1);
        live.set_pool_property(PropertyInput::text("bootfs", "tank")).unwrap();
        let catalog = live.pool().catalog();
        let id = catalog.object_directory().unwrap().number("pool_props").unwrap().unwrap();
        live.change(move |_, change| {
            put_text(change, ObjectId(id), name);
            Ok(())
        })
        .unwrap();
        // Looking answers what was meant.
        assert_eq!(shown(&live, "bootfs"), name);
        live.export().unwrap();
        drop((catalog, live));
        let live = disks.reopen();
        assert!(table(&live).number("bootfs").unwrap().is_some());
        assert_eq!(shown(&live, "bootfs"), then);
        census(live.pool());
        live.export().unwrap();
    }
}

#[test]
fn properties_of_datasets_are_kept_as_openzfs_reads_them() {
    let (disks, live) = Disks::create(VdevKind::File, 1);
    let catalog = live.pool().catalog();
    let head = catalog.dataset_named("tank").unwrap();
    // Properties that are kept elsewhere, or need more than being stored.
    const ELSEWHERE: [&str; 7] = [
        "version",
        "volsize",
        "keylocation",
        "filesystem_limit",
        "snapshot_limit",
        "refreservation",
        "reservation",
    ];
    let mut stored = Vec::new();
    for property in property::DATASET {
        if property.is_read_only()
            || property.is_settable_once()
            || ELSEWHERE.contains(&property.name)
        {
            continue;
        }
        let values: Vec<PropertyData> = match property.kind {
            Kind::Index(table) => {
                table.iter().map(|(_, index)| PropertyData::Number(*index)).collect()
            }
            Kind::Number => [0, 512, 1 << 20].map(PropertyData::Number).to_vec(),
            Kind::String => ["", "none", "/a b"].map(|s| PropertyData::Text(s.into())).to_vec(),
        };
        for value in values {
            let input = PropertyInput { name: property.name.to_owned(), value };
            stored.push(input);
        }
    }
    let id = head.id;
    let props = head.directory.phys.properties;
    for input in stored {
        let set = input.clone();
        live.change(move |_, change| change.set_property(id, &set)).unwrap();
        let catalog = live.pool().catalog();
        let table = Table::open(catalog.mos(), props).unwrap().unwrap();
        let found = table.value(&input.name).unwrap().unwrap();
        let newer = table.value(&format!("{}$iuv", input.name)).unwrap();
        match &input.value {
            PropertyData::Number(number) => {
                // A number of eight bytes, or one that older software knows with the true one beside.
                let true_one = newer.as_ref().unwrap_or(&found);
                assert_eq!(true_one.as_u64(), Some(*number), "{input}");
                assert!(found.as_u64().is_some(), "{input}");
            }
            PropertyData::Text(text) => {
                assert_eq!(
                    found,
                    Value::of_bytes(format!("{text}\0").as_bytes()).unwrap(),
                    "{input}"
                );
                assert_eq!(newer, None, "{input}");
            }
        }
    }
    live.export().unwrap();
    drop((catalog, live));
    let live = disks.reopen();
    census(live.pool());
    live.export().unwrap();
}
