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

#[cfg(test)]
mod tests {
    use cenote_lua::{Limits, Stop, Value, machine};

    use super::of;

    /// What is shown of an expression.
    fn shown(expression: &str, memory: usize) -> String {
        let goes_on = || true;
        let mut vm = machine(Limits { instructions: 10_000, memory: 1 << 20 }, &goes_on).unwrap();
        let main = vm.load(format!("return {expression}").as_bytes(), "channel program").unwrap();
        let found = vm.call(&main, &[]).unwrap();
        match of(&mut vm, &found[0], memory) {
            Ok(value) => format!("{value:?}"),
            Err(Stop::Error(Value::Str(text))) => text.lossy(),
            Err(stop) => format!("{stop:?}"),
        }
    }

    #[test]
    fn what_cannot_be_shown_is_refused() {
        let list = "{1, {2}, a = {b = true}, [true] = 'x\\0y'}";
        let expected = "Some(List([(\"1\", Number(1)), (\"2\", List([(\"1\", Number(2))])), (\"a\", \
                        List([(\"b\", Bool(true))])), (\"true\", Text(\"x\"))]))";
        assert_eq!(shown(list, 1 << 20), expected);
        assert_eq!(shown(list, 100), "None");
        assert_eq!(shown("nil", 100), "Some(Present)");
        for (wrong, words) in [
            ("assert", "Invalid return type 'function'"),
            ("{[{}] = 1}", "Invalid key type 'table' in table"),
            ("{[false] = 1, ['false'] = 2}", "Collision of key 'false' in table"),
            ("{0, 0, ['2'] = 0}", "Collision of key '2' in table"),
        ] {
            assert_eq!(shown(wrong, 1 << 20), words);
        }
        let deep = "{".repeat(21) + &"}".repeat(21);
        assert_eq!(shown(&deep, 1 << 20), "Maximum table depth (20) exceeded for table");
    }
}
