//! Where the sockets, process ids and logs of pool processes lie.
//!
//! Invariant: one pool name maps to one set of files, short enough for a socket address; a pool
//! process holds an exclusive lock on its pid file for as long as it lives, and who removes what a dead
//! one left holds it meanwhile. Nobody but its user (and root) puts anything into a directory that is used.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode, OFlags, Stat, flock};

/// Longest stem of a file name here; longer pool names are cut and numbered by hash. A socket
/// address holds 108 bytes.
const STEM_MAX: usize = 48;

/// Root's directory.
const OF_ROOT: &str = "/run/cenote";

/// The directory: `$CENOTE_RUN_DIR`; else `/run/cenote` for root, `$XDG_RUNTIME_DIR/cenote` or
/// `/tmp/cenote-UID` for others.
pub fn path() -> PathBuf {
    if let Some(directory) = told() {
        return directory;
    }
    let user = rustix::process::getuid();
    if user.is_root() {
        return PathBuf::from(OF_ROOT);
    }
    match std::env::var_os("XDG_RUNTIME_DIR").filter(|d| !d.is_empty()) {
        Some(directory) => PathBuf::from(directory).join("cenote"),
        None => PathBuf::from(format!("/tmp/cenote-{}", user.as_raw())),
    }
}

/// The one that a user named.
fn told() -> Option<PathBuf> {
    std::env::var_os("CENOTE_RUN_DIR").filter(|told| !told.is_empty()).map(PathBuf::from)
}

/// Where root's pools are, for others than root who have not said where to look.
pub fn shared() -> Option<PathBuf> {
    let is_root = rustix::process::getuid().is_root();
    (told().is_none() && !is_root).then(|| PathBuf::from(OF_ROOT))
}

/// The files of one pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolFiles {
    /// Control socket.
    pub socket: PathBuf,
    /// Process id and pool name, one a line; locked by the pool process.
    pub pid: PathBuf,
    /// Log.
    pub log: PathBuf,
    /// See [`crate::mounted_places`].
    pub mounts: PathBuf,
}

/// The files of the pool `name` in `directory`.
pub fn files(directory: &Path, name: &str) -> PoolFiles {
    let stem = stem(name);
    PoolFiles {
        socket: directory.join(format!("{stem}.sock")),
        pid: directory.join(format!("{stem}.pid")),
        log: directory.join(format!("{stem}.log")),
        mounts: directory.join(format!("{stem}.mounts")),
    }
}

fn stem(name: &str) -> String {
    let safe: String = name.chars().map(|c| if c == '/' || c == '\0' { '_' } else { c }).collect();
    if safe.len() <= STEM_MAX && safe == name {
        return safe;
    }
    // FNV-1a: only has to tell long names apart
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let cut: String = safe.chars().take(24).filter(char::is_ascii).collect();
    format!("{cut}~{hash:016x}")
}

/// What a pid file says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// Process id; zero if it could not be read.
    pub pid: u32,
    /// Name of the pool.
    pub pool: String,
    /// Whether that process still holds its lock.
    pub alive: bool,
}

/// Reads a pid file and tells whether its process lives.
pub fn owner(pid_file: &Path) -> Option<Owner> {
    let mut file = no_link(File::options().read(true)).open(pid_file).ok()?;
    let mut text = String::new();
    Read::by_ref(&mut file).take(4096).read_to_string(&mut text).ok()?;
    let mut lines = text.lines();
    let pid = lines.next().and_then(|line| line.trim().parse().ok()).unwrap_or(0);
    let pool = lines.next().unwrap_or("").to_owned();
    // the lock is free only if nobody holds it; it is given back when the file closes
    let alive = flock(&file, FlockOperation::NonBlockingLockShared).is_err();
    Some(Owner { pid, pool, alive })
}

/// How often a lock is tried that others have, and how long apart.
const TRIES: usize = 10;
const BETWEEN_TRIES: Duration = Duration::from_millis(20);

/// The file at `path`, made if it is not there, with its lock; `None` if another has that.
fn lock(path: &Path) -> std::io::Result<Option<File>> {
    loop {
        let mut options = File::options();
        options.create(true).truncate(false).write(true).read(true);
        let file = no_link(&mut options).open(path)?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Ok(None);
        }
        // Somebody may have removed it before it was locked.
        let (own, there) = (file.metadata()?, std::fs::metadata(path));
        if there.is_ok_and(|there| (there.dev(), there.ino()) == (own.dev(), own.ino())) {
            return Ok(Some(file));
        }
    }
}

/// Removes the socket and the pid file of a dead pool process, and does `more` before nobody knows of it any more;
/// false if it lives, or another begins or clears it just now.
pub fn sweep(files: &PoolFiles, more: impl FnOnce()) -> bool {
    if !files.pid.exists() && !files.socket.exists() {
        more();
        return true;
    }
    let Ok(Some(_lock)) = lock(&files.pid) else { return false };
    drop(std::fs::remove_file(&files.socket));
    more();
    drop(std::fs::remove_file(&files.pid));
    true
}

/// Takes the pid file of a pool for this process. Keep the returned file open: it is the lock.
///
/// # Errors
/// `AlreadyExists` if another process holds the pool; else what the filesystem says.
pub fn claim(files: &PoolFiles, pool: &str) -> std::io::Result<File> {
    let mut tries = 0;
    let mut file = loop {
        match lock(&files.pid)? {
            Some(file) => break file,
            // Who only looks whether somebody lives has it for a moment.
            None if tries < TRIES => tries += 1,
            None => return Err(std::io::ErrorKind::AlreadyExists.into()),
        }
        std::thread::sleep(BETWEEN_TRIES);
    };
    file.set_len(0)?;
    write!(file, "{}\n{pool}\n", std::process::id())?;
    Ok(file)
}

/// Opens what is there itself, not what a link of its name leads to.
pub(crate) fn no_link(options: &mut std::fs::OpenOptions) -> &mut std::fs::OpenOptions {
    options.custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
}

/// Makes the run directory if it is not there. Others than root have theirs for themselves.
///
/// # Errors
/// What the filesystem says; if it is somebody else's, or others may write to it.
pub fn create(directory: &Path) -> std::io::Result<()> {
    let user = rustix::process::geteuid();
    let mode = if user.is_root() { 0o755 } else { 0o700 };
    std::fs::DirBuilder::new().recursive(true).mode(mode).create(directory)?;
    is_safe(&status(directory)?, &[user.as_raw()])
}

/// Why pools of the run directory that nobody named are not to be asked: anybody can make one in `/tmp`. Root's lies
/// where only root makes any.
pub(crate) fn distrusted(directory: &Path) -> Option<std::io::Error> {
    let user = rustix::process::geteuid();
    if told().is_some() || user.is_root() {
        return None;
    }
    match status(directory) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        status => status.and_then(|status| is_safe(&status, &[user.as_raw()])).err(),
    }
}

/// What the directory is; one that nobody named is no link.
fn status(directory: &Path) -> std::io::Result<Stat> {
    let mut flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    if told().is_none() {
        flags |= OFlags::NOFOLLOW;
    }
    let open = rustix::fs::open(directory, flags, Mode::empty())?;
    Ok(rustix::fs::fstat(open)?)
}

fn is_safe(status: &Stat, owners: &[u32]) -> std::io::Result<()> {
    let refuse =
        |words: String| Err(std::io::Error::new(std::io::ErrorKind::PermissionDenied, words));
    if !owners.contains(&status.st_uid) {
        return refuse(format!("this directory belongs to another user ({})", status.st_uid));
    }
    // Where users have groups of their own, those may write.
    let is_own_group = status.st_gid == rustix::process::getegid().as_raw();
    let others = if is_own_group { 0o002 } else { 0o022 };
    if status.st_mode & others != 0 {
        return refuse(
            "others may write to this directory (chmod go-w takes that away)".to_owned(),
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_fit_a_socket_address() {
        let directory = Path::new("/run/cenote");
        let long = "p".repeat(255);
        assert!(files(directory, &long).socket.as_os_str().len() < 100);
        assert_ne!(files(directory, &long), files(directory, &format!("{long}x")));
        assert_eq!(files(directory, "tank").socket, Path::new("/run/cenote/tank.sock"));
    }

    #[test]
    fn a_claim_is_exclusive_and_ends_with_its_file() {
        let directory = tempfile::tempdir().unwrap();
        let files = files(directory.path(), "tank");
        let claimed = claim(&files, "tank").unwrap();
        assert!(claim(&files, "tank").is_err());
        let seen = owner(&files.pid).unwrap();
        assert_eq!((seen.pid, seen.pool.as_str(), seen.alive), (std::process::id(), "tank", true));
        assert!(!sweep(&files, || panic!("it lives")));
        drop(claimed);
        assert!(!owner(&files.pid).unwrap().alive);
    }

    #[test]
    fn what_a_dead_one_left_is_removed_by_one_at_a_time() {
        let directory = tempfile::tempdir().unwrap();
        let files = files(directory.path(), "tank");
        drop(claim(&files, "tank").unwrap());
        std::fs::write(&files.socket, "").unwrap();
        let swept = sweep(&files, || {
            assert!(!sweep(&files, || ()));
            assert!(claim(&files, "tank").is_err());
        });
        assert!(swept && !files.pid.exists() && !files.socket.exists());
        let claimed = claim(&files, "tank").unwrap();
        assert!(owner(&files.pid).unwrap().alive);
        drop(claimed);
    }

    #[test]
    fn what_others_may_write_to_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let own = directory.path().join("a/b");
        create(&own).unwrap();
        create(&own).unwrap();
        let mode = std::fs::metadata(&own).unwrap().permissions().mode() & 0o777;
        let user = rustix::process::geteuid();
        assert_eq!(mode & 0o022, 0, "{mode:o}");
        assert!(user.is_root() || mode == 0o700, "{mode:o}");
        for mode in [0o702, 0o1777] {
            std::fs::set_permissions(&own, PermissionsExt::from_mode(mode)).unwrap();
            let error = create(&own).unwrap_err().to_string();
            assert!(error.starts_with("others may write to this directory"), "{mode:o}: {error}");
        }
        // The user's own group is no other.
        std::fs::set_permissions(&own, PermissionsExt::from_mode(0o770)).unwrap();
        create(&own).unwrap();
        let (user_id, group) = (user.as_raw(), rustix::process::getegid().as_raw());
        let mut by_group = status(&own).unwrap();
        by_group.st_gid = group + 1;
        assert!(is_safe(&by_group, &[user_id]).is_err());
        std::fs::set_permissions(&own, PermissionsExt::from_mode(0o755)).unwrap();
        let status = status(&own).unwrap();
        assert!(is_safe(&status, &[user.as_raw()]).is_ok());
        let error = is_safe(&status, &[user.as_raw() + 1]).unwrap_err();
        assert!(error.to_string().contains("belongs to another user"), "{error}");
    }

    #[test]
    fn no_link_is_taken_for_a_file() {
        let directory = tempfile::tempdir().unwrap();
        let files = files(directory.path(), "tank");
        let kept = directory.path().join("kept");
        std::fs::write(&kept, "1\ntank\n").unwrap();
        std::os::unix::fs::symlink(&kept, &files.pid).unwrap();
        assert!(claim(&files, "other").is_err());
        assert_eq!(owner(&files.pid), None);
        assert_eq!(std::fs::read(&kept).unwrap(), b"1\ntank\n");
    }
}
