//! Who is at the other end of a control socket.
//!
//! Invariant: the user and his first group are what the kernel tells of the socket; further groups count only while
//! the process that connected is, in all its ids, still that user's.

use std::os::unix::net::UnixStream;

/// Who asks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peer {
    /// The user, as the kernel knows him; `None` if it does not tell.
    pub user: Option<u32>,
    /// His groups, the first one first.
    pub groups: Vec<u32>,
}

impl Peer {
    /// Who connected `stream`.
    pub fn of(stream: &UnixStream) -> Self {
        let Ok(known) = rustix::net::sockopt::socket_peercred(stream) else {
            return Self::default();
        };
        let process = known.pid.as_raw_nonzero().get().unsigned_abs();
        Self::of_process(known.uid.as_raw(), known.gid.as_raw(), process)
    }

    /// Who asks for a change of files, as the kernel tells: it names user and group for some changes only
    /// (`u32::MAX` otherwise), for the others the process says, which waits for the change.
    pub fn of_caller(user: u32, group: u32, process: u32) -> Self {
        if user != u32::MAX {
            return Self::of_process(user, group, process);
        }
        let text = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
        match (acting(&text, "Uid:"), acting(&text, "Gid:")) {
            (Some(user), Some(group)) => Self::of_process(user, group, process),
            _ => Self::default(),
        }
    }

    /// The user and group that the kernel tells of a process; its further groups are looked up.
    fn of_process(user: u32, group: u32, process: u32) -> Self {
        let mut groups = vec![group];
        // Root needs none.
        if user != 0 {
            let status = format!("/proc/{process}/status");
            let text = std::fs::read_to_string(status).unwrap_or_default();
            groups.extend(further_groups(&text, user));
        }
        Self { user: Some(user), groups }
    }

    /// Whether it is root, or who owns this process.
    pub fn is_owner(&self) -> bool {
        self.user.is_some_and(|user| user == 0 || user == rustix::process::geteuid().as_raw())
    }

    /// His number; nobody's (65534) if it is not known.
    pub fn uid(&self) -> u32 {
        self.user.unwrap_or(NOBODY)
    }

    /// His first group; nobody's if it is not known.
    pub fn gid(&self) -> u32 {
        self.groups.first().copied().unwrap_or(NOBODY)
    }
}

/// Who is not known.
const NOBODY: u32 = 65534;

/// The id with which a process uses files, in what `/proc` says of it.
fn acting(status: &str, key: &str) -> Option<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix(key))?;
    line.split_whitespace().nth(3)?.parse().ok()
}

/// The groups in what `/proc` says of a process, all of whose ids are this user's.
fn further_groups(status: &str, user: u32) -> Vec<u32> {
    let numbers = |key: &str| -> Option<Vec<u32>> {
        let line = status.lines().find_map(|line| line.strip_prefix(key))?;
        line.split_whitespace().map(|word| word.parse().ok()).collect()
    };
    let is_his =
        numbers("Uid:").is_some_and(|ids| !ids.is_empty() && ids.iter().all(|&id| id == user));
    is_his.then(|| numbers("Groups:")).flatten().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_count_for_a_process_that_is_all_his() {
        let status =
            |ids: &str| format!("Name:\tx\nUid:\t{ids}\nGid:\t7\t7\t7\t7\nGroups:\t7 40 41 \n");
        assert_eq!(further_groups(&status("5\t5\t5\t5"), 5), [7, 40, 41]);
        // It runs as somebody else by now, or has root's rights beside.
        assert!(further_groups(&status("0\t0\t0\t0"), 5).is_empty());
        assert!(further_groups(&status("5\t0\t0\t0"), 5).is_empty());
        assert!(further_groups("", 5).is_empty());
    }

    #[test]
    fn a_caller_is_who_uses_the_files() {
        let own = Peer::of_caller(u32::MAX, u32::MAX, std::process::id());
        assert_eq!(own.user, Some(rustix::process::geteuid().as_raw()));
        assert_eq!(Peer::of_caller(7, 8, 0), Peer { user: Some(7), groups: vec![8] });
        // Nobody knows who it was.
        assert_eq!(Peer::of_caller(u32::MAX, u32::MAX, u32::MAX).user, None);
        assert_eq!(acting("Name:\tx\nUid:\t1\t2\t3\t4\n", "Uid:"), Some(4));
        assert_eq!(acting("Uid:\t1\n", "Uid:"), None);
    }

    #[test]
    fn this_process_is_its_own_peer() {
        let (one, _other) = UnixStream::pair().unwrap();
        let peer = Peer::of(&one);
        assert_eq!(peer.user, Some(rustix::process::geteuid().as_raw()));
        assert_eq!(peer.gid(), rustix::process::getegid().as_raw());
        assert!(peer.is_owner());
    }
}
