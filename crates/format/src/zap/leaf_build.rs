//! Leaves of fat ZAPs in the making: insert, change, remove, split.
//!
//! Chapter 04, sections 13 and 15. Invariant: after every call that succeeds the block is a leaf
//! that [`Leaf::check`] accepts; a call that answers [`Room::Full`] changed nothing.

use super::leaf::{
    ARRAY_BYTES, CHUNK, FLAG_SORTED, Geometry, HEADER, Leaf, LeafEntry, LeafHeader, MAGIC, NONE,
    TYPE_ARRAY, TYPE_ENTRY, TYPE_FREE,
};
use super::{LEAF_BLOCK, Value};
use crate::bytes::{le16, put, put_le64};
use crate::{Error, Result};

/// Whether there was room in the leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// Done; the number of the entry's chunk.
    Done(u16),
    /// Too few free chunks: split the leaf and try again.
    Full,
}

/// A key as a leaf stores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredKey<'a> {
    /// A name without its NUL.
    Name(&'a [u8]),
    /// Words.
    Words(&'a [u64]),
}

impl<'a> From<&'a [u8]> for StoredKey<'a> {
    fn from(name: &'a [u8]) -> Self {
        Self::Name(name)
    }
}

impl<'a> From<&'a str> for StoredKey<'a> {
    fn from(name: &'a str) -> Self {
        Self::Name(name.as_bytes())
    }
}

impl<'a> From<&'a [u64]> for StoredKey<'a> {
    fn from(words: &'a [u64]) -> Self {
        Self::Words(words)
    }
}

impl StoredKey<'_> {
    /// Bytes it takes when stored.
    pub fn stored_bytes(&self) -> usize {
        match self {
            Self::Name(name) => name.len() + 1,
            Self::Words(words) => words.len() * 8,
        }
    }

    /// The stored bytes and the length the entry gives.
    fn stored(&self) -> Result<(Vec<u8>, u16)> {
        let (bytes, len) = match self {
            Self::Name(name) => ([name, &[0][..]].concat(), name.len() + 1),
            Self::Words(words) => {
                (words.iter().flat_map(|w| w.to_be_bytes()).collect(), words.len())
            }
        };
        let len = u16::try_from(len).map_err(|_| bad("a key too long"))?;
        Ok((bytes, len))
    }
}

/// A leaf block that can be changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeafBuilder {
    data: Vec<u8>,
    geometry: Geometry,
    header: LeafHeader,
}

fn bad(reason: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new("fat ZAP leaf", reason)
}

fn short() -> Error {
    Error::truncated("fat ZAP leaf")
}

impl LeafBuilder {
    /// An empty leaf of `1 << block_shift` bytes for hashes that start with `prefix`. `sorted` is
    /// true in ZAPs that normalize names.
    pub fn new(block_shift: u32, prefix: u64, prefix_len: u16, sorted: bool) -> Result<Self> {
        let size = 1_usize.checked_shl(block_shift).unwrap_or(0);
        let geometry = Geometry::of(size)?;
        let mut data = vec![0; size];
        put_le64(&mut data, 0, LEAF_BLOCK).ok_or_else(short)?;
        put(&mut data, 24, &MAGIC.to_le_bytes()).ok_or_else(short)?;
        let slots = data.get_mut(HEADER..geometry.chunk_at(0)).ok_or_else(short)?;
        slots.fill(0xff);
        for chunk in 0..geometry.chunks {
            let next = if chunk + 1 == geometry.chunks { NONE } else { chunk + 1 };
            let at = geometry.chunk_at(chunk);
            put(&mut data, at, &[TYPE_FREE]).ok_or_else(short)?;
            put(&mut data, at + 22, &next.to_le_bytes()).ok_or_else(short)?;
        }
        let header = LeafHeader {
            prefix,
            free_chunks: geometry.chunks,
            entries: 0,
            prefix_len,
            free_list: 0,
            flags: if sorted { FLAG_SORTED } else { 0 },
        };
        let mut leaf = Self { data, geometry, header };
        leaf.write_header()?;
        Ok(leaf)
    }

    /// Goes on from an existing block, which is checked.
    pub fn from_block(data: Vec<u8>) -> Result<Self> {
        let leaf = Leaf::new(&data)?;
        leaf.check()?;
        let (geometry, header) = (leaf.geometry(), leaf.header());
        Ok(Self { data, geometry, header })
    }

    /// Goes on from an existing block without looking at every chunk: what a change comes across
    /// is checked, the rest is left as it is.
    pub fn resume(data: Vec<u8>) -> Result<Self> {
        let leaf = Leaf::new(&data)?;
        let (geometry, header) = (leaf.geometry(), leaf.header());
        if header.free_chunks > geometry.chunks || header.entries > geometry.chunks {
            return Err(bad(format!(
                "{} free chunks and {} entries in {} chunks",
                header.free_chunks, header.entries, geometry.chunks
            )));
        }
        Ok(Self { data, geometry, header })
    }

    /// The block.
    pub fn as_bytes(&self) -> &[u8] {
        &self.data
    }

    /// The block, given away.
    pub fn into_bytes(self) -> Vec<u8> {
        self.data
    }

    /// The header.
    pub fn header(&self) -> LeafHeader {
        self.header
    }

    /// Reads what is there.
    pub fn view(&self) -> Result<Leaf<'_>> {
        Leaf::new(&self.data)
    }

    fn write_header(&mut self) -> Result<()> {
        let header = self.header;
        put_le64(&mut self.data, 16, header.prefix).ok_or_else(short)?;
        let halves = [header.free_chunks, header.entries, header.prefix_len, header.free_list];
        for (index, half) in halves.iter().enumerate() {
            put(&mut self.data, 28 + 2 * index, &half.to_le_bytes()).ok_or_else(short)?;
        }
        put(&mut self.data, 36, &[header.flags]).ok_or_else(short)
    }

    fn put_in_chunk(&mut self, chunk: u16, at: usize, bytes: &[u8]) -> Result<()> {
        put(&mut self.data, self.geometry.chunk_at(chunk) + at, bytes).ok_or_else(short)
    }

    /// Chunks an entry of a key and a value of so many bytes takes.
    pub fn chunks_needed(key_bytes: usize, value_bytes: usize) -> usize {
        1 + key_bytes.div_ceil(ARRAY_BYTES) + value_bytes.div_ceil(ARRAY_BYTES)
    }

    fn take_chunk(&mut self) -> Result<u16> {
        let chunk = self.header.free_list;
        let at = self.geometry.chunk_at(chunk);
        if chunk >= self.geometry.chunks || self.data.get(at) != Some(&TYPE_FREE) {
            return Err(bad("the free list leads astray"));
        }
        self.header.free_list = le16(&self.data, at + 22).ok_or_else(short)?;
        let left = self.header.free_chunks.checked_sub(1);
        self.header.free_chunks = left.ok_or_else(|| bad("more free chunks than counted"))?;
        Ok(chunk)
    }

    fn free_chunk(&mut self, chunk: u16) -> Result<()> {
        let mut raw = [0; CHUNK];
        put(&mut raw, 0, &[TYPE_FREE]).ok_or_else(short)?;
        put(&mut raw, 22, &self.header.free_list.to_le_bytes()).ok_or_else(short)?;
        self.put_in_chunk(chunk, 0, &raw)?;
        self.header.free_list = chunk;
        if self.header.free_chunks >= self.geometry.chunks {
            return Err(bad("more chunks are freed than there are"));
        }
        self.header.free_chunks += 1;
        Ok(())
    }

    /// Stores `bytes` in fresh chunks and returns the first.
    fn put_array(&mut self, bytes: &[u8]) -> Result<u16> {
        let chunks =
            bytes.chunks(ARRAY_BYTES).map(|_| self.take_chunk()).collect::<Result<Vec<_>>>()?;
        for (index, piece) in bytes.chunks(ARRAY_BYTES).enumerate() {
            let chunk = chunks.get(index).copied().ok_or_else(short)?;
            let next = chunks.get(index + 1).copied().unwrap_or(NONE);
            let mut raw = [0; CHUNK];
            put(&mut raw, 0, &[TYPE_ARRAY]).ok_or_else(short)?;
            put(&mut raw, 1, piece).ok_or_else(short)?;
            put(&mut raw, 22, &next.to_le_bytes()).ok_or_else(short)?;
            self.put_in_chunk(chunk, 0, &raw)?;
        }
        Ok(chunks.first().copied().unwrap_or(NONE))
    }

    fn free_array(&mut self, first: u16) -> Result<()> {
        let mut next = first;
        for _ in 0..self.geometry.chunks {
            if next == NONE {
                return Ok(());
            }
            let chunk = next;
            let raw = self.view()?.chunk(chunk)?;
            if raw.first() != Some(&TYPE_ARRAY) {
                return Err(bad(format!("chunk {chunk} is no array")));
            }
            next = le16(raw, 22).ok_or_else(short)?;
            self.free_chunk(chunk)?;
        }
        Err(bad("an array is a circle"))
    }

    /// Byte offset of the link that the entry with `hash` and `cd` goes behind: its hash slot, or
    /// the next field of the last entry in the chain whose `cd` is not larger.
    fn link_for(&self, hash: u64, cd: u32) -> Result<usize> {
        let slot = self.geometry.slot(hash, self.header.prefix_len);
        let mut link = self.geometry.slot_at(slot);
        for entry in self.view()?.chain(slot) {
            let entry = entry?;
            if entry.cd > cd {
                break;
            }
            link = self.geometry.chunk_at(entry.chunk) + 2;
        }
        Ok(link)
    }

    fn link(&mut self, chunk: u16, hash: u64, cd: u32) -> Result<()> {
        let link = self.link_for(hash, cd)?;
        let next = le16(&self.data, link).ok_or_else(short)?;
        self.put_in_chunk(chunk, 2, &next.to_le_bytes())?;
        put(&mut self.data, link, &chunk.to_le_bytes()).ok_or_else(short)
    }

    /// The lowest collision differentiator no entry of `hash` has.
    pub fn free_differentiator(&self, hash: u64) -> Result<u32> {
        let leaf = self.view()?;
        let mut taken = Vec::new();
        leaf.find(hash, |entry| {
            taken.push(entry.cd);
            Ok(false)
        })?;
        taken.sort_unstable();
        let free = taken.iter().zip(0..).find(|(taken, wanted)| **taken != *wanted);
        Ok(free.map_or(u32::try_from(taken.len()).unwrap_or(u32::MAX), |(_, wanted)| wanted))
    }

    /// Adds an entry. The caller has made sure that the key is new and belongs here.
    pub fn insert(
        &mut self,
        key: StoredKey<'_>,
        value: &Value,
        hash: u64,
        cd: u32,
    ) -> Result<Room> {
        let (key_bytes, key_len) = key.stored()?;
        let needed = Self::chunks_needed(key_bytes.len(), value.raw().len());
        if needed > usize::from(self.geometry.chunks) {
            return Err(bad(format!("an entry of {needed} chunks")));
        }
        if needed > usize::from(self.header.free_chunks) {
            return Ok(Room::Full);
        }
        let chunk = self.take_chunk()?;
        let name_chunk = self.put_array(&key_bytes)?;
        let value_chunk = self.put_array(value.raw())?;
        let count = u16::try_from(value.count()).map_err(|_| bad("a value too long"))?;
        let mut raw = [0; CHUNK];
        put(&mut raw, 0, &[TYPE_ENTRY, value.integer_size()]).ok_or_else(short)?;
        for (index, half) in [NONE, name_chunk, key_len, value_chunk, count].iter().enumerate() {
            put(&mut raw, 2 + 2 * index, &half.to_le_bytes()).ok_or_else(short)?;
        }
        put(&mut raw, 12, &cd.to_le_bytes()).ok_or_else(short)?;
        put_le64(&mut raw, 16, hash).ok_or_else(short)?;
        self.put_in_chunk(chunk, 0, &raw)?;
        self.link(chunk, hash, cd)?;
        self.header.entries = self.header.entries.checked_add(1).ok_or_else(short)?;
        self.write_header()?;
        Ok(Room::Done(chunk))
    }

    /// Gives `entry` another value.
    pub fn set_value(&mut self, entry: &LeafEntry, value: &Value) -> Result<Room> {
        let old = usize::from(entry.value_count) * usize::from(entry.integer_size);
        let gain = old.div_ceil(ARRAY_BYTES) + usize::from(self.header.free_chunks);
        if value.raw().len().div_ceil(ARRAY_BYTES) > gain {
            return Ok(Room::Full);
        }
        let count = u16::try_from(value.count()).map_err(|_| bad("a value too long"))?;
        self.free_array(entry.value_chunk)?;
        let first = self.put_array(value.raw())?;
        self.put_in_chunk(entry.chunk, 1, &[value.integer_size()])?;
        self.put_in_chunk(entry.chunk, 8, &first.to_le_bytes())?;
        self.put_in_chunk(entry.chunk, 10, &count.to_le_bytes())?;
        self.write_header()?;
        Ok(Room::Done(entry.chunk))
    }

    /// Takes `entry` out.
    pub fn remove(&mut self, entry: &LeafEntry) -> Result<()> {
        let slot = self.geometry.slot(entry.hash, self.header.prefix_len);
        let mut link = self.geometry.slot_at(slot);
        for other in self.view()?.chain(slot) {
            let other = other?;
            if other.chunk == entry.chunk {
                put(&mut self.data, link, &other.next.to_le_bytes()).ok_or_else(short)?;
                self.free_array(other.value_chunk)?;
                self.free_array(other.name_chunk)?;
                self.free_chunk(other.chunk)?;
                self.header.entries = self.header.entries.saturating_sub(1);
                return self.write_header();
            }
            link = self.geometry.chunk_at(other.chunk) + 2;
        }
        Err(bad(format!("chunk {} is in no chain", entry.chunk)))
    }

    /// Splits the leaf by the next bit of the hash: keeps the entries where it is 0 and returns
    /// the leaf of the others.
    pub fn split(&mut self) -> Result<Self> {
        let bits = self.header.prefix_len + 1;
        if bits > 48 {
            return Err(bad("a prefix as long as the hash"));
        }
        let sorted = self.header.flags & FLAG_SORTED != 0;
        let prefix = self.header.prefix << 1;
        let mut upper = Self::new(self.geometry.shift, prefix | 1, bits, sorted)?;
        let mut entries = self.view()?.sorted_entries()?;
        // By chunk, as the entries came in: chains of equal `cd` keep that order.
        entries.sort_unstable_by_key(|entry| entry.chunk);
        (self.header.prefix, self.header.prefix_len) = (prefix, bits);
        self.write_header()?;
        let slots = HEADER..self.geometry.chunk_at(0);
        self.data.get_mut(slots).ok_or_else(short)?.fill(0xff);
        for entry in entries {
            if entry.hash >> (64 - bits) & 1 == 0 {
                self.link(entry.chunk, entry.hash, entry.cd)?;
            } else {
                upper.take_over(self, &entry)?;
            }
        }
        self.write_header()?;
        Ok(upper)
    }

    /// Moves an entry that is in no chain of `from` any more.
    fn take_over(&mut self, from: &mut Self, entry: &LeafEntry) -> Result<()> {
        let leaf = from.view()?;
        let value = leaf.value(entry)?;
        // Names and words are both stored as bytes: the length field alone tells them apart.
        let key_bytes = leaf.key_bytes(entry)?;
        let raw: [u8; CHUNK] =
            crate::bytes::array(leaf.chunk(entry.chunk)?, 0).ok_or_else(short)?;
        let chunk = self.take_chunk()?;
        let name_chunk = self.put_array(&key_bytes)?;
        let value_chunk = self.put_array(value.raw())?;
        self.put_in_chunk(chunk, 0, &raw)?;
        self.put_in_chunk(chunk, 4, &name_chunk.to_le_bytes())?;
        self.put_in_chunk(chunk, 8, &value_chunk.to_le_bytes())?;
        self.link(chunk, entry.hash, entry.cd)?;
        self.header.entries = self.header.entries.checked_add(1).ok_or_else(short)?;
        self.write_header()?;
        from.free_array(entry.name_chunk)?;
        from.free_array(entry.value_chunk)?;
        from.free_chunk(entry.chunk)?;
        from.header.entries = from.header.entries.saturating_sub(1);
        Ok(())
    }
}
