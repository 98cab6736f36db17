//! Writing a stream, record after record.
//!
//! Invariant: the sums are those of the bytes that went out, also where a payload was padded.

use std::io::{self, Write};

use cenote_codec::checksum::{Fletcher4, WordOrder};
use cenote_format::bytes::put;
use cenote_format::send_stream::{Begin, CHECKSUM_AT, End, HEADER, HeaderKind, Record};

use crate::{Error, ErrorKind, Result};

/// Writes the records of a stream or of a package, little-endian.
pub struct StreamWriter<W> {
    sink: W,
    sum: Fletcher4,
    /// The record of the package itself was begun, not one of its substreams.
    package: bool,
    bytes: u64,
}

impl<W: Write> StreamWriter<W> {
    /// A stream that goes to `sink`.
    pub fn new(sink: W) -> Self {
        Self { sink, sum: Fletcher4::new(WordOrder::Little), package: false, bytes: 0 }
    }

    /// Bytes written so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Where it goes.
    pub fn sink(&mut self) -> &mut W {
        &mut self.sink
    }

    /// Begins a stream, substream or package whose packed list is `payload`.
    ///
    /// # Errors
    /// As of [`Self::write`].
    pub fn begin(&mut self, begin: &Begin, payload: &[u8]) -> Result<()> {
        self.package = begin.kind == HeaderKind::Compound;
        let payload_len = u32::try_from(payload.len())
            .map_err(|_| Error::invalid("the list at the beginning of a stream is above 4 GiB"))?;
        self.write(&Record::Begin(Begin { payload_len, ..begin.clone() }), payload)
    }

    /// Ends the stream or substream of `to_guid` (0 for the record of a package), with its checksum.
    ///
    /// # Errors
    /// As of [`Self::write`].
    pub fn end(&mut self, to_guid: cenote_format::Guid) -> Result<()> {
        self.write(&Record::End(End { checksum: self.sum.words(), to_guid }), &[])
    }

    /// Closes a package after its last substream.
    ///
    /// # Errors
    /// As of [`Self::write`].
    pub fn close(&mut self) -> Result<()> {
        self.package = true;
        self.write(&Record::End(End::default()), &[])
    }

    /// Writes a record and its payload, which is padded with zeros to what the record announces.
    ///
    /// # Errors
    /// `Interrupted` where nobody reads any more, `Io` where what it goes to fails; `Bug` for a payload that the
    /// record does not announce.
    pub fn write(&mut self, record: &Record, payload: &[u8]) -> Result<()> {
        let mut header = record.encode()?;
        let padding = usize::try_from(record.payload_len())
            .ok()
            .and_then(|len| len.checked_sub(payload.len()))
            .filter(|padding| *padding < 8);
        let Some(padding) = padding else {
            let (name, len) = (record.name(), payload.len());
            return Err(Error::bug(format!("a payload of {len} bytes does not belong to {name}")));
        };
        if matches!(record, Record::Begin(_)) {
            self.start_sum();
        }
        self.seal(&mut header, record);
        // The sum takes whole words of four bytes: the last one may be partly padding.
        let (whole, ragged) = payload.split_at(payload.len() & !3);
        let mut tail = ragged.to_vec();
        tail.resize(ragged.len() + padding, 0);
        self.sum.update(whole);
        self.sum.update(&tail);
        self.out(&[&header, whole, &tail], record)
    }

    fn start_sum(&mut self) {
        self.sum = Fletcher4::new(WordOrder::Little);
    }

    /// Sums the header and puts the sum into it.
    fn seal(&mut self, header: &mut [u8; HEADER], record: &Record) {
        let (front, _) = header.split_at(CHECKSUM_AT);
        self.sum.update(front);
        let bare = self.package && matches!(record, Record::End(_));
        if !bare && !matches!(record, Record::Begin(_)) {
            let words = cenote_format::bytes::words_to_le(&self.sum.words());
            // The words are the last 32 bytes of the header.
            let _ = put(header, CHECKSUM_AT, &words);
        }
        let (_, stored) = header.split_at(CHECKSUM_AT);
        self.sum.update(stored);
    }

    fn out(&mut self, parts: &[&[u8]], record: &Record) -> Result<()> {
        for part in parts {
            self.sink.write_all(part).map_err(lost)?;
            self.bytes = self.bytes.saturating_add(part.len() as u64);
        }
        if matches!(record, Record::End(_)) {
            self.start_sum();
            self.package = false;
        }
        Ok(())
    }
}

/// Why the stream did not go out.
fn lost(error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::BrokenPipe => {
            Error::new(ErrorKind::Interrupted, "nobody reads the stream any more")
        }
        _ => Error::new(ErrorKind::Io, format!("the stream cannot be written: {error}")),
    }
}
