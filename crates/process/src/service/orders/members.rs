//! Orders about members of vdevs: `zpool attach`, `replace`, `detach`, `offline`, `online`.
//!
//! Invariant: as in [`super`].

use std::path::Path;

use cenote_control::plan::VdevPlan;
use cenote_control::protocol::{Failure, FailureKind};
use cenote_control::report::VdevClass;
use cenote_control::text::number;
use cenote_device::partition_path;
use cenote_engine::pool::in_use::device_in_use;
use cenote_engine::vdev::VdevState;
use cenote_engine::{Error, ErrorKind};
use cenote_format::Guid;

use super::{Doing, Order, Warnings};

/// What the engine says of a device that is too small.
const TOO_SMALL: &str = "device is too small";

/// `zpool attach` and `zpool replace`.
pub(super) struct TakeIn<'a> {
    /// The device that is there.
    other: &'a str,
    /// The new one.
    device: &'a VdevPlan,
    /// It takes the place of the other.
    replaces: bool,
    /// It gets everything in the order of the disks.
    sequential: bool,
}

/// What the engine says is said of members.
pub(super) fn own_words(error: &Error) -> Option<String> {
    match error.kind() {
        ErrorKind::NotFound => Some("no such device in pool".to_owned()),
        ErrorKind::Busy
        | ErrorKind::Unsupported
        | ErrorKind::InvalidArgument
        | ErrorKind::Exists => Some(error.reason().to_owned()),
        ErrorKind::ReadOnly => Some("pool is read-only".to_owned()),
        _ => None,
    }
}

/// Whether a device is open and may be read.
fn is_readable(doing: &Doing<'_>, device: Guid) -> bool {
    let status = doing.pool.vdevs().status();
    let own = status.as_ref().and_then(|root| root.find(device));
    own.is_some_and(|own| own.condition.state.is_readable())
}

impl<'a> TakeIn<'a> {
    /// The order: whether the device takes the place of the other, and gets everything in the order of the
    /// disks.
    pub(super) fn order(
        other: &'a str,
        device: &'a VdevPlan,
        (replaces, sequential): (bool, bool),
    ) -> Box<dyn Order + 'a> {
        Box::new(Self { other, device, replaces, sequential })
    }

    /// The refusal of a device that is too small, with what it has and what it would need.
    fn too_small(&self, doing: &Doing<'_>, other: Guid) -> Error {
        let path = self.device.path.as_deref().unwrap_or_default();
        let Some(least) = doing.pool.vdevs().size_needed(other) else {
            return Error::invalid(TOO_SMALL);
        };
        let (mut has, mut needed) = (number::bytes(self.device.size), number::bytes(least));
        if has == needed {
            (has, needed) = (format!("{} bytes", self.device.size), format!("{least} bytes"));
        }
        Error::invalid(format!("{TOO_SMALL}: {path} has {has}, at least {needed} are needed"))
    }

    /// Whether the new device is what the pool has open as the other one, and says of itself that it is no pool's.
    fn is_overwritten(&self, doing: &Doing<'_>, other: Guid) -> bool {
        let Some(path) = self.device.path.as_deref().map(Path::new) else { return false };
        let place = match self.device.whole_disk {
            true => partition_path(path, 1),
            false => path.to_owned(),
        };
        let vdevs = doing.pool.vdevs();
        let old = vdevs.topology().find(other).and_then(|leaf| leaf.path.as_deref());
        let is_there = old.map(Path::new) == Some(place.as_path());
        is_there
            && is_readable(doing, other)
            && device_in_use(&place).is_ok_and(|found| found.is_only_open())
    }
}

impl Order for TakeIn<'_> {
    fn function(&self) -> Option<&'static str> {
        Some("spa_vdev_attach")
    }

    fn cannot(&self, _: &str) -> String {
        let (other, new) = (self.other, self.device.path.as_deref().unwrap_or_default());
        match self.replaces {
            true => format!("cannot replace {other} with {new}"),
            false => format!("cannot attach {new} to {other}"),
        }
    }

    fn words(&self, error: &Error) -> Option<String> {
        own_words(error)
    }

    fn moves_mounts(&self) -> bool {
        false
    }

    fn carry_out(&self, doing: &Doing<'_>) -> Result<Warnings, Failure> {
        let other = doing.member(self.other)?;
        let how = (self.replaces, self.sequential);
        let rests = self.replaces && self.is_overwritten(doing, other);
        if rests {
            doing.simply(doing.engine(|live| live.offline(other, true)))?;
        }
        let taken = doing.service.changes.take_in(other, self.device, how);
        if rests && taken.is_err() {
            doing.simply(doing.engine(|live| live.online(other).map(drop)))?;
        }
        doing.simply(taken.map_err(|error| match error.reason() == TOO_SMALL {
            true => self.too_small(doing, other),
            false => error,
        }))
    }
}

/// `zpool detach`.
pub(super) struct Detach<'a>(pub(super) &'a str);

impl Order for Detach<'_> {
    fn function(&self) -> Option<&'static str> {
        Some("spa_vdev_detach")
    }

    fn cannot(&self, _: &str) -> String {
        format!("cannot detach {}", self.0)
    }

    fn words(&self, error: &Error) -> Option<String> {
        own_words(error)
    }

    fn moves_mounts(&self) -> bool {
        false
    }

    fn carry_out(&self, doing: &Doing<'_>) -> Result<Warnings, Failure> {
        let device = doing.member(self.0)?;
        doing.simply(doing.engine(|live| live.let_go(device)))
    }
}

/// `zpool offline`.
pub(super) struct Offline<'a> {
    /// The device.
    pub(super) device: &'a str,
    /// Until the pool is opened anew.
    pub(super) temporary: bool,
    /// It counts as faulty.
    pub(super) faulty: bool,
}

impl Order for Offline<'_> {
    fn cannot(&self, _: &str) -> String {
        format!("cannot offline {}", self.device)
    }

    fn words(&self, error: &Error) -> Option<String> {
        own_words(error)
    }

    fn moves_mounts(&self) -> bool {
        false
    }

    fn carry_out(&self, doing: &Doing<'_>) -> Result<Warnings, Failure> {
        let device = doing.member(self.device)?;
        doing.simply(doing.engine(|live| match self.faulty {
            true => live.fault(device, self.temporary),
            false => live.offline(device, self.temporary),
        }))
    }
}

/// `zinject -A`.
pub(super) struct CountAsBad<'a> {
    /// The device.
    device: &'a str,
    /// It is not used any more.
    faulted: bool,
}

impl<'a> CountAsBad<'a> {
    /// The order for a device; it may be still used, or not.
    pub(super) fn order(device: &'a str, faulted: bool) -> Box<dyn Order + 'a> {
        Box::new(Self { device, faulted })
    }
}

impl Order for CountAsBad<'_> {
    fn cannot(&self, _: &str) -> String {
        "failed to change the state of the device".to_owned()
    }

    fn moves_mounts(&self) -> bool {
        false
    }

    fn carry_out(&self, doing: &Doing<'_>) -> Result<Warnings, Failure> {
        let device = doing.member(self.device)?;
        doing.simply(doing.engine(|live| match self.faulted {
            true => live.fault(device, false),
            false => live.wear_out(device),
        }))
    }
}

/// `zpool online`. A warning says if the device does not work all the same.
pub(super) struct Online<'a> {
    /// The device.
    device: &'a str,
    /// All of it is used.
    expand: bool,
}

impl<'a> Online<'a> {
    /// The order for a device, of which all or what was used before is used.
    pub(super) fn order(device: &'a str, expand: bool) -> Box<dyn Order + 'a> {
        Box::new(Self { device, expand })
    }
}

impl Order for Online<'_> {
    fn cannot(&self, _: &str) -> String {
        format!("cannot online {}", self.device)
    }

    fn words(&self, error: &Error) -> Option<String> {
        own_words(error)
    }

    fn moves_mounts(&self) -> bool {
        false
    }

    fn carry_out(&self, doing: &Doing<'_>) -> Result<Warnings, Failure> {
        let device = doing.device(self.device)?;
        match doing.aside(device) {
            None => {}
            Some(VdevClass::Cache) if self.expand => {
                let words = format!("cannot expand {}: cannot expand cache devices", self.device);
                return Err(Failure::new(FailureKind::NotSupported, words));
            }
            // It is always there.
            Some(VdevClass::Cache) => return Ok(Vec::new()),
            Some(_) => return doing.member(self.device).map(|_| Vec::new()),
        }
        let was_readable = is_readable(doing, device);
        let mut state = VdevState::Online;
        let done = doing.engine(|live| {
            state = live.online(device)?;
            if self.expand && state.is_readable() { live.grow(Some(device)) } else { Ok(()) }
        });
        done.map_err(|error| doing.refused(&error))?;
        if state.is_readable() {
            return Ok(Vec::new());
        }
        let advice = match state {
            VdevState::Faulted => "use 'zpool clear' to restore a faulted device",
            _ => "use 'zpool replace' to replace devices that are no longer present",
        };
        let device = self.device;
        let words = format!("warning: device '{device}' onlined, but remains in faulted state");
        let mut all = vec![words, advice.to_owned()];
        if self.expand {
            let weight = if was_readable { "error" } else { "warning" };
            let words = "failed to expand usable space on unhealthy device";
            all.push(format!("{weight}: {words} '{device}'"));
        }
        Ok(all)
    }
}
