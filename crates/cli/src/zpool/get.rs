//! `zpool get`.
//!
//! Invariant: as in `super`.

use std::process::ExitCode;

use cenote_control::client::Client;
use cenote_control::json;
use cenote_control::text::pool_get::{self, Field};
use cenote_control::text::vdev_get;

use super::common;
use crate::getopt::{Parsed, Spec};
use crate::usage::Tool;
use cenote_control::terminal;

const SPEC: Spec = Spec {
    letters: "Hjo:p",
    long: &[("json", 'j', false), ("json-int", 'J', false), ("json-pool-key-guid", 'G', false)],
};

/// Runs the command.
pub fn run(arguments: &[String]) -> ExitCode {
    let wrong = |message: &str| Tool::Zpool.wrong("get", message);
    let parsed = match SPEC.parse(arguments) {
        Ok(parsed) => parsed,
        Err(error) => return wrong(&error.message()),
    };
    let json = match common::json_options(Tool::Zpool, "get", &parsed) {
        Ok(json) => json,
        Err(code) => return code,
    };
    let fields = match Field::list(parsed.argument('o')) {
        Ok(fields) => fields,
        Err(message) => return wrong(&message),
    };
    let Some((properties, names)) = parsed.operands.split_first() else {
        return wrong("missing property argument");
    };
    let client = Client::default();
    if let [pool, others @ ..] = names
        && client.knows(pool)
        && others.iter().any(|name| !client.knows(name))
    {
        let how = (&fields[..], json.as_ref());
        return devices(&client, &parsed, properties, (pool, others), how);
    }
    let wanted = match common::property_list(properties) {
        Ok(wanted) => wanted,
        Err(message) => return wrong(&message),
    };
    if let [name] = names
        && !client.knows(name)
    {
        let message = format!("Cannot get properties of {name}: no such pool available.");
        terminal::complain(&message);
        return ExitCode::FAILURE;
    }
    let asked = common::ask(&client, names);
    if let Some(json) = json {
        if !(asked.failed && asked.pools.is_empty()) {
            terminal::out(&json::pool::get(&asked.pools, wanted.as_deref(), &json));
        }
    } else {
        let (exact, scripted) = (parsed.has('p'), parsed.has('H'));
        let text = pool_get::render(&asked.pools, wanted.as_deref(), &fields, exact, scripted);
        terminal::out(&text);
    }
    ExitCode::from(u8::from(asked.failed))
}

/// `zpool get PROPERTIES POOL DEVICE...`, or `all-vdevs`.
fn devices(
    client: &Client,
    parsed: &Parsed,
    properties: &str,
    (pool, names): (&str, &[String]),
    (fields, json): (&[Field], Option<&json::Options>),
) -> ExitCode {
    let wanted: Option<Vec<String>> =
        (properties != "all").then(|| properties.split(',').map(str::to_owned).collect());
    let odd = wanted.iter().flatten().find(|name| !vdev_get::NAMES.contains(&name.as_str()));
    if let Some(odd) = odd {
        let message = format!("bad property list: invalid property '{odd}'");
        return Tool::Zpool.wrong("get", &message);
    }
    let asked = common::ask(client, &[pool.to_owned()]);
    let Some(report) = asked.pools.first() else { return ExitCode::FAILURE };
    let all = vdev_get::devices(report);
    let mut chosen = Vec::new();
    for name in names {
        if name == "all-vdevs" {
            chosen.extend(all.iter().copied());
            continue;
        }
        match all.iter().find(|device| vdev_get::is_called(device.vdev, name)) {
            Some(device) => chosen.push(*device),
            None => {
                let message = format!(
                    "Expected either a list of pools, or list of vdevs in \"{pool}\", but \
                     got:\n\t{name} (unknown)\n"
                );
                return Tool::Zpool.wrong("get", &message);
            }
        }
    }
    let (exact, scripted) = (parsed.has('p'), parsed.has('H'));
    terminal::out(&match json {
        Some(json) => json::vdev_get::render(report, &chosen, wanted.as_deref(), json),
        None => vdev_get::render(&chosen, wanted.as_deref(), fields, exact, scripted),
    });
    ExitCode::SUCCESS
}
