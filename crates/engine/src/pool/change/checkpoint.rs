//! Taking a checkpoint of the pool, and discarding it.
//!
//! Chapter 03, section 14, and chapter 01, section 8.4. Invariant: both happen before anything of
//! their group is freed: whatever the last group on the disks refers to is part of a new
//! checkpoint.

use cenote_format::zap::Value;

use super::evacuate::is_removing;
use super::expand::expansion_runs;
use crate::alloc::CHECKPOINT;
use crate::dataset::change::{MosChange, OBJECT_DIRECTORY};
use crate::pool::group::LivePool;
use crate::pool::group::discarding::{FEATURE, checkpoint_exists, has_checkpoint};
use crate::{Error, ErrorKind, Result, zap};

/// Words of an uberblock that OpenZFS up to 2.2 expects.
const OLD_WORDS: usize = 26;

fn discarding() -> Error {
    Error::new(ErrorKind::Busy, "currently discarding checkpoint")
}

impl LivePool {
    /// Takes a checkpoint: the pool as it is now can be gone back to until it is discarded.
    pub fn take_checkpoint(&self) -> Result<()> {
        // What was done before belongs to it.
        self.sync()?;
        self.change_early(|live, change| {
            if is_removing(change)? {
                let reason = "device removal in progress";
                return Err(Error::new(ErrorKind::Busy, reason));
            }
            if live.vdevs().expanding().is_some() {
                return Err(expansion_runs());
            }
            if has_checkpoint(change.mos)? {
                return Err(checkpoint_exists());
            }
            match change.feature_count(FEATURE)? {
                Some(0) => {}
                Some(_) => return Err(discarding()),
                None => {
                    let reason = "operation not supported: feature 'zpool_checkpoint' is disabled";
                    return Err(Error::unsupported(reason));
                }
            }
            let mut uberblock = live.pool.uberblock();
            let txg = uberblock.txg;
            if txg.0 + 1 != change.tx.txg().0 {
                return Err(Error::bug(format!("group {txg} is not the one before")));
            }
            uberblock.checkpoint_txg = txg.0;
            let words = uberblock.to_words();
            let count = if uberblock.reflow.0 == 0 { OLD_WORDS } else { words.len() };
            let value = Value::of_u64s(words.get(..count).unwrap_or(&words))?;
            let directory = change.mos.object(OBJECT_DIRECTORY)?;
            zap::insert(&directory, change.tx, CHECKPOINT, &value)?;
            change.add_reference(FEATURE)?;
            live.when_done(move |live| live.allocator.set_checkpoint(Some(txg)));
            let words = format!("checkpointed uberblock txg={txg}");
            change.log_event("spa checkpoint", None, &words)
        })
    }

    /// Gives a checkpoint up. What only it holds is freed in this group and those after.
    pub fn discard_checkpoint(&self) -> Result<()> {
        self.change_early(|live, change| {
            if !has_checkpoint(change.mos)? {
                return Err(match change.is_active(FEATURE)? {
                    true => discarding(),
                    false => Error::not_found("checkpoint does not exist"),
                });
            }
            let directory = change.mos.object(OBJECT_DIRECTORY)?;
            zap::remove(&directory, change.tx, CHECKPOINT)?;
            live.when_done(|live| {
                live.allocator.set_checkpoint(None);
                live.jobs.discarding.wake();
            });
            let words = "started discarding checkpointed state from the pool";
            change.log_event("spa discard checkpoint", None, words)
        })?;
        // Resilvers so far left out what only the checkpoint knew, so devices still count as lacking.
        self.resilver_now();
        Ok(())
    }

    /// What is to be refused while there is a checkpoint, or what is left of one.
    pub(in crate::pool) fn refuse_checkpoint(change: &MosChange<'_>) -> Result<()> {
        if has_checkpoint(change.mos)? {
            return Err(checkpoint_exists());
        }
        if change.is_active(FEATURE)? { Err(discarding()) } else { Ok(()) }
    }
}
