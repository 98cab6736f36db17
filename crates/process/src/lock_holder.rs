//! Who has the lock of a pool's guid on this machine, as far as root can tell.
//!
//! Anybody may take such a lock, also of a pool that is not his. Root does without it where only other users have it:
//! the claims on the devices decide, as they do among network namespaces. Two users keep each other out: which of them
//! has a right to the pool nothing tells, and two copies or halves of it, of which each sees its own, would not meet
//! in the claims.
//!
//! Invariant: a lock that root may have, or of which nobody knows who has it, counts.

use std::fs;
use std::path::{Path, PathBuf};

use cenote_device::HostLock;

/// What the kernel's table of sockets says of one that listens.
const LISTENS: &str = "00010000";

/// The user who has the lock of this pool, if that is somebody who is not root, and this is root.
pub fn other_user(pool: u64) -> Option<u32> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    match HostLock::user(pool) {
        Some(user) => (user != 0).then_some(user),
        // He lets nobody connect.
        None => {
            let users = users_of(&format!("cenote/pool/{pool}"));
            users.iter().all(|user| *user != 0).then(|| users.first().copied())?
        }
    }
}

/// The users of all processes that have a listening socket open that may have this abstract name: names of others can
/// look like lines of the kernel's table.
fn users_of(name: &str) -> Vec<u32> {
    let table = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let numbers = table.lines().filter_map(|line| {
        let (facts, of) = line.split_once(" @")?;
        let facts: Vec<&str> = facts.split_whitespace().collect();
        let is_it = of == name && *facts.get(3)? == LISTENS;
        is_it.then(|| facts.get(6).copied())?
    });
    numbers.flat_map(users_of_socket).collect()
}

/// The users of all processes that have this socket open.
fn users_of_socket(number: &str) -> Vec<u32> {
    let socket = PathBuf::from(format!("socket:[{number}]"));
    let has_it = |process: &Path| {
        let mut open = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
        open.any(|file| fs::read_link(file.path()).is_ok_and(|to| to == socket))
    };
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten().map(|one| one.path());
    processes.filter(|process| has_it(process)).filter_map(|process| user_of(&process)).collect()
}

/// Root, if a process can be root.
fn user_of(process: &Path) -> Option<u32> {
    let status = fs::read_to_string(process.join("status")).ok()?;
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    users.split_whitespace().filter_map(|one| one.parse().ok()).min()
}

#[cfg(test)]
mod tests {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener};

    use super::*;

    #[test]
    fn the_user_of_a_lock_is_found() {
        let pool = 0x7e58_0000_0000_0000 | u64::from(std::process::id());
        assert_eq!(users_of(&format!("cenote/pool/{pool}")), Vec::<u32>::new());
        let address = SocketAddr::from_abstract_name(format!("cenote/pool/{pool}")).unwrap();
        let _lock = UnixListener::bind_addr(&address).unwrap();
        let own = rustix::process::geteuid().as_raw();
        // Those have it, too, that other tests start just now.
        let users = users_of(&format!("cenote/pool/{pool}"));
        assert!(!users.is_empty() && users.iter().all(|user| *user == own), "{users:?}");
        // It is one's own.
        assert_eq!(other_user(pool), None);
    }
}
