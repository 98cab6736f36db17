//! From what a program returns to what is shown.
//!
//! Invariant: what is shown is a tree of a bounded depth, in which every key of a list is there once.

use std::collections::HashSet;

use cenote_control::program::ProgramValue;
use cenote_lua::{Stop, Str, TableId, Value, Vm};

use super::plain;

/// How deep tables may lie in one another.
const DEPTH_MAX: u32 = 20;
/// Bytes of an entry beside its key and value.
const ENTRY: usize = 32;

/// The value as it is shown; nothing if that takes more than so many bytes.
pub fn of(vm: &mut Vm<'_>, value: &Value, memory: usize) -> Result<Option<ProgramValue>, Stop> {
    let mut room = Some(memory);
    let shown = nested(vm, value, 0, &mut room)?;
    Ok(room.map(|_| shown))
}

/// What is shown takes so many bytes more.
fn take(room: &mut Option<usize>, bytes: usize) {
    *room = room.and_then(|left| left.checked_sub(ENTRY.saturating_add(bytes)));
}

fn nested(
    vm: &mut Vm<'_>,
    value: &Value,
    depth: u32,
    room: &mut Option<usize>,
) -> Result<ProgramValue, Stop> {
    take(room, if let Value::Str(text) = value { text.bytes().len() } else { 0 });
    if room.is_none() {
        return Ok(ProgramValue::Present);
    }
    Ok(match value {
        Value::Nil => ProgramValue::Present,
        Value::Bool(truth) => ProgramValue::Bool(*truth),
        Value::Int(number) => ProgramValue::Number(*number),
        Value::Str(text) => ProgramValue::Text(shown(text)),
        Value::Table(table) => list(vm, *table, depth, room)?,
        other => {
            let kind = other.type_name();
            return Err(plain(vm, &format!("Invalid return type '{kind}'")));
        }
    })
}

/// A text up to its first zero byte.
fn shown(text: &Str) -> String {
    let bytes = text.bytes().split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(bytes).into_owned()
}

fn list(
    vm: &mut Vm<'_>,
    table: TableId,
    depth: u32,
    room: &mut Option<usize>,
) -> Result<ProgramValue, Stop> {
    if depth >= DEPTH_MAX {
        return Err(plain(vm, &format!("Maximum table depth ({DEPTH_MAX}) exceeded for table")));
    }
    let (mut all, mut known, mut at) = (Vec::new(), HashSet::new(), Value::Nil);
    while let Some(Some((key, value))) = vm.next(table, &at) {
        let name = match &key {
            Value::Str(text) => shown(text),
            Value::Int(number) => number.to_string(),
            Value::Bool(truth) => truth.to_string(),
            other => {
                let kind = other.type_name();
                return Err(plain(vm, &format!("Invalid key type '{kind}' in table")));
            }
        };
        if !known.insert(name.clone()) {
            return Err(plain(vm, &format!("Collision of key '{name}' in table")));
        }
        vm.check()?;
        take(room, name.len());
        if room.is_none() {
            break;
        }
        all.push((name, nested(vm, &value, depth + 1, room)?));
        at = key;
    }
    Ok(ProgramValue::List(all))
}
