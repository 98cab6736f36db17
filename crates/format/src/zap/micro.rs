//! Micro ZAPs: one block of 64-byte chunks, each a short name and one integer.
//!
//! Chapter 04, section 11. Invariant: a view never reads outside its block, a name is at most 49
//! bytes, and what the builder makes is what OpenZFS would make of the same calls.

use super::{Cursor, HashWidth, KeySettings, MICRO_BLOCK, Normalization};
use crate::bytes::{le32, le64, put, put_le64, slice};
use crate::{Error, Result};

/// Bytes of the header and of every chunk.
pub const CHUNK: usize = 64;
/// Most bytes of a name without its NUL.
pub const MAX_NAME: usize = 49;
/// Largest micro block without the `large_microzap` feature.
pub const MAX_BLOCK: usize = 128 << 10;
/// Largest micro block with it.
pub const MAX_LARGE_BLOCK: usize = 1 << 20;

const NAME: usize = 14;

fn bad(reason: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new("micro ZAP", reason)
}

/// A micro ZAP block, read in place.
#[derive(Clone, Copy, Debug)]
pub struct Micro<'a> {
    data: &'a [u8],
    settings: KeySettings,
}

/// One entry of a micro ZAP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MicroEntry<'a> {
    /// Index of the chunk, the one after the header being 0.
    pub chunk: u32,
    /// Name without its NUL.
    pub name: &'a [u8],
    /// The value.
    pub value: u64,
    /// Tells apart entries of one hash.
    pub cd: u32,
}

impl<'a> Micro<'a> {
    /// A view of `data`, one whole block.
    pub fn new(data: &'a [u8]) -> Result<Self> {
        let short = || Error::truncated("micro ZAP");
        match le64(data, 0).ok_or_else(short)? {
            MICRO_BLOCK => {}
            other => return Err(bad(format!("block type {other:#x}"))),
        }
        if data.len() < 2 * CHUNK || data.len() > MAX_LARGE_BLOCK {
            return Err(bad(format!("a block of {} bytes", data.len())));
        }
        let salt = le64(data, 8).ok_or_else(short)?;
        let normalization = Normalization(le64(data, 16).ok_or_else(short)?);
        Ok(Self { data, settings: KeySettings { salt, normalization, flags: 0 } })
    }

    /// Salt and normalization.
    pub fn settings(&self) -> KeySettings {
        self.settings
    }

    /// Number of chunks, free ones included.
    pub fn capacity(&self) -> u32 {
        // At most 2^14 by the bound on the block.
        u32::try_from(self.data.len() / CHUNK).unwrap_or(0).saturating_sub(1)
    }

    /// The entry in `chunk`; `None` if it is free or does not exist.
    pub fn entry(&self, chunk: u32) -> Result<Option<MicroEntry<'a>>> {
        let start = (chunk as usize).checked_add(1).and_then(|at| at.checked_mul(CHUNK));
        let Some(raw) = start.and_then(|start| slice(self.data, start, CHUNK)) else {
            return Ok(None);
        };
        let text = raw.get(NAME..).unwrap_or(&[]);
        if text.first() == Some(&0) {
            return Ok(None);
        }
        let name = text
            .iter()
            .position(|byte| *byte == 0)
            .and_then(|end| text.get(..end))
            .ok_or_else(|| bad(format!("chunk {chunk} holds a name without an end")))?;
        let short = || Error::truncated("micro ZAP");
        Ok(Some(MicroEntry {
            chunk,
            name,
            value: le64(raw, 0).ok_or_else(short)?,
            cd: le32(raw, 8).ok_or_else(short)?,
        }))
    }

    /// The first free chunk from `next` on, going round.
    pub fn free_chunk(&self, next: u32) -> Option<u32> {
        let capacity = self.capacity();
        let from = next.min(capacity);
        let is_free = |chunk: &u32| self.data.get(chunk_offset(*chunk) + NAME) == Some(&0);
        (from..capacity).chain(0..from).find(is_free)
    }

    /// All entries in the order of their chunks.
    pub fn entries(&self) -> impl Iterator<Item = Result<MicroEntry<'a>>> + '_ {
        (0..self.capacity()).filter_map(|chunk| self.entry(chunk).transpose())
    }
}

/// Byte of the block at which `chunk` starts.
pub fn chunk_offset(chunk: u32) -> usize {
    (chunk as usize).saturating_add(1).saturating_mul(CHUNK)
}

/// The bytes of a chunk that holds an entry.
pub fn encode_chunk(name: &[u8], value: u64, cd: u32) -> Result<[u8; CHUNK]> {
    if name.is_empty() || name.len() > MAX_NAME || name.contains(&0) {
        return Err(bad("a name that does not fit a chunk"));
    }
    let mut raw = [0; CHUNK];
    put_le64(&mut raw, 0, value)
        .and_then(|()| put(&mut raw, 8, &cd.to_le_bytes()))
        .and_then(|()| put(&mut raw, NAME, name))
        .ok_or_else(|| Error::truncated("micro ZAP"))?;
    Ok(raw)
}

/// Where the entries of a micro ZAP lie, by hash: makes lookups quick and gives their order.
#[derive(Clone, Debug, Default)]
pub struct MicroIndex {
    settings: KeySettings,
    /// (hash, collision differentiator, chunk), ascending.
    rows: Vec<(u64, u32, u32)>,
}

impl MicroIndex {
    /// Hashes every name of `micro`. Fails on a name without an end.
    pub fn build(micro: &Micro<'_>) -> Result<Self> {
        let settings = micro.settings();
        let mut rows = micro
            .entries()
            .map(|entry| entry.map(|e| (settings.hash_name(e.name), e.cd, e.chunk)))
            .collect::<Result<Vec<_>>>()?;
        rows.sort_unstable();
        Ok(Self { settings, rows })
    }

    /// Salt and normalization of the ZAP.
    pub fn settings(&self) -> KeySettings {
        self.settings
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// There is no entry.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// (hash, collision differentiator, chunk) of the entry that is `index`-th in order.
    pub fn row(&self, index: usize) -> Option<(u64, u32, u32)> {
        self.rows.get(index).copied()
    }

    /// The chunks of entries with `hash`, lowest collision differentiator first.
    pub fn chunks_of(&self, hash: u64) -> impl Iterator<Item = u32> + '_ {
        let start = self.rows.partition_point(|row| row.0 < hash);
        self.rows.iter().skip(start).take_while(move |row| row.0 == hash).map(|row| row.2)
    }

    /// The lowest collision differentiator no entry of `hash` has, and how many entries there are.
    pub fn free_differentiator(&self, hash: u64) -> (u32, usize) {
        let start = self.rows.partition_point(|row| row.0 < hash);
        let rows = self.rows.iter().skip(start).take_while(|row| row.0 == hash);
        let (mut free, mut count) = (0, 0);
        for row in rows {
            // Rows ascend, so the first gap is where the running number stops.
            if row.1 == free {
                free += 1;
            }
            count += 1;
        }
        (free, count)
    }

    /// Adds the row of a new entry.
    pub fn insert(&mut self, hash: u64, cd: u32, chunk: u32) {
        let at = self.rows.partition_point(|row| (row.0, row.1) < (hash, cd));
        self.rows.insert(at, (hash, cd, chunk));
    }

    /// Takes out the row of the entry in `chunk`, whose hash is `hash`.
    pub fn remove(&mut self, hash: u64, chunk: u32) {
        let start = self.rows.partition_point(|row| row.0 < hash);
        let rows = self.rows.iter().enumerate().skip(start).take_while(|(_, row)| row.0 == hash);
        if let Some((at, _)) = rows.into_iter().find(|(_, row)| row.2 == chunk) {
            self.rows.remove(at);
        }
    }

    /// (hash, collision differentiator, chunk) of every entry at or after `cursor`, in order.
    pub fn from_cursor(&self, cursor: Cursor) -> &[(u64, u32, u32)] {
        match cursor.position(HashWidth::Bits28) {
            None => &[],
            Some(from) => {
                let start = self.rows.partition_point(|row| (row.0, row.1) < from);
                self.rows.get(start..).unwrap_or(&[])
            }
        }
    }
}

/// A micro ZAP block in the making.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MicroBuilder {
    data: Vec<u8>,
    /// Where the next free chunk is looked for first.
    next: u32,
}

impl MicroBuilder {
    /// An empty block of `size` bytes: a multiple of 512, at most [`MAX_LARGE_BLOCK`].
    pub fn new(size: usize, salt: u64, normalization: Normalization) -> Result<Self> {
        if size == 0 || !size.is_multiple_of(512) || size > MAX_LARGE_BLOCK {
            return Err(bad(format!("no block of {size} bytes")));
        }
        let mut data = vec![0; size];
        let short = || Error::truncated("micro ZAP");
        put_le64(&mut data, 0, MICRO_BLOCK).ok_or_else(short)?;
        put_le64(&mut data, 8, salt).ok_or_else(short)?;
        put_le64(&mut data, 16, normalization.0).ok_or_else(short)?;
        Ok(Self { data, next: 0 })
    }

    /// Goes on from an existing block.
    pub fn from_block(data: Vec<u8>) -> Result<Self> {
        Micro::new(&data)?;
        Ok(Self { data, next: 0 })
    }

    /// The block, given away.
    pub fn into_bytes(self) -> Vec<u8> {
        self.data
    }

    /// Reads what is there.
    pub fn view(&self) -> Result<Micro<'_>> {
        Micro::new(&self.data)
    }

    /// Adds zeroed chunks up to `size` bytes; never shrinks.
    pub fn grow(&mut self, size: usize) -> Result<()> {
        if !size.is_multiple_of(512) || size > MAX_LARGE_BLOCK {
            return Err(bad(format!("no block of {size} bytes")));
        }
        self.data.resize(size.max(self.data.len()), 0);
        Ok(())
    }

    /// Puts an entry into a free chunk and returns its index; `None` if all are in use.
    pub fn insert(&mut self, name: &[u8], value: u64, cd: u32) -> Result<Option<u32>> {
        let raw = encode_chunk(name, value, cd)?;
        let Some(chunk) = self.view()?.free_chunk(self.next) else { return Ok(None) };
        let filled = put(&mut self.data, chunk_offset(chunk), &raw);
        filled.ok_or_else(|| Error::truncated("micro ZAP"))?;
        self.next = chunk.saturating_add(1);
        Ok(Some(chunk))
    }
}
