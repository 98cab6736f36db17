//! `zdb`: looking inside pools and devices, in zdb's spirit, without a kernel module.
//!
//! Invariant: read-only, and what it shows comes with the place it was found at.

mod blocks;
mod history;
mod labels;
mod log;
mod objects;
mod raw;
mod render;
mod space;

use std::path::PathBuf;
use std::process::ExitCode;

use cenote_engine::Error;
use cenote_engine::pool::OpenOptions;
use cenote_format::Txg;
use clap::{ArgAction, Parser};
use serde_json::{Map, Value, json};

use crate::offline;

/// Look inside pools and devices. Reads only; pools are opened straight from their devices.
#[derive(Parser, Debug)]
#[command(name = "zdb", disable_help_flag = true, version)]
pub struct Arguments {
    /// Show the labels of a device
    #[arg(short = 'l', action = ArgAction::Count)]
    labels: u8,
    /// Show the uberblock (twice with -l: every uberblock of the rings)
    #[arg(short = 'u', action = ArgAction::Count)]
    uberblock: u8,
    /// Show the pool's configuration
    #[arg(short = 'C', action = ArgAction::Count)]
    config: u8,
    /// Show datasets; with a dataset name their objects; more often, more detail
    #[arg(short = 'd', action = ArgAction::Count)]
    datasets: u8,
    /// Count blocks by type
    #[arg(short = 'b', action = ArgAction::Count)]
    blocks: u8,
    /// Verify the checksums of metadata (twice: of all data; three times: of every copy)
    #[arg(short = 'c', action = ArgAction::Count)]
    checksums: u8,
    /// Do not compare blocks in use with the space maps (-b, -c)
    #[arg(short = 'L')]
    no_leaks: bool,
    /// Exact numbers (-bb)
    #[arg(short = 'P')]
    exact: bool,
    /// Show metaslabs and their space maps
    #[arg(short = 'm', action = ArgAction::Count)]
    metaslabs: u8,
    /// Show the pool's history
    #[arg(short = 'h', action = ArgAction::Count)]
    history: u8,
    /// Show intent logs
    #[arg(short = 'i', action = ArgAction::Count)]
    intent: u8,
    /// Read a block by its address: POOL VDEV:OFFSET:SIZE[:FLAGS]
    #[arg(short = 'R')]
    raw: bool,
    /// The pool is exported (always so here; accepted for compatibility)
    #[arg(short = 'e')]
    exported: bool,
    /// Go on after errors (accepted for compatibility: errors never stop a look)
    #[arg(short = 'A', action = ArgAction::Count, hide = true)]
    proceed: u8,
    /// Where to look for devices: a directory or a file; may be given several times
    #[arg(short = 'p', value_name = "PATH")]
    places: Vec<PathBuf>,
    /// Highest transaction group to use
    #[arg(short = 't', value_name = "TXG")]
    txg: Option<u64>,
    /// Answer as JSON
    #[arg(long)]
    json: bool,
    /// Print help
    #[arg(long, action = ArgAction::Help)]
    help: Option<bool>,
    /// Device (-l), pool or dataset, then objects or an address
    operands: Vec<String>,
}

/// Runs `zdb` with `arguments` (the command's own name first). Exit codes: 0 fine, 1 something is
/// wrong with the pool, 2 usage.
pub fn run(arguments: &[String]) -> ExitCode {
    let arguments = match Arguments::try_parse_from(arguments) {
        Ok(arguments) => arguments,
        Err(error) => {
            let code = u8::from(error.use_stderr()) * 2;
            // Nothing is left to do if the terminal is gone.
            let _ = error.print();
            return ExitCode::from(code);
        }
    };
    match look(&arguments) {
        Ok((value, sound, ready)) => {
            let text = match arguments.json {
                true => format!("{value:#}\n"),
                false => render::text(&value) + &ready,
            };
            if write_out(text.as_bytes()).is_err() || !sound {
                return ExitCode::FAILURE;
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("zdb: {error}");
            ExitCode::FAILURE
        }
    }
}

fn write_out(bytes: &[u8]) -> std::io::Result<()> {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    out.write_all(bytes)?;
    out.flush()
}

/// What to show, whether it is sound, and text to show that is not in the value.
fn look(arguments: &Arguments) -> Result<(Value, bool, String), Error> {
    let target = arguments.operands.first().map(String::as_str);
    if arguments.labels > 0 {
        let device = target.ok_or_else(|| Error::invalid("-l needs a device"))?;
        return labels::show(device.as_ref(), arguments.uberblock > 0)
            .map(|value| (value, true, String::new()));
    }
    let Some(target) = target else {
        let found = offline::pool::candidates(&arguments.places);
        let list = found.iter().map(|c| json!({"name": c.name, "guid": c.guid.0}));
        return Ok((json!({ "pools": list.collect::<Vec<_>>() }), true, String::new()));
    };
    let pool_name = target.split(['/', '@', '#']).next().unwrap_or(target);
    let options = OpenOptions {
        cache_limit: offline::pool::default_cache(),
        max_txg: arguments.txg.map(Txg),
        missing_log: true,
        ..OpenOptions::default()
    };
    let pool = offline::pool::open(pool_name, &arguments.places, &options)?;
    let mut out = Map::new();
    let (mut sound, mut ready) = (true, String::new());
    if arguments.raw {
        let address = arguments.operands.get(1);
        let address = address.ok_or_else(|| Error::invalid("-R needs VDEV:OFFSET:SIZE"))?;
        return raw::show(&pool, address).map(|value| (value, true, String::new()));
    }
    if arguments.uberblock > 0 {
        out.insert("Uberblock".into(), labels::uberblock(pool.uberblock()));
    }
    if arguments.config > 0 {
        let config = pool.config().raw.clone();
        out.insert("MOS Configuration".into(), render::nvlist(&config));
    }
    if arguments.datasets > 0 {
        let rest = arguments.operands.get(1..).unwrap_or(&[]);
        out.extend(objects::show(&pool, target, rest, arguments.datasets)?);
    }
    if arguments.metaslabs > 0 {
        out.insert("Metaslabs".into(), space::show(&pool, arguments.metaslabs)?);
    }
    if arguments.history > 0 {
        out.insert("History".into(), history::show(&pool)?);
    }
    if arguments.intent > 0 {
        out.insert("Intent logs".into(), log::show(&pool)?);
    }
    if arguments.blocks > 0 || arguments.checksums > 0 {
        let wanted = blocks::Wanted {
            blocks: arguments.blocks,
            checksums: arguments.checksums,
            no_leaks: arguments.no_leaks,
            exact: arguments.exact,
        };
        let answer = blocks::show(&pool, wanted)?;
        if arguments.json {
            out.extend(answer.fields);
        }
        (sound, ready) = (answer.sound, answer.text);
    }
    if out.is_empty() && ready.is_empty() {
        out.insert("MOS Configuration".into(), render::nvlist(&pool.config().raw));
        out.insert("Uberblock".into(), labels::uberblock(pool.uberblock()));
        out.extend(objects::show(&pool, pool_name, &[], 1)?);
    }
    Ok((Value::Object(out), sound, ready))
}
