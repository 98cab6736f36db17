//! ZAP objects: lookups by name or words, listing in the order of OpenZFS, and changes.
//!
//! Chapter 04, sections 10-16. Invariant: whatever the blocks say, a lookup reads at most one block
//! of pointer table and one leaf, and a listing goes forward through the hashes without end only
//! if the object has leaves without end; it holds one leaf at a time.

mod iterate;
mod source;
mod write;

#[cfg(test)]
mod tests;
#[cfg(test)]
mod write_tests;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use cenote_format::bytes::le64;
use cenote_format::zap::normalize::Matcher;
use cenote_format::zap::{
    FatHeader, KeySettings, Kind, Leaf, LeafEntry, MatchKind, Micro, MicroEntry, MicroIndex,
};

use crate::object::Object;
use crate::{Error, Result};

pub use cenote_format::zap::{Cursor, Value};
pub use iterate::{Entries, Entry, Key};
pub use source::{BlockSink, BlockSource};
pub use write::{
    EntryChange, NewFat, add, clear, create, create_fat, create_filled, filled_block_size, insert,
    insert_u64, int_name, modify, ready_to_change, remove, remove_normalized, update, update_u64,
};

/// Lookups in one micro ZAP before its names are indexed; fewer are quicker by looking at all.
const INDEX_AFTER: u32 = 12;

/// An open ZAP. Cheap to clone; keep it while many names are looked up.
#[derive(Clone)]
pub struct Zap<S = Object> {
    source: S,
    body: Body,
}

#[derive(Clone)]
enum Body {
    Micro(Arc<MicroBody>),
    Fat(Arc<FatBody>),
}

struct MicroBody {
    block: Bytes,
    lookups: AtomicU32,
    index: OnceLock<MicroIndex>,
}

struct FatBody {
    header: FatHeader,
    /// Block 0: holds the pointer table until that moves out.
    block: Bytes,
}

/// What a lookup that normalizes found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The name as it is stored.
    pub name: Vec<u8>,
    /// Its value.
    pub value: Value,
}

impl<S: BlockSource> Zap<S> {
    /// Reads the header of the ZAP in `source`.
    pub fn open(source: S) -> Result<Self> {
        let body = open_body(&source).map_err(|error| source.named(error))?;
        Ok(Self { source, body })
    }

    /// Where the blocks come from.
    pub fn source(&self) -> &S {
        &self.source
    }

    /// Micro or fat.
    pub fn kind(&self) -> Kind {
        match self.body {
            Body::Micro(_) => Kind::Micro,
            Body::Fat(_) => Kind::Fat,
        }
    }

    /// The header, if the ZAP is a fat one.
    pub fn fat_header(&self) -> Option<&FatHeader> {
        match &self.body {
            Body::Micro(_) => None,
            Body::Fat(fat) => Some(&fat.header),
        }
    }

    /// Salt, normalization and flags.
    pub fn settings(&self) -> KeySettings {
        match &self.body {
            Body::Micro(micro) => micro.view().map(|view| view.settings()).unwrap_or_default(),
            Body::Fat(fat) => fat.header.settings,
        }
    }

    /// Number of entries; of a fat ZAP what its header says.
    pub fn count(&self) -> Result<u64> {
        match &self.body {
            Body::Micro(micro) => Ok(self.named(micro.index())?.len() as u64),
            Body::Fat(fat) => Ok(fat.header.entries),
        }
    }

    /// The value of exactly this name (without NUL).
    pub fn lookup(&self, name: &[u8]) -> Result<Option<Value>> {
        self.named(self.find_exact(name))
    }

    /// The value of exactly this name, which must be one 64-bit integer.
    pub fn lookup_u64(&self, name: &str) -> Result<Option<u64>> {
        let Some(value) = self.lookup(name.as_bytes())? else { return Ok(None) };
        match value.as_u64() {
            Some(value) => Ok(Some(value)),
            None => Err(self.source.named(Error::corrupt(format!(
                "the value of '{name}' is {} integers of {} bytes, not one of 8",
                value.count(),
                value.integer_size()
            )))),
        }
    }

    /// Like [`Self::lookup_u64`]; [`crate::ErrorKind::NotFound`] if there is no such name.
    pub fn require_u64(&self, name: &str) -> Result<u64> {
        let absent = || Error::not_found(format!("the ZAP has no entry '{name}'"));
        self.lookup_u64(name)?.ok_or_else(|| self.source.named(absent()))
    }

    /// The entry of a set of integers: the name is `number` in hexadecimal.
    pub fn lookup_int(&self, number: u64) -> Result<Option<Value>> {
        self.lookup(format!("{number:x}").as_bytes())
    }

    /// The entry that matches `name` as `kind` says; of several the one OpenZFS finds.
    pub fn lookup_normalized(&self, name: &[u8], kind: MatchKind) -> Result<Option<Found>> {
        self.named(self.find_normalized(name, kind))
    }

    /// The value of a key of words.
    pub fn lookup_words(&self, words: &[u64]) -> Result<Option<Value>> {
        self.named(self.find_words(words))
    }

    /// The entries at and after `cursor`, in ascending (hash, collision differentiator).
    pub fn iterate(&self, cursor: Cursor) -> Entries<'_, S> {
        Entries::new(self, cursor)
    }

    /// All entries.
    pub fn entries(&self) -> Entries<'_, S> {
        self.iterate(Cursor::START)
    }

    fn named<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(|error| self.source.named(error))
    }

    fn find_exact(&self, name: &[u8]) -> Result<Option<Value>> {
        match &self.body {
            Body::Micro(micro) => {
                Ok(micro.find_exact(name)?.map(|entry| Value::of_u64(entry.value)))
            }
            Body::Fat(fat) => {
                fat.expect_words(false)?;
                let hash = fat.header.settings.hash_name(name);
                let (_, block) = fat.leaf(&self.source, hash)?;
                let leaf = Leaf::new(&block)?;
                let found = leaf.find(hash, |entry| leaf.name_is(entry, name))?;
                Ok(found.map(|entry| leaf.value(&entry)).transpose()?)
            }
        }
    }

    fn find_normalized(&self, name: &[u8], kind: MatchKind) -> Result<Option<Found>> {
        let settings = self.settings();
        let matcher = Matcher::new(name, kind, settings.normalization);
        let hash = settings.hash_name(name);
        match &self.body {
            Body::Micro(micro) => {
                let view = micro.view()?;
                for chunk in micro.index()?.chunks_of(hash) {
                    if let Some(entry) = view.entry(chunk)?
                        && matcher.matches(entry.name)
                    {
                        let value = Value::of_u64(entry.value);
                        return Ok(Some(Found { name: entry.name.to_vec(), value }));
                    }
                }
                Ok(None)
            }
            Body::Fat(fat) => {
                fat.expect_words(false)?;
                let (_, block) = fat.leaf(&self.source, hash)?;
                let leaf = Leaf::new(&block)?;
                let matches = |entry: &LeafEntry| Ok(matcher.matches(&leaf.name(entry)?));
                let Some(entry) = leaf.find_lowest(hash, matches)? else { return Ok(None) };
                let name = leaf.name(&entry)?.to_vec();
                Ok(Some(Found { name, value: leaf.value(&entry)? }))
            }
        }
    }

    fn find_words(&self, words: &[u64]) -> Result<Option<Value>> {
        let Body::Fat(fat) = &self.body else {
            return Err(Error::invalid("the keys of a micro ZAP are names, not words"));
        };
        fat.expect_words(true)?;
        let hash = fat.header.settings.hash_words(words);
        let (_, block) = fat.leaf(&self.source, hash)?;
        let leaf = Leaf::new(&block)?;
        let found = leaf.find(hash, |entry| leaf.words_are(entry, words))?;
        Ok(found.map(|entry| leaf.value(&entry)).transpose()?)
    }
}

fn open_body<S: BlockSource>(source: &S) -> Result<Body> {
    let block = source.read_block(0)?;
    match Kind::of(&block) {
        Some(Kind::Micro) => {
            Micro::new(&block)?;
            let (lookups, index) = (AtomicU32::new(0), OnceLock::new());
            Ok(Body::Micro(Arc::new(MicroBody { block, lookups, index })))
        }
        Some(Kind::Fat) => {
            let header = FatHeader::decode(&block)?;
            let table = header.table;
            if table.first_block.saturating_add(table.blocks) > source.block_count() {
                return Err(Error::corrupt(format!(
                    "the ZAP's pointer table of {} blocks from block {} on lies beyond the object",
                    table.blocks, table.first_block
                )));
            }
            Ok(Body::Fat(Arc::new(FatBody { header, block })))
        }
        None => Err(Error::corrupt(match le64(&block, 0) {
            Some(kind) => format!("no ZAP: block 0 starts with {kind:#x}"),
            None => "no ZAP: block 0 is empty".to_owned(),
        })),
    }
}

impl MicroBody {
    fn view(&self) -> Result<Micro<'_>> {
        Ok(Micro::new(&self.block)?)
    }

    fn index(&self) -> Result<&MicroIndex> {
        if let Some(index) = self.index.get() {
            return Ok(index);
        }
        let built = MicroIndex::build(&self.view()?)?;
        Ok(self.index.get_or_init(|| built))
    }

    fn find_exact(&self, name: &[u8]) -> Result<Option<MicroEntry<'_>>> {
        let view = self.view()?;
        let hash = |index: &MicroIndex| index.settings().hash_name(name);
        let first = |chunks: &mut dyn Iterator<Item = u32>| {
            for chunk in chunks {
                if let Some(entry) = view.entry(chunk)?.filter(|entry| entry.name == name) {
                    return Ok(Some(entry));
                }
            }
            Ok(None)
        };
        if self.index.get().is_none() {
            // Who changes a ZAP has its index already.
            let asked =
                write::recent::look(&self.block, |index| first(&mut index.chunks_of(hash(index))));
            if let Some(found) = asked {
                return found;
            }
            if self.lookups.fetch_add(1, Ordering::Relaxed) < INDEX_AFTER {
                return first(&mut (0..view.capacity()));
            }
        }
        let index = self.index()?;
        first(&mut index.chunks_of(hash(index)))
    }
}

impl FatBody {
    fn expect_words(&self, wanted: bool) -> Result<()> {
        match (self.header.settings.has_word_keys(), wanted) {
            (true, false) => Err(Error::invalid("the keys of this ZAP are words, not names")),
            (false, true) => Err(Error::invalid("the keys of this ZAP are names, not words")),
            _ => Ok(()),
        }
    }

    /// The pointer table's entry at `index`: the number of a leaf's block.
    fn pointer<S: BlockSource>(&self, source: &S, index: u64) -> Result<u64> {
        let slot = self.header.slot_of_index(index);
        let pointer = match slot.block {
            0 => le64(&self.block, slot.offset),
            id => le64(&source.read_block(id)?, slot.offset),
        };
        pointer.ok_or_else(|| Error::corrupt("the ZAP's pointer table ends early"))
    }

    /// Number and bytes of the leaf for `hash`, checked to be that leaf.
    fn leaf<S: BlockSource>(&self, source: &S, hash: u64) -> Result<(u64, Bytes)> {
        let id = self.pointer(source, self.header.index_of(hash))?;
        if id == 0 || id >= source.block_count() {
            return Err(Error::corrupt(format!(
                "the ZAP's pointer for hash {hash:#x} leads to block {id} of {}",
                source.block_count()
            )));
        }
        let block = source.read_block(id)?;
        let leaf = Leaf::new(&block)
            .map_err(|error| Error::from(error).at(|place| place.block = Some((0, id))))?;
        let prefix_len = u32::from(leaf.header().prefix_len);
        if prefix_len > self.header.table.shift || !leaf.owns(hash) {
            return Err(Error::corrupt(format!(
                "the ZAP's pointer for hash {hash:#x} leads to the leaf of prefix {:#x}/{prefix_len}",
                leaf.header().prefix
            ))
            .at(|place| place.block = Some((0, id))));
        }
        Ok((id, block))
    }
}
