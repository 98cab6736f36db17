//! Finding devices with ZFS labels among files and block devices.
//!
//! Invariant: a device that does not answer delays the scan by its deadline once and hides nothing but
//! itself; the same device under several names is opened once. Chapter 01, section 11.1.

use std::collections::HashMap;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cenote_device::{Device, DeviceError, FileDevice, Mode};
use cenote_format::config::{PoolConfig, PoolState};
use cenote_format::{Guid, label};

use super::found_labels::{FoundLabel, read_labels};
use super::parallel;

/// Where `zpool import` looks when no place is given, best names first: where commands look for short
/// names (`control::device_names`, which the engine does not know; `inspect` tests that they agree), and
/// what lies in `/dev/disk` itself.
pub const DEFAULT_PLACES: [&str; 10] = [
    "/dev/disk/by-vdev",
    "/dev/mapper",
    "/dev/disk/by-partlabel",
    "/dev/disk/by-partuuid",
    "/dev/disk/by-label",
    "/dev/disk/by-uuid",
    "/dev/disk/by-id",
    "/dev/disk/by-path",
    "/dev/disk",
    "/dev",
];
/// Most entries of one directory that are looked at.
const MAX_ENTRIES: usize = 65_536;

/// A file or block device that may carry labels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Its name.
    pub path: PathBuf,
    /// What makes two names the same device; none if unknown.
    pub identity: Option<(u64, u64)>,
}

/// How devices are found and opened. Real ones by [`FileOpener`]; tests bring their own.
pub trait Opener: Send + Sync {
    /// The candidates at `place`: itself, or the entries of a directory (not of directories below).
    fn candidates(&self, place: &Path) -> Result<Vec<Candidate>, DeviceError>;
    /// Opens the device called `path`.
    fn open(&self, path: &Path) -> Result<Arc<dyn Device>, DeviceError>;
}

impl std::fmt::Debug for dyn Opener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Opener")
    }
}

/// Opens files and block devices of this machine.
#[derive(Clone, Copy, Debug)]
pub struct FileOpener {
    /// What they are opened for.
    pub mode: Mode,
}

impl Opener for FileOpener {
    fn candidates(&self, place: &Path) -> Result<Vec<Candidate>, DeviceError> {
        let metadata = std::fs::metadata(place)?;
        if !metadata.is_dir() {
            return Ok(vec![Candidate { path: place.into(), identity: Some(identity(&metadata)) }]);
        }
        let mut found = Vec::new();
        for entry in std::fs::read_dir(place)?.take(MAX_ENTRIES) {
            let path = entry?.path();
            // Follows links; what cannot be looked at is no candidate.
            if let Ok(metadata) = std::fs::metadata(&path)
                && (metadata.is_file() || metadata.file_type().is_block_device())
            {
                found.push(Candidate { path, identity: Some(identity(&metadata)) });
            }
        }
        found.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(found)
    }

    fn open(&self, path: &Path) -> Result<Arc<dyn Device>, DeviceError> {
        Ok(Arc::new(FileDevice::open(path, self.mode)?))
    }
}

fn identity(metadata: &std::fs::Metadata) -> (u64, u64) {
    if metadata.file_type().is_block_device() {
        (u64::MAX, metadata.rdev())
    } else {
        (metadata.dev(), metadata.ino())
    }
}

/// What to look at, and how long.
#[derive(Clone, Debug)]
pub struct ScanOptions {
    /// Files, devices and directories, in order of preference.
    pub places: Vec<PathBuf>,
    /// How long one device may take.
    pub deadline: Duration,
    /// How many devices are looked at together.
    pub width: usize,
}

impl ScanOptions {
    /// The options for `places`; the default places if there are none.
    pub fn new(places: Vec<PathBuf>) -> Self {
        let places = if places.is_empty() {
            DEFAULT_PLACES.iter().map(PathBuf::from).collect()
        } else {
            places
        };
        Self { places, deadline: Duration::from_secs(2), width: 256 }
    }
}

/// A device with at least one label that counts.
#[derive(Clone, Debug)]
pub struct FoundDevice {
    /// The open device.
    pub device: Arc<dyn Device>,
    /// Its names, best first.
    pub paths: Vec<PathBuf>,
    /// Every label that could be unpacked, by position.
    pub labels: Vec<FoundLabel>,
    /// Its place in the order of the search.
    pub rank: usize,
}

impl FoundDevice {
    /// The config this device is known by: the first label that counts.
    pub fn config(&self) -> Option<&PoolConfig> {
        self.labels.iter().find(|label| label.counts()).map(|label| &label.config)
    }

    /// The guid of the device.
    pub fn guid(&self) -> Guid {
        self.config().and_then(|config| config.guid).unwrap_or_default()
    }

    /// Whether it belongs to a pool, or is a spare or cache device.
    pub fn state(&self) -> Option<PoolState> {
        self.config().and_then(|config| config.state)
    }

    /// How many labels agree that this is the device.
    pub fn quality(&self) -> usize {
        let guid = Some(self.guid());
        self.labels.iter().filter(|label| label.counts() && label.config.guid == guid).count()
    }

    /// The best name: `preferred` if it is one of them, else the first.
    pub fn path(&self, preferred: Option<&str>) -> PathBuf {
        let known = preferred.map(Path::new).filter(|path| self.paths.iter().any(|p| p == path));
        known.map(Path::to_path_buf).or_else(|| self.paths.first().cloned()).unwrap_or_default()
    }
}

/// A place or device that could not be looked at.
#[derive(Clone, Debug)]
pub struct Problem {
    /// Which.
    pub path: PathBuf,
    /// Why.
    pub reason: String,
    /// It did not answer in time.
    pub silent: bool,
}

/// What a scan found.
#[derive(Clone, Debug, Default)]
pub struct Scan {
    /// Devices with labels, in the order of the search.
    pub devices: Vec<Arc<FoundDevice>>,
    /// What could not be looked at.
    pub problems: Vec<Problem>,
}

enum Look {
    Nothing,
    Found(Arc<dyn Device>, Vec<FoundLabel>),
    Failed(String),
}

/// Looks at everything `options` names.
pub fn scan(opener: &Arc<dyn Opener>, options: &ScanOptions) -> Scan {
    let mut scan = Scan::default();
    let listings = options.places.iter().map(|place| {
        let (opener, place) = (opener.clone(), place.clone());
        move || opener.candidates(&place)
    });
    // No medium has to start turning for that.
    let listings = parallel::run(listings.collect(), options.width, options.deadline / 2);
    let mut names: Vec<Vec<PathBuf>> = Vec::new();
    let mut seen: HashMap<(u64, u64), usize> = HashMap::new();
    let explicit = options.places != ScanOptions::new(Vec::new()).places;
    for (place, listing) in options.places.iter().zip(listings) {
        let candidates = match listing {
            Some(Ok(candidates)) => candidates,
            Some(Err(error)) => {
                if explicit {
                    scan.problem(place, error.to_string(), false);
                }
                continue;
            }
            None => {
                scan.problem(place, no_answer(options.deadline), true);
                continue;
            }
        };
        for candidate in candidates {
            let known = candidate.identity.and_then(|identity| seen.get(&identity).copied());
            match known.and_then(|index| names.get_mut(index)) {
                Some(paths) if paths.contains(&candidate.path) => {}
                Some(paths) => paths.push(candidate.path),
                None => {
                    if let Some(identity) = candidate.identity {
                        seen.insert(identity, names.len());
                    }
                    names.push(vec![candidate.path]);
                }
            }
        }
    }
    let looks = names.iter().filter_map(|paths| paths.first()).map(|path| {
        let (opener, path) = (opener.clone(), path.clone());
        move || look(&*opener, &path)
    });
    let looks = parallel::run(looks.collect(), options.width, options.deadline);
    for (rank, (paths, look)) in names.into_iter().zip(looks).enumerate() {
        let path = paths.first().cloned().unwrap_or_default();
        match look {
            Some(Look::Nothing) => {}
            Some(Look::Failed(reason)) => scan.problem(&path, reason, false),
            None => scan.problem(&path, no_answer(options.deadline), true),
            Some(Look::Found(device, labels)) => {
                scan.devices.push(Arc::new(FoundDevice { device, paths, labels, rank }));
            }
        }
    }
    scan
}

/// How many of these devices answer within `deadline`, whatever they say.
pub(super) fn answering(opener: &Arc<dyn Opener>, paths: &[PathBuf], deadline: Duration) -> usize {
    let looks = paths.iter().map(|path| {
        let (opener, path) = (opener.clone(), path.clone());
        move || drop(look(&*opener, &path))
    });
    parallel::run(looks.collect(), paths.len(), deadline).into_iter().flatten().count()
}

fn no_answer(deadline: Duration) -> String {
    format!("no answer within {} s", deadline.as_secs_f32())
}

impl Scan {
    fn problem(&mut self, path: &Path, reason: String, silent: bool) {
        tracing::warn!(path = %path.display(), reason, "cannot look for labels");
        self.problems.push(Problem { path: path.into(), reason, silent });
    }
}

fn look(opener: &dyn Opener, path: &Path) -> Look {
    let device = match opener.open(path) {
        Ok(device) => device,
        // A drive without a medium, or a node without a driver, is not a failure worth telling.
        Err(DeviceError::Gone) => return Look::Nothing,
        Err(error) => return Look::Failed(error.to_string()),
    };
    if label::label_offset(device.size(), 0).is_none() {
        return Look::Nothing;
    }
    match read_labels(&*device) {
        Ok(labels) if labels.iter().any(FoundLabel::counts) => Look::Found(device, labels),
        Ok(_) => Look::Nothing,
        Err(error) => Look::Failed(error.to_string()),
    }
}

#[cfg(test)]
mod tests;
