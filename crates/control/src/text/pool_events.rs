//! `zpool events` as text.
//!
//! Invariant: the same columns, words and numbers as OpenZFS 2.2 prints.

use super::time;
use crate::events::{EventRecord, EventValue};

/// How far members are indented.
const DEPTH: usize = 8;

/// The line above all events.
pub fn heading() -> String {
    format!("{:<30} CLASS\n", "TIME")
}

/// One event; `scripted`: with a tab between the columns; `verbose`: with all its members.
pub fn event(event: &EventRecord, scripted: bool, verbose: bool) -> String {
    let gap = if scripted { '\t' } else { ' ' };
    let when = format!("{}.{:09}", time::event(event.seconds), event.nanoseconds);
    let mut out = format!("{when}{gap}{}\n", event.class);
    if verbose {
        list(&mut out, &event.members, DEPTH);
        out.push('\n');
    }
    out
}

fn list(out: &mut String, members: &[(String, EventValue)], depth: usize) {
    for (name, value) in members {
        out.push_str(&format!("{:depth$}{name} = ", ""));
        match value {
            EventValue::List(inner) => {
                out.push_str("(embedded nvlist)\n");
                list(out, inner, depth.saturating_add(DEPTH));
                out.push_str(&format!("{:depth$}(end {name})\n", ""));
            }
            value => {
                out.push_str(&one(name, value));
                out.push('\n');
            }
        }
    }
}

fn one(name: &str, value: &EventValue) -> String {
    let each = |words: &mut dyn Iterator<Item = String>| -> String {
        words.map(|word| word + " ").collect()
    };
    match value {
        EventValue::Boolean => "1".to_owned(),
        EventValue::BooleanValue(value) => value.to_string(),
        EventValue::Number(_, number) => match name {
            "vdev_state" | "vdev_laststate" => {
                format!("\"{}\" ({number:#x})", state_name(*number))
            }
            _ => format!("{number:#x}"),
        },
        EventValue::Signed(number) => format!("{number:#x}"),
        EventValue::Numbers(_, all) => each(&mut all.iter().map(|one| format!("{one:#x}"))),
        EventValue::SignedNumbers(all) => each(&mut all.iter().map(|one| format!("{one:#x}"))),
        EventValue::Text(text) => format!("\"{text}\""),
        EventValue::Texts(all) => each(&mut all.iter().map(|one| format!("\"{one}\""))),
        EventValue::List(_) => String::new(),
    }
}

/// The word for the state of a device.
pub fn state_name(state: u64) -> &'static str {
    match state {
        1 | 2 => "OFFLINE",
        3 => "REMOVED",
        4 => "UNAVAIL",
        5 => "FAULTED",
        6 => "DEGRADED",
        7 => "ONLINE",
        _ => "UNKNOWN",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_looks_like_that_of_openzfs() {
        let event = crate::events::samples::statechange(5, 0);
        let short = super::event(&event, true, false);
        assert!(short.ends_with(".000000005\tresource.fs.zfs.statechange\n"), "{short}");
        let long = super::event(&event, false, true);
        let (_, members) = long.split_once('\n').unwrap();
        let expected = "        detector = (embedded nvlist)\n                scheme = \
                        \"zfs\"\n        (end detector)\n        pool = \"tank\"\n        \
                        vdev_state = \"FAULTED\" (0x5)\n        pool_context = 0x0\n        time \
                        = 0x6b008f31 0x5 \n\n";
        assert_eq!(members, expected);
        assert_eq!(heading(), "TIME                           CLASS\n");
    }
}
