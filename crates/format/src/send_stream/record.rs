//! A record of any kind, and how many bytes of payload follow its header.
//!
//! Chapter 07, sections 1 to 3. Invariant: a record that decodes has a payload within the limits of its kind,
//! of whole words of four bytes, which is what the running checksum sums.

use super::fields::Fields;
use super::{
    Begin, CHECKSUM_AT, End, Free, FreeObjects, HEADER, MAX_BEGIN_PAYLOAD, MAX_BONUS, MAX_PAYLOAD,
    Object, ObjectRange, Redact, Spill, Write, WriteByReference, WriteEmbedded, bad,
};
use crate::Result;
use crate::blkptr::EMBEDDED_MAX;
use crate::bytes::ByteOrder;

/// The header of a record, decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// A stream begins.
    Begin(Begin),
    /// A dnode.
    Object(Object),
    /// Numbers no object has.
    FreeObjects(FreeObjects),
    /// Data.
    Write(Write),
    /// A hole.
    Free(Free),
    /// The stream ends.
    End(End),
    /// Data that stands elsewhere.
    WriteByReference(WriteByReference),
    /// A spill block.
    Spill(Spill),
    /// A small block that lies in its pointer.
    WriteEmbedded(WriteEmbedded),
    /// How a block of dnodes is encrypted.
    ObjectRange(ObjectRange),
    /// Data that was left out.
    Redact(Redact),
}

impl Record {
    /// Decodes a header in `order`. The checksum at its end is not looked at: see [`stored_checksum`].
    pub fn decode(header: &[u8; HEADER], order: ByteOrder) -> Result<Self> {
        let fields = Fields { data: header, order };
        let record = match fields.u32(0) {
            0 => Self::Begin(Begin::decode(fields)?),
            1 => Self::Object(Object::decode(fields)?),
            2 => Self::FreeObjects(FreeObjects::decode(fields)),
            3 => Self::Write(Write::decode(fields)?),
            4 => Self::Free(Free::decode(fields)),
            5 => Self::End(End::decode(fields)),
            6 => Self::WriteByReference(WriteByReference::decode(fields)),
            7 => Self::Spill(Spill::decode(fields)),
            8 => Self::WriteEmbedded(WriteEmbedded::decode(fields)),
            9 => Self::ObjectRange(ObjectRange::decode(fields)),
            10 => Self::Redact(Redact::decode(fields)),
            kind => return Err(bad(format!("record type {kind} does not exist"))),
        };
        record.check_payload()?;
        Ok(record)
    }

    /// The header, little-endian, its checksum zero.
    pub fn encode(&self) -> Result<[u8; HEADER]> {
        self.check_payload()?;
        let out = match self {
            Self::Begin(begin) => begin.encode()?,
            Self::Object(object) => object.encode(),
            Self::FreeObjects(range) => range.encode(),
            Self::Write(write) => write.encode(),
            Self::Free(free) => free.encode_as(4),
            Self::End(end) => end.encode(),
            Self::WriteByReference(write) => write.encode(),
            Self::Spill(spill) => spill.encode(),
            Self::WriteEmbedded(write) => write.encode(),
            Self::ObjectRange(range) => range.encode(),
            Self::Redact(redact) => redact.encode_as(10),
        };
        Ok(out.0)
    }

    /// Name of the kind of record.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Begin(_) => "BEGIN",
            Self::Object(_) => "OBJECT",
            Self::FreeObjects(_) => "FREEOBJECTS",
            Self::Write(_) => "WRITE",
            Self::Free(_) => "FREE",
            Self::End(_) => "END",
            Self::WriteByReference(_) => "WRITE_BYREF",
            Self::Spill(_) => "SPILL",
            Self::WriteEmbedded(_) => "WRITE_EMBEDDED",
            Self::ObjectRange(_) => "OBJECT_RANGE",
            Self::Redact(_) => "REDACT",
        }
    }

    /// Bytes of payload that follow the header.
    pub fn payload_len(&self) -> u64 {
        match self {
            Self::Begin(begin) => begin.payload_len.into(),
            Self::Object(object) => object.payload_len(),
            Self::Write(write) => write.payload_len(),
            Self::Spill(spill) => spill.payload_len(),
            Self::WriteEmbedded(write) => write.payload_len(),
            Self::FreeObjects(_)
            | Self::Free(_)
            | Self::End(_)
            | Self::WriteByReference(_)
            | Self::ObjectRange(_)
            | Self::Redact(_) => 0,
        }
    }

    fn check_payload(&self) -> Result<()> {
        let most = match self {
            Self::Begin(_) => MAX_BEGIN_PAYLOAD,
            Self::Object(_) => MAX_BONUS,
            Self::WriteEmbedded(_) => EMBEDDED_MAX as u64,
            _ => MAX_PAYLOAD,
        };
        let (name, len) = (self.name(), self.payload_len());
        if len > most {
            return Err(bad(format!(
                "a payload of {len} bytes in {name}, which has at most {most}"
            )));
        }
        if !len.is_multiple_of(4) {
            let reason = format!("a payload of {len} bytes in {name}, which is no multiple of 4");
            return Err(bad(reason));
        }
        Ok(())
    }
}

/// The running checksum that stands in a header; all zero where a sender kept none. Not of a [`Record::Begin`].
pub fn stored_checksum(header: &[u8; HEADER], order: ByteOrder) -> [u64; 4] {
    Fields { data: header, order }.words(CHECKSUM_AT)
}

/// How many zero bytes follow `len` bytes of an object's bonus or of embedded data, to a multiple of 8.
pub fn payload_padding(len: usize) -> usize {
    len.next_multiple_of(8).saturating_sub(len)
}
