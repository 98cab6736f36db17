//! Who this host is, for pools that remember the last host that used them.
//!
//! Invariant: 0 means "no identity"; a pool then never counts as this host's own, except that two
//! unknown hosts are equal. Chapter 01, section 11.7.

use std::path::Path;

/// This host as pools know it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostIdentity {
    /// The 32-bit host id; 0 if none is set.
    pub id: u64,
    /// The node name.
    pub name: String,
}

impl HostIdentity {
    /// The identity of this machine: the variable `ZFS_HOSTID` (hexadecimal), else what the kernel
    /// module was told if there is one, else `/etc/hostid`, else none.
    pub fn of_this_machine() -> Self {
        Self::read(Path::new("/"), std::env::var("ZFS_HOSTID").ok().as_deref())
    }

    /// This machine and its operating system, as `uname -nrvm` tells them.
    pub fn system() -> String {
        let text = |name: &str| {
            let path = Path::new("/proc/sys/kernel").join(name);
            std::fs::read_to_string(path).unwrap_or_default().trim_end().to_owned()
        };
        let (name, release, version) = (text("hostname"), text("osrelease"), text("version"));
        format!("uts {name} {release} {version} {}", std::env::consts::ARCH)
    }

    /// The same as [`Self::of_this_machine`] below another root directory.
    fn read(root: &Path, variable: Option<&str>) -> Self {
        let text = |path: &str| std::fs::read_to_string(root.join(path)).ok();
        let id = variable
            .and_then(hexadecimal)
            .or_else(|| text("proc/sys/kernel/spl/hostid").as_deref().and_then(hexadecimal))
            .or_else(|| from_file(&std::fs::read(root.join("etc/hostid")).ok()?))
            .unwrap_or(0);
        let name = text("proc/sys/kernel/hostname").unwrap_or_default();
        Self { id, name: name.trim_end().to_string() }
    }
}

/// A host id in hexadecimal, with or without prefix; `None` for 0 and nonsense.
fn hexadecimal(text: &str) -> Option<u64> {
    let digits = text.trim().trim_start_matches("0x");
    let id = u64::from_str_radix(digits, 16).ok()? & 0xffff_ffff;
    (id != 0).then_some(id)
}

/// The four bytes of `/etc/hostid`, in the byte order of this machine.
fn from_file(bytes: &[u8]) -> Option<u64> {
    let raw: [u8; 4] = bytes.get(..4)?.try_into().ok()?;
    Some(u64::from(u32::from_ne_bytes(raw)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_in_their_order() {
        let root = tempfile::tempdir().unwrap();
        let none = HostIdentity::read(root.path(), None);
        assert_eq!((none.id, none.name.as_str()), (0, ""));
        std::fs::create_dir_all(root.path().join("etc")).unwrap();
        std::fs::create_dir_all(root.path().join("proc/sys/kernel/spl")).unwrap();
        std::fs::write(root.path().join("proc/sys/kernel/hostname"), "here\n").unwrap();
        std::fs::write(root.path().join("etc/hostid"), 0x367c_6911u32.to_ne_bytes()).unwrap();
        let file = HostIdentity::read(root.path(), None);
        assert_eq!((file.id, file.name.as_str()), (0x367c_6911, "here"));
        std::fs::write(root.path().join("proc/sys/kernel/spl/hostid"), "0\n").unwrap();
        assert_eq!(HostIdentity::read(root.path(), None).id, 0x367c_6911);
        std::fs::write(root.path().join("proc/sys/kernel/spl/hostid"), "5eed\n").unwrap();
        assert_eq!(HostIdentity::read(root.path(), None).id, 0x5eed);
        assert_eq!(HostIdentity::read(root.path(), Some("0xabcd")).id, 0xabcd);
    }

    #[test]
    fn nonsense_is_no_identity() {
        assert_eq!(hexadecimal("xyz"), None);
        assert_eq!(hexadecimal("0"), None);
        assert_eq!(from_file(&[1, 2, 3]), None);
    }
}
