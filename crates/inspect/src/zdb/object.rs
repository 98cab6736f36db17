//! One object: the row of the table, its flags, bonus, content, and its blocks.
//!
//! Invariant: the row is that of `zdb -dd`; what cannot be read is told in its place.

use std::ops::ControlFlow;

use cenote_engine::object::Object;
use cenote_format::dnode::{
    FLAG_SPILL, FLAG_USED_BYTES, FLAG_USEROBJUSED_ACCOUNTED, FLAG_USERUSED_ACCOUNTED,
};
use cenote_format::{BlockPointer, ObjectType, blkptr};
use serde_json::{Value, json};

use super::content::{self, MOST};
use super::described::Described;
use super::files::Files;
use super::{bonus, pointer};

/// The heading of the table.
pub const HEADING: &str = "\n    Object  lvl   iblk   dblk  dsize  dnsize  lsize   %full  type";

/// What is shown of an object.
#[derive(Clone, Copy, Debug)]
pub struct Detail {
    /// Flags, bonus and content.
    pub content: bool,
    /// Block pointers.
    pub blocks: bool,
    /// The content is encrypted and its key is not loaded.
    pub sealed: bool,
}

/// Tells about `object`, known by `number` (negative for accounting objects).
pub fn describe(object: &Object, number: i64, detail: Detail, files: &Files) -> Described {
    let mut out = Described::default();
    row(&mut out, object, number);
    if detail.content {
        let dnode = object.dnode();
        bonus_row(&mut out, object);
        let names = [
            (FLAG_USED_BYTES, "USED_BYTES"),
            (FLAG_USERUSED_ACCOUNTED, "USERUSED_ACCOUNTED"),
            (FLAG_USEROBJUSED_ACCOUNTED, "USEROBJUSED_ACCOUNTED"),
            (FLAG_SPILL, "SPILL_BLKPTR"),
        ];
        let set = names.iter().filter(|(flag, _)| dnode.flags & flag != 0);
        let flags: Vec<&str> = set.map(|(_, name)| *name).collect();
        out.line(format!("\tdnode flags: {} ", flags.join(" ")));
        out.fact("flags", json!(flags));
        out.line(format!("\tdnode maxblkid: {}", dnode.max_block_id));
        out.fact("maxblkid", dnode.max_block_id);
        if detail.sealed && dnode.bonus_type.is_encrypted() {
            out.failed("bonus encrypted", "its key is not loaded");
        } else {
            bonus::describe(&mut out, object, files);
        }
        if detail.sealed && dnode.object_type.is_encrypted() {
            out.failed("object encrypted", "its key is not loaded");
        } else {
            content::describe(&mut out, object, detail.blocks);
        }
    }
    if detail.blocks {
        blocks(&mut out, object);
    }
    out
}

fn row(out: &mut Described, object: &Object, number: i64) {
    let dnode = object.dnode();
    let iblk = 1_u64 << dnode.indirect_shift.min(63);
    let dnsize = (u64::from(dnode.extra_slots) + 1) * 512;
    let lsize = dnode.max_offset();
    let fill = dnode.pointers.iter().fold(0, |sum: u64, bp| sum.saturating_add(bp.fill()));
    // The fill of the dnode file counts dnodes, of all others blocks.
    let unit = if number == 0 { 512 } else { dnode.block_size() };
    let full = fill as f64 * unit as f64 * 100.0 / lsize.max(1) as f64;
    let name = pointer::type_name(dnode.object_type);
    let mut suffix = String::new();
    if dnode.checksum != 0 {
        suffix += &format!(" (K={})", pointer::checksum_name(dnode.checksum));
    }
    if dnode.compression != 0 {
        suffix += &format!(" (Z={})", pointer::compression_name(dnode.compression));
    }
    out.line(format!(
        "{number:>10}  {:>3}  {:>5}  {:>5}  {:>5}  {:>6}  {:>5}  {full:>6.2}  {name}{suffix}",
        dnode.levels,
        pointer::size(iblk),
        pointer::size(dnode.block_size()),
        pointer::size(dnode.used_bytes()),
        pointer::size(dnsize),
        pointer::size(lsize),
    ));
    for (name, value) in [
        ("object", json!(number)),
        ("levels", json!(dnode.levels)),
        ("iblk", json!(iblk)),
        ("dblk", json!(dnode.block_size())),
        ("dsize", json!(dnode.used_bytes())),
        ("dnsize", json!(dnsize)),
        ("lsize", json!(lsize)),
        ("full", json!((full * 100.0).round() / 100.0)),
        ("type", json!(name)),
    ] {
        out.fact(name, value);
    }
}

/// The row that names the bonus.
fn bonus_row(out: &mut Described, object: &Object) {
    let dnode = object.dnode();
    if dnode.bonus_type != ObjectType::NONE {
        let name = pointer::type_name(dnode.bonus_type);
        let size = pointer::size(dnode.bonus_len.into());
        out.line(format!("{:>50}   bonus  {name}", size));
        out.fact("bonus_size", dnode.bonus_len);
        out.fact("bonus_type", name);
    }
}

fn blocks(out: &mut Described, object: &Object) {
    let dnode = object.dnode();
    out.line("Indirect blocks:");
    let mut told = Vec::new();
    let top = dnode.levels.saturating_sub(1);
    for (index, root) in dnode.pointers.iter().enumerate() {
        if tree(out, &mut told, object, root, top, index as u64).is_break() {
            out.line(format!("\t\t(more than {MOST} blocks: the others are not shown)"));
            break;
        }
    }
    if let Some(spill) = &dnode.spill {
        out.line(format!("           Spill {}", pointer::short(spill)));
        out.fact("spill", pointer::value(spill));
    }
    out.fact("blocks", Value::Array(told));
    out.line("");
}

/// Tells the tree below `bp` with the byte offsets its blocks cover.
fn tree(
    out: &mut Described,
    told: &mut Vec<Value>,
    object: &Object,
    bp: &BlockPointer,
    level: u8,
    id: u64,
) -> ControlFlow<()> {
    if bp.is_hole() && bp.logical_birth().0 == 0 {
        return ControlFlow::Continue(());
    }
    if told.len() >= MOST {
        return ControlFlow::Break(());
    }
    let per_block = 1_u64 << object.dnode().pointers_shift().min(63);
    let span = per_block.saturating_pow(u32::from(level));
    let offset = id.saturating_mul(span).saturating_mul(object.block_size());
    let depth = usize::from(object.dnode().levels.saturating_sub(1).saturating_sub(level));
    let indent = "  ".repeat(depth);
    out.line(format!("{offset:>16x} {indent}L{level} {}", pointer::short(bp)));
    let mut value = pointer::value(bp);
    if let Value::Object(map) = &mut value {
        map.insert("offset".into(), json!(offset));
    }
    told.push(value);
    if level == 0 || bp.is_hole() || bp.is_redacted() || bp.level().0 != level {
        return ControlFlow::Continue(());
    }
    let block = match object.set().io().pipe.read(bp, object.set().context()) {
        Ok(block) => block,
        Err(error) => {
            out.failed(&format!("offset {offset:x} level {level}"), error);
            return ControlFlow::Continue(());
        }
    };
    let first = id.saturating_mul((block.len() / blkptr::SIZE) as u64);
    for (index, child) in BlockPointer::decode_all(&block).enumerate() {
        tree(out, told, object, &child, level - 1, first.saturating_add(index as u64))?;
    }
    ControlFlow::Continue(())
}
