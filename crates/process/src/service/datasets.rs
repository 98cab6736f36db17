//! What `zfs list` and `zfs get` show, and what orders look up.
//!
//! Invariant: everything comes from what is published; only what is asked for is made a report of.
//! Figures that are not kept in memory (`written@x`, who uses how much of a snapshot or of a filesystem
//! of very many people) are read by who asks, in a place among the orders: [`Shown::lacks`] says so.

use std::path::PathBuf;
use std::sync::Arc;

use cenote_control::protocol::{DatasetQuery, Failure, FailureKind};
use cenote_control::report::{DatasetKind, DatasetReport, Property, Source};
use cenote_engine::ErrorKind;
use cenote_engine::dataset::{
    self, Inventory, Known, Listed, Principal, PrincipalUsage, PropertyReader, Surroundings, Usage,
};
use cenote_engine::pool::Pool;

use super::mounts::Table;
use super::no_dataset;
use super::pool_report::convert;
use super::published::Published;
use cenote_control::principal::{self, Who};

/// Datasets by name, as orders need them.
pub trait Datasets {
    /// One, with all its properties.
    fn find(&self, name: &str) -> Option<DatasetReport>;

    /// What is at and below `top`, snapshots and bookmarks with it, in the order of listings.
    fn below(&self, top: &str) -> Vec<(String, DatasetKind)>;

    /// Where one of its properties comes from, if it has that.
    fn source(&self, name: &str, property: &str) -> Option<Source> {
        self.find(name)?.properties.get(property).map(|found| found.source.clone())
    }

    /// What it is, if it is there.
    fn kind(&self, name: &str) -> Option<DatasetKind> {
        self.find(name).map(|found| found.kind)
    }

    /// Whether it is there and encrypted.
    fn is_encrypted(&self, name: &str) -> bool {
        let found = self.find(name);
        found.is_some_and(|one| one.properties.value("encryption").is_some_and(|how| how != "off"))
    }

    /// Whether a filesystem or volume was received in part only, so far, and that can go on.
    fn is_partial(&self, name: &str) -> bool;

    /// Whether a filesystem or volume is being received, or was in part only.
    fn is_inconsistent(&self, name: &str) -> bool;

    /// Whether it is there.
    fn has(&self, name: &str) -> bool {
        self.kind(name).is_some()
    }
}

#[cfg(test)]
impl Datasets for Vec<DatasetReport> {
    fn find(&self, name: &str) -> Option<DatasetReport> {
        self.iter().find(|dataset| dataset.name == name).cloned()
    }

    fn below(&self, top: &str) -> Vec<(String, DatasetKind)> {
        let is_in = |name: &str| {
            let rest = name.strip_prefix(top);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '@', '#']))
        };
        let below = self.iter().filter(|dataset| is_in(&dataset.name));
        below.map(|dataset| (dataset.name.clone(), dataset.kind)).collect()
    }

    fn is_partial(&self, name: &str) -> bool {
        self.find(name).as_ref().is_some_and(has_resume_token)
    }

    fn is_inconsistent(&self, name: &str) -> bool {
        self.is_partial(name)
    }
}

/// The datasets at one moment, and what is mounted of them.
pub struct Shown {
    published: Arc<Published>,
    inventory: Arc<Inventory>,
    mounts: Arc<Table>,
    altroot: String,
}

impl Datasets for Shown {
    fn find(&self, name: &str) -> Option<DatasetReport> {
        self.report(&self.inventory.find(name)?, &|_| true)
            .inspect_err(|error| tracing::warn!(dataset = name, %error, "unreadable properties"))
            .ok()
    }

    fn below(&self, top: &str) -> Vec<(String, DatasetKind)> {
        let below = self.inventory.below(top);
        below.map(|known| (known.name().to_string(), kind(&known))).collect()
    }

    fn is_partial(&self, name: &str) -> bool {
        self.is_inconsistent(name) && self.find(name).as_ref().is_some_and(has_resume_token)
    }

    fn is_inconsistent(&self, name: &str) -> bool {
        let head = self.known(name).and_then(|known| known.facts());
        head.is_some_and(|head| head.dataset.phys.is_inconsistent())
    }

    fn source(&self, name: &str, property: &str) -> Option<Source> {
        let report = self.report(&self.inventory.find(name)?, &|wanted| wanted == property).ok()?;
        report.properties.get(property).map(|found| found.source.clone())
    }

    fn kind(&self, name: &str) -> Option<DatasetKind> {
        self.inventory.find(name).as_ref().map(kind)
    }
}

impl Shown {
    /// What was `published`, where these are mounted.
    ///
    /// # Errors
    /// If the datasets were never read.
    pub fn new(
        published: Arc<Published>,
        mounts: Arc<Table>,
        altroot: &str,
    ) -> Result<Self, Failure> {
        let inventory = published.inventory()?.clone();
        Ok(Self { published, inventory, mounts, altroot: altroot.to_owned() })
    }

    /// A head or snapshot.
    pub fn known(&self, name: &str) -> Option<Known<'_>> {
        self.inventory.find(name)
    }

    /// The snapshots of a filesystem or volume: what comes after the `@`, and the group they were taken
    /// in.
    pub fn snapshots(&self, of: &str) -> Vec<(String, u64)> {
        let all = self.inventory.of_directory(of);
        let named = all.filter_map(|known| {
            let name = known.name().to_string();
            Some((name.split_once('@')?.1.to_owned(), known.created_in()))
        });
        named.collect()
    }

    /// The datasets.
    pub fn inventory(&self) -> &Inventory {
        &self.inventory
    }

    /// The datasets `query` asks for, each made when it is asked for. What is not in memory is read from
    /// `pool`, if that is given, and left out otherwise.
    ///
    /// # Errors
    /// `NotFound` if its root does not exist.
    pub fn answer<'a>(
        &'a self,
        query: &'a DatasetQuery,
        pool: Option<&'a Pool>,
    ) -> Result<impl Iterator<Item = Result<DatasetReport, Failure>> + 'a, Failure> {
        let one = move |known: Known<'a>| {
            let report = self.report(&known, &|name| query.wants(name));
            let mut report =
                report.map_err(|error| Failure::new(FailureKind::Other, error.to_string()))?;
            if let Some(wanted) = &query.properties {
                self.with_arguments(&known, &mut report, (query, wanted), pool);
            }
            Ok(report)
        };
        Ok(self.selected(query)?.map(one))
    }

    /// Whether something that `query` asks for is not in memory.
    pub fn lacks(&self, query: &DatasetQuery) -> bool {
        let wanted = query.properties.as_deref().unwrap_or_default();
        let with = |name: &&String| name.contains(['@', '#']);
        let (people, others): (Vec<&String>, Vec<&String>) =
            wanted.iter().filter(with).partition(|name| of_somebody(query, name).is_some());
        if people.is_empty() && others.is_empty() {
            return false;
        }
        let Ok(mut selected) = self.selected(query) else { return false };
        selected.any(|known| match known.facts() {
            None => false,
            Some(_) => !others.is_empty() || !is_usage_known(&known),
        })
    }

    /// What `query` selects.
    fn selected<'a>(
        &'a self,
        query: &'a DatasetQuery,
    ) -> Result<Box<dyn Iterator<Item = Known<'a>> + 'a>, Failure> {
        let inventory = &self.inventory;
        let chosen: Box<dyn Iterator<Item = Known<'a>> + 'a> = match &query.root {
            None => Box::new(inventory.all()),
            Some(root) => {
                let found = inventory.find(root).ok_or_else(|| no_dataset(root))?;
                match root.contains(['@', '#']) || query.depth == Some(0) {
                    true => Box::new(std::iter::once(found)),
                    false if query.depth == Some(1) && is_of_one(&query.kinds) => {
                        Box::new(inventory.of_directory(root))
                    }
                    false => Box::new(inventory.below(root)),
                }
            }
        };
        Ok(Box::new(chosen.filter(|one| query.selects(&one.name().to_string(), kind(one)))))
    }

    fn report(
        &self,
        known: &Known<'_>,
        wants: &dyn Fn(&str) -> bool,
    ) -> cenote_engine::Result<DatasetReport> {
        let around = Surroundings::new(
            self.published.space.capacity(),
            &*self.published.keys,
            &self.altroot,
        );
        // `mounted` stands before the quota in every listing.
        let properties = known.chosen(&around, &|name| wants(name) || name == "quota")?;
        let mut report = DatasetReport {
            name: known.name().to_string(),
            kind: kind(known),
            createtxg: known.created_in(),
            mounted_at: None,
            properties: convert(properties),
        };
        if report.kind == DatasetKind::Filesystem {
            self.add_mount(&mut report, wants);
        }
        report.properties.0.retain(|property| wants(&property.name));
        Ok(report)
    }

    /// Where a filesystem is mounted, and what it has other values of as long as it is.
    fn add_mount(&self, report: &mut DatasetReport, wants: &dyn Fn(&str) -> bool) {
        let mount = self.mounts.get(report.name.as_str());
        report.mounted_at = mount.filter(|one| one.is_there()).map(|one| {
            let at: &PathBuf = &one.at;
            at.display().to_string()
        });
        set(report, "mounted", if report.mounted_at.is_some() { "yes" } else { "no" });
        for (name, value) in mount.iter().flat_map(|mount| &mount.temporary) {
            if wants(name) && report.properties.value(name) != Some(value) {
                report.properties.set(name, *value, Source::Temporary);
            }
        }
    }

    /// Adds the properties whose names carry an argument (`written@x`, `userused@0`).
    fn with_arguments(
        &self,
        known: &Known<'_>,
        report: &mut DatasetReport,
        (query, wanted): (&DatasetQuery, &[String]),
        pool: Option<&Pool>,
    ) {
        let Some(facts) = known.facts() else { return };
        let missing: Vec<&String> = wanted
            .iter()
            .filter(|name| name.contains(['@', '#']) && report.properties.get(name).is_none())
            .collect();
        if missing.is_empty() {
            return;
        }
        let mut rest = Vec::new();
        for name in missing {
            match (of_somebody(query, name), &known.entry().usage) {
                (Some((figure, whose)), Usage::Known(usage)) if is_usage_known(known) => {
                    let number = usage.get(&whose).map_or(0, figure);
                    report.properties.set(name, number.to_string(), Source::Local);
                }
                _ => rest.push(name),
            }
        }
        if let Some(pool) = pool.filter(|_| !rest.is_empty()) {
            self.read_arguments(pool, &facts.dataset.name.to_string(), report, (query, &rest));
        }
    }

    /// The same, read from the devices.
    fn read_arguments(
        &self,
        pool: &Pool,
        name: &str,
        report: &mut DatasetReport,
        (query, wanted): (&DatasetQuery, &[&String]),
    ) {
        let catalog = pool.catalog();
        let Ok(found) = catalog.dataset_named(name) else { return };
        let capacity = self.published.space.capacity();
        let reader = PropertyReader::new(&catalog, capacity, &**pool.keys(), &self.altroot);
        let of_people = wanted.iter().any(|name| of_somebody(query, name).is_some());
        let usage = of_people.then(|| catalog.usage(&found, &**pool.keys()).ok()).flatten();
        let listed = Listed::Dataset(found);
        for name in wanted {
            if let (Some((figure, whose)), Some(usage)) = (of_somebody(query, name), &usage) {
                let number = usage.get(&whose).map_or(0, figure);
                report.properties.set(name, number.to_string(), Source::Local);
            } else if let Ok(Some(value)) = reader.get(&listed, name) {
                report.properties.0.extend(convert(vec![value]).0);
            }
        }
    }
}

/// Whether a receive that was interrupted can go on with it.
fn has_resume_token(dataset: &DatasetReport) -> bool {
    let token = dataset.properties.value("receive_resume_token");
    token.is_some_and(|token| !matches!(token, "" | "-"))
}

/// Whether it is in memory who uses how much, or why nobody can tell.
pub fn is_usage_known(known: &Known<'_>) -> bool {
    let is_head = known.facts().is_some_and(|facts| !facts.dataset.is_snapshot());
    is_head
        && match &known.entry().usage {
            Usage::Known(_) => true,
            Usage::Unknown(error) => error.kind() == ErrorKind::KeyNotLoaded,
            Usage::TooMany => false,
        }
}

/// Whether only what belongs to one dataset is of one of `kinds`.
fn is_of_one(kinds: &[DatasetKind]) -> bool {
    let own = [DatasetKind::Snapshot, DatasetKind::Bookmark];
    !kinds.is_empty() && kinds.iter().all(|kind| own.contains(kind))
}

/// What it is.
fn kind(known: &Known<'_>) -> DatasetKind {
    match (known.facts(), known.kind()) {
        (Some(facts), _) if facts.dataset.is_snapshot() => DatasetKind::Snapshot,
        (_, Some(dataset::DatasetKind::Filesystem)) => DatasetKind::Filesystem,
        (_, Some(dataset::DatasetKind::Volume)) => DatasetKind::Volume,
        (_, None) => DatasetKind::Bookmark,
    }
}

/// One number of what somebody uses or may use.
type Figure = fn(&PrincipalUsage) -> u64;

/// What a property as `userquota@root` means, and whose it is.
fn of_somebody(query: &DatasetQuery, property: &str) -> Option<(Figure, Principal)> {
    let (who, what, whom) = principal::of_property(property)?;
    let known = || query.people.get(property).copied();
    let id = u64::from(whom.parse().ok().or_else(known)?);
    let figure: Figure = match what {
        "used" => |usage| usage.used,
        "quota" => |usage| usage.quota.unwrap_or(0),
        "objused" => |usage| usage.objects.unwrap_or(0),
        "objquota" => |usage| usage.object_quota.unwrap_or(0),
        _ => return None,
    };
    let principal = match who {
        Who::User => Principal::User(id),
        Who::Group => Principal::Group(id),
        Who::Project => Principal::Project(id),
    };
    Some((figure, principal))
}

/// Sets or replaces a computed property.
fn set(dataset: &mut DatasetReport, name: &str, value: &str) {
    let known = dataset.properties.0.iter_mut().find(|property| property.name == name);
    match known {
        Some(property) => property.value = value.to_owned(),
        None => {
            let at = dataset.properties.0.iter().position(|p| p.name == "quota");
            let at = at.unwrap_or(dataset.properties.0.len());
            let property = Property {
                name: name.to_owned(),
                value: value.to_owned(),
                source: Source::None,
                received: None,
            };
            dataset.properties.0.insert(at, property);
        }
    }
}
