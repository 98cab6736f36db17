//! What a dataset gained and lost in one transaction group, and what follows from it: its sizes,
//! its directory's, the deadlist, the livelist, bookmarks, which blocks become free, and which features
//! its blocks need.
//!
//! Chapter 06, section 8.2. Invariant: a block that a snapshot or a bookmark's dataset still holds
//! is never freed here; a block that nothing holds any more is freed exactly once.

use cenote_codec::checksum::Algorithm as Checksum;
use cenote_codec::compress::Algorithm;
use cenote_format::bookmark::{Bookmark, FLAG_HAS_FREED_BEFORE_NEXT};
use cenote_format::dsl_dataset::KEY_BOOKMARKS;
use cenote_format::zap::Value;
use cenote_format::{BlockPointer, ObjectId, Txg};
use parking_lot::Mutex;

use super::bpobj::Entry;
use super::space::{clipped, shifted};
use super::{Delta, Meter, MosChange, Share};
use crate::object::Ledger;
use crate::{Error, Result};

/// The births and deaths of a dataset's blocks in one transaction group.
pub struct DatasetLedger {
    dataset: ObjectId,
    /// Txg of the previous snapshot: what was born after it belongs to the head alone.
    kept: Txg,
    /// Births are to be remembered: the dataset has a livelist.
    remembers: bool,
    meter: Meter,
    state: Mutex<LedgerState>,
}

/// Features that a block shows by itself, whoever made it: what came in a raw stream follows no property.
const SHOWN: [&str; 6] = ["large_blocks", "zstd_compress", "sha512", "skein", "edonr", "blake3"];

/// Which of them.
fn shown(pointer: &BlockPointer) -> [bool; SHOWN.len()] {
    let is_zstd = Algorithm::from_id(pointer.compression()) == Some(Algorithm::Zstd);
    let checksum = match pointer.is_embedded() {
        true => None,
        false => Checksum::from_id(pointer.checksum_id()),
    };
    let has = |wanted| checksum == Some(wanted);
    [
        pointer.lsize() > 128 << 10,
        is_zstd,
        has(Checksum::Sha512),
        has(Checksum::Skein),
        has(Checksum::Edonr),
        has(Checksum::Blake3),
    ]
}

#[derive(Default)]
struct LedgerState {
    gained: Delta,
    /// Which of [`SHOWN`] were met.
    shown: [bool; SHOWN.len()],
    births: Vec<BlockPointer>,
    /// Killed, and in no snapshot.
    freed: Vec<BlockPointer>,
    /// Killed, and in the previous snapshot.
    dead: Vec<BlockPointer>,
}

impl Ledger for DatasetLedger {
    fn born(&self, pointer: &BlockPointer) {
        Self::born(self, pointer);
    }

    fn killed(&self, pointer: &BlockPointer) {
        Self::killed(self, pointer);
    }
}

impl DatasetLedger {
    /// A ledger for a dataset, to be made before its blocks are written in this group.
    pub fn new(change: &MosChange<'_>, dataset: ObjectId) -> Result<Self> {
        let phys = change.dataset(dataset)?;
        if phys.is_snapshot() {
            let reason = "a snapshot cannot be written";
            return Err(Error::invalid(reason).at_object(0, dataset.0));
        }
        Ok(Self {
            dataset,
            kept: phys.previous_snapshot_txg,
            remembers: change.livelist(phys.directory)?.is_some(),
            meter: change.meter().clone(),
            state: Mutex::default(),
        })
    }

    /// A block came into the dataset.
    pub fn born(&self, pointer: &BlockPointer) {
        if pointer.is_hole() {
            return;
        }
        let mut state = self.state.lock();
        state.gained += self.meter.space(pointer).into();
        for (met, is_shown) in state.shown.iter_mut().zip(shown(pointer)) {
            *met |= is_shown;
        }
        if self.remembers && !pointer.is_embedded() {
            state.births.push(*pointer);
        }
    }

    /// A block left the dataset.
    pub fn killed(&self, pointer: &BlockPointer) {
        if pointer.is_hole() {
            return;
        }
        let mut state = self.state.lock();
        if pointer.logical_birth() > self.kept {
            state.freed.push(*pointer);
        } else {
            state.dead.push(*pointer);
        }
    }

    /// Writes down what the ledger holds: once, after the dataset's blocks were written and before
    /// anything else changes the dataset in this group. `pointer` is its new root.
    pub fn apply(self, change: &MosChange<'_>, pointer: Option<BlockPointer>) -> Result<()> {
        let state = self.state.into_inner();
        change.settle(self.dataset, state, pointer)
    }
}

impl MosChange<'_> {
    fn settle(
        &self,
        dataset: ObjectId,
        state: LedgerState,
        pointer: Option<BlockPointer>,
    ) -> Result<()> {
        let located = |error: Error| error.at_object(0, dataset.0);
        let sum = |pointers: &[BlockPointer]| {
            let spaces = pointers.iter().map(|pointer| Delta::from(self.meter().space(pointer)));
            spaces.fold(Delta::default(), |sum, space| sum + space)
        };
        let mut phys = self.dataset(dataset)?;
        let directory = self.directory(phys.directory)?;
        let own = state.gained - sum(&state.freed);
        let all = own - sum(&state.dead);
        let before = phys.unique_bytes;
        phys.referenced_bytes =
            shifted(phys.referenced_bytes, all.used, "referenced").map_err(located)?;
        phys.compressed_bytes = clipped(phys.compressed_bytes, all.compressed);
        phys.uncompressed_bytes = clipped(phys.uncompressed_bytes, all.uncompressed);
        phys.unique_bytes = shifted(before, own.used, "unique").map_err(located)?;
        phys.pointer = pointer.unwrap_or(phys.pointer);
        self.set_dataset(dataset, &phys)?;

        let reserved = self.refreservation(&directory)?;
        let held = Delta::between(before.max(reserved), phys.unique_bytes.max(reserved));
        self.charge(phys.directory, Share::Head, own)?;
        self.charge(phys.directory, Share::Refreservation, Delta::used(held - own.used))?;

        for pointer in &state.freed {
            self.free_block(pointer)?;
        }
        self.bury(dataset, &state.dead)?;
        let killed = || state.freed.iter().chain(&state.dead);
        self.count_for_bookmarks(dataset, phys.previous_snapshot_txg, &mut killed())?;
        self.extend_livelist(dataset, &state.births, &mut killed())?;
        for (feature, _) in SHOWN.iter().zip(state.shown).filter(|(_, is_shown)| *is_shown) {
            // What is not enabled is refused before it gets here.
            if self.is_enabled(feature)? {
                self.activate_feature(dataset, feature)?;
            }
        }
        Ok(())
    }

    /// Puts blocks that the previous snapshot still has into the deadlist.
    fn bury(&self, dataset: ObjectId, dead: &[BlockPointer]) -> Result<()> {
        if dead.is_empty() {
            return Ok(());
        }
        let phys = self.dataset(dataset)?;
        let directory = self.directory(phys.directory)?;
        let previous = self.dataset(phys.previous_snapshot)?;
        let follows = previous.next_snapshot == dataset;
        let origin = self.origin_txg(&directory)?;
        let (mut only_previous, mut of_directory) = (0_i128, 0_i128);
        for pointer in dead {
            let used = i128::from(self.meter().space(pointer).used);
            if follows && pointer.logical_birth() > previous.previous_snapshot_txg {
                only_previous += used;
            }
            if pointer.logical_birth() > origin {
                of_directory += used;
            }
        }
        if only_previous != 0 {
            let id = phys.previous_snapshot;
            let unique = shifted(previous.unique_bytes, only_previous, "unique");
            let unique = unique.map_err(|error| error.at_object(0, id.0))?;
            self.alter_dataset(id, |previous| previous.unique_bytes = unique)?;
        }
        self.transfer(phys.directory, of_directory, Share::Head, Share::Snapshots)?;
        let entries: Vec<Entry> = dead.iter().map(|pointer| (*pointer, false)).collect();
        self.insert_dead(phys.deadlist, &entries)
    }

    /// Adds to the bookmarks that count what died between their snapshot and the next.
    fn count_for_bookmarks(
        &self,
        dataset: ObjectId,
        kept: Txg,
        killed: &mut dyn Iterator<Item = &BlockPointer>,
    ) -> Result<()> {
        let mut open: Vec<(String, Bookmark, Delta)> = Vec::new();
        for (name, bookmark) in self.bookmarks(dataset)? {
            let flags = bookmark.details.map_or(0, |details| details.flags);
            if flags & FLAG_HAS_FREED_BEFORE_NEXT != 0 && bookmark.creation_txg >= kept {
                open.push((name, bookmark, Delta::default()));
            }
        }
        if open.is_empty() {
            return Ok(());
        }
        for pointer in killed {
            for (_, bookmark, sum) in &mut open {
                if pointer.logical_birth() <= bookmark.creation_txg {
                    *sum += self.meter().space(pointer).into();
                }
            }
        }
        for (name, bookmark, sum) in open {
            self.add_freed(dataset, &name, bookmark, sum)?;
        }
        Ok(())
    }

    /// The bookmarks of a head, by name.
    pub(super) fn bookmarks(&self, head: ObjectId) -> Result<Vec<(String, Bookmark)>> {
        let table = ObjectId(self.number_field(head, KEY_BOOKMARKS)?.unwrap_or(0));
        let mut bookmarks = Vec::new();
        for (name, value) in self.entries(table)? {
            let words = value.as_u64s().unwrap_or_default();
            let bookmark = Bookmark::from_words(&words)
                .map_err(|error| Error::from(error).at_object(0, table.0))?;
            bookmarks.push((name, bookmark));
        }
        Ok(bookmarks)
    }

    /// Adds to what a bookmark counts as freed before the next snapshot.
    pub(super) fn add_freed(
        &self,
        head: ObjectId,
        name: &str,
        mut bookmark: Bookmark,
        sum: Delta,
    ) -> Result<()> {
        let Some(details) = bookmark.details.as_mut().filter(|_| sum != Delta::default()) else {
            return Ok(());
        };
        let freed = &mut details.freed_before_next;
        freed.used = clipped(freed.used, sum.used);
        freed.compressed = clipped(freed.compressed, sum.compressed);
        freed.uncompressed = clipped(freed.uncompressed, sum.uncompressed);
        self.put_bookmark(head, name, &bookmark)
    }

    /// Writes the record of a bookmark of a head that has a table of them.
    pub(super) fn put_bookmark(
        &self,
        head: ObjectId,
        name: &str,
        bookmark: &Bookmark,
    ) -> Result<()> {
        let table = ObjectId(self.number_field(head, KEY_BOOKMARKS)?.unwrap_or(0));
        self.put(table, name, &Value::of_u64s(&bookmark.to_words())?)
    }
}
