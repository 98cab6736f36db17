//! The intent log: what was promised to be kept, on disk before its transaction group is.
//!
//! Chapter 05, sections 16-18. A change appends its record to the log of its dataset in memory; a
//! commit writes the records that no transaction group has brought to the disks yet as blocks of a
//! chain, and returns when they are there. After a crash the chain is claimed, replayed and freed.
//! Invariant: when a commit has answered, either all records before it are in blocks that the
//! header on disk leads to, or their transaction groups are on the disks.
//!
//! The data of small writes goes into the records; of large ones it goes where it is to stay, and
//! the records point there.

mod block;
mod chain;
mod cipher;
mod claim;
mod data;
mod device;
mod extend;
mod log;
mod place;
mod pool;
mod records;
mod replay;
mod runway;
mod space;
mod walk;

#[cfg(test)]
mod tests;

pub use block::BlockBuilder;
pub use chain::LogSync;
pub use claim::{Claimer, blocks_before, claim, first_unclaimed};
pub use data::{DataWriter, Placement, SharedPolicy, SharedRules};
pub use device::{PoolClaimer, PoolLog, PoolLogReader, SetSource};
pub use log::IntentLog;
pub use pool::{LogCipher, LogPool, LogReader, LogWrite, WriteSource};
pub use replay::{Replay, Replayed, log_blocks};
pub use runway::Runway;
pub use space::LogSpace;
pub use walk::{Ended, Met, walk};
pub(crate) use walk::{cloned_blocks, data_block};
