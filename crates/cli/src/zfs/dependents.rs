//! What has to go before something else can.
//!
//! Invariant: only what is asked about is asked for: what is below it, and below clones elsewhere that
//! have to go with it; what depends on something is listed before it.

use std::collections::{BTreeSet, HashMap, HashSet};

use cenote_control::client::Client;
use cenote_control::protocol::{DatasetQuery, Failure, FailureKind};
use cenote_control::report::{DatasetKind, DatasetReport};
use cenote_control::text::sort;

use super::common;
use crate::datasets::names;

/// What has to be known of datasets to destroy them.
const NEEDED: [&str; 3] = ["type", "clones", "used"];

/// What a receive that was cut off leaves below a dataset: a clone that listings do not show.
const PARTIAL: &str = "%recv";

/// Asks for datasets.
type Ask<'a> = Box<dyn Fn(&DatasetQuery) -> Result<Vec<DatasetReport>, Failure> + 'a>;

/// Datasets of one pool, as far as they were read, by what they belong to.
pub(super) struct Family<'a> {
    ask: Ask<'a>,
    known: HashMap<String, DatasetReport>,
    /// Filesystems and volumes right below one.
    children: HashMap<String, Vec<String>>,
    /// Snapshots of one, oldest first.
    snapshots: HashMap<String, Vec<String>>,
    /// Bookmarks of one.
    bookmarks: HashMap<String, Vec<String>>,
}

/// What has to go, in order.
#[derive(Debug, Default)]
pub(super) struct Doomed {
    /// Names: what depends on something comes before it.
    pub(super) names: Vec<String>,
    /// Clones elsewhere that would have to go, and are not to.
    pub(super) kept: BTreeSet<String>,
    listed: HashSet<String>,
}

impl Doomed {
    /// Whether it has to go.
    pub(super) fn has(&self, name: &str) -> bool {
        self.listed.contains(name)
    }
}

impl<'a> Family<'a> {
    /// Nothing yet, of the pool that `name` is in.
    pub(super) fn new(client: &'a Client, name: &str) -> Self {
        let pool = names::pool_of(name).to_owned();
        Self::asking(Box::new(move |query| client.datasets(&pool, query)))
    }

    fn asking(ask: Ask<'a>) -> Self {
        Self {
            ask,
            known: HashMap::new(),
            children: HashMap::new(),
            snapshots: HashMap::new(),
            bookmarks: HashMap::new(),
        }
    }

    /// Reads everything at and below `root`.
    ///
    /// # Errors
    /// The line to print.
    pub(super) fn read_tree(&mut self, root: &str) -> Result<(), String> {
        self.read(root, None, &[])
    }

    /// Reads the snapshots and bookmarks of `of`.
    ///
    /// # Errors
    /// The line to print.
    pub(super) fn read_snapshots(&mut self, of: &str) -> Result<(), String> {
        self.read(of, Some(1), &[DatasetKind::Snapshot, DatasetKind::Bookmark])
    }

    /// Reads one snapshot, if it is there.
    ///
    /// # Errors
    /// The line to print.
    pub(super) fn read_snapshot(&mut self, name: &str) -> Result<(), String> {
        self.read(name, Some(0), &[])
    }

    fn read(
        &mut self,
        root: &str,
        depth: Option<u32>,
        kinds: &[DatasetKind],
    ) -> Result<(), String> {
        let query = DatasetQuery {
            root: Some(root.to_owned()),
            depth,
            kinds: kinds.to_vec(),
            properties: Some(NEEDED.iter().map(|name| (*name).to_owned()).collect()),
            ..DatasetQuery::default()
        };
        let mut found = match (self.ask)(&query) {
            Ok(found) => found,
            Err(failure) if failure.kind == FailureKind::NotFound => return Ok(()),
            Err(failure) => return Err(failure.message),
        };
        found.sort_by(sort::by_name);
        found.retain(|dataset| !self.known.contains_key(&dataset.name));
        // The sort keeps the order of names where the groups are the same.
        let (mut snapshots, others): (Vec<_>, Vec<_>) =
            found.into_iter().partition(|dataset| dataset.kind == DatasetKind::Snapshot);
        snapshots.sort_by_key(|snapshot| snapshot.createtxg);
        for dataset in snapshots.into_iter().chain(others) {
            let name = &dataset.name;
            let (owner, of) = match dataset.kind {
                DatasetKind::Snapshot => (name.split_once('@'), &mut self.snapshots),
                DatasetKind::Bookmark => (name.split_once('#'), &mut self.bookmarks),
                DatasetKind::Filesystem | DatasetKind::Volume => {
                    (name.rsplit_once('/'), &mut self.children)
                }
            };
            if let Some((owner, _)) = owner {
                of.entry(owner.to_owned()).or_default().push(name.clone());
            }
            self.known.insert(dataset.name.clone(), dataset);
        }
        Ok(())
    }

    /// One that was read.
    pub(super) fn find(&self, name: &str) -> Option<&DatasetReport> {
        self.known.get(name)
    }

    /// The filesystems and volumes below `name` that were read, in the order of listings.
    pub(super) fn below(&self, name: &str) -> Vec<&str> {
        let start = format!("{name}/");
        let is_in = |dataset: &&DatasetReport| {
            dataset.name.starts_with(&start) && common::DATASETS.contains(&dataset.kind)
        };
        let mut found: Vec<&DatasetReport> = self.known.values().filter(is_in).collect();
        found.sort_by(|one, other| sort::by_name(one, other));
        found.into_iter().map(|dataset| dataset.name.as_str()).collect()
    }

    /// Snapshots of one dataset that were read, oldest first.
    pub(super) fn snapshots(&self, name: &str) -> &[String] {
        self.snapshots.get(name).map_or(&[], Vec::as_slice)
    }

    /// Clones of a snapshot.
    pub(super) fn clones(&self, snapshot: &str) -> Vec<String> {
        let found = self.find(snapshot).and_then(|one| one.properties.value("clones"));
        let names = found.unwrap_or_default().split(',').filter(|name| !matches!(*name, "" | "-"));
        names.map(str::to_owned).collect()
    }

    /// Snapshots and bookmarks of the same dataset that are newer than the snapshot `name`, newest
    /// first.
    pub(super) fn later(&self, name: &str) -> Vec<String> {
        let dataset = name.split('@').next().unwrap_or_default();
        let since = self.find(name).map_or(0, |snapshot| snapshot.createtxg);
        let own = [&self.snapshots, &self.bookmarks].map(|of| of.get(dataset));
        let own = own.into_iter().flatten().flatten().filter_map(|name| self.find(name));
        let mut found: Vec<&DatasetReport> = own.filter(|other| other.createtxg > since).collect();
        found.sort_by_key(|other| std::cmp::Reverse(other.createtxg));
        found.into_iter().map(|other| other.name.clone()).collect()
    }

    /// Adds what has to go for `name` to go, and itself. With `clones`, what was cloned from it too; without,
    /// such clones elsewhere are kept.
    ///
    /// # Errors
    /// The line to print, if something cannot be asked for.
    pub(super) fn doom(
        &mut self,
        name: &str,
        clones: bool,
        doomed: &mut Doomed,
    ) -> Result<(), String> {
        // From here on: a clone may have come to lie above what it was cloned from.
        if !doomed.listed.insert(name.to_owned()) {
            return Ok(());
        }
        for child in self.children.get(name).cloned().unwrap_or_default() {
            self.doom(&child, clones, doomed)?;
        }
        self.doom_partial(name, doomed);
        for snapshot in self.snapshots(name).to_vec().iter().rev() {
            self.doom(snapshot, clones, doomed)?;
        }
        for clone in self.clones(name) {
            let is_known = self.find(&clone).is_some();
            if clones && !is_known {
                self.read_tree(&clone)?;
            }
            // One that is known is in the tree that goes, further behind.
            if clones || is_known {
                self.doom(&clone, clones, doomed)?;
            } else if !doomed.has(&clone) {
                doomed.kept.insert(clone);
            }
        }
        doomed.names.push(name.to_owned());
        Ok(())
    }

    /// What was received into a dataset in part goes with it, like all that lies below.
    fn doom_partial(&self, name: &str, doomed: &mut Doomed) {
        let partial = format!("{name}/{PARTIAL}");
        let hangs = |snapshot: &String| self.clones(snapshot).contains(&partial);
        if self.snapshots(name).iter().any(hangs) && doomed.listed.insert(partial.clone()) {
            doomed.names.push(partial);
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use cenote_control::report::Source;

    use super::*;

    fn one(name: &str, kind: DatasetKind, txg: u64) -> DatasetReport {
        DatasetReport { name: name.into(), kind, createtxg: txg, ..DatasetReport::default() }
    }

    /// The pool of the session recorded from OpenZFS 2.1.11.
    pub(in crate::zfs) fn pool() -> Family<'static> {
        use DatasetKind::{Bookmark, Filesystem, Snapshot};
        let mut origin = one("tank/a@s", Snapshot, 4);
        origin.properties.set("clones", "tank/clone", Source::None);
        let all = vec![
            one("tank", Filesystem, 1),
            one("tank/a", Filesystem, 2),
            one("tank/a/b", Filesystem, 3),
            origin,
            one("tank/clone", Filesystem, 9),
            one("tank/v0", Filesystem, 2),
            one("tank/v0@s1", Snapshot, 3),
            one("tank/v0@s2", Snapshot, 4),
            one("tank/v0#b2", Bookmark, 4),
            one("tank/v0@s3", Snapshot, 5),
            one("tank/v0@q2", Snapshot, 6),
        ];
        Family::asking(Box::new(move |query| {
            let chosen = all.iter().filter(|one| query.selects(&one.name, one.kind));
            Ok(chosen.cloned().collect())
        }))
    }

    fn doomed(name: &str, clones: bool) -> (Vec<String>, Vec<String>) {
        let (mut family, mut doomed) = (pool(), Doomed::default());
        family.read_tree(name).unwrap();
        family.doom(name, clones, &mut doomed).unwrap();
        (doomed.names, doomed.kept.into_iter().collect())
    }

    #[test]
    fn dependents_go_first() {
        let (names, _) = doomed("tank/v0", false);
        assert_eq!(names, ["tank/v0@q2", "tank/v0@s3", "tank/v0@s2", "tank/v0@s1", "tank/v0"]);
        let (names, kept) = doomed("tank/a", false);
        assert_eq!(names, ["tank/a/b", "tank/a@s", "tank/a"]);
        assert_eq!(kept, ["tank/clone"]);
        // A clone elsewhere is asked for.
        let (names, kept) = doomed("tank/a", true);
        assert_eq!(names, ["tank/a/b", "tank/clone", "tank/a@s", "tank/a"]);
        assert!(kept.is_empty());
    }

    #[test]
    fn a_clone_in_the_same_tree_goes_before_its_origin() {
        let mut origin = one("tank/m/a@s", DatasetKind::Snapshot, 4);
        origin.properties.set("clones", "tank/m/z,tank/n", Source::None);
        let of = |name| one(name, DatasetKind::Filesystem, 2);
        let all = [of("tank/m"), of("tank/m/a"), origin, of("tank/m/z"), of("tank/n")];
        let mut family = Family::asking(Box::new(move |query| {
            let chosen = all.iter().filter(|one| query.selects(&one.name, one.kind));
            Ok(chosen.cloned().collect())
        }));
        let mut doomed = Doomed::default();
        family.read_tree("tank/m").unwrap();
        family.doom("tank/m", false, &mut doomed).unwrap();
        assert_eq!(doomed.names, ["tank/m/z", "tank/m/a@s", "tank/m/a", "tank/m"]);
        assert_eq!(doomed.kept.into_iter().collect::<Vec<_>>(), ["tank/n"]);
    }

    /// As after 'zfs rename tank/a tank/clone/a'.
    #[test]
    fn a_clone_may_lie_above_its_origin() {
        let mut origin = one("tank/clone/a@s", DatasetKind::Snapshot, 4);
        origin.properties.set("clones", "tank/clone", Source::None);
        let of = |name| one(name, DatasetKind::Filesystem, 2);
        let all = [of("tank/clone"), of("tank/clone/a"), origin];
        let mut family = Family::asking(Box::new(move |query| {
            let chosen = all.iter().filter(|one| query.selects(&one.name, one.kind));
            Ok(chosen.cloned().collect())
        }));
        let mut doomed = Doomed::default();
        family.read_tree("tank/clone/a").unwrap();
        family.doom("tank/clone/a", true, &mut doomed).unwrap();
        doomed.names.sort();
        assert_eq!(doomed.names, ["tank/clone", "tank/clone/a", "tank/clone/a@s"]);
    }

    #[test]
    fn what_is_newer_than_a_snapshot() {
        let mut family = pool();
        family.read_snapshots("tank/v0").unwrap();
        assert_eq!(
            family.later("tank/v0@s1"),
            ["tank/v0@q2", "tank/v0@s3", "tank/v0@s2", "tank/v0#b2"]
        );
        assert_eq!(family.later("tank/v0@s2"), ["tank/v0@q2", "tank/v0@s3"]);
    }
}
