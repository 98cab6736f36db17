//! `zpool scrub` and `zpool resilver`.
//!
//! Invariant: every pool named is asked, also after one refused; none is waited for that refused.

use std::process::ExitCode;

use cenote_control::changes::{Change, ScanRequest};
use cenote_control::client::Client;
use cenote_control::terminal;

use super::{common, wait};
use crate::getopt::{Parsed, Spec};
use crate::usage::Tool;

/// Options that exclude each other, in the order OpenZFS complains of them.
const EXCLUDED: &[(char, char)] = &[
    ('s', 'p'),
    ('e', 'p'),
    ('e', 's'),
    ('e', 'C'),
    ('e', 't'),
    ('p', 'C'),
    ('p', 't'),
    ('s', 'C'),
    ('s', 't'),
];

/// Runs `zpool scrub`.
pub fn scrub(arguments: &[String]) -> ExitCode {
    let spec = Spec { letters: "aspweCtS:E:", long: &[] };
    let parsed = match spec.parse(arguments) {
        Ok(parsed) => parsed,
        Err(error) => return Tool::Zpool.wrong("scrub", &error.message()),
    };
    if let Some(problem) = problem(&parsed) {
        return Tool::Zpool.wrong("scrub", &problem);
    }
    for (letter, what) in [('t', "thorough scrubs"), ('S', "dates"), ('E', "dates")] {
        if parsed.has(letter) {
            terminal::complain(&format!("zpool scrub -{letter} ({what}) is not supported yet"));
            return ExitCode::FAILURE;
        }
    }
    let request = match () {
        () if parsed.has('s') => ScanRequest::Stop,
        () if parsed.has('p') => ScanRequest::Pause,
        () if parsed.has('e') => ScanRequest::ErrorScrub,
        () if parsed.has('C') => ScanRequest::ScrubNew,
        () => ScanRequest::Scrub,
    };
    let client = Client::default();
    let names = match parsed.has('a') {
        true => client.pools(),
        false => parsed.operands.clone(),
    };
    if names.is_empty() && !parsed.has('a') {
        return Tool::Zpool.wrong("scrub", "missing pool name argument");
    }
    run(&client, "scrub", arguments, &names, request, parsed.has('w'))
}

/// Runs `zpool resilver`.
pub fn resilver(arguments: &[String]) -> ExitCode {
    let parsed = match (Spec { letters: "", long: &[] }).parse(arguments) {
        Ok(parsed) => parsed,
        Err(error) => return Tool::Zpool.wrong("resilver", &error.message()),
    };
    if parsed.operands.is_empty() {
        return Tool::Zpool.wrong("resilver", "missing pool name argument");
    }
    let (client, names) = (Client::default(), parsed.operands);
    run(&client, "resilver", arguments, &names, ScanRequest::Resilver, false)
}

fn problem(parsed: &Parsed) -> Option<String> {
    let both = EXCLUDED.iter().find(|(one, other)| parsed.has(*one) && parsed.has(*other));
    if let Some((one, other)) = both {
        return Some(format!(
            "invalid option combination: -{one} and -{other} are mutually exclusive"
        ));
    }
    let waits = parsed.has('w') && (parsed.has('p') || parsed.has('s'));
    waits.then(|| "invalid option combination: -w cannot be used with -p or -s".to_owned())
}

fn run(
    client: &Client,
    command: &str,
    arguments: &[String],
    names: &[String],
    request: ScanRequest,
    wait: bool,
) -> ExitCode {
    let (mut well, mut begun) = (true, Vec::new());
    let begins =
        matches!(request, ScanRequest::Scrub | ScanRequest::ScrubNew | ScanRequest::ErrorScrub);
    for name in names {
        let line = common::history_line("zpool", command, arguments);
        let done = common::order(client, name, &common::change(Some(line), Change::Scan(request)));
        well &= done;
        begun.extend(done.then_some(name));
        let report = client.pool_report(name).unwrap_or_default();
        if done && begins && report.checkpoint.is_some() {
            terminal::out(&format!(
                "warning: will not scrub state that belongs to the checkpoint of pool '{name}'\n"
            ));
        }
    }
    if wait {
        for name in begun {
            well &= wait::until_over(client, name, &["scrub"]) == ExitCode::SUCCESS;
        }
    }
    if well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_exclude_each_other() {
        let told = |letters: &str| {
            let spec = Spec { letters: "aspweCtS:E:", long: &[] };
            problem(&spec.parse(&[letters.to_owned()]).unwrap())
        };
        let words = "invalid option combination: -s and -p are mutually exclusive";
        assert_eq!(told("-ps").as_deref(), Some(words));
        assert!(told("-ws").is_some() && told("-w").is_none() && told("-C").is_none());
    }
}
