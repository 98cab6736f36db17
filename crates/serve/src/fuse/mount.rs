//! Making and removing the mount itself: by `mount(2)`, or by the helper `fusermount3` for users
//! who may not.
//!
//! Invariant: nothing here touches the mounted filesystem (a path below the mountpoint), so it
//! cannot hang on its own server.

use std::ffi::CString;
use std::fmt::Write as _;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MoveMountFlags, UnmountFlags,
};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
};

use super::handler::MAX_IO;
use super::mount_table::MountTable;
use super::{AccessTimes, MountError, MountFlagOptions, MountOptions};

/// The device a FUSE server talks through.
pub(super) const DEVICE: &str = "/dev/fuse";
/// Subtype: the type of the mount is `fuse.cenote`.
const SUBTYPE: &str = "cenote";
/// Helpers, newest first.
const HELPERS: [&str; 2] = ["fusermount3", "fusermount"];
/// Milliseconds between tries to unmount what is busy.
const BUSY_PAUSES: [u64; 6] = [5, 10, 20, 40, 80, 160];
/// The usual reason why the helper refuses a mountpoint.
const NESTED: &str =
    " (the helper does not mount inside another mount; root does, and so does 'unshare -rm')";

/// Mounts and gives the open device.
pub(super) fn mount(options: &MountOptions) -> Result<OwnedFd, MountError> {
    match mount_directly(options) {
        Err(MountError::System { error, .. })
            if matches!(
                Errno::from_io_error(&error),
                Some(Errno::PERM | Errno::ACCESS | Errno::NOENT)
            ) && options.pinned.is_none() =>
        {
            // The helper does not look at a dead mount.
            if is_dead(&options.mountpoint) {
                unmount_forced(&options.mountpoint)?;
            }
            mount_by_helper(options)
        }
        result => result,
    }
}

/// The flags of the mount.
fn flags_of(options: &MountFlagOptions) -> MountFlags {
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::RDONLY, options.read_only);
    flags.insert(match options.access_times {
        AccessTimes::Always => MountFlags::STRICTATIME,
        AccessTimes::Relative => MountFlags::RELATIME,
        AccessTimes::Never => MountFlags::NOATIME,
    });
    flags.set(MountFlags::NOSUID, !options.set_id);
    flags.set(MountFlags::NODEV, !options.devices);
    flags.set(MountFlags::NOEXEC, !options.execute);
    flags
}

/// Gives the mount at `mountpoint` other flags.
pub(super) fn remount(mountpoint: &Path, options: &MountFlagOptions) -> Result<(), MountError> {
    let flags = flags_of(options);
    match rustix::mount::mount_remount(mountpoint, flags, "") {
        Ok(()) => Ok(()),
        Err(Errno::BUSY) => Err(MountError::Busy),
        Err(error) => {
            Err(MountError::system(format!("remounting {}", mountpoint.display()))(error))
        }
    }
}

fn mount_directly(options: &MountOptions) -> Result<OwnedFd, MountError> {
    let device = open_device().map_err(MountError::system(format!("opening {DEVICE}")))?;
    // Put below the dead mount and uncovered by taking that away: the place is never bare. Older
    // kernels (before 6.5) leave the dead mount below the new one.
    if options.pinned.is_none() && is_dead(&options.mountpoint) {
        match replace(options, &device) {
            Ok(()) => return Ok(device),
            Err(error) => tracing::debug!(%error, "mounted over a dead mount"),
        }
    }
    let flags = flags_of(&options.flags());
    let mut data = format!(
        "fd={},rootmode=40000,user_id={},group_id={},max_read={MAX_IO},default_permissions",
        device.as_raw_fd(),
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    );
    if options.allow_other {
        data.push_str(",allow_other");
    }
    let data = CString::new(data).unwrap_or_default();
    let kind = format!("fuse.{SUBTYPE}");
    let pinned = options.pinned.as_ref();
    let pinned = pinned.map(|place| PathBuf::from(format!("/proc/self/fd/{}", place.as_raw_fd())));
    rustix::mount::mount(
        options.source.as_str(),
        pinned.as_ref().unwrap_or(&options.mountpoint),
        kind.as_str(),
        flags,
        Some(data.as_c_str()),
    )
    .map_err(MountError::system(format!("mounting {}", options.mountpoint.display())))?;
    Ok(device)
}

/// Mounts in the place of a mount whose server died.
fn replace(options: &MountOptions, device: &OwnedFd) -> Result<(), Errno> {
    use rustix::mount::{
        fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount,
    };
    let fs = fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC)?;
    let number = |number: u32| number.to_string();
    for (key, value) in [
        ("source", options.source.clone()),
        ("subtype", SUBTYPE.to_owned()),
        ("fd", device.as_raw_fd().to_string()),
        ("rootmode", "40000".to_owned()),
        ("user_id", number(rustix::process::geteuid().as_raw())),
        ("group_id", number(rustix::process::getegid().as_raw())),
        ("max_read", number(MAX_IO)),
    ] {
        fsconfig_set_string(&fs, key, value)?;
    }
    fsconfig_set_flag(&fs, "default_permissions")?;
    if options.allow_other {
        fsconfig_set_flag(&fs, "allow_other")?;
    }
    if options.read_only {
        fsconfig_set_flag(&fs, "ro")?;
    }
    fsconfig_create(&fs)?;
    let mount = fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, attributes_of(options))?;
    let how = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_BENEATH;
    move_mount(&mount, "", rustix::fs::CWD, &options.mountpoint, how)?;
    let flags = UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
    rustix::mount::unmount(&options.mountpoint, flags)
}

/// As [`flags_of`], for a mount that is not in the tree of files yet.
fn attributes_of(options: &MountOptions) -> MountAttrFlags {
    let mut flags = match options.access_times {
        AccessTimes::Always => MountAttrFlags::MOUNT_ATTR_STRICTATIME,
        AccessTimes::Relative => MountAttrFlags::MOUNT_ATTR_RELATIME,
        AccessTimes::Never => MountAttrFlags::MOUNT_ATTR_NOATIME,
    };
    flags.set(MountAttrFlags::MOUNT_ATTR_RDONLY, options.read_only);
    flags.set(MountAttrFlags::MOUNT_ATTR_NOSUID, !options.set_id);
    flags.set(MountAttrFlags::MOUNT_ATTR_NODEV, !options.devices);
    flags.set(MountAttrFlags::MOUNT_ATTR_NOEXEC, !options.execute);
    flags
}

/// The path without links. Of what a dead server left, only the way there can be looked at.
///
/// # Errors
/// What the system says of the way there.
pub fn resolve(mountpoint: &Path) -> std::io::Result<PathBuf> {
    match mountpoint.canonicalize() {
        Err(error) if is_not_connected(&error) => {
            let (Some(above), Some(name)) = (mountpoint.parent(), mountpoint.file_name()) else {
                return Err(error);
            };
            match std::fs::read_link(mountpoint) {
                Ok(target) => resolve(&above.join(target)),
                Err(_) => Ok(above.canonicalize()?.join(name)),
            }
        }
        resolved => resolved,
    }
}

/// Opens the device a new session starts from.
pub(super) fn open_device() -> Result<OwnedFd, Errno> {
    use rustix::fs::{Mode, OFlags};
    rustix::fs::open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
}

/// The option list of the helper.
fn helper_options(options: &MountOptions) -> String {
    let access = if options.read_only { "ro" } else { "rw" };
    let mut list =
        format!("{access},default_permissions,max_read={MAX_IO},subtype={SUBTYPE},fsname=");
    for letter in options.source.chars() {
        if matches!(letter, ',' | '\\') {
            list.push('\\');
        }
        list.push(letter);
    }
    for (wanted, word) in [
        (options.allow_other, "allow_other"),
        (!options.execute, "noexec"),
        (!options.set_id, "nosuid"),
        (!options.devices, "nodev"),
        (options.access_times == AccessTimes::Never, "noatime"),
    ] {
        if wanted {
            let _ = write!(list, ",{word}");
        }
    }
    list
}

fn mount_by_helper(options: &MountOptions) -> Result<OwnedFd, MountError> {
    let (ours, theirs) = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(MountError::system("making a socket pair"))?;
    let list = helper_options(options);
    let mut missing = None;
    for helper in HELPERS {
        // The helper inherits its end of the pair and is told its number.
        rustix::io::fcntl_setfd(&theirs, rustix::io::FdFlags::empty())
            .map_err(MountError::system("preparing a socket"))?;
        let child = Command::new(helper)
            .arg("-o")
            .arg(&list)
            .arg("--")
            .arg(&options.mountpoint)
            .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        let _ = rustix::io::fcntl_setfd(&theirs, rustix::io::FdFlags::CLOEXEC);
        let child = match child {
            Ok(child) => child,
            Err(error) => {
                missing = Some(MountError::System { doing: format!("running {helper}"), error });
                continue;
            }
        };
        drop(theirs);
        let received = receive(&ours);
        let output = child.wait_with_output();
        return received.ok_or_else(|| {
            let words = output
                .map(|output| String::from_utf8_lossy(&output.stderr).trim().to_owned())
                .unwrap_or_default();
            let mut words = if words.is_empty() { format!("{helper} failed") } else { words };
            if words.contains("failed to access mountpoint") || words.contains("no write access") {
                words.push_str(NESTED);
            }
            MountError::Helper(words)
        });
    }
    Err(missing.unwrap_or(MountError::NoStart))
}

/// Takes the descriptor the helper sends; none if it ends without.
fn receive(socket: &OwnedFd) -> Option<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut vector = [IoSliceMut::new(&mut byte)];
    rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(socket.as_fd(), &mut vector, &mut control, RecvFlags::CMSG_CLOEXEC)
    })
    .ok()?;
    control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    })
}

/// Unmounts if nothing is in use, and it is mounted nowhere else. What is in use for a moment only is
/// waited for: a closed file stays open in processes that were being begun until they run their
/// programs, and whoever walks a path uses the mounts on it.
pub(super) fn unmount(mountpoint: &Path) -> Result<(), MountError> {
    if MountTable::read().is_some_and(|table| table.stays_elsewhere(mountpoint)) {
        return Err(MountError::Elsewhere);
    }
    for pause in BUSY_PAUSES {
        match unmount_at_once(mountpoint) {
            Err(MountError::Busy) => std::thread::sleep(Duration::from_millis(pause)),
            answer => return answer,
        }
    }
    unmount_at_once(mountpoint)
}

fn unmount_at_once(mountpoint: &Path) -> Result<(), MountError> {
    match rustix::mount::unmount(mountpoint, UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(()),
        // Not a mount any more: somebody else unmounted it, or its directory went.
        Err(Errno::INVAL | Errno::NOENT) => Ok(()),
        Err(Errno::BUSY) => Err(MountError::Busy),
        Err(Errno::PERM) => unmount_by_helper(mountpoint, &["-u"]),
        Err(error) => {
            Err(MountError::system(format!("unmounting {}", mountpoint.display()))(error))
        }
    }
}

/// Ends every request with an error and takes the mount out of the tree of files.
pub(super) fn unmount_forced(mountpoint: &Path) -> Result<(), MountError> {
    let flags = UnmountFlags::FORCE | UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
    match rustix::mount::unmount(mountpoint, flags) {
        Ok(()) | Err(Errno::INVAL | Errno::NOENT) => Ok(()),
        Err(Errno::PERM) => unmount_by_helper(mountpoint, &["-u", "-z"]),
        Err(error) => {
            Err(MountError::system(format!("unmounting {}", mountpoint.display()))(error))
        }
    }
}

fn is_not_connected(error: &std::io::Error) -> bool {
    Errno::from_io_error(error) == Some(Errno::NOTCONN)
}

/// Whether there is a mount whose server is dead.
pub fn is_dead(mountpoint: &Path) -> bool {
    std::fs::metadata(mountpoint).is_err_and(|error| is_not_connected(&error))
}

/// Whether the administrator lets users open their mounts to other users.
pub(super) fn users_may_open_mounts() -> bool {
    let text = std::fs::read_to_string("/etc/fuse.conf").unwrap_or_default();
    allows_other(&text)
}

fn allows_other(configuration: &str) -> bool {
    configuration.lines().any(|line| line.trim() == "user_allow_other")
}

/// Best effort, for mounts whose server could not start.
pub(super) fn detach(mountpoint: &Path) {
    if let Err(error) = unmount_forced(mountpoint) {
        tracing::warn!(mountpoint = %mountpoint.display(), %error, "not unmounted");
    }
}

fn unmount_by_helper(mountpoint: &Path, arguments: &[&str]) -> Result<(), MountError> {
    let mut failure = MountError::NoStart;
    for helper in HELPERS {
        let output = Command::new(helper)
            .args(arguments)
            .arg("--")
            .arg(mountpoint)
            .stdin(Stdio::null())
            .output();
        match output {
            Ok(output) if output.status.success() => return Ok(()),
            Ok(output) => {
                let words = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                let busy = words.contains("busy");
                return Err(if busy { MountError::Busy } else { MountError::Helper(words) });
            }
            Err(error) => {
                failure = MountError::System { doing: format!("running {helper}"), error };
            }
        }
    }
    Err(failure)
}

/// Sets the kernel's read-ahead for the mount; silently leaves it where not permitted.
pub(super) fn set_read_ahead(mountpoint: &Path, bytes: u32) {
    let Some(table) = MountTable::read() else { return };
    let Some(number) = table.device_number(mountpoint) else { return };
    let path = format!("/sys/class/bdi/{number}/read_ahead_kb");
    if let Err(error) = std::fs::write(&path, (bytes / 1024).to_string()) {
        tracing::debug!(path, %error, "read-ahead left as it is");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_is_read() {
        assert!(allows_other("# comment\nmount_max = 9\n user_allow_other \n"));
        assert!(!allows_other("#user_allow_other\n"));
    }

    #[test]
    fn commas_in_names_are_escaped_for_the_helper() {
        let mut options = MountOptions::new("/mnt", "tank/a,suid");
        options.allow_other = false;
        options.set_id = false;
        let list = helper_options(&options);
        assert!(list.ends_with(r"fsname=tank/a\,suid,nosuid"), "{list}");
    }
}
