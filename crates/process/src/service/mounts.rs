//! Which filesystems are mounted where, and the rules of mounting.
//!
//! Invariant: parents are mounted before and unmounted after what lies below them; what was mounted
//! later is unmounted earlier, so that a path always means the mount it is taken for; a mount is in
//! the table exactly as long as it is served. Whoever changes mounts holds the lock of orders, and no
//! other while the kernel is asked.

mod exchange;
mod kernel;
mod table;
mod users_place;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use cenote_control::changes::{MountRequest, UnmountRequest};
use cenote_control::mounted_places::MountedPlaces;
use cenote_control::protocol::{Failure, FailureKind};
use cenote_control::report::{DatasetKind, DatasetReport, UnreplayedLog};
use cenote_engine::pool::Pool;
use cenote_posix::SnapshotAdmin;
use cenote_posix::control_directory::SNAPSHOTS;
use cenote_serve::fuse::{self, Covers, MountError};
use parking_lot::Mutex;

use super::asked;
use super::changes::PoolChanges;
use super::datasets::Datasets;
use super::no_dataset;
use kernel::KernelTable;
pub(super) use table::Table;
use table::{
    Mount, Tables, covered_in, find_to_mount, flags, hidden, in_order, is_by_hand,
    keep_access_times, options_of, temporary,
};

/// How often it is looked whether a mount that somebody unmounted has ended.
const LEAVING: Duration = Duration::from_millis(5);

/// A mount to be made again.
#[derive(Clone)]
pub struct Place {
    /// What is mounted.
    pub dataset: String,
    /// Where.
    pub at: PathBuf,
    number: u64,
    request: MountRequest,
}

impl Place {
    /// See [`is_by_hand`].
    pub fn is_by_hand(&self) -> bool {
        is_by_hand(&self.request)
    }

    /// For which user, who is not root.
    pub fn on_behalf(&self) -> Option<u32> {
        self.request.on_behalf
    }
}

/// The mounts of a pool by dataset name.
pub struct Mounts {
    table: Arc<Tables>,
    /// Mounts made so far.
    made: AtomicU64,
    /// For who clears up after this process, should it die.
    noted: Option<MountedPlaces>,
    changes: Arc<PoolChanges>,
    kernel: KernelTable,
    /// Nobody was unmounting one of them when the kernel's table was read last.
    is_settled: AtomicBool,
    /// Who makes snapshots as directories.
    admin: OnceLock<Arc<dyn SnapshotAdmin>>,
}

/// Why a filesystem is not among those `mount -a` mounts.
enum Skip {
    /// Nothing to say: its properties say so.
    Quietly,
    /// Its key is not loaded.
    NoKey,
}

impl Mounts {
    /// No mounts yet of a pool that is changed through `changes`.
    pub fn new(changes: Arc<PoolChanges>, noted: Option<MountedPlaces>) -> Self {
        Self {
            table: Arc::default(),
            made: AtomicU64::new(0),
            noted,
            changes,
            kernel: KernelTable::watch(),
            is_settled: AtomicBool::new(false),
            admin: OnceLock::new(),
        }
    }

    /// Snapshots can be made as directories of what is mounted from now on.
    pub fn administer(&self, admin: Arc<dyn SnapshotAdmin>) {
        // There is one service.
        let _ = self.admin.set(admin);
    }

    /// What is mounted now.
    pub fn now(&self) -> Arc<Table> {
        self.table.now()
    }

    /// Where `dataset` is mounted.
    pub fn of(&self, dataset: &str) -> Option<PathBuf> {
        self.table.get(dataset).filter(|m| m.is_there()).map(|m| m.at.clone())
    }

    /// Serves `zfs mount`; the lines returned are what went wrong with some of many. It is `told` how
    /// many are done of how many.
    pub fn mount(
        &self,
        pool: &Arc<Pool>,
        datasets: &dyn Datasets,
        request: &MountRequest,
        told: &dyn Fn(u64, u64),
    ) -> Result<Vec<String>, Failure> {
        if let (Some(name), false) = (&request.dataset, request.recursive) {
            let dataset = find(datasets, name)?;
            match &request.at {
                Some(at) => self.mount_by_hand(pool, &dataset, Path::new(at), request)?,
                None => self.mount_named(pool, datasets, &dataset, request)?,
            }
            return Ok(self.kept_logs(|kept| kept == name));
        }
        let top = request.dataset.as_deref().unwrap_or_else(|| pool.name());
        let mut wanted: Vec<(DatasetReport, PathBuf)> = Vec::new();
        let filesystems = datasets.below(top).into_iter();
        let filesystems = filesystems.filter(|(_, kind)| *kind == DatasetKind::Filesystem);
        for dataset in filesystems.filter_map(|(name, _)| datasets.find(&name)) {
            if datasets.is_partial(&dataset.name) {
                continue;
            }
            match self.wanted(&dataset) {
                Ok(path) => wanted.push((dataset, path)),
                Err(Skip::Quietly | Skip::NoKey) => {}
            }
        }
        wanted.sort_by(|a, b| a.1.cmp(&b.1));
        let places: Vec<PathBuf> = wanted.iter().map(|(_, path)| path.clone()).collect();
        let mut warnings = Vec::new();
        let mut mounted = BTreeSet::new();
        let total = places.len() as u64;
        for (done, (dataset, path)) in (1..).zip(wanted) {
            let covered = covered_in(&path, &places);
            match self.mount_around(pool, datasets, &dataset, &path, request, covered) {
                Ok(()) => drop(mounted.insert(dataset.name)),
                Err(failure) => {
                    self.uncover(&path);
                    warnings.push(failure.message);
                }
            }
            told(done, total);
        }
        self.uncover_soon();
        warnings.extend(self.kept_logs(|kept| mounted.contains(kept)));
        Ok(warnings)
    }

    /// What is to be said of the datasets whose intent log could not be replayed when they were
    /// mounted.
    fn kept_logs(&self, mounted: impl Fn(&str) -> bool) -> Vec<String> {
        let kept = self.changes.unreplayed().into_iter().filter(|log| mounted(&log.dataset));
        kept.map(|UnreplayedLog { dataset, reason }| {
            format!(
                "warning: '{dataset}' is mounted read-only: its intent log could not be replayed \
                 and is kept: {reason}"
            )
        })
        .collect()
    }

    /// Whether a dataset is not mounted, and is to be without being named.
    pub fn is_due(&self, dataset: &DatasetReport) -> bool {
        self.wanted(dataset).is_ok()
    }

    /// The mountpoint of a dataset that is mounted without being named.
    fn wanted(&self, dataset: &DatasetReport) -> Result<PathBuf, Skip> {
        let value = |name: &str| dataset.properties.value(name).unwrap_or("");
        let mountpoint = value("mountpoint");
        let ours = dataset.kind == DatasetKind::Filesystem
            && value("canmount") == "on"
            && mountpoint.starts_with('/')
            && value("redact_snaps").is_empty()
            && self.of(&dataset.name).is_none();
        if !ours {
            return Err(Skip::Quietly);
        }
        if value("keystatus") == "unavailable" {
            return Err(Skip::NoKey);
        }
        Ok(PathBuf::from(mountpoint))
    }

    /// Mounts one filesystem, and anew what is mounted inside its place, which would be hidden. What
    /// is in use there stays where it is, hidden until this one is unmounted.
    fn mount_around(
        &self,
        pool: &Arc<Pool>,
        datasets: &dyn Datasets,
        dataset: &DatasetReport,
        path: &Path,
        request: &MountRequest,
        mut covered: Vec<PathBuf>,
    ) -> Result<(), Failure> {
        let (inside, held) = (self.inside(path), self.places());
        covered.extend(covered_in(path, &self.places_of(&inside)));
        if let Err(failure) = self.take_down_named(&inside, false) {
            tracing::warn!(%failure, "hidden by the mount of '{}'", dataset.name);
        }
        let mounted = self.mount_at(pool, dataset, path, request, covered);
        let mut again: Vec<(String, DatasetReport)> = inside
            .iter()
            .filter(|name| self.of(name).is_none())
            .filter_map(|name| datasets.find(name))
            .filter_map(|other| Some((other.properties.value("mountpoint")?.to_owned(), other)))
            .collect();
        again.sort_by(|(one, _), (other, _)| one.cmp(other));
        for (path, other) in again {
            let at = Path::new(&path);
            let own = held.iter().find(|place| place.dataset == other.name && place.at == at);
            let on_behalf = own.map_or(request.on_behalf, Place::on_behalf);
            let again = MountRequest { on_behalf, ..MountRequest::default() };
            if let Err(failure) = self.mount_at(pool, &other, at, &again, Vec::new()) {
                tracing::warn!(%failure, "not mounted again");
            }
        }
        mounted
    }

    fn mount_named(
        &self,
        pool: &Arc<Pool>,
        datasets: &dyn Datasets,
        dataset: &DatasetReport,
        request: &MountRequest,
    ) -> Result<(), Failure> {
        let name = &dataset.name;
        let value = |name: &str| dataset.properties.value(name).unwrap_or("");
        let refuse = |reason: String| Err(Failure::new(FailureKind::Other, reason));
        if dataset.kind != DatasetKind::Filesystem {
            let reason = "operation not applicable to datasets of this type";
            return refuse(format!("cannot open '{name}': {reason}"));
        }
        match value("mountpoint") {
            "legacy" => {
                let advice = "use mount(8) to mount this filesystem";
                return refuse(format!("cannot mount '{name}': legacy mountpoint\n{advice}"));
            }
            "none" => return refuse(format!("cannot mount '{name}': no mountpoint set")),
            _ => {}
        }
        if value("canmount") == "off" {
            return refuse(format!("cannot mount '{name}': 'canmount' property is set to 'off'"));
        }
        if asks_remount(request) {
            return self.remount_with(dataset, request);
        }
        if !value("redact_snaps").is_empty() && !request.force {
            return refuse(format!(
                "cannot mount '{name}': Dataset is not complete, was created by receiving a redacted \
                 zfs send stream."
            ));
        }
        if let Some((kind, reason)) = self.refusal(name) {
            return Err(Failure::new(kind, format!("cannot mount '{name}': {reason}")));
        }
        if value("keystatus") == "unavailable" {
            return refuse(format!("cannot mount '{name}': encryption key not loaded"));
        }
        if datasets.is_partial(name) {
            let reason = "Contains partially-completed state from \"zfs receive -s\", which can \
                          be resumed with \"zfs send -t\"";
            return refuse(format!("cannot mount '{name}': {reason}"));
        }
        let path = Path::new(value("mountpoint"));
        let mounted = self.mount_around(pool, datasets, dataset, path, request, Vec::new());
        self.uncover_after(path, mounted)
    }

    /// Why a dataset is not mounted once more.
    fn refusal(&self, name: &str) -> Option<(FailureKind, &'static str)> {
        let mount = self.table.get(name).filter(|one| one.mounted.is_alive())?;
        Some(match mount.mounted.has_left() {
            true => (FailureKind::Busy, "it is in use where it was mounted before, elsewhere too"),
            false => (FailureKind::Already, "filesystem already mounted"),
        })
    }

    /// Serves mount(8): mounts a filesystem or snapshot where it is asked to be.
    fn mount_by_hand(
        &self,
        pool: &Arc<Pool>,
        dataset: &DatasetReport,
        at: &Path,
        request: &MountRequest,
    ) -> Result<(), Failure> {
        let name = &dataset.name;
        let refuse = |kind, reason: &str| {
            Err(Failure::new(kind, format!("cannot mount '{name}': {reason}")))
        };
        let mounted = self.of(name);
        if asks_remount(request) {
            return match mounted {
                Some(place) if place == at => self.remount_with(dataset, request),
                _ => refuse(FailureKind::Other, "not currently mounted"),
            };
        }
        if let Some((kind, reason)) = self.refusal(name) {
            return refuse(kind, reason);
        }
        if dataset.properties.value("keystatus") == Some("unavailable") {
            return refuse(FailureKind::Permission, "encryption key not loaded");
        }
        let mounted = self.mount_at(pool, dataset, at, request, Vec::new());
        self.uncover_after(at, mounted)
    }

    fn mount_at(
        &self,
        pool: &Arc<Pool>,
        dataset: &DatasetReport,
        path: &Path,
        request: &MountRequest,
        covered: Vec<PathBuf>,
    ) -> Result<(), Failure> {
        let name = &dataset.name;
        let refuse =
            |kind, reason: String| Failure::new(kind, format!("cannot mount '{name}': {reason}"));
        let by_hand = request.at.is_some();
        let place = |kind, reason: &str| {
            Failure::new(kind, format!("cannot mount '{}': {reason}", path.display()))
        };
        // Two sessions of one filesystem would not know of each other.
        if let Some((kind, reason)) = self.refusal(name) {
            return Err(refuse(kind, reason.to_owned()));
        }
        let pinned =
            users_place::pinned(path, request).map_err(|(kind, reason)| place(kind, &reason))?;
        self.cover(&[path.to_path_buf()], |_| true);
        let value = |name: &str| dataset.properties.value(name).unwrap_or("");
        let may_cover = by_hand || request.overlay || value("overlay") != "off";
        // Only where it matters: reading a directory of ours changes the time it was read last.
        let is_empty = || fs::read_dir(path).map_or(true, |mut entries| entries.next().is_none());
        if !may_cover && !is_empty() {
            return Err(place(FailureKind::Busy, "directory is not empty"));
        }
        let (found, kept) =
            find_to_mount(pool, name).map_err(|(kind, reason)| refuse(kind, reason))?;
        let mut temporary = temporary(name, &request.options)?;
        let wanted = flags(dataset, &temporary);
        let files = self
            .changes
            .open_files(pool, &found, wanted.read_only)
            .map_err(|error| refuse(FailureKind::Other, error.reason))?;
        if let Some(admin) = self.admin.get() {
            files.administer(admin.clone());
        }
        // Of a pool that is open for reading only, say: the mount is so, whatever the property says.
        if files.writer().is_none() && !wanted.read_only {
            temporary.push(("readonly", "on"));
        }
        if request.on_behalf.is_some() {
            users_place::restrict(&mut temporary);
        }
        let flags = flags(dataset, &temporary);
        keep_access_times(&files, &flags);
        let mut options = options_of(dataset, path, flags);
        (options.covered, options.pinned) = (covered, pinned.map(Arc::new));
        self.note(path);
        let mounted = fuse::mount(files.clone(), options).map_err(|error| {
            let kind = match error {
                MountError::Busy => FailureKind::Busy,
                _ => FailureKind::Other,
            };
            refuse(kind, error.to_string())
        })?;
        let (at, request) = (path.to_path_buf(), request.clone());
        let (number, mounted) = (self.made.fetch_add(1, Relaxed), Arc::new(mounted));
        let kept = Arc::new(Mutex::new(kept));
        self.table.put(name, Mount { at, number, mounted, files, temporary, request, kept });
        Ok(())
    }

    fn note(&self, path: &Path) {
        let Some(noted) = &self.noted else { return };
        if let Err(error) = fuse::resolve(path).and_then(|place| noted.note(&place)) {
            tracing::warn!(at = %path.display(), %error, "the mount is not noted");
        }
    }

    /// Serves `zfs mount -o remount,...`.
    fn remount_with(&self, dataset: &DatasetReport, request: &MountRequest) -> Result<(), Failure> {
        let name = &dataset.name;
        let more = temporary(name, &request.options)?;
        let table = self.table.now();
        let known = table.get(name.as_str());
        let shown = known.filter(|one| one.is_there() && !one.is_hidden(&table, &[]));
        let Some(mount) = shown else {
            let reason = format!("cannot mount '{name}': not currently mounted");
            return Err(Failure::new(FailureKind::Other, reason));
        };
        let mut all = mount.temporary.clone();
        all.retain(|(name, _)| !more.iter().any(|(other, _)| other == name));
        all.extend(more);
        if mount.request.on_behalf.or(request.on_behalf).is_some() {
            users_place::restrict(&mut all);
        }
        mount.apply(flags(dataset, &all)).map_err(|error| {
            let kind = match error {
                MountError::Busy => FailureKind::Busy,
                _ => FailureKind::Other,
            };
            Failure::new(kind, format!("cannot remount '{name}': {error}"))
        })?;
        let mut next = Mount { temporary: all, ..Mount::clone(mount) };
        next.request.options.extend(request.options.iter().cloned());
        self.table.put(name, next);
        Ok(())
    }

    /// Temporary values of `properties` end for the mounts of these datasets.
    pub fn end_temporary(&self, datasets: &BTreeSet<String>, properties: &[&str]) {
        self.table.change(|table| {
            let has =
                |mount: &Mount| mount.temporary.iter().any(|(one, _)| properties.contains(one));
            for (_, mount) in table.iter_mut().filter(|(name, _)| datasets.contains(&***name)) {
                if has(mount) {
                    let mount = Arc::make_mut(mount);
                    mount.temporary.retain(|(name, _)| !properties.contains(name));
                    if mount.request.on_behalf.is_some() {
                        users_place::restrict(&mut mount.temporary);
                    }
                }
            }
        });
    }

    /// Lets a mount follow its dataset's properties.
    ///
    /// # Errors
    /// If it cannot while it is in use.
    pub fn follow(&self, dataset: &DatasetReport) -> Result<(), MountError> {
        let table = self.table.now();
        let Some(mount) = table.get(dataset.name.as_str()) else { return Ok(()) };
        let wanted = flags(dataset, &mount.temporary);
        // The files were opened for reading, or the path is another mount's.
        if !wanted.read_only && mount.files.writer().is_none() || mount.is_hidden(&table, &[]) {
            return Err(MountError::Busy);
        }
        mount.apply(wanted)
    }

    /// Snapshots of a filesystem came or went, or got other names: these are, or were, theirs.
    pub fn snapshots_changed<'a>(&self, dataset: &str, names: impl Iterator<Item = &'a str>) {
        let Some(mount) = self.table.get(dataset) else { return };
        mount.files.snapshots_changed();
        let names: Vec<Vec<u8>> = names.map(|name| name.as_bytes().to_vec()).collect();
        let (mounted, dataset) = (mount.mounted.clone(), dataset.to_owned());
        let tell = move || {
            let told = names
                .iter()
                .map(|name| mounted.invalidate_name(SNAPSHOTS, name))
                .chain(std::iter::once_with(|| mounted.invalidate_node(SNAPSHOTS)));
            for error in told.filter_map(Result::err) {
                tracing::warn!(dataset, %error, "the kernel was not told of changed snapshots");
            }
        };
        // The kernel holds the directory until it is answered who changes it through the mount.
        match asked::is_asked_by_kernel() {
            true => {
                if let Err(error) = std::thread::Builder::new().name("tell".into()).spawn(tell) {
                    tracing::warn!(%error, "the kernel was not told of changed snapshots");
                }
            }
            false => tell(),
        }
    }

    /// All that was changed is on the disks.
    pub fn changes_are_written(&self) {
        for (dataset, mount) in self.table.now().iter() {
            if let Err(error) = mount.mounted.changes_are_written() {
                tracing::warn!(%dataset, %error, "the kernel was not told of new sizes");
            }
        }
    }

    /// Serves `zfs unmount`. When all are meant, those that are mounted only when somebody says so
    /// stay, and why others do is what is given back.
    pub fn unmount(
        &self,
        datasets: &dyn Datasets,
        request: &UnmountRequest,
    ) -> Result<Vec<String>, Failure> {
        let Some(name) = &request.dataset else {
            let noauto = |name: &str| {
                let found = datasets.find(name);
                found.is_some_and(|one| one.properties.value("canmount") == Some("noauto"))
            };
            let mounts = self.table.now();
            let ours = mounts.iter().filter(|(_, mount)| !mount.is_by_hand());
            let ours =
                ours.map(|(name, _)| name.to_string()).filter(|name| !noauto(name)).collect();
            let before = self.places();
            let stay = self.take_down_each(ours, request.force);
            self.uncover_bare(&before);
            return Ok(stay.into_iter().map(|failure| failure.message).collect());
        };
        let at = Path::new(name);
        let name = {
            let mounts = self.table.now();
            // Of several at one place the last one is seen.
            let here = mounts.iter().filter(|(_, mount)| mount.at == at);
            let last = here.max_by_key(|(_, mount)| mount.number);
            let name = last.map_or_else(|| name.clone(), |(name, _)| name.to_string());
            let known = mounts.get(name.as_str());
            if !known.is_some_and(|one| request.force || !one.mounted.has_left()) {
                if !name.starts_with('/') && datasets.find(&name).is_none() {
                    return Err(no_dataset(&name));
                }
                let reason = format!("cannot unmount '{name}': not currently mounted");
                return Err(Failure::new(FailureKind::Other, reason));
            }
            name
        };
        let before = self.places();
        let done = self.take_down_named(std::slice::from_ref(&name), request.force);
        self.uncover_bare(&before);
        // It is not mounted here any more, and that was what was wanted.
        if done.is_err() && self.table.get(&name).is_some_and(|one| one.mounted.has_left()) {
            return Ok(vec![format!(
                "'{name}' is still mounted, and in use, in another mount namespace"
            )]);
        }
        done.map(|()| Vec::new())
    }

    /// Unmounts everything, innermost first. What is busy stays, unless forced.
    pub fn unmount_all(&self, force: bool) -> Result<(), Failure> {
        self.take_down(self.names(), force)
    }

    /// What is mounted now.
    pub fn places(&self) -> Vec<Place> {
        let place = |(dataset, mount): (&Arc<str>, &Arc<Mount>)| Place {
            dataset: dataset.to_string(),
            at: mount.at.clone(),
            number: mount.number,
            request: mount.request.clone(),
        };
        self.table.now().iter().filter(|(_, mount)| mount.is_there()).map(place).collect()
    }

    /// Mounts again what was mounted, in the same order, as far as it is not; what cannot be is said in
    /// the log.
    pub fn restore(&self, pool: &Arc<Pool>, datasets: &dyn Datasets, mut places: Vec<Place>) {
        places.sort_by_key(|place| place.number);
        places.retain(|place| self.of(&place.dataset).is_none());
        let all: Vec<PathBuf> = places.iter().map(|place| place.at.clone()).collect();
        self.cover(&all, |_| true);
        for place in &places {
            let covered = covered_in(&place.at, &all);
            let mounted = find(datasets, &place.dataset).and_then(|dataset| {
                self.mount_at(pool, &dataset, &place.at, &place.request, covered)
            });
            if mounted.is_err() {
                self.uncover(&place.at);
            }
            if let Err(failure) = mounted {
                tracing::warn!(dataset = place.dataset, "not mounted again: {failure}");
            }
        }
        self.uncover_soon();
    }

    fn around(&self, chosen: impl Fn(&str) -> bool) -> Vec<(PathBuf, Covers)> {
        let mounts = self.table.now();
        let chosen = mounts.iter().filter(|(name, _)| chosen(name));
        chosen.map(|(_, mount)| (mount.at.clone(), mount.mounted.covers())).collect()
    }

    /// These places are covered by mounts, or will be: in what is mounted around them, nothing gets a
    /// name there until [`Self::uncover_soon`].
    fn cover(&self, places: &[PathBuf], chosen: impl Fn(&str) -> bool) {
        for (at, covers) in self.around(chosen) {
            covered_in(&at, places).iter().for_each(|place| covers.cover(place));
        }
    }

    /// Nothing is mounted there, nor will be.
    pub fn uncover(&self, place: &Path) {
        for (at, covers) in self.around(|_| true) {
            covered_in(&at, &[place.to_path_buf()]).iter().for_each(|place| covers.uncover(place));
        }
    }

    /// Where something was mounted before and nothing is now, names may be made at once.
    pub fn uncover_bare<'a>(&self, before: impl IntoIterator<Item = &'a Place>) {
        let now: Vec<PathBuf> = self.places().into_iter().map(|place| place.at).collect();
        let bare = before.into_iter().filter(|place| !now.contains(&place.at));
        bare.for_each(|place| self.uncover(&place.at));
    }

    /// What was to be mounted there is, or will not be.
    fn uncover_after(&self, path: &Path, mounted: Result<(), Failure>) -> Result<(), Failure> {
        let mounted = mounted.inspect_err(|_| self.uncover(path));
        self.uncover_soon();
        mounted
    }

    /// What was to be mounted is.
    fn uncover_soon(&self) {
        self.table.now().values().for_each(|mount| mount.mounted.covers().end_soon());
    }

    fn places_of(&self, names: &[String]) -> Vec<PathBuf> {
        let mounts = self.table.now();
        let known = names.iter().filter_map(|name| mounts.get(name.as_str()));
        known.map(|mount| mount.at.clone()).collect()
    }

    /// Forgets what was unmounted without our doing (`umount`). What is on its way out is waited for
    /// a little.
    pub fn forget_gone(&self, patience: Duration) {
        let end = Instant::now() + patience;
        // Where nobody mounted or unmounted anything, nothing is read.
        let is_due =
            !patience.is_zero() && (self.kernel.has_changed() || !self.is_settled.load(Relaxed));
        while is_due && Instant::now() < end {
            let Some(places) = fuse::mounted_places() else { break };
            let is_leaving =
                |mount: &Mount| mount.is_there() && !places.contains(mount.mounted.mountpoint());
            let is_settled = !self.table.now().values().any(|mount| is_leaving(mount));
            self.is_settled.store(is_settled, Relaxed);
            if is_settled {
                break;
            }
            if Instant::now() + LEAVING >= end {
                // Somebody unmounted it here, and others have it elsewhere.
                let table = self.table.now();
                let left = table.values().filter(|mount| is_leaving(mount));
                left.for_each(|mount| mount.mounted.leave());
            }
            std::thread::sleep(LEAVING);
        }
        let table = self.table.now();
        let gone: Vec<(&Arc<str>, &Arc<Mount>)> =
            table.iter().filter(|(_, mount)| !mount.mounted.is_alive()).collect();
        if gone.is_empty() {
            return;
        }
        self.table.change(|table| gone.iter().for_each(|(name, _)| drop(table.remove(*name))));
        for (name, mount) in gone {
            tracing::info!(dataset = %name, at = %mount.at.display(), "unmounted by somebody");
            if let Err(error) = self.closed(mount) {
                tracing::warn!(dataset = %name, %error, "not closed");
            }
        }
    }

    /// Whether something was unmounted without our doing.
    pub fn has_gone(&self) -> bool {
        self.table.now().values().any(|mount| !mount.mounted.is_alive())
    }

    /// Names of the filesystems that are mounted.
    pub fn names(&self) -> Vec<String> {
        self.table.now().keys().map(ToString::to_string).collect()
    }

    /// Names of the filesystems mounted below `place`.
    pub fn inside(&self, place: &Path) -> Vec<String> {
        let mounts = self.table.now();
        let below =
            mounts.iter().filter(|(_, mount)| mount.at != place && mount.at.starts_with(place));
        below.map(|(name, _)| name.to_string()).collect()
    }

    /// Unmounts these, as far as they are mounted, and what is mounted below them.
    pub fn take_down_named(&self, names: &[String], force: bool) -> Result<(), Failure> {
        let down: Vec<String> = {
            let mounts = self.table.now();
            let tops: Vec<&Arc<Mount>> =
                names.iter().filter_map(|name| mounts.get(name.as_str())).collect();
            let below = |mount: &Mount| {
                let is_in =
                    |top: &&Arc<Mount>| mount.number >= top.number && mount.at.starts_with(&top.at);
                tops.iter().any(is_in)
            };
            let all = mounts.iter().filter(|(_, mount)| below(mount));
            all.map(|(name, _)| name.to_string()).collect()
        };
        self.take_down(down, force)
    }

    /// Calls what is mounted by its new name when it is called: the first of each pair and all below it have become
    /// the second.
    pub fn renaming(&self, pairs: Vec<(String, String)>) -> impl Fn() + Send + Sync + 'static {
        let tables = self.table.clone();
        move || pairs.iter().for_each(|(from, to)| tables.rename(from, to))
    }

    fn take_down(&self, names: Vec<String>, force: bool) -> Result<(), Failure> {
        self.cover_going(&names);
        let done = self.take_down_in_order(names, force);
        self.uncover_soon();
        done
    }

    /// Unmounts these, as far as that is possible; why the others stay.
    fn take_down_each(&self, names: Vec<String>, force: bool) -> Vec<Failure> {
        self.cover_going(&names);
        let mut failures = Vec::new();
        for (name, mount) in in_order(&self.table.now(), &names) {
            // What hides it may have stayed.
            let done = match mount.is_hidden(&self.table.now(), &[]) {
                true => Err(hidden(&mount)),
                false => self.take_down_one(&name, &mount, force),
            };
            failures.extend(done.err());
        }
        self.uncover_soon();
        failures
    }

    /// What goes with the mount around it leaves no bare directory on the way.
    fn cover_going(&self, names: &[String]) {
        if names.len() > 1 {
            self.cover(&self.places_of(names), |name| names.iter().any(|other| other == name));
        }
    }

    fn take_down_in_order(&self, names: Vec<String>, force: bool) -> Result<(), Failure> {
        let mounts = self.table.now();
        let order = in_order(&mounts, &names);
        if let Some((_, mount)) = order.iter().find(|(_, one)| one.is_hidden(&mounts, &names)) {
            return Err(hidden(mount));
        }
        order.iter().try_for_each(|(name, mount)| self.take_down_one(name, mount, force))
    }

    fn take_down_one(&self, name: &str, mount: &Mount, force: bool) -> Result<(), Failure> {
        let done = if force { mount.mounted.unmount_forced() } else { mount.mounted.unmount() };
        done.map_err(|error| {
            let (kind, reason) = match error {
                MountError::Busy => (FailureKind::Busy, "pool or dataset is busy".to_owned()),
                MountError::Elsewhere => (FailureKind::Busy, format!("{error}; -f cuts that off")),
                _ => (FailureKind::Other, error.to_string()),
            };
            Failure::new(kind, format!("cannot unmount '{}': {reason}", mount.at.display()))
        })?;
        self.table.change(|table| drop(table.remove(name)));
        let Err(error) = self.closed(mount) else { return Ok(()) };
        tracing::warn!(dataset = name, %error, "not closed");
        if force {
            return Ok(());
        }
        let words =
            format!("'{}' is unmounted, but not all of it is on the disks", mount.at.display());
        Err(Failure::new(FailureKind::Other, format!("{words}: {error}")))
    }

    /// What was mounted is so no more.
    fn closed(&self, mount: &Mount) -> cenote_engine::Result<()> {
        drop(mount.kept.lock().take());
        if self.changes.waits_for_devices() {
            self.changes.close_later(&mount.files);
            return Ok(());
        }
        self.changes.closed_files(&mount.files)
    }
}

fn find(datasets: &dyn Datasets, name: &str) -> Result<DatasetReport, Failure> {
    datasets.find(name).ok_or_else(|| no_dataset(name))
}

fn asks_remount(request: &MountRequest) -> bool {
    request.options.iter().any(|option| option == "remount")
}
