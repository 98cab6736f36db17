//! Changing fat ZAPs: one leaf at a time, splitting it when it is full.
//!
//! Chapter 04, sections 12-15. Invariant: the header's counts are those of the leaves, and the
//! pointers of a leaf's whole range lead to it, whenever a call has succeeded.

use bytes::Bytes;
use cenote_format::zap::leaf::Geometry;
use cenote_format::zap::leaf_build::{Room, StoredKey};
use cenote_format::zap::normalize::Matcher;
use cenote_format::zap::{
    FatHeader, KeySettings, Leaf, LeafBuilder, LeafEntry, MatchKind, Value, fat::block_shift,
};

use super::{BlockSink, EntryChange};
use crate::txg::Tx;
use crate::zap::{Body, FatBody, open_body};
use crate::{Error, ErrorKind, Result};

/// Bytes of the header before the embedded table.
const HEADER_BYTES: usize = 104;

/// A fat ZAP being changed.
pub(super) struct FatWriter<'a, S> {
    pub(super) sink: &'a S,
    pub(super) tx: &'a Tx,
    pub(super) body: FatBody,
}

/// Writes header and first leaf of an empty fat ZAP.
pub(super) fn create<S: BlockSink>(
    sink: &S,
    tx: &Tx,
    shift: u32,
    settings: KeySettings,
) -> Result<()> {
    let size = 1_usize.checked_shl(shift).unwrap_or(0);
    block_shift(size).map_err(|error| Error::invalid(error.to_string()))?;
    if sink.block_size() != size as u64 {
        sink.set_block_size(tx, size as u64)?;
    }
    fresh(sink, tx, shift, settings)
}

fn fresh<S: BlockSink>(sink: &S, tx: &Tx, shift: u32, settings: KeySettings) -> Result<()> {
    let (_, block) = FatHeader::fresh(shift, settings)?;
    let leaf = LeafBuilder::new(shift, 0, 0, !settings.normalization.is_none())?;
    sink.write_block(tx, 0, block.into())?;
    sink.write_block(tx, 1, leaf.into_bytes().into())
}

/// Empties the ZAP of `header`.
pub(super) fn clear<S: BlockSink>(sink: &S, tx: &Tx, header: &FatHeader) -> Result<()> {
    fresh(sink, tx, header.block_shift, header.settings)?;
    match sink.block_count().checked_sub(2) {
        None | Some(0) => Ok(()),
        Some(count) => sink.free_blocks(tx, 2, count),
    }
}

/// Refuses an entry that does not fit an empty leaf.
pub(super) fn check_room(key: &StoredKey<'_>, value: &Value, shift: u32) -> Result<()> {
    let chunks = Geometry::of(1_usize.checked_shl(shift).unwrap_or(0))?.chunks;
    let needed = LeafBuilder::chunks_needed(key.stored_bytes(), value.raw().len());
    if needed > usize::from(chunks) {
        return Err(Error::invalid(format!(
            "an entry of {} bytes does not fit a block of the ZAP",
            key.stored_bytes() + value.raw().len()
        )));
    }
    Ok(())
}

/// The hash of a key.
pub(super) fn hash(body: &FatBody, key: &StoredKey<'_>) -> Result<u64> {
    body.expect_words(matches!(key, StoredKey::Words(_)))?;
    Ok(match key {
        StoredKey::Name(name) => body.header.settings.hash_name(name),
        StoredKey::Words(words) => body.header.settings.hash_words(words),
    })
}

/// What is to be stored where.
struct Stored<'k> {
    key: StoredKey<'k>,
    hash: u64,
    /// The collision differentiator; the lowest free one if none.
    cd: Option<u32>,
}

impl<'a, S: BlockSink> FatWriter<'a, S> {
    /// Reads the header.
    pub(super) fn open(sink: &'a S, tx: &'a Tx) -> Result<Self> {
        match open_body(sink)? {
            Body::Fat(body) => {
                let body = FatBody { header: body.header, block: body.block.clone() };
                Ok(Self { sink, tx, body })
            }
            Body::Micro(_) => Err(Error::bug("a micro ZAP where a fat one should be")),
        }
    }

    fn settings(&self) -> KeySettings {
        self.body.header.settings
    }

    /// Changes the entry that matches `key`.
    pub(super) fn modify(
        &mut self,
        key: StoredKey<'_>,
        kind: MatchKind,
        decide: impl FnOnce(Option<&Value>) -> Result<EntryChange>,
    ) -> Result<()> {
        let settings = self.settings();
        let hash = hash(&self.body, &key)?;
        let (id, block) = self.body.leaf(self.sink, hash)?;
        let leaf = Leaf::new(&block)?;
        let found = match key {
            StoredKey::Name(name) => {
                let matcher = Matcher::new(name, kind, settings.normalization);
                match matcher.is_exact() {
                    true => leaf.find(hash, |entry| leaf.name_is(entry, name))?,
                    false => {
                        leaf.find_lowest(hash, |entry| Ok(matcher.matches(&leaf.name(entry)?)))?
                    }
                }
            }
            StoredKey::Words(words) => leaf.find(hash, |entry| leaf.words_are(entry, words))?,
        };
        let old = found.map(|entry| leaf.value(&entry)).transpose()?;
        match (decide(old.as_ref())?, found) {
            (EntryChange::Keep, _) | (EntryChange::Remove, None) => Ok(()),
            (EntryChange::Remove, Some(entry)) => {
                let mut leaf = LeafBuilder::resume(block.to_vec())?;
                leaf.remove(&entry)?;
                self.count(-1)?;
                self.write_leaf(id, leaf)?;
                self.write_header()
            }
            (EntryChange::Set(value), Some(entry)) => {
                let name;
                let words;
                // The name that stays is the stored one, which may differ from the one asked for.
                let key = match key {
                    StoredKey::Name(_) => {
                        name = leaf.name(&entry)?;
                        StoredKey::Name(&name)
                    }
                    StoredKey::Words(_) => {
                        words = leaf.words(&entry)?;
                        StoredKey::Words(&words)
                    }
                };
                check_room(&key, &value, self.body.header.block_shift)?;
                let stored = Stored { key, hash, cd: Some(entry.cd) };
                self.set(id, &block, &stored, Some(entry), &value)
            }
            (EntryChange::Set(value), None) => {
                check_room(&key, &value, self.body.header.block_shift)?;
                self.set(id, &block, &Stored { key, hash, cd: None }, None, &value)
            }
        }
    }

    /// Adds an entry of a ZAP that is being converted, whose key is known to be new.
    pub(super) fn take_over(
        &mut self,
        key: StoredKey<'_>,
        value: &Value,
        hash: u64,
        cd: u32,
    ) -> Result<()> {
        let (id, block) = self.body.leaf(self.sink, hash)?;
        self.set(id, &block, &Stored { key, hash, cd: Some(cd) }, None, value)
    }

    /// Stores `value` in leaf `id`, or in what it is split into.
    fn set(
        &mut self,
        id: u64,
        block: &Bytes,
        stored: &Stored<'_>,
        old: Option<LeafEntry>,
        value: &Value,
    ) -> Result<()> {
        let mut leaf = LeafBuilder::resume(block.to_vec())?;
        let (mut id, mut old, added) = (id, old, i64::from(old.is_none()));
        loop {
            let room = match &old {
                Some(entry) => leaf.set_value(entry, value)?,
                None => {
                    let cd = match stored.cd {
                        Some(cd) => cd,
                        None => leaf.free_differentiator(stored.hash)?,
                    };
                    if cd >= self.settings().width().differentiator_limit() {
                        return Err(no_space("too many names of one hash"));
                    }
                    leaf.insert(stored.key, value, stored.hash, cd)?
                }
            };
            if room != Room::Full {
                self.count(added)?;
                self.write_leaf(id, leaf)?;
                return self.write_header();
            }
            if let Err(error) = self.prepare_split(id, &leaf) {
                // What was split before stays so: leave a ZAP that is whole.
                self.write_leaf(id, leaf)?;
                self.write_header()?;
                return Err(error);
            }
            (id, leaf) = self.split(id, leaf, stored.hash)?;
            if let (Some(entry), Some(cd)) = (&mut old, stored.cd) {
                // The split may have given the entry another chunk.
                let found = leaf.view()?.find(stored.hash, |entry| Ok(entry.cd == cd))?;
                *entry = found.ok_or_else(|| Error::corrupt("a split ZAP leaf lost an entry"))?;
            }
        }
    }

    /// Makes the pointer table large enough for the halves of `leaf`, and sees to it that both can be written: the
    /// table must not lead to one that was not.
    fn prepare_split(&mut self, id: u64, leaf: &LeafBuilder) -> Result<()> {
        self.finish_growth()?;
        if u32::from(leaf.header().prefix_len) == self.body.header.table.shift {
            self.grow_table()?;
        }
        self.sink.ready_to_write(id)?;
        self.sink.ready_to_write(self.body.header.free_block)
    }

    /// Splits leaf `id`, writes the half without `hash` and returns the other.
    fn split(&mut self, id: u64, leaf: LeafBuilder, hash: u64) -> Result<(u64, LeafBuilder)> {
        let prefix_len = u32::from(leaf.header().prefix_len);
        let mut lower = leaf;
        let upper = lower.split()?;
        let new_id = self.take_blocks(1)?;
        self.body.header.leaves = self.body.header.leaves.saturating_add(1);
        self.point_at(upper.header().prefix, prefix_len + 1, id, new_id)?;
        if upper.view()?.owns(hash) {
            self.write_leaf(id, lower)?;
            // Should the entry not fit this half either, it is split again and written then.
            Ok((new_id, upper))
        } else {
            self.write_leaf(new_id, upper)?;
            Ok((id, lower))
        }
    }

    /// `count` blocks never used.
    pub(super) fn take_blocks(&mut self, count: u64) -> Result<u64> {
        let header = &mut self.body.header;
        let first = header.free_block;
        // Numbers that are stored as file offsets: far beyond any object.
        let end = first.checked_add(count).filter(|end| *end < 1 << 48);
        header.free_block = end.ok_or_else(|| no_space("the ZAP has no block left"))?;
        Ok(first)
    }

    fn count(&mut self, change: i64) -> Result<()> {
        let entries = self.body.header.entries.checked_add_signed(change);
        self.body.header.entries =
            entries.ok_or_else(|| Error::corrupt("the ZAP's header miscounts its entries"))?;
        Ok(())
    }

    fn write_leaf(&self, id: u64, leaf: LeafBuilder) -> Result<()> {
        self.sink.write_block(self.tx, id, leaf.into_bytes().into())
    }

    fn write_header(&mut self) -> Result<()> {
        let mut raw = [0; HEADER_BYTES];
        self.body.header.encode_into(&mut raw)?;
        // A buffer that nobody else holds can be changed in place.
        self.body.block = Bytes::new();
        self.sink.write_at(self.tx, 0, &raw)?;
        self.body.block = self.sink.read_block(0)?;
        Ok(())
    }
}

/// The ZAP cannot take more.
pub(super) fn no_space(reason: &str) -> Error {
    Error::new(ErrorKind::NoSpace, reason)
}
