//! Answers requests that change something, and keeps count of what the kernel knows.
//!
//! Invariant: every node handed to the kernel is counted before the reply leaves; what the tree
//! calls done is reported as done, and nothing is reported before.
//!
//! Sizes and times belong to the tree: the kernel writes through (or, if asked to collect writes,
//! says what it decided by SETATTR), and asks for attributes again after a change. Set-id bits
//! are dropped by the tree, for writes where the kernel says so (`HANDLE_KILLPRIV_V2`).

use cenote_posix::tree::{
    Allocate, Attributes, Caller, Errno, NewNode, NodeId, RenameFlags, Result, SetAttributes,
    SetTime, Timestamp, XattrWrite,
};
use zerocopy::IntoBytes;

use super::abi::{self, InHeader, feature, set};
use super::change_request::ChangeRequest;
use super::handler::{Answering, caller};
use super::reply::{self, Body};

/// Permission bits of a mode, set-id and sticky included.
const PERMISSIONS: u32 = 0o7777;
/// The access ACL.
const ACCESS_ACL: &[u8] = b"system.posix_acl_access";
/// Both ACLs begin so.
const ACLS: &[u8] = b"system.posix_acl_";

fn status<T>(code: i32, reason: &str) -> Result<T> {
    Err(Errno { code, reason: reason.into() })
}

impl Answering<'_> {
    /// Makes a change.
    pub(super) fn change(
        &self,
        header: &InHeader,
        node: NodeId,
        change: &ChangeRequest<'_>,
    ) -> Result<Body> {
        if self.refuses_changes() {
            return Ok(Body::Status(libc::EROFS));
        }
        let caller = caller(header);
        if let Some(directory) = self.gets_a_name(node, change)? {
            self.check_covered(directory)?;
        }
        match *change {
            ChangeRequest::SetAttributes(ref wanted) => self.set_attributes(caller, node, wanted),
            ChangeRequest::MakeNode { name, mode, rdev, umask } => {
                let Some(mode) = mode_of_node(mode) else {
                    return Ok(Body::Status(libc::EINVAL));
                };
                let rdev = u64::from(rdev);
                self.create(caller, node, name, NewNode { mode, umask, rdev, target: &[] })
            }
            ChangeRequest::MakeDirectory { name, mode, umask } => {
                let mode = libc::S_IFDIR | mode & PERMISSIONS;
                self.create(caller, node, name, NewNode { mode, umask, rdev: 0, target: &[] })
            }
            ChangeRequest::MakeSymlink { name, target } => {
                let mode = libc::S_IFLNK | 0o777;
                self.create(caller, node, name, NewNode { mode, umask: 0, rdev: 0, target })
            }
            // Without this request the kernel makes a node and opens it without asking, which saves
            // the RELEASE.
            ChangeRequest::Create { .. } if self.agreed(feature::NO_OPEN_SUPPORT) => {
                Ok(Body::Status(libc::ENOSYS))
            }
            ChangeRequest::Create { name, mode, umask } => {
                let mode = libc::S_IFREG | mode & PERMISSIONS;
                let new = NewNode { mode, umask, rdev: 0, target: &[] };
                Ok(opened(self.create(caller, node, name, new)?))
            }
            ChangeRequest::CreateUnnamed { mode, umask } => {
                let mode = libc::S_IFREG | mode & PERMISSIONS;
                let new = NewNode { mode, umask, rdev: 0, target: &[] };
                let attributes = self.tree().create_unnamed(caller, node, new)?;
                Ok(opened(self.entry_reply(&attributes, true)))
            }
            ChangeRequest::Link { node: file, name } => self.link(caller, file, node, name),
            ChangeRequest::Unlink { name } => self.unlink(caller, node, name),
            ChangeRequest::RemoveDirectory { name } => self.remove_directory(caller, node, name),
            ChangeRequest::Rename { from, new_parent, to, flags } => {
                self.rename(caller, (node, from), (self.tree_node(new_parent)?, to), flags)
            }
            ChangeRequest::Write { offset, data, kill_set_id, appends, .. } => {
                let offset = if appends { self.end_of(node, offset)? } else { offset };
                self.write(caller, node, offset, data, kill_set_id)
            }
            ChangeRequest::Allocate { offset, len, mode } => {
                self.allocate(caller, node, offset, len, mode)
            }
            ChangeRequest::CopyRange { offset, to_node, to_offset, len, wide } => {
                let to = (self.tree_node(to_node)?, to_offset);
                self.copy_range(caller, (node, offset), to, len, wide)
            }
            ChangeRequest::SetXattr { name, value, flags, kill_set_group } => {
                self.set_xattr(caller, node, (name, value), flags, kill_set_group)
            }
            ChangeRequest::RemoveXattr { name } => self.remove_xattr(caller, node, name),
        }
    }

    fn set_attributes(
        &self,
        caller: Caller,
        node: NodeId,
        wanted: &abi::SetattrIn,
    ) -> Result<Body> {
        let change = set_attributes(wanted)?;
        let attributes = if change == SetAttributes::default() {
            self.tree().attributes(node)?
        } else {
            self.tree().set_attributes(caller, node, &change)?
        };
        if change.size.is_some() {
            self.changed(node);
        }
        Ok(self.attributes_reply(&attributes))
    }

    /// Makes a node in `parent` and hands it to the kernel.
    fn create(
        &self,
        caller: Caller,
        parent: NodeId,
        name: &[u8],
        new: NewNode<'_>,
    ) -> Result<Body> {
        let attributes = self.tree().create(caller, parent, name, new)?;
        self.changed(parent);
        Ok(self.entry_reply(&attributes, true))
    }

    /// Gives `file`, a node of the kernel, another name.
    fn link(&self, caller: Caller, file: u64, parent: NodeId, name: &[u8]) -> Result<Body> {
        let attributes = self.tree().link(caller, self.tree_node(file)?, parent, name)?;
        self.changed(parent);
        Ok(self.entry_reply(&attributes, false))
    }

    fn unlink(&self, caller: Caller, parent: NodeId, name: &[u8]) -> Result<Body> {
        self.tree().unlink(caller, parent, name)?;
        self.changed(parent);
        Ok(Body::Status(0))
    }

    fn remove_directory(&self, caller: Caller, parent: NodeId, name: &[u8]) -> Result<Body> {
        self.tree().remove_directory(caller, parent, name)?;
        self.changed(parent);
        Ok(Body::Status(0))
    }

    fn rename(
        &self,
        caller: Caller,
        (parent, from): (NodeId, &[u8]),
        (new_parent, to): (NodeId, &[u8]),
        flags: u32,
    ) -> Result<Body> {
        let flags = rename_flags(flags)?;
        self.tree().rename(caller, parent, from, new_parent, to, flags)?;
        self.changed(parent);
        self.changed(new_parent);
        Ok(Body::Status(0))
    }

    fn write(
        &self,
        caller: Caller,
        node: NodeId,
        offset: u64,
        data: &[u8],
        kill_set_id: bool,
    ) -> Result<Body> {
        let Ok(size) = u32::try_from(data.len()) else {
            return Ok(Body::Status(libc::EINVAL));
        };
        if !in_files(offset, u64::from(size)) {
            return Ok(Body::Status(libc::EFBIG));
        }
        self.tree().write(caller, node, offset, data, kill_set_id)?;
        self.changed(node);
        Ok(reply::fixed(&abi::WriteOut { size, padding: 0 }))
    }

    fn allocate(
        &self,
        caller: Caller,
        node: NodeId,
        offset: u64,
        len: u64,
        mode: u32,
    ) -> Result<Body> {
        let what = allocation(mode)?;
        if !in_files(offset, len) {
            return Ok(Body::Status(libc::EFBIG));
        }
        self.tree().allocate(caller, node, offset, len, what)?;
        self.changed(node);
        Ok(Body::Status(0))
    }

    /// `wide`: the reply has 64 bits.
    fn copy_range(
        &self,
        caller: Caller,
        from: (NodeId, u64),
        to: (NodeId, u64),
        len: u64,
        wide: bool,
    ) -> Result<Body> {
        if !in_files(from.1, len) || !in_files(to.1, len) {
            return Ok(Body::Status(libc::EFBIG));
        }
        let len = if wide { len } else { len.min(u64::from(!4095u32)) };
        let copied = self.tree().copy_range(caller, from, to, len)?;
        self.changed(to.0);
        if wide {
            return Ok(reply::fixed(&abi::CopyOut { bytes: copied }));
        }
        let size = u32::try_from(copied).unwrap_or(u32::MAX);
        Ok(reply::fixed(&abi::WriteOut { size, padding: 0 }))
    }

    fn set_xattr(
        &self,
        caller: Caller,
        node: NodeId,
        (name, value): (&[u8], &[u8]),
        flags: u32,
        kill_set_group: bool,
    ) -> Result<Body> {
        let how = match flags.cast_signed() {
            0 => XattrWrite::Any,
            libc::XATTR_CREATE => XattrWrite::Create,
            libc::XATTR_REPLACE => XattrWrite::Replace,
            _ => return Ok(Body::Status(libc::EINVAL)),
        };
        self.tree().set_xattr(caller, node, name, value, how)?;
        if kill_set_group && name == ACCESS_ACL {
            self.drop_set_group(caller, node)?;
        }
        Ok(Body::Status(0))
    }

    fn remove_xattr(&self, caller: Caller, node: NodeId, name: &[u8]) -> Result<Body> {
        match self.tree().remove_xattr(caller, node, name) {
            // Removing an ACL that is not there is no error.
            Err(error) if error.code == libc::ENODATA && name.starts_with(ACLS) => {}
            result => result?,
        }
        Ok(Body::Status(0))
    }

    /// The directory in which a change makes a name.
    fn gets_a_name(&self, node: NodeId, change: &ChangeRequest<'_>) -> Result<Option<NodeId>> {
        Ok(match *change {
            ChangeRequest::MakeNode { .. }
            | ChangeRequest::MakeDirectory { .. }
            | ChangeRequest::MakeSymlink { .. }
            | ChangeRequest::Create { .. }
            | ChangeRequest::CreateUnnamed { .. }
            | ChangeRequest::Link { .. } => Some(node),
            ChangeRequest::Rename { new_parent, .. } => Some(self.tree_node(new_parent)?),
            _ => None,
        })
    }

    /// Hands a node to the kernel. `is_new`: it has just been made.
    fn entry_reply(&self, attributes: &Attributes, is_new: bool) -> Body {
        let kernel_node = self.hold(attributes);
        if is_new {
            self.changed(attributes.node);
        }
        let validity = self.validity(attributes);
        reply::fixed(&reply::entry_out(kernel_node, attributes, validity))
    }

    fn drop_set_group(&self, caller: Caller, node: NodeId) -> Result<()> {
        let mode = self.tree().attributes(node)?.mode & PERMISSIONS;
        if mode & libc::S_ISGID == 0 {
            return Ok(());
        }
        let mode = Some(mode & !libc::S_ISGID);
        let change = SetAttributes { mode, ..SetAttributes::default() };
        self.tree().set_attributes(caller, node, &change).map(drop)
    }
}

/// The whole mode of a node to be made: a regular file where the type is missing. `None` for what other
/// requests make.
fn mode_of_node(mode: u32) -> Option<u32> {
    match mode & libc::S_IFMT {
        libc::S_IFDIR | libc::S_IFLNK => None,
        0 => Some(mode | libc::S_IFREG),
        _ => Some(mode),
    }
}

/// A reply to a request that also opens.
fn opened(body: Body) -> Body {
    let open_flags = abi::FOPEN_KEEP_CACHE | abi::FOPEN_NOFLUSH;
    let open = abi::OpenOut { open_flags, ..abi::OpenOut::default() };
    match body {
        Body::Fixed(mut bytes) => {
            bytes.extend_from_slice(open.as_bytes());
            Body::Fixed(bytes)
        }
        other => other,
    }
}

/// Whether a range lies within what `off_t` can say.
fn in_files(offset: u64, len: u64) -> bool {
    offset.checked_add(len).is_some_and(|end| i64::try_from(end).is_ok())
}

fn set_attributes(wanted: &abi::SetattrIn) -> Result<SetAttributes> {
    let has = |bit| wanted.valid & bit != 0;
    let time = |seconds: u64, nanoseconds: u32| {
        if nanoseconds >= 1_000_000_000 {
            return status(libc::EINVAL, "nanoseconds beyond a second");
        }
        // Before 1970 the kernel sends a negative number.
        Ok(Timestamp { seconds: seconds.cast_signed(), nanoseconds })
    };
    let set_time = |bit, now, seconds, nanoseconds| -> Result<Option<SetTime>> {
        match (has(bit), has(now)) {
            (false, _) => Ok(None),
            (true, true) => Ok(Some(SetTime::Now)),
            (true, false) => Ok(Some(SetTime::At(time(seconds, nanoseconds)?))),
        }
    };
    if has(set::SIZE) && !in_files(wanted.size, 0) {
        return status(libc::EFBIG, "size beyond what files can have");
    }
    Ok(SetAttributes {
        mode: has(set::MODE).then_some(wanted.mode & PERMISSIONS),
        uid: has(set::UID).then_some(wanted.uid),
        gid: has(set::GID).then_some(wanted.gid),
        size: has(set::SIZE).then_some(wanted.size),
        accessed: set_time(set::ATIME, set::ATIME_NOW, wanted.atime, wanted.atime_nanos)?,
        modified: set_time(set::MTIME, set::MTIME_NOW, wanted.mtime, wanted.mtime_nanos)?,
        changed: if has(set::CTIME) { Some(time(wanted.ctime, wanted.ctime_nanos)?) } else { None },
        kill_set_id: has(set::KILL_SUIDGID),
    })
}

fn rename_flags(flags: u32) -> Result<RenameFlags> {
    let known = libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE | libc::RENAME_WHITEOUT;
    let has = |bit| flags & bit != 0;
    if flags & !known != 0 || has(libc::RENAME_EXCHANGE) && flags != libc::RENAME_EXCHANGE {
        return status(libc::EINVAL, "flags of rename that exclude each other");
    }
    Ok(RenameFlags {
        no_replace: has(libc::RENAME_NOREPLACE),
        exchange: has(libc::RENAME_EXCHANGE),
        whiteout: has(libc::RENAME_WHITEOUT),
    })
}

fn allocation(mode: u32) -> Result<Allocate> {
    let keep_size = mode.cast_signed() & libc::FALLOC_FL_KEEP_SIZE != 0;
    match mode.cast_signed() & !libc::FALLOC_FL_KEEP_SIZE {
        0 => Ok(Allocate::Reserve { keep_size }),
        libc::FALLOC_FL_PUNCH_HOLE if keep_size => Ok(Allocate::PunchHole),
        libc::FALLOC_FL_ZERO_RANGE => Ok(Allocate::ZeroRange { keep_size }),
        _ => status(libc::EOPNOTSUPP, "unknown kind of fallocate"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_marked_attributes_are_set() {
        let mut wanted = abi::SetattrIn {
            valid: set::MODE | set::MTIME | set::ATIME | set::ATIME_NOW,
            mode: 0o100_644,
            uid: 5,
            size: 7,
            mtime: (-3i64).cast_unsigned(),
            mtime_nanos: 999_999_999,
            ..abi::SetattrIn::default()
        };
        let at = Timestamp { seconds: -3, nanoseconds: 999_999_999 };
        assert_eq!(
            set_attributes(&wanted).unwrap(),
            SetAttributes {
                mode: Some(0o644),
                accessed: Some(SetTime::Now),
                modified: Some(SetTime::At(at)),
                ..SetAttributes::default()
            }
        );
        wanted.mtime_nanos += 1;
        assert_eq!(set_attributes(&wanted).unwrap_err().code, libc::EINVAL);
        wanted.valid = set::SIZE | set::KILL_SUIDGID;
        let set = set_attributes(&wanted).unwrap();
        assert!(set.kill_set_id && set.size == Some(7) && set.modified.is_none());
        wanted.size = 1 << 63;
        assert_eq!(set_attributes(&wanted).unwrap_err().code, libc::EFBIG);
    }

    #[test]
    fn flags_that_make_no_sense_are_refused() {
        assert_eq!(rename_flags(0).unwrap(), RenameFlags::default());
        assert!(rename_flags(2).unwrap().exchange);
        assert!(rename_flags(5).unwrap().whiteout);
        assert!(rename_flags(3).is_err() && rename_flags(8).is_err());
        assert_eq!(allocation(0).unwrap(), Allocate::Reserve { keep_size: false });
        assert_eq!(allocation(3).unwrap(), Allocate::PunchHole);
        assert_eq!(allocation(0x11).unwrap(), Allocate::ZeroRange { keep_size: true });
        for mode in [2, 8, 0x20, 0x40, u32::MAX] {
            assert_eq!(allocation(mode).unwrap_err().code, libc::EOPNOTSUPP, "{mode}");
        }
    }
}
