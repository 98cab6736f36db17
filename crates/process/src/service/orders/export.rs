//! `zpool export`.
//!
//! Invariant: a pool that cannot be exported stays open, with everything mounted that was.

use cenote_control::protocol::{Failure, FailureKind};
use cenote_engine::Error;

use super::{Doing, Order, SUSPENDED, Warnings, places};
use crate::service::changes::Given;

pub(super) struct Export {
    /// Even if filesystems are in use.
    pub(super) force: bool,
}

impl Order for Export {
    fn cannot(&self, pool: &str) -> String {
        format!("cannot export '{pool}'")
    }

    fn words(&self, error: &Error) -> Option<String> {
        Some(error.to_string())
    }

    fn suits_read_only(&self) -> bool {
        true
    }

    fn ends_the_pool(&self) -> bool {
        true
    }

    /// What is not on the disks is given up.
    fn carry_out_suspended(&self, doing: &Doing<'_>) -> Result<Warnings, Failure> {
        if !self.force {
            return Err(doing.refuse(FailureKind::Busy, SUSPENDED));
        }
        let service = doing.service;
        // Before anything waits for the pool: who waits is told.
        let last = service.changes.abandon();
        let _turn = service.begin_order();
        let name = service.pool()?.name().to_owned();
        service.take_down_all(doing.pool, self.force)?;
        service.pool.store(None);
        Ok(vec![format!(
            "'{name}' was suspended: what was changed after transaction group {last} and not \
             synced is not on the disks"
        )])
    }

    fn carry_out(&self, doing: &Doing<'_>) -> Result<Warnings, Failure> {
        let service = doing.service;
        if service.has_streams() {
            return Err(doing.refuse(FailureKind::Busy, "pool is busy"));
        }
        let mounted = service.mounts.names();
        let made = doing.shown().map(|all| places::made(&all, &mounted)).unwrap_or_default();
        let places = service.mounts.places();
        service.take_down_all(doing.pool, self.force)?;
        let mut warnings = Vec::new();
        service.note_command(Given { command: doing.command, ..doing.by() });
        if let Err(error) = service.changes.export() {
            if !service.changes.has_stopped() {
                // A pool that stays stays whole.
                service.put_back(doing.pool, places);
                return Err(doing.refused(&error));
            }
            let name = doing.pool.name();
            warnings.push(format!(
                "'{name}' had stopped ({error}): what was changed after its last transaction group and not synced is \
                 not on the disks"
            ));
        }
        service.pool.store(None);
        places::remove(made);
        Ok(warnings)
    }
}
