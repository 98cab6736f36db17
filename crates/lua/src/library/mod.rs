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
use crate::vm::Vm;

/// Registers all of it.
pub fn register(vm: &mut Vm<'_>) -> Result<()> {
    base::register(vm)?;
    string::register(vm)?;
    table::register(vm)?;
    coroutine::register(vm)
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
