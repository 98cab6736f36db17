//! One tree of values, shown as text in zdb's spirit or as JSON.
//!
//! Invariant: text and JSON say the same.

use std::fmt::Write as _;

use cenote_format::nvlist::{NvList, Value as NvValue};
use serde_json::{Map, Value, json};

/// `value` as text indented by `depth` steps: `name: value`, strings quoted, lists numbered.
pub fn text(value: &Value, depth: usize) -> String {
    let mut out = String::new();
    match value {
        Value::Object(map) => fields(&mut out, map, depth),
        other => {
            let _ = writeln!(out, "{}", scalar(other));
        }
    }
    out
}

fn fields(out: &mut String, map: &Map<String, Value>, depth: usize) {
    let indent = "    ".repeat(depth);
    for (name, value) in map {
        match value {
            Value::Object(inner) => {
                let _ = writeln!(out, "{indent}{name}:");
                fields(out, inner, depth + 1);
            }
            Value::Array(items) if items.iter().any(Value::is_object) => {
                for (index, item) in items.iter().enumerate() {
                    let _ = writeln!(out, "{indent}{name}[{index}]:");
                    if let Value::Object(inner) = item {
                        fields(out, inner, depth + 1);
                    } else {
                        let _ = writeln!(out, "{indent}    {}", scalar(item));
                    }
                }
            }
            Value::Array(items) if !items.is_empty() && items.iter().all(Value::is_string) => {
                let _ = writeln!(out, "{indent}{name}:");
                for item in items {
                    let _ = writeln!(out, "{indent}    {}", item.as_str().unwrap_or_default());
                }
            }
            Value::Array(items) => {
                let items: Vec<String> = items.iter().map(scalar).collect();
                let _ = writeln!(out, "{indent}{name}: {}", items.join(" "));
            }
            Value::Null => {
                let _ = writeln!(out, "{indent}{name}");
            }
            other => {
                let _ = writeln!(out, "{indent}{name}: {}", scalar(other));
            }
        }
    }
}

fn scalar(value: &Value) -> String {
    match value {
        Value::String(text) => format!("'{text}'"),
        other => other.to_string(),
    }
}

/// An nvlist as a tree of values; order is kept.
pub fn nvlist(list: &NvList) -> Value {
    let mut map = Map::new();
    for pair in list.iter() {
        let name = String::from_utf8_lossy(&pair.name).into_owned();
        map.insert(name, nvalue(&pair.value));
    }
    Value::Object(map)
}

fn nvalue(value: &NvValue) -> Value {
    match value {
        NvValue::Boolean => Value::Null,
        NvValue::List(list) => nvlist(list),
        NvValue::ListArray(lists) => Value::Array(lists.iter().map(nvlist).collect()),
        NvValue::String(bytes) => json!(String::from_utf8_lossy(bytes)),
        NvValue::StringArray(items) => {
            items.iter().map(|item| json!(String::from_utf8_lossy(item))).collect()
        }
        NvValue::ByteArray(bytes) => {
            json!(bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
        }
        NvValue::BooleanValue(value) => json!(value),
        NvValue::Byte(number) | NvValue::Uint8(number) => json!(number),
        NvValue::Uint16(number) => json!(number),
        NvValue::Uint32(number) => json!(number),
        NvValue::Uint64(number) => json!(number),
        NvValue::Int8(number) => json!(number),
        NvValue::Int16(number) => json!(number),
        NvValue::Int32(number) => json!(number),
        NvValue::Int64(number) | NvValue::HighResolutionTime(number) => json!(number),
        NvValue::Uint32Array(numbers) => json!(numbers),
        NvValue::Uint64Array(numbers) => json!(numbers),
        other => json!(format!("{other:?}")),
    }
}
