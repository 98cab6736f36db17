//! What several `zpool` commands do alike: asking pools, repeating at an interval.
//!
//! Invariant: a pool that does not answer is named on standard error and the others are shown.

use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cenote_control::changes::{Change, ChangeRequest};
use cenote_control::client::Client;
use cenote_control::properties;
use cenote_control::protocol::{FailureKind, LOOK_DEADLINE, Request};
use cenote_control::report::PoolReport;
use cenote_control::text::time;
use cenote_control::text::vdev_name::Naming;

use crate::getopt::Parsed;
use crate::settings;
use crate::usage::Tool;
use cenote_control::terminal;

/// Reports of pools, and whether all that were named could be had.
pub struct Asked {
    /// Those that answered, in the order asked.
    pub pools: Vec<PoolReport>,
    /// Some did not, or do not exist.
    pub failed: bool,
    /// Some exist but do not answer.
    pub silent: bool,
}

/// Asks the pools named, or all.
pub fn ask(client: &Client, names: &[String]) -> Asked {
    let mut asked = Asked { pools: Vec::new(), failed: false, silent: false };
    let mut wanted: Vec<String> = Vec::new();
    for name in names {
        match name_problem(name) {
            Some(problem) => {
                terminal::complain(&format!("cannot open '{name}': {problem}"));
                asked.failed = true;
            }
            None if !wanted.contains(name) => wanted.push(name.clone()),
            None => {}
        }
    }
    if names.is_empty() {
        wanted = client.pools();
    }
    let wait = LOOK_DEADLINE + Duration::from_millis(500);
    for answer in client.ask_all(&wanted, wait, |client, pool| client.pool_report(pool)) {
        match answer.result {
            Ok(report) => asked.pools.push(report),
            Err(failure) => {
                terminal::complain(&failure.message);
                asked.failed = true;
                asked.silent |= failure.kind != FailureKind::NotFound;
            }
        }
    }
    asked
}

/// Why a text cannot be the name of a pool.
pub fn name_problem(name: &str) -> Option<String> {
    if !name.starts_with(|c: char| c.is_ascii_alphabetic()) {
        return Some("name must begin with a letter".to_owned());
    }
    let permitted = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':' | ' ');
    let wrong = name.chars().find(|c| !permitted(*c))?;
    Some(format!("invalid character '{wrong}' in pool name"))
}

/// A command line as the history keeps it.
pub fn history_line(tool: &str, command: &str, arguments: &[String]) -> String {
    let mut line = format!("{tool} {command}");
    for word in arguments {
        line.push(' ');
        line.push_str(word);
    }
    line
}

/// Gives an order to an imported pool: says what goes wrong, false if something did.
pub fn order(client: &Client, pool: &str, request: &Request) -> bool {
    carried_out(client, pool, request) == Some(0)
}

/// Gives an order to an imported pool and says what goes wrong: the number of warnings, none if it
/// was refused.
pub fn carried_out(client: &Client, pool: &str, request: &Request) -> Option<usize> {
    if let Some(problem) = name_problem(pool) {
        terminal::complain(&format!("cannot open '{pool}': {problem}"));
        return None;
    }
    match client.order(pool, request) {
        Ok(warnings) => {
            warnings.iter().for_each(|line| terminal::complain(line));
            Some(warnings.len())
        }
        Err(failure) => {
            terminal::complain(&failure.message);
            None
        }
    }
}

/// A change as it is sent.
pub fn change(command: Option<String>, change: Change) -> Request {
    Request::Change(Box::new(ChangeRequest { command, change }))
}

/// How often a command repeats itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct Repeat {
    /// Time between rounds; `None`: one round.
    pub interval: Option<Duration>,
    /// Number of rounds; `None`: until killed.
    pub count: Option<u64>,
}

impl Repeat {
    /// Takes interval and count off the end of the operands. `Err` with the message for a wrong
    /// interval.
    pub fn take(operands: &mut Vec<String>) -> Result<Repeat, &'static str> {
        let number = |text: Option<&String>| -> Option<f64> {
            let text = text.filter(|text| text.starts_with(|c: char| c.is_ascii_digit()))?;
            text.parse().ok().filter(|number: &f64| number.is_finite())
        };
        let Some(last) = number(operands.last()) else {
            return Ok(Repeat::default());
        };
        if last == 0.0 {
            return Err("interval cannot be zero");
        }
        operands.pop();
        let Some(before) = number(operands.last()) else {
            return Ok(Repeat { interval: seconds(last), count: None });
        };
        if before == 0.0 {
            return Err("interval cannot be zero");
        }
        operands.pop();
        Ok(Repeat { interval: seconds(before), count: Some(last as u64) })
    }

    /// Waits for the next round after `done` of them; false if there is none.
    pub fn next(&self, done: u64) -> bool {
        let Some(interval) = self.interval else {
            return false;
        };
        if self.count.is_some_and(|count| done >= count) {
            return false;
        }
        std::thread::sleep(interval);
        true
    }
}

fn seconds(number: f64) -> Option<Duration> {
    Duration::try_from_secs_f64(number).ok()
}

/// Unix seconds.
pub fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

/// What `-T` asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stamp {
    /// No time.
    None,
    /// Unix seconds (`u`).
    Unix,
    /// A date (`d`).
    Date,
}

impl Stamp {
    /// Reads `-T`; `None` if its argument is neither `u` nor `d`.
    pub fn of(parsed: &Parsed) -> Option<Stamp> {
        match parsed.argument('T') {
            None => Some(Stamp::None),
            Some("u") => Some(Stamp::Unix),
            Some("d") => Some(Stamp::Date),
            Some(_) => None,
        }
    }

    /// The line to print before a round.
    pub fn line(self) -> String {
        match self {
            Stamp::None => String::new(),
            Stamp::Unix => format!("{}\n", now()),
            Stamp::Date => format!("{}\n", time::stamp(now())),
        }
    }
}

/// How devices are named.
pub fn naming(parsed: &Parsed) -> Naming {
    Naming { guids: parsed.has('g'), follow: parsed.has('L'), paths: parsed.has('P') }
}

/// Options of JSON: letters j, J (integers), F (flat), G (keyed by guid). `Err` with the exit code
/// if one was given without `-j`.
pub fn json_options(
    tool: Tool,
    command: &str,
    parsed: &Parsed,
) -> Result<Option<cenote_control::json::Options>, ExitCode> {
    if !parsed.has('j') {
        for (letter, name) in
            [('J', "json-int"), ('F', "json-flat-vdevs"), ('G', "json-pool-key-guid")]
        {
            if parsed.has(letter) {
                let message = format!("'--{name}' only works with '-j' option");
                return Err(tool.wrong(command, &message));
            }
        }
        return Ok(None);
    }
    Ok(Some(cenote_control::json::Options {
        integers: parsed.has('J'),
        exact: parsed.has('p'),
        key_guid: parsed.has('G'),
        flat: parsed.has('F'),
    }))
}

/// Takes a list of pool properties apart; `all` becomes `None`. `Err` with the message.
pub fn property_list(text: &str) -> Result<Option<Vec<String>>, String> {
    settings::property_list(text, |name| match properties::pool(name) {
        Some(info) => Some(info.name.to_owned()),
        None => {
            let is_feature = name.starts_with("feature@") || name.starts_with("unsupported@");
            (is_feature || properties::is_user_property(name)).then(|| name.to_owned())
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interval_and_count_are_taken_off_the_end() {
        let take = |line: &str| {
            let mut words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            let repeat = Repeat::take(&mut words);
            (repeat.map(|r| (r.interval.map(|i| i.as_millis()), r.count)), words.join(" "))
        };
        assert_eq!(take("tank"), (Ok((None, None)), "tank".into()));
        assert_eq!(take("tank 1"), (Ok((Some(1000), None)), "tank".into()));
        assert_eq!(take("tank 0.5 3"), (Ok((Some(500), Some(3))), "tank".into()));
        assert_eq!(take("tank 1 1 1"), (Ok((Some(1000), Some(1))), "tank 1".into()));
        assert!(take("tank 0").0.is_err() && take("1 0").0.is_err());
    }

    #[test]
    fn property_lists() {
        assert_eq!(property_list("all"), Ok(None));
        let names = property_list("cap,size,feature@x").unwrap().unwrap();
        assert_eq!(names, ["capacity", "size", "feature@x"]);
        let message = "bad property list: invalid property 'NAME'";
        assert_eq!(property_list("NAME,cap"), Err(message.into()));
        assert_eq!(name_problem("tank"), None);
        assert_eq!(name_problem("1"), Some("name must begin with a letter".into()));
        assert!(name_problem("a/b").is_some_and(|p| p.contains("'/'")));
    }
}
