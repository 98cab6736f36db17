//! `zfs mount` and `zfs unmount`.
//!
//! Invariant: as in [`super`]; the rules of mounting are those of [`crate::service::mounts`].

use cenote_control::changes::{MountRequest, UnmountRequest};
use cenote_control::peer::Peer;
use cenote_control::protocol::{Failure, FailureKind};

use super::{Doing, Order, SUSPENDED, Warnings};
use crate::service::datasets::{Datasets, Shown};
use crate::service::delegation::Need;

pub(super) struct Mount<'a>(pub(super) &'a MountRequest);

impl Order for Mount<'_> {
    fn cannot(&self, pool: &str) -> String {
        format!("cannot mount '{}'", self.0.dataset.as_deref().unwrap_or(pool))
    }

    fn denial(&self, pool: &str) -> String {
        format!("{}: Insufficient privileges", self.cannot(pool))
    }

    fn needs(&self, all: &Shown, _: &Peer) -> Option<Vec<Need>> {
        let name = self.0.dataset.as_deref()?;
        let names = match self.0.recursive {
            true => all.below(name).into_iter().map(|(name, _)| name).collect(),
            false => vec![name.to_owned()],
        };
        let filesystems = names.iter().filter(|name| !name.contains(['@', '#']));
        Some(filesystems.map(|name| Need::new("mount", name)).collect())
    }

    fn suits_read_only(&self) -> bool {
        true
    }

    fn carry_out_suspended(&self, doing: &Doing<'_>) -> Result<Warnings, Failure> {
        doing.as_ever()
    }

    fn carry_out(&self, doing: &Doing<'_>) -> Result<Warnings, Failure> {
        let told = |done, total| doing.replies.progress(done, total);
        let request = MountRequest { on_behalf: doing.on_behalf(), ..self.0.clone() };
        doing.service.mounts.mount(doing.pool, &doing.shown()?, &request, &told)
    }
}

pub(super) struct Unmount<'a>(pub(super) &'a UnmountRequest);

impl Order for Unmount<'_> {
    fn cannot(&self, pool: &str) -> String {
        format!("cannot unmount '{}'", self.0.dataset.as_deref().unwrap_or(pool))
    }

    /// Whose keys go with it is known, and checked, when it has been unmounted.
    fn needs(&self, _: &Shown, _: &Peer) -> Option<Vec<Need>> {
        Some(vec![Need::new("mount", self.0.dataset.as_deref()?)])
    }

    fn suits_read_only(&self) -> bool {
        true
    }

    /// Where something is mounted is shown as it is, without that.
    fn changes_what_is_published(&self) -> bool {
        self.0.unload_keys
    }

    /// The kernel would wait for what it has still to write.
    fn carry_out_suspended(&self, doing: &Doing<'_>) -> Result<Warnings, Failure> {
        match self.0.force {
            true => doing.as_ever(),
            false => Err(doing.refuse(FailureKind::Busy, &format!("{SUSPENDED}; -f cuts it off"))),
        }
    }

    fn carry_out(&self, doing: &Doing<'_>) -> Result<Warnings, Failure> {
        let (service, pool, all) = (doing.service, doing.pool, doing.shown()?);
        let places = service.mounts.places();
        let mut warnings = service.mounts.unmount(&all, self.0)?;
        if self.0.unload_keys {
            let goes_on = self.0.dataset.is_none();
            match service.unload_unmounted(doing, &all, &places, goes_on) {
                Ok(lines) => warnings.extend(lines),
                Err(failure) => {
                    service.mounts.restore(pool, &all, places);
                    return Err(failure);
                }
            }
        }
        Ok(warnings)
    }
}
