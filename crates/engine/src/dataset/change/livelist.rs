//! Livelists: what a clone wrote and freed since it was made, so that destroying it is quick.
//!
//! Chapter 06, section 10.4. Invariant: a livelist holds every block that the clone has and its
//! origin has not, or there is none.

use cenote_format::dsl_directory::{DslDirectory, KEY_LIVELIST};
use cenote_format::{BlockPointer, ObjectId, Txg};

use super::MosChange;
use super::bpobj::Entry;
use crate::Result;

/// Blocks in the newest part of a livelist above which another is begun.
const PART_MAX: u64 = 500_000;
/// A clone shares at most this percentage with its origin: a livelist is no use to it.
const SHARED_MIN: u128 = 75;
/// Feature of clones with livelists.
pub(super) const LIVELIST: &str = "livelist";

impl MosChange<'_> {
    /// The livelist of a directory, if it has one.
    pub(super) fn livelist(&self, directory: ObjectId) -> Result<Option<ObjectId>> {
        Ok(self.number_field(directory, KEY_LIVELIST)?.filter(|id| *id != 0).map(ObjectId))
    }

    /// Txg of the snapshot a directory was cloned from; 0 if it was not.
    pub(super) fn origin_txg(&self, directory: &DslDirectory) -> Result<Txg> {
        match directory.origin.0 {
            0 => Ok(Txg(0)),
            _ => Ok(self.dataset(directory.origin)?.creation_txg),
        }
    }

    /// Gives a clone's directory an empty livelist.
    pub(super) fn create_livelist(&self, directory: ObjectId) -> Result<()> {
        let livelist = self.new_deadlist()?;
        self.set_number_field(directory, KEY_LIVELIST, livelist.0)?;
        self.add_reference(LIVELIST)
    }

    /// Takes the livelist off a directory, and frees it.
    pub(super) fn drop_livelist(&self, directory: ObjectId) -> Result<()> {
        let Some(livelist) = self.livelist(directory)? else { return Ok(()) };
        self.remove_field(directory, KEY_LIVELIST)?;
        self.free_deadlist(livelist)?;
        self.remove_reference(LIVELIST)
    }

    /// Adds a group's births and deaths to the livelist of a head, if it has one; drops the
    /// livelist when the head shares too little with its origin.
    pub(super) fn extend_livelist(
        &self,
        dataset: ObjectId,
        births: &[BlockPointer],
        deaths: &mut dyn Iterator<Item = &BlockPointer>,
    ) -> Result<()> {
        let phys = self.dataset(dataset)?;
        let Some(livelist) = self.livelist(phys.directory)? else { return Ok(()) };
        let directory = self.directory(phys.directory)?;
        let origin = self.origin_txg(&directory)?;
        let own =
            |pointer: &&BlockPointer| !pointer.is_embedded() && pointer.logical_birth() > origin;
        let mut entries: Vec<Entry> = births.iter().map(|pointer| (*pointer, false)).collect();
        entries.extend(deaths.filter(own).map(|pointer| (*pointer, true)));
        if !entries.is_empty() {
            self.begin_part(livelist)?;
            self.insert_dead(livelist, &entries)?;
        }
        let referenced = u128::from(phys.referenced_bytes);
        let shared = referenced.saturating_sub(directory.used_breakdown.head.into());
        if referenced != 0 && shared * 100 / referenced <= SHARED_MIN {
            self.drop_livelist(phys.directory)?;
        }
        Ok(())
    }

    /// Begins another part of a livelist if there is none yet or the newest has grown long.
    fn begin_part(&self, livelist: ObjectId) -> Result<()> {
        let entries = self.deadlist_entries(livelist)?;
        let grown = match entries.0.last_key_value() {
            None => true,
            Some((_, list)) => {
                let header = self.list_header(*list)?;
                header.pointers.saturating_sub(header.freed.saturating_mul(2)) > PART_MAX
            }
        };
        if grown {
            let txg = self.tx.txg().0;
            self.add_deadlist_key(livelist, Txg(txg.saturating_sub(1)))?;
        }
        Ok(())
    }
}
