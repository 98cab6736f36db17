//! The directory that something is mounted on, and where a user who is not root may have that.
//!
//! Invariant: such a user's directory is his own, and nobody but root can put another one under any name on the way there:
//! each directory above it is itself mounted on, or has a name in one that only root writes to. It is held open from
//! the check to the mount.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path};

use cenote_control::changes::MountRequest;
use cenote_control::protocol::FailureKind;
use cenote_control::terminal::words_of;
use cenote_serve::fuse;
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Stat, Uid, chownat, fstat, mkdirat, openat};
use rustix::io::Errno;

use super::table::Temporary;

/// Opens the directory `path` for `user`; makes it his where the directory above it is his.
///
/// # Errors
/// Why he may not mount there.
pub(super) fn open(path: &Path, user: u32) -> Result<OwnedFd, String> {
    if !rustix::process::geteuid().is_root() {
        return Err("the pool's process does not run as root".to_owned());
    }
    let mut names = Vec::new();
    for part in path.components() {
        match part {
            Component::RootDir => {}
            Component::Normal(name) => names.push(name),
            _ => return Err(format!("{} is no plain path", path.display())),
        }
    }
    let Some((last, above)) = names.split_last() else {
        return Err("it may only be mounted by root".to_owned());
    };
    let mut at: OwnedFd = File::open("/").map_err(|error| error.to_string())?.into();
    for name in above {
        let next = enter(&at, name).map_err(|error| error.to_string())?;
        if !is_kept(&stat(&at)?, &stat(&next)?) {
            let name = name.to_string_lossy();
            return Err(format!("others than root can move '{name}', which is on the way there"));
        }
        at = next;
    }
    let found = match enter(&at, last) {
        Err(Errno::NOENT) if stat(&at)?.st_uid == user => make(&at, last, user),
        other => other,
    };
    let found = match found {
        Ok(found) => found,
        Err(Errno::NOENT) => return Err("it may only be mounted by root".to_owned()),
        Err(error) => return Err(error.to_string()),
    };
    match stat(&found)?.st_uid == user {
        true => Ok(found),
        false => Err("the directory belongs to somebody else".to_owned()),
    }
}

fn stat(directory: &impl AsFd) -> Result<Stat, String> {
    fstat(directory).map_err(|error| error.to_string())
}

fn enter(above: &OwnedFd, name: &std::ffi::OsStr) -> Result<OwnedFd, Errno> {
    let how = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(above, name, how, Mode::empty())
}

fn make(above: &OwnedFd, name: &std::ffi::OsStr, user: u32) -> Result<OwnedFd, Errno> {
    mkdirat(above, name, Mode::from_raw_mode(0o755))?;
    // The user could have put something else there since: nothing of another's is given to him.
    let made = enter(above, name)?;
    if fstat(&made)?.st_uid == 0 && is_empty(&made) {
        let (owner, flags) = (Some(Uid::from_raw(user)), AtFlags::EMPTY_PATH);
        chownat(&made, "", owner, None::<Gid>, flags)?;
    }
    Ok(made)
}

fn is_empty(directory: &OwnedFd) -> bool {
    let opened = openat(directory, ".", OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty());
    let listed = opened.and_then(rustix::fs::Dir::new);
    listed.is_ok_and(|mut names| {
        names.all(|name| name.is_ok_and(|name| matches!(name.file_name().to_bytes(), b"." | b"..")))
    })
}

/// Whether only root can move `entry`, which has a name in `above`.
fn is_kept(above: &Stat, entry: &Stat) -> bool {
    let others_write = above.st_mode & 0o022 != 0 && above.st_mode & 0o1000 == 0;
    let sticky = above.st_mode & 0o022 != 0 && entry.st_uid != 0;
    above.st_dev != entry.st_dev || above.st_uid == 0 && !others_write && !sticky
}

/// What such a mount never has.
pub(super) fn restrict(temporary: &mut Temporary) {
    for name in ["setuid", "devices"] {
        temporary.retain(|(other, _)| *other != name);
        temporary.push((name, "off"));
    }
}

/// Makes the directory if it is to be made; for who is not root it is opened, and nothing else is mounted on.
pub(super) fn pinned(
    path: &Path,
    request: &MountRequest,
) -> Result<Option<OwnedFd>, (FailureKind, String)> {
    let Some(user) = request.on_behalf else {
        return prepare(path, request.at.is_none()).map(|()| None).map_err(|error| {
            let reason = format!("failed to create mountpoint: {}", words_of(&error));
            (FailureKind::Other, reason)
        });
    };
    let opened = open(path, user).map(Some);
    opened.map_err(|reason| (FailureKind::Permission, format!("permission denied: {reason}")))
}

/// Makes the directory if it is to be made. What a dead pool process left there is replaced as the
/// mount is made.
fn prepare(path: &Path, make: bool) -> io::Result<()> {
    if make && !fuse::is_dead(path) { fs::create_dir_all(path) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    #[test]
    fn only_his_own_directory_in_a_place_that_root_keeps() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("needs root: left out");
            return;
        }
        let top = tempfile::tempdir_in("/root").or_else(|_| tempfile::tempdir()).unwrap();
        let at = |name: &str| top.path().canonicalize().unwrap().join(name);
        let kept = open(&at("x"), 4321).unwrap_err();
        if kept.contains("on the way") {
            eprintln!("temporary files lie where others write: left out");
            return;
        }
        assert_eq!(kept, "it may only be mounted by root");
        std::fs::create_dir(at("his")).unwrap();
        assert_eq!(open(&at("his"), 4321).unwrap_err(), "the directory belongs to somebody else");
        chown(at("his"), Some(4321), None).unwrap();
        assert!(open(&at("his"), 4321).is_ok() && open(&at("his"), 4322).is_err());
        // What he has below it he can exchange, but make there.
        assert!(open(&at("his/new"), 4321).is_ok());
        std::fs::create_dir(at("his/new/deep")).unwrap();
        chown(at("his/new/deep"), Some(4321), None).unwrap();
        assert!(open(&at("his/new/deep"), 4321).unwrap_err().contains("on the way there"));
        symlink(at("his"), at("link")).unwrap();
        assert!(open(&at("link"), 4321).is_err() && open(&at("his/../his"), 4321).is_err());
        std::fs::set_permissions(top.path(), PermissionsExt::from_mode(0o777)).unwrap();
        assert!(open(&at("his/new"), 4321).unwrap_err().contains("on the way there"));
    }
}
