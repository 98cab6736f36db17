//! What the intent log needs of the pool, the dataset and the doors.
//!
//! Invariant: the log itself touches neither devices nor the clock; whoever implements these traits
//! decides, so that a test can stop the world after any write.

use bytes::Bytes;
use cenote_format::blkptr::Dva;
use cenote_format::{BlockPointer, Txg};

use super::data::Placement;
use crate::Result;
use crate::object::DirtyBlocks;
use crate::txg::Tx;
use crate::vdev::BlockWrite;

/// Bytes of a log block to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogWrite {
    /// Where it was allocated.
    pub dva: Dva,
    /// What to write there: the whole block, or on vdevs without parity its beginning, a multiple
    /// of 4 KiB.
    pub data: Bytes,
    /// Transaction group of the allocation.
    pub birth: Txg,
}

/// The pool as the log of one dataset sees it.
pub trait LogPool: Send + Sync {
    /// Starts a change of the dataset: its object set, and so the log's header, will be written in
    /// that group. Must not wait for room.
    fn begin(&self) -> Result<Tx>;
    /// The newest group on the disks.
    fn synced(&self) -> Txg;
    /// Waits until group `txg` is on the disks.
    fn wait_synced(&self, txg: Txg) -> Result<()>;
    /// Allocates a block of `size` bytes for the log, never as a gang.
    fn allocate(&self, tx: &Tx, size: u64) -> Result<Dva>;
    /// Writes blocks of the log and the data they point at; on return all of them will survive a
    /// loss of power.
    fn write(&self, blocks: Vec<LogWrite>, data: Vec<BlockWrite>) -> Result<()>;
    /// Records of group `txg` take so many bytes of memory less than [`Tx::add_noted`] said.
    fn settled(&self, _txg: Txg, _bytes: u64) {}
    /// Two random numbers, the name of a new chain.
    fn random(&self) -> [u64; 2];
    /// Length in bytes from which the data of a write goes where it is to stay, and not into the
    /// log; `None` if all goes into the log.
    fn placed_from(&self) -> Option<u64>;
    /// Finds places for blocks in the group of `tx`; `None` if there are none.
    fn place(&self, tx: &Tx, blocks: &[DirtyBlocks]) -> Result<Option<Placement>>;
}

/// Gives the data of writes that were appended without it.
pub trait WriteSource: Send + Sync {
    /// Bytes `offset..offset + length` of `object` as they are now, or as many as there are before
    /// its end; `None` if it is gone.
    fn read(&self, object: u64, offset: u64, length: u64) -> Result<Option<Bytes>>;
    /// The blocks of `object` with bytes `offset..offset + length` if group `txg`, which is held
    /// open, has changed all of them. No change of the object is half done in them.
    fn dirty(&self, txg: Txg, object: u64, offset: u64, length: u64)
    -> Result<Option<DirtyBlocks>>;
}

/// Reads logs of before a crash.
pub trait LogReader {
    /// The stored bytes of a log block, verified; `None` if no copy of it is right, which is the
    /// ordinary end of a chain. An error says that it is not known: a device does not answer.
    fn read_log_block(&self, pointer: &BlockPointer) -> Result<Option<Bytes>>;
    /// What cannot be read ends the log: so it was asked for.
    fn accepts_losses(&self) -> bool {
        false
    }
    /// The data behind a record's pointer, decoded; zeros for a hole.
    fn read_data(&self, pointer: &BlockPointer) -> Result<Bytes>;
}

/// Encrypts the blocks of one dataset's log (chapter 05, section 19).
pub trait LogCipher: Send + Sync {
    /// Gives the pointer of a block that was just allocated its salt and initialisation vector.
    fn prepare(&self, pointer: &mut BlockPointer) -> Result<()>;
    /// Encrypts the records of a finished block, of which `used` bytes are in use, and puts the MAC
    /// into the last two words of its checksum field.
    fn seal(&self, pointer: &BlockPointer, block: &mut [u8], used: usize) -> Result<()>;
    /// Decrypts the records of a verified block.
    fn open(&self, pointer: &BlockPointer, block: &mut [u8]) -> Result<()>;
}
