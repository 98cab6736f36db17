//! Words after the `-o` of `mount` and `zfs mount`.
//!
//! Invariant: what is accepted is either kept by the mount or changes nothing here, for nobody's
//! files depend on it; what would matter and is not kept is refused.

/// What an option asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MountOption {
    /// Another value of a property as long as it is mounted.
    Property(&'static str, &'static str),
    /// Other options for what is mounted already.
    Remount,
    /// `mountpoint` need not be `legacy`: what `zfs mount` tells its helper.
    Utility,
    /// Nothing here: it is for mount(8), for fstab(5) or the default.
    Nothing,
    /// Known to OpenZFS, but not kept here.
    NotYet,
}

/// Reads one option; none if nobody knows it.
pub fn read(option: &str) -> Option<MountOption> {
    use MountOption::{NotYet, Nothing, Property, Remount, Utility};
    let name = option.split('=').next().unwrap_or(option);
    Some(match name {
        "ro" => Property("readonly", "on"),
        "rw" => Property("readonly", "off"),
        "atime" => Property("atime", "on"),
        "noatime" => Property("atime", "off"),
        "relatime" => Property("relatime", "on"),
        "norelatime" | "strictatime" => Property("relatime", "off"),
        "suid" | "setuid" => Property("setuid", "on"),
        "nosuid" | "nosetuid" => Property("setuid", "off"),
        "dev" | "devices" => Property("devices", "on"),
        "nodev" | "nodevices" => Property("devices", "off"),
        "exec" => Property("exec", "on"),
        "noexec" => Property("exec", "off"),
        "remount" => Remount,
        "zfsutil" => Utility,
        "defaults" | "auto" | "noauto" | "nofail" | "_netdev" | "owner" | "group" | "user"
        | "users" | "nouser" | "async" | "diratime" | "nomand" | "nonbmand" | "noiversion"
        | "nostrictatime" | "quiet" | "loud" | "silent" | "comment" | "mntpoint" => Nothing,
        // what the table of mounts says of a mount of ours
        "user_id"
        | "group_id"
        | "rootmode"
        | "default_permissions"
        | "allow_other"
        | "max_read"
        | "blksize"
        | "fsname"
        | "subtype" => Nothing,
        name if name.starts_with("x-") || name.starts_with("X-") => Nothing,
        "sync" | "dirsync" | "mand" | "nbmand" | "iversion" | "lazytime" | "nodiratime"
        | "xattr" | "noxattr" | "acl" | "noacl" | "posixacl" | "context" | "fscontext"
        | "defcontext" | "rootcontext" | "bind" | "rbind" => NotYet,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read() {
        assert_eq!(read("noexec"), Some(MountOption::Property("exec", "off")));
        assert_eq!(read("x-systemd.automount"), Some(MountOption::Nothing));
        assert_eq!(read("comment=mine"), Some(MountOption::Nothing));
        assert_eq!(read("sync"), Some(MountOption::NotYet));
        assert_eq!(read("bogus"), None);
        assert_eq!(read(""), None);
    }
}
