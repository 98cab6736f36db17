//! `zpool export`.
//!
//! Invariant: a pool that cannot be exported stays open, with everything mounted that was.

use cenote_control::protocol::{Failure, FailureKind};
use cenote_engine::Error;

use super::{Doing, Order, SUSPENDED, Warnings, places};
use crate::service::changes::Given;
use crate::service::mounts::Place;

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
        let mut warnings = self.take_down(doing)?;
        service.pool.store(None);
        warnings.push(format!(
            "'{name}' was suspended: what was changed after transaction group {last} and not \
             synced is not on the disks"
        ));
        Ok(warnings)
    }

    fn carry_out(&self, doing: &Doing<'_>) -> Result<Warnings, Failure> {
        let service = doing.service;
        let receives = service.changes.live().is_ok_and(|live| live.is_receiving());
        if receives || !doing.pool.kept().is_empty() {
            return Err(doing.refuse(FailureKind::Busy, "pool is busy"));
        }
        let mounted = service.mounts.names();
        let made = doing.shown().map(|all| places::made(&all, &mounted)).unwrap_or_default();
        let places = service.mounts.places();
        let mut warnings = self.take_down(doing)?;
        service.note_command(Given { command: doing.command, ..doing.by() });
        if let Err(error) = service.changes.export() {
            if !service.changes.has_stopped() {
                Self::mount_again(doing, places);
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

impl Export {
    fn take_down(&self, doing: &Doing<'_>) -> Result<Warnings, Failure> {
        let mounts = &doing.service.mounts;
        let places = mounts.places();
        mounts.unmount_all(self.force).inspect_err(|_| Self::mount_again(doing, places))
    }

    /// A pool that stays stays whole.
    fn mount_again(doing: &Doing<'_>, places: Vec<Place>) {
        if let Ok(datasets) = doing.shown() {
            doing.service.mounts.restore(doing.pool, &datasets, places);
        }
    }
}
