//! `zpool events` as JSON. OpenZFS 2.3 has no such output: this is made in the style of its others.
//!
//! Invariant: a number that an event tells is the same number here, in decimal, whatever the text shows it in.

use serde_json::{Value, json};

use super::{Options, document, line};
use crate::events::{EventRecord, EventValue};

/// These events, with all their members if `verbose`; `dropped`: how many before them are lost.
pub fn list(events: &[EventRecord], dropped: u64, verbose: bool, options: &Options) -> String {
    let mut document = document("zpool events");
    let all: Vec<Value> = events.iter().map(|one| event(one, verbose, options)).collect();
    document.insert("events".into(), Value::Array(all));
    if dropped > 0 {
        document.insert("dropped".into(), options.plain(dropped));
    }
    line(document)
}

fn event(event: &EventRecord, verbose: bool, options: &Options) -> Value {
    let mut map = serde_json::Map::new();
    map.insert("eid".into(), options.plain(event.number));
    map.insert("time".into(), options.time(event.seconds));
    map.insert("nanoseconds".into(), options.plain(event.nanoseconds.into()));
    map.insert("class".into(), json!(event.class));
    if let Some(pool) = event.text("pool").or_else(|| event.text("pool_name")) {
        map.insert("pool".into(), json!(pool));
    }
    if verbose {
        map.insert("members".into(), members(&event.members, options));
    }
    Value::Object(map)
}

fn members(all: &[(String, EventValue)], options: &Options) -> Value {
    let one = |(name, of): &(String, EventValue)| (name.clone(), value(of, options));
    Value::Object(all.iter().map(one).collect())
}

fn value(of: &EventValue, options: &Options) -> Value {
    let signed = |number: i64| match options.integers {
        true => json!(number),
        false => json!(number.to_string()),
    };
    match of {
        EventValue::Boolean => json!(true),
        EventValue::BooleanValue(value) => json!(value),
        EventValue::Number(_, number) => options.plain(*number),
        EventValue::Signed(number) => signed(*number),
        EventValue::Numbers(_, all) => all.iter().map(|number| options.plain(*number)).collect(),
        EventValue::SignedNumbers(all) => all.iter().map(|number| signed(*number)).collect(),
        EventValue::Text(text) => json!(text),
        EventValue::Texts(all) => json!(all),
        EventValue::List(inner) => members(inner, options),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_keeps_all_it_tells() {
        let event = crate::events::samples::statechange(u64::MAX, -1);
        let options = Options { integers: true, ..Options::default() };
        let head = r#"{"output_version":{"command":"zpool events","vers_major":0,"vers_minor":1},"events":[{"eid":3,"time":1795198769,"nanoseconds":5,"class":"resource.fs.zfs.statechange","pool":"tank""#;
        assert_eq!(
            list(std::slice::from_ref(&event), 0, false, &options),
            format!("{head}}}]}}\n")
        );
        let members = r#","members":{"detector":{"scheme":"zfs"},"pool":"tank","vdev_state":18446744073709551615,"pool_context":-1,"time":[1795198769,5]}}],"dropped":2}"#;
        assert_eq!(list(&[event], 2, true, &options), format!("{head}{members}\n"));
    }
}
