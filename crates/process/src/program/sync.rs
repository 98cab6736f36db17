//! `zfs.sync`, which changes datasets, and `zfs.check`, which says whether that would go well.
//!
//! Invariant: what fails is told by a number and leaves nothing behind; where a program may only look, `zfs.sync`
//! ends it before anything is done.

use cenote_engine::ErrorKind;
use cenote_engine::dataset::change::PropertyInput;
use cenote_engine::dataset::{Catalog, NAME_MAX};
use cenote_engine::pool::change::ProgramStep;
use cenote_format::property::{USER_NAME_MAX, USER_VALUE_MAX, is_user_name};
use cenote_lua::{Result, TableId, Value, Vm};

use super::Host;
use super::arguments::{Form, Given};
use super::errors::{E2BIG, EINVAL, ENAMETOOLONG, EXDEV};

/// What a function stands for; or the number of what is wrong with its arguments.
type Step = fn(&Given) -> std::result::Result<ProgramStep, i64>;

const FUNCTIONS: &[(Form, Step)] = &[
    (Form::positional("destroy", &["filesystem | snapshot"]).with(&["defer"]), |given| {
        Ok(ProgramStep::Destroy { name: given.text(0).to_owned(), defer: given.is(0) })
    }),
    (Form::positional("promote", &["clone"]), |given| {
        Ok(ProgramStep::Promote(given.text(0).to_owned()))
    }),
    (Form::positional("rollback", &["filesystem"]), |given| {
        Ok(ProgramStep::Rollback(given.text(0).to_owned()))
    }),
    (Form::positional("snapshot", &["filesystem@snapname | volume@snapname"]), snapshot),
    (Form::positional("inherit", &["dataset", "property"]), |given| {
        let (dataset, property) = (given.text(0).to_owned(), given.text(1).to_owned());
        Ok(ProgramStep::Inherit { dataset, property })
    }),
    (Form::positional("bookmark", &["snapshot | bookmark", "bookmark"]), |given| {
        let (from, to) = (given.text(0).to_owned(), given.text(1).to_owned());
        Ok(ProgramStep::Bookmark { from, to })
    }),
    (Form::positional("set_prop", &["dataset", "property", "value"]), set_property),
    (Form::positional("rename_snapshot", &["dataset", "snapname", "newname"]), |given| {
        let dataset = given.text(0).to_owned();
        let (from, to) = (given.text(1).to_owned(), given.text(2).to_owned());
        Ok(ProgramStep::RenameSnapshot { dataset, from, to })
    }),
];

fn snapshot(given: &Given) -> std::result::Result<ProgramStep, i64> {
    let name = given.text(0);
    if !name.contains('@') {
        return Err(EINVAL);
    }
    if name.len() > NAME_MAX {
        return Err(ENAMETOOLONG);
    }
    Ok(ProgramStep::Snapshot(name.to_owned()))
}

fn set_property(given: &Given) -> std::result::Result<ProgramStep, i64> {
    let (name, value) = (given.text(1), given.text(2));
    if !is_user_name(name) {
        // A name that is too long may be one for all that.
        let is_long = name.contains(':') && name.len() > USER_NAME_MAX;
        return Err(if is_long { ENAMETOOLONG } else { EINVAL });
    }
    if name.len() > USER_NAME_MAX {
        return Err(ENAMETOOLONG);
    }
    if value.len() > USER_VALUE_MAX {
        return Err(E2BIG);
    }
    let input = PropertyInput::text(name, value);
    Ok(ProgramStep::SetProperty { dataset: given.text(0).to_owned(), input })
}

/// Registers the functions; they change something if they are those of `zfs.sync`.
pub fn register<'h>(
    vm: &mut Vm<'h>,
    module: TableId,
    host: &'h Host<'h>,
    changes: bool,
) -> Result<()> {
    for (form, step) in FUNCTIONS {
        vm.register(module, form.name(), move |vm, args| {
            vm.check()?;
            let given = form.parse(vm, args)?;
            if changes && host.looks_only {
                let reason = "running functions from the zfs.sync submodule requires passing \
                              sync=TRUE to lzc_channel_program() (i.e. do not specify the \"-n\" \
                              command line argument)";
                return Err(host.fatal(vm, reason));
            }
            match step(&given) {
                Ok(step) => carry_out(vm, host, &step, changes),
                Err(number) => Ok(vec![Value::Int(number)]),
            }
        })?;
    }
    Ok(())
}

fn carry_out(
    vm: &mut Vm<'_>,
    host: &Host<'_>,
    step: &ProgramStep,
    changes: bool,
) -> Result<Vec<Value>> {
    if let Some(number) = refused_name(host, step) {
        return Ok(vec![Value::Int(number)]);
    }
    let done = if changes { host.group.make(step) } else { host.group.check(step) };
    let error = match done {
        Ok(()) => {
            if changes {
                host.made.borrow_mut().push(step.clone());
            }
            return Ok(vec![Value::Int(0)]);
        }
        Err(error) => error,
    };
    let Some(number) = host.number(&error) else {
        return Err(super::trouble(vm, host, "an unrecoverable error", &error));
    };
    if let ProgramStep::Promote(clone) = step
        && error.kind() == ErrorKind::Exists
    {
        let table = vm.new_table()?;
        let found = host.group.catalog().and_then(|catalog| conflicts(&catalog, clone));
        for name in found.unwrap_or_default() {
            let name = vm.string(name.as_bytes())?;
            vm.push(table, name)?;
        }
        return Ok(vec![Value::Int(number), Value::Table(table)]);
    }
    Ok(vec![Value::Int(number)])
}

/// The number for names that are none of this pool, or too long.
fn refused_name(host: &Host<'_>, step: &ProgramStep) -> Option<i64> {
    let names: &[&String] = match step {
        ProgramStep::Snapshot(name) | ProgramStep::Promote(name) | ProgramStep::Rollback(name) => {
            &[name]
        }
        ProgramStep::Destroy { name, .. } => &[name],
        ProgramStep::Bookmark { from, to } => &[from, to],
        ProgramStep::SetProperty { dataset, .. }
        | ProgramStep::Inherit { dataset, .. }
        | ProgramStep::RenameSnapshot { dataset, .. } => &[dataset],
    };
    names.iter().find_map(|name| {
        if name.len() > NAME_MAX {
            return Some(ENAMETOOLONG);
        }
        let pool = name.split(['/', '@', '#']).next();
        (pool != Some(host.pool)).then_some(EXDEV)
    })
}

/// The names that a clone has for snapshots of its own and that its origin, or what comes before that, has too.
fn conflicts(catalog: &Catalog, clone: &str) -> cenote_engine::Result<Vec<String>> {
    let clone = catalog.dataset_named(clone)?;
    let Some(origin) = catalog.origin(&clone.directory)? else { return Ok(Vec::new()) };
    let parent = catalog.head(&origin.directory)?;
    let own = catalog.snapshots(&clone)?;
    let is_own = |name: &str| own.iter().any(|one| one.name.snapshot_name() == Some(name));
    let moving = catalog.snapshots(&parent)?.into_iter();
    let moving = moving.filter(|one| one.phys.creation_txg <= origin.phys.creation_txg);
    let names = moving.filter_map(|one| one.name.snapshot_name().map(str::to_owned));
    Ok(names.filter(|name| is_own(name)).collect())
}
