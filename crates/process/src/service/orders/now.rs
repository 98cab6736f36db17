//! What a dataset holds now, for an order that reads it: a snapshot, or the dataset itself where the pool is only read.
//!
//! Invariant: nobody changes it. A snapshot goes again when the order has ended, and no other order waits for that. If
//! the process dies before, it goes when the pool is opened the next time.

use cenote_control::protocol::Failure;

use super::Doing;

/// What it is held with.
const TAG: &str = ".cenote-now";

/// What is read, as long as it is needed.
pub(super) struct Now<'a> {
    doing: &'a Doing<'a>,
    /// Of the snapshot, or the dataset.
    pub(super) name: String,
}

impl<'a> Now<'a> {
    /// Of the dataset `of`; the name of a snapshot begins with what it is `made_for`.
    pub(super) fn taken(doing: &'a Doing<'a>, of: &str, made_for: &str) -> Result<Self, Failure> {
        if doing.service.changes.is_only_read() {
            return Ok(Self { doing, name: of.to_owned() });
        }
        let name = format!("{of}@{made_for}-{:016x}", crate::service::load_guid());
        let _turn = doing.service.turns.beside();
        let taken = doing.service.changes.orders(doing.by());
        let taken = taken.and_then(|orders| orders.snapshot_for_now(&name, TAG));
        taken.map_err(|error| doing.refused(&error))?;
        Ok(Self { doing, name })
    }
}

impl Drop for Now<'_> {
    fn drop(&mut self) {
        if !self.name.contains('@') {
            return;
        }
        let service = self.doing.service;
        let _turn = service.turns.beside();
        let names = [self.name.clone()];
        let orders = service.changes.orders(self.doing.by());
        if let Err(error) = orders.and_then(|orders| orders.release(&names, TAG)) {
            tracing::warn!(%error, snapshot = self.name, "not destroyed though its order has ended");
        }
        service.publish_quietly(self.doing.pool);
    }
}
