//! Reports as JSON, in the shape OpenZFS 2.3 gives (`-j`).
//!
//! Invariant: keys stand in the order OpenZFS prints them; a number is a JSON number with
//! `--json-int` and a string otherwise, exact with `-p` and for people without.

pub mod dataset;
pub mod events;
pub mod iostat;
pub mod pool;
pub mod vdev_get;

use serde_json::{Map, Value, json};

use crate::properties::{self, Show};
use crate::report::{Property, Source};
use crate::text::time;

/// Options that shape every JSON output.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Numbers as JSON numbers (`--json-int`); implies exact.
    pub integers: bool,
    /// Exact numbers (`-p`).
    pub exact: bool,
    /// Pools keyed by guid (`--json-pool-key-guid`).
    pub key_guid: bool,
    /// Devices in one flat map (`--json-flat-vdevs`).
    pub flat: bool,
}

/// The head of an output of `command` ("zpool list"), to be filled with more keys.
pub fn document(command: &str) -> Map<String, Value> {
    let mut map = Map::new();
    map.insert(
        "output_version".to_owned(),
        json!({ "command": command, "vers_major": 0, "vers_minor": 1 }),
    );
    map
}

/// The output as one line with its newline.
pub fn line(document: Map<String, Value>) -> String {
    format!("{}\n", Value::Object(document))
}

impl Options {
    /// A number that people see as `how` says.
    fn number(&self, value: u64, how: Show) -> Value {
        if self.integers {
            json!(value)
        } else if self.exact {
            json!(value.to_string())
        } else {
            json!(properties::show(how, &value.to_string()))
        }
    }

    /// A number that has no other form (guids, counts).
    fn plain(&self, value: u64) -> Value {
        self.number(value, Show::Plain)
    }

    /// A moment in unix seconds.
    fn time(&self, seconds: i64) -> Value {
        if self.integers {
            json!(seconds)
        } else if self.exact {
            json!(seconds.to_string())
        } else {
            json!(time::stamp(seconds))
        }
    }

    /// The text of a property value, as a number where it is one and integers are asked for.
    fn property_value(&self, exact: &str, human: String) -> Value {
        if !self.integers {
            return json!(if self.exact { exact.to_owned() } else { human });
        }
        match exact.parse::<u64>() {
            Ok(number) => json!(number),
            Err(_) => json!(exact),
        }
    }
}

/// A source as `{"type": ..., "data": ...}`.
pub fn source(source: &Source) -> Value {
    let (kind, data) = match source {
        Source::None => ("NONE", "-"),
        Source::Default => ("DEFAULT", "-"),
        Source::Temporary => ("TEMPORARY", "-"),
        Source::Local => ("LOCAL", "-"),
        Source::Received => ("RECEIVED", "-"),
        Source::Inherited(from) => ("INHERITED", from.as_str()),
    };
    json!({ "type": kind, "data": data })
}

/// A property as `{"value": ..., "source": ...}`; `human` is its value for people.
fn property(options: &Options, property: &Property, human: String) -> Value {
    json!({
        "value": options.property_value(&property.value, human),
        "source": source(&property.source),
    })
}
