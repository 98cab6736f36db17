//! Listing a ZAP from a cursor on, leaf by leaf.
//!
//! Chapter 04, section 16. Invariant: the hash range of every leaf visited starts where the one
//! before ended, so the listing ends; only one leaf is held.

use bytes::Bytes;
use cenote_format::zap::{Cursor, HashWidth, Leaf, LeafEntry, Value};
use smallvec::SmallVec;

use super::{BlockSource, Body, FatBody, MicroBody, Zap};
use crate::Result;

/// Leaves asked for ahead of the one being listed.
const AHEAD: usize = 8;
/// Table entries looked at to find them.
const LOOK_AHEAD: u64 = 256;

/// The key of an entry.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    /// A name without its NUL.
    Name(SmallVec<[u8; 32]>),
    /// Words.
    Words(SmallVec<[u64; 4]>),
}

impl Key {
    /// The name; empty for words.
    pub fn name(&self) -> &[u8] {
        match self {
            Self::Name(name) => name,
            Self::Words(_) => &[],
        }
    }

    /// The words; empty for a name.
    pub fn words(&self) -> &[u64] {
        match self {
            Self::Name(_) => &[],
            Self::Words(words) => words,
        }
    }
}

/// One entry of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its key.
    pub key: Key,
    /// Its value.
    pub value: Value,
    /// Hash of the key, cut to the width of the ZAP.
    pub hash: u64,
    /// Tells apart entries of one hash.
    pub cd: u32,
    /// Where a listing that starts with this entry starts.
    pub cursor: Cursor,
    /// Where a listing that goes on behind it starts.
    pub next: Cursor,
}

impl Entry {
    /// The name without its NUL; empty if the key is words.
    pub fn name(&self) -> &[u8] {
        self.key.name()
    }

    fn new(key: Key, value: Value, hash: u64, cd: u32, width: HashWidth) -> Self {
        let (cursor, next) = (Cursor::at(hash, cd, width), Cursor::after(hash, cd, width));
        Self { key, value, hash, cd, cursor, next }
    }
}

/// Entries of a ZAP in order; ends after the first error.
pub struct Entries<'a, S> {
    zap: &'a Zap<S>,
    /// First position not yet listed; none at the end.
    from: Option<(u64, u32)>,
    page: Page,
    /// First index of the pointer table whose leaf has not been asked for ahead.
    ahead: u64,
}

enum Page {
    None,
    /// Index of the next row of a micro ZAP's index.
    Micro(usize),
    Leaf {
        block: Bytes,
        rest: std::vec::IntoIter<LeafEntry>,
        end: Option<u64>,
    },
}

impl<'a, S: BlockSource> Entries<'a, S> {
    pub(super) fn new(zap: &'a Zap<S>, cursor: Cursor) -> Self {
        Self { zap, from: cursor.position(zap.settings().width()), page: Page::None, ahead: 0 }
    }

    fn micro(&mut self, micro: &MicroBody) -> Result<Option<Entry>> {
        let (view, index) = (micro.view()?, micro.index()?);
        let width = HashWidth::Bits28;
        let row = match (&self.page, self.from) {
            (Page::Micro(row), _) => *row,
            (_, Some((hash, cd))) => {
                let rest = index.from_cursor(Cursor::at(hash, cd, width)).len();
                index.len().saturating_sub(rest)
            }
            (_, None) => return Ok(None),
        };
        self.page = Page::Micro(row + 1);
        let Some((hash, cd, chunk)) = index.row(row) else { return Ok(None) };
        let Some(entry) = view.entry(chunk)? else { return Ok(None) };
        let key = Key::Name(SmallVec::from_slice(entry.name));
        Ok(Some(Entry::new(key, Value::of_u64(entry.value), hash, cd, width)))
    }

    fn fat(&mut self, fat: &FatBody) -> Result<Option<Entry>> {
        loop {
            if let Page::Leaf { block, rest, end } = &mut self.page {
                if let Some(entry) = rest.next() {
                    return decode(fat, &Leaf::new(block)?, &entry).map(Some);
                }
                self.from = end.map(|hash| (hash, 0));
                self.page = Page::None;
            }
            let Some((hash, cd)) = self.from else { return Ok(None) };
            let (id, block) = fat.leaf(&self.zap.source, hash)?;
            let leaf = Leaf::new(&block)?;
            let mut entries = leaf
                .sorted_entries()
                .map_err(|e| crate::Error::from(e).at(|place| place.block = Some((0, id))))?;
            let listed = entries.partition_point(|entry| (entry.hash, entry.cd) < (hash, cd));
            entries.drain(..listed);
            let end = leaf.end();
            if let Some(end) = end {
                self.look_ahead(fat, end);
            }
            self.page = Page::Leaf { block, rest: entries.into_iter(), end };
        }
    }

    /// Asks for the leaves that come next. Only a hint: errors will show when they are read.
    fn look_ahead(&mut self, fat: &FatBody, hash: u64) {
        let first = fat.header.index_of(hash);
        let last = fat.header.pointers().min(first.saturating_add(LOOK_AHEAD));
        let (mut leaves, mut before) = (0, 0);
        for index in first..last {
            let Ok(id) = fat.pointer(&self.zap.source, index) else { return };
            if id == before {
                continue;
            }
            if leaves == AHEAD {
                return;
            }
            (leaves, before) = (leaves + 1, id);
            if index >= self.ahead {
                self.ahead = index + 1;
                self.zap.source.prefetch_block(id);
            }
        }
    }
}

fn decode(fat: &FatBody, leaf: &Leaf<'_>, entry: &LeafEntry) -> Result<Entry> {
    let settings = fat.header.settings;
    let key = match settings.has_word_keys() {
        true => Key::Words(leaf.words(entry)?),
        false => Key::Name(leaf.name(entry)?),
    };
    Ok(Entry::new(key, leaf.value(entry)?, entry.hash, entry.cd, settings.width()))
}

impl<S: BlockSource> Iterator for Entries<'_, S> {
    type Item = Result<Entry>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = match &self.zap.body {
            Body::Micro(micro) => self.micro(micro),
            Body::Fat(fat) => self.fat(fat),
        };
        if next.is_err() {
            (self.from, self.page) = (None, Page::None);
        }
        self.zap.named(next).transpose()
    }
}
