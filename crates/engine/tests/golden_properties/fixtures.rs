//! Fixture pools: unpacking and opening.
//!
//! Invariant: every pool is unpacked into a directory of its own, removed when it is dropped.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use cenote_device::Mode;
use cenote_engine::pool::assemble::assemble;
use cenote_engine::pool::discover::{FileOpener, Opener, ScanOptions, scan};
use cenote_engine::pool::{OpenOptions, Pool};
use tempfile::TempDir;

/// Folders of all fixtures: the committed ones, then those beside the repository.
pub fn fixtures() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    let wanted = std::env::var("CENOTE_FIXTURE").ok();
    let mut found: Vec<PathBuf> = Vec::new();
    for place in [root.join("tests/fixtures"), root.join("../shared/pools")] {
        let Ok(entries) = fs::read_dir(place) else { continue };
        let mut dirs: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        dirs.sort();
        for dir in dirs {
            let known = found.iter().any(|other| other.file_name() == dir.file_name());
            let name = dir.file_name().unwrap().to_string_lossy().into_owned();
            let skip = wanted.as_ref().is_some_and(|w| !w.split(',').any(|w| w == name));
            if !known && !skip && dir.join("images.tar.zst").exists() {
                found.push(dir);
            }
        }
    }
    found
}

/// Unpacks and opens the pool of a fixture.
pub fn open(fixture: &Path) -> (TempDir, Arc<Pool>) {
    let dir = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let images = fs::File::open(fixture.join("images.tar.zst")).unwrap();
    let mut tar = Command::new("tar")
        .args(["-S", "-xf", "-", "-C"])
        .arg(dir.path())
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut pipe = tar.stdin.take().unwrap();
    std::io::copy(&mut zstd::Decoder::new(images).unwrap(), &mut pipe).unwrap();
    pipe.flush().unwrap();
    drop(pipe);
    assert!(tar.wait().unwrap().success());
    let opener: Arc<dyn Opener> = Arc::new(FileOpener { mode: Mode::ReadOnly });
    let pools = assemble(&scan(&opener, &ScanOptions::new(vec![dir.path().to_owned()])));
    assert_eq!(pools.len(), 1, "{}", fixture.display());
    let pool = Pool::open(&pools[0], &OpenOptions::default()).unwrap();
    (dir, pool)
}
