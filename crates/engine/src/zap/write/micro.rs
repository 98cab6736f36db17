//! Changing micro ZAPs, and making them fat.
//!
//! Chapter 04, section 11. Invariant: a micro ZAP becomes a fat one exactly when OpenZFS would make
//! it so; its salt, normalization and collision differentiators stay.

use bytes::Bytes;
use cenote_format::zap::leaf_build::StoredKey;
use cenote_format::zap::micro::{CHUNK, MAX_BLOCK, MAX_NAME, chunk_offset, encode_chunk};
use cenote_format::zap::normalize::Matcher;
use cenote_format::zap::{MatchKind, Micro, MicroBuilder, MicroIndex, Value};

use super::recent::{self, Indexed};
use super::{BlockSink, EntryChange, FAT_BLOCK_SHIFT, fat};
use crate::txg::Tx;
use crate::{Error, Result};

/// Bytes a micro block grows by.
pub(super) const STEP: usize = 512;
/// Entries of one hash that still fit a leaf of 638 chunks, five each.
pub(super) const MOST_OF_ONE_HASH: usize = 638 / 5;

/// How a change of a micro ZAP ended.
pub(super) enum Outcome {
    /// The change is made.
    Done,
    /// The ZAP, whose block is given, must become a fat one to hold this value of the name.
    NeedsFat(Bytes, Value),
}

/// Changes the entry that matches `name` in the micro ZAP whose block is `block`.
pub(super) fn modify<S: BlockSink>(
    sink: &S,
    tx: &Tx,
    block: Bytes,
    name: &[u8],
    kind: MatchKind,
    decide: impl FnOnce(Option<&Value>) -> Result<EntryChange>,
) -> Result<Outcome> {
    let mut state = match recent::take(&block) {
        Some(state) => {
            drop(block);
            state
        }
        None => Indexed { index: MicroIndex::build(&Micro::new(&block)?)?, block, first_free: 0 },
    };
    let settings = state.index.settings();
    let hash = settings.hash_name(name);
    let matcher = Matcher::new(name, kind, settings.normalization);
    let mut found = None;
    let view = Micro::new(&state.block)?;
    for chunk in state.index.chunks_of(hash) {
        if let Some(entry) = view.entry(chunk)?.filter(|entry| matcher.matches(entry.name)) {
            found = Some((chunk, entry.value));
            break;
        }
    }
    let old = found.map(|(_, value)| Value::of_u64(value));
    let change = match decide(old.as_ref()) {
        Ok(change) => change,
        Err(error) => {
            recent::put(state);
            return Err(error);
        }
    };
    match (change, found) {
        (EntryChange::Keep, _) | (EntryChange::Remove, None) => {}
        (EntryChange::Remove, Some((chunk, _))) => {
            state.overwrite(sink, tx, chunk, &[0; CHUNK])?;
            state.index.remove(hash, chunk);
            state.first_free = state.first_free.min(chunk);
        }
        (EntryChange::Set(value), found) => match (value.as_u64(), found) {
            (None, _) => return Ok(Outcome::NeedsFat(state.block, value)),
            (Some(number), Some((chunk, _))) => {
                state.overwrite(sink, tx, chunk, &number.to_le_bytes())?;
            }
            (Some(number), None) => {
                if !state.insert(sink, tx, name, number, hash)? {
                    return Ok(Outcome::NeedsFat(state.block, value));
                }
            }
        },
    }
    recent::put(state);
    Ok(Outcome::Done)
}

impl Indexed {
    /// Puts `bytes` at the start of `chunk`.
    fn overwrite<S: BlockSink>(
        &mut self,
        sink: &S,
        tx: &Tx,
        chunk: u32,
        bytes: &[u8],
    ) -> Result<()> {
        // A buffer that nobody else holds is changed in place.
        self.block = Bytes::new();
        sink.write_at(tx, chunk_offset(chunk) as u64, bytes)?;
        self.block = sink.read_block(0)?;
        Ok(())
    }

    /// Makes room for more chunks.
    fn grow<S: BlockSink>(&mut self, sink: &S, tx: &Tx) -> Result<()> {
        let mut builder = MicroBuilder::from_block(self.block.to_vec())?;
        builder.grow(self.block.len() + STEP)?;
        self.block = builder.into_bytes().into();
        sink.set_block_size(tx, self.block.len() as u64)?;
        sink.write_block(tx, 0, self.block.clone())
    }

    /// Adds an entry; false if a micro ZAP cannot hold it.
    fn insert<S: BlockSink>(
        &mut self,
        sink: &S,
        tx: &Tx,
        name: &[u8],
        value: u64,
        hash: u64,
    ) -> Result<bool> {
        let capacity = Micro::new(&self.block)?.capacity() as usize;
        let full = self.index.len() >= capacity;
        let (cd, alike) = self.index.free_differentiator(hash);
        if name.len() > MAX_NAME
            || alike > MOST_OF_ONE_HASH
            || (full && self.block.len() + STEP > MAX_BLOCK)
        {
            return Ok(false);
        }
        let raw = encode_chunk(name, value, cd)?;
        if full {
            self.grow(sink, tx)?;
        }
        let Some(chunk) = Micro::new(&self.block)?.free_chunk(self.first_free) else {
            return Err(Error::corrupt("a micro ZAP has fewer free chunks than it counts"));
        };
        self.overwrite(sink, tx, chunk, &raw)?;
        self.first_free = chunk.saturating_add(1);
        self.index.insert(hash, cd, chunk);
        Ok(true)
    }
}

/// Makes the micro ZAP whose block is `block` a fat one with the same entries.
pub(super) fn upgrade<'a, S: BlockSink>(
    sink: &'a S,
    tx: &'a Tx,
    block: &Bytes,
) -> Result<fat::FatWriter<'a, S>> {
    let micro = Micro::new(block)?;
    let settings = micro.settings();
    fat::create(sink, tx, FAT_BLOCK_SHIFT, settings)?;
    let mut fat = fat::FatWriter::open(sink, tx)?;
    for entry in micro.entries() {
        let entry = entry?;
        let hash = settings.hash_name(entry.name);
        fat.take_over(StoredKey::Name(entry.name), &Value::of_u64(entry.value), hash, entry.cd)?;
    }
    Ok(fat)
}
