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
        let user = known.uid.as_raw();
        let mut groups = vec![known.gid.as_raw()];
        // Root needs none.
        if user != 0 {
            let status = format!("/proc/{}/status", known.pid.as_raw_nonzero());
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
    fn this_process_is_its_own_peer() {
        let (one, _other) = UnixStream::pair().unwrap();
        let peer = Peer::of(&one);
        assert_eq!(peer.user, Some(rustix::process::geteuid().as_raw()));
        assert_eq!(peer.gid(), rustix::process::getegid().as_raw());
        assert!(peer.is_owner());
    }
}
