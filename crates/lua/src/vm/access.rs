//! Tables and strings as functions beside programs see them.
//!
//! Invariant: whatever a table gains is counted.

use super::Vm;
use crate::error::{Result, Stop};
use crate::table::Table;
use crate::value::{Str, TableId, Value};

/// Tables in chains of `__index` and `__newindex`.
pub(super) const CHAIN: usize = 100;

impl Vm<'_> {
    /// The value of a key, without metamethods.
    pub fn raw_get(&self, table: TableId, key: &Value) -> Value {
        self.tables.get(table.0).map_or(Value::Nil, |table| table.get(key))
    }

    /// The value of a key that is a string, without metamethods.
    pub fn field(&mut self, table: TableId, key: &str) -> Value {
        // Not counted: it is gone at once.
        let key = Str::new(key.as_bytes(), &self.meter);
        self.raw_get(table, &Value::Str(key))
    }

    /// Sets the value of a key, without metamethods.
    ///
    /// # Errors
    /// [`Stop::Memory`]; a key that is nil.
    pub fn raw_set(&mut self, table: TableId, key: Value, value: Value) -> Result<()> {
        if key.is_nil() {
            return Err(self.error("table index is nil"));
        }
        if let Some(table) = self.tables.get_mut(table.0) {
            let before = table.cost();
            table.set(key, value);
            let after = table.cost();
            if after > before {
                self.meter.add(after - before);
                return self.check_memory();
            }
            self.meter.sub(before - after);
        }
        Ok(())
    }

    /// Appends to a table.
    ///
    /// # Errors
    /// As [`Self::raw_set`].
    pub fn push(&mut self, table: TableId, value: Value) -> Result<()> {
        let next = self.length_of(table).saturating_add(1);
        self.raw_set(table, Value::Int(next), value)
    }

    /// The length of a table, without metamethods.
    pub fn length_of(&self, table: TableId) -> i64 {
        self.tables.get(table.0).map_or(0, Table::length)
    }

    /// What comes after `key` in a table (nil: the first); `None` if it has no such key.
    pub fn next(&self, table: TableId, key: &Value) -> Option<Option<(Value, Value)>> {
        self.tables.get(table.0).and_then(|table| table.next(key))
    }

    /// The metatable of a value.
    pub(crate) fn metatable(&self, value: &Value) -> Option<TableId> {
        match value {
            Value::Table(table) => self.tables.get(table.0)?.meta,
            Value::Str(_) => self.string_meta,
            _ => None,
        }
    }

    /// The metamethod of this name; nil if there is none.
    pub(crate) fn metamethod(&mut self, value: &Value, name: &str) -> Value {
        match self.metatable(value) {
            Some(meta) => self.field(meta, name),
            None => Value::Nil,
        }
    }

    /// An error with the place that called the function under way, or where the program is.
    pub fn error(&mut self, reason: &str) -> Stop {
        self.error_at(reason, 1)
    }

    /// An error with the place so many levels from the function under way.
    pub(crate) fn error_at(&mut self, reason: &str, level: usize) -> Stop {
        let text = format!("{}{reason}", self.place(level));
        match self.string(text.as_bytes()) {
            Ok(value) => Stop::Error(value),
            Err(stop) => stop,
        }
    }

    /// An error about an argument of the function under way.
    pub fn argument_error(&mut self, number: usize, reason: &str) -> Stop {
        let (mut number, mut name) = (number, "?".to_owned());
        if let Some((kind, called)) = self.call_name() {
            name = called;
            if kind == "method" {
                number -= 1;
                if number == 0 {
                    return self.error(&format!("calling '{name}' on bad self"));
                }
            }
        }
        self.error(&format!("bad argument #{number} to '{name}' ({reason})"))
    }

    /// An argument is not what it has to be.
    pub(crate) fn type_error(&mut self, args: &[Value], number: usize, expected: &str) -> Stop {
        let got = match args.get(number - 1) {
            Some(value) => value.type_name(),
            None => "no value",
        };
        self.argument_error(number, &format!("{expected} expected, got {got}"))
    }

    /// An argument that has to be a table.
    pub(crate) fn table_argument(&mut self, args: &[Value], number: usize) -> Result<TableId> {
        match args.get(number - 1) {
            Some(Value::Table(table)) => Ok(*table),
            _ => Err(self.type_error(args, number, "table")),
        }
    }

    /// An argument that has to be a number.
    pub(crate) fn int_argument(&mut self, args: &[Value], number: usize) -> Result<i64> {
        match args.get(number - 1).and_then(Value::to_int) {
            Some(value) => Ok(value),
            None => Err(self.type_error(args, number, "number")),
        }
    }

    /// An argument that has to be a number, if there is one.
    pub(crate) fn int_or(&mut self, args: &[Value], number: usize, otherwise: i64) -> Result<i64> {
        match args.get(number - 1) {
            None | Some(Value::Nil) => Ok(otherwise),
            Some(_) => self.int_argument(args, number),
        }
    }

    /// An argument that has to be a string or a number.
    pub(crate) fn text_argument(&mut self, args: &[Value], number: usize) -> Result<Str> {
        match args.get(number - 1) {
            Some(Value::Str(text)) => Ok(text.clone()),
            Some(Value::Int(value)) => Ok(Str::new(value.to_string().into_bytes(), &self.meter)),
            _ => Err(self.type_error(args, number, "string")),
        }
    }

    /// An argument that may be anything, but has to be there.
    pub(crate) fn any_argument(&mut self, args: &[Value], number: usize) -> Result<Value> {
        match args.get(number - 1) {
            Some(value) => Ok(value.clone()),
            None => Err(self.argument_error(number, "value expected")),
        }
    }
}
