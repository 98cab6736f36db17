//! Blocks that are stored already: referred to instead of written again.
//!
//! Chapter 02, section 9, and chapter 06, section 20. Invariant: a pointer says that its block is in
//! a table exactly when one reference was counted for it there, in the same transaction group.

use cenote_codec::checksum::Algorithm as Checksum;
use cenote_format::BlockPointer;
use cenote_format::ddt::{Key, Physical};

use super::ReadContext;
use super::policy::{Dedup, WritePolicy};
use super::prepare::Stored;
use super::write::{BlockToWrite, Run};
use crate::alloc::Dvas;
use crate::{Error, ErrorKind, Result};

/// The tables of deduplicated blocks, as the group being written has them; declared here,
/// implemented by the datasets' room. Only the thread that writes groups calls these.
pub trait DedupTables: Send + Sync {
    /// What is known of a block that is to have `copies` copies; `None` if the table of `checksum`
    /// has no entry of this key.
    fn find(&self, checksum: Checksum, key: &Key, copies: u8) -> Result<Option<Known>>;
    /// One reference more to the `copies` copies of an entry that was found.
    fn refer(&self, checksum: Checksum, key: &Key, copies: u8) -> Result<()>;
    /// The block was stored in `copies` copies, which the entry of the key did not have. An entry that
    /// grows has these instead of what it had.
    fn enter(&self, checksum: Checksum, key: &Key, copies: u8, stored: Physical) -> Result<()>;
}

/// An entry of a table.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// Some copies of the block.
    pub any: Physical,
    /// As many as were asked for.
    pub slot: Option<Physical>,
    /// The entry has one slot, which is given more copies if it has too few.
    pub grows: bool,
}

/// What the tables say of a block to be written.
pub(super) enum Lookup {
    /// It is not for them.
    Not,
    /// It is stored already: its pointer.
    Known(BlockPointer),
    /// It is to be entered under this key.
    New(Key),
    /// It is stored in fewer copies than it is to have.
    Short(Key, Physical),
}

impl Run<'_> {
    /// Looks for the block in the tables, and refers to it if it is there.
    pub(super) fn look_up(&self, request: &BlockToWrite, stored: &Stored) -> Result<Lookup> {
        let policy = &request.policy;
        let Some(tables) = self.writer.dedup.as_ref().filter(|_| policy.dedup != Dedup::Off) else {
            return Ok(Lookup::Not);
        };
        let key = Self::key(request, stored);
        let found = match tables.find(policy.checksum, &key, policy.copies) {
            Ok(Some(found)) => found,
            Ok(None) => return Ok(Lookup::New(key)),
            // Where the table is damaged nothing can be entered: stored like any other block.
            Err(error) if error.is_lasting() => {
                tracing::error!(%error, "a block is not deduplicated");
                return Ok(Lookup::Not);
            }
            Err(error) => return Err(error),
        };
        if policy.dedup == Dedup::Verified && !self.is_same(request, stored, &key, &found.any) {
            // Stored like any other block: the table has room for one block of a checksum.
            return Ok(Lookup::Not);
        }
        let slot = match found.slot {
            Some(slot) => slot,
            None if found.grows => return Ok(Lookup::Short(key, found.any)),
            None => return Ok(Lookup::New(key)),
        };
        let dvas: Dvas = slot.dvas(&key).collect();
        let mut pointer = self.pointer(request, stored, &dvas)?;
        pointer.set_dedup(slot.birth);
        tables.refer(policy.checksum, &key, policy.copies)?;
        Ok(Lookup::Known(pointer))
    }

    /// Enters a block that was stored, and marks its pointer.
    pub(super) fn enter(
        &self,
        request: &BlockToWrite,
        key: &Key,
        pointer: &mut BlockPointer,
    ) -> Result<()> {
        let policy = &request.policy;
        let Some(tables) = &self.writer.dedup else {
            return Err(Error::bug("a block for the dedup tables without tables"));
        };
        pointer.set_dedup(self.txg);
        tables.enter(policy.checksum, key, policy.copies, Physical::of(pointer))
    }

    /// Stores the copies that the block of an entry lacks, and refers to all of them; `None` if there
    /// is no place for them, or gangs are among them.
    pub(super) fn extend(
        &self,
        request: &BlockToWrite,
        stored: &Stored,
        key: &Key,
        known: &Physical,
    ) -> Result<Option<BlockPointer>> {
        let policy = &request.policy;
        let Some(tables) = &self.writer.dedup else { return Ok(None) };
        let mut dvas: Dvas = known.dvas(key).collect();
        let missing = usize::from(policy.copies).saturating_sub(dvas.len());
        if dvas.iter().any(|dva| dva.gang) {
            return Ok(None);
        }
        let missing = u8::try_from(missing).unwrap_or(policy.copies);
        let new = match self.allocate(&WritePolicy { copies: missing, ..policy.clone() }, stored) {
            Err(error) if error.kind() == ErrorKind::NoSpace => return Ok(None),
            allocated => allocated?,
        };
        dvas.extend(new.iter().copied());
        let mut pointer = match self.pointer(request, stored, &dvas) {
            Ok(pointer) => pointer,
            Err(error) => {
                self.give_back(&new);
                return Err(error);
            }
        };
        self.submit(&new, &stored.bytes)?;
        pointer.set_dedup(known.birth);
        tables.enter(policy.checksum, key, policy.copies, known.extended(&pointer))?;
        tables.refer(policy.checksum, key, policy.copies)?;
        Ok(Some(pointer))
    }

    fn key(request: &BlockToWrite, stored: &Stored) -> Key {
        Key::new(
            stored.checksum,
            request.data.len() as u64,
            stored.bytes.len() as u64,
            stored.compression,
            stored.crypt,
        )
    }

    /// The copies of an entry hold the very bytes to be written. What cannot be read is not.
    fn is_same(&self, request: &BlockToWrite, stored: &Stored, key: &Key, slot: &Physical) -> bool {
        let pointer = key.pointer(slot, request.policy.checksum.id());
        let context = ReadContext { transient: true, ..ReadContext::default() };
        let same = match stored.crypt {
            true => {
                let read = self.pipe.read_stored_many(&[pointer]).pop();
                read.unwrap_or_else(|| Err(Error::bug("no block was read")))
                    .map(|bytes| bytes == stored.bytes)
            }
            false => self.pipe.read(&pointer, &context).map(|bytes| bytes == request.data),
        };
        same.unwrap_or_else(|error| {
            tracing::warn!(%error, "a deduplicated block cannot be read to be compared");
            false
        })
    }
}
