//! The intent logs of datasets open for writing.
//!
//! Invariant: before a pool is written for the first time, every log in it is claimed, and the first
//! group records that together with the space the logs take.

use std::sync::Arc;

use cenote_format::objset::ObjsetKind;
use cenote_format::zil::Header;
use cenote_format::{BlockPointer, ObjectId, Txg};

use super::dataset::LiveDataset;
use super::{LivePool, last_group};
use crate::dataset::change::MosChange;
use crate::dataset::{Dataset, Directory, SideBySide, is_foreign};
use crate::intent::{PoolClaimer, PoolLogReader, blocks_before, claim, first_unclaimed};
use crate::object::ObjectSet;
use crate::pipe::{Encryptor, ObjsetPolicy, ReadContext, Unopened};
use crate::{Error, Result};

/// What to do when devices keep a log to themselves.
const UNREADABLE: &str = "restore the device and try again, or import with '-m' to discard the \
                          log records that cannot be read";

impl LivePool {
    /// Claims all logs an earlier life of the pool left. If the pool was taken back, those that were not claimed
    /// before tell of what came after: they go in the first group.
    pub(in crate::pool) fn claim_logs(&self) -> Result<()> {
        let uberblock = self.pool.uberblock();
        let since = first_unclaimed(&uberblock);
        let first = Txg(last_group(&self.pool).0 + 1);
        // Also if whoever took it back to its checkpoint came no further.
        let is_back = self.pool.gone_back().is_some() || uberblock.checkpoint_txg != 0;
        let refer = |pointer: &BlockPointer| self.refer_again(pointer);
        let claimer = PoolClaimer {
            io: self.io.clone(),
            allocator: self.allocator.clone(),
            txg: first,
            refer: &refer,
            accepts_losses: self.options.accepts_log_losses,
        };
        let catalog = self.pool.catalog();
        let mut freed = Vec::new();
        let all = catalog.walk(&catalog.root()?)?;
        let logged = SideBySide::default().each(all, |directory| self.logged(directory))?;
        for (directory, head, set, header) in logged.into_iter().flatten() {
            let reader = PoolLogReader {
                io: self.io.clone(),
                context: ReadContext::default(),
                accepts_losses: self.options.accepts_log_losses,
            };
            let unreadable = |error: Error| {
                let reason = format!("the intent log of '{}' cannot be read: {error}", head.name);
                Error::new(error.kind(), reason).with_advice(UNREADABLE)
            };
            let claimed = match is_back && header.claim_txg.0 == 0 {
                true => {
                    freed.extend(blocks_before(&reader, &header, since).map_err(unreadable)?);
                    Some(Header::default())
                }
                false => claim(&reader, &claimer, &header, since).map_err(unreadable)?,
            };
            if set.kind() == ObjsetKind::Zvol
                && claimed.is_none_or(|claimed| !claimed.log.is_hole())
            {
                self.logged_volumes.lock().push(head.id);
            }
            let Some(claimed) = claimed else { continue };
            let encrypted = catalog.key_object(&directory)?.is_some();
            if encrypted || is_foreign(&set) {
                self.claim_sealed(&head, &claimed, encrypted)?;
                self.gate.want(first);
                continue;
            }
            let open = self.open_dataset(&head).map_err(|error| {
                let reason =
                    format!("the intent log of '{}' cannot be claimed: {error}", head.name);
                Error::new(error.kind(), reason).with_advice("open the pool read-only")
            })?;
            if let Some(live) = open.live_log() {
                live.log.set_old_header(claimed);
                live.pool.mark(first);
            }
            self.gate.want(first);
        }
        if !freed.is_empty() {
            self.change_when_it_goes_on(move |_, change| {
                freed.iter().try_for_each(|pointer| change.hooks.free(pointer))
            });
        }
        Ok(())
    }

    /// The head of a directory with the header of its log; none if it has none.
    fn logged(
        &self,
        directory: Directory,
    ) -> Result<Option<(Directory, Dataset, ObjectSet, Header)>> {
        if directory.phys.head_dataset.0 == 0 {
            return Ok(None);
        }
        let catalog = self.pool.catalog();
        let head = catalog.head(&directory)?;
        let set = catalog.sealed_object_set(&head)?;
        let header = Header::decode(&set.header().zil_header)?;
        Ok((!header.log.is_hole()).then_some((directory, head, set, header)))
    }

    /// One reference more to a block that a record of a log clones, until the log is freed. One that
    /// was taken out of its dedup table is like others.
    fn refer_again(&self, pointer: &BlockPointer) -> Result<()> {
        if pointer.is_dedup() && self.dedup.refer_again(pointer)? {
            return Ok(());
        }
        if !self.feature_enabled(super::cloned::FEATURE) {
            let reason = "the intent log clones blocks in a pool that has no such feature";
            return Err(Error::unsupported(reason).with_advice("open the pool read-only"));
        }
        self.refer_to_clone(pointer)
    }

    /// Records the claim of a log that is not opened: that of an encrypted dataset, whose key need
    /// not be loaded, for only the header changes, which no MAC covers; or one nobody here replays.
    fn claim_sealed(&self, head: &Dataset, claimed: &Header, encrypted: bool) -> Result<()> {
        let set = self.sealed_set(head)?;
        set.set_zil_header(&claimed.encode()?)?;
        self.fresh.lock().push(LiveDataset::new(head.id, set, sealed_policy(encrypted)));
        Ok(())
    }

    /// The set of a head for changing its log only: nothing of it is decrypted.
    pub(in crate::pool) fn sealed_set(&self, head: &Dataset) -> Result<ObjectSet> {
        let context = ReadContext { objset: head.id.0, sealed: true, ..ReadContext::default() };
        ObjectSet::open_live(&self.io, head.phys.pointer, context)
    }

    /// The intent log of the head `id` could not be replayed because of `failure` and is kept; `None`:
    /// it was replayed, or is gone.
    pub fn set_unreplayed(&self, id: ObjectId, failure: Option<Error>) {
        let mut unreplayed = self.unreplayed.lock();
        match failure {
            Some(failure) => drop(unreplayed.insert(id, failure)),
            None => drop(unreplayed.remove(&id)),
        }
    }

    /// Heads whose intent log could not be replayed and is kept, and why.
    pub fn unreplayed(&self) -> Vec<(ObjectId, Error)> {
        self.unreplayed.lock().iter().map(|(id, error)| (*id, error.clone())).collect()
    }

    /// Frees the logs of all open datasets. What they hold is in the groups written. Does not wait while writing is
    /// suspended.
    pub(in crate::pool) fn close_logs(&self) -> Result<()> {
        let open: Vec<Arc<LiveDataset>> = self.datasets.lock().values().cloned().collect();
        // A group in which the chains are broken off, and one in which they are freed.
        for _ in 0..2 {
            let mut is_done = true;
            for log in open.iter().filter_map(|dataset| dataset.log()) {
                is_done &= log.break_off()?.is_none();
            }
            if is_done {
                break;
            }
            self.sync()?;
        }
        Ok(())
    }
}

/// How the root of a set is written that was not decrypted.
pub(in crate::pool) fn sealed_policy(encrypted: bool) -> ObjsetPolicy {
    let encryptor = encrypted.then(|| Arc::new(Unopened) as Arc<dyn Encryptor>);
    ObjsetPolicy { copies: 1, encryptor, ..ObjsetPolicy::mos() }
}

impl LiveDataset {
    /// The part of its log in group `txg`: the header, and space that is free now.
    pub(in crate::pool) fn sync_log(&self, change: &MosChange<'_>, txg: Txg) -> Result<()> {
        let Some(live) = self.live_log() else { return Ok(()) };
        let part = live.log.sync(txg)?;
        self.set().set_zil_header(&part.header)?;
        part.freed.iter().try_for_each(|pointer| change.hooks.free(pointer))
    }

    /// Group `txg` is on the disks.
    pub(in crate::pool) fn log_synced(&self, txg: Txg) {
        if let Some(live) = self.live_log() {
            live.log.synced(txg);
        }
    }
}
