//! What a pool is to those who meet it next: exported, destroyed, or known by another guid.
//!
//! Invariant: the labels say so in the last group that is written, after everything else is on the disks.

use std::sync::Arc;

use cenote_format::Guid;
use cenote_format::config::PoolState;

use crate::pool::group::{ConfigChange, LivePool};
use crate::{Error, ErrorKind, Result};

impl LivePool {
    /// Gives the pool a new guid, in its metadata and all labels: this one, or a random one.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if a device is not healthy: it would keep the old one.
    pub fn reguid(&self, guid: Option<Guid>) -> Result<()> {
        if self.vdevs().has_away() {
            let reason = "one or more devices is currently unavailable";
            return Err(Error::new(ErrorKind::Io, reason));
        }
        self.change(move |live, change| {
            Self::refuse_checkpoint(change)?;
            let old = live.pool.guid();
            let guid = guid.unwrap_or_else(|| Guid(change.hooks.random().max(1)));
            let vdevs = live.vdevs();
            let vdevs = vdevs.with_topology(vdevs.topology().with_guid(guid, change.tx.txg())?)?;
            live.when_done(move |live| live.take_vdevs(Arc::new(vdevs)));
            live.change_config_when_done(ConfigChange::Guid(guid));
            live.when_done(move |live| live.vdevs().events().set_guid(guid));
            live.tell("pool_reguid", Vec::new());
            change.log_event("guid change", None, &format!("old={} new={}", old.0, guid.0))
        })
    }

    /// Marks the pool exported and stops writing it.
    ///
    /// # Errors
    /// What keeps the last groups from being written; the pool goes on then, unless it had stopped before or only the
    /// labels were left to be written: then it has stopped ([`Gate::failure`](crate::txg::Gate::failure)).
    pub fn export(self: &Arc<Self>) -> Result<()> {
        self.finish_as(PoolState::Exported)
    }

    /// Marks the pool destroyed and stops writing it.
    ///
    /// # Errors
    /// As [`Self::export`].
    pub fn destroy(self: &Arc<Self>) -> Result<()> {
        self.finish_as(PoolState::Destroyed)
    }

    fn finish_as(self: &Arc<Self>, state: PoolState) -> Result<()> {
        if let Some(failure) = self.gate.failure() {
            self.stop();
            return Err(failure);
        }
        self.refuse_suspended()?;
        self.rest();
        if let Err(error) = self.write_last() {
            self.go_on()?;
            return Err(error);
        }
        self.change_config(ConfigChange::State(state));
        self.dirty_labels();
        self.allocator.flush_all();
        if let Err(error) = self.sync() {
            // Some labels may say so by now, and others may take the pool: nothing more is written to it. What was
            // changed is on the disks.
            self.gate.fail(error.clone());
            self.stop();
            return Err(error);
        }
        self.stop();
        let (name, number) = match state {
            PoolState::Destroyed => ("pool_destroy", 2),
            _ => ("pool_export", 1),
        };
        let events = self.pool.events();
        events.set_state(number);
        events.system(name, Vec::new());
        Ok(())
    }

    /// Writes what is left and stops; the labels go on saying that the pool is in use.
    ///
    /// # Errors
    /// What keeps the last groups from being written: what they hold is given up.
    pub fn close(&self) -> Result<()> {
        self.rest();
        let written = self.gate.failure().map_or_else(|| self.write_last(), Err);
        self.stop();
        written
    }

    /// Writes what is left.
    fn write_last(&self) -> Result<()> {
        self.close_logs()?;
        // A group to flush, one for what flushing freed.
        self.allocator.flush_all();
        self.sync()?;
        self.sync()
    }
}
