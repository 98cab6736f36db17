//! What scripts are told of an event: the variables of their environment.
//!
//! Chapter 08, section 29. Invariant: names and forms are those of OpenZFS; nothing of this program's own
//! environment is handed on but the time zone.

use std::path::Path;

use cenote_control::events::{EventRecord, EventValue};
use cenote_control::text::pool_events::state_name;
use cenote_control::text::time;

/// Name and value.
pub type Variable = (String, String);

/// Programs that scripts call, by the names of their variables.
pub const TOOLS: [(&str, &str); 5] =
    [("ZDB", "zdb"), ("ZED", "zed"), ("ZFS", "zfs"), ("ZINJECT", "zinject"), ("ZPOOL", "zpool")];

/// What is the same for all events: `tools` has the programs, `zedlets` the scripts.
pub fn constant(tools: &Path, zedlets: &Path, path: &str) -> Vec<Variable> {
    let mut all: Vec<Variable> = vec![
        ("PATH".to_owned(), path.to_owned()),
        ("IFS".to_owned(), " \t\n".to_owned()),
        ("ZED_PID".to_owned(), std::process::id().to_string()),
        ("ZED_ZEDLET_DIR".to_owned(), zedlets.display().to_string()),
    ];
    all.extend(std::env::var("TZ").ok().map(|zone| ("TZ".to_owned(), zone)));
    // Where the pools of this host are.
    let directory = cenote_control::run_directory::path().display().to_string();
    all.push(("CENOTE_RUN_DIR".to_owned(), directory));
    for (name, tool) in TOOLS {
        all.push((name.to_owned(), tools.join(tool).display().to_string()));
    }
    let userland = crate::version::userland();
    let version = userland.trim_start_matches("zfs-");
    let (number, release) = version.split_once('-').unwrap_or((version, "1"));
    all.push(("ZFS_ALIAS".to_owned(), userland.to_owned()));
    all.push(("ZFS_VERSION".to_owned(), number.to_owned()));
    all.push(("ZFS_RELEASE".to_owned(), release.to_owned()));
    all
}

/// What is told of an event.
pub fn of(event: &EventRecord) -> Vec<Variable> {
    let mut all = Vec::new();
    for (name, value) in &event.members {
        let name = variable_name(name);
        let state = match (name.as_str(), value) {
            ("VDEV_STATE" | "VDEV_LASTSTATE", EventValue::Number(_, state)) => {
                Some(state_name(*state))
            }
            ("POOL_STATE", EventValue::Number(_, state)) => Some(pool_state_name(*state)),
            _ => None,
        };
        if let Some(word) = state {
            all.push((format!("ZEVENT_{name}_STR"), word.to_owned()));
        }
        let is_guid = name.ends_with("_GUID") || name.ends_with("_GUIDS");
        all.push((format!("ZEVENT_{name}"), text(value, is_guid)));
    }
    all.push(("ZEVENT_SUBCLASS".to_owned(), event.subclass().to_owned()));
    all.push(("ZEVENT_TIME_SECS".to_owned(), event.seconds.to_string()));
    all.push(("ZEVENT_TIME_NSECS".to_owned(), event.nanoseconds.to_string()));
    all.push(("ZEVENT_TIME_STRING".to_owned(), time::with_offset(event.seconds)));
    all
}

/// Letters become large, all but letters and digits a line below.
fn variable_name(name: &str) -> String {
    let letter = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
    name.chars().map(letter).collect()
}

fn pool_state_name(state: u64) -> &'static str {
    match state {
        0 => "ACTIVE",
        1 => "EXPORTED",
        2 => "DESTROYED",
        3 => "SPARE",
        4 => "L2CACHE",
        _ => "UNKNOWN",
    }
}

fn text(value: &EventValue, is_guid: bool) -> String {
    let number = |number: &u64| match is_guid {
        true => format!("0x{number:016X}"),
        false => number.to_string(),
    };
    match value {
        EventValue::Boolean => "1".to_owned(),
        EventValue::BooleanValue(value) => u8::from(*value).to_string(),
        EventValue::Number(_, one) => number(one),
        EventValue::Signed(one) => one.to_string(),
        EventValue::Numbers(_, all) => all.iter().map(number).collect::<Vec<_>>().join(" "),
        EventValue::SignedNumbers(all) => {
            all.iter().map(i64::to_string).collect::<Vec<_>>().join(" ")
        }
        // No NUL can stand in a variable.
        EventValue::Text(text) => text.replace('\0', ""),
        EventValue::Texts(all) => all.join(" ").replace('\0', ""),
        EventValue::List(_) => "_NOT_IMPLEMENTED_".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_become_variables() {
        let member = |name: &str, value| (name.to_owned(), value);
        let event = EventRecord {
            class: "resource.fs.zfs.statechange".into(),
            seconds: 1_795_198_769,
            nanoseconds: 5,
            members: vec![
                member("pool_guid", EventValue::Number(64, 0xabc)),
                member("vdev_state", EventValue::Number(64, 5)),
                member("pool_state", EventValue::Number(64, 0)),
                member("bad-ranges", EventValue::Numbers(32, vec![0, 8])),
                member("detector", EventValue::List(Vec::new())),
                member("time", EventValue::SignedNumbers(vec![1_795_198_769, 5])),
            ],
            number: 3,
        };
        let all = of(&event);
        let value = |name: &str| {
            let found = all.iter().find(|(own, _)| own == name);
            found.map(|(_, value)| value.as_str()).unwrap_or_default()
        };
        assert_eq!(value("ZEVENT_POOL_GUID"), "0x0000000000000ABC");
        assert_eq!((value("ZEVENT_VDEV_STATE"), value("ZEVENT_VDEV_STATE_STR")), ("5", "FAULTED"));
        assert_eq!(value("ZEVENT_POOL_STATE_STR"), "ACTIVE");
        assert_eq!(value("ZEVENT_BAD_RANGES"), "0 8");
        assert_eq!(value("ZEVENT_DETECTOR"), "_NOT_IMPLEMENTED_");
        assert_eq!(value("ZEVENT_TIME"), "1795198769 5");
        assert_eq!(value("ZEVENT_SUBCLASS"), "statechange");
        assert_eq!((value("ZEVENT_TIME_SECS"), value("ZEVENT_TIME_NSECS")), ("1795198769", "5"));
    }
}
