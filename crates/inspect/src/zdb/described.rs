//! What is told about one object: lines of text and the same facts for JSON.
//!
//! Invariant: every fact goes to both.

use std::fmt::Display;

use cenote_control::text::time;
use serde_json::{Map, Value, json};

/// The description of one object.
#[derive(Default)]
pub struct Described {
    /// For JSON.
    pub facts: Map<String, Value>,
    /// For people.
    pub lines: Vec<String>,
}

impl Described {
    /// A line of text alone.
    pub fn line(&mut self, text: impl Into<String>) {
        self.lines.push(text.into());
    }

    /// Only for JSON.
    pub fn fact(&mut self, name: &str, value: impl Into<Value>) {
        self.facts.insert(name.to_owned(), value.into());
    }

    /// `name  text` as for files.
    pub fn pair(&mut self, name: &str, text: impl Display, value: impl Into<Value>) {
        self.line(format!("\t{name}\t{text}"));
        self.fact(name, value);
    }

    /// `name = text` as for DSL objects.
    pub fn field(&mut self, name: &str, text: impl Display, value: impl Into<Value>) {
        self.line(format!("\t\t{name} = {text}"));
        self.fact(name, value);
    }

    /// A number as a field.
    pub fn number(&mut self, name: &str, value: u64) {
        self.field(name, value, value);
    }

    /// A size in bytes as a field.
    pub fn size(&mut self, name: &str, value: u64) {
        self.field(name, super::pointer::size(value), value);
    }

    /// A moment as a field.
    pub fn moment(&mut self, name: &str, seconds: u64) {
        self.field(name, moment(seconds), seconds);
    }

    /// What could not be read, and why.
    pub fn failed(&mut self, what: &str, error: impl Display) {
        self.line(format!("\t({what}: {error})"));
        let list = self.facts.entry("errors").or_insert_with(|| json!([]));
        if let Value::Array(list) = list {
            list.push(json!(format!("{what}: {error}")));
        }
    }

    /// Adds the facts of `other` under `name`, and its lines.
    pub fn nest(&mut self, name: &str, other: Self) {
        self.lines.extend(other.lines);
        self.fact(name, Value::Object(other.facts));
    }
}

/// A moment, in local time.
pub fn moment(seconds: u64) -> String {
    time::long(seconds.cast_signed())
}
