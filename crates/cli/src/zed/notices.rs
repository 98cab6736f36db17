//! What people are told of an event: the mail of OpenZFS's scripts.
//!
//! Invariant: subjects and labels are those of OpenZFS's mails, so that what sorts those sorts these.

use std::process::{Command, Stdio};

use cenote_control::events::{EventRecord, EventValue};
use cenote_control::text::pool_events::state_name;
use cenote_control::text::time;

use super::settings::Settings;

/// Something people are told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// One line.
    pub subject: String,
    /// The pool.
    pub pool: String,
    /// Class of the event.
    pub class: String,
    /// Number of the event.
    pub number: u64,
    /// When it happened.
    pub time: String,
    /// Where.
    pub host: String,
    lines: String,
    /// The status of the pool follows.
    with_status: bool,
}

impl Notice {
    /// The text.
    pub fn body(&self) -> String {
        match self.with_status {
            true => format!("{}\n{}", self.lines, status(&self.pool, false)),
            false => self.lines.clone(),
        }
    }
}

/// What people are told of an event, if anything.
pub fn of(event: &EventRecord, settings: &Settings) -> Option<Notice> {
    let pool = event.text("pool")?.to_owned();
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let time = time::with_offset(event.seconds);
    let subclass = event.subclass();
    let head =
        format!("   eid: {}\n class: {subclass}\n  host: {host}\n  time: {time}\n", event.number);
    let (subject, lines, with_status) = match subclass {
        "scrub_finish" | "resilver_finish" => {
            if !settings.verbose && status(&pool, true).contains("is healthy") {
                return None;
            }
            let what = if subclass == "scrub_finish" { "scrub" } else { "resilver" };
            let subject = format!("ZFS {subclass} event for {pool} on {host}");
            (subject, format!("ZFS has finished a {what}:\n\n{head}"), true)
        }
        "statechange" => (
            format!("ZFS device fault for pool {pool} on {host}"),
            device_fault(event, &pool, &host, &time)?,
            false,
        ),
        "data" => (
            format!("ZFS data error for {pool} on {host}"),
            format!("ZFS has detected a data error:\n\n{head}{}  pool: {pool}\n", data(event)),
            false,
        ),
        "io_failure" => (
            format!("ZFS {subclass} event for {pool} on {host}"),
            format!("ZFS has suspended a pool, for its devices fail:\n\n{head}"),
            true,
        ),
        _ => return None,
    };
    let class = event.class.clone();
    Some(Notice { subject, pool, class, number: event.number, time, host, lines, with_status })
}

fn data(event: &EventRecord) -> String {
    let number = |name| event.number_of(name).unwrap_or_default();
    let error = match event.get("zio_err") {
        Some(EventValue::Signed(error)) => *error,
        _ => 0,
    };
    let (set, object) = (number("zio_objset"), number("zio_object"));
    format!(" error: {error}\n objid: {set}:{object}\n")
}

fn device_fault(event: &EventRecord, pool: &str, host: &str, time: &str) -> Option<String> {
    let state = state_name(event.number_of("vdev_state")?);
    let (what, impact) = match state {
        "FAULTED" => (
            "A device failed too often and is not used any more.",
            "Fault tolerance of the pool may be compromised.",
        ),
        "DEGRADED" => (
            "A device gave wrong data too often. It is still used as well as it can be.",
            "Fault tolerance of the pool may be compromised.",
        ),
        "REMOVED" => (
            "A device is gone from the system, or was taken out.",
            "Fault tolerance of the pool may be compromised.",
        ),
        "UNAVAIL" => (
            "A device cannot be opened, or does not answer.",
            "Fault tolerance of the pool may be compromised.",
        ),
        _ => return None,
    };
    let mut lines = format!(
        "{what}\n\n impact: {impact}\n    eid: {}\n  class: {}\n  state: {state}\n   host: \
         {host}\n   time: {time}\n",
        event.number,
        event.subclass()
    );
    let mut line = |label: &str, value: Option<String>| {
        if let Some(value) = value {
            lines.push_str(&format!("{label:>7}: {value}\n"));
        }
    };
    let text = |name| event.text(name).map(str::to_owned);
    let guid = |name| event.number_of(name).map(|guid| format!("0x{guid:016X}"));
    line("vtype", text("vdev_type"));
    line("vpath", text("vdev_path"));
    line("vphys", text("vdev_physpath"));
    line("vguid", guid("vdev_guid"));
    line("devid", text("vdev_devid"));
    line("pool", guid("pool_guid").map(|guid| format!("{pool} ({guid})")));
    Some(lines)
}

/// What `zpool status` says of the pool; `short`: only whether something is wrong.
fn status(pool: &str, short: bool) -> String {
    let Ok(program) = std::env::current_exe() else { return String::new() };
    let mut command = Command::new(program);
    command.args(["zpool", "status"]).args(short.then_some("-x")).arg(pool);
    let said = command.stdin(Stdio::null()).stderr(Stdio::null()).output();
    said.map(|said| String::from_utf8_lossy(&said.stdout).into_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(class: &str, members: &[(&str, EventValue)]) -> EventRecord {
        let members = members.iter().map(|(name, value)| ((*name).to_owned(), value.clone()));
        EventRecord {
            number: 9,
            class: class.to_owned(),
            members: members.collect(),
            ..EventRecord::default()
        }
    }

    #[test]
    fn mails_have_the_lines_of_openzfs() {
        let text = |text: &str| EventValue::Text(text.to_owned());
        let settings = Settings { verbose: true, ..Settings::default() };
        let scrub = event("sysevent.fs.zfs.scrub_finish", &[("pool", text("tank"))]);
        let notice = of(&scrub, &settings).unwrap();
        assert_eq!(notice.subject, format!("ZFS scrub_finish event for tank on {}", notice.host));
        let (host, time) = (&notice.host, &notice.time);
        let lines = format!(
            "ZFS has finished a scrub:\n\n   eid: 9\n class: scrub_finish\n  host: {host}\n  time: \
             {time}\n"
        );
        assert_eq!(notice.lines, lines);

        let number = |number| EventValue::Number(64, number);
        let members = [
            ("pool", text("tank")),
            ("pool_guid", number(7)),
            ("vdev_guid", number(8)),
            ("vdev_state", number(5)),
            ("vdev_path", text("/dev/sda")),
        ];
        let fault = of(&event("resource.fs.zfs.statechange", &members), &settings).unwrap();
        assert!(fault.subject.starts_with("ZFS device fault for pool tank on "));
        let body = fault.body();
        for line in [
            "    eid: 9",
            "  class: statechange",
            "  state: FAULTED",
            "  vpath: /dev/sda",
            "  vguid: 0x0000000000000008",
            "   pool: tank (0x0000000000000007)",
        ] {
            assert!(body.lines().any(|own| own == line), "{line} in\n{body}");
        }
        let mut rests = members;
        rests[3].1 = number(2);
        assert_eq!(of(&event("resource.fs.zfs.statechange", &rests), &settings), None);
        let start = event("sysevent.fs.zfs.scrub_start", &[("pool", text("tank"))]);
        assert_eq!(of(&start, &settings), None);
    }
}
