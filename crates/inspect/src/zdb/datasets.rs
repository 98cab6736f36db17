//! `zdb -d`: datasets and their objects.
//!
//! Detail: 1 a line for each dataset; 2 a row for each object; 4 flags, bonus and content; 5 block
//! pointers. Objects named by number are always shown with their content. Invariant: what cannot be
//! read is told in its place, and the listing goes on.

use std::sync::Arc;

use cenote_engine::dataset::{Dataset, Table, is_hidden};
use cenote_engine::object::{Accounting, Object, ObjectSet};
use cenote_engine::pool::Pool;
use cenote_engine::{Error, ErrorKind};
use cenote_format::bpobj::BpobjHeader;
use cenote_format::deadlist::{decode_header, parse_integer_key};
use cenote_format::{ObjectId, ObjectType};
use serde_json::{Map, Value, json};

use super::files::Files;
use super::object::{self, Detail, HEADING};
use super::pointer;
use super::selection::Selection;
use super::sink::Sink;

/// A dataset, or the pool's own objects, ready to be shown.
struct Subject {
    name: String,
    set: ObjectSet,
    dataset: Option<Dataset>,
    /// The key is not loaded.
    sealed: bool,
}

/// Shows what `target` names: a pool's own objects and all its datasets, or one dataset.
pub fn show(
    pool: &Arc<Pool>,
    target: &str,
    operands: &[String],
    detail: u8,
    sink: &mut Sink,
) -> Result<(), Error> {
    let selections: Vec<Selection> =
        operands.iter().map(|text| Selection::parse(text)).collect::<Result<_, _>>()?;
    let mut shown = Vec::new();
    if target == pool.name() || target == pool.guid().to_string() {
        let mos = Subject {
            name: "mos".to_owned(),
            set: pool.mos().clone(),
            dataset: None,
            sealed: false,
        };
        shown.push(subject(pool, &mos, &selections, detail, sink));
        if selections.is_empty() {
            every_dataset(pool, detail, sink, &mut shown)?;
        }
    } else {
        let dataset = named(pool, target)?;
        let one = open(pool, dataset)?;
        shown.push(subject(pool, &one, &selections, detail, sink));
    }
    sink.json("datasets", Value::Array(shown));
    Ok(())
}

/// The dataset called `target`; `POOL/` is the pool's own, `POOL/NUMBER` the one of that object.
fn named(pool: &Arc<Pool>, target: &str) -> Result<Dataset, Error> {
    let catalog = pool.catalog();
    if target.contains('#') {
        let reason = format!("'{target}' is a bookmark, which has no objects");
        return Err(Error::invalid(reason).with_advice("name a dataset or a snapshot"));
    }
    let name = target.trim_end_matches('/');
    let not_found = match catalog.dataset_named(name) {
        Err(error) if error.kind() == ErrorKind::NotFound => error,
        found => return found,
    };
    let number = name.strip_prefix(pool.name()).and_then(|rest| rest.strip_prefix('/'));
    let number = number.and_then(|text| match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    });
    match number {
        Some(number) => catalog.dataset_by_id(ObjectId(number)),
        None => Err(not_found.with_advice(format!("'zdb -d {}' lists all datasets", pool.name()))),
    }
}

fn open(pool: &Arc<Pool>, dataset: Dataset) -> Result<Subject, Error> {
    let catalog = pool.catalog();
    let (set, sealed) = match catalog.object_set(&dataset, &**pool.keys()) {
        Err(error) if error.kind() == ErrorKind::KeyNotLoaded => {
            (catalog.sealed_object_set(&dataset)?, true)
        }
        // An encrypted dataset opens without its key, and then denies its content.
        set => {
            let root = catalog.key_object(&dataset.directory)?.map(|key| key.root);
            let sealed = root
                .is_some_and(|root| !cenote_engine::dataset::Keys::is_loaded(&**pool.keys(), root));
            (if sealed { catalog.sealed_object_set(&dataset)? } else { set? }, sealed)
        }
    };
    Ok(Subject { name: dataset.name.to_string(), set, dataset: Some(dataset), sealed })
}

fn every_dataset(
    pool: &Arc<Pool>,
    detail: u8,
    sink: &mut Sink,
    shown: &mut Vec<Value>,
) -> Result<(), Error> {
    let catalog = pool.catalog();
    for directory in catalog.walk(&catalog.root()?)? {
        if sink.is_closed() {
            break;
        }
        if is_hidden(directory.component()) {
            continue;
        }
        let mut all = Vec::new();
        match catalog.head(&directory) {
            Ok(head) => {
                match catalog.snapshots(&head) {
                    Ok(snapshots) => all.extend(snapshots),
                    Err(error) => shown.push(unreadable(&format!("{}@*", head.name), &error, sink)),
                }
                all.push(head);
            }
            Err(error) => shown.push(unreadable(&directory.path, &error, sink)),
        }
        for dataset in all {
            let name = dataset.name.to_string();
            shown.push(match open(pool, dataset) {
                Ok(one) => subject(pool, &one, &[], detail, sink),
                Err(error) => unreadable(&name, &error, sink),
            });
        }
    }
    Ok(())
}

fn unreadable(name: &str, error: &Error, sink: &mut Sink) -> Value {
    sink.complain();
    sink.line(format_args!("Dataset {name}: {error}"));
    json!({ "name": name, "error": error.to_string() })
}

fn subject(
    pool: &Arc<Pool>,
    one: &Subject,
    selections: &[Selection],
    detail: u8,
    sink: &mut Sink,
) -> Value {
    let mut facts =
        headline(pool, one, detail.max(if selections.is_empty() { 0 } else { 4 }), sink);
    if detail >= 4
        && selections.is_empty()
        && let Some(dataset) = &one.dataset
    {
        match deadlist(pool, dataset.phys.deadlist, sink) {
            Ok(value) => facts.insert("deadlist".into(), value),
            Err(error) => facts.insert("deadlist_error".into(), failed(&error, sink)),
        };
    }
    if detail >= 2 || !selections.is_empty() {
        let how = Detail {
            content: detail >= 4 || !selections.is_empty(),
            blocks: detail >= 5,
            sealed: one.sealed,
        };
        sink.line(HEADING);
        facts.insert("list".into(), Value::Array(objects(one, selections, how, sink)));
        sink.line("");
    }
    Value::Object(facts)
}

/// `Dataset NAME [ZPL], ID n, cr_txg n, SIZE, n objects`.
fn headline(pool: &Arc<Pool>, one: &Subject, detail: u8, sink: &mut Sink) -> Map<String, Value> {
    let kind = match one.set.kind().raw() {
        1 => "META",
        2 => "ZPL",
        3 => "ZVOL",
        4 => "OTHER",
        5 => "ANY",
        _ => "NONE",
    };
    let (created, size) = match &one.dataset {
        Some(dataset) => (dataset.phys.creation_txg.0, dataset.phys.referenced_bytes),
        None => (4, own_size(pool)),
    };
    let root = one.set.root_pointer();
    let objects = root.fill();
    let mut line = format!("Dataset {} [{kind}], ID {}, cr_txg {created}", one.name, one.set.id());
    line += &format!(", {}, {objects} objects", pointer::size(size));
    if one.sealed {
        line += " (encrypted, key not loaded: names, attributes and content are hidden)";
    }
    if detail >= 4 {
        line += &format!(", rootbp {}", pointer::long(root));
    }
    sink.line(line);
    let mut facts = Map::new();
    for (name, value) in [
        ("name", json!(one.name)),
        ("kind", json!(kind)),
        ("id", json!(one.set.id())),
        ("created_txg", json!(created)),
        ("size", json!(size)),
        ("objects", json!(objects)),
        ("key_missing", json!(one.sealed)),
        ("rootbp", pointer::value(root)),
    ] {
        facts.insert(name.to_owned(), value);
    }
    facts
}

/// Space of the pool's own objects.
fn own_size(pool: &Arc<Pool>) -> u64 {
    let catalog = pool.catalog();
    let own = catalog.root().and_then(|root| catalog.child(&root, "$MOS"));
    own.map_or(0, |own| own.phys.used_bytes)
}

fn deadlist(pool: &Arc<Pool>, id: ObjectId, sink: &mut Sink) -> Result<Value, Error> {
    if id.0 == 0 {
        return Ok(Value::Null);
    }
    let dnode = pool.mos().dnode(id)?;
    let (space, entries) = if dnode.bonus_type == ObjectType::BPOBJ_HEADER {
        (BpobjHeader::decode(dnode.bonus())?.space, Vec::new())
    } else {
        let table = Table::open(&pool.mos(), id)?.map_or(Ok(Vec::new()), |t| t.numbers())?;
        let mut entries = Vec::new();
        for (name, object) in table {
            entries.push((parse_integer_key(name.as_bytes())?, object));
        }
        entries.sort_unstable();
        (decode_header(dnode.bonus())?, entries)
    };
    let [used, compressed, uncompressed] =
        [space.used, space.compressed, space.uncompressed].map(pointer::size);
    sink.line(format_args!(
        "\n    Deadlist: {used} ({compressed}/{uncompressed} comp), {} entries\n",
        entries.len()
    ));
    for (txg, object) in &entries {
        sink.line(format_args!("      mintxg {txg} -> obj {object}"));
    }
    let entries: Map<String, Value> =
        entries.iter().map(|(txg, object)| (txg.to_string(), json!(object))).collect();
    Ok(json!({
        "object": id.0,
        "used": space.used,
        "compressed": space.compressed,
        "uncompressed": space.uncompressed,
        "entries": entries,
    }))
}

fn failed(error: &Error, sink: &mut Sink) -> Value {
    sink.complain();
    sink.line(format_args!("    ({error})"));
    json!(error.to_string())
}

fn objects(one: &Subject, selections: &[Selection], how: Detail, sink: &mut Sink) -> Vec<Value> {
    let files = match (how.content, one.sealed) {
        (true, false) if one.set.kind().raw() == 2 => Files::open(&one.set),
        (_, true) => Files::none("its key is not loaded"),
        _ => Files::none("not a filesystem"),
    };
    let mut out = Vec::new();
    let mut tell = |number: i64, found: Result<Object, Error>, sink: &mut Sink| {
        if how.content && !out.is_empty() {
            sink.line(HEADING);
        }
        let value = match found {
            Ok(object) => {
                let described = object::describe(&object, number, how, &files);
                described.lines.iter().for_each(|line| sink.line(line));
                if described.facts.contains_key("errors") && !one.sealed {
                    sink.complain();
                }
                Value::Object(described.facts)
            }
            Err(error) => {
                sink.complain();
                sink.line(format_args!("{number:>10}  {error}"));
                json!({ "object": number, "error": error.to_string() })
            }
        };
        // Text is written already; only a document needs all of it.
        out.push(if sink.is_json() { value } else { Value::Null });
    };
    let everything = [Selection::everything()];
    let wanted = if selections.is_empty() { &everything[..] } else { selections };
    for selection in wanted {
        if selection.is_single() {
            tell(selection.first, special(one, selection.first), sink);
            continue;
        }
        if selection.first <= 0 {
            let accounting = if selections.is_empty() { 3 } else { 0 };
            for number in (-accounting..=0).rev() {
                match special(one, number) {
                    Ok(object) if selection.wants(object.dnode().object_type) => {
                        tell(number, Ok(object), sink);
                    }
                    Err(error) if number == 0 => tell(number, Err(error), sink),
                    _ => {}
                }
            }
        }
        let mut after = u64::try_from(selection.first.saturating_sub(1)).unwrap_or(0);
        while !sink.is_closed() {
            let id = match one.set.next_object(after) {
                Ok(Some(id)) if i64::try_from(id.0).is_ok_and(|n| n <= selection.last) => id,
                Ok(_) => break,
                Err(error) => {
                    tell(i64::try_from(after).unwrap_or(i64::MAX), Err(error), sink);
                    break;
                }
            };
            after = id.0;
            let found = one.set.object(id);
            if found.as_ref().map_or(true, |o| selection.wants(o.dnode().object_type)) {
                tell(i64::try_from(id.0).unwrap_or(i64::MAX), found, sink);
            }
        }
    }
    out
}

/// The object of that number; 0 and below are those that have no number of their own.
fn special(one: &Subject, number: i64) -> Result<Object, Error> {
    let accounting = |which| {
        let missing = || Error::not_found(format!("no accounting object {number}"));
        one.set.accounting_object(which).ok_or_else(missing)
    };
    match number {
        0 => Ok(one.set.meta_object()),
        -1 => accounting(Accounting::User),
        -2 => accounting(Accounting::Group),
        -3 => accounting(Accounting::Project),
        _ => match u64::try_from(number) {
            Ok(number) => one.set.object(ObjectId(number)),
            Err(_) => {
                let reason = format!("there is no object {number}");
                Err(Error::invalid(reason).with_advice("-1, -2 and -3 are the accounting objects"))
            }
        },
    }
}
