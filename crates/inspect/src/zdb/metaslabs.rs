//! `zdb -m`: metaslabs with what their space maps say.
//!
//! Chapter 03, sections 8 to 10. Detail: 1 free space; 2 segments and histograms; 3 every record.
//! Invariant: free space includes what only the log space maps say yet.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use cenote_control::text::number;
use cenote_engine::Error;
use cenote_engine::alloc::Logged;
use cenote_engine::object::Object;
use cenote_engine::pool::Pool;
use cenote_engine::pool::space::{Class, Metaslab, TopMetaslabs, metaslabs};
use cenote_engine::pool::space_maps::each_logged;
use cenote_format::ObjectId;
use cenote_format::bytes::le64;
use cenote_format::space_map::{Action, Record, SpaceMapHeader, records};
use serde_json::{Map, Value, json};

use super::ranges::Ranges;
use super::sink::Sink;

/// Most bytes of one space map that are read.
const LARGEST: u64 = 1 << 30;
/// Widest bar of a histogram.
const WIDEST: u64 = 40;

/// Entries of the logs by vdev and metaslab.
type Logs = HashMap<(u32, u64), Vec<Logged>>;

/// What a space map says of its metaslab.
struct Mapped {
    object: Object,
    header: SpaceMapHeader,
    shift: u8,
}

/// The metaslabs of every top-level vdev; `wanted` names vdevs and metaslabs.
pub fn show(pool: &Arc<Pool>, detail: u8, wanted: &[String], sink: &mut Sink) -> Result<(), Error> {
    let mut numbers = Vec::new();
    for text in wanted {
        let bad = || Error::invalid(format!("'{text}' is not the number of a vdev or metaslab"));
        numbers.push(text.parse::<u64>().map_err(|_| bad())?);
    }
    let tree = pool.config().vdev_tree.clone().unwrap_or_default();
    let tops = metaslabs(&pool.catalog(), &tree)?;
    if let Some(vdev) = numbers.first()
        && !tops.iter().any(|top| u64::from(top.id) == *vdev)
    {
        let ids: Vec<String> = tops.iter().map(|top| top.id.to_string()).collect();
        let advice = format!("top-level vdevs with space are {}", ids.join(" "));
        return Err(Error::invalid(format!("there is no vdev {vdev}")).with_advice(advice));
    }
    let mut logs = Logs::new();
    if detail > 1 {
        let shifts: HashMap<u32, u64> = tops.iter().map(|top| (top.id, top.shift)).collect();
        each_logged(&pool.mos(), &pool.catalog().object_directory()?, |entry| {
            if let Some(shift) = shifts.get(&entry.vdev) {
                logs.entry((entry.vdev, entry.offset >> shift)).or_default().push(entry);
            }
            Ok(())
        })?;
    }
    sink.line("\nMetaslabs:");
    let mut told = Vec::new();
    for top in &tops {
        if numbers.first().is_none_or(|vdev| u64::from(top.id) == *vdev) {
            let only = numbers.get(1..).unwrap_or(&[]);
            told.push(vdev(pool, top, detail, only, &logs, sink)?);
        }
    }
    sink.json("vdevs", Value::Array(told));
    Ok(())
}

fn vdev(
    pool: &Arc<Pool>,
    top: &TopMetaslabs,
    detail: u8,
    only: &[u64],
    logs: &Logs,
    sink: &mut Sink,
) -> Result<Value, Error> {
    let class = match top.class {
        Class::Normal => "",
        Class::Log => "   log",
        Class::Special => "   special",
        Class::Dedup => "   dedup",
    };
    sink.line(format_args!("\tvdev {:>10}{class}", top.id));
    let count = top.metaslabs.len();
    sink.line(format_args!(
        "\t{:<10}{count:>5}   {:<19}   {:<15}   {:<12}",
        "metaslabs", "offset", "spacemap", "free"
    ));
    let dashes = |n: usize| "-".repeat(n);
    let (a, b, c, d) = (dashes(15), dashes(19), dashes(15), dashes(12));
    sink.line(format_args!("\t{a}   {b}   {c}   {d}"));
    let array = match top.array {
        ObjectId(0) => Vec::new(),
        array => pool.mos().object(array)?.read_vec(0, count.saturating_mul(8))?,
    };
    let mut told = Vec::new();
    for (index, slab) in top.metaslabs.iter().enumerate() {
        if sink.is_closed() {
            break;
        }
        let number = index as u64;
        if !only.is_empty() && !only.contains(&number) {
            continue;
        }
        let object = le64(&array, index * 8).unwrap_or(0);
        let entries = logs.get(&(top.id, number)).map_or(&[][..], Vec::as_slice);
        told.push(one(pool, (index, slab), (object, top.ashift), detail, entries, sink));
    }
    sink.line("");
    Ok(json!({ "vdev": top.id, "class": format!("{:?}", top.class), "metaslabs": told }))
}

fn one(
    pool: &Arc<Pool>,
    (index, slab): (usize, &Metaslab),
    (object, shift): (u64, u8),
    detail: u8,
    logs: &[Logged],
    sink: &mut Sink,
) -> Value {
    let free = slab.size.saturating_sub(slab.allocated);
    sink.line(format_args!(
        "\tmetaslab {index:>6}   offset {:>12x}   spacemap {object:>6}   free    {:>5}",
        slab.start,
        number::plain(free)
    ));
    let flushed = slab.size.saturating_sub(u64::try_from(slab.flushed).unwrap_or(0));
    let mut facts = Map::new();
    for (name, value) in [
        ("metaslab", json!(index)),
        ("offset", json!(slab.start)),
        ("size", json!(slab.size)),
        ("spacemap", json!(object)),
        ("free", json!(free)),
        ("free_by_map", json!(flushed)),
        ("unflushed_txg", json!(slab.unflushed.0)),
        ("fragmentation", json!(slab.fragmentation)),
    ] {
        facts.insert(name.to_owned(), value);
    }
    let mapped = match read(pool, object, shift) {
        Ok(mapped) => mapped,
        Err(error) => {
            sink.complain();
            sink.line(format_args!("\t({error})"));
            facts.insert("error".into(), json!(error.to_string()));
            return Value::Object(facts);
        }
    };
    if detail > 1
        && let Err(error) = deep(&mut facts, slab, mapped.as_ref(), logs, sink)
    {
        sink.complain();
        sink.line(format_args!("\t({error})"));
        facts.insert("error".into(), json!(error.to_string()));
    }
    if let Some(mapped) = &mapped {
        let header = &mapped.header;
        sink.line(format_args!("space map object {object}:"));
        sink.line(format_args!("  smp_length = {:#x}", header.length));
        sink.line(format_args!("  smp_alloc = {:#x}", header.allocated));
        if slab.unflushed.0 != 0 {
            sink.line(format_args!("\tFlush data:\n\tunflushed txg={}", slab.unflushed));
        }
        if flushed != free {
            let by_map = number::plain(flushed);
            sink.line(format_args!("\tfree without the logs={by_map}"));
        }
        facts.insert("smp_length".into(), json!(header.length));
        facts.insert("smp_alloc".into(), json!(header.allocated));
        if detail > 2 {
            let lines = dump(slab, mapped);
            lines.iter().for_each(|line| sink.line(line));
            if sink.is_json() {
                facts.insert("records".into(), json!(lines));
            }
        }
    }
    sink.line("");
    Value::Object(facts)
}

fn read(pool: &Arc<Pool>, object: u64, shift: u8) -> Result<Option<Mapped>, Error> {
    if object == 0 {
        return Ok(None);
    }
    let object = pool.mos().object(ObjectId(object))?;
    let header = SpaceMapHeader::decode(object.dnode().bonus())?;
    Ok(Some(Mapped { object, header, shift }))
}

impl Mapped {
    fn data(&self) -> Result<Vec<u8>, Error> {
        let length = self.header.length;
        if length > LARGEST || length > self.object.dnode().max_offset() {
            let reason = format!("space map of {length} bytes");
            return Err(Error::corrupt(reason).at_object(0, self.object.id().0));
        }
        self.object.read_vec(0, usize::try_from(length).unwrap_or(0))
    }
}

/// Free segments as they are, the logs included, and the histogram that is stored.
fn deep(
    facts: &mut Map<String, Value>,
    slab: &Metaslab,
    mapped: Option<&Mapped>,
    logs: &[Logged],
    sink: &mut Sink,
) -> Result<(), Error> {
    let mut free = Ranges::of(slab.start, slab.size);
    let mut apply = |action: Action, offset: u64, length: u64| match action {
        Action::Allocate => free.remove(offset, length),
        Action::Free => free.add(offset, length),
    };
    if let Some(mapped) = mapped {
        for record in records(&mapped.data()?) {
            if let Record::Segment(segment) = record? {
                let (offset, length) = segment.bytes(slab.start, mapped.shift)?;
                apply(segment.action, offset, length);
            }
        }
    }
    for entry in logs.iter().filter(|entry| entry.txg >= slab.unflushed) {
        apply(entry.action, entry.offset, entry.length);
    }
    let largest = free.lengths().max().unwrap_or(0);
    let bytes = free.lengths().fold(0, u64::saturating_add);
    let percent = u128::from(bytes) * 100 / u128::from(slab.size.max(1));
    sink.line(format_args!(
        "\t                  segments {:>10}   maxsize {:>5}   freepct {percent:>4}%",
        free.len(),
        number::plain(largest)
    ));
    let mut histogram: BTreeMap<u32, u64> = BTreeMap::new();
    for length in free.lengths() {
        *histogram.entry(length.checked_ilog2().unwrap_or(0)).or_default() += 1;
    }
    sink.line("\tFree segments by log2 of their size:");
    bars(&histogram, sink);
    facts.insert("segments".into(), json!(free.len()));
    facts.insert("free_segments_bytes".into(), json!(bytes));
    facts.insert("largest".into(), json!(largest));
    facts.insert("histogram".into(), json!(histogram));
    let stored = mapped.and_then(|mapped| mapped.header.histogram.map(|h| (h, mapped.shift)));
    if let Some((buckets, shift)) = stored {
        let buckets = buckets.iter().zip(u32::from(shift)..);
        let buckets: BTreeMap<u32, u64> =
            buckets.filter(|(count, _)| **count > 0).map(|(count, log)| (log, *count)).collect();
        let fragmentation = slab.fragmentation.map_or("-".to_owned(), |f| f.to_string());
        sink.line(format_args!("\tOn-disk histogram:\t\tfragmentation {fragmentation}"));
        bars(&buckets, sink);
        facts.insert("stored_histogram".into(), json!(buckets));
    }
    Ok(())
}

fn bars(histogram: &BTreeMap<u32, u64>, sink: &mut Sink) {
    let (Some(first), Some(last)) = (histogram.keys().next(), histogram.keys().next_back()) else {
        return;
    };
    let most = histogram.values().copied().max().unwrap_or(1).max(WIDEST);
    for log in *first..=*last {
        let count = histogram.get(&log).copied().unwrap_or(0);
        let width = (u128::from(count) * u128::from(WIDEST)).div_ceil(u128::from(most));
        let stars = "*".repeat(usize::try_from(width).unwrap_or(0));
        sink.line(format_args!("\t\t\t{log:>3}: {count:>6} {stars}"));
    }
}

/// Every record of a map, as `zdb` lists them.
fn dump(slab: &Metaslab, mapped: &Mapped) -> Vec<String> {
    let data = match mapped.data() {
        Ok(data) => data,
        Err(error) => return vec![format!("\t({error})")],
    };
    let mut lines = Vec::new();
    for (index, record) in records(&data).enumerate() {
        let letter = |action| if action == Action::Allocate { 'A' } else { 'F' };
        lines.push(match record {
            Ok(Record::Padding) => format!("\t    [{index:>6}] Padding"),
            Ok(Record::Debug { action, pass, txg }) => {
                let name = if action == Action::Allocate { "ALLOC" } else { "FREE" };
                format!("\t    [{index:>6}] {name}: txg {txg} pass {pass}")
            }
            Ok(Record::Segment(segment)) => match segment.bytes(slab.start, mapped.shift) {
                Ok((offset, length)) => format!(
                    "\t    [{index:>6}]    {}  range: {offset:010x}-{:010x}  size: {length:06x}",
                    letter(segment.action),
                    offset.saturating_add(length)
                ),
                Err(error) => format!("\t    [{index:>6}] {error}"),
            },
            Err(error) => format!("\t    [{index:>6}] {error}"),
        });
    }
    lines
}
