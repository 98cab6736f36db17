//! What an object holds, where the type of the object tells how to read it.
//!
//! Invariant: at most [`MOST`] items of an object are told; what is left out is said.

use cenote_engine::Error;
use cenote_engine::object::Object;
use cenote_engine::pool::packed;
use cenote_engine::zap::{Entry, Zap};
use cenote_format::ObjectType;
use cenote_format::bpobj::{self, BpobjHeader};
use cenote_format::bytes::le64;
use cenote_format::object_type::SwapClass;
use cenote_format::{BlockPointer, blkptr};
use serde_json::{Map, Value, json};

use super::described::Described;
use super::{pointer, render};

/// Most entries of a ZAP, pointers, numbers that are told.
pub const MOST: usize = 100_000;
/// Bits of a directory entry that are the object.
const OBJECT_MASK: u64 = (1 << 48) - 1;
/// Largest packed list that is read, in bytes.
const LARGEST_LIST: u64 = 64 << 20;
/// Longest bytes value that is shown as hexadecimal.
const LONG_VALUE: usize = 256;

/// Adds what `object` holds. `deep` adds lists of block pointers.
pub fn describe(out: &mut Described, object: &Object, deep: bool) {
    let kind = object.dnode().object_type;
    let done = match kind {
        _ if kind.swap_class() == SwapClass::Zap => zap(out, object),
        ObjectType::PACKED_NVLIST => nvlist(out, object),
        ObjectType::OBJECT_ARRAY | ObjectType::PACKED_NVLIST_SIZE | ObjectType::FUID_SIZE => {
            numbers(out, object)
        }
        ObjectType::BPOBJ_SUBOBJ => numbers(out, object),
        ObjectType::BPOBJ if deep => pointers(out, object),
        _ => Ok(()),
    };
    if let Err(error) = done {
        out.failed("content", error);
    }
}

fn zap(out: &mut Described, object: &Object) -> Result<(), Error> {
    let zap = Zap::open(object.clone())?;
    let count = zap.count()?;
    match zap.fat_header() {
        Some(header) => {
            out.line("\tFat ZAP stats:".to_owned());
            out.line(format!("\t\tPointer table: {} elements", 1u64 << header.table.shift.min(63)));
            out.line(format!("\t\tZAP entries: {count}"));
            out.line(format!("\t\tLeaf blocks: {}", header.leaves));
            out.line(format!("\t\tTotal blocks: {}", header.free_block));
            out.fact("zap_leaves", header.leaves);
        }
        None => {
            let size = object.dnode().max_offset();
            out.line(format!("\tmicrozap: {size} bytes, {count} entries"));
        }
    }
    out.fact("zap_entries", count);
    out.line(String::new());
    let directory = object.dnode().object_type == ObjectType::DIRECTORY;
    let mut entries = Map::new();
    for (told, entry) in zap.entries().enumerate() {
        if told >= MOST {
            out.line(format!(
                "\t\t({} more entries are not shown)",
                count.saturating_sub(MOST as u64)
            ));
            break;
        }
        let entry = entry?;
        let name = key(&entry);
        let (text, value) = match entry.value.as_u64() {
            Some(number) if directory => (directory_entry(number), json!(number & OBJECT_MASK)),
            _ => value(&entry),
        };
        out.line(format!("\t\t{name} = {text}"));
        entries.insert(name, value);
    }
    out.fact("entries", Value::Object(entries));
    Ok(())
}

fn key(entry: &Entry) -> String {
    if entry.key.words().is_empty() {
        return String::from_utf8_lossy(entry.name()).into_owned();
    }
    let words: Vec<String> = entry.key.words().iter().map(|word| format!("{word:016x}")).collect();
    words.join(":")
}

fn value(entry: &Entry) -> (String, Value) {
    let value = &entry.value;
    if let Some(number) = value.as_u64() {
        return (number.to_string(), json!(number));
    }
    if value.integer_size() == 1 {
        let raw = value.raw();
        let text = raw.strip_suffix(&[0]).unwrap_or(raw);
        let readable = std::str::from_utf8(text).ok();
        if let Some(text) = readable.filter(|text| !text.chars().any(char::is_control)) {
            return (text.to_owned(), json!(text));
        }
        let shown = raw.get(..LONG_VALUE).unwrap_or(raw);
        let hex: String = shown.iter().map(|byte| format!("{byte:02x}")).collect();
        let rest = if raw.len() > LONG_VALUE { "..." } else { "" };
        return (format!("{hex}{rest} ({} bytes)", raw.len()), json!(hex));
    }
    let numbers: Vec<u64> = value.integers().collect();
    let text: Vec<String> = numbers.iter().map(u64::to_string).collect();
    (text.join(" "), json!(numbers))
}

/// `8 (type: Regular File)`.
fn directory_entry(value: u64) -> String {
    let kind = match value >> 60 {
        0 => "not specified",
        1 => "FIFO",
        2 => "Character Device",
        4 => "Directory",
        6 => "Block Device",
        8 => "Regular File",
        10 => "Symbolic Link",
        12 => "Socket",
        13 => "Door",
        14 => "Event Port",
        _ => "invalid",
    };
    format!("{} (type: {kind})", value & OBJECT_MASK)
}

fn nvlist(out: &mut Described, object: &Object) -> Result<(), Error> {
    let list = packed::read(object.set(), object.id(), LARGEST_LIST)?;
    let value = render::nvlist(&list);
    let text = render::text(&value, 2);
    text.lines().for_each(|line| out.line(line));
    out.fact("nvlist", value);
    Ok(())
}

fn numbers(out: &mut Described, object: &Object) -> Result<(), Error> {
    let length = object.dnode().max_offset().min(MOST as u64 * 8);
    let data = object.read_vec(0, usize::try_from(length).unwrap_or(0))?;
    let words = (0..data.len() / 8).filter_map(|index| le64(&data, index * 8));
    let mut words: Vec<u64> = words.collect();
    let used = words.iter().rposition(|word| *word != 0).map_or(0, |last| last + 1);
    words.truncate(used);
    let text: Vec<String> = words.iter().map(u64::to_string).collect();
    text.chunks(10).for_each(|row| out.line(format!("\t\t{}", row.join(" "))));
    out.fact("numbers", json!(words));
    Ok(())
}

fn pointers(out: &mut Described, object: &Object) -> Result<(), Error> {
    let header = BpobjHeader::decode(object.dnode().bonus())?;
    let mut told = Vec::new();
    let count = header.pointers.min(MOST as u64);
    for index in 0..count {
        let raw = object.read_vec(index * blkptr::SIZE as u64, blkptr::SIZE)?;
        let entry = BlockPointer::decode(&raw)?;
        let freed = if bpobj::is_freed_entry(&entry) { " FREE" } else { "" };
        out.line(format!("\t\t{}{freed}", pointer::short(&entry)));
        told.push(pointer::value(&entry));
    }
    if header.pointers > count {
        out.line(format!("\t\t({} more are not shown)", header.pointers - count));
    }
    out.fact("pointers", Value::Array(told));
    Ok(())
}
