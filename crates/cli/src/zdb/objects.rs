//! `zdb -d`: datasets, their objects, and what single objects hold.
//!
//! Detail: 1 datasets; 2 all objects of the named dataset; 4 with bonus and ZAP content; 5 with
//! block pointers. Objects named by number are always shown fully.

use std::ops::ControlFlow;
use std::sync::Arc;

use cenote_engine::Error;
use cenote_engine::dataset::Dataset;
use cenote_engine::object::{Object, ObjectSet};
use cenote_engine::pool::Pool;
use cenote_engine::zap::Zap;
use cenote_format::object_type::SwapClass;
use cenote_format::{BlockPointer, ObjectId, ObjectType, blkptr};
use serde_json::{Map, Value, json};

/// Most entries of a ZAP, pointers of an object, that are shown.
const MOST: usize = 100_000;

/// The datasets of `pool`, or the objects of the dataset `target` names.
pub fn show(
    pool: &Arc<Pool>,
    target: &str,
    objects: &[String],
    detail: u8,
) -> Result<Map<String, Value>, Error> {
    let mut out = Map::new();
    let numbers = parse_numbers(objects)?;
    if target == pool.name() || target == "mos" {
        let set = pool.mos().clone();
        out.insert(title("mos", &set, None), contents(&set, &numbers, detail));
        if !numbers.is_empty() {
            return Ok(out);
        }
        for dataset in all(pool)? {
            let name = dataset.name.to_string();
            match pool.catalog().sealed_object_set(&dataset) {
                Ok(set) => {
                    let title = title(&name, &set, Some(&dataset));
                    out.insert(title, contents(&set, &[], detail));
                }
                Err(error) => {
                    out.insert(format!("Dataset {name}"), json!(error.to_string()));
                }
            }
        }
        return Ok(out);
    }
    let dataset = pool.catalog().dataset_named(target)?;
    let set = pool.catalog().sealed_object_set(&dataset)?;
    let detail = detail.max(2);
    let title = title(target, &set, Some(&dataset));
    out.insert(title, contents(&set, &numbers, detail));
    Ok(out)
}

fn all(pool: &Arc<Pool>) -> Result<Vec<Dataset>, Error> {
    let catalog = pool.catalog();
    let mut out = Vec::new();
    for directory in catalog.walk(&catalog.root()?)? {
        let head = catalog.head(&directory)?;
        let snapshots = catalog.snapshots(&head)?;
        out.push(head);
        out.extend(snapshots);
    }
    Ok(out)
}

fn parse_numbers(objects: &[String]) -> Result<Vec<u64>, Error> {
    let parse = |text: &String| {
        text.parse().map_err(|_| Error::invalid(format!("'{text}' is not an object number")))
    };
    objects.iter().map(parse).collect()
}

fn title(name: &str, set: &ObjectSet, dataset: Option<&Dataset>) -> String {
    let kind = match set.kind().raw() {
        1 => "META",
        2 => "ZPL",
        3 => "ZVOL",
        _ => "OTHER",
    };
    let created = dataset.map_or(4, |dataset| dataset.phys.creation_txg.0);
    let objects = set.root_pointer().fill();
    format!("Dataset {name} [{kind}], ID {}, cr_txg {created}, {objects} objects", set.id())
}

fn contents(set: &ObjectSet, numbers: &[u64], detail: u8) -> Value {
    let mut out = Map::new();
    out.insert("rootbp".into(), json!(format!("{:?}", set.root_pointer())));
    if !numbers.is_empty() {
        for number in numbers {
            let shown = set.object(ObjectId(*number)).map(|object| describe(&object, 5));
            let shown = shown.unwrap_or_else(|error| json!(error.to_string()));
            out.insert(format!("Object {number}"), shown);
        }
        return Value::Object(out);
    }
    if detail < 2 {
        return Value::Object(out);
    }
    let mut after = 0;
    loop {
        match set.next_object(after) {
            Ok(Some(id)) => {
                let shown = set.object(id).map(|object| describe(&object, detail));
                let shown = shown.unwrap_or_else(|error| json!(error.to_string()));
                out.insert(format!("Object {id}"), shown);
                after = id.0;
            }
            Ok(None) => break,
            Err(error) => {
                out.insert("stopped".into(), json!(error.to_string()));
                break;
            }
        }
    }
    Value::Object(out)
}

fn describe(object: &Object, detail: u8) -> Value {
    let dnode = object.dnode();
    let mut out = Map::new();
    out.insert("type".into(), json!(dnode.object_type.name()));
    out.insert("levels".into(), json!(dnode.levels));
    out.insert("iblk".into(), json!(1_u64 << dnode.indirect_shift.min(63)));
    out.insert("dblk".into(), json!(dnode.block_size()));
    out.insert("dsize".into(), json!(dnode.used_bytes()));
    out.insert("dnsize".into(), json!((u64::from(dnode.extra_slots) + 1) * 512));
    out.insert("lsize".into(), json!(dnode.max_offset()));
    if dnode.bonus_type != ObjectType::NONE {
        let bonus = format!("{} bytes of {}", dnode.bonus_len, dnode.bonus_type.name());
        out.insert("bonus".into(), json!(bonus));
    }
    if detail >= 4 {
        out.insert("maxblkid".into(), json!(dnode.max_block_id));
        out.insert("flags".into(), json!(dnode.flags));
        if dnode.bonus_len > 0 {
            let hex: String = dnode.bonus().iter().map(|byte| format!("{byte:02x}")).collect();
            out.insert("bonus bytes".into(), json!(hex));
        }
        if dnode.object_type.swap_class() == SwapClass::Zap {
            let entries = zap(object).unwrap_or_else(|error| json!(error.to_string()));
            out.insert("entries".into(), entries);
        }
    }
    if detail >= 5 {
        let mut lines = Vec::new();
        for (index, pointer) in dnode.pointers.iter().enumerate() {
            let top = dnode.levels.saturating_sub(1);
            let _ = pointers(object, pointer, top, index as u64, &mut lines);
        }
        if let Some(spill) = &dnode.spill {
            lines.push(format!("spill {spill:?}"));
        }
        out.insert("blocks".into(), json!(lines));
    }
    Value::Object(out)
}

fn zap(object: &Object) -> Result<Value, Error> {
    let zap = Zap::open(object.clone())?;
    let mut out = Map::new();
    for entry in zap.entries().take(MOST) {
        let entry = entry?;
        let name = if entry.key.words().is_empty() {
            String::from_utf8_lossy(entry.name()).into_owned()
        } else {
            entry.key.words().iter().map(|word| format!("{word:016x}")).collect()
        };
        let value = match entry.value.as_u64() {
            Some(number) => json!(number),
            None => json!(format!("{:?}", entry.value)),
        };
        out.insert(name, value);
    }
    Ok(Value::Object(out))
}

/// Lists the tree below `pointer` with the byte offsets its blocks cover.
fn pointers(
    object: &Object,
    pointer: &BlockPointer,
    level: u8,
    id: u64,
    lines: &mut Vec<String>,
) -> ControlFlow<()> {
    if pointer.is_hole() {
        return ControlFlow::Continue(());
    }
    if lines.len() >= MOST {
        lines.push("... more are not shown".into());
        return ControlFlow::Break(());
    }
    let span = object.pointers_per_block().saturating_pow(u32::from(level));
    let offset = id.saturating_mul(span).saturating_mul(object.block_size());
    lines.push(format!("{offset:>12x} L{level} {pointer:?}"));
    if level == 0 || pointer.level().0 != level {
        return ControlFlow::Continue(());
    }
    let block = match object.set().io().pipe.read(pointer, object.set().context()) {
        Ok(block) => block,
        Err(error) => {
            lines.push(format!("{offset:>12x} L{level} {error}"));
            return ControlFlow::Continue(());
        }
    };
    let first = id.saturating_mul((block.len() / blkptr::SIZE) as u64);
    for (index, child) in BlockPointer::decode_all(&block).enumerate() {
        pointers(object, &child, level - 1, first.saturating_add(index as u64), lines)?;
    }
    ControlFlow::Continue(())
}
