//! Where the processes of a pool mounted something: a file beside its control socket, which outlives a
//! process that died.
//!
//! Invariant: a place is noted before anything is mounted there. Two pools of one name, each with a
//! run directory of its own, so know their dead mounts apart.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// The places of a pool, kept by its process.
#[derive(Debug)]
pub struct MountedPlaces {
    file: PathBuf,
    known: Mutex<BTreeSet<PathBuf>>,
}

impl MountedPlaces {
    /// Takes over what earlier processes noted in `file`, as far as something `is_mounted` there.
    ///
    /// # Errors
    /// What the filesystem of the run directory says.
    pub fn open(file: PathBuf, is_mounted: impl Fn(&Path) -> bool) -> io::Result<Self> {
        let known: BTreeSet<PathBuf> =
            noted(&file).into_iter().filter(|place| is_mounted(place)).collect();
        let text: Vec<u8> = known.iter().flat_map(|place| line(place)).collect();
        replace(&file, &text)?;
        Ok(Self { file, known: Mutex::new(known) })
    }

    /// Something is about to be mounted at `place`, a path without links.
    ///
    /// # Errors
    /// What the filesystem of the run directory says.
    pub fn note(&self, place: &Path) -> io::Result<()> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if !known.contains(place) {
            File::options().append(true).create(true).open(&self.file)?.write_all(&line(place))?;
            known.insert(place.to_path_buf());
        }
        Ok(())
    }
}

/// What is noted in `file`; nothing if there is none.
pub fn noted(file: &Path) -> Vec<PathBuf> {
    let text = std::fs::read(file).unwrap_or_default();
    let places = text.split(|byte| *byte == 0).filter(|place| !place.is_empty());
    places.map(|place| PathBuf::from(OsString::from_vec(place.to_vec()))).collect()
}

/// A path holds every byte but zero.
fn line(place: &Path) -> Vec<u8> {
    let mut bytes = place.as_os_str().as_bytes().to_vec();
    bytes.push(0);
    bytes
}

/// Exchanges the file whole, so that what was noted is never gone for a moment.
fn replace(file: &Path, text: &[u8]) -> io::Result<()> {
    let next = file.with_extension("mounts.new");
    std::fs::write(&next, text)?;
    std::fs::rename(&next, file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_still_mounted_is_taken_over() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("tank.mounts");
        let (one, other) = (Path::new("/a\nb"), Path::new("/c"));
        let places = MountedPlaces::open(file.clone(), |_| true).unwrap();
        assert_eq!(noted(&file), Vec::<PathBuf>::new());
        for place in [one, other, one] {
            places.note(place).unwrap();
        }
        assert_eq!(noted(&file), [one, other]);
        let next = MountedPlaces::open(file.clone(), |place| place == one).unwrap();
        assert_eq!(noted(&file), [one]);
        next.note(other).unwrap();
        next.note(one).unwrap();
        assert_eq!(noted(&file), [one, other]);
    }
}
