//! `zfs mount` and `zfs unmount`.
//!
//! Invariant: as in [`super`]; the rules of mounting are those of [`crate::service::mounts`].

use cenote_control::changes::{MountRequest, UnmountRequest};
use cenote_control::protocol::Failure;

use super::{Doing, Order, Warnings};

pub(super) struct Mount<'a>(pub(super) &'a MountRequest);

impl Order for Mount<'_> {
    fn cannot(&self, pool: &str) -> String {
        format!("cannot mount '{}'", self.0.dataset.as_deref().unwrap_or(pool))
    }

    fn suits_read_only(&self) -> bool {
        true
    }

    fn carry_out_suspended(&self, doing: &Doing<'_>) -> Result<Warnings, Failure> {
        doing.as_ever()
    }

    fn carry_out(&self, doing: &Doing<'_>) -> Result<Warnings, Failure> {
        let told = |done, total| doing.replies.progress(done, total);
        doing.service.mounts.mount(doing.pool, &doing.shown()?, self.0, &told)
    }
}

pub(super) struct Unmount<'a>(pub(super) &'a UnmountRequest);

impl Order for Unmount<'_> {
    fn cannot(&self, pool: &str) -> String {
        format!("cannot unmount '{}'", self.0.dataset.as_deref().unwrap_or(pool))
    }

    fn suits_read_only(&self) -> bool {
        true
    }

    /// Where something is mounted is shown as it is, without that.
    fn changes_what_is_published(&self) -> bool {
        self.0.unload_keys
    }

    fn carry_out_suspended(&self, doing: &Doing<'_>) -> Result<Warnings, Failure> {
        doing.as_ever()
    }

    fn carry_out(&self, doing: &Doing<'_>) -> Result<Warnings, Failure> {
        let (service, pool, all) = (doing.service, doing.pool, doing.shown()?);
        let places = service.mounts.places();
        let warnings = service.mounts.unmount(&all, self.0)?;
        if self.0.unload_keys
            && let Err(failure) = service.unload_unmounted(pool, &all, &places)
        {
            service.mounts.restore(pool, &all, places);
            return Err(failure);
        }
        Ok(warnings)
    }
}
