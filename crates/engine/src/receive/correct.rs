//! Making damaged blocks of a snapshot right with what a stream of that snapshot brings (`zfs receive -c`).
//!
//! Invariant: only bytes that verify against the pointer of the block are written, and only over the block; the
//! snapshot cannot go meanwhile. What is not damaged is not written.

use std::io::Read;

use bytes::Bytes;
use cenote_codec::compress::{Algorithm, Method, ZstdLevel, compress};
use cenote_format::bytes::ByteOrder;
use cenote_format::send_stream::{Record, Write};
use cenote_format::{BlockPointer, ObjectId};

use super::data::expanded;
use super::{StreamFacts, next_record};
use crate::dataset::Dataset;
use crate::object::ObjectSet;
use crate::pool::group::LivePool;
use crate::stream::StreamReader;
use crate::{Error, ErrorKind, Result};

/// Levels at which blocks may have been compressed with zstd, the most likely first.
const ZSTD_LEVELS: [i32; 12] = [3, 1, 2, 4, 5, 6, 7, 9, 11, 15, 17, 19];

/// What came of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Corrected {
    /// Damaged blocks that are right now.
    pub blocks: u64,
    /// Damaged blocks that the stream has, but not as they were stored.
    pub failed: u64,
}

/// Reads a stream of `snapshot` to its end, and writes what is damaged of that anew; `on` is told how many bytes
/// were read, and may end it.
///
/// # Errors
/// `InvalidArgument`: the stream is of another snapshot; `KeyNotLoaded`: it is not raw, and the dataset is
/// encrypted; as of [`next_record`]; `Checksum`: something damaged cannot be made right with it.
pub fn correct<R: Read>(
    live: &LivePool,
    snapshot: &Dataset,
    facts: &StreamFacts,
    from: &mut StreamReader<R>,
    mut on: impl FnMut(u64) -> Result<()>,
) -> Result<Corrected> {
    let _kept = live.pool().kept().keep(snapshot.id);
    let catalog = live.pool().catalog();
    // It may have gone before it was kept.
    catalog.dataset_by_id(snapshot.id)?;
    if snapshot.phys.guid != facts.to {
        return Err(Error::invalid("the stream is of another snapshot"));
    }
    let is_encrypted = catalog.key_object(&snapshot.directory)?.is_some();
    if is_encrypted && facts.raw.is_none() {
        let reason = "healing encrypted blocks with a stream that is not raw is not supported yet";
        return Err(Error::unsupported(reason).with_advice("send with -w"));
    }
    let set = catalog.sealed_object_set(snapshot)?;
    let mut done = Corrected::default();
    loop {
        let item = next_record(from)?;
        match &item.record {
            Record::End(_) => break,
            Record::Write(write) if item.order == ByteOrder::Little => {
                one(live, &set, write, &item.payload, &mut done)?;
            }
            _ => {}
        }
        on(from.bytes())?;
    }
    match done.failed {
        0 => Ok(done),
        _ => Err(Error::new(
            ErrorKind::Checksum,
            "corrective receive was not able to reconstruct the data needed for healing.",
        )),
    }
}

/// Looks at the block that a record is about, and makes it right.
fn one(
    live: &LivePool,
    set: &ObjectSet,
    write: &Write,
    payload: &[u8],
    done: &mut Corrected,
) -> Result<()> {
    let Some(pointer) = pointer_of(set, write)? else { return Ok(()) };
    let pipe = &live.pool().io().pipe;
    match pipe.read_stored_many(std::slice::from_ref(&pointer)).pop() {
        None | Some(Ok(_)) => return Ok(()),
        // What is only away comes back.
        Some(Err(error)) if error.is_passing() => return Err(error),
        Some(Err(_)) => {}
    }
    let stored = forms(&pointer, write, payload).find(|stored| pipe.would_verify(&pointer, stored));
    let Some(stored) = stored else {
        done.failed = done.failed.saturating_add(1);
        return Ok(());
    };
    let _held = live.allocator().hold_all();
    pipe.write_over(&pointer, &stored)?;
    done.blocks = done.blocks.saturating_add(1);
    Ok(())
}

/// The pointer of the block that a record brings; none if no block of that size and place is stored here.
fn pointer_of(set: &ObjectSet, write: &Write) -> Result<Option<BlockPointer>> {
    let object = match set.object(ObjectId(write.object)) {
        Ok(object) => object,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let size = object.block_size();
    if size == 0 || write.logical_size != size || !write.offset.is_multiple_of(size) {
        return Ok(None);
    }
    let block = write.offset.checked_div(size).unwrap_or(0);
    if block > object.dnode().max_block_id {
        return Ok(None);
    }
    let pointer = object.pointer(0, block)?;
    Ok((!pointer.is_hole() && !pointer.is_embedded() && !pointer.is_gang()).then_some(pointer))
}

/// The forms in which the bytes of a record may be stored, each as long as the block.
fn forms(
    pointer: &BlockPointer,
    write: &Write,
    payload: &[u8],
) -> impl Iterator<Item = Bytes> + use<> {
    let len = usize::try_from(pointer.psize()).unwrap_or(usize::MAX);
    let as_it_came = (payload.len() == len).then(|| Bytes::copy_from_slice(payload));
    let plain = match write.compression {
        0 => Some(payload.to_vec()),
        packed => expanded(packed, payload, write.logical_size).ok(),
    };
    let methods = plain.as_ref().map_or_else(Vec::new, |_| methods(pointer.compression()));
    let plain = plain.unwrap_or_default();
    let packed = methods.into_iter().filter_map(move |method| {
        let mut packed = vec![0; plain.len()];
        let used = compress(method, &plain, &mut packed)?;
        packed.truncate(used);
        (used <= len).then(|| {
            packed.resize(len, 0);
            Bytes::from(packed)
        })
    });
    as_it_came.into_iter().chain(packed)
}

/// How blocks with this compression id may have been compressed.
fn methods(compression: u8) -> Vec<Method> {
    match Algorithm::from_id(compression) {
        Some(Algorithm::Lzjb) => vec![Method::Lzjb],
        Some(Algorithm::Gzip(level)) => vec![Method::Gzip(level)],
        Some(Algorithm::Zle) => vec![Method::Zle],
        Some(Algorithm::Lz4) => vec![Method::Lz4],
        Some(Algorithm::Zstd) => ZSTD_LEVELS
            .iter()
            .filter_map(|level| ZstdLevel::from_number(*level))
            .map(Method::Zstd)
            .collect(),
        _ => Vec::new(),
    }
}
