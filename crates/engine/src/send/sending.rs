//! One stream: it begins, its records are read and written side by side, it ends.
//!
//! Chapter 07, sections 4 to 8. Invariant: a stream of which not everything could be read or written has no end.

use std::io::Write;
use std::sync::mpsc::sync_channel;
use std::thread;

use cenote_format::dsl_dataset::{KEY_IVSET_GUID, KEY_REDACTED_DATASETS};
use cenote_format::send_stream::{Begin, Features};
use cenote_format::{Guid, Txg};

use super::begin;
use super::blocks::Piece;
use super::left_out::Redaction;
use super::objects::Objects;
use super::since::{Lacking, Since};
use super::source::{Options, Source, features};
use crate::dataset::{Catalog, Dataset, Keys as _};
use crate::pool::Pool;
use crate::stream::StreamWriter;
use crate::{Error, ErrorKind, Result};

/// Batches of records that wait to be written.
const BATCHES: usize = 2;

/// A stream that can be written.
pub struct Sending {
    source: Source,
    begin: Begin,
    /// The packed list the stream begins with.
    payload: Vec<u8>,
    saved: bool,
}

impl Sending {
    /// A stream of the snapshot `to`, or of a head that was received in part.
    ///
    /// # Errors
    /// `KeyNotLoaded` for an encrypted dataset that is not sent raw; `Unsupported` for what a stream without an
    /// option cannot hold; `InvalidArgument` if the list of the bookmark it goes on from is not whole.
    pub fn new(
        pool: &Pool,
        catalog: &Catalog,
        to: &Dataset,
        since: Option<Since>,
        options: &Options,
    ) -> Result<Self> {
        if catalog.dataset_fields(to, KEY_REDACTED_DATASETS)?.is_some() {
            let reason = format!("sending '{}', which was received redacted", to.name);
            return Err(Error::unsupported(format!("{reason}, is not supported yet")));
        }
        let key = catalog.key_object(&to.directory)?;
        let raw = options.raw && key.is_some();
        let set = match raw {
            true => catalog.sealed_object_set(to)?,
            false => {
                let locked = key.as_ref().is_some_and(|key| !pool.keys().is_loaded(key.root));
                if locked {
                    let reason = format!("the key of '{}' is not loaded", to.name);
                    return Err(Error::new(ErrorKind::KeyNotLoaded, reason)
                        .with_advice("load it with 'zfs load-key', or send with -w"));
                }
                catalog.object_set(to, &**pool.keys())?
            }
        };
        let features = features(catalog, to, &set, key.is_some(), options)?;
        let begin = begin::begin(catalog, to, &set, since.as_ref(), features)?;
        let key = key.filter(|_| raw);
        let key = key.map(|key| -> Result<_> {
            let ivset = catalog.dataset_field(to, KEY_IVSET_GUID)?.unwrap_or(0);
            let from = since.as_ref().map_or(0, |since| since.ivset_guid);
            Ok(begin::key_data(&key, &set, ivset, from))
        });
        let after = since.as_ref().map_or(Txg(0), |since| since.creation_txg);
        // Nothing is ever left out of raw streams, so who receives them lacks nothing.
        let before = since.and_then(|since| since.lacking).filter(|_| !raw);
        let before = before.map(|Lacking { guids, list }| match list {
            Some(list) => Redaction::of_list(catalog, list),
            None => Ok(Redaction::unlisted(guids)),
        });
        let before = before.transpose()?;
        let lacking = before.as_ref().map(|before| before.guids.as_slice());
        let payload = begin::payload(lacking, options.resume, key.transpose()?)?;
        let (resume, end) = (options.resume, options.end());
        let source =
            Source { resume, end, before, ..Source::new(set, features, to.phys.guid, after) };
        Ok(Self { source, begin, payload, saved: options.saved.is_some() })
    }

    /// Leaves out what `redaction` says.
    ///
    /// # Errors
    /// `InvalidArgument`: the stream is raw.
    pub fn redacted(mut self, redaction: Redaction) -> Result<Self> {
        if self.source.is_raw() {
            return Err(Error::invalid("raw sends may not be redacted"));
        }
        self.payload = begin::redacted_payload(&self.payload, &redaction.guids)?;
        self.source.features |= Features::REDACTED;
        self.begin.features |= Features::REDACTED;
        self.source.redaction = Some(redaction);
        Ok(self)
    }

    /// What is sent is what has been received of another snapshot: the stream is one of that.
    #[must_use]
    pub fn standing_for(mut self, name: &str, guid: Guid) -> Self {
        self.begin.to_name = name.to_owned().into_bytes().into();
        self.begin.to_guid = guid;
        self.source.to_guid = guid;
        self
    }

    /// Writes the stream. `told` is told the bytes written so far, after each batch, and ends it with an error.
    ///
    /// # Errors
    /// What cannot be read; what [`StreamWriter::write`] says; what `told` says. The stream has no end then.
    pub fn write<W: Write>(
        &self,
        writer: &mut StreamWriter<W>,
        told: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<()> {
        writer.begin(&self.begin, &self.payload)?;
        let (sender, receiver) = sync_channel::<Vec<Piece>>(BATCHES);
        thread::scope(|scope| {
            let read = move || Objects::new(&self.source, sender).send();
            let reader = thread::Builder::new().name("send".into()).spawn_scoped(scope, read);
            let reader = reader.map_err(Error::no_thread)?;
            let written = receiver.into_iter().try_for_each(|batch| {
                for piece in &batch {
                    writer.write(&piece.record, &piece.payload)?;
                }
                told(writer.bytes())
            });
            let read = reader.join().unwrap_or_else(|_| {
                Err(Error::bug("the thread that reads what is sent has ended without a result"))
            });
            // The reader ends where nobody takes what it read: why is what the writer says.
            written.and(read)
        })?;
        match self.saved {
            true => Ok(()),
            false => writer.end(self.source.to_guid),
        }
    }
}
