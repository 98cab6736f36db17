//! Which filesystems are mounted where, and the rules of mounting.
//!
//! Invariant: parents are mounted before and unmounted after what lies below them; a mount is in the
//! table exactly as long as it is served.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cenote_control::protocol::{Failure, FailureKind, MountRequest, UnmountRequest};
use cenote_control::report::{DatasetKind, DatasetReport};
use cenote_engine::pool::Pool;
use cenote_serve::fuse::{self, MountError, MountOptions, Mounted};
use parking_lot::Mutex;

use super::changes::PoolChanges;

struct Mount {
    at: PathBuf,
    mounted: Mounted,
}

/// The mounts of a pool by dataset name.
pub struct Mounts {
    table: Mutex<BTreeMap<String, Mount>>,
    changes: Arc<dyn PoolChanges>,
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
    pub fn new(changes: Arc<dyn PoolChanges>) -> Self {
        Self { table: Mutex::default(), changes }
    }

    /// Where `dataset` is mounted.
    pub fn of(&self, dataset: &str) -> Option<PathBuf> {
        self.table.lock().get(dataset).filter(|m| m.mounted.is_alive()).map(|m| m.at.clone())
    }

    /// Serves `zfs mount`; the lines returned are what went wrong with some of many.
    pub fn mount(
        &self,
        pool: &Arc<Pool>,
        datasets: &[DatasetReport],
        request: &MountRequest,
    ) -> Result<Vec<String>, Failure> {
        if let (Some(name), false) = (&request.dataset, request.recursive) {
            let dataset = find(datasets, name)?;
            return self.mount_named(pool, dataset, request).map(|()| Vec::new());
        }
        let below = |name: &str| match &request.dataset {
            None => true,
            Some(top) => name == top || name.starts_with(&format!("{top}/")),
        };
        let mut wanted: Vec<(&DatasetReport, PathBuf)> = Vec::new();
        for dataset in datasets.iter().filter(|dataset| below(&dataset.name)) {
            match self.wanted(dataset) {
                Ok(path) => wanted.push((dataset, path)),
                Err(Skip::Quietly | Skip::NoKey) => {}
            }
        }
        wanted.sort_by(|a, b| a.1.cmp(&b.1));
        let mut warnings = Vec::new();
        for (dataset, path) in wanted {
            if let Err(failure) = self.mount_at(pool, dataset, &path, request) {
                warnings.push(failure.message);
            }
        }
        Ok(warnings)
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

    fn mount_named(
        &self,
        pool: &Arc<Pool>,
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
        if self.of(name).is_some() {
            let reason = format!("cannot mount '{name}': filesystem already mounted");
            return Err(Failure::new(FailureKind::Already, reason));
        }
        if value("keystatus") == "unavailable" {
            return refuse(format!("cannot mount '{name}': encryption key not loaded"));
        }
        self.mount_at(pool, dataset, Path::new(value("mountpoint")), request)
    }

    fn mount_at(
        &self,
        pool: &Arc<Pool>,
        dataset: &DatasetReport,
        path: &Path,
        request: &MountRequest,
    ) -> Result<(), Failure> {
        let name = &dataset.name;
        let refuse =
            |kind, reason: String| Failure::new(kind, format!("cannot mount '{name}': {reason}"));
        prepare(path).map_err(|error| {
            refuse(FailureKind::Other, format!("mountpoint '{}': {error}", path.display()))
        })?;
        let value = |name: &str| dataset.properties.value(name).unwrap_or("");
        let may_cover = request.overlay || value("overlay") != "off";
        let is_empty = fs::read_dir(path).map(|mut entries| entries.next().is_none());
        if !may_cover && !is_empty.unwrap_or(true) {
            return Err(refuse(FailureKind::Busy, "directory is not empty".to_owned()));
        }
        let found = pool
            .catalog()
            .dataset_named(name)
            .map_err(|error| refuse(FailureKind::NotFound, error.to_string()))?;
        let read_only =
            value("readonly") == "on" || request.options.iter().any(|option| option == "ro");
        let files = self
            .changes
            .open_files(pool, &found, read_only)
            .map_err(|error| refuse(FailureKind::Other, error.reason))?;
        let mut options = MountOptions::new(path, name.as_str());
        options.read_only = value("readonly") == "on";
        options.set_id = value("setuid") != "off";
        options.devices = value("devices") != "off";
        options.execute = value("exec") != "off";
        options.posix_acl = value("acltype") == "posix" || value("acltype") == "posixacl";
        for option in &request.options {
            match option.as_str() {
                "nosuid" | "nosetuid" => options.set_id = false,
                "nodev" | "nodevices" => options.devices = false,
                "noexec" => options.execute = false,
                "ro" => options.read_only = true,
                "rw" => options.read_only = false,
                "suid" | "setuid" => options.set_id = true,
                "dev" | "devices" => options.devices = true,
                "exec" => options.execute = true,
                "atime" | "noatime" | "relatime" | "norelatime" | "remount" => {}
                other => {
                    let reason = format!("mount option '{other}' is not supported yet");
                    return Err(refuse(FailureKind::NotSupported, reason));
                }
            }
        }
        let mounted = fuse::mount(files, options).map_err(|error| {
            let kind = match error {
                MountError::Busy => FailureKind::Busy,
                _ => FailureKind::Other,
            };
            refuse(kind, error.to_string())
        })?;
        let at = path.to_path_buf();
        self.table.lock().insert(name.clone(), Mount { at, mounted });
        Ok(())
    }

    /// Serves `zfs unmount`.
    pub fn unmount(&self, request: &UnmountRequest) -> Result<Vec<String>, Failure> {
        let Some(name) = &request.dataset else { return self.unmount_all(request.force) };
        let at = Path::new(name);
        let names: Vec<(PathBuf, String)> = {
            let mounts = self.table.lock();
            let name = match mounts.iter().find(|(_, mount)| mount.at == at) {
                Some((name, _)) => name.clone(),
                None => name.clone(),
            };
            let Some(top) = mounts.get(&name).map(|mount| mount.at.clone()) else {
                let reason = format!("cannot unmount '{name}': not currently mounted");
                return Err(Failure::new(FailureKind::NotFound, reason));
            };
            let below = mounts.iter().filter(|(_, mount)| mount.at.starts_with(&top));
            below.map(|(name, mount)| (mount.at.clone(), name.clone())).collect()
        };
        self.take_down(names, request.force)?;
        Ok(Vec::new())
    }

    /// Unmounts everything, innermost first. What is busy stays, unless forced.
    pub fn unmount_all(&self, force: bool) -> Result<Vec<String>, Failure> {
        let names = {
            let mounts = self.table.lock();
            mounts.iter().map(|(name, mount)| (mount.at.clone(), name.clone())).collect()
        };
        self.take_down(names, force)?;
        Ok(Vec::new())
    }

    /// Names of the filesystems that are mounted.
    pub fn names(&self) -> Vec<String> {
        self.table.lock().keys().cloned().collect()
    }

    /// Names of the filesystems mounted below `place`.
    pub fn inside(&self, place: &Path) -> Vec<String> {
        let mounts = self.table.lock();
        let below =
            mounts.iter().filter(|(_, mount)| mount.at != place && mount.at.starts_with(place));
        below.map(|(name, _)| name.clone()).collect()
    }

    /// Unmounts these, as far as they are mounted, and what is mounted below them.
    pub fn take_down_named(&self, names: &[String], force: bool) -> Result<(), Failure> {
        let down: Vec<(PathBuf, String)> = {
            let mounts = self.table.lock();
            let tops: Vec<&PathBuf> =
                names.iter().filter_map(|name| mounts.get(name)).map(|mount| &mount.at).collect();
            let below = |at: &Path| tops.iter().any(|top| at.starts_with(top));
            let all = mounts.iter().filter(|(_, mount)| below(&mount.at));
            all.map(|(name, mount)| (mount.at.clone(), name.clone())).collect()
        };
        self.take_down(down, force)
    }

    /// Calls what is mounted by its new name: `from` and all below it have become `to`.
    pub fn rename(&self, from: &str, to: &str) {
        let mut mounts = self.table.lock();
        let all = std::mem::take(&mut *mounts);
        let renamed = all.into_iter().map(|(name, mount)| match name.strip_prefix(from) {
            Some(rest) if rest.is_empty() || rest.starts_with('/') => {
                (format!("{to}{rest}"), mount)
            }
            _ => (name, mount),
        });
        *mounts = renamed.collect();
    }

    fn take_down(&self, mut names: Vec<(PathBuf, String)>, force: bool) -> Result<(), Failure> {
        names.sort();
        for (at, name) in names.into_iter().rev() {
            let mount = self.table.lock().remove(&name);
            let Some(mount) = mount else { continue };
            let done = if force { mount.mounted.unmount_forced() } else { mount.mounted.unmount() };
            if let Err(error) = done {
                let busy = matches!(error, MountError::Busy);
                self.table.lock().insert(name, mount);
                let (kind, reason) = if busy {
                    (FailureKind::Busy, "pool or dataset is busy".to_owned())
                } else {
                    (FailureKind::Other, error.to_string())
                };
                let message = format!("cannot unmount '{}': {reason}", at.display());
                return Err(Failure::new(kind, message));
            }
            if let Err(error) = self.changes.closed_files(&name) {
                tracing::warn!(dataset = name, %error, "not closed");
            }
        }
        Ok(())
    }
}

fn find<'a>(datasets: &'a [DatasetReport], name: &str) -> Result<&'a DatasetReport, Failure> {
    datasets.iter().find(|dataset| dataset.name == name).ok_or_else(|| {
        let message = format!("cannot open '{name}': dataset does not exist");
        Failure::new(FailureKind::NotFound, message)
    })
}

/// Makes the directory, and clears away the mount a dead pool process left on it.
fn prepare(path: &Path) -> io::Result<()> {
    fuse::clear_dead(path).map_err(io::Error::other)?;
    fs::create_dir_all(path)
}
