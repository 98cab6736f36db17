//! `zdb`: looking inside pools and devices, in zdb's spirit, without a kernel module.
//!
//! Invariant: read-only, and what it shows comes with the place it was found at.

mod arguments;
mod blocks;
mod bonus;
mod content;
mod datasets;
mod dedup;
mod described;
mod files;
mod history;
mod labels;
mod log;
mod metaslabs;
mod object;
mod pointer;
mod ranges;
mod raw;
mod render;
mod selection;
mod sink;

use std::process::ExitCode;
use std::sync::Arc;

use cenote_engine::pool::Pool;
use cenote_engine::{Error, ErrorKind};
use clap::Parser as _;
use serde_json::json;

use crate::offline::target::SourceOptions;
use arguments::Arguments;
use sink::Sink;

/// Exit code for a command line that makes no sense.
const USAGE: u8 = 2;

/// Runs `zdb` with `arguments` (the command's own name first). Exit codes: 0 fine, 1 something is
/// wrong with the pool, 2 usage.
pub fn run(arguments: &[String]) -> ExitCode {
    let arguments = match Arguments::try_parse_from(arguments) {
        Ok(arguments) => arguments,
        Err(error) => {
            let code = u8::from(error.use_stderr()) * USAGE;
            // Nothing is left to do if the terminal is gone.
            let _ = error.print();
            return ExitCode::from(code);
        }
    };
    if let Some((option, instead)) = arguments.unsupported() {
        eprintln!("zdb: option {option} is not supported yet; {instead}");
        return ExitCode::from(USAGE);
    }
    let mut sink = Sink::new(arguments.json);
    let result = look(&arguments, &mut sink);
    if let Err(error) = &result {
        sink.complain();
        sink.json("error", json!(error.to_string()));
    }
    let sound = sink.finish();
    match result {
        Ok(()) if sound => ExitCode::SUCCESS,
        Ok(()) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("zdb: {error}");
            match error.kind() {
                ErrorKind::InvalidArgument => ExitCode::from(USAGE),
                _ => ExitCode::FAILURE,
            }
        }
    }
}

fn look(arguments: &Arguments, sink: &mut Sink) -> Result<(), Error> {
    let operands = arguments.operands.as_slice();
    if arguments.labels > 0 {
        if operands.is_empty() {
            let error = Error::invalid("-l needs a device");
            return Err(error.with_advice("write 'zdb -l DEVICE...'"));
        }
        let uberblocks = arguments.uberblock > 0 || arguments.labels > 2;
        return labels::show(operands, uberblocks, sink);
    }
    let Some((target, rest)) = operands.split_first() else {
        return pools(arguments, sink);
    };
    let pool_name = target.split(['/', '@', '#']).next().unwrap_or(target);
    let pool = open(pool_name, arguments)?;
    if arguments.raw {
        if rest.is_empty() {
            let error = Error::invalid("-R needs the address of a block");
            return Err(error.with_advice("write 'zdb -R POOL VDEV:OFFSET:PSIZE[/LSIZE][:FLAGS]'"));
        }
        return rest.iter().try_for_each(|address| raw::show(&pool, address, sink));
    }
    show(&pool, target, rest, arguments, sink)
}

fn show(
    pool: &Arc<Pool>,
    target: &str,
    rest: &[String],
    arguments: &Arguments,
    sink: &mut Sink,
) -> Result<(), Error> {
    let more = |count: u8| if count == 0 { 0 } else { count.saturating_add(arguments.verbose) };
    let plain = !arguments.asks() && rest.is_empty() && target == pool.name();
    if arguments.config > 0 || plain {
        let config = render::nvlist(&pool.config().raw);
        sink.tree("\nMOS Configuration", "config", config);
    }
    if arguments.uberblock > 0 || plain {
        let uberblock = labels::uberblock(&pool.uberblock());
        sink.tree("\nUberblock", "uberblock", uberblock);
    }
    if arguments.datasets > 0 || !arguments.asks() {
        datasets::show(pool, target, rest, more(arguments.datasets.max(1)), sink)?;
    }
    if arguments.metaslabs > 0 {
        let wanted = if arguments.datasets > 0 { &[] } else { rest };
        metaslabs::show(pool, more(arguments.metaslabs), wanted, sink)?;
    }
    if arguments.history > 0 {
        history::show(pool, more(arguments.history), sink)?;
    }
    if arguments.intent > 0 {
        log::show(pool, more(arguments.intent), sink)?;
    }
    if arguments.dedup > 0 {
        dedup::show(pool, sink)?;
    }
    if arguments.blocks > 0 || arguments.checksums > 0 {
        let leaks = !arguments.no_leaks;
        blocks::show(pool, more(arguments.blocks), arguments.checksums, leaks, sink)?;
    }
    Ok(())
}

/// The pools that can be named.
fn pools(arguments: &Arguments, sink: &mut Sink) -> Result<(), Error> {
    if arguments.asks() || arguments.raw {
        let error = Error::invalid("no pool is named");
        return Err(error.with_advice("write 'zdb [OPTIONS] POOL'; 'zdb' alone lists pools"));
    }
    let found = cenote_engine::pool::assemble::candidates(&arguments.places);
    if found.is_empty() {
        let error = Error::not_found("no pools found");
        return Err(error.with_advice("say where their devices are with '-p PATH'"));
    }
    for pool in &found {
        sink.line(format_args!("{}  {}", pool.guid, pool.name));
    }
    let list = found.iter().map(|pool| json!({ "name": pool.name, "guid": pool.guid.0 }));
    sink.json("pools", list.collect());
    Ok(())
}

fn open(name: &str, arguments: &Arguments) -> Result<Arc<Pool>, Error> {
    let source = SourceOptions {
        places: arguments.places.clone(),
        keys: arguments.keys.clone(),
        txg: arguments.txg,
        rewind: arguments.rewind,
        ..SourceOptions::default()
    };
    source.open(name).map_err(|error| {
        if error.kind() != ErrorKind::NotFound || error.advice().is_none_or(|a| !a.contains("-d")) {
            return error;
        }
        let advice = "say where its devices are with '-p DIRECTORY' or '-p FILE'";
        Error::new(error.kind(), error.reason()).with_advice(advice)
    })
}
