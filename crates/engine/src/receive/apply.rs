//! From the records of a stream to what they change.
//!
//! Chapter 07, sections 3, 5 and 13. Invariant: every record up to the end is applied in the order of the
//! stream, or the receive fails with the record it failed at.

use std::io::Read;

use cenote_format::bytes::ByteOrder;
use cenote_format::objset::ObjsetKind;
use cenote_format::send_stream::{
    Begin, BeginFlags, Features, HeaderKind, Object, Record, Spill, Write, WriteEmbedded,
};
use cenote_format::{NvList, ObjectType, byteswap};

use super::data::expanded;
use super::objects::LARGE_BLOCK_MAX;
use super::{Landing, ObjectFacts, RawFacts, StreamFacts};
use crate::stream::{Item, ReadError, StreamReader};
use crate::{Error, ErrorKind, Result};

/// Kinds of object sets.
const FILESYSTEM: u32 = 2;
const VOLUME: u32 = 3;
/// Embedded data that is data.
const EMBEDDED_DATA: u8 = 0;
/// Features of streams, and those of pools that they need.
const NEEDED: [(Features, &str); 9] = [
    (Features::RAW, "encryption"),
    (Features::LZ4, "lz4_compress"),
    (Features::ZSTD, "zstd_compress"),
    (Features::EMBED_DATA, "embedded_data"),
    (Features::LARGE_BLOCKS, "large_blocks"),
    (Features::LARGE_DNODE, "large_dnode"),
    (Features::LARGE_MICROZAP, "large_microzap"),
    (Features::REDACTED, "redacted_datasets"),
    (Features::LONG_NAME, "longname"),
];

impl StreamFacts {
    /// What the beginning of a stream of one snapshot says, with the list that may come with it.
    ///
    /// # Errors
    /// `InvalidArgument`: there is no such stream; `Unsupported`: it cannot be received (yet).
    pub fn of(begin: &Begin, list: &[u8]) -> Result<Self> {
        if begin.kind != HeaderKind::Substream {
            return Err(Error::invalid("a package within a package"));
        }
        let features = begin.features;
        if !features.unknown().is_empty() {
            let unknown = features.unknown().bits();
            let reason = format!("the stream has features that are not known ({unknown:#x})");
            return Err(Error::unsupported(reason));
        }
        let (redacted, redacted_from) = redaction(features, list)?;
        let kind = match begin.objset_kind {
            FILESYSTEM => ObjsetKind::Zfs,
            VOLUME => ObjsetKind::Zvol,
            other => {
                return Err(Error::invalid(format!("a stream of object sets of kind {other}")));
            }
        };
        if begin.to_guid.0 == 0 {
            return Err(Error::invalid("the stream leads to no snapshot"));
        }
        let resumed = match features.contains(Features::RESUMING) {
            true => Some(resumed(list)?),
            false => None,
        };
        let raw = raw_facts(features, begin.flags, list)?;
        let needed = NEEDED.iter().filter(|(feature, _)| features.contains(*feature));
        Ok(Self {
            kind,
            from: begin.from_guid,
            to: begin.to_guid,
            name: String::from_utf8_lossy(&begin.to_name).into_owned(),
            creation_time: begin.creation_time,
            features: needed.map(|(_, feature)| *feature).collect(),
            large_blocks: features.contains(Features::LARGE_BLOCKS),
            large_dnodes: features.contains(Features::LARGE_DNODE),
            embedded: features.contains(Features::EMBED_DATA),
            compressed: features.contains(Features::COMPRESSED),
            case_insensitive: begin.flags.contains(BeginFlags::CASE_INSENSITIVE),
            tells_spills: begin.flags.contains(BeginFlags::SPILL_BLOCK),
            resumed,
            raw,
            redacted,
            redacted_from,
        })
    }
}

/// What a raw stream says of keys.
fn raw_facts(features: Features, flags: BeginFlags, list: &[u8]) -> Result<Option<RawFacts>> {
    if !features.contains(Features::RAW) {
        return Ok(None);
    }
    if features.contains(Features::EMBED_DATA) || !flags.contains(BeginFlags::SPILL_BLOCK) {
        return Err(Error::invalid("a raw stream that cannot be whole"));
    }
    let list = NvList::decode(list).map_err(|error| Error::invalid(error.to_string()))?;
    RawFacts::of(&list).map(Some)
}

/// For which snapshots blocks are left out, and were left out of what it starts from.
#[allow(clippy::type_complexity, reason = "taken apart at once")]
fn redaction(features: Features, list: &[u8]) -> Result<(Option<Vec<u64>>, Option<Vec<u64>>)> {
    if list.is_empty() {
        return Ok((features.contains(Features::REDACTED).then(Vec::new), None));
    }
    let list = NvList::decode(list).map_err(|error| Error::invalid(error.to_string()))?;
    let guids = |key: &str| list.u64_array(key).map(<[u64]>::to_vec);
    let redacted = features.contains(Features::REDACTED);
    Ok((redacted.then(|| guids("redact_snaps").unwrap_or_default()), guids("redact_from_snaps")))
}

fn resumed(list: &[u8]) -> Result<(u64, u64)> {
    let bad = || Error::invalid("the stream does not say where it goes on");
    let list = NvList::decode(list).map_err(|_| bad())?;
    let numbers = (list.u64("resume_object"), list.u64("resume_offset"));
    match numbers {
        (Some(object), Some(offset)) => Ok((object, offset)),
        _ => Err(bad()),
    }
}

/// The next record of a stream, which has not ended.
///
/// # Errors
/// `Interrupted`: it ends all the same; `Checksum`: a sum is wrong; `InvalidArgument`: there is no such
/// record; `Io`: nothing can be read.
pub fn next_record<R: Read>(from: &mut StreamReader<R>) -> Result<Item> {
    let cut = || Error::new(ErrorKind::Interrupted, "incomplete stream");
    match from.record() {
        Ok(Some(item)) => Ok(item),
        Ok(None) | Err(ReadError::Truncated) => Err(cut()),
        Err(ReadError::Checksum) => Err(Error::new(ErrorKind::Checksum, "checksum mismatch")),
        Err(ReadError::NoStream) => Err(Error::invalid("this is no send stream")),
        Err(ReadError::Malformed(error)) => Err(Error::invalid(error.to_string())),
        Err(ReadError::Io(error)) => {
            Err(Error::new(ErrorKind::Io, format!("failed to read from stream: {error}")))
        }
    }
}

/// Reads the rest of a stream of one snapshot into nothing: sums are verified.
///
/// # Errors
/// As [`next_record`].
pub fn skip<R: Read>(
    from: &mut StreamReader<R>,
    mut on: impl FnMut(u64) -> Result<()>,
) -> Result<()> {
    while !matches!(next_record(from)?.record, Record::End(_)) {
        on(from.bytes())?;
    }
    Ok(())
}

impl Landing {
    /// Applies the records of a stream up to its end, which is verified; `on` is told how many bytes were
    /// read, and may end it.
    ///
    /// # Errors
    /// As [`next_record`]; `InvalidArgument`: the stream does not fit what it goes into; no space; what the
    /// disks say.
    pub fn apply_all<R: Read>(
        &mut self,
        from: &mut StreamReader<R>,
        mut on: impl FnMut(u64) -> Result<()>,
    ) -> Result<()> {
        let mut seen = from.bytes();
        loop {
            let mut item = next_record(from)?;
            let now = from.bytes();
            self.note_bytes(now.saturating_sub(seen));
            seen = now;
            if let Record::End(end) = &item.record {
                return match end.to_guid == self.facts.to {
                    true => Ok(()),
                    false => Err(Error::invalid("the stream ends with another snapshot")),
                };
            }
            let swapped = item.order == ByteOrder::Big;
            match (&self.raw, swapped) {
                (None, _) => self.apply(&item.record, &mut item.payload, swapped)?,
                (Some(_), false) => self.apply_raw(&item.record, item.payload)?,
                (Some(_), true) => {
                    let reason = "raw streams of the other byte order: not supported yet";
                    return Err(Error::unsupported(reason));
                }
            }
            on(now)?;
        }
    }

    fn apply(&mut self, record: &Record, payload: &mut [u8], swapped: bool) -> Result<()> {
        match record {
            Record::Object(object) => self.apply_object(object, payload, swapped),
            Record::FreeObjects(range) => self.free_objects(range.first, range.count),
            Record::Write(write) => self.apply_write(write, payload, swapped),
            Record::Free(free) => self.free(free.object, free.offset, free.length),
            Record::Redact(left_out) if self.facts.redacted.is_some() => {
                self.free(left_out.object, left_out.offset, left_out.length)
            }
            Record::Spill(spill) => self.apply_spill(spill, payload, swapped),
            Record::WriteEmbedded(write) => self.apply_embedded(write, payload),
            Record::Begin(_)
            | Record::End(_)
            | Record::WriteByReference(_)
            | Record::ObjectRange(_)
            | Record::Redact(_) => {
                let reason = format!("a record {} does not belong in this stream", record.name());
                Err(Error::invalid(reason))
            }
        }
    }

    fn apply_object(&mut self, object: &Object, payload: &mut [u8], swapped: bool) -> Result<()> {
        let short = || self.at(Error::invalid("a bonus is cut off"), object.object);
        let len = usize::try_from(object.bonus_len).unwrap_or(usize::MAX);
        let bonus = payload.get_mut(..len).ok_or_else(short)?;
        if object.raw_bonus_len != 0 || object.levels != 0 || object.pointers != 0 {
            let error = Error::invalid("an object of a raw stream in one that is not raw");
            return Err(self.at(error, object.object));
        }
        if swapped {
            byteswap::block(bonus, object.bonus_type, 0);
        }
        self.object(&ObjectFacts {
            id: object.object,
            object_type: object.object_type,
            bonus_type: object.bonus_type,
            block_size: object.block_size.into(),
            bonus,
            slots: object.slots.max(1),
            checksum: object.checksum,
            compression: object.compression,
            has_spill: object.flags & Object::HAS_SPILL != 0,
        })
    }

    fn apply_write(&mut self, write: &Write, payload: &mut [u8], swapped: bool) -> Result<()> {
        let (id, size) = (write.object, write.logical_size);
        let most = self.largest_block();
        if !(512..=most).contains(&size) {
            let reason = format!("the stream has a block of {size} bytes, not of 512 to {most}");
            return Err(self.at(Error::invalid(reason), id));
        }
        let mut unpacked;
        let data = match write.compression {
            0 => payload,
            _ if !self.facts.compressed => {
                let reason = "a compressed block in a stream that says it has none";
                return Err(self.at(Error::invalid(reason), id));
            }
            compression => {
                unpacked =
                    expanded(compression, payload, size).map_err(|error| self.at(error, id))?;
                unpacked.as_mut_slice()
            }
        };
        if swapped {
            byteswap::block(data, write.object_type, 0);
        }
        self.write(id, write.offset, data)
    }

    fn apply_spill(&mut self, spill: &Spill, payload: &mut [u8], swapped: bool) -> Result<()> {
        if spill.compression != 0 && spill.compressed_size != 0 {
            let error = Error::invalid("a sealed spill block in a stream that is not raw");
            return Err(self.at(error, spill.object));
        }
        if swapped {
            byteswap::block(payload, ObjectType::SYSTEM_ATTRIBUTES, 0);
        }
        let is_old = self.facts.tells_spills && spill.flags & Spill::UNMODIFIED != 0;
        self.spill(spill.object, payload, is_old)
    }

    fn apply_embedded(&mut self, write: &WriteEmbedded, payload: &[u8]) -> Result<()> {
        let (id, size) = (write.object, u64::from(write.logical_size));
        let wrong = |what: &str| {
            let reason = format!("the stream has an embedded block {what}");
            Err(self.at(Error::invalid(reason), id))
        };
        if !self.facts.embedded || write.kind != EMBEDDED_DATA {
            return wrong("of a kind it says it has not");
        }
        if size == 0 || size > write.length || write.length > LARGE_BLOCK_MAX {
            return wrong("of a size that cannot be");
        }
        let len = usize::try_from(write.physical_size).unwrap_or(usize::MAX);
        let Some(packed) = payload.get(..len) else { return wrong("that is cut off") };
        let data = expanded(write.compression, packed, size).map_err(|error| self.at(error, id))?;
        // OpenZFS sends what lies in the pointers of large blocks whole where it says that it splits them.
        let piece = self.largest_block();
        for (place, data) in (0_u64..).zip(data.chunks(usize::try_from(piece).unwrap_or(1))) {
            let offset = write.offset.saturating_add(place.saturating_mul(piece));
            self.write(id, offset, data)?;
        }
        Ok(())
    }
}
