//! From options to what is asked of a pool.
//!
//! Invariant: what is asked is complete, or refused with what is wrong.

use cenote_control::client::Client;
use cenote_control::faults::{
    ALWAYS, BlockFault, DeviceFault, FUNCTIONS, FaultAt, FaultKind, FaultOrder, ObjectFault,
};
use cenote_control::report::{PoolReport, VdevReport};
use cenote_control::text::vdev_name;

use super::target;
use crate::getopt::Parsed;

/// Bytes of a label.
const LABEL: u64 = 256 << 10;
/// Parts of a label: name, first byte, the one behind the last.
const PARTS: [(&str, u64, u64); 4] = [
    ("pad1", 0, 8 << 10),
    ("pad2", 8 << 10, 16 << 10),
    ("nvlist", 16 << 10, 128 << 10),
    ("uber", 128 << 10, LABEL),
];
/// Types of objects of the meta object set.
const META: [&str; 7] = ["mos", "mosdir", "metaslab", "config", "bpobj", "spacemap", "errlog"];

/// Why nothing is asked.
pub enum Refusal {
    /// The command line is wrong.
    Usage(String),
    /// It cannot be done.
    Failed(String),
}

fn usage<T>(message: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal::Usage(message.into()))
}

/// The pool, and what is asked of it.
pub fn of(client: &Client, parsed: &Parsed) -> Result<(String, Vec<FaultOrder>), Refusal> {
    let [operand] = &parsed.operands[..] else {
        return usage("a pool or path is to be named, and only one");
    };
    if let Some(function) = parsed.argument('p') {
        return of_death(parsed, function, operand);
    }
    let chance = chance(parsed)?;
    match (parsed.argument('d'), parsed.argument('b'), parsed.argument('t')) {
        (Some(device), None, None) => of_device(client, parsed, device, operand, chance),
        (None, Some(blocks), None) => {
            let fault = of_blocks(blocks, kind_of(parsed)?, chance)?;
            let fault = ObjectFault { copies: copies_of(parsed)?, ..fault };
            Ok((operand.clone(), vec![FaultOrder::Object(fault)]))
        }
        (None, None, Some(kind)) => of_file(parsed, kind, operand, chance),
        _ => usage("one of -d (device), -t (type) and -b (bookmark) is to be given"),
    }
}

fn of_death(
    parsed: &Parsed,
    function: &str,
    pool: &str,
) -> Result<(String, Vec<FaultOrder>), Refusal> {
    if parsed.options.iter().any(|(letter, _)| !['p', 'q'].contains(letter)) {
        return usage("panic (-p) is incompatible with other options");
    }
    if !FUNCTIONS.contains(&function) {
        let known = FUNCTIONS.join(", ");
        return usage(format!("unknown function '{function}': must be one of {known}"));
    }
    Ok((pool.to_owned(), vec![FaultOrder::Death(function.to_owned())]))
}

/// How often, in millionths.
fn chance(parsed: &Parsed) -> Result<u32, Refusal> {
    let Some(text) = parsed.argument('f') else { return Ok(ALWAYS) };
    let percent: Option<f64> = text.trim_end_matches('%').parse().ok();
    match percent.filter(|percent| (0.0001..=100.0).contains(percent)) {
        Some(percent) => Ok((percent * f64::from(ALWAYS) / 100.0).round() as u32),
        None => usage(format!("-f {text}: frequency must be in the range 0.0001 to 100")),
    }
}

fn of_device(
    client: &Client,
    parsed: &Parsed,
    device: &str,
    pool: &str,
    chance: u32,
) -> Result<(String, Vec<FaultOrder>), Refusal> {
    let at = match parsed.argument('T').unwrap_or("all") {
        "read" => FaultAt::Read,
        "write" => FaultAt::Write,
        "flush" => FaultAt::Flush,
        "all" => FaultAt::Any,
        kind @ ("free" | "claim") => {
            return Err(Refusal::Failed(format!("zinject: -T {kind} is not supported yet")));
        }
        kind => return usage(format!("invalid I/O type '{kind}'")),
    };
    let kind = match (parsed.argument('D'), parsed.argument('e').unwrap_or("nxio")) {
        (Some(delay), _) => delay_of(delay)?,
        (None, "io") => FaultKind::Io,
        (None, "nxio") => FaultKind::Gone,
        (None, "checksum") => FaultKind::Garbage,
        (None, "corrupt") => FaultKind::BitRead,
        (None, "noop") => FaultKind::Lost,
        (None, error @ ("decompress" | "decrypt" | "dtl")) => {
            return Err(Refusal::Failed(format!("zinject: -e {error} is not supported yet")));
        }
        (None, error) => {
            return usage(format!(
                "invalid error type '{error}': must be one of: io decompress decrypt nxio dtl corrupt noop"
            ));
        }
    };
    let fault = |range| {
        let device = device.to_owned();
        FaultOrder::Device(DeviceFault { device, at, kind, chance, range })
    };
    let Some(part) = parsed.argument('L') else { return Ok((pool.to_owned(), vec![fault(None)])) };
    let Some((_, start, end)) = PARTS.iter().find(|(name, ..)| *name == part) else {
        return usage(format!("invalid label type '{part}'"));
    };
    let report = client.pool_report(pool).map_err(|failure| Refusal::Failed(failure.message))?;
    let size = size_of(&report, device).filter(|size| *size >= 4 * LABEL);
    let size = size.ok_or_else(|| {
        Refusal::Failed(format!("cannot find device '{device}' in pool '{pool}'"))
    })?;
    let size = size - size % LABEL;
    let labels = [0, LABEL, size - 2 * LABEL, size - LABEL];
    Ok((
        pool.to_owned(),
        labels.iter().map(|label| fault(Some((label + start, label + end)))).collect(),
    ))
}

fn delay_of(text: &str) -> Result<FaultKind, Refusal> {
    let numbers = text.split_once(':').and_then(|(latency, lanes)| {
        let latency: u64 = latency.parse().ok().filter(|latency| *latency > 0)?;
        let lanes: u32 = lanes.parse().ok().filter(|lanes| (1..=4096).contains(lanes))?;
        Some(FaultKind::Slow { microseconds: latency.checked_mul(1000)?, lanes })
    });
    match numbers {
        Some(kind) => Ok(kind),
        None => usage(format!("invalid i/o delay value: '{text}'")),
    }
}

fn size_of(report: &PoolReport, device: &str) -> Option<u64> {
    fn find<'a>(node: &'a VdevReport, device: &str) -> Option<&'a VdevReport> {
        let own = node.is_leaf() && vdev_name::answers_to(node, device);
        if own { Some(node) } else { node.children.iter().find_map(|child| find(child, device)) }
    }
    find(&report.root, device).map(|node| node.physical_size)
}

/// How blocks are to fail.
fn kind_of(parsed: &Parsed) -> Result<BlockFault, Refusal> {
    match parsed.argument('e').unwrap_or("io") {
        "io" => Ok(BlockFault::Io),
        "checksum" => Ok(BlockFault::Checksum),
        "decrypt" => Ok(BlockFault::Decrypt),
        "decompress" => Ok(BlockFault::Decompress),
        error @ ("corrupt" | "nxio" | "dtl" | "noop") => {
            Err(Refusal::Failed(format!("zinject: -e {error} of objects is not supported yet")))
        }
        error => usage(format!("invalid error type '{error}'")),
    }
}

/// `-C 0,1`: the copies that are to fail, as bits.
fn copies_of(parsed: &Parsed) -> Result<u8, Refusal> {
    let Some(text) = parsed.argument('C') else { return Ok(0) };
    let mut copies = 0;
    for number in text.split(',') {
        match number.trim().parse::<u8>() {
            Ok(number @ 0..=2) => copies |= 1 << number,
            _ => return usage(format!("-C {text}: is to be a list of numbers from 0 to 2")),
        }
    }
    Ok(copies)
}

fn of_file(
    parsed: &Parsed,
    kind: &str,
    path: &str,
    chance: u32,
) -> Result<(String, Vec<FaultOrder>), Refusal> {
    if META.contains(&kind) {
        return Err(Refusal::Failed(format!("zinject: -t {kind} is not supported yet")));
    }
    if !["data", "dnode"].contains(&kind) {
        return usage(format!("invalid type '{kind}'"));
    }
    let target::Target { dataset, object, block_size } =
        target::of_path(path).map_err(Refusal::Failed)?;
    let level = match parsed.argument('l').map(str::parse) {
        None => 0,
        Some(Ok(level)) => level,
        Some(Err(_)) => return usage("-l: is to be a number"),
    };
    let blocks = match parsed.argument('r') {
        None => None,
        Some(text) => Some(range_of(text, block_size)?),
    };
    let (object, blocks) = match kind {
        // The block of dnodes that holds this one: 32 in 16 KiB.
        "dnode" => (0, Some((object / 32, object / 32 + 1))),
        _ => (object, blocks),
    };
    let fails = kind_of(parsed)?;
    let pool = dataset.split('/').next().unwrap_or_default().to_owned();
    let fault = ObjectFault {
        dataset,
        object,
        level,
        blocks,
        kind: fails,
        copies: copies_of(parsed)?,
        chance,
    };
    Ok((pool, vec![FaultOrder::Object(fault)]))
}

/// `START[,END]` in bytes as numbers of blocks.
fn range_of(text: &str, block_size: u64) -> Result<(u64, u64), Refusal> {
    let (start, end) = text.split_once(',').unwrap_or((text, ""));
    let number = |text: &str| -> Option<u64> { text.trim().parse().ok() };
    let start = number(start);
    let end =
        if end.is_empty() { start.and_then(|start| start.checked_add(1)) } else { number(end) };
    match (start, end) {
        (Some(start), Some(end)) if start < end && block_size > 0 => {
            Ok((start / block_size, end.div_ceil(block_size)))
        }
        _ => usage(format!("invalid range '{text}': must be numbers of bytes 'start[,end]'")),
    }
}

/// `objset:object:level:start[:end]`, hexadecimal.
fn of_blocks(text: &str, kind: BlockFault, chance: u32) -> Result<ObjectFault, Refusal> {
    let numbers: Option<Vec<u64>> =
        text.split(':').map(|part| u64::from_str_radix(part, 16).ok()).collect();
    let odd =
        || usage(format!("invalid bookmark '{text}': must be objset:object:level:start[:end]"));
    let (objset, object, level, start, end) = match numbers.as_deref() {
        Some([objset, object, level, start]) => {
            (objset, object, level, *start, start.checked_add(1))
        }
        Some([objset, object, level, start, end]) => (objset, object, level, *start, Some(*end)),
        _ => return odd(),
    };
    let (Ok(level), Some(end)) = (u8::try_from(*level), end) else { return odd() };
    Ok(ObjectFault {
        dataset: objset.to_string(),
        object: *object,
        level,
        blocks: Some((start, end)),
        kind,
        copies: 0,
        chance,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read() {
        let fault = of_blocks("36:a:0:10:1f", BlockFault::Checksum, 5).ok().unwrap();
        assert_eq!(
            (fault.dataset.as_str(), fault.object, fault.blocks),
            ("54", 10, Some((16, 31)))
        );
        let is_odd = |text: &str| of_blocks(text, BlockFault::Io, 5).is_err();
        assert!(is_odd("1:2") && is_odd("x:1:0:0"));
        assert_eq!(range_of("0,131073", 131_072).ok(), Some((0, 2)));
        assert_eq!(range_of("131072", 131_072).ok(), Some((1, 2)));
        assert!(range_of("9,3", 512).is_err());
        let slow = FaultKind::Slow { microseconds: 25_000, lanes: 2 };
        assert_eq!(delay_of("25:2").ok(), Some(slow));
        assert!(delay_of("25").is_err() && delay_of("0:1").is_err());
    }
}
