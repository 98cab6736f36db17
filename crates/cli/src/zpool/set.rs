//! `zpool set`.
//!
//! Invariant: as in `super`; what a value must be like is decided in `settings`.

use std::process::ExitCode;

use cenote_control::changes::Change;
use cenote_control::client::Client;
use cenote_control::plan::{PropertySetting, PropertyValue};
use cenote_control::report::{DatasetKind, PoolReport};

use super::common;
use crate::datasets::names::new_name_problem;
use crate::getopt::Spec;
use crate::settings::compatibility::{self, Features};
use crate::settings::pool::{self, When};
use crate::usage::Tool;
use cenote_control::terminal;

const SPEC: Spec = Spec { letters: "", long: &[] };

/// Runs the command.
pub fn run(arguments: &[String]) -> ExitCode {
    let wrong = |message: &str| Tool::Zpool.wrong("set", message);
    let parsed = match SPEC.parse(arguments) {
        Ok(parsed) => parsed,
        Err(error) => return wrong(&error.message()),
    };
    let (setting, name) = match parsed.operands.as_slice() {
        [] => return wrong("missing property=value argument"),
        [_] => return wrong("missing pool name"),
        [setting, name] => (setting, name),
        [_, pool, device] if device != pool && Client::default().knows(pool) => {
            terminal::complain("zpool set of device properties is not supported yet");
            return ExitCode::FAILURE;
        }
        _ => return wrong("too many pool names"),
    };
    let Some((property, value)) = setting.split_once('=') else {
        return wrong("missing value in property=value argument");
    };
    let line = common::history_line("zpool", "set", arguments);
    match set(&Client::default(), name, property, value, Some(line)) {
        Ok(warnings) => {
            warnings.iter().for_each(|line| terminal::complain(line));
            ExitCode::SUCCESS
        }
        Err(message) => {
            terminal::complain(&message);
            ExitCode::FAILURE
        }
    }
}

/// Sets one property of an imported pool; what to warn of. `line` goes to the history.
///
/// # Errors
/// The lines to print.
pub fn set(
    client: &Client,
    name: &str,
    property: &str,
    value: &str,
    line: Option<String>,
) -> Result<Vec<String>, String> {
    if let Some(problem) = common::name_problem(name) {
        return Err(format!("cannot open '{name}': {problem}"));
    }
    let report = client.pool_report(name).map_err(|failure| failure.message)?;
    let cannot = |words: String| format!("cannot set property for '{name}': {words}");
    let mut warnings = Vec::new();
    let change = if let Some(feature) = property.strip_prefix("feature@") {
        pool::feature(feature, value, When::Later).map_err(cannot)?;
        let known = cenote_control::feature::by_name(feature).map(|known| known.name());
        let wanted: Features = known.into_iter().collect();
        Change::EnableFeatures(compatibility::with_dependencies(&wanted))
    } else if property == "dedupditto" {
        terminal::out("Note: property 'dedupditto' no longer has any effect\n");
        return Ok(warnings);
    } else {
        if property == "compatibility" {
            let allowed =
                compatibility::allowed(value).map_err(|words| format!("Error: {words}"))?;
            if enabled(&report).iter().any(|name| !allowed.contains(name)) {
                warnings.push(format!(
                    "Warning: one or more features already enabled on pool '{name}'\nare not \
                     present in this compatibility set."
                ));
            }
        }
        let setting = pool::parse(property, value, When::Later).map_err(cannot)?;
        let is_the_same = setting.name == "version" && report.properties.value("version").is_none();
        if is_the_same {
            return Err(cannot("invalid argument for this pool operation".to_owned()));
        }
        boot_filesystem(name, &setting).map_err(cannot)?;
        if setting.name == "cachefile" {
            // of the running system only; nothing is kept in cache files
            return Ok(warnings);
        }
        Change::SetPoolProperty(setting)
    };
    let request = common::change(line, change);
    warnings.extend(client.order(name, &request).map_err(|failure| failure.message)?);
    Ok(warnings)
}

/// The features a pool has, active or not.
pub fn enabled(report: &PoolReport) -> Vec<&'static str> {
    let on = report.properties.0.iter().filter(|p| p.value == "enabled" || p.value == "active");
    let names = on.filter_map(|property| property.name.strip_prefix("feature@"));
    names.filter_map(|name| Some(cenote_control::feature::by_name(name)?.name())).collect()
}

/// The name of a filesystem to boot, or of a snapshot of one, must be one that the pool could have.
fn boot_filesystem(pool: &str, setting: &PropertySetting) -> Result<(), String> {
    let PropertyValue::Text(value) = &setting.value else { return Ok(()) };
    if setting.name != "bootfs" || value.is_empty() {
        return Ok(());
    }
    let inside =
        value.strip_prefix(pool).is_some_and(|r| r.is_empty() || r.starts_with(['/', '@']));
    let kinds = [DatasetKind::Filesystem, DatasetKind::Snapshot];
    let could_be = kinds.iter().any(|kind| new_name_problem(value, &[*kind]).is_none());
    match inside && could_be {
        true => Ok(()),
        false => Err(format!("'{value}' is an invalid name")),
    }
}
