//! `string`, but for what looks for patterns and what formats.
//!
//! Invariant: as in [`super`]; nothing is made that is larger than the memory a program may have.

use super::{format, matching, position};
use crate::error::Result;
use crate::value::Value;
use crate::vm::Vm;

type Results = Result<Vec<Value>>;

pub(super) fn register(vm: &mut Vm<'_>) -> Result<()> {
    let module = super::module(vm, "string")?;
    vm.register(module, "byte", byte)?;
    vm.register(module, "char", char)?;
    vm.register(module, "len", |vm, args| {
        Ok(vec![super::count(vm.text_argument(args, 1)?.bytes().len())])
    })?;
    vm.register(module, "lower", |vm, args| {
        let text = vm.text_argument(args, 1)?.bytes().to_ascii_lowercase();
        Ok(vec![vm.take_string(text)?])
    })?;
    vm.register(module, "upper", |vm, args| {
        let text = vm.text_argument(args, 1)?.bytes().to_ascii_uppercase();
        Ok(vec![vm.take_string(text)?])
    })?;
    vm.register(module, "reverse", |vm, args| {
        let text = vm.text_argument(args, 1)?.bytes().iter().rev().copied().collect();
        Ok(vec![vm.take_string(text)?])
    })?;
    vm.register(module, "rep", repeat)?;
    vm.register(module, "sub", sub)?;
    vm.register(module, "format", format::format)?;
    vm.register(module, "find", |vm, args| matching::find(vm, args, true))?;
    vm.register(module, "match", |vm, args| matching::find(vm, args, false))?;
    vm.register(module, "gmatch", matching::gmatch)?;
    vm.register(module, "gsub", matching::gsub)?;
    let meta = vm.new_table()?;
    let key = vm.string(b"__index")?;
    vm.raw_set(meta, key, Value::Table(module))?;
    vm.string_meta = Some(meta);
    Ok(())
}

/// The bytes from one position to another.
fn range(text: &[u8], first: i64, last: i64) -> &[u8] {
    let length = text.len();
    let first = position(first, length).max(1);
    let last = position(last, length).min(i64::try_from(length).unwrap_or(i64::MAX));
    if first > last {
        return &[];
    }
    let (from, to) = (usize::try_from(first - 1), usize::try_from(last));
    text.get(from.unwrap_or(0)..to.unwrap_or(0)).unwrap_or_default()
}

fn byte(vm: &mut Vm<'_>, args: &[Value]) -> Results {
    let text = vm.text_argument(args, 1)?;
    let first = vm.int_or(args, 2, 1)?;
    let first = position(first, text.bytes().len());
    let last = vm.int_or(args, 3, first)?;
    let bytes = range(text.bytes(), first, last);
    vm.room_for(bytes.len().saturating_mul(16))?;
    Ok(bytes.iter().map(|byte| Value::Int(i64::from(*byte))).collect())
}

fn char(vm: &mut Vm<'_>, args: &[Value]) -> Results {
    let mut text = Vec::with_capacity(args.len());
    for number in 1..=args.len() {
        match u8::try_from(vm.int_argument(args, number)?) {
            Ok(byte) => text.push(byte),
            Err(_) => return Err(vm.argument_error(number, "value out of range")),
        }
    }
    Ok(vec![vm.take_string(text)?])
}

fn repeat(vm: &mut Vm<'_>, args: &[Value]) -> Results {
    let text = vm.text_argument(args, 1)?;
    let times = usize::try_from(vm.int_argument(args, 2)?).unwrap_or(0);
    let between = match args.get(2) {
        None | Some(Value::Nil) => Vec::new(),
        Some(_) => vm.text_argument(args, 3)?.bytes().to_vec(),
    };
    if times == 0 {
        return Ok(vec![vm.string(b"")?]);
    }
    let one = text.bytes().len().saturating_add(between.len());
    if one == 0 {
        return Ok(vec![vm.string(b"")?]);
    }
    vm.make_room(one.saturating_mul(times))?;
    let mut all = Vec::with_capacity(one.saturating_mul(times));
    for at in 0..times {
        if at > 0 {
            all.extend_from_slice(&between);
        }
        all.extend_from_slice(text.bytes());
    }
    Ok(vec![vm.take_string(all)?])
}

fn sub(vm: &mut Vm<'_>, args: &[Value]) -> Results {
    let text = vm.text_argument(args, 1)?;
    let (first, last) = (vm.int_argument(args, 2)?, vm.int_or(args, 3, -1)?);
    Ok(vec![vm.string(range(text.bytes(), first, last))?])
}
