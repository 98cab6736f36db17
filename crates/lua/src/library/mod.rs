//! The library that programs have: what of Lua's does nothing but compute.
//!
//! Invariant: nothing in it reads or writes what lies outside the machine.

mod base;
mod coroutine;
mod format;
mod matching;
mod string;
mod table;

use crate::error::Result;
use crate::value::{TableId, Value};
use crate::vm::{Limits, Vm};

/// A machine with the library in it. It stops when `goes_on` does not hold any more.
///
/// # Errors
/// [`Stop::Memory`](crate::Stop::Memory) if the library does not fit into `limits`.
pub fn machine<'h>(limits: Limits, goes_on: &'h dyn Fn() -> bool) -> Result<Vm<'h>> {
    let mut vm = Vm::bare(limits, goes_on)?;
    base::register(&mut vm)?;
    string::register(&mut vm)?;
    table::register(&mut vm)?;
    coroutine::register(&mut vm)?;
    vm.check_memory()?;
    Ok(vm)
}

/// A table of functions under a name of its own.
fn module(vm: &mut Vm<'_>, name: &str) -> Result<TableId> {
    let table = vm.new_table()?;
    let (globals, key) = (vm.globals(), vm.string(name.as_bytes())?);
    vm.raw_set(globals, key, Value::Table(table))?;
    Ok(table)
}

/// A number of things, as a value.
fn count(number: usize) -> Value {
    Value::Int(i64::try_from(number).unwrap_or(i64::MAX))
}

/// Where a position that may be counted from the end is, from 1 on; 0 or less: before the beginning.
fn position(at: i64, length: usize) -> i64 {
    let length = i64::try_from(length).unwrap_or(i64::MAX);
    if at >= 0 { at } else { at.saturating_add(length).saturating_add(1).max(0) }
}
