//! Orders about devices: `zpool add`, `remove`, `clear`.
//!
//! Invariant: clearing waits for no order under way and for no transaction group.

use cenote_control::plan::VdevPlan;
use cenote_control::protocol::{Failure, FailureKind};
use cenote_control::report::{VdevClass, VdevReport};
use cenote_control::server::PoolService;
use cenote_control::text::vdev_name;
use cenote_engine::vdev::VdevState;
use cenote_engine::{Error, ErrorKind};
use cenote_format::Guid;

use super::{Doing, Order, SUSPENDED, Warnings};
use crate::service::Service;

pub(super) struct Add<'a>(pub(super) &'a [VdevPlan]);

impl Order for Add<'_> {
    fn function(&self) -> Option<&'static str> {
        Some("spa_vdev_add")
    }

    fn cannot(&self, pool: &str) -> String {
        format!("cannot add to '{pool}'")
    }

    fn words(&self, error: &Error) -> Option<String> {
        match error.kind() {
            ErrorKind::ReadOnly => Some("pool is read-only".to_owned()),
            ErrorKind::Exists | ErrorKind::Busy => Some(error.reason().to_owned()),
            _ => None,
        }
    }

    fn carry_out(&self, doing: &Doing<'_>) -> Result<Warnings, Failure> {
        doing.simply(doing.service.changes.add_vdevs(self.0))
    }
}

pub(super) struct Remove<'a>(pub(super) &'a str);

impl Order for Remove<'_> {
    fn function(&self) -> Option<&'static str> {
        Some("spa_vdev_remove")
    }

    fn cannot(&self, _: &str) -> String {
        format!("cannot remove {}", self.0)
    }

    fn words(&self, error: &Error) -> Option<String> {
        use ErrorKind::{
            Busy, Exists, InvalidArgument, Io, NoSpace, NotFound, Permission, Unsupported,
        };
        match error.kind() {
            NotFound | Busy | Unsupported | InvalidArgument | NoSpace | Io | Exists
            | Permission => Some(error.reason().to_owned()),
            ErrorKind::ReadOnly => Some("pool is read-only".to_owned()),
            _ => None,
        }
    }

    fn carry_out(&self, doing: &Doing<'_>) -> Result<Warnings, Failure> {
        let guid = doing.device(self.0)?;
        doing.simply(doing.engine(|live| live.remove_vdev(guid)))
    }
}

pub(super) struct CancelRemoval;

impl Order for CancelRemoval {
    fn cannot(&self, _: &str) -> String {
        "cannot cancel removal".to_owned()
    }

    fn words(&self, error: &Error) -> Option<String> {
        match error.kind() {
            ErrorKind::NotFound => Some("operation is not in progress".to_owned()),
            ErrorKind::ReadOnly => Some("pool is read-only".to_owned()),
            _ => None,
        }
    }

    fn carry_out(&self, doing: &Doing<'_>) -> Result<Warnings, Failure> {
        doing.simply(doing.engine(|live| live.cancel_removal()))
    }
}

/// Looks for devices that came back or grew, also while the pool is suspended.
pub(super) struct Reopen;

impl Order for Reopen {
    fn cannot(&self, pool: &str) -> String {
        format!("cannot reopen '{pool}'")
    }

    fn words(&self, error: &Error) -> Option<String> {
        (error.kind() == ErrorKind::ReadOnly).then(|| "pool is read-only".to_owned())
    }

    fn moves_mounts(&self) -> bool {
        false
    }

    fn carry_out_suspended(&self, doing: &Doing<'_>) -> Result<Warnings, Failure> {
        self.carry_out(doing)?;
        doing.service.changes.cleared();
        Ok(Vec::new())
    }

    fn carry_out(&self, doing: &Doing<'_>) -> Result<Warnings, Failure> {
        doing.simply(doing.engine(|live| live.look_again()))
    }
}

/// Devices are forgiven, and a suspended pool tries to go on.
pub(super) struct Clear<'a>(pub(super) Option<&'a str>);

impl Order for Clear<'_> {
    fn cannot(&self, pool: &str) -> String {
        format!("cannot clear errors for {}", self.0.unwrap_or(pool))
    }

    fn words(&self, error: &Error) -> Option<String> {
        (error.kind() == ErrorKind::ReadOnly).then(|| "pool is read-only".to_owned())
    }

    fn is_urgent(&self) -> bool {
        true
    }

    fn carry_out(&self, doing: &Doing<'_>) -> Result<Warnings, Failure> {
        let vdevs = doing.pool.vdevs();
        let guid = self.0.map(|device| doing.device(device)).transpose()?;
        // Errors of a pool that is only read stay.
        doing.service.changes.live().map_err(|error| doing.refused(&error))?;
        let aside = guid.and_then(|guid| doing.aside(guid));
        if aside.is_some_and(|class| class != VdevClass::Cache) {
            return Err(doing.reserved());
        }
        let before = vdevs.status();
        // What is forgiven is not found too bad again while that is written down.
        vdevs.clear(guid);
        if let Err(error) = doing.engine(|live| live.trust(guid)) {
            tracing::info!(%error, "that devices are trusted again is not recorded");
        }
        vdevs.reopen();
        vdevs.clear(guid);
        vdevs.events().forget_told();
        if let Some(root) = before {
            let node = guid.map_or(Some(&root), |guid| root.find(guid));
            // OpenZFS tells of it where something was wrong; elsewhere, that it wrote the configuration.
            match node.filter(|node| node.condition.state != VdevState::Online) {
                Some(node) => {
                    vdevs.events().system("vdev_clear", vdevs.named_in_event(node.config.guid));
                }
                None => vdevs.events().system("config_sync", Vec::new()),
            }
        }
        doing.pool.io().pipe.faults().forget_passing();
        match doing.service.changes.cleared() {
            None => Ok(Vec::new()),
            Some(why) => {
                let words = format!("{SUSPENDED}: {}", why.reason());
                Err(doing.refuse(FailureKind::Other, &words))
            }
        }
    }
}

impl Doing<'_> {
    /// A device of the pool, spares and cache devices included: by path, the end of that, name or
    /// guid.
    pub(super) fn device(&self, device: &str) -> Result<Guid, Failure> {
        fn find<'a>(node: &'a VdevReport, device: &str) -> Option<&'a VdevReport> {
            let is_it = vdev_name::answers_to(node, device);
            let below = || node.children.iter().find_map(|child| find(child, device));
            if is_it && vdev_name::is_shown(node) { Some(node) } else { below() }
        }
        let report = Service::report(self.service);
        let all = std::iter::once(&report.root).chain(&report.spares).chain(&report.caches);
        let found = all.into_iter().find_map(|node| find(node, device));
        let unknown = || self.refuse(FailureKind::NotFound, "no such device in pool");
        found.map(|node| Guid(node.guid)).ok_or_else(unknown)
    }

    /// A device that holds something of the pool: neither a hot spare that waits nor a cache device.
    pub(super) fn member(&self, device: &str) -> Result<Guid, Failure> {
        let guid = self.device(device)?;
        match self.aside(guid) {
            None => Ok(guid),
            Some(VdevClass::Cache) => {
                Err(self.refuse(FailureKind::Busy, "device is in use as a cache"))
            }
            Some(_) => Err(self.reserved()),
        }
    }

    fn reserved(&self) -> Failure {
        self.refuse(FailureKind::Busy, "device is reserved as a hot spare")
    }

    /// What the device waits for that stands aside of those that hold the pool; `None` for one that does not.
    pub(super) fn aside(&self, device: Guid) -> Option<VdevClass> {
        if self.pool.vdevs().topology().find(device).is_some() {
            return None;
        }
        let report = Service::report(self.service);
        let mut all = report.spares.iter().chain(&report.caches);
        all.find(|vdev| vdev.guid == device.0).map(|vdev| vdev.class)
    }
}
