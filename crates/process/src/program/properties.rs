//! `zfs.get_prop`.
//!
//! Invariant: numbers are given as they are stored, so that the largest look negative; what a dataset does not
//! have is nil, what there is not at all ends the program.

use cenote_engine::ErrorKind;
use cenote_engine::dataset::{
    Dataset, Principal, PrincipalUsage, PropertyValue, Source, Value as Found,
};
use cenote_format::property::{Kind, dataset as native, is_user_name};
use cenote_lua::{Result, TableId, Value, Vm};

use super::arguments::Form;
use super::{Host, open, trouble};

/// Properties that nobody tells programs.
const UNTOLD: [&str; 2] = ["mounted", "iscsioptions"];
/// Properties that are several names.
const LISTS: [&str; 2] = ["clones", "redact_snaps"];

pub fn register<'h>(vm: &mut Vm<'h>, module: TableId, host: &'h Host<'h>) -> Result<()> {
    let form = Form::positional("get_prop", &["dataset", "property"]);
    vm.register(module, "get_prop", move |vm, args| {
        vm.check()?;
        let given = form.parse(vm, args)?;
        let dataset = open(vm, host, given.text(0))?;
        get(vm, host, &dataset, given.text(1))
    })
}

/// Where a value comes from, as programs are told.
pub fn source(source: &Source, of: &Dataset) -> Option<String> {
    match source {
        Source::None => None,
        Source::Default => Some("default".to_owned()),
        Source::Local => Some(of.name.to_string()),
        Source::Inherited(from) => Some(from.clone()),
        Source::Received => Some("$recvd".to_owned()),
        Source::Temporary => Some("temporary".to_owned()),
    }
}

fn get(vm: &mut Vm<'_>, host: &Host<'_>, of: &Dataset, name: &str) -> Result<Vec<Value>> {
    let nothing = || vec![Value::Nil, Value::Nil];
    if UNTOLD.contains(&name) {
        return Ok(nothing());
    }
    if let Some((figure, id)) = name.split_once('@')
        && let Some(which) = whose(figure, id)
    {
        return used_by(vm, host, of, figure, which);
    }
    match name {
        "useraccounting" => {
            return match host.group.counts_owners(of) {
                Ok(counts) => Ok(vec![Value::Int(i64::from(counts)), Value::Nil]),
                Err(error) => Err(trouble(vm, host, name, &error)),
            };
        }
        "prevsnap" => return previous(vm, host, of),
        _ => {}
    }
    let is_known = native(name).is_some() || is_user_name(name) || name.starts_with("written");
    if !is_known {
        return Err(host.fatal(vm, &format!("'{name}' is not a valid property")));
    }
    let found = match host.group.property(of, name) {
        Ok(Some(found)) => found,
        Ok(None) if name == "clones" && of.is_snapshot() => {
            return Ok(vec![Value::Table(vm.new_table()?), Value::Nil]);
        }
        Ok(None) => return Ok(nothing()),
        Err(error) if error.kind() == ErrorKind::InvalidArgument => {
            return Err(host.fatal(vm, &format!("'{name}' is not a valid property")));
        }
        Err(error) => return Err(trouble(vm, host, name, &error)),
    };
    let is_count = matches!(name, "filesystem_count" | "snapshot_count");
    if is_count && found.value == Found::Number(u64::MAX) {
        return Ok(nothing());
    }
    let value = value(vm, &found)?;
    let is_fixed = is_count || name == "volblocksize";
    let from = match name.starts_with("written@") {
        true => Some(of.name.to_string()),
        false => source(&found.source, of).filter(|_| !is_fixed),
    };
    let from = match from {
        Some(from) => vm.take_string(from.into_bytes())?,
        None => Value::Nil,
    };
    Ok(vec![value, from])
}

/// The snapshot that a filesystem or volume goes on from, be it its own or the one it was cloned from.
fn previous(vm: &mut Vm<'_>, host: &Host<'_>, of: &Dataset) -> Result<Vec<Value>> {
    if of.is_snapshot() {
        return Ok(vec![Value::Nil, Value::Nil]);
    }
    let before = host.group.catalog().and_then(|catalog| catalog.previous(of));
    let before = match before {
        Ok(before) => before.map(|one| one.name.to_string()),
        Err(error) => return Err(trouble(vm, host, "prevsnap", &error)),
    };
    // All others come of an empty snapshot that nobody sees.
    let name = match before.filter(|name| !name.contains('$')) {
        Some(name) => vm.take_string(name.into_bytes())?,
        None => Value::Nil,
    };
    Ok(vec![name, Value::Nil])
}

fn value(vm: &mut Vm<'_>, found: &PropertyValue) -> Result<Value> {
    match &found.value {
        Found::Text(text) if LISTS.contains(&found.name.as_str()) => {
            let table = vm.new_table()?;
            for name in text.split(',').filter(|name| !name.is_empty()) {
                let name = vm.string(name.as_bytes())?;
                vm.push(table, name)?;
            }
            Ok(Value::Table(table))
        }
        Found::Text(text) => vm.string(text.as_bytes()),
        Found::Ratio(number) => Ok(Value::Int(number.cast_signed())),
        Found::Number(number) => match found.property {
            Some(property) if matches!(property.kind, Kind::Index(_)) => {
                let text = property.number_text(*number);
                vm.string(text.as_bytes())
            }
            _ => Ok(Value::Int(number.cast_signed())),
        },
    }
}

/// Of whom a property like `userused@1000` is.
fn whose(figure: &str, id: &str) -> Option<Principal> {
    let number = id.parse().ok()?;
    match figure {
        "userused" | "userquota" | "userobjused" | "userobjquota" => Some(Principal::User(number)),
        "groupused" | "groupquota" | "groupobjused" | "groupobjquota" => {
            Some(Principal::Group(number))
        }
        "projectused" | "projectquota" | "projectobjused" | "projectobjquota" => {
            Some(Principal::Project(number))
        }
        _ => None,
    }
}

fn used_by(
    vm: &mut Vm<'_>,
    host: &Host<'_>,
    of: &Dataset,
    figure: &str,
    whose: Principal,
) -> Result<Vec<Value>> {
    let usage = match host.group.usage(of) {
        Ok(mut all) => all.remove(&whose).unwrap_or_default(),
        Err(error) => return Err(trouble(vm, host, figure, &error)),
    };
    let PrincipalUsage { used, objects, quota, object_quota } = usage;
    let number = match (figure.ends_with("quota"), figure.contains("obj")) {
        (true, true) => object_quota,
        (true, false) => quota,
        (false, true) => Some(objects.unwrap_or(0)),
        (false, false) => Some(used),
    };
    let Some(number) = number else { return Ok(vec![Value::Nil, Value::Nil]) };
    let from = vm.string(of.name.to_string().as_bytes())?;
    Ok(vec![Value::Int(number.cast_signed()), from])
}
