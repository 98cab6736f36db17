//! Orders about the pool as a whole: its properties, features, guid, checkpoint, `sync`, `destroy`.
//!
//! Invariant: as in [`super`].

use cenote_control::plan::PropertySetting;
use cenote_control::protocol::Failure;
use cenote_engine::{Error, ErrorKind};
use cenote_format::Guid;

use super::{Doing, Order, SUSPENDED, Warnings, places};
use crate::service::changes::Given;
use crate::service::settings::input;

pub(super) struct SetProperty<'a>(pub(super) &'a PropertySetting);

impl Order for SetProperty<'_> {
    fn cannot(&self, pool: &str) -> String {
        format!("cannot set property for '{pool}'")
    }

    fn words(&self, error: &Error) -> Option<String> {
        let words = match error.kind() {
            ErrorKind::NotFound => "no such pool or dataset",
            ErrorKind::Unsupported => "operation not supported on this type of pool",
            ErrorKind::ReadOnly => "pool is read-only",
            _ => return None,
        };
        Some(words.to_owned())
    }

    fn carry_out(&self, doing: &Doing<'_>) -> Result<Warnings, Failure> {
        doing.simply(doing.engine(|live| live.set_pool_property(input(self.0))))
    }
}

pub(super) struct EnableFeatures<'a>(pub(super) &'a [String]);

impl Order for EnableFeatures<'_> {
    fn cannot(&self, pool: &str) -> String {
        format!("cannot upgrade '{pool}'")
    }

    fn carry_out(&self, doing: &Doing<'_>) -> Result<Warnings, Failure> {
        doing.simply(doing.engine(|live| live.enable_features(self.0)))
    }
}

pub(super) struct Reguid(pub(super) Option<u64>);

impl Order for Reguid {
    fn cannot(&self, pool: &str) -> String {
        format!("cannot reguid '{pool}'")
    }

    fn words(&self, error: &Error) -> Option<String> {
        let tells = matches!(error.kind(), ErrorKind::Exists | ErrorKind::NotFound | ErrorKind::Io);
        tells.then(|| error.reason().to_owned())
    }

    fn carry_out(&self, doing: &Doing<'_>) -> Result<Warnings, Failure> {
        doing.simply(doing.service.changes.reguid(self.0.map(Guid)))
    }
}

pub(super) struct Checkpoint {
    pub(super) discard: bool,
}

impl Order for Checkpoint {
    fn cannot(&self, pool: &str) -> String {
        match self.discard {
            false => format!("cannot checkpoint '{pool}'"),
            true => format!("cannot discard checkpoint in '{pool}'"),
        }
    }

    fn words(&self, error: &Error) -> Option<String> {
        match error.kind() {
            ErrorKind::Exists | ErrorKind::NotFound | ErrorKind::Busy => {
                Some(error.reason().to_owned())
            }
            ErrorKind::ReadOnly => Some("pool is read-only".to_owned()),
            _ => None,
        }
    }

    fn carry_out(&self, doing: &Doing<'_>) -> Result<Warnings, Failure> {
        doing.simply(doing.engine(|live| match self.discard {
            true => live.discard_checkpoint(),
            false => live.take_checkpoint(),
        }))
    }
}

pub(super) struct Sync;

impl Order for Sync {
    fn cannot(&self, pool: &str) -> String {
        format!("cannot sync '{pool}'")
    }

    fn suits_read_only(&self) -> bool {
        true
    }

    fn carry_out(&self, doing: &Doing<'_>) -> Result<Warnings, Failure> {
        // A pool that is only read has nothing to write; one that cannot be written any more says so.
        if doing.service.changes.is_only_read() {
            return Ok(Vec::new());
        }
        let done = doing.simply(doing.engine(|live| live.sync()))?;
        doing.service.mounts.changes_are_written();
        Ok(done)
    }
}

pub(super) struct Destroy {
    pub(super) force: bool,
}

impl Order for Destroy {
    fn cannot(&self, pool: &str) -> String {
        format!("cannot destroy '{pool}'")
    }

    fn ends_the_pool(&self) -> bool {
        true
    }

    /// The pool goes, as far as its devices let it.
    fn carry_out_suspended(&self, doing: &Doing<'_>) -> Result<Warnings, Failure> {
        if !self.force {
            return Err(doing.refuse(cenote_control::protocol::FailureKind::Other, SUSPENDED));
        }
        let service = doing.service;
        service.changes.abandon();
        let _order = service.begin_order();
        let name = service.pool()?.name().to_owned();
        service.mounts.unmount_all(true)?;
        service.pool.store(None);
        Ok(vec![format!(
            "'{name}' was suspended: its devices could not be marked as destroyed; use 'zpool \
             labelclear' when they are back"
        )])
    }

    fn carry_out(&self, doing: &Doing<'_>) -> Result<Warnings, Failure> {
        let service = doing.service;
        let mounted = service.mounts.names();
        let made = doing.shown().map(|all| places::made(&all, &mounted)).unwrap_or_default();
        let places = service.mounts.places();
        service.take_down_all(doing.pool, self.force)?;
        service.note_command(Given { command: doing.command, ..doing.by() });
        doing
            .simply(doing.engine(|live| live.destroy()))
            .inspect_err(|_| service.put_back(doing.pool, places))?;
        service.pool.store(None);
        places::remove(made);
        Ok(Vec::new())
    }
}

/// A command line for the history, and nothing else.
pub(super) struct Log;

impl Order for Log {
    fn cannot(&self, pool: &str) -> String {
        format!("cannot write the history of '{pool}'")
    }

    fn carry_out(&self, _: &Doing<'_>) -> Result<Warnings, Failure> {
        Ok(Vec::new())
    }
}
