//! The table of mounts.
//!
//! Invariant: a table never changes. The next one takes its place in an instant, so that who looks
//! waits for nobody, and who asks the kernel for something (mount, unmount, forget) holds no lock that
//! anybody waits for.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use cenote_control::budget::Budget;
use cenote_control::changes::MountRequest;
use cenote_control::mount_options::{self, MountOption};
use cenote_control::protocol::{Failure, FailureKind};
use cenote_control::report::DatasetReport;
use cenote_engine::dataset::{Dataset, Kept};
use cenote_engine::pool::Pool;
use cenote_serve::fuse::{AccessTimes, MountError, MountFlagOptions, MountOptions, Mounted};
use parking_lot::Mutex;

use crate::service::changes::Files;

/// Names and values of properties that a mount does not take from its dataset.
pub(in crate::service) type Temporary = Vec<(&'static str, &'static str)>;

/// What is mounted at one moment, by dataset name.
pub(in crate::service) type Table = BTreeMap<Arc<str>, Arc<Mount>>;

/// A mounted filesystem or snapshot.
#[derive(Clone)]
pub(in crate::service) struct Mount {
    pub at: PathBuf,
    /// Greater than that of every mount made before.
    pub number: u64,
    pub mounted: Arc<Mounted>,
    pub files: Files,
    /// Properties that `zfs mount -o` gave other values as long as it is mounted.
    pub temporary: Temporary,
    /// How it was asked for.
    pub request: MountRequest,
    /// Keeps a snapshot from being destroyed as long as it is mounted.
    pub kept: Arc<Mutex<Option<Kept>>>,
}

impl Mount {
    /// Changes the flags of the mount.
    ///
    /// # Errors
    /// As [`Mounted::remount`].
    pub fn apply(&self, flags: MountFlagOptions) -> Result<(), MountError> {
        self.mounted.remount(flags)?;
        keep_access_times(&self.files, &flags);
        Ok(())
    }

    /// It is mounted at its place, not only served at others.
    pub fn is_there(&self) -> bool {
        self.mounted.is_alive() && !self.mounted.has_left()
    }

    /// A later mount of `table` that is not among `going` hides it: its path means that one.
    pub fn is_hidden(&self, table: &Table, going: &[String]) -> bool {
        table.iter().any(|(name, other)| {
            let covers = other.number > self.number && self.at.starts_with(&other.at);
            covers && other.is_there() && !going.iter().any(|gone| **gone == **name)
        })
    }

    /// It is mount(8)'s: nothing says where it belongs but whoever mounted it.
    pub fn is_by_hand(&self) -> bool {
        is_by_hand(&self.request)
    }
}

/// See [`Mount::is_by_hand`].
pub(super) fn is_by_hand(request: &MountRequest) -> bool {
    request.at.is_some() && !request.options.iter().any(|option| option == "zfsutil")
}

/// Those of `names` that are mounted, what was mounted last first.
pub(super) fn in_order(mounts: &Table, names: &[String]) -> Vec<(String, Arc<Mount>)> {
    let known = names.iter().filter_map(|name| {
        let mount = mounts.get(name.as_str())?;
        Some((name.clone(), mount.clone()))
    });
    let mut order: Vec<_> = known.collect();
    order.sort_by_key(|(_, mount)| std::cmp::Reverse(mount.number));
    order
}

/// The dataset of this name, to be mounted. A snapshot is kept from being destroyed from now on.
pub(super) fn find_to_mount(
    pool: &Pool,
    name: &str,
) -> Result<(Dataset, Option<Kept>), (FailureKind, String)> {
    let find = || {
        let found = pool.catalog().dataset_named(name);
        found.map_err(|error| (FailureKind::NotFound, error.to_string()))
    };
    let found = find()?;
    if found.phys.is_inconsistent() {
        return Err((FailureKind::Busy, "mountpoint or dataset is busy".to_owned()));
    }
    let kept = found.is_snapshot().then(|| pool.kept().keep_mounted(found.id));
    // It may have gone just before that.
    if kept.is_some() && find()?.id != found.id {
        return Err((FailureKind::NotFound, "dataset does not exist".to_owned()));
    }
    Ok((found, kept))
}

/// Another mount lies over it.
pub(super) fn hidden(mount: &Mount) -> Failure {
    let reason = format!("cannot unmount '{}': unmount failed", mount.at.display());
    Failure::new(FailureKind::Busy, reason)
}

/// What a dataset is mounted with at `path`.
pub(super) fn options_of(
    dataset: &DatasetReport,
    path: &Path,
    flags: MountFlagOptions,
) -> MountOptions {
    let mut options = MountOptions::new(path, dataset.name.as_str()).with_flags(flags);
    options.max_threads = Budget::now().threads;
    options.posix_acl = matches!(dataset.properties.value("acltype"), Some("posix" | "posixacl"));
    options
}

/// The table of now.
#[derive(Default)]
pub(super) struct Tables(ArcSwap<Table>);

impl Tables {
    /// What is mounted.
    pub fn now(&self) -> Arc<Table> {
        self.0.load_full()
    }

    /// The mount of a dataset.
    pub fn get(&self, dataset: &str) -> Option<Arc<Mount>> {
        self.0.load().get(dataset).cloned()
    }

    /// Adds a mount, or takes the place of the one that the dataset has.
    pub fn put(&self, dataset: &str, mount: Mount) {
        let mount = Arc::new(mount);
        self.change(|table| drop(table.insert(dataset.into(), mount.clone())));
    }

    /// Calls what is mounted by its new name: `from` and all below it have become `to`.
    pub fn rename(&self, from: &str, to: &str) {
        self.change(|table| {
            let all = std::mem::take(table).into_iter();
            let renamed = all.map(|(name, mount)| match name.strip_prefix(from) {
                Some(rest) if rest.is_empty() || rest.starts_with(['/', '@']) => {
                    (format!("{to}{rest}").into(), mount)
                }
                _ => (name, mount),
            });
            *table = renamed.collect();
        });
    }

    /// Exchanges the table for one with a change. `change` may be called more than once.
    pub fn change(&self, change: impl Fn(&mut Table)) {
        self.0.rcu(|table| {
            let mut next = Table::clone(table);
            change(&mut next);
            next
        });
    }
}

/// How a dataset is mounted, by its properties and what stands before them.
pub(super) fn flags(dataset: &DatasetReport, temporary: &Temporary) -> MountFlagOptions {
    let value = |name: &str| {
        let forced = temporary.iter().rev().find(|(forced, _)| *forced == name);
        forced.map_or_else(|| dataset.properties.value(name).unwrap_or(""), |(_, value)| value)
    };
    MountFlagOptions {
        read_only: value("readonly") == "on",
        set_id: value("setuid") != "off",
        devices: value("devices") != "off",
        execute: value("exec") != "off",
        access_times: match (value("atime"), value("relatime")) {
            ("off", _) => AccessTimes::Never,
            (_, "on") => AccessTimes::Relative,
            _ => AccessTimes::Always,
        },
    }
}

/// Lets the files keep access times as the mount says.
pub(super) fn keep_access_times(files: &Files, flags: &MountFlagOptions) {
    let Some(writer) = files.writer() else { return };
    let kept = if flags.read_only { AccessTimes::Never } else { flags.access_times };
    writer.force_access_times(Some(kept));
    if flags.read_only {
        writer.store_access_times();
    }
}

/// The properties that options of a mount stand for.
pub(super) fn temporary(name: &str, options: &[String]) -> Result<Temporary, Failure> {
    let mut found = Temporary::new();
    for option in options {
        let property = match mount_options::read(option) {
            Some(MountOption::Property(name, value)) => (name, value),
            Some(MountOption::Nothing | MountOption::Remount | MountOption::Utility) => continue,
            Some(MountOption::NotYet) | None => {
                let reason = format!("mount option '{option}' is not supported yet");
                let words = format!("cannot mount '{name}': {reason}");
                return Err(Failure::new(FailureKind::NotSupported, words));
            }
        };
        found.retain(|(other, _)| *other != property.0);
        found.push(property);
    }
    Ok(found)
}

/// Those of `places` that lie inside `at`, as seen from there.
pub(super) fn covered_in(at: &Path, places: &[PathBuf]) -> Vec<PathBuf> {
    let inside = places.iter().filter_map(|place| place.strip_prefix(at).ok());
    inside.filter(|place| !place.as_os_str().is_empty()).map(Path::to_path_buf).collect()
}
