//! `zinject`: faults on purpose, and that they happen no more.
//!
//! Invariant: faults can be taken back while devices fail, for that waits for nothing.

use std::time::Duration;

use cenote_control::faults::{FaultAt, FaultOrder};
use cenote_control::protocol::{Failure, FailureKind};

use super::{Doing, Order, Warnings};
use crate::service::faults;

/// Longest wait for what was written before a fault of reads.
const PATIENCE: Duration = Duration::from_secs(3);

pub(super) struct Inject<'a>(pub(super) &'a FaultOrder);

impl Order for Inject<'_> {
    fn cannot(&self, _: &str) -> String {
        "failed to add handler".to_owned()
    }

    fn is_urgent(&self) -> bool {
        true
    }

    fn suits_read_only(&self) -> bool {
        true
    }

    fn changes_what_is_published(&self) -> bool {
        false
    }

    fn carry_out(&self, doing: &Doing<'_>) -> Result<Warnings, Failure> {
        match self.0 {
            FaultOrder::Device(fault) => {
                let leaf = doing.device(&fault.device)?;
                // Who reads what was just written is to meet the fault, not memory.
                if matches!(fault.at, FaultAt::Read | FaultAt::Any) {
                    doing.has_all_written();
                }
                let id = doing.pool.vdevs().inject(leaf, faults::of_device(fault));
                let id = id.ok_or_else(|| {
                    let reason = format!("'{}' is no device of its own", fault.device);
                    doing.refuse(FailureKind::NotFound, &reason)
                })?;
                tracing::warn!(id, leaf = leaf.0, ?fault, "a fault on purpose");
            }
            FaultOrder::Object(fault) => {
                // What was just made has no blocks yet.
                doing.has_all_written();
                let objset = match fault.dataset.parse() {
                    Ok(number) => number,
                    Err(_) => {
                        let found = doing.pool.catalog().dataset_named(&fault.dataset);
                        found.map_err(|error| doing.refused(&error))?.id.0
                    }
                };
                let own = faults::of_object(fault, objset);
                let id = doing
                    .pool
                    .inject_object(own)
                    .map_err(|error| doing.refuse(FailureKind::Other, &error.to_string()))?;
                tracing::warn!(id, ?fault, "a fault on purpose");
            }
            FaultOrder::Death(function) => {
                let id = doing.pool.vdevs().next_fault();
                doing.service.deaths.add(id, function);
                tracing::warn!(id, function, "a death on purpose");
            }
        }
        Ok(Vec::new())
    }
}

impl Doing<'_> {
    /// Has the newest group written, if that is soon done.
    fn has_all_written(&self) {
        let _ = self.service.changes.live().and_then(|live| live.sync_within(PATIENCE));
    }
}

pub(super) struct Forget(pub(super) Option<u64>);

impl Order for Forget {
    fn cannot(&self, _: &str) -> String {
        "failed to remove handler".to_owned()
    }

    fn is_urgent(&self) -> bool {
        true
    }

    fn suits_read_only(&self) -> bool {
        true
    }

    fn changes_what_is_published(&self) -> bool {
        false
    }

    fn carry_out(&self, doing: &Doing<'_>) -> Result<Warnings, Failure> {
        let of_blocks = doing.pool.io().pipe.faulty().forget(self.0);
        let of_orders = doing.service.deaths.forget(self.0);
        let gone = doing.pool.vdevs().forget_injected(self.0) + of_blocks + of_orders;
        if gone == 0 && self.0.is_some() {
            return Err(doing.refuse(FailureKind::NotFound, "there is no such fault"));
        }
        tracing::warn!(gone, "faults on purpose are forgotten");
        Ok(Vec::new())
    }
}
