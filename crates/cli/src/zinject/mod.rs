//! `zinject`: faults on purpose.
//!
//! Invariant: words and columns are those of OpenZFS 2.2; what this program cannot do is refused by name.

mod order;
mod target;

use std::process::ExitCode;

use cenote_control::changes::Change;
use cenote_control::client::Client;
use cenote_control::faults::{FaultKind, FaultOrder, FaultReport};
use cenote_control::terminal;

use crate::getopt::{Parsed, Spec};
use crate::zpool::common;

const SPEC: Spec = Spec { letters: "ab:c:C:d:D:e:f:hl:L:mqr:t:T:uA:g:Ip:P:s:x", long: &[] };
const USAGE: &str = "usage:

\tzinject
\t\tList all active injection records.

\tzinject -c <id|all>
\t\tClear the particular record (or all records).

\tzinject -d device [-e errno] [-T type] [-f frequency] pool
\t\tInject errors of a device: io, nxio (the device is gone), checksum,
\t\tcorrupt (a bit of what is read), noop (writes that never happen).
\t\tType is read, write, flush or all; frequency is percent.

\tzinject -d device -D latency:lanes [-T type] [-f frequency] pool
\t\tLet a device take so many milliseconds, with so many at work at once.

\tzinject -d device -A <degrade|fault> pool
\t\tLet a device count as degraded or faulty, until 'zpool clear'.

\tzinject -d device [-e errno] -L <nvlist|pad1|pad2|uber> pool
\t\tInject errors in the labels of a device.

\tzinject -t <data|dnode> [-e errno] [-l level] [-r range] [-C copies] [-f frequency] path
\t\tInject errors in what a file holds: io, checksum, decrypt, decompress;
\t\tin some of its copies only, numbered from 0: -C 0,1.

\tzinject -p <function> pool
\t\tLet the pool's process die at a function, before what it does counts:
\t\tspa_vdev_add, spa_vdev_attach, spa_vdev_detach, spa_vdev_remove or
\t\tspa_vdev_split_mirror.

\tzinject -b objset:object:level:start:end [-e errno] [-f frequency] pool
\t\tInject errors in blocks of an object; numbers are hexadecimal.

\t-q prints only the number of the record, -a, -m and -u are accepted.
";

/// Runs the command.
pub fn run(arguments: &[String]) -> ExitCode {
    let parsed = match SPEC.parse(arguments) {
        Ok(parsed) => parsed,
        Err(error) => return wrong(&error.message()),
    };
    if parsed.has('h') {
        terminal::out(USAGE);
        return ExitCode::SUCCESS;
    }
    let client = Client::default();
    if let Some(which) = parsed.argument('c') {
        return clear(&client, which, &parsed);
    }
    if arguments.is_empty() {
        return list(&client);
    }
    for (letter, what) in [('I', "ignoring flushes"), ('P', "delays of imports")] {
        if parsed.has(letter) {
            terminal::complain(&format!("zinject: {what} (-{letter}) is not supported yet"));
            return ExitCode::FAILURE;
        }
    }
    if let Some(state) = parsed.argument('A') {
        return count_as_bad(&client, state, &parsed);
    }
    match order::of(&client, &parsed) {
        Ok((pool, orders)) => add(&client, &pool, orders, parsed.has('q')),
        Err(order::Refusal::Usage(message)) => wrong(&message),
        Err(order::Refusal::Failed(message)) => {
            terminal::complain(&message);
            ExitCode::FAILURE
        }
    }
}

fn wrong(message: &str) -> ExitCode {
    terminal::complain(&format!("{message}\n{}", USAGE.trim_end()));
    ExitCode::from(2)
}

fn add(client: &Client, pool: &str, orders: Vec<FaultOrder>, quiet: bool) -> ExitCode {
    let known = client.faults(pool).unwrap_or_default();
    for order in orders {
        if !common::order(client, pool, &Change::Inject(order).into()) {
            return ExitCode::FAILURE;
        }
    }
    let added = client.faults(pool).unwrap_or_default();
    let is_known = |id: u64| known.iter().any(|known| known.id == id);
    for fault in added.iter().filter(|fault| !is_known(fault.id)) {
        match quiet {
            true => terminal::out(&format!("{}\n", fault.id)),
            false => terminal::out(&described(pool, fault)),
        }
    }
    ExitCode::SUCCESS
}

/// `-A`.
fn count_as_bad(client: &Client, state: &str, parsed: &Parsed) -> ExitCode {
    let faulted = match state {
        "fault" => true,
        "degrade" => false,
        state => return wrong(&format!("invalid action '{state}': must be degrade or fault")),
    };
    let (Some(device), [pool]) = (parsed.argument('d'), &parsed.operands[..]) else {
        return wrong("-A wants a device (-d) and its pool");
    };
    let change = Change::CountAsBad { device: device.to_owned(), faulted };
    match common::order(client, pool, &change.into()) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

fn described(pool: &str, fault: &FaultReport) -> String {
    let head =
        format!("Added handler {} with the following properties:\n  pool: {pool}\n", fault.id);
    match &fault.order {
        FaultOrder::Device(_) => format!("{head}  vdev: {:x}\n", fault.guid),
        FaultOrder::Death(function) => format!("{head}panic function: {function}\n"),
        FaultOrder::Object(own) => {
            let range = match own.blocks {
                None => "all".to_owned(),
                Some((start, end)) => format!("[{start}, {end})"),
            };
            format!(
                "{head}objset: {}\nobject: {}\n  type: 0\n level: {}\n range: {range}\n  dvas: 0x0\n",
                own.dataset, own.object, own.level
            )
        }
    }
}

fn clear(client: &Client, which: &str, parsed: &Parsed) -> ExitCode {
    if !parsed.operands.is_empty() || parsed.options.len() > 1 {
        return wrong("-c (clear) is to stand alone");
    }
    let id = match which {
        "all" => None,
        text => match text.parse() {
            Ok(id) => Some(id),
            Err(_) => return wrong(&format!("invalid id '{text}': must be an integer or 'all'")),
        },
    };
    let (mut found, mut failed) = (false, false);
    for pool in client.pools() {
        let own = client.faults(&pool).unwrap_or_default();
        if own.is_empty() || id.is_some_and(|id| own.iter().all(|fault| fault.id != id)) {
            continue;
        }
        found = true;
        failed |= !common::order(client, &pool, &Change::ForgetFaults(id).into());
    }
    match id {
        _ if failed => return ExitCode::FAILURE,
        None => terminal::out("removed all registered handlers\n"),
        Some(id) if found => terminal::out(&format!("removed handler {id}\n")),
        Some(id) => {
            terminal::complain(&format!(
                "failed to remove handler {id}: No such file or directory"
            ));
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn list(client: &Client) -> ExitCode {
    let (mut devices, mut delays, mut objects) = (String::new(), String::new(), String::new());
    let mut deaths = String::new();
    for pool in client.pools() {
        for fault in client.faults(&pool).unwrap_or_default() {
            let FaultReport { id, guid, order, .. } = fault;
            match order {
                FaultOrder::Device(own) => match own.kind {
                    FaultKind::Slow { microseconds, lanes } => {
                        let latency = microseconds / 1000;
                        delays.push_str(&format!(
                            "{id:>3}  {pool:<15}  {latency:<15}  {lanes:<15}  {guid:x}\n"
                        ));
                    }
                    _ => devices.push_str(&format!("{id:>3}  {pool:<15}  {guid:x}\n")),
                },
                FaultOrder::Death(function) => {
                    deaths.push_str(&format!("{id:>3}  {pool:<15}  {function}\n"));
                }
                FaultOrder::Object(own) => {
                    let range = match own.blocks {
                        None => "all".to_owned(),
                        Some((start, end)) => format!("[{start}, {end}]"),
                    };
                    objects.push_str(&format!(
                        "{id:>3}  {pool:<15}  {:<6}  {:<6}  {:<8}  {:<3}  0x{:02x}  {range}\n",
                        own.dataset, own.object, "-", own.level, own.copies
                    ));
                }
            }
        }
    }
    if [&devices, &delays, &objects, &deaths].iter().all(|rows| rows.is_empty()) {
        terminal::out("No handlers registered.\nRun 'zinject -h' for usage information.\n");
        return ExitCode::SUCCESS;
    }
    for (columns, rows) in [
        (&[("ID", 3), ("POOL", 15), ("GUID", 16)][..], devices),
        (&[("ID", 3), ("POOL", 15), ("DELAY (ms)", 15), ("LANES", 15), ("GUID", 16)], delays),
        (
            &[
                ("ID", 3),
                ("POOL", 15),
                ("OBJSET", 6),
                ("OBJECT", 6),
                ("TYPE", 8),
                ("LVL", 3),
                ("DVAs", 4),
                ("RANGE", 15),
            ],
            objects,
        ),
        (&[("ID", 3), ("POOL", 15), ("FUNCTION", 16)], deaths),
    ] {
        if !rows.is_empty() {
            terminal::out(&format!("{}{rows}\n", heading(columns)));
        }
    }
    ExitCode::SUCCESS
}

/// The names of columns, and a line below.
fn heading(columns: &[(&str, usize)]) -> String {
    let name = |(name, width): &(&str, usize)| match *name {
        "ID" => format!("{name:>width$}"),
        _ => format!("{name:<width$}"),
    };
    let names: Vec<String> = columns.iter().map(name).collect();
    let lines: Vec<String> = columns.iter().map(|(_, width)| "-".repeat(*width)).collect();
    // The last column of three is not filled up, that of eight is.
    let names = names.join("  ");
    let names = if columns.len() > 5 { &names } else { names.trim_end() };
    format!("{names}\n{}\n", lines.join("  "))
}
