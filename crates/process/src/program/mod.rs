//! Channel programs: Lua with a library that looks at datasets and changes them.
//!
//! Invariant: a program runs in the thread that writes groups, within its limits of instructions, memory and time,
//! so that nothing happens between what it sees and what it does; what it did stays, however it ends.

mod arguments;
mod errors;
mod list;
mod properties;
mod sync;
mod values;

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use cenote_control::changes::ProgramRequest;
use cenote_control::program::ProgramValue;
use cenote_engine::pool::change::{ProgramGroup, ProgramStep};
use cenote_engine::{Error, ErrorKind};
use cenote_lua::{Limits, Stop, TableId, Value, Vm, machine};

/// Instructions and bytes that most programs need, and the most that can be asked for.
const INSTRUCTIONS: u64 = 10_000_000;
const INSTRUCTIONS_MAX: u64 = 100_000_000;
const MEMORY: u64 = 10 << 20;
const MEMORY_MAX: u64 = 100 << 20;
/// Groups are not written while a program runs: it ends after this, whatever it is allowed.
const LONGEST: Duration = Duration::from_secs(60);
/// What a program is called in its errors.
const CHUNK: &str = "channel program";

/// What a program came to.
pub struct Outcome {
    /// What it returned, or what to say of its failure.
    pub ended: Result<Option<ProgramValue>, String>,
    /// What it changed, in order.
    pub made: Vec<ProgramStep>,
}

/// The limits of a program, or why they are none.
pub fn limits(request: &ProgramRequest) -> Result<(u64, usize), &'static str> {
    let instructions = request.instructions.unwrap_or(INSTRUCTIONS);
    let memory = request.memory.unwrap_or(MEMORY);
    if i64::try_from(memory).is_err() {
        return Err("Return value too large.");
    }
    let fits = (1..=INSTRUCTIONS_MAX).contains(&instructions) && (1..=MEMORY_MAX).contains(&memory);
    match usize::try_from(memory) {
        Ok(memory) if fits => Ok((instructions, memory)),
        _ => Err("Invalid instruction or memory limit."),
    }
}

/// What the functions of the library share.
struct Host<'a> {
    group: &'a ProgramGroup<'a>,
    pool: &'a str,
    looks_only: bool,
    made: RefCell<Vec<ProgramStep>>,
    /// What no program can go on after.
    broken: RefCell<Option<Error>>,
}

impl Host<'_> {
    /// An error that ends the program.
    fn fatal(&self, vm: &mut Vm<'_>, reason: &str) -> Stop {
        vm.error(reason)
    }

    /// The number that stands for an error of a change; `None`: nothing can be told from it but that the pool
    /// has a fault, and the program ends.
    fn number(&self, error: &Error) -> Option<i64> {
        let number = errors::number(error);
        if number.is_none() {
            self.broken.borrow_mut().get_or_insert_with(|| error.clone());
        }
        number
    }
}

/// Runs the program of `request` in a group, until `ends` says that nobody wants it any more.
///
/// # Errors
/// What the disks say.
pub fn run(
    group: &ProgramGroup<'_>,
    request: &ProgramRequest,
    ends: &Arc<AtomicBool>,
) -> cenote_engine::Result<Outcome> {
    let (instructions, memory) = limits(request).map_err(Error::invalid)?;
    if ends.load(Relaxed) {
        return Err(Error::new(ErrorKind::Interrupted, "nobody waits for the program any more"));
    }
    let until = Instant::now() + LONGEST;
    let late = AtomicBool::new(false);
    let goes_on = || {
        late.fetch_or(Instant::now() > until, Relaxed);
        !late.load(Relaxed) && !ends.load(Relaxed)
    };
    let pool = group.catalog()?.pool().to_owned();
    let host = Host {
        group,
        pool: &pool,
        looks_only: request.looks_only,
        made: RefCell::default(),
        broken: RefCell::default(),
    };
    let ended = {
        let limits = Limits { instructions, memory };
        match machine(limits, &goes_on) {
            Ok(mut vm) => match evaluate(&mut vm, &host, request, memory) {
                Ok(returned) => returned,
                Err(stop) => Err(words(&vm, &stop, ends.load(Relaxed))),
            },
            Err(_) => Err("Memory limit exhausted.".to_owned()),
        }
    };
    if let Some(error) = host.broken.take() {
        tracing::error!(%error, "a channel program met a fault");
    }
    Ok(Outcome { ended, made: host.made.into_inner() })
}

fn evaluate<'h>(
    vm: &mut Vm<'h>,
    host: &'h Host<'h>,
    request: &ProgramRequest,
    memory: usize,
) -> Result<Result<Option<ProgramValue>, String>, Stop> {
    library(vm, host)?;
    let given = vm.new_table()?;
    vm.keep(Value::Table(given));
    for argument in &request.arguments {
        let argument = vm.string(argument.as_bytes())?;
        vm.push(given, argument)?;
    }
    let all = vm.new_table()?;
    vm.keep(Value::Table(all));
    let key = vm.string(b"argv")?;
    vm.raw_set(all, key, Value::Table(given))?;
    let main = vm.load(&request.text, CHUNK)?;
    let returned = vm.call(&main, &[Value::Table(all)])?;
    match returned.as_slice() {
        [] => Ok(Ok(None)),
        [value] => {
            let shown = values::of(vm, value, memory)?;
            Ok(shown.map(Some).ok_or_else(|| "Return value too large.".to_owned()))
        }
        _ => Err(plain(vm, "Multiple return values not supported")),
    }
}

/// An error without a place.
fn plain(vm: &mut Vm<'_>, reason: &str) -> Stop {
    vm.string(reason.as_bytes()).map_or_else(|stop| stop, Stop::Error)
}

/// What is said of a program that was stopped.
fn words(vm: &Vm<'_>, stop: &Stop, is_unwanted: bool) -> String {
    match stop {
        Stop::Error(value) => vm.traceback(&match value {
            Value::Str(text) => text.lossy(),
            Value::Int(number) => number.to_string(),
            _ => String::new(),
        }),
        Stop::Memory => "Memory limit exhausted.".to_owned(),
        Stop::Instructions => {
            let instructions = vm.instructions();
            format!(
                "{}\n{instructions} Lua instructions",
                vm.traceback("Channel program timed out.")
            )
        }
        Stop::Interrupted if is_unwanted => vm.traceback("Channel program was canceled."),
        Stop::Interrupted => vm.traceback("Channel program timed out."),
    }
}

/// Puts the library into a machine.
fn library<'h>(vm: &mut Vm<'h>, host: &'h Host<'h>) -> Result<(), Stop> {
    errors::register(vm)?;
    let zfs = vm.new_table()?;
    let (globals, key) = (vm.globals(), vm.string(b"zfs")?);
    vm.raw_set(globals, key, Value::Table(zfs))?;
    let debug = arguments::Form::positional("debug", &["debug string"]);
    vm.register(zfs, "debug", move |vm, args| {
        let given = debug.parse(vm, args)?;
        tracing::info!(pool = host.pool, said = given.text(0), "channel program");
        Ok(Vec::new())
    })?;
    let exists = arguments::Form::positional("exists", &["dataset"]);
    vm.register(zfs, "exists", move |vm, args| {
        vm.check()?;
        let given = exists.parse(vm, args)?;
        let found = look_up(vm, host, given.text(0))?;
        Ok(vec![Value::Bool(found.is_some())])
    })?;
    properties::register(vm, zfs, host)?;
    let module = submodule(vm, zfs, "list")?;
    list::register(vm, module, host)?;
    let module = submodule(vm, zfs, "sync")?;
    sync::register(vm, module, host, true)?;
    let module = submodule(vm, zfs, "check")?;
    sync::register(vm, module, host, false)
}

fn submodule(vm: &mut Vm<'_>, of: TableId, name: &str) -> Result<TableId, Stop> {
    let table = vm.new_table()?;
    let key = vm.string(name.as_bytes())?;
    vm.raw_set(of, key, Value::Table(table))?;
    Ok(table)
}

/// A dataset of the pool, if there is one of that name. What is no name of a dataset in the pool ends the program.
fn look_up(
    vm: &mut Vm<'_>,
    host: &Host<'_>,
    name: &str,
) -> Result<Option<cenote_engine::dataset::Dataset>, Stop> {
    if name.split(['/', '@', '#']).next() != Some(host.pool) {
        let reason = format!("dataset '{name}' is not in the target pool '{}'", host.pool);
        return Err(host.fatal(vm, &reason));
    }
    match host.group.catalog().and_then(|catalog| catalog.dataset_named(name)) {
        Ok(dataset) => Ok(Some(dataset)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(trouble(vm, host, &format!("dataset '{name}'"), &error)),
    }
}

/// A dataset that has to be there.
fn open(
    vm: &mut Vm<'_>,
    host: &Host<'_>,
    name: &str,
) -> Result<cenote_engine::dataset::Dataset, Stop> {
    match look_up(vm, host, name)? {
        Some(dataset) => Ok(dataset),
        None => Err(host.fatal(vm, &format!("no such dataset '{name}'"))),
    }
}

/// What could not be looked at ends the program.
fn trouble(vm: &mut Vm<'_>, host: &Host<'_>, of: &str, error: &Error) -> Stop {
    let _ = host.number(error);
    let reason = error.reason().to_owned();
    host.fatal(vm, &format!("{of}: {reason}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_have_limits() {
        let of = |instructions, memory| {
            limits(&ProgramRequest { instructions, memory, ..ProgramRequest::default() })
        };
        assert_eq!(of(None, None), Ok((10_000_000, 10 << 20)));
        assert_eq!(of(Some(100_000_000), Some(100 << 20)), Ok((100_000_000, 100 << 20)));
        let wrong = Err("Invalid instruction or memory limit.");
        for (instructions, memory) in
            [(Some(0), None), (Some(100_000_001), None), (None, Some(0)), (None, Some(200_000_000))]
        {
            assert_eq!(of(instructions, memory), wrong);
        }
        assert_eq!(of(None, Some(1 << 63)), Err("Return value too large."));
    }
}
