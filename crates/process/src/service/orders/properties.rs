//! `zfs set` and `zfs inherit`, and the mounts that follow.
//!
//! Invariant: as in [`super`].

use std::collections::BTreeSet;

use cenote_control::changes::DatasetSettings;
use cenote_control::peer::Peer;
use cenote_control::plan::PropertySetting;
use cenote_control::protocol::Failure;
use cenote_control::report::DatasetReport;
use cenote_engine::{Error, ErrorKind};

use super::fits::does_not_fit;
use super::remount::{FOLLOWED, REMOUNT, affected, nearest};
use super::{Doing, Order, Warnings, no_dataset, places};
use crate::service::changes::is_inside;
use crate::service::datasets::{Datasets, Shown};
use crate::service::delegation::Need;
use crate::service::mounts::Place;

/// Value of property `canmount`.
const CANMOUNT_OFF: u64 = 0;

/// Whether mounts move with a property or follow it.
fn concerns_mounts(property: &str) -> bool {
    matches!(property, "mountpoint" | "canmount")
        || REMOUNT.contains(&property)
        || FOLLOWED.contains(&property)
}

pub(super) struct Set<'a> {
    pub(super) datasets: &'a [DatasetSettings],
    /// Mounts move and follow.
    pub(super) mount: bool,
}

impl Order for Set<'_> {
    fn cannot(&self, _: &str) -> String {
        let first = self.datasets.first().map_or("", |one| one.dataset.as_str());
        format!("cannot set property for '{first}'")
    }

    fn needs(&self, _: &Shown, _: &Peer) -> Option<Vec<Need>> {
        let of = |one: &DatasetSettings| -> Vec<Need> {
            let names = one.properties.iter().map(|property| property.name.as_str());
            names.map(|name| Need::of_property(name, &one.dataset)).collect()
        };
        Some(self.datasets.iter().flat_map(of).collect())
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

    fn moves_mounts(&self) -> bool {
        let mut all = self.datasets.iter().flat_map(|one| &one.properties);
        // What is kept inside may need the dataset opened, and closed again.
        all.any(|one| is_inside(one) || self.mount && concerns_mounts(&one.name))
    }

    fn carry_out(&self, doing: &Doing<'_>) -> Result<Warnings, Failure> {
        if self.datasets.len() < 2 {
            return self.set(doing);
        }
        // What is kept inside goes into its dataset alone.
        let is_plain = !self.datasets.iter().flat_map(|one| &one.properties).any(is_inside);
        if is_plain && let Ok(warnings) = self.set(doing) {
            return Ok(warnings);
        }
        let each = self.datasets.iter().map(std::slice::from_ref);
        doing.one_by_one(each.map(|datasets| Set { datasets, ..*self }))
    }
}

impl Set<'_> {
    /// Sets all or nothing.
    fn set(&self, doing: &Doing<'_>) -> Result<Warnings, Failure> {
        let all = doing.shown()?;
        let mut due = Vec::with_capacity(self.datasets.len());
        for settings in self.datasets {
            let found = all.find(&settings.dataset).ok_or_else(|| no_dataset(&settings.dataset))?;
            let mut settings = settings.clone();
            for property in &settings.properties {
                if let Some((kind, reason)) = does_not_fit(&found, property) {
                    return Err(doing.refuse(kind, &reason));
                }
            }
            // A filesystem that has this version has it already.
            let now = found.properties.number("version");
            settings.properties.retain(|one| one.name != "version" || one.value.number() != now);
            if !settings.properties.is_empty() {
                due.push(settings);
            }
        }
        if due.is_empty() {
            return Ok(Vec::new());
        }
        let properties = || due.iter().flat_map(|one| &one.properties);
        // Other values of canmount leave a mount, or what is not mounted, as it is.
        let ends = |one: &PropertySetting| {
            one.name == "canmount" && one.value.number() == Some(CANMOUNT_OFF)
        };
        let touched = Touched {
            datasets: due.iter().map(|one| one.dataset.as_str()).collect(),
            properties: properties().map(|property| property.name.as_str()).collect(),
            mount: self.mount,
            ends: properties().any(ends),
        };
        let changes = &doing.service.changes;
        touched.change(doing, &all, &|| changes.set_properties(&due, doing.given()))
    }
}

pub(super) struct Inherit<'a> {
    pub(super) datasets: &'a [String],
    pub(super) property: &'a str,
    pub(super) received: bool,
}

impl Order for Inherit<'_> {
    fn cannot(&self, _: &str) -> String {
        let first = self.datasets.first().map_or("", String::as_str);
        format!("cannot inherit {} for '{first}'", self.property)
    }

    fn needs(&self, _: &Shown, _: &Peer) -> Option<Vec<Need>> {
        let all = self.datasets.iter();
        Some(all.map(|name| Need::of_property(self.property, name)).collect())
    }

    fn moves_mounts(&self) -> bool {
        concerns_mounts(self.property)
    }

    fn carry_out(&self, doing: &Doing<'_>) -> Result<Warnings, Failure> {
        let done = self.inherit(doing);
        if done.is_ok() || self.datasets.len() < 2 {
            return done;
        }
        let each = self.datasets.iter().map(std::slice::from_ref);
        doing.one_by_one(each.map(|datasets| Inherit { datasets, ..*self }))
    }
}

impl Inherit<'_> {
    /// All of them or none.
    fn inherit(&self, doing: &Doing<'_>) -> Result<Warnings, Failure> {
        let changes = &doing.service.changes;
        let touched = Touched {
            datasets: self.datasets.iter().map(String::as_str).collect(),
            properties: BTreeSet::from([self.property]),
            mount: true,
            ends: false,
        };
        touched.change(doing, &doing.shown()?, &|| {
            changes.inherit(self.datasets, self.property, self.received, doing.given())
        })
    }
}

/// Properties of datasets that change, and what that means for mounts.
struct Touched<'a> {
    datasets: BTreeSet<&'a str>,
    properties: BTreeSet<&'a str>,
    mount: bool,
    /// They are not to be mounted any more.
    ends: bool,
}

impl Touched<'_> {
    fn has(&self, name: &str) -> bool {
        self.properties.contains(name)
    }

    /// What is taken down before the change: `all` is as before it.
    fn moved(&self, all: &dyn Datasets) -> BTreeSet<String> {
        match (self.mount, self.has("mountpoint")) {
            (true, true) => affected(all, &self.datasets, "mountpoint"),
            (true, false) if self.ends => self.datasets.iter().map(|&name| name.into()).collect(),
            _ => BTreeSet::new(),
        }
    }

    /// Makes the change, with the mounts it concerns taken down before and put up after; `before` are all
    /// datasets as they are now.
    fn change(
        &self,
        doing: &Doing<'_>,
        before: &dyn Datasets,
        make: &dyn Fn() -> cenote_engine::Result<()>,
    ) -> Result<Warnings, Failure> {
        let (service, pool) = (doing.service, doing.pool);
        let mounted = service.mounts.places();
        let moved = self.moved(before);
        let down: Vec<String> =
            service.mounts.names().into_iter().filter(|name| moved.contains(name)).collect();
        service.take_down(pool, &down, false)?;
        let made = make();
        if made.is_ok() && self.has("mountpoint") {
            places::remove(places::made(before, &down));
        }
        let followed: Vec<&str> =
            FOLLOWED.into_iter().filter(|name| self.mount && self.has(name)).collect();
        let followers: BTreeSet<String> =
            followed.iter().flat_map(|name| affected(before, &self.datasets, name)).collect();
        if made.is_ok() {
            service.mounts.end_temporary(&followers, &followed);
        }
        service.publish_quietly(pool);
        let fresh = doing.shown()?;
        let mut warnings = Vec::new();
        if !moved.is_empty() {
            warnings = service.restore(pool, &fresh, &mounted, doing.on_behalf());
            if made.is_ok() {
                warnings.extend(self.mount_homeless(doing, before, &fresh, &moved));
            }
        }
        made.map_err(|error| doing.refused(&error))?;
        warnings.extend(service.follow(pool, &fresh, &followers, doing.on_behalf()));
        let anew = REMOUNT.iter().find(|name| self.mount && self.has(name));
        if let Some(property) = anew.filter(|_| moved.is_empty()) {
            let concerned = affected(before, &self.datasets, property);
            warnings.extend(remount(doing, &fresh, &concerned, &mounted));
        }
        Ok(warnings)
    }

    /// Mounts all that had no place with one of the datasets and has one now.
    fn mount_homeless(
        &self,
        doing: &Doing<'_>,
        before: &dyn Datasets,
        fresh: &dyn Datasets,
        moved: &BTreeSet<String>,
    ) -> Warnings {
        let place = |dataset: &DatasetReport| {
            dataset.properties.value("mountpoint").unwrap_or("").to_owned()
        };
        let was_homeless = |name: &str| {
            let found = before.find(name);
            found.is_some_and(|one| matches!(place(&one).as_str(), "none" | "legacy" | "-" | ""))
        };
        let homeless: BTreeSet<&str> =
            self.datasets.iter().copied().filter(|name| was_homeless(name)).collect();
        let is_due = |name: &&String| {
            nearest(&self.datasets, name).is_some_and(|nearest| homeless.contains(nearest))
        };
        let mut due: Vec<DatasetReport> =
            moved.iter().filter(is_due).filter_map(|name| fresh.find(name)).collect();
        due.sort_by_key(place);
        let mounted = due.iter().map(|one| doing.mount_if_due(fresh, &one.name));
        mounted.filter_map(Result::err).map(|failure| failure.message).collect()
    }
}

/// Mounts anew what is mounted of these datasets.
fn remount(
    doing: &Doing<'_>,
    fresh: &dyn Datasets,
    concerned: &BTreeSet<String>,
    mounted: &[Place],
) -> Warnings {
    let mut warnings = Vec::new();
    let names = mounted.iter().map(|place| &place.dataset);
    for name in names.filter(|name| concerned.contains(*name)) {
        let down = doing.service.take_down(doing.pool, std::slice::from_ref(name), false);
        // all below came down with it
        let up =
            down.map(|()| doing.service.restore(doing.pool, fresh, mounted, doing.on_behalf()));
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
