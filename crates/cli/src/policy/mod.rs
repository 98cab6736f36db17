//! `cenote snap`: snapshots by a policy that is written as sanoid's.
//!
//! Invariant: nothing is taken or destroyed that the policy does not want; what goes wrong with one dataset is told,
//! and the others have their turn.

mod conf;
mod rules;

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::time::SystemTime;

use cenote_control::changes::{Change, DestroyRequest};
use cenote_control::client::Client;
use cenote_control::report::DatasetReport;
use cenote_control::terminal;
use serde_json::json;

use crate::datasets::names;
use crate::getopt::Spec;
use crate::zfs::common;
use conf::{Below, Rules, Section};
use rules::{Alarm, Kind, Taken};

const SPEC: Spec = Spec {
    letters: "hnvj",
    long: &[
        ("help", 'h', false),
        ("policy", 'P', true),
        ("take", 'T', false),
        ("prune", 'R', false),
        ("monitor", 'M', false),
        ("dry-run", 'n', false),
        ("verbose", 'v', false),
        ("json", 'j', false),
    ],
};
const HELP: &str = "usage: cenote snap [--policy FILE] [--take] [--prune] [--monitor] [-nvj]

Takes and destroys snapshots as a policy says that is written as sanoid's (default: /etc/sanoid/sanoid.conf).

  --policy FILE  the policy
  --take         take what is due
  --prune        destroy what is outdated (without any of the three: take and prune)
  --monitor      say which snapshots are missing or too old; exit code 1 for a warning, 2 if it is critical
  -n, --dry-run  say what would be done
  -v, --verbose  say what is done
  -j, --json     say it as JSON
";
const POLICY: &str = "/etc/sanoid/sanoid.conf";
/// The last exit code of checks as monitors know them.
const UNKNOWN: u8 = 3;

/// What is done.
struct Doing {
    client: Client,
    dry: bool,
    now: u64,
    taken: Vec<String>,
    destroyed: Vec<String>,
    alarms: Vec<(Alarm, String)>,
    failed: bool,
}

/// A dataset with the rules for it.
struct Ruled {
    rules: Rules,
    /// Its snapshots are taken with those of what it lies below.
    is_taken_above: bool,
    /// With all below it.
    together: bool,
}

/// Runs it with the arguments after its name.
pub fn run(arguments: &[String]) -> ExitCode {
    let refuse = |message: &str| {
        terminal::complain(&format!("cenote snap: {message}"));
        ExitCode::from(UNKNOWN)
    };
    let parsed = match SPEC.parse(arguments) {
        Ok(parsed) if parsed.has('h') => {
            terminal::out(HELP);
            return ExitCode::SUCCESS;
        }
        Ok(parsed) if parsed.operands.is_empty() => parsed,
        Ok(_) => return refuse("too many arguments; see cenote snap -h"),
        Err(error) => return refuse(&format!("{}; see cenote snap -h", error.message())),
    };
    let file = parsed.argument('P').unwrap_or(POLICY);
    let text = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(error) => return refuse(&format!("cannot read {file}: {error}")),
    };
    let sections = match conf::read(&text) {
        Ok(sections) => sections,
        Err(reason) => return refuse(&format!("{file}: {reason}")),
    };
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let mut doing = Doing {
        client: Client::default(),
        dry: parsed.has('n'),
        now: now.as_secs(),
        taken: Vec::new(),
        destroyed: Vec::new(),
        alarms: Vec::new(),
        failed: false,
    };
    let all = doing.ruled(&sections);
    let unsaid = !['T', 'R', 'M'].iter().any(|letter| parsed.has(*letter));
    if unsaid || parsed.has('T') {
        doing.take(&all);
    }
    if unsaid || parsed.has('R') {
        doing.prune(&all);
    }
    if parsed.has('M') {
        doing.monitor(&all);
    }
    doing.say(parsed.has('j'), parsed.has('v'), parsed.has('M').then_some(&all));
    doing.code()
}

impl Doing {
    fn complain(&mut self, words: &str) {
        terminal::complain(words);
        self.failed = true;
    }

    /// The datasets of the sections that are there, and what is below them, as far as that is meant.
    fn ruled(&mut self, sections: &[Section]) -> BTreeMap<String, Ruled> {
        let named: BTreeSet<&str> = sections.iter().map(|one| one.dataset.as_str()).collect();
        let mut all = BTreeMap::new();
        // Those of what lies below come later: the nearest one counts.
        for section in sections {
            let depth = (section.below == Below::Nothing && !section.only_below).then_some(0);
            let found = match self.datasets(&section.dataset, depth) {
                Ok(found) => found,
                Err(message) => {
                    self.complain(&message);
                    continue;
                }
            };
            for script in section.rules.scripts() {
                let dataset = &section.dataset;
                terminal::complain(&format!("[{dataset}]: {script} is not run: not supported yet"));
            }
            for report in found {
                let is_top = report.name == section.dataset;
                if is_top && section.only_below && section.below != Below::Together
                    || !is_top && named.contains(report.name.as_str())
                {
                    continue;
                }
                let together = is_top && section.below == Below::Together;
                let is_taken_above = !is_top && section.below == Below::Together;
                let rules = section.rules.clone();
                all.insert(report.name, Ruled { rules, is_taken_above, together });
            }
        }
        all
    }

    /// A filesystem or volume and what is below it.
    fn datasets(&self, top: &str, depth: Option<u32>) -> Result<Vec<DatasetReport>, String> {
        let mut all = common::open(&self.client, top, &common::DATASETS, depth, &["type"])?;
        all.retain(|one| common::DATASETS.contains(&one.kind));
        Ok(all)
    }

    /// The snapshots of a dataset.
    fn snapshots(&mut self, of: &str) -> Vec<Taken> {
        let found = common::open(&self.client, of, &common::DATASETS, Some(1), &["creation"]);
        let taken = |report: &DatasetReport| {
            let (path, name) = report.name.split_once('@')?;
            let at = report.properties.number("creation")?;
            (path == of).then(|| Taken { name: name.to_owned(), at })
        };
        match found {
            Ok(found) => found.iter().filter_map(taken).collect(),
            Err(message) => {
                self.complain(&message);
                Vec::new()
            }
        }
    }

    /// Takes what is due: of each pool all of a kind at once.
    fn take(&mut self, all: &BTreeMap<String, Ruled>) {
        let mut due: BTreeMap<(String, &'static str), Vec<String>> = BTreeMap::new();
        for (dataset, ruled) in all.iter().filter(|(_, ruled)| !ruled.is_taken_above) {
            let taken = self.snapshots(dataset);
            for kind in rules::due(&ruled.rules, &taken, self.now) {
                let pool = names::pool_of(dataset).to_owned();
                let named = self.named(dataset, ruled.together, kind);
                due.entry((pool, kind.name)).or_default().extend(named);
            }
        }
        for ((pool, _), mut names) in due {
            names.sort();
            names.dedup();
            let change = Change::Snapshot { names: names.clone(), properties: Vec::new() };
            if self.order(&pool, change, &names) {
                self.taken.extend(names);
            }
        }
    }

    fn named(&mut self, dataset: &str, together: bool, kind: Kind) -> Vec<String> {
        let name = rules::name(kind, self.now);
        match self.datasets(dataset, (!together).then_some(0)) {
            Ok(found) => found.iter().map(|one| format!("{}@{name}", one.name)).collect(),
            Err(message) => {
                self.complain(&message);
                Vec::new()
            }
        }
    }

    fn prune(&mut self, all: &BTreeMap<String, Ruled>) {
        for (dataset, ruled) in all {
            let taken = self.snapshots(dataset);
            for name in rules::outdated(&ruled.rules, &taken, self.now) {
                let names = vec![format!("{dataset}@{name}")];
                let request = DestroyRequest { names: names.clone(), force: false, defer: false };
                if self.order(names::pool_of(dataset), Change::Destroy(request), &names) {
                    self.destroyed.extend(names);
                }
            }
        }
    }

    fn monitor(&mut self, all: &BTreeMap<String, Ruled>) {
        for (dataset, ruled) in all.iter().filter(|(_, ruled)| ruled.rules.is_on("monitor")) {
            let taken = self.snapshots(dataset);
            self.alarms.extend(rules::missing(dataset, &ruled.rules, &taken, self.now));
        }
    }

    /// Gives an order; whether it is done, or would be.
    fn order(&mut self, pool: &str, change: Change, about: &[String]) -> bool {
        let line = match &change {
            Change::Destroy(_) => format!("zfs destroy {}", about.join(" ")),
            _ => format!("zfs snapshot {}", about.join(" ")),
        };
        let done = self.dry || common::change(&self.client, pool, Some(line), change);
        self.failed |= !done;
        done
    }

    fn say(&self, json: bool, verbose: bool, monitored: Option<&BTreeMap<String, Ruled>>) {
        if json {
            let alarm = |(alarm, words): &(Alarm, String)| {
                let level = if *alarm == Alarm::Critical { "critical" } else { "warning" };
                json!({ "level": level, "message": words })
            };
            let said = json!({
                "taken": self.taken,
                "destroyed": self.destroyed,
                "alarms": self.alarms.iter().map(alarm).collect::<Vec<_>>(),
                "dry_run": self.dry,
                "failed": self.failed,
            });
            return terminal::out(&format!("{said}\n"));
        }
        let would = if self.dry { "would " } else { "" };
        if verbose || self.dry {
            for name in &self.taken {
                terminal::out(&format!("{would}take {name}\n"));
            }
            for name in &self.destroyed {
                terminal::out(&format!("{would}destroy {name}\n"));
            }
        }
        let Some(monitored) = monitored else { return };
        let words = |level: Alarm| {
            let of = self.alarms.iter().filter(move |(alarm, _)| *alarm == level);
            of.map(|(_, words)| words.as_str()).collect::<Vec<_>>().join(", ")
        };
        let all: Vec<&str> = monitored.keys().map(String::as_str).collect();
        let fresh = format!("OK: all monitored datasets ({}) have fresh snapshots", all.join(", "));
        let line = match self.alarms.iter().map(|(alarm, _)| *alarm).max() {
            None => fresh,
            Some(Alarm::Warning) => format!("WARN: {}", words(Alarm::Warning)),
            Some(Alarm::Critical) if words(Alarm::Warning).is_empty() => {
                format!("CRIT: {}", words(Alarm::Critical))
            }
            Some(Alarm::Critical) => {
                format!("CRIT: {}, WARN: {}", words(Alarm::Critical), words(Alarm::Warning))
            }
        };
        terminal::out(&format!("{line}\n"));
    }

    fn code(&self) -> ExitCode {
        match self.alarms.iter().map(|(alarm, _)| *alarm).max() {
            Some(Alarm::Critical) => ExitCode::from(2),
            Some(Alarm::Warning) => ExitCode::from(1),
            None if self.failed => ExitCode::from(1),
            None => ExitCode::SUCCESS,
        }
    }
}
