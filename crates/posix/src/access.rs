//! Who may do what: mode bits, POSIX ACL, supplementary groups, the superuser's rules.
//!
//! Invariant: the answer is the one Linux's generic permission check gives for the same mode, list
//! and process.

use cenote_format::posix_acl::PosixAcl;

use crate::attributes::Facts;
use crate::error::EACCES;
use crate::tree::{Caller, Errno, Result};

const EXECUTE: u32 = 1;
/// Mode bits that only matter when an ACL may exist.
const GROUP_BITS: u32 = 0o070;
const ANY_EXECUTE: u32 = 0o111;

/// Checks `mask` (4 read, 2 write, 1 execute) for `caller`.
///
/// `acl` gives the file's access list and is asked only if it can matter; `groups` gives the
/// supplementary groups of a process.
pub fn check(
    facts: &Facts,
    caller: Caller,
    mask: u32,
    acl: impl FnOnce() -> Result<Option<PosixAcl>>,
    groups: impl Fn(u32) -> Vec<u32>,
) -> Result<()> {
    let mask = mask & 7;
    if caller.uid == 0 {
        let executable = facts.is_directory() || facts.mode & ANY_EXECUTE != 0;
        return answer(mask & EXECUTE == 0 || executable);
    }
    let own = std::cell::OnceCell::new();
    let member =
        |group: u32| group == caller.gid || own.get_or_init(|| groups(caller.pid)).contains(&group);
    if caller.uid == facts.uid {
        return answer(facts.mode >> 6 & mask == mask);
    }
    if facts.mode & GROUP_BITS != 0
        && let Some(acl) = acl()?
    {
        let (uid, wanted) = (caller.uid, mask as u8);
        return answer(acl.permits(facts.uid, facts.gid, uid, member, wanted));
    }
    let group = facts.mode >> 3 & 7;
    let other = facts.mode & 7;
    // The groups only matter if group and others differ.
    let bits = if group != other && member(facts.gid) { group } else { other };
    answer(bits & mask == mask)
}

fn answer(permitted: bool) -> Result<()> {
    if permitted { Ok(()) } else { Err(Errno::new(EACCES, "permission denied")) }
}

impl Caller {
    /// Whether this is root. Kernels that know of mounts with owners of their own (6.12 and later) say who asks only
    /// where something gets an owner, and `u32::MAX` elsewhere: the process tells.
    pub fn is_root(&self) -> bool {
        match self.uid {
            u32::MAX => user_of_process(self.pid) == Some(0),
            uid => uid == 0,
        }
    }
}

/// Supplementary groups of process `pid`; none if it is gone.
pub fn groups_of_process(pid: u32) -> Vec<u32> {
    if pid == 0 {
        return Vec::new();
    }
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    parse_groups(&status)
}

/// The user with whose rights process `pid` uses files; `None` if it is gone.
pub fn user_of_process(pid: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    parse_user(&status)
}

fn parse_user(status: &str) -> Option<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    // Real, effective, saved, of the filesystem.
    line.split_whitespace().nth(3)?.parse().ok()
}

fn parse_groups(status: &str) -> Vec<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Groups:"));
    line.unwrap_or("").split_whitespace().filter_map(|group| group.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use cenote_format::posix_acl::{Entry, Tag};

    use super::*;
    use crate::tree::Timestamp;

    fn facts(mode: u32) -> Facts {
        Facts {
            mode,
            size: 0,
            generation: 1,
            parent: 34,
            links: 1,
            uid: 1000,
            gid: 100,
            flags: 0,
            device: 0,
            project: 0,
            accessed: Timestamp::default(),
            modified: Timestamp::default(),
            changed: Timestamp::default(),
            created: Timestamp::default(),
        }
    }

    #[test]
    fn who_a_process_is() {
        let status = "Name:\tx\nUid:\t1000\t0\t0\t7\nGroups:\t4 24 \n";
        assert_eq!(parse_user(status), Some(7));
        assert_eq!(parse_groups(status), [4, 24]);
        assert_eq!(parse_user("Name:\tx\n"), None);
    }

    fn may(mode: u32, uid: u32, gid: u32, mask: u32) -> bool {
        let caller = Caller { uid, gid, pid: 7 };
        let groups = |pid| if pid == 7 { vec![200, 201] } else { vec![] };
        check(&facts(mode), caller, mask, || Ok(None), groups).is_ok()
    }

    #[test]
    fn mode_bits() {
        assert!(may(0o100640, 1000, 5, 6) && !may(0o100640, 1000, 5, 1));
        assert!(may(0o100640, 5, 100, 4) && !may(0o100640, 5, 100, 2));
        assert!(!may(0o100640, 5, 5, 4));
        assert!(!may(0o100007, 5, 100, 4), "the group is not 'other'");
        assert!(!may(0o100077, 1000, 100, 4), "nor is the owner");
    }

    #[test]
    fn supplementary_groups() {
        let mut of_200 = facts(0o100040);
        of_200.gid = 200;
        let caller = Caller { uid: 5, gid: 5, pid: 7 };
        assert!(check(&of_200, caller, 4, || Ok(None), |_| vec![200]).is_ok());
        assert!(check(&of_200, caller, 4, || Ok(None), |_| vec![]).is_err());
        assert_eq!(parse_groups("Name:\tx\nGroups:\t4 24 1000 \nNgid:\t0\n"), [4, 24, 1000]);
        assert!(parse_groups("garbage").is_empty());
    }

    #[test]
    fn superuser() {
        assert!(may(0o100000, 0, 0, 6) && !may(0o100000, 0, 0, 1));
        assert!(may(0o100001, 0, 0, 7) && may(0o040000, 0, 0, 7));
    }

    #[test]
    fn lists_decide_when_group_bits_are_set() {
        let entry = |tag, permissions| Entry { tag, permissions };
        let acl = PosixAcl {
            entries: vec![
                entry(Tag::Owner, 6),
                entry(Tag::User(5), 6),
                entry(Tag::OwningGroup, 0),
                entry(Tag::Mask, 6),
                entry(Tag::Other, 0),
            ],
        };
        let caller = Caller { uid: 5, gid: 5, pid: 0 };
        let ask = |mode| check(&facts(mode), caller, 6, || Ok(Some(acl.clone())), |_| vec![]);
        assert!(ask(0o100660).is_ok());
        assert!(ask(0o100600).is_err(), "an empty mask leaves nothing to look up");
        let failing = check(
            &facts(0o100660),
            caller,
            4,
            || Err(Errno::new(crate::error::EIO, "broken")),
            |_| vec![],
        );
        assert_eq!(failing.unwrap_err().code, crate::error::EIO);
    }
}
