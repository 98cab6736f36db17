//! Reading a stream, record after record.
//!
//! Invariant: a payload takes no more memory than twice what has come of it, but for its first [`STEP`] bytes;
//! nothing behind a stream is read; a record is given only if all before it and its own header are what their
//! sums say. A payload is covered by the sum in the next header.

use std::io::{self, ErrorKind as IoKind, IoSliceMut, Read};

use cenote_codec::checksum::{Fletcher4, WordOrder};
use cenote_format::bytes::ByteOrder;
use cenote_format::send_stream::{CHECKSUM_AT, End, HEADER, Record, order_of, stored_checksum};

use crate::{Error, ErrorKind};

/// Bytes of a payload for which there is memory before any of them has come.
const STEP: usize = 128 << 10;

/// Why a stream cannot be read on.
#[derive(Debug)]
pub enum ReadError {
    /// It ends in the middle of a record, or without the record of its end.
    Truncated,
    /// A sum in it is not that of its bytes.
    Checksum,
    /// It does not begin like a stream.
    NoStream,
    /// A header makes no sense.
    Malformed(cenote_format::Error),
    /// What it is read from failed.
    Io(io::Error),
}

/// A record and its payload.
#[derive(Clone, Debug)]
pub struct Item {
    /// The header.
    pub record: Record,
    /// The payload as it came, in the byte order of the sender, padding included.
    pub payload: Vec<u8>,
    /// Byte order of the sender.
    pub order: ByteOrder,
}

/// Reads the records of a stream; of a package, those of all its substreams.
pub struct StreamReader<R> {
    source: R,
    /// Byte order, once the first record told it.
    order: Option<ByteOrder>,
    sum: Fletcher4,
    /// Between a beginning and its end.
    inside: bool,
    bytes: u64,
    /// What came of the next header with the payload before it.
    ahead: [u8; HEADER],
    ahead_len: usize,
}

impl<R: Read> StreamReader<R> {
    /// A stream that comes from `source`, of which nothing was read.
    pub fn new(source: R) -> Self {
        let sum = Fletcher4::new(WordOrder::Little);
        Self { source, order: None, sum, inside: false, bytes: 0, ahead: [0; HEADER], ahead_len: 0 }
    }

    /// Bytes read so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The next record. `None` where the source ends between streams.
    ///
    /// # Errors
    /// [`ReadError`]; nothing more can be read then.
    pub fn record(&mut self) -> Result<Option<Item>, ReadError> {
        let Some(header) = self.header()? else { return Ok(None) };
        let order = match self.order {
            Some(order) => order,
            None => {
                let order = order_of(&header).ok_or(ReadError::NoStream)?;
                self.order = Some(order);
                self.start_sum();
                order
            }
        };
        let record = Record::decode(&header, order).map_err(ReadError::Malformed)?;
        self.check(&header, &record, order)?;
        // Inside of a stream another header follows.
        let is_followed = !matches!(record, Record::End(_));
        let payload = self.payload(record.payload_len(), is_followed)?;
        self.sum.update(&payload);
        match record {
            Record::Begin(_) => self.inside = true,
            Record::End(_) => {
                self.inside = false;
                self.start_sum();
            }
            _ => {}
        }
        Ok(Some(Item { record, payload, order }))
    }

    fn start_sum(&mut self) {
        let order = match self.order {
            Some(ByteOrder::Big) => WordOrder::Big,
            Some(ByteOrder::Little) | None => WordOrder::Little,
        };
        self.sum = Fletcher4::new(order);
    }

    /// Sums the header and compares what it says.
    fn check(
        &mut self,
        header: &[u8; HEADER],
        record: &Record,
        order: ByteOrder,
    ) -> Result<(), ReadError> {
        if let Record::End(End { checksum, .. }) = record
            && *checksum != self.sum.words()
        {
            return Err(ReadError::Checksum);
        }
        if matches!(record, Record::Begin(_)) {
            // A stream that was cut off by its sender may be followed by another.
            self.start_sum();
        }
        let (front, stored) = header.split_at(CHECKSUM_AT);
        self.sum.update(front);
        let told = stored_checksum(header, order);
        let is_summed = !matches!(record, Record::Begin(_)) && told != [0; 4];
        if is_summed && told != self.sum.words() {
            return Err(ReadError::Checksum);
        }
        self.sum.update(stored);
        Ok(())
    }

    /// The next header; `None` at the end between streams.
    fn header(&mut self) -> Result<Option<[u8; HEADER]>, ReadError> {
        let (mut header, before) = (self.ahead, self.bytes);
        let come = std::mem::take(&mut self.ahead_len);
        match self.fill(header.get_mut(come..).unwrap_or_default(), false) {
            Err(ReadError::Truncated) if come == 0 && self.bytes == before && !self.inside => {
                Ok(None)
            }
            read => read.map(|()| Some(header)),
        }
    }

    fn payload(&mut self, len: u64, is_followed: bool) -> Result<Vec<u8>, ReadError> {
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        let mut payload = Vec::new();
        while payload.len() < len {
            let come = payload.len();
            let step = (len - come).min(come.max(STEP));
            payload.resize(come + step, 0);
            let rest = payload.get_mut(come..).unwrap_or_default();
            self.fill(rest, is_followed && come + step == len)?;
        }
        Ok(payload)
    }

    /// Fills `rest`. What has come already of the header behind it is taken along, if there is to be one.
    fn fill(&mut self, mut rest: &mut [u8], is_followed: bool) -> Result<(), ReadError> {
        while !rest.is_empty() {
            let wanted = rest.len();
            let ahead = if is_followed { &mut self.ahead[..] } else { &mut [] };
            let mut both = [IoSliceMut::new(&mut *rest), IoSliceMut::new(ahead)];
            match self.source.read_vectored(&mut both) {
                Ok(0) => return Err(ReadError::Truncated),
                Ok(count) => {
                    self.bytes = self.bytes.saturating_add(count as u64);
                    self.ahead_len = count.saturating_sub(wanted).min(HEADER);
                    rest = rest.get_mut(count.min(wanted)..).unwrap_or_default();
                }
                Err(error) if error.kind() == IoKind::Interrupted => {}
                Err(error) => return Err(ReadError::Io(error)),
            }
        }
        Ok(())
    }
}

impl From<ReadError> for Error {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Truncated => {
                Self::corrupt("the stream ends before it is complete").with_advice("send it again")
            }
            ReadError::Checksum => {
                Self::new(ErrorKind::Checksum, "a checksum in the stream does not match its bytes")
                    .with_advice("send it again")
            }
            ReadError::NoStream => Self::corrupt("this is no send stream"),
            ReadError::Malformed(error) => error.into(),
            ReadError::Io(error) => {
                Self::new(ErrorKind::Io, format!("the stream cannot be read: {error}"))
            }
        }
    }
}
