//! `zfs set` and `zfs inherit`, and the mounts that follow.
//!
//! Invariant: as in [`super`].

use std::collections::BTreeSet;

use cenote_control::plan::PropertySetting;
use cenote_control::protocol::Failure;
use cenote_control::report::DatasetReport;
use cenote_engine::{Error, ErrorKind};

use super::fits::does_not_fit;
use super::remount::affected;
use super::{Doing, Order, Warnings, no_such, places};
use crate::service::mounts::Place;

/// Value of property `canmount`.
const CANMOUNT_OFF: u64 = 0;
/// Properties whose change only shows in a mount that is made anew.
const REMOUNT: [&str; 3] = ["xattr", "acltype", "snapdir"];
/// Properties that a mount can follow while it is in use.
const FOLLOWED: [&str; 6] = ["readonly", "exec", "setuid", "devices", "atime", "relatime"];

pub(super) struct Set<'a> {
    pub(super) dataset: &'a str,
    pub(super) properties: &'a [PropertySetting],
    /// Mounts move and follow.
    pub(super) mount: bool,
}

impl Order for Set<'_> {
    fn cannot(&self, _: &str) -> String {
        format!("cannot set property for '{}'", self.dataset)
    }

    fn words(&self, error: &Error) -> Option<String> {
        match error.kind() {
            ErrorKind::Unsupported => Some(error.reason().to_owned()),
            ErrorKind::NoSpace if error.reason().starts_with("size is ") => {
                Some(error.reason().to_owned())
            }
            ErrorKind::NoSpace => Some("size is greater than available space".to_owned()),
            _ => None,
        }
    }

    fn carry_out(&self, doing: &Doing<'_>) -> Result<Warnings, Failure> {
        let all = doing.all()?;
        let Some(dataset) = all.iter().find(|dataset| dataset.name == self.dataset) else {
            return Err(no_such(self.dataset));
        };
        for property in self.properties {
            if let Some((kind, reason)) = does_not_fit(dataset, property) {
                return Err(doing.refuse(kind, &reason));
            }
        }
        // A filesystem that has this version has it already.
        let now = dataset.properties.number("version");
        let has = |one: &PropertySetting| one.name == "version" && one.value.number() == now;
        let properties: Vec<PropertySetting> =
            self.properties.iter().filter(|one| !has(one)).cloned().collect();
        if properties.is_empty() {
            return Ok(Vec::new());
        }
        // Other values of canmount leave a mount, or what is not mounted, as it is.
        let ends = |one: &PropertySetting| {
            one.name == "canmount" && one.value.number() == Some(CANMOUNT_OFF)
        };
        let touched = Touched {
            dataset: self.dataset,
            properties: properties.iter().map(|property| property.name.as_str()).collect(),
            mount: self.mount,
            ends: properties.iter().any(ends),
        };
        touched.change(doing, &|| {
            let changes = &doing.service.changes;
            let noted = changes.set_properties(self.dataset, &properties, doing.command)?;
            doing.noted.set(noted && doing.command.is_some());
            Ok(())
        })
    }
}

pub(super) struct Inherit<'a> {
    pub(super) dataset: &'a str,
    pub(super) property: &'a str,
    pub(super) received: bool,
}

impl Order for Inherit<'_> {
    fn cannot(&self, _: &str) -> String {
        format!("cannot inherit {} for '{}'", self.property, self.dataset)
    }

    fn carry_out(&self, doing: &Doing<'_>) -> Result<Warnings, Failure> {
        let changes = &doing.service.changes;
        let touched = Touched {
            dataset: self.dataset,
            properties: vec![self.property],
            mount: true,
            ends: false,
        };
        touched.change(doing, &|| {
            changes.inherit(self.dataset, self.property, self.received, doing.command())
        })
    }
}

/// Properties of a dataset that change, and what that means for mounts.
struct Touched<'a> {
    dataset: &'a str,
    properties: Vec<&'a str>,
    mount: bool,
    /// It is not to be mounted any more.
    ends: bool,
}

impl Touched<'_> {
    fn has(&self, name: &str) -> bool {
        self.properties.contains(&name)
    }

    /// What is taken down before the change: `all` is as before it.
    fn moved(&self, all: &[DatasetReport]) -> BTreeSet<String> {
        match (self.mount, self.has("mountpoint")) {
            (true, true) => affected(all, self.dataset, "mountpoint"),
            (true, false) if self.ends => BTreeSet::from([self.dataset.to_owned()]),
            _ => BTreeSet::new(),
        }
    }

    /// Makes the change, with the mounts it concerns taken down before and put up after.
    fn change(
        &self,
        doing: &Doing<'_>,
        make: &dyn Fn() -> cenote_engine::Result<()>,
    ) -> Result<Warnings, Failure> {
        let (service, pool) = (doing.service, doing.pool);
        let before = doing.all()?;
        let mounted = service.mounts.places();
        let moved = self.moved(&before);
        let down: Vec<String> =
            service.mounts.names().into_iter().filter(|name| moved.contains(name)).collect();
        service.mounts.take_down_named(&down, false)?;
        let made = make();
        if made.is_ok() && self.has("mountpoint") {
            places::remove(places::made(&before, |name| down.iter().any(|gone| gone == name)));
        }
        let followed: Vec<&str> =
            FOLLOWED.into_iter().filter(|name| self.mount && self.has(name)).collect();
        let followers: BTreeSet<String> =
            followed.iter().flat_map(|name| affected(&before, self.dataset, name)).collect();
        if made.is_ok() {
            service.mounts.end_temporary(&followers, &followed);
        }
        service.publish(pool)?;
        let fresh = doing.all()?;
        let mut warnings = Vec::new();
        if !moved.is_empty() {
            warnings = service.restore(pool, &fresh, &mounted);
            if made.is_ok() {
                warnings.extend(self.mount_homeless(doing, &before, &fresh, &moved));
            }
        }
        made.map_err(|error| doing.refused(&error))?;
        warnings.extend(service.follow(pool, &fresh, &followers));
        let anew = REMOUNT.iter().find(|name| self.mount && self.has(name));
        if let Some(property) = anew.filter(|_| moved.is_empty()) {
            let concerned = affected(&before, self.dataset, property);
            warnings.extend(remount(doing, &fresh, &concerned, &mounted));
        }
        Ok(warnings)
    }

    /// Mounts all that had no place with the dataset and has one now.
    fn mount_homeless(
        &self,
        doing: &Doing<'_>,
        before: &[DatasetReport],
        fresh: &[DatasetReport],
        moved: &BTreeSet<String>,
    ) -> Warnings {
        let place = |dataset: &DatasetReport| {
            dataset.properties.value("mountpoint").unwrap_or("").to_owned()
        };
        let old = before.iter().find(|dataset| dataset.name == self.dataset).map(place);
        if !matches!(old.as_deref(), None | Some("none" | "legacy" | "-" | "")) {
            return Vec::new();
        }
        let mut due: Vec<&DatasetReport> =
            fresh.iter().filter(|dataset| moved.contains(&dataset.name)).collect();
        due.sort_by_key(|dataset| place(dataset));
        let mounted =
            due.iter().map(|one| doing.service.mount_if_due(doing.pool, fresh, &one.name));
        mounted.filter_map(Result::err).map(|failure| failure.message).collect()
    }
}

/// Mounts anew what is mounted of these datasets.
fn remount(
    doing: &Doing<'_>,
    fresh: &[DatasetReport],
    concerned: &BTreeSet<String>,
    mounted: &[Place],
) -> Warnings {
    let mut warnings = Vec::new();
    let names = mounted.iter().map(|place| &place.dataset);
    for name in names.filter(|name| concerned.contains(*name)) {
        let down = doing.service.mounts.take_down_named(std::slice::from_ref(name), false);
        // all below came down with it
        let up = down.map(|()| doing.service.restore(doing.pool, fresh, mounted));
        match up {
            Ok(lines) => warnings.extend(lines),
            Err(_) => {
                let words = "property may be set but unable to remount filesystem";
                warnings.push(words.to_owned());
            }
        }
    }
    warnings
}
