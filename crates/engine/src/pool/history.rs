//! The pool's command history: reading the ring, and the text of `zpool history`.
//!
//! Chapter 06, section 3.4. Invariant: records come oldest first, one at a time; a record that does
//! not decode ends the listing with an error, after all that stood before it.

use std::fmt::Write as _;

use cenote_format::history::{HistoryHeader, LENGTH_WORD, key};
use cenote_format::nvlist::{NvList, Value};
use cenote_format::{ObjectId, ObjectType};

use crate::dataset::Catalog;
use crate::object::Object;
use crate::{Error, Result};

/// Longest record that is believed, in bytes.
const RECORD_MAX: u64 = 4 << 20;
/// Deepest nesting that is printed.
const NESTING_MAX: usize = 16;

/// One event of a pool's history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Everything that was recorded.
    pub fields: NvList,
}

/// What kind of event a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A command line.
    Command,
    /// An event of the pool itself.
    Internal,
    /// A request to the kernel, with its input and output.
    Request,
    /// None of these.
    Unknown,
}

impl Record {
    /// What kind of event it is.
    pub fn kind(&self) -> Kind {
        let has = |name: &str| self.fields.get(name).is_some();
        if has(key::COMMAND) {
            Kind::Command
        } else if has(key::INTERNAL_NAME) || has(key::INTERNAL_EVENT) {
            Kind::Internal
        } else if has(key::IOCTL) {
            Kind::Request
        } else {
            Kind::Unknown
        }
    }

    /// When: seconds since 1970.
    pub fn time(&self) -> u64 {
        self.fields.u64(key::TIME).unwrap_or(0)
    }

    fn string(&self, name: &str) -> String {
        self.fields.string_lossy(name).unwrap_or_default()
    }

    /// The record as `zpool history -i` prints it, without final newline. `time` is the printed
    /// time; with `long`, who did it and where is added, `user_name` giving names to user ids.
    pub fn text(
        &self,
        time: &str,
        long: bool,
        user_name: &dyn Fn(u64) -> Option<String>,
    ) -> String {
        let number = |name: &str| self.fields.u64(name).unwrap_or(0);
        let mut out = time.to_owned();
        if let Some(elapsed) = self.fields.i64(key::ELAPSED) {
            let _ = write!(out, " ({}ms)", elapsed / 1_000_000);
        }
        match self.kind() {
            Kind::Command => {
                let _ = write!(out, " {}", self.string(key::COMMAND));
            }
            Kind::Internal if self.fields.get(key::INTERNAL_NAME).is_some() => {
                let name = self.string(key::INTERNAL_NAME);
                let _ = write!(out, " [txg:{}] {name}", number(key::TXG));
                if self.fields.get(key::DATASET_NAME).is_some() {
                    let name = self.string(key::DATASET_NAME);
                    let _ = write!(out, " {name} ({})", number(key::DATASET_ID));
                }
                let _ = write!(out, " {}", self.string(key::INTERNAL_TEXT));
            }
            Kind::Internal => {
                let (event, txg) = (number(key::INTERNAL_EVENT), number(key::TXG));
                let text = self.string(key::INTERNAL_TEXT);
                let _ = write!(out, " [internal event {event} txg:{txg}] {text}");
            }
            Kind::Request => self.request(&mut out),
            Kind::Unknown => {
                out.push_str(" unrecognized record:\n");
                dump(&mut out, &self.fields, 4, 0);
            }
        }
        if long {
            self.origin(&mut out, user_name);
        }
        out
    }

    fn request(&self, out: &mut String) {
        let _ = writeln!(out, " ioctl {}", self.string(key::IOCTL));
        for (name, title) in [(key::INPUT, "input"), (key::OUTPUT, "output")] {
            if let Some(list) = self.fields.nvlist(name) {
                let _ = writeln!(out, "    {title}:");
                dump(out, list, 8, 0);
            }
        }
        if let Some(size) = self.fields.i64(key::OUTPUT_SIZE) {
            let _ = writeln!(out, "    output nvlist omitted; original size: {}KB", size / 1024);
        }
        if let Some(errno) = self.fields.i64(key::ERRNO) {
            let _ = writeln!(out, "    errno: {errno}");
        }
    }

    fn origin(&self, out: &mut String, user_name: &dyn Fn(u64) -> Option<String>) {
        out.push_str(" [");
        if let Some(who) = self.fields.u64(key::WHO) {
            let _ = write!(out, "user {who} ");
            if let Some(name) = user_name(who) {
                let _ = write!(out, "({name}) ");
            }
        }
        if self.fields.get(key::HOSTNAME).is_some() {
            let _ = write!(out, "on {}", self.string(key::HOSTNAME));
        }
        if self.fields.get(key::ZONE).is_some() {
            let _ = write!(out, ":{}", self.string(key::ZONE));
        }
        out.push(']');
    }
}

/// A list as lines, what is nested in it indented.
pub fn listed(list: &NvList) -> String {
    let mut out = String::new();
    dump(&mut out, list, 0, 0);
    out
}

/// Writes a list as indented lines.
fn dump(out: &mut String, list: &NvList, indent: usize, depth: usize) {
    if depth >= NESTING_MAX {
        return;
    }
    for pair in list.iter() {
        let name = String::from_utf8_lossy(&pair.name);
        match &pair.value {
            Value::Boolean => {
                let _ = writeln!(out, "{:indent$}{name}", "");
            }
            Value::List(inner) => {
                let _ = writeln!(out, "{:indent$}{name}:", "");
                dump(out, inner, indent + 4, depth + 1);
            }
            Value::ListArray(inner) => {
                for (index, one) in inner.iter().enumerate() {
                    let _ = writeln!(out, "{:indent$}{name}[{index}]:", "");
                    dump(out, one, indent + 4, depth + 1);
                }
            }
            other => match elements(other) {
                Some(elements) => {
                    for (index, one) in elements.iter().enumerate() {
                        let _ = writeln!(out, "{:indent$}{name}[{index}]: {one}", "");
                    }
                }
                None => {
                    let _ = writeln!(out, "{:indent$}{name}: {}", "", scalar(other));
                }
            },
        }
    }
}

fn each<T: ToString>(values: &[T]) -> Vec<String> {
    values.iter().map(ToString::to_string).collect()
}

/// The elements of an array of plain values.
fn elements(value: &Value) -> Option<Vec<String>> {
    Some(match value {
        Value::ByteArray(v) | Value::Uint8Array(v) => each(v),
        Value::Int8Array(v) => each(v),
        Value::Int16Array(v) => each(v),
        Value::Uint16Array(v) => each(v),
        Value::Int32Array(v) => each(v),
        Value::Uint32Array(v) => each(v),
        Value::Int64Array(v) => each(v),
        Value::Uint64Array(v) => each(v),
        Value::BooleanArray(v) => each(v),
        Value::StringArray(v) => v.iter().map(|text| quoted(text)).collect(),
        _ => return None,
    })
}

fn quoted(text: &[u8]) -> String {
    format!("'{}'", String::from_utf8_lossy(text))
}

fn scalar(value: &Value) -> String {
    match value {
        Value::Byte(v) | Value::Uint8(v) => v.to_string(),
        Value::Int8(v) => v.to_string(),
        Value::Int16(v) => v.to_string(),
        Value::Uint16(v) => v.to_string(),
        Value::Int32(v) => v.to_string(),
        Value::Uint32(v) => v.to_string(),
        Value::Int64(v) | Value::HighResolutionTime(v) => v.to_string(),
        Value::Uint64(v) => v.to_string(),
        Value::BooleanValue(v) => v.to_string(),
        Value::Double(bits) => f64::from_bits(*bits).to_string(),
        Value::String(text) => quoted(text),
        // What has no value, and what was written out already.
        _ => String::new(),
    }
}

/// The records of a pool, oldest first.
pub struct History {
    object: Option<Object>,
    header: HistoryHeader,
    /// Logical ranges still to read.
    ranges: Vec<(u64, u64)>,
}

impl History {
    /// The history of the pool; without records if the pool keeps none.
    pub fn open(catalog: &Catalog) -> Result<Self> {
        let header = HistoryHeader::default();
        let Some(id) = catalog.object_directory()?.number("history")? else {
            return Ok(Self { object: None, header, ranges: Vec::new() });
        };
        let object = catalog.mos().object(ObjectId(id))?;
        if object.dnode().object_type != ObjectType::HISTORY {
            return Err(Error::corrupt("not a history").at_object(0, id));
        }
        let header = HistoryHeader::decode(object.dnode().bonus())
            .map_err(|error| Error::from(error).at_object(0, id))?;
        let mut ranges: Vec<(u64, u64)> = header.ranges().into();
        ranges.reverse();
        Ok(Self { object: Some(object), header, ranges })
    }

    /// Bytes of all records that are kept.
    pub fn length(&self) -> u64 {
        let lengths =
            self.header.ranges().into_iter().map(|(start, end)| end.saturating_sub(start));
        lengths.fold(0, u64::saturating_add)
    }

    /// Where the next record will be written. Such places grow for ever: they count bytes.
    pub fn end(&self) -> u64 {
        self.header.end
    }

    /// Whether the record that was written at `place` is kept still.
    pub fn has(&self, place: u64) -> bool {
        self.header.ranges().iter().any(|(start, end)| (*start..*end).contains(&place))
    }

    /// Without what stands before the record at `place`, or before the end if that is there.
    #[must_use]
    pub fn since(mut self, place: u64) -> Self {
        self.ranges.iter_mut().for_each(|(start, _)| *start = place.max(*start));
        self
    }

    /// Where the next record to be read is; `None` after the last.
    pub fn position(&self) -> Option<u64> {
        self.ranges.iter().rev().find(|(start, end)| start < end).map(|(start, _)| *start)
    }

    /// Records that were overwritten.
    pub fn lost(&self) -> u64 {
        self.header.lost
    }

    fn read(&self, object: &Object, logical: u64, length: u64) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        for (offset, length) in self.header.spans(logical, length) {
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            out.extend(object.read_vec(offset, length)?);
        }
        Ok(out)
    }

    fn next_record(&self, object: &Object, start: u64, end: u64) -> Result<(Record, u64)> {
        let bad = |what: &str| Error::corrupt(what).at_object(0, object.id().0);
        let body = start.checked_add(LENGTH_WORD).filter(|body| *body <= end);
        let body = body.ok_or_else(|| bad("a history record is cut off"))?;
        let word = self.read(object, start, LENGTH_WORD)?;
        let word = <[u8; 8]>::try_from(word).map_err(|_| bad("a history record is cut off"))?;
        let length = u64::from_le_bytes(word);
        let next = body.checked_add(length).filter(|next| *next <= end && length <= RECORD_MAX);
        let next = next.ok_or_else(|| bad("a history record is longer than the history"))?;
        let fields = NvList::decode(&self.read(object, body, length)?)?;
        Ok((Record { fields }, next))
    }
}

impl Iterator for History {
    type Item = Result<Record>;

    fn next(&mut self) -> Option<Self::Item> {
        let object = self.object.clone()?;
        while let Some((start, end)) = self.ranges.pop() {
            if start >= end {
                continue;
            }
            return Some(match self.next_record(&object, start, end) {
                Ok((record, next)) => {
                    self.ranges.push((next, end));
                    Ok(record)
                }
                Err(error) => {
                    self.ranges.clear();
                    Err(error)
                }
            });
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(pairs: &[(&str, Value)]) -> Record {
        let mut fields = NvList::new();
        for (name, value) in pairs {
            fields.push(name, value.clone());
        }
        Record { fields }
    }

    fn text(value: &str) -> Value {
        Value::String(value.as_bytes().into())
    }

    fn root(id: u64) -> Option<String> {
        (id == 0).then(|| "root".to_owned())
    }

    #[test]
    fn lines_look_like_those_of_openzfs() {
        let command = record(&[
            (key::COMMAND, text("zpool scrub -w g101")),
            (key::WHO, Value::Uint64(0)),
            (key::ZONE, text("linux")),
            (key::HOSTNAME, text("zvm")),
        ]);
        assert_eq!(command.text("T", false, &root), "T zpool scrub -w g101");
        let long = "T zpool scrub -w g101 [user 0 (root) on zvm:linux]";
        assert_eq!(command.text("T", true, &root), long);
        let internal = record(&[
            (key::INTERNAL_NAME, text("set")),
            (key::TXG, Value::Uint64(123)),
            (key::INTERNAL_TEXT, text("comment=golden pool")),
            (key::HOSTNAME, text("zvm")),
        ]);
        assert_eq!(internal.text("T", true, &root), "T [txg:123] set comment=golden pool [on zvm]");
        assert_eq!(internal.kind(), Kind::Internal);
        let mut dataset = internal;
        dataset.fields.push(key::DATASET_NAME, text("p/a"));
        dataset.fields.push(key::DATASET_ID, Value::Uint64(9));
        let line = "T [txg:123] set p/a (9) comment=golden pool";
        assert_eq!(dataset.text("T", false, &root), line);
    }

    #[test]
    fn what_is_known_is_left_out() {
        let header = HistoryHeader {
            create_length: 100,
            physical_max: 1000,
            begin: 950,
            end: 1750,
            lost: 3,
        };
        let open = || {
            let mut ranges: Vec<(u64, u64)> = header.ranges().into();
            ranges.reverse();
            History { object: None, header, ranges }
        };
        assert_eq!((open().length(), open().end(), open().position()), (900, 1750, Some(0)));
        assert_eq!(
            [0, 99, 100, 949, 950, 1749, 1750].map(|at| open().has(at)),
            [true, true, false, false, true, true, false]
        );
        let places = [50, 100, 700, 1000, 1750].map(|place| open().since(place).position());
        assert_eq!(places, [Some(50), Some(950), Some(950), Some(1000), None]);
    }

    #[test]
    fn requests_are_dumped() {
        let mut inner = NvList::new();
        inner.push("trim_secure", Value::BooleanValue(false));
        let mut input = NvList::new();
        input.push("trim_rate", Value::Uint64(0));
        input.push("more", Value::List(inner));
        input.push("record", Value::ByteArray(vec![4, 0]));
        let request = record(&[
            (key::IOCTL, text("trim")),
            (key::ELAPSED, Value::Int64(348_900_000)),
            (key::INPUT, Value::List(input)),
            (key::ERRNO, Value::Int64(2)),
        ]);
        let expected = "T (348ms) ioctl trim\n    input:\n        trim_rate: 0\n        more:\n            \
                        trim_secure: false\n        record[0]: 4\n        record[1]: 0\n    \
                        errno: 2\n";
        assert_eq!(request.text("T", false, &root), expected);
    }
}
