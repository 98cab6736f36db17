//! Leaves of fat ZAPs, read in place.
//!
//! Chapter 04, section 13. A leaf is a hash table of chains of 24-byte chunks. Invariant: no walk
//! takes more steps than the leaf has chunks, so a chain that bites its tail is an error.

use smallvec::SmallVec;

use super::{LEAF_BLOCK, Value, fat};
use crate::bytes::{array, le16, le32, le64, slice};
use crate::{Error, Result};

/// Magic number of a leaf.
pub const MAGIC: u32 = 0x02ab_1eaf;
/// Bytes of the header.
pub const HEADER: usize = 48;
/// Bytes of a chunk.
pub const CHUNK: usize = 24;
/// Bytes of name or value in an array chunk.
pub const ARRAY_BYTES: usize = 21;
/// The chunk number that means none.
pub const NONE: u16 = 0xffff;
/// Leaf flag: chains are in ascending order of the collision differentiator.
pub const FLAG_SORTED: u8 = 1;

/// First byte of a chunk of name or value bytes.
pub const TYPE_ARRAY: u8 = 251;
/// First byte of an entry chunk.
pub const TYPE_ENTRY: u8 = 252;
/// First byte of a free chunk.
pub const TYPE_FREE: u8 = 253;

fn bad(reason: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new("fat ZAP leaf", reason)
}

fn short() -> Error {
    Error::truncated("fat ZAP leaf")
}

/// What follows from a leaf's size: how many hash slots and chunks it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// log2 of the block size.
    pub shift: u32,
    /// Hash slots, a power of two.
    pub slots: usize,
    /// Chunks.
    pub chunks: u16,
}

impl Geometry {
    /// The geometry of a leaf of `size` bytes.
    pub fn of(size: usize) -> Result<Self> {
        let shift = fat::block_shift(size)?;
        let slots = size / 32;
        let chunks = ((size - 2 * slots) / CHUNK).saturating_sub(2);
        Ok(Self { shift, slots, chunks: u16::try_from(chunks).map_err(|_| short())? })
    }

    /// The hash slot of `hash` in a leaf whose prefix is `prefix_len` bits long.
    pub fn slot(&self, hash: u64, prefix_len: u16) -> usize {
        let log = self.shift - 5;
        let rest = hash.checked_shl(u32::from(prefix_len)).unwrap_or(0);
        usize::try_from(rest >> (64 - log)).unwrap_or(0)
    }

    /// Byte offset of hash slot `slot`.
    pub fn slot_at(&self, slot: usize) -> usize {
        HEADER + 2 * slot
    }

    /// Byte offset of `chunk`.
    pub fn chunk_at(&self, chunk: u16) -> usize {
        HEADER + 2 * self.slots + CHUNK * usize::from(chunk)
    }
}

/// The variable fields of a leaf's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeafHeader {
    /// The top `prefix_len` bits of every hash in the leaf, as a number.
    pub prefix: u64,
    /// Free chunks.
    pub free_chunks: u16,
    /// Entries.
    pub entries: u16,
    /// Length of the prefix in bits.
    pub prefix_len: u16,
    /// First free chunk or [`NONE`].
    pub free_list: u16,
    /// [`FLAG_SORTED`].
    pub flags: u8,
}

/// An entry chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeafEntry {
    /// Number of the chunk.
    pub chunk: u16,
    /// Bytes of one integer of the value: 1, 2, 4 or 8.
    pub integer_size: u8,
    /// Next entry of the hash chain or [`NONE`].
    pub next: u16,
    /// First chunk of the name.
    pub name_chunk: u16,
    /// Bytes of the name with its NUL, or words of the key.
    pub name_len: u16,
    /// First chunk of the value or [`NONE`].
    pub value_chunk: u16,
    /// Integers of the value.
    pub value_count: u16,
    /// Tells apart entries of one hash.
    pub cd: u32,
    /// The hash, cut to the width of the ZAP.
    pub hash: u64,
}

/// A leaf block.
#[derive(Clone, Copy, Debug)]
pub struct Leaf<'a> {
    data: &'a [u8],
    geometry: Geometry,
    header: LeafHeader,
}

impl<'a> Leaf<'a> {
    /// A view of `data`, one whole block.
    pub fn new(data: &'a [u8]) -> Result<Self> {
        let geometry = Geometry::of(data.len())?;
        let kind = le64(data, 0).ok_or_else(short)?;
        let magic = le32(data, 24).ok_or_else(short)?;
        if kind != LEAF_BLOCK || magic != MAGIC {
            return Err(bad(format!("block type {kind:#x}, magic {magic:#x}")));
        }
        let header = LeafHeader {
            prefix: le64(data, 16).ok_or_else(short)?,
            free_chunks: le16(data, 28).ok_or_else(short)?,
            entries: le16(data, 30).ok_or_else(short)?,
            prefix_len: le16(data, 32).ok_or_else(short)?,
            free_list: le16(data, 34).ok_or_else(short)?,
            flags: data.get(36).copied().ok_or_else(short)?,
        };
        let top = header.prefix.checked_shr(u32::from(header.prefix_len));
        if header.prefix_len > 48 || top != Some(0) {
            return Err(bad(format!("prefix {:#x}/{}", header.prefix, header.prefix_len)));
        }
        Ok(Self { data, geometry, header })
    }

    /// Sizes.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// The header.
    pub fn header(&self) -> LeafHeader {
        self.header
    }

    /// Whether entries with `hash` belong into this leaf.
    pub fn owns(&self, hash: u64) -> bool {
        hash.checked_shr(64 - u32::from(self.header.prefix_len)).unwrap_or(0) == self.header.prefix
    }

    /// The first hash beyond those of this leaf; `None` if it owns the last one.
    pub fn end(&self) -> Option<u64> {
        let bits = u32::from(self.header.prefix_len);
        let next = self.header.prefix.checked_add(1)?;
        if bits == 0 || next >> bits != 0 { None } else { next.checked_shl(64 - bits) }
    }

    /// The 24 bytes of `chunk`.
    pub fn chunk(&self, chunk: u16) -> Result<&'a [u8]> {
        if chunk >= self.geometry.chunks {
            return Err(bad(format!("chunk {chunk} of {}", self.geometry.chunks)));
        }
        slice(self.data, self.geometry.chunk_at(chunk), CHUNK).ok_or_else(short)
    }

    /// The entry in `chunk`.
    pub fn entry(&self, chunk: u16) -> Result<LeafEntry> {
        let raw: [u8; CHUNK] = array(self.chunk(chunk)?, 0).ok_or_else(short)?;
        let [kind, integer_size, ..] = raw;
        if kind != TYPE_ENTRY {
            return Err(bad(format!("chunk {chunk} has type {kind}, not an entry's")));
        }
        let half = |at| le16(&raw, at).ok_or_else(short);
        Ok(LeafEntry {
            chunk,
            integer_size,
            next: half(2)?,
            name_chunk: half(4)?,
            name_len: half(6)?,
            value_chunk: half(8)?,
            value_count: half(10)?,
            cd: le32(&raw, 12).ok_or_else(short)?,
            hash: le64(&raw, 16).ok_or_else(short)?,
        })
    }

    /// The entries chained from hash slot `slot`.
    pub fn chain(&self, slot: usize) -> Chain<'a> {
        let next = le16(self.data, self.geometry.slot_at(slot)).unwrap_or(NONE);
        Chain { leaf: *self, next, steps: 0 }
    }

    /// The first entry with `hash` for which `matches` is true.
    pub fn find(
        &self,
        hash: u64,
        mut matches: impl FnMut(&LeafEntry) -> Result<bool>,
    ) -> Result<Option<LeafEntry>> {
        for entry in self.chain(self.geometry.slot(hash, self.header.prefix_len)) {
            let entry = entry?;
            if entry.hash == hash && matches(&entry)? {
                return Ok(Some(entry));
            }
        }
        Ok(None)
    }

    /// Like [`Self::find`], but of several matches the one with the lowest `cd`.
    pub fn find_lowest(
        &self,
        hash: u64,
        mut matches: impl FnMut(&LeafEntry) -> Result<bool>,
    ) -> Result<Option<LeafEntry>> {
        let mut best: Option<LeafEntry> = None;
        self.find(hash, |entry| {
            if best.is_none_or(|best| entry.cd < best.cd) && matches(entry)? {
                best = Some(*entry);
            }
            Ok(false)
        })?;
        Ok(best)
    }

    /// All entries in ascending (hash, collision differentiator).
    pub fn sorted_entries(&self) -> Result<Vec<LeafEntry>> {
        let limit = usize::from(self.geometry.chunks);
        let mut entries = Vec::with_capacity(usize::from(self.header.entries).min(limit));
        for slot in 0..self.geometry.slots {
            for entry in self.chain(slot) {
                // Chains that share chunks would multiply the entries.
                if entries.len() >= limit {
                    return Err(bad("hash chains are joined"));
                }
                entries.push(entry?);
            }
        }
        entries.sort_unstable_by_key(|entry| (entry.hash, entry.cd));
        Ok(entries)
    }

    /// The pieces of the `len` bytes chained from `first`.
    fn pieces(&self, first: u16, len: usize) -> impl Iterator<Item = Result<&'a [u8]>> + '_ {
        let (mut next, mut left) = (first, len);
        let too_long = len > usize::from(self.geometry.chunks) * ARRAY_BYTES;
        std::iter::from_fn(move || {
            if left == 0 {
                return None;
            }
            let piece = if too_long {
                Err(bad(format!("an array of {len} bytes")))
            } else {
                self.piece(next, left)
            };
            match piece {
                Ok((bytes, following)) => {
                    left -= bytes.len();
                    next = following;
                    Some(Ok(bytes))
                }
                Err(error) => {
                    left = 0;
                    Some(Err(error))
                }
            }
        })
    }

    fn piece(&self, chunk: u16, left: usize) -> Result<(&'a [u8], u16)> {
        let raw = self.chunk(chunk)?;
        if raw.first() != Some(&TYPE_ARRAY) {
            return Err(bad(format!("chunk {chunk} is in the middle of an array, but not of it")));
        }
        let bytes = slice(raw, 1, left.min(ARRAY_BYTES)).ok_or_else(short)?;
        Ok((bytes, le16(raw, 22).ok_or_else(short)?))
    }

    /// Whether the name of `entry` is `wanted` (without NUL), byte for byte.
    pub fn name_is(&self, entry: &LeafEntry, wanted: &[u8]) -> Result<bool> {
        if usize::from(entry.name_len) != wanted.len() + 1 {
            return Ok(false);
        }
        let mut rest = wanted;
        for piece in self.pieces(entry.name_chunk, wanted.len()) {
            let piece = piece?;
            match rest.strip_prefix(piece) {
                Some(tail) => rest = tail,
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Whether the key of `entry` is `words`.
    pub fn words_are(&self, entry: &LeafEntry, words: &[u64]) -> Result<bool> {
        Ok(usize::from(entry.name_len) == words.len() && self.words(entry)?.as_slice() == words)
    }

    /// The name of `entry` without its NUL.
    pub fn name(&self, entry: &LeafEntry) -> Result<SmallVec<[u8; 32]>> {
        let mut name = self.bytes(entry.name_chunk, usize::from(entry.name_len))?;
        if name.pop() != Some(0) || name.is_empty() || name.contains(&0) {
            return Err(bad(format!("the name of entry {} is no string", entry.chunk)));
        }
        Ok(name)
    }

    /// The key of `entry` as words.
    pub fn words(&self, entry: &LeafEntry) -> Result<SmallVec<[u64; 4]>> {
        let raw: SmallVec<[u8; 32]> =
            self.bytes(entry.name_chunk, usize::from(entry.name_len) * 8)?;
        let word = |one: &[u8]| one.iter().fold(0, |sum, byte| (sum << 8) | u64::from(*byte));
        Ok(raw.chunks_exact(8).map(word).collect())
    }

    /// The value of `entry`.
    pub fn value(&self, entry: &LeafEntry) -> Result<Value> {
        let len = usize::from(entry.value_count) * usize::from(entry.integer_size);
        Value::from_raw(entry.integer_size, self.bytes(entry.value_chunk, len)?)
    }

    /// The stored bytes of the key of `entry`, whatever they mean: the whole chain,
    /// padded with the zeros of its last chunk.
    pub(super) fn key_bytes(&self, entry: &LeafEntry) -> Result<Vec<u8>> {
        let (mut out, mut next) = (Vec::new(), entry.name_chunk);
        for _ in 0..self.geometry.chunks {
            if next == NONE {
                return Ok(out);
            }
            let (bytes, following) = self.piece(next, ARRAY_BYTES)?;
            out.extend_from_slice(bytes);
            next = following;
        }
        Err(bad("a name is a circle"))
    }

    fn bytes<A: smallvec::Array<Item = u8>>(&self, first: u16, len: usize) -> Result<SmallVec<A>> {
        let mut out = SmallVec::new();
        for piece in self.pieces(first, len) {
            out.extend_from_slice(piece?);
        }
        Ok(out)
    }

    /// Looks at every chunk: counts, free list, arrays, hashes. For checkers; reading needs it not.
    pub fn check(&self) -> Result<()> {
        let entries = self.sorted_entries()?;
        if entries.len() != usize::from(self.header.entries) {
            return Err(bad(format!(
                "{} entries where the header says {}",
                entries.len(),
                self.header.entries
            )));
        }
        let mut free = 0;
        let mut next = self.header.free_list;
        while next != NONE {
            let raw = self.chunk(next)?;
            if raw.first() != Some(&TYPE_FREE) || free >= self.geometry.chunks {
                return Err(bad(format!("chunk {next} is in the free list, but not free")));
            }
            free += 1;
            next = le16(raw, 22).ok_or_else(short)?;
        }
        if free != self.header.free_chunks {
            return Err(bad(format!(
                "{free} free chunks where the header says {}",
                self.header.free_chunks
            )));
        }
        match entries.iter().find(|entry| !self.owns(entry.hash)) {
            Some(stray) => Err(bad(format!("hash {:#x} does not belong here", stray.hash))),
            None => Ok(()),
        }
    }
}

/// Walks one hash chain.
#[derive(Clone, Debug)]
pub struct Chain<'a> {
    leaf: Leaf<'a>,
    next: u16,
    steps: u16,
}

impl Iterator for Chain<'_> {
    type Item = Result<LeafEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.next == NONE {
            return None;
        }
        if self.steps >= self.leaf.geometry.chunks {
            self.next = NONE;
            return Some(Err(bad("a hash chain is a circle")));
        }
        self.steps += 1;
        let entry = self.leaf.entry(self.next);
        self.next = entry.as_ref().map_or(NONE, |entry| entry.next);
        Some(entry)
    }
}
