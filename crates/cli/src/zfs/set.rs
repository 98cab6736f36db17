//! `zfs set` and `zfs inherit`.
//!
//! Invariant: a value is checked for every dataset before it is set on any.

use std::process::ExitCode;

use cenote_control::changes::{Change, DatasetSettings};
use cenote_control::client::Client;
use cenote_control::plan::PropertySetting;
use cenote_control::properties;
use cenote_control::report::{DatasetKind, DatasetReport};

use super::common::{self, code, fail};
use crate::datasets::names;
use crate::getopt::Spec;
use crate::settings::dataset;
use crate::usage::Tool;
use crate::zpool::common::history_line;
use cenote_control::terminal;

const SET: Spec = Spec { letters: "u", long: &[] };
const INHERIT: Spec = Spec { letters: "rS", long: &[] };
/// Exit code if a property is given twice.
const TWICE: u8 = 255;

/// The datasets named, as far as they are there; whether all are.
fn open_all(client: &Client, names: &[String], depth: Option<u32>) -> (Vec<DatasetReport>, bool) {
    let (mut found, mut well) = (Vec::new(), true);
    for name in names {
        match common::open(client, name, &common::SETTABLE, depth, &["type"]) {
            Ok(mut all) => {
                if depth != Some(0) {
                    all.retain(|dataset| common::DATASETS.contains(&dataset.kind));
                }
                found.extend(all);
            }
            Err(message) => {
                terminal::complain(&message);
                well = false;
            }
        }
    }
    (found, well)
}

/// Runs `zfs set`.
pub fn set(arguments: &[String]) -> ExitCode {
    let wrong = |message: &str| Tool::Zfs.wrong("set", message);
    let parsed = match SET.parse(arguments) {
        Ok(parsed) => parsed,
        Err(error) => return wrong(&error.message()),
    };
    let operands = &parsed.operands;
    match operands.as_slice() {
        [] => return wrong("missing arguments"),
        [only] if only.contains('=') => return wrong("missing dataset name(s)"),
        [_] => return wrong("missing property=value argument(s)"),
        _ => {}
    }
    let start = operands.iter().position(|word| !word.contains('=')).unwrap_or(operands.len());
    let (written, names) = operands.split_at(start);
    if names.is_empty() {
        return wrong("missing dataset name(s)");
    }
    let mut pairs = Vec::new();
    if let Err(message) = common::pairs(written.iter().map(String::as_str), &mut pairs) {
        terminal::complain(&message);
        return ExitCode::from(TWICE);
    }
    let client = Client::default();
    let (datasets, mut well) = open_all(&client, names, Some(0));
    if pairs.is_empty() {
        if !well {
            return ExitCode::FAILURE;
        }
        return wrong("missing property=value argument(s)");
    }
    let line = history_line("zfs", "set", arguments);
    let mut due: Vec<DatasetSettings> = Vec::with_capacity(datasets.len());
    for found in datasets {
        let name = &found.name;
        let subject = common::subject(&client, name, found.kind, false, &pairs);
        let settings = pairs
            .iter()
            .map(|(property, value)| dataset::parse(property, value, &subject))
            .collect::<Result<Vec<_>, _>>();
        let mut properties = match settings {
            Ok(properties) => properties,
            Err(words) => {
                terminal::complain(&format!("cannot set property for '{name}': {words}"));
                well = false;
                continue;
            }
        };
        reserve_for_volume(&client, name, &mut properties);
        due.push(DatasetSettings { dataset: found.name, properties });
    }
    let mount = !parsed.has('u');
    well &= each_pool(
        due,
        |one| &one.dataset,
        |name, datasets| {
            let change = Change::SetProperties { datasets, mount };
            common::change(&client, name, Some(line.clone()), change)
        },
    );
    code(well)
}

/// Gives one order to each pool about all that is `due` in it, in order; whether all went well.
fn each_pool<T>(
    due: Vec<T>,
    dataset: impl Fn(&T) -> &String,
    order: impl Fn(&str, Vec<T>) -> bool,
) -> bool {
    let mut pools: Vec<(String, Vec<T>)> = Vec::new();
    for one in due {
        let pool = names::pool_of(dataset(&one)).to_owned();
        match pools.iter_mut().find(|(known, _)| *known == pool) {
            Some((_, all)) => all.push(one),
            None => pools.push((pool, vec![one])),
        }
    }
    pools.into_iter().fold(true, |well, (pool, all)| order(&pool, all) && well)
}

/// What `refreservation=auto` of a volume comes to; and a volume that holds back space for its
/// whole size goes on doing so when it gets another.
fn reserve_for_volume(client: &Client, name: &str, properties: &mut Vec<PropertySetting>) {
    let given = |wanted: &str| properties.iter().find(|setting| setting.name == wanted);
    let number = |wanted: &str| given(wanted).and_then(|setting| setting.value.number());
    let is_auto = number("refreservation") == Some(dataset::AUTO);
    if !is_auto && (given("refreservation").is_some() || given("volsize").is_none()) {
        return;
    }
    let wanted = ["volsize", "volblocksize", "refreservation"];
    let Ok(all) = common::open(client, name, &common::DATASETS, Some(0), &wanted) else { return };
    let values = all.first().map(|dataset| &dataset.properties);
    let now = |name: &str| values.and_then(|values| values.number(name));
    let (Some(old), Some(block)) = (now("volsize"), now("volblocksize")) else { return };
    let before = super::create::reservation(old, block);
    if !is_auto && now("refreservation") != Some(before) {
        return;
    }
    let size = number("volsize").unwrap_or(old);
    let bytes = super::create::reservation(size, block);
    properties.retain(|setting| setting.name != "refreservation");
    properties.push(PropertySetting::number("refreservation", bytes));
}

/// Runs `zfs inherit`.
pub fn inherit(arguments: &[String]) -> ExitCode {
    let wrong = |message: &str| Tool::Zfs.wrong("inherit", message);
    let parsed = match INHERIT.parse(arguments) {
        Ok(parsed) => parsed,
        Err(error) => return wrong(&error.message()),
    };
    let (property, names) = match parsed.operands.split_first() {
        None => return wrong("missing property argument"),
        Some((_, [])) => return wrong("missing dataset argument"),
        Some((property, names)) => (property, names),
    };
    let received = parsed.has('S');
    let property = match inheritable(property, received) {
        Ok(property) => property,
        Err(Refused::Usage(message)) => return wrong(&message),
        Err(Refused::Plainly(message)) => return fail(&message),
    };
    let client = Client::default();
    let depth = if parsed.has('r') { None } else { Some(0) };
    let (datasets, mut well) = open_all(&client, names, depth);
    let line = history_line("zfs", "inherit", arguments);
    let mut due: Vec<String> = Vec::with_capacity(datasets.len());
    for found in datasets {
        let name = &found.name;
        if !applies(&property, found.kind) {
            if depth.is_some() || names.contains(name) {
                terminal::complain(&format!(
                    "cannot inherit {property} for '{name}': property doesn't apply to datasets \
                     of this type"
                ));
                well = false;
            }
            continue;
        }
        due.push(found.name);
    }
    well &= each_pool(
        due,
        |name| name,
        |name, datasets| {
            let change = Change::Inherit { datasets, property: property.clone(), received };
            common::change(&client, name, Some(line.clone()), change)
        },
    );
    code(well)
}

fn applies(property: &str, kind: DatasetKind) -> bool {
    match dataset::native(property) {
        // snapshots only have properties of users
        Some(_) if kind == DatasetKind::Snapshot => false,
        Some(_) => properties::dataset(property).is_none_or(|info| info.applies_to(kind)),
        None => true,
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Refused {
    /// With the usage text.
    Usage(String),
    /// Without.
    Plainly(String),
}

/// The full name of a property that can be inherited, or reverted to the received value.
fn inheritable(name: &str, received: bool) -> Result<String, Refused> {
    let Some(property) = dataset::native(name) else {
        if properties::is_user_property(name) {
            return Ok(name.to_owned());
        }
        return Err(Refused::Usage(format!("invalid property '{name}'")));
    };
    let name = property.name;
    if property.is_read_only() {
        return Err(Refused::Plainly(format!("{name} property is read-only")));
    }
    if !property.is_inheritable() && !received {
        let mut words = format!("'{name}' property cannot be inherited");
        if matches!(name, "quota" | "reservation" | "refquota" | "refreservation") {
            words.push_str(&format!(
                "\nuse 'zfs set {name}=none' to clear\nuse 'zfs inherit -S {name}' to revert to \
                 received value"
            ));
        }
        return Err(Refused::Plainly(words));
    }
    if received && name == "version" {
        let words = "'version' property cannot be reverted to a received value";
        return Err(Refused::Plainly(words.to_owned()));
    }
    Ok(name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Recorded from OpenZFS 2.1.11 in a virtual machine.
    #[test]
    fn what_cannot_be_inherited_is_refused_as_openzfs_does() {
        let plainly = |words: &str| Err(Refused::Plainly(words.to_owned()));
        let usage = |words: &str| Err(Refused::Usage(words.to_owned()));
        assert_eq!(inheritable("bogus", false), usage("invalid property 'bogus'"));
        assert_eq!(inheritable("atime=on", false), usage("invalid property 'atime=on'"));
        let words = "invalid property 'userquota@root'";
        assert_eq!(inheritable("userquota@root", false), usage(words));
        assert_eq!(inheritable("used", false), plainly("used property is read-only"));
        let words = "casesensitivity property is read-only";
        assert_eq!(inheritable("casesensitivity", false), plainly(words));
        let words = "'quota' property cannot be inherited\nuse 'zfs set quota=none' to clear\nuse \
                     'zfs inherit -S quota' to revert to received value";
        assert_eq!(inheritable("quota", false), plainly(words));
        let words = "'canmount' property cannot be inherited";
        assert_eq!(inheritable("canmount", false), plainly(words));
        let words = "'version' property cannot be reverted to a received value";
        assert_eq!(inheritable("version", true), plainly(words));
        assert_eq!(inheritable("quota", true), Ok("quota".to_owned()));
        assert_eq!(inheritable("compress", false), Ok("compression".to_owned()));
        assert_eq!(inheritable("com.x:y", false), Ok("com.x:y".to_owned()));
        assert!(!applies("recordsize", DatasetKind::Volume));
        assert!(!applies("atime", DatasetKind::Snapshot));
        assert!(applies("com.x:y", DatasetKind::Snapshot));
    }
}
