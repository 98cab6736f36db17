//! Fixture pools: unpacking, damaging, reading with the built binary, comparing.
//!
//! Invariant: every pool is unpacked into a directory of its own, removed when the test is done
//! with it.

use std::collections::HashSet;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

const CENOTE: &str = env!("CARGO_BIN_EXE_cenote");

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// A pool with what it holds.
#[derive(Debug)]
pub struct Fixture {
    /// Name of its directory.
    pub name: String,
    dir: PathBuf,
    pool: String,
}

/// What happens to a device.
#[derive(Clone, Copy, Debug)]
pub enum Damage {
    /// Its file is gone.
    Remove,
    /// Its data is noise; its labels are intact.
    Noise,
}

/// All fixtures: the committed ones, then those beside the repository that are not committed.
pub fn fixtures() -> Vec<Fixture> {
    let mut found: Vec<Fixture> = Vec::new();
    for place in [root().join("tests/fixtures"), root().join("../shared/pools")] {
        let Ok(entries) = fs::read_dir(place) else { continue };
        let mut dirs: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        dirs.sort();
        for dir in dirs {
            let name = dir.file_name().unwrap().to_string_lossy().into_owned();
            let known = found.iter().any(|f| f.name == name);
            if known || !dir.join("images.tar.zst").exists() {
                continue;
            }
            let list = fs::read_to_string(dir.join("list.txt")).unwrap();
            let pool = list.split(['\t', '/', '@']).next().unwrap().to_owned();
            found.push(Fixture { name, dir, pool });
        }
    }
    let wanted = std::env::var("CENOTE_FIXTURE").ok();
    found.retain(|f| wanted.as_ref().is_none_or(|w| w.split(',').any(|w| w == f.name)));
    found
}

/// Whether FUSE mounts can be made here.
pub fn can_mount() -> Result<(), String> {
    if !rustix::process::geteuid().is_root() {
        return Err("mount tests need root".into());
    }
    fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/fuse")
        .map(|_| ())
        .map_err(|error| format!("/dev/fuse: {error}"))
}

/// Where files are kept in memory, if there is room for many and they may have attributes: the trees are many small
/// files, of which ext4 takes long to make some where others went a moment ago.
fn memory() -> Option<&'static Path> {
    let place = Path::new("/dev/shm");
    let there = rustix::fs::statvfs(place).ok()?;
    let room = there.f_bavail.checked_mul(there.f_frsize)?;
    let file = tempfile::NamedTempFile::new_in(place).ok()?;
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::fsetxattr(&file, "user.any", b"any", flags).ok()?;
    (room >= 8 << 30).then_some(place)
}

fn decompressed(path: &Path) -> Vec<u8> {
    let file = fs::File::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut out = Vec::new();
    zstd::Decoder::new(file).unwrap().read_to_end(&mut out).unwrap();
    out
}

impl Fixture {
    /// Unpacks the devices into a fresh directory.
    pub fn unpack(&self, label: &str) -> Pool {
        let base = memory().unwrap_or(Path::new(env!("CARGO_TARGET_TMPDIR")));
        let prefix = format!("cenote-{}-{label}-", self.name);
        let dir = tempfile::Builder::new().prefix(&prefix).tempdir_in(base).unwrap();
        let devices = dir.path().join("devices");
        fs::create_dir(&devices).unwrap();
        let mut tar = Command::new("tar")
            .args(["-S", "-xf", "-", "-C"])
            .arg(&devices)
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let images = decompressed(&self.dir.join("images.tar.zst"));
        tar.stdin.take().unwrap().write_all(&images).unwrap();
        assert!(tar.wait().unwrap().success());
        Pool { dir }
    }

    /// Sets of devices that can be lost at once.
    pub fn expendable(&self) -> Vec<Vec<&'static str>> {
        match self.name.as_str() {
            "mirror3" => vec![vec!["d0", "d1"], vec!["d1", "d2"]],
            "raidz1x3" => vec![vec!["d0"], vec!["d2"]],
            "raidz1x5" => vec![vec!["d1"], vec!["d4"]],
            "raidz2x6" => vec![vec!["d0", "d1"], vec!["d2", "d5"]],
            "raidz3x8" => vec![vec!["d0", "d3", "d7"]],
            "draid2" => vec![vec!["d0", "d1"], vec!["d3", "d10"]],
            "striped" => vec![vec!["d0", "d3", "d5"], vec!["d1", "d2", "d6"]],
            "expanded" => vec![vec!["d0", "d6"], vec!["d2", "d5"]],
            "classes" => vec![vec!["d1", "d2", "d5"]],
            "snaps" | "modern" => vec![vec!["d0"], vec!["d1"]],
            "history" => vec![vec!["d0", "d4"]],
            _ => Vec::new(),
        }
    }

    /// The recorded SHA-256 of its volume.
    pub fn volume_hash(&self) -> Option<String> {
        let text = fs::read_to_string(self.dir.join("vol.sha256")).ok()?;
        text.split_whitespace().next().map(str::to_owned)
    }

    /// The lines of manifest `name`.
    fn manifest(&self, name: &str) -> Option<Vec<String>> {
        let plain = self.dir.join("manifest").join(format!("{name}.jsonl"));
        let bytes = match fs::read(&plain) {
            Ok(bytes) => bytes,
            Err(_) => {
                let packed = plain.with_extension("jsonl.zst");
                if !packed.exists() {
                    return None;
                }
                decompressed(&packed)
            }
        };
        Some(String::from_utf8(bytes).unwrap().lines().map(str::to_owned).collect())
    }

    /// Options that load the keys beside an encrypted pool.
    fn key_options(&self) -> Vec<String> {
        let mut options = Vec::new();
        for key in ["pp", "rawkey", "hexkey"] {
            let path = self.dir.join(key);
            if path.exists() {
                options.push("--key".to_owned());
                options.push(format!("file:///tmp/{key}={}", path.display()));
            }
        }
        options
    }

    /// Manifests that a crashed pool cannot meet: they show it after its log was replayed.
    fn is_crashed(&self) -> bool {
        self.name.starts_with("crash-")
    }
}

/// An unpacked pool.
pub struct Pool {
    dir: TempDir,
}

impl Pool {
    fn devices(&self) -> PathBuf {
        self.dir.path().join("devices")
    }

    /// Damages devices by file name.
    pub fn damage(&self, victims: &[&str], how: Damage) {
        for victim in victims {
            let path = self.devices().join(victim);
            match how {
                Damage::Remove => fs::remove_file(path).unwrap(),
                Damage::Noise => overwrite_with_noise(&path),
            }
        }
    }

    /// Copies the whole pool out and compares it with its manifest.
    pub fn check_copies(&self, fixture: &Fixture, what: &str) {
        let out = self.dir.path().join("out");
        let mut command = Command::new(CENOTE);
        command.args(["cp", "--recursive", "--json", "-d"]).arg(self.devices());
        command.args(fixture.key_options());
        command.arg(format!("{}:/", fixture.pool)).arg(&out);
        let done = command.output().unwrap();
        let text = String::from_utf8_lossy(&done.stderr);
        let report: serde_json::Value = serde_json::from_slice(&done.stdout)
            .unwrap_or_else(|error| panic!("{} {what}: {error}: {text}", fixture.name));
        let lost = lost_to_the_target(&report)
            .unwrap_or_else(|loss| panic!("{} {what}: {loss}", fixture.name));
        assert!(done.status.success() || !lost.is_empty(), "{} {what}: {text}", fixture.name);
        if !fixture.is_crashed() {
            compare(&out, fixture, &fixture.pool, what, &lost);
        }
        fs::remove_dir_all(&out).unwrap();
    }

    /// SHA-256 of a volume, read without mounting.
    pub fn hash_volume(&self, fixture: &Fixture, volume: &str) -> String {
        let done = Command::new(CENOTE)
            .args(["cat", "-d"])
            .arg(self.devices())
            .arg(format!("{}/{volume}", fixture.pool))
            .output()
            .unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        let mut sum =
            Command::new("sha256sum").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        sum.stdin.take().unwrap().write_all(&done.stdout).unwrap();
        let text = String::from_utf8(sum.wait_with_output().unwrap().stdout).unwrap();
        text.split_whitespace().next().unwrap().to_owned()
    }

    /// Imports the pool, compares its mounts, exports it.
    pub fn check_mounted(&self, fixture: &Fixture) {
        let (run, mnt) = (self.dir.path().join("run"), self.dir.path().join("mnt"));
        fs::create_dir(&mnt).unwrap();
        let cenote = |arguments: &[&str]| {
            let mut command = Command::new(CENOTE);
            command.args(arguments).env("CENOTE_RUN_DIR", &run);
            // Copies of one pool are open at the same time in these tests.
            command.env("CENOTE_PLAYED_HOST", &run).output().unwrap()
        };
        let (devices, mnt_text) = (self.devices(), mnt.display().to_string());
        let devices = devices.display().to_string();
        let imported = cenote(&[
            "zpool",
            "import",
            "-f",
            "-o",
            "readonly=on",
            "-d",
            &devices,
            "-R",
            &mnt_text,
            &fixture.pool,
        ]);
        let text = String::from_utf8_lossy(&imported.stderr).into_owned();
        assert!(imported.status.success(), "{}: {text}", fixture.name);
        let loaded = self.load_keys(fixture, &run);
        let result = std::panic::catch_unwind(|| {
            assert!(loaded, "{}: keys not loaded", fixture.name);
            if fixture.name == "snaps" {
                compare(&mnt.join("snapview"), fixture, "a_head", "mounted", &[]);
                for snapshot in ["one", "two", "s1", "s3", "s5"] {
                    let view = mnt.join("snapview/.zfs/snapshot").join(snapshot);
                    compare(&view, fixture, &format!("a_at_{snapshot}"), "snapshot", &[]);
                }
            }
            if !fixture.is_crashed() {
                compare(&mnt.join(&fixture.pool), fixture, &fixture.pool, "mounted", &[]);
            }
        });
        let exported = cenote(&["zpool", "export", "-f", &fixture.pool]);
        let text = String::from_utf8_lossy(&exported.stderr).into_owned();
        if let Err(panic) = result {
            std::panic::resume_unwind(panic);
        }
        assert!(exported.status.success(), "{}: {text}", fixture.name);
    }

    /// Loads the keys of an encrypted fixture and mounts what they open.
    fn load_keys(&self, fixture: &Fixture, run: &Path) -> bool {
        let zfs = |arguments: &[&str]| {
            Command::new(CENOTE)
                .arg("zfs")
                .args(arguments)
                .env("CENOTE_RUN_DIR", run)
                .status()
                .unwrap()
                .success()
        };
        let props = fs::read_to_string(fixture.dir.join("props.txt")).unwrap_or_default();
        let mut encrypted = false;
        for line in props.lines() {
            let fields: Vec<&str> = line.split('\t').collect();
            let [dataset, "keylocation", value, "local"] = fields[..] else { continue };
            let Some(key) = value.strip_prefix("file:///tmp/") else { continue };
            let location = format!("file://{}", fixture.dir.join(key).display());
            encrypted = true;
            if !zfs(&["load-key", "-L", &location, dataset]) {
                return false;
            }
        }
        !encrypted || zfs(&["mount", "-a"])
    }
}

/// The files that the filesystem copied to cannot hold (a name or an attribute too long for it),
/// or the first loss that is our own.
fn lost_to_the_target(report: &serde_json::Value) -> Result<Vec<String>, String> {
    let losses = report["losses"].as_array().cloned().unwrap_or_default();
    let mut paths = Vec::new();
    for loss in losses {
        let reason = loss["reason"].as_str().unwrap_or_default();
        let theirs = reason.contains("name too long")
            || reason.starts_with("extended attribute") && reason.contains("No space left");
        if !theirs {
            return Err(loss.to_string());
        }
        paths.push(loss["path"].as_str().unwrap_or_default().to_owned());
    }
    Ok(paths)
}

/// Compares a directory with a manifest, line by line; `lost` files need not be there.
fn compare(dir: &Path, fixture: &Fixture, manifest: &str, what: &str, lost: &[String]) {
    let Some(mut expected) = fixture.manifest(manifest) else {
        panic!("{}: no manifest {manifest}", fixture.name)
    };
    let is_lost = |line: &str| lost.iter().any(|path| line.contains(&format!("{path}\", ")));
    expected.retain(|line| !is_lost(line));
    let listed =
        Command::new("python3").arg(root().join("tests/manifest.py")).arg(dir).output().unwrap();
    assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
    let text = String::from_utf8(listed.stdout).unwrap();
    let found: HashSet<&str> = text.lines().filter(|line| !is_lost(line)).collect();
    let wanted: HashSet<&str> = expected.iter().map(String::as_str).collect();
    let missing: Vec<_> = wanted.difference(&found).collect();
    let extra: Vec<_> = found.difference(&wanted).collect();
    if missing.is_empty() && extra.is_empty() {
        return;
    }
    panic!(
        "{} {what}, manifest {manifest}: {} lines missing, {} extra\n- {:#?}\n+ {:#?}",
        fixture.name,
        missing.len(),
        extra.len(),
        &missing[..missing.len().min(4)],
        &extra[..extra.len().min(4)]
    );
}

/// Noise over the allocatable area of a device; the labels stay.
fn overwrite_with_noise(path: &Path) {
    let file = fs::File::options().write(true).open(path).unwrap();
    let size = file.metadata().unwrap().len();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut chunk = vec![0_u8; 1 << 20];
    let (mut at, end) = (4 << 20, size - (512 << 10));
    while at < end {
        for word in chunk.chunks_exact_mut(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            word.copy_from_slice(&state.to_le_bytes());
        }
        let len = chunk.len().min(usize::try_from(end - at).unwrap());
        file.write_all_at(&chunk[..len], at).unwrap();
        at += len as u64;
    }
}
