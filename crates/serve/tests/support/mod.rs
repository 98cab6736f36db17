//! What tests of the door share: mounting a tree in memory, and looking at it as programs do.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used)] // each test file needs a part of it

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cenote_serve::fuse::{MountError, MountOptions, Mounted, mount};

use crate::memory::MemoryTree;

/// Whether this machine lets us mount.
pub fn can_mount() -> bool {
    let can = rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists();
    assert!(can || std::env::var_os("CENOTE_NEED_FUSE").is_none(), "no right to mount");
    if !can {
        eprintln!("not tested: needs root and /dev/fuse");
    }
    can
}

/// Waits until something is so, a while at most.
pub fn until(what: &str, is_so: impl FnMut() -> bool) {
    until_within(Duration::from_secs(20), what, is_so);
}

/// Waits until something is so, as long as that at most.
pub fn until_within(patience: Duration, what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < patience, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The shortest time that a round takes, of which there are more for ten seconds while none takes less than `bound`: a
/// busy machine delays some of them, whoever waits for somebody else, or for a clock, is late in each.
pub fn soonest(bound: Duration, mut round: impl FnMut(usize) -> Duration) -> Duration {
    let start = Instant::now();
    let mut shortest = round(0);
    for number in 1.. {
        if shortest < bound || start.elapsed().as_secs() >= 10 {
            break;
        }
        shortest = shortest.min(round(number));
    }
    shortest
}

/// A directory others may enter.
pub fn directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .unwrap();
    directory
}

/// Mounts a tree in a directory of its own.
pub fn serve(tree: MemoryTree) -> (tempfile::TempDir, Mounted, Arc<MemoryTree>) {
    let directory = directory();
    let tree = Arc::new(tree);
    let mounted = mount(tree.clone(), MountOptions::new(directory.path(), "tank/test")).unwrap();
    (directory, mounted, tree)
}

/// Bytes that repeat nowhere.
pub fn pattern(len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| (i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8).collect()
}

/// An extended attribute, with room for so many bytes.
pub fn xattr(path: &Path, name: &str, room: usize) -> Result<Vec<u8>, i32> {
    let mut value = vec![0; room];
    let len = rustix::fs::lgetxattr(path, name, &mut value[..]);
    value.truncate(len.map_err(|error| error.raw_os_error())?);
    Ok(value)
}

/// Runs a shell command as an ordinary user; its success.
pub fn as_nobody(command: &str) -> bool {
    Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", command])
        .stderr(Stdio::null())
        .stdout(Stdio::null())
        .status()
        .unwrap()
        .success()
}

/// A POSIX ACL as its extended attribute: (tag, permissions, id).
pub fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut value = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        value.extend(tag.to_le_bytes());
        value.extend(permissions.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    value
}

/// Unmounts what nobody uses. A process that another test starts holds for a moment what was open when it
/// was forked, so closing a file is not the end of it at once.
pub fn unmount(mounted: &Mounted) {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        match mounted.unmount() {
            Err(MountError::Busy) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(5));
            }
            answer => return answer.unwrap(),
        }
    }
}
