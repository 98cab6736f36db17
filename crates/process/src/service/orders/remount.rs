//! Mounts that move with an order.
//!
//! Invariant: what was mounted and is to be mounted is, or a warning says why not.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use cenote_control::changes::MountRequest;
use cenote_control::protocol::{Failure, FailureKind};
use cenote_control::report::Source;
use cenote_engine::pool::Pool;

use super::{Doing, Warnings, is_at_or_below};
use crate::service::Service;
use crate::service::datasets::Datasets;
use crate::service::mounts::Place;

/// Properties that a mount follows only when it is made anew.
pub(super) const REMOUNT: [&str; 3] = ["xattr", "acltype", "snapdir"];
/// Properties that a mount can follow while it is in use.
pub(super) const FOLLOWED: [&str; 6] =
    ["readonly", "exec", "setuid", "devices", "atime", "relatime"];

/// A change of all that a dataset holds.
pub(super) struct Exchange<'a> {
    pub(super) dataset: &'a str,
    /// What was mounted before anything was done.
    pub(super) mounted: &'a [Place],
    /// Whether its files may be those of before.
    pub(super) is_related: bool,
    /// It is unmounted by force where it cannot stay mounted.
    pub(super) force: bool,
}

impl Exchange<'_> {
    /// Makes `change`, which tells whether the dataset holds something else then. What is mounted of it stays, and
    /// what is mounted inside; where that cannot be, it is taken down and mounted again.
    pub(super) fn make<T>(
        &self,
        doing: &Doing<'_>,
        change: impl FnOnce() -> (T, bool),
    ) -> Result<(T, Warnings), Failure> {
        let (service, pool) = (doing.service, doing.pool);
        let before = doing.shown()?;
        let (mut change, mut made) = (Some(change), None);
        let mut make = || {
            made = change.take().map(|change| change());
            made.as_ref().is_some_and(|(_, is_other)| *is_other)
        };
        let report = before.find(self.dataset).filter(|_| self.is_related);
        let reopened = report.and_then(|report| service.mounts.exchange(pool, &report, &mut make));
        let mut anew = Vec::new();
        match reopened {
            None => {
                service.take_down(pool, &[self.dataset.to_owned()], self.force)?;
                make();
            }
            Some(reopened) => {
                anew = reopened.moved;
                anew.extend(reopened.is_lost.then(|| self.dataset.to_owned()));
            }
        }
        let Some((made, is_other)) = made else {
            return Err(doing.refuse(FailureKind::Other, "nothing was changed"));
        };
        if is_other {
            service.changes.follow_properties(&[self.dataset.to_owned()]);
        }
        service.publish_quietly(pool);
        let fresh = doing.shown()?;
        anew.extend(self.differing(service, &before, &fresh, |name| {
            // The files of the dataset itself were opened anew.
            let is_due = |one: &&str| *one == "acltype" || name != self.dataset;
            // What is redacted now is not mounted unless somebody insists.
            REMOUNT.into_iter().filter(is_due).chain(["mountpoint", "redact_snaps"]).collect()
        }));
        let ends = |name: &String| {
            let found = fresh.find(name);
            found.is_none_or(|one| one.properties.value("canmount") == Some("off"))
        };
        let mounted = service.mounts.names().into_iter();
        anew.extend(mounted.filter(|name| name == self.dataset && ends(name)));
        let mut warnings = Vec::new();
        if let Err(failure) = service.take_down(pool, &anew, true) {
            warnings.push(failure.message);
        }
        let on_behalf = doing.on_behalf();
        warnings.extend(service.restore(pool, &fresh, self.mounted, on_behalf));
        let followers = self.differing(service, &before, &fresh, |_| FOLLOWED.to_vec());
        warnings.extend(service.follow(pool, &fresh, &followers, on_behalf));
        Ok((made, warnings))
    }

    /// What is mounted of the dataset and below it, and has other values of `properties` than before.
    fn differing(
        &self,
        service: &Service,
        before: &dyn Datasets,
        fresh: &dyn Datasets,
        properties: impl Fn(&str) -> Vec<&'static str>,
    ) -> BTreeSet<String> {
        let differs = |name: &String| {
            let (Some(before), Some(fresh)) = (before.find(name), fresh.find(name)) else {
                return false;
            };
            let is_other = |one: &str| before.properties.value(one) != fresh.properties.value(one);
            properties(name).into_iter().any(is_other)
        };
        let mounted = service.mounts.names().into_iter();
        mounted.filter(|name| is_at_or_below(name, self.dataset)).filter(differs).collect()
    }
}

impl Service {
    /// Unmounts these and what is mounted below them. If one of them cannot be, those that were are mounted again.
    pub(super) fn take_down(
        &self,
        pool: &Arc<Pool>,
        names: &[String],
        force: bool,
    ) -> Result<(), Failure> {
        let before = self.mounts.places();
        let done = self.mounts.take_down_named(names, force);
        done.inspect_err(|_| self.put_back(pool, before))
    }

    /// Unmounts everything. If something stays, all that was mounted is mounted again.
    pub(super) fn take_down_all(&self, pool: &Arc<Pool>, force: bool) -> Result<(), Failure> {
        let before = self.mounts.places();
        self.mounts.unmount_all(force).inspect_err(|_| self.put_back(pool, before))
    }

    /// Mounts again what was mounted, each where it was.
    pub(super) fn put_back(&self, pool: &Arc<Pool>, before: Vec<Place>) {
        match self.shown() {
            Ok(all) => self.mounts.restore(pool, &all, before),
            Err(failure) => tracing::warn!(%failure, "not mounted again"),
        }
    }

    /// Mounts one filesystem if its properties say that it should be.
    pub(super) fn mount_if_due(
        &self,
        pool: &Arc<Pool>,
        all: &dyn Datasets,
        name: &str,
        on_behalf: Option<u32>,
    ) -> Result<(), Failure> {
        let Some(dataset) = all.find(name) else { return Ok(()) };
        if !self.mounts.is_due(&dataset) {
            return Ok(());
        }
        self.mount_again(pool, all, name, on_behalf)
    }

    /// Mounts one filesystem, at its place of now.
    fn mount_again(
        &self,
        pool: &Arc<Pool>,
        all: &dyn Datasets,
        name: &str,
        on_behalf: Option<u32>,
    ) -> Result<(), Failure> {
        let dataset = Some(name.to_owned());
        let request = MountRequest { dataset, on_behalf, ..MountRequest::default() };
        self.mounts.mount(pool, all, &request, &|_, _| {}).map(|_| ())
    }

    /// Mounts again what was mounted and is not any more, as far as its properties let it: in its old place for
    /// whom it was, in a new one `on_behalf` of who moves it.
    pub(super) fn restore(
        &self,
        pool: &Arc<Pool>,
        all: &dyn Datasets,
        places: &[Place],
        on_behalf: Option<u32>,
    ) -> Warnings {
        let (mut by_hand, mut due) = (Vec::new(), Vec::new());
        for place in places.iter().filter(|place| self.mounts.of(&place.dataset).is_none()) {
            let Some(dataset) = all.find(&place.dataset) else { continue };
            let value = |name: &str| dataset.properties.value(name).unwrap_or("");
            if place.is_by_hand() && !value("mountpoint").starts_with('/') {
                by_hand.push(place.clone());
            } else if value("mountpoint").starts_with('/') && value("canmount") != "off" {
                due.push((value("mountpoint").to_owned(), place));
            }
        }
        due.sort_by(|(one, _), (other, _)| one.cmp(other));
        // Where nothing comes back, directories to mount on may be made at once.
        let comes_back = |place: &Place| {
            due.iter().any(|(at, _)| Path::new(at) == place.at)
                || by_hand.iter().any(|other| other.at == place.at)
        };
        self.mounts.uncover_bare(places.iter().filter(|place| !comes_back(place)));
        let mut warnings = Vec::new();
        for (at, place) in due {
            let stays = Path::new(&at) == place.at;
            let on_behalf = if stays { place.on_behalf() } else { on_behalf };
            if let Err(failure) = self.mount_again(pool, all, &place.dataset, on_behalf) {
                self.mounts.uncover(Path::new(&at));
                warnings.push(failure.message);
            }
        }
        self.mounts.restore(pool, all, by_hand);
        self.mounts.uncover_bare(places);
        warnings
    }

    /// Lets the mounts of these datasets follow their properties.
    pub(super) fn follow(
        &self,
        pool: &Arc<Pool>,
        fresh: &dyn Datasets,
        followers: &BTreeSet<String>,
        on_behalf: Option<u32>,
    ) -> Warnings {
        let mounted = self.mounts.places();
        let mut warnings = Vec::new();
        let mounted_followers = mounted.iter().filter(|place| followers.contains(&place.dataset));
        for dataset in mounted_followers.filter_map(|place| fresh.find(&place.dataset)) {
            if self.mounts.follow(&dataset).is_ok() {
                continue;
            }
            // Not as it is: then anew, with all below.
            let name = std::slice::from_ref(&dataset.name);
            let down = self.take_down(pool, name, false);
            match down.map(|()| self.restore(pool, fresh, &mounted, on_behalf)) {
                Ok(lines) => warnings.extend(lines),
                Err(_) => {
                    let words = "property may be set but unable to remount filesystem";
                    warnings.push(words.to_owned());
                }
            }
        }
        warnings
    }

    /// Lets mounts show that the snapshots called `names` came or went.
    pub(super) fn tell_snapshots(&self, names: &[String]) {
        let mut by_dataset: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (dataset, snapshot) in names.iter().filter_map(|name| name.split_once('@')) {
            by_dataset.entry(dataset).or_default().push(snapshot);
        }
        for (dataset, snapshots) in by_dataset {
            self.mounts.snapshots_changed(dataset, snapshots.into_iter());
        }
    }
}

/// The datasets whose value of a property follows from that of those in `names`: themselves, and those
/// below that inherit it through one of them.
pub(super) fn affected(
    all: &dyn Datasets,
    names: &BTreeSet<&str>,
    property: &str,
) -> BTreeSet<String> {
    let follows = |dataset: &String| match nearest(names, dataset) {
        Some(name) if name == dataset => true,
        Some(name) => match all.source(dataset, property) {
            Some(Source::Inherited(from)) => is_at_or_below(name, &from),
            Some(Source::Default) => true,
            _ => false,
        },
        None => false,
    };
    // What is below another of them is found there.
    let above = |name: &str| nearest(names, name.rsplit_once('/')?.0).map(drop);
    let tops = names.iter().filter(|name| above(name).is_none());
    let below = tops.flat_map(|top| all.below(top)).map(|(name, _)| name);
    let own = names.iter().filter(|name| all.has(name)).map(|&name| name.to_owned());
    below.filter(follows).chain(own).collect()
}

/// Which of `names` a dataset is, or is nearest above it.
pub(super) fn nearest<'a>(names: &BTreeSet<&str>, dataset: &'a str) -> Option<&'a str> {
    let mut path = Some(dataset);
    while let Some(at) = path {
        if names.contains(at) {
            return Some(at);
        }
        path = at.rsplit_once('/').map(|(above, _)| above);
    }
    None
}
