//! Blocks become records: read together, in the form the stream wants them in.
//!
//! Chapter 07, sections 3, 7 and 8. Invariant: records are given out in the order they were asked for; a batch
//! holds what was read for it and no more than [`BATCH_BYTES`] and one block.

use std::sync::mpsc::SyncSender;

use bytes::Bytes;
use cenote_codec::checksum::Algorithm as Checksum;
use cenote_format::blkptr::{CHECKSUM_OFF, Embedded};
use cenote_format::send_stream::{
    DedupKey, FLAG_RAW_BYTE_SWAP, Features, Free, Record, Redact, Sealed, Spill, Write,
    WriteEmbedded,
};
use cenote_format::{BlockPointer, Guid, ObjectType, ddt};

use super::pending::Pending;
use super::source::Source;
use crate::pipe::ReadContext;
use crate::{Error, ErrorKind, Result};

/// Bytes that are read together.
const BATCH_BYTES: u64 = 4 << 20;
/// Records that are made together.
const BATCH_RECORDS: usize = 1024;
/// Largest block of a stream without large blocks, in bytes.
pub(super) const OLD_MAX_BLOCK: u64 = 128 << 10;
/// Compression id of blocks that are not compressed.
const COMPRESSION_OFF: u8 = 2;
/// Compression ids of lz4 and zstd, which receivers must know.
const LZ4: u8 = 15;
const ZSTD: u8 = 16;

/// A record of the stream.
pub(super) struct Piece {
    pub(super) record: Record,
    pub(super) payload: Bytes,
}

/// What is to become records.
pub(super) enum Wanted {
    /// Nothing has to be read.
    Record(Record, Bytes),
    /// A block of an object's data.
    Data(Data),
    /// A spill block.
    Spill { object: u64, pointer: BlockPointer, flags: u8 },
}

/// A block of an object's data.
pub(super) struct Data {
    pub(super) object: u64,
    pub(super) object_type: ObjectType,
    pub(super) offset: u64,
    /// Size of the object's blocks in bytes.
    pub(super) block_size: u64,
    pub(super) pointer: BlockPointer,
}

/// How a block is read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// Not at all: it lies in its pointer.
    InPointer,
    /// As it is stored.
    Stored,
    /// Decrypted, but not decompressed.
    Opened,
    /// Whole.
    Logical,
}

/// Makes records and hands them on in batches.
pub(super) struct Blocks<'a> {
    source: &'a Source,
    context: ReadContext,
    queue: Vec<Wanted>,
    bytes: u64,
    pending: Pending,
    out: SyncSender<Vec<Piece>>,
}

impl<'a> Blocks<'a> {
    pub(super) fn new(source: &'a Source, out: SyncSender<Vec<Piece>>) -> Self {
        let context = ReadContext { transient: true, ..source.set.context().clone() };
        let pending = Pending::default();
        Self { source, context, queue: Vec::new(), bytes: 0, pending, out }
    }

    /// Takes the next.
    pub(super) fn add(&mut self, wanted: Wanted) -> Result<()> {
        self.bytes = self.bytes.saturating_add(match &wanted {
            Wanted::Record(_, payload) => payload.len() as u64,
            Wanted::Data(Data { pointer, .. }) | Wanted::Spill { pointer, .. } => pointer.lsize(),
        });
        self.queue.push(wanted);
        match self.bytes >= BATCH_BYTES || self.queue.len() >= BATCH_RECORDS {
            true => self.flush(),
            false => Ok(()),
        }
    }

    /// A range of an object reads as zeros; of [`cenote_format::send_stream::TO_END`] bytes: to its end.
    pub(super) fn free(&mut self, object: u64, offset: u64, length: u64) -> Result<()> {
        let to_guid = self.source.to_guid;
        self.record(Record::Free(Free { object, offset, length, to_guid }))
    }

    /// A range of an object is left out.
    pub(super) fn redact(&mut self, object: u64, offset: u64, length: u64) -> Result<()> {
        let to_guid = self.source.to_guid;
        self.record(Record::Redact(Redact { object, offset, length, to_guid }))
    }

    /// A record without a payload.
    pub(super) fn record(&mut self, record: Record) -> Result<()> {
        self.add(Wanted::Record(record, Bytes::new()))
    }

    /// Gives out everything.
    pub(super) fn finish(&mut self) -> Result<()> {
        self.flush()?;
        let last = self.pending.finish();
        let last = last.map(|record| Piece { record, payload: Bytes::new() });
        self.hand_on(last.into_iter().collect())
    }

    fn hand_on(&self, batch: Vec<Piece>) -> Result<()> {
        if batch.is_empty() {
            return Ok(());
        }
        let gone = || Error::new(ErrorKind::Interrupted, "nobody takes what is sent any more");
        self.out.send(batch).map_err(|_| gone())
    }

    fn form(&self, wanted: &Wanted) -> Option<(Form, BlockPointer)> {
        match wanted {
            Wanted::Record(..) => None,
            Wanted::Spill { pointer, .. } => {
                let stored = self.source.is_raw() && !pointer.is_embedded();
                Some((if stored { Form::Stored } else { Form::Logical }, *pointer))
            }
            Wanted::Data(data) => Some((self.form_of(data), data.pointer)),
        }
    }

    fn form_of(&self, data: &Data) -> Form {
        let (pointer, features) = (&data.pointer, self.source.features);
        if pointer.is_embedded() {
            return match may_stay_embedded(pointer, features) && !self.splits(pointer) {
                true => Form::InPointer,
                false => Form::Logical,
            };
        }
        if self.source.is_raw() {
            return Form::Stored;
        }
        let packed = features.contains(Features::COMPRESSED)
            && pointer.compression() != COMPRESSION_OFF
            && !self.splits(pointer)
            && !data.object_type.is_metadata()
            && pointer.is_little_endian();
        match (packed, pointer.is_encrypted()) {
            (true, false) => Form::Stored,
            (true, true) => Form::Opened,
            (false, _) => Form::Logical,
        }
    }

    /// The block is sent in pieces that every receiver takes.
    fn splits(&self, pointer: &BlockPointer) -> bool {
        pointer.lsize() > OLD_MAX_BLOCK && !self.source.features.contains(Features::LARGE_BLOCKS)
    }

    /// Reads what waits, and makes it records.
    fn flush(&mut self) -> Result<()> {
        let queue = std::mem::take(&mut self.queue);
        self.bytes = 0;
        let forms: Vec<_> = queue.iter().map(|wanted| self.form(wanted)).collect();
        let pointers = |stored: bool| -> Vec<BlockPointer> {
            let is_stored = |form| matches!(form, Form::Stored | Form::Opened);
            let of = forms.iter().flatten().filter(|(form, _)| *form != Form::InPointer);
            of.filter(|(form, _)| is_stored(*form) == stored).map(|(_, pointer)| *pointer).collect()
        };
        let pipe = &self.source.set.io().pipe;
        let mut stored = pipe.read_stored_many(&pointers(true)).into_iter();
        let mut logical = pipe.read_many(&pointers(false), &self.context).into_iter();
        let mut batch = Vec::with_capacity(queue.len());
        for (wanted, form) in queue.into_iter().zip(forms) {
            let read = match form {
                None | Some((Form::InPointer, _)) => Some(Ok(Bytes::new())),
                Some((Form::Stored | Form::Opened, _)) => stored.next(),
                Some((Form::Logical, _)) => logical.next(),
            };
            let read = read.unwrap_or_else(|| Err(Error::bug("a block to send was not read")));
            let form = form.map_or(Form::InPointer, |(form, _)| form);
            self.make(wanted, form, read, &mut batch)?;
        }
        self.hand_on(batch)
    }

    fn make(
        &mut self,
        wanted: Wanted,
        form: Form,
        read: Result<Bytes>,
        batch: &mut Vec<Piece>,
    ) -> Result<()> {
        let id = self.source.set.id();
        match wanted {
            Wanted::Record(record, payload) => self.put(record, payload, batch),
            Wanted::Spill { object, pointer, flags } => {
                let payload = read.map_err(|error| error.at_object(id, object))?;
                self.put(self.spill(object, &pointer, flags), payload, batch);
            }
            Wanted::Data(data) => {
                let named = |error: Error| {
                    let block = data.offset.checked_div(data.block_size).unwrap_or(0);
                    error.at_object(id, data.object).at(|place| place.block = Some((0, block)))
                };
                let payload = read.and_then(|read| self.opened(&data.pointer, form, read));
                let payload = payload.map_err(named)?;
                self.data(&data, form, payload, batch);
            }
        }
        Ok(())
    }

    /// Decrypts what is sent compressed but not encrypted.
    fn opened(&self, pointer: &BlockPointer, form: Form, read: Bytes) -> Result<Bytes> {
        if form != Form::Opened {
            return Ok(read);
        }
        let missing = || Error::new(ErrorKind::KeyNotLoaded, "the dataset's key is not loaded");
        let decryptor = self.context.decryptor.as_ref().ok_or_else(missing)?;
        let mut opened = read.to_vec();
        decryptor.decrypt(pointer, &mut opened)?;
        Ok(opened.into())
    }

    fn put(&mut self, record: Record, payload: Bytes, batch: &mut Vec<Piece>) {
        let mut payload = Some(payload);
        self.pending.put(record, |record| {
            // What was held back has none; a record that has some is the last one given out.
            let own = if record.payload_len() == 0 { None } else { payload.take() };
            batch.push(Piece { record, payload: own.unwrap_or_default() });
        });
    }

    fn data(&mut self, data: &Data, form: Form, payload: Bytes, batch: &mut Vec<Piece>) {
        let (pointer, to_guid) = (&data.pointer, self.source.to_guid);
        if form == Form::InPointer {
            let record = embedded(data, to_guid);
            let payload = pointer.embedded_payload().unwrap_or_default();
            return self.put(record, payload.into(), batch);
        }
        if self.splits(pointer) {
            let mut offset = data.offset;
            let mut rest = payload;
            while !rest.is_empty() {
                let piece = rest.split_to(rest.len().min(OLD_MAX_BLOCK as usize));
                let len = piece.len() as u64;
                self.put(Record::Write(plain(data, offset, len, to_guid)), piece, batch);
                offset = offset.saturating_add(len);
            }
            return;
        }
        let mut write = plain(data, data.offset, pointer.lsize(), to_guid);
        let raw = self.source.is_raw() && form == Form::Stored;
        if !pointer.is_embedded() && (raw || !pointer.is_crypt()) {
            let (lsize, psize) = (pointer.lsize(), pointer.psize());
            let (packed, crypt) = (pointer.compression(), pointer.is_crypt());
            let key = ddt::Key::new(pointer.checksum(), lsize, psize, packed, crypt);
            write.key = DedupKey { checksum: key.checksum, properties: key.prop };
            write.checksum_type = pointer.checksum_id();
            let known = Checksum::from_id(write.checksum_type);
            if known.is_some_and(Checksum::dedup_without_verify) {
                write.flags |= Write::CHECKSUM_DEDUP;
            }
        }
        if matches!(form, Form::Stored | Form::Opened) {
            write.compression = pointer.compression();
            write.compressed_size = payload.len() as u64;
        }
        if raw {
            write.flags |= swapped(pointer);
            write.sealed = sealed(pointer);
        }
        self.put(Record::Write(write), payload, batch);
    }

    fn spill(&self, object: u64, pointer: &BlockPointer, flags: u8) -> Record {
        let mut spill = Spill {
            object,
            length: pointer.lsize(),
            to_guid: self.source.to_guid,
            flags,
            compression: 0,
            compressed_size: 0,
            sealed: Sealed::default(),
            object_type: 0,
        };
        if self.source.is_raw() {
            spill.flags |= swapped(pointer);
            spill.compression = pointer.compression();
            spill.compressed_size = pointer.psize();
            spill.sealed = sealed(pointer);
        }
        Record::Spill(spill)
    }
}

/// A write of `len` bytes at `offset` of which only the bytes are told.
fn plain(data: &Data, offset: u64, len: u64, to_guid: Guid) -> Write {
    Write {
        object: data.object,
        object_type: data.object_type,
        offset,
        logical_size: len,
        to_guid,
        checksum_type: CHECKSUM_OFF,
        flags: 0,
        compression: 0,
        key: DedupKey::default(),
        compressed_size: 0,
        sealed: Sealed::default(),
    }
}

fn embedded(data: &Data, to_guid: Guid) -> Record {
    let pointer = &data.pointer;
    Record::WriteEmbedded(WriteEmbedded {
        object: data.object,
        offset: data.offset,
        length: data.block_size,
        to_guid,
        compression: pointer.compression(),
        kind: 0,
        logical_size: u32::try_from(pointer.lsize()).unwrap_or(u32::MAX),
        physical_size: u32::try_from(pointer.psize()).unwrap_or(u32::MAX),
    })
}

/// The receiver knows how to keep the block in its pointer.
fn may_stay_embedded(pointer: &BlockPointer, features: Features) -> bool {
    let known = match pointer.compression() {
        ZSTD => features.contains(Features::ZSTD),
        compression if compression >= LZ4 => features.contains(Features::LZ4),
        _ => true,
    };
    let data = pointer.embedded_kind() == Some(Embedded::Data);
    data && known && features.contains(Features::EMBED_DATA)
}

/// How the block is encrypted, or what it is authenticated with.
pub(super) fn sealed(pointer: &BlockPointer) -> Sealed {
    match (pointer.is_encrypted(), pointer.is_crypt()) {
        (true, _) => Sealed { salt: pointer.salt(), iv: pointer.iv(), mac: pointer.mac() },
        (false, true) => Sealed { mac: pointer.mac(), ..Sealed::default() },
        (false, false) => Sealed::default(),
    }
}

/// The flag of what a host of the other byte order wrote.
pub(super) fn swapped(pointer: &BlockPointer) -> u8 {
    if pointer.is_little_endian() { 0 } else { FLAG_RAW_BYTE_SWAP }
}
