//! Decoding of the requests that change something.
//!
//! Invariant: names are not empty and contain no zero byte; data and values have exactly the
//! length the request says.

use super::abi::{self, opcode};
use super::arguments::{BadRequest, fixed, name, terminated};

/// What a request changes.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs)] // sizes and offsets are bytes; nodes are the kernel's; the rest says it
pub enum ChangeRequest<'a> {
    SetAttributes(abi::SetattrIn),
    /// A file, fifo, socket or device node.
    MakeNode {
        name: &'a [u8],
        mode: u32,
        rdev: u32,
        umask: u32,
    },
    MakeDirectory {
        name: &'a [u8],
        mode: u32,
        umask: u32,
    },
    MakeSymlink {
        name: &'a [u8],
        target: &'a [u8],
    },
    /// Makes a regular file and opens it.
    Create {
        name: &'a [u8],
        mode: u32,
        umask: u32,
    },
    /// Makes a regular file without a name and opens it.
    CreateUnnamed {
        mode: u32,
        umask: u32,
    },
    /// Gives `node` another name, in the directory the header names.
    Link {
        node: u64,
        name: &'a [u8],
    },
    Unlink {
        name: &'a [u8],
    },
    RemoveDirectory {
        name: &'a [u8],
    },
    Rename {
        from: &'a [u8],
        new_parent: u64,
        to: &'a [u8],
        /// `RENAME_*` of `renameat2`.
        flags: u32,
    },
    Write {
        offset: u64,
        data: &'a [u8],
        kill_set_id: bool,
        /// It is what the kernel kept: nobody is told of an error but by `fsync`.
        from_cache: bool,
        /// It goes to the end of the file (`O_APPEND`).
        appends: bool,
    },
    /// `mode` as in `fallocate`.
    Allocate {
        offset: u64,
        len: u64,
        mode: u32,
    },
    CopyRange {
        offset: u64,
        to_node: u64,
        to_offset: u64,
        len: u64,
        /// The reply has 64 bits.
        wide: bool,
    },
    SetXattr {
        name: &'a [u8],
        value: &'a [u8],
        /// `XATTR_CREATE` or `XATTR_REPLACE`.
        flags: u32,
        /// With an access ACL: clear the set-group-id bit.
        kill_set_group: bool,
    },
    RemoveXattr {
        name: &'a [u8],
    },
}

impl<'a> ChangeRequest<'a> {
    /// Decodes request `code`; `None` if it changes nothing.
    pub(super) fn decode(code: u32, arguments: &'a [u8]) -> Result<Option<Self>, BadRequest> {
        Ok(Some(match code {
            opcode::SETATTR => Self::SetAttributes(fixed::<abi::SetattrIn>(code, arguments)?.0),
            opcode::MKNOD => {
                let (make, rest) = fixed::<abi::MknodIn>(code, arguments)?;
                let name = name(code, rest)?;
                Self::MakeNode { name, mode: make.mode, rdev: make.rdev, umask: make.umask }
            }
            opcode::MKDIR => {
                let (make, rest) = fixed::<abi::MkdirIn>(code, arguments)?;
                Self::MakeDirectory { name: name(code, rest)?, mode: make.mode, umask: make.umask }
            }
            opcode::SYMLINK => {
                let (name, rest) = terminated(code, arguments)?;
                Self::MakeSymlink { name, target: self::name(code, rest)? }
            }
            opcode::CREATE => {
                let (create, rest) = fixed::<abi::CreateIn>(code, arguments)?;
                Self::Create { name: name(code, rest)?, mode: create.mode, umask: create.umask }
            }
            opcode::TMPFILE => {
                let (create, _) = fixed::<abi::CreateIn>(code, arguments)?;
                Self::CreateUnnamed { mode: create.mode, umask: create.umask }
            }
            opcode::LINK => {
                let (link, rest) = fixed::<abi::LinkIn>(code, arguments)?;
                Self::Link { node: link.old_node, name: name(code, rest)? }
            }
            opcode::UNLINK => Self::Unlink { name: name(code, arguments)? },
            opcode::RMDIR => Self::RemoveDirectory { name: name(code, arguments)? },
            opcode::RENAME => {
                let (rename, rest) = fixed::<abi::RenameIn>(code, arguments)?;
                Self::rename(code, rename.new_parent, 0, rest)?
            }
            opcode::RENAME2 => {
                let (rename, rest) = fixed::<abi::Rename2In>(code, arguments)?;
                Self::rename(code, rename.new_parent, rename.flags, rest)?
            }
            opcode::WRITE => {
                let (write, data) = fixed::<abi::WriteIn>(code, arguments)?;
                let kill_set_id = write.write_flags & abi::WRITE_KILL_SUIDGID != 0;
                if data.len() != write.size as usize {
                    return Err(BadRequest::Arguments { opcode: code });
                }
                let from_cache = write.write_flags & abi::WRITE_CACHE != 0;
                let appends = write.flags & libc::O_APPEND.cast_unsigned() != 0 && !from_cache;
                Self::Write { offset: write.offset, data, kill_set_id, from_cache, appends }
            }
            opcode::FALLOCATE => {
                let (allocate, _) = fixed::<abi::FallocateIn>(code, arguments)?;
                let abi::FallocateIn { offset, length: len, mode, .. } = allocate;
                Self::Allocate { offset, len, mode }
            }
            opcode::COPY_FILE_RANGE | opcode::COPY_FILE_RANGE_64 => {
                let (copy, _) = fixed::<abi::CopyIn>(code, arguments)?;
                Self::CopyRange {
                    offset: copy.offset_in,
                    to_node: copy.node_out,
                    to_offset: copy.offset_out,
                    len: copy.len,
                    wide: code == opcode::COPY_FILE_RANGE_64,
                }
            }
            opcode::SETXATTR => Self::set_xattr(code, arguments)?,
            opcode::REMOVEXATTR => Self::RemoveXattr { name: name(code, arguments)? },
            _ => return Ok(None),
        }))
    }

    fn rename(code: u32, new_parent: u64, flags: u32, names: &'a [u8]) -> Result<Self, BadRequest> {
        let (from, rest) = terminated(code, names)?;
        Ok(Self::Rename { from, new_parent, to: name(code, rest)?, flags })
    }

    /// The long form has flags and a padding of zeros where the short one has the name, of which
    /// at least the second byte is not zero.
    fn set_xattr(code: u32, arguments: &'a [u8]) -> Result<Self, BadRequest> {
        let is_long = arguments.get(9..16).is_some_and(|bytes| bytes.iter().all(|&b| b == 0));
        let (size, flags, extra, rest) = if is_long {
            let (set, rest) = fixed::<abi::SetxattrIn>(code, arguments)?;
            (set.size, set.flags, set.setxattr_flags, rest)
        } else {
            let (set, rest) = fixed::<[u32; 2]>(code, arguments)?;
            (set[0], set[1], 0, rest)
        };
        let (name, rest) = terminated(code, rest)?;
        let value = rest.get(..size as usize).ok_or(BadRequest::Arguments { opcode: code })?;
        let kill_set_group = extra & abi::SETXATTR_ACL_KILL_SGID != 0;
        Ok(Self::SetXattr { name, value, flags, kill_set_group })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::IntoBytes;

    fn decode(code: u32, parts: &[&[u8]]) -> Option<String> {
        let bytes = parts.concat();
        let change = ChangeRequest::decode(code, &bytes).ok()?;
        Some(format!("{:?}", change.unwrap()))
    }

    #[test]
    fn both_forms_of_setxattr() {
        let value = b"value";
        let long = abi::SetxattrIn { size: 5, flags: 1, setxattr_flags: 1, padding: 0 };
        let bytes = [long.as_bytes(), b"user.some name\0", value].concat();
        let change = ChangeRequest::decode(opcode::SETXATTR, &bytes).unwrap().unwrap();
        let ChangeRequest::SetXattr { name, value, flags, kill_set_group } = change else {
            panic!()
        };
        assert_eq!((name, value, flags), (&b"user.some name"[..], &b"value"[..], 1));
        assert!(kill_set_group);
        let bytes = [[5u32, 2].as_bytes(), b"user.x\0", value].concat();
        let change = ChangeRequest::decode(opcode::SETXATTR, &bytes).unwrap().unwrap();
        let ChangeRequest::SetXattr { name, value, flags, kill_set_group } = change else {
            panic!()
        };
        assert_eq!((name, value, flags), (&b"user.x"[..], &b"value"[..], 2));
        assert!(!kill_set_group);
        // A value shorter than said.
        assert!(decode(opcode::SETXATTR, &[[6u32, 0].as_bytes(), b"user.x\0", b"value"]).is_none());
        // An empty value.
        let empty = abi::SetxattrIn::default();
        assert!(decode(opcode::SETXATTR, &[empty.as_bytes(), b"user.x\0"]).is_some());
    }

    #[test]
    fn two_names_need_two_zeros() {
        let rename = abi::Rename2In { new_parent: 5, flags: 2, padding: 0 };
        let bytes = [rename.as_bytes(), b"from\0to\0"].concat();
        let change = ChangeRequest::decode(opcode::RENAME2, &bytes).unwrap().unwrap();
        assert!(matches!(
            change,
            ChangeRequest::Rename { from: b"from", new_parent: 5, to: b"to", flags: 2 }
        ));
        for wrong in [&b"from\0to"[..], b"from\0", b"from", b"\0to\0", b"from\0\0"] {
            assert!(decode(opcode::RENAME2, &[rename.as_bytes(), wrong]).is_none(), "{wrong:?}");
        }
        let change = decode(opcode::SYMLINK, &[b"name\0target\0"]).unwrap();
        assert_eq!(
            change,
            format!("{:?}", ChangeRequest::MakeSymlink { name: b"name", target: b"target" })
        );
    }

    #[test]
    fn writes_have_the_length_they_say() {
        let write = abi::WriteIn { offset: 7, size: 4, write_flags: 5, ..Default::default() };
        let bytes = [write.as_bytes(), b"data"].concat();
        let change = ChangeRequest::decode(opcode::WRITE, &bytes).unwrap().unwrap();
        assert!(matches!(
            change,
            ChangeRequest::Write {
                offset: 7,
                data: b"data",
                kill_set_id: true,
                from_cache: true,
                appends: false
            }
        ));
        assert!(decode(opcode::WRITE, &[write.as_bytes(), b"dat"]).is_none());
        assert!(decode(opcode::WRITE, &[write.as_bytes(), b"data."]).is_none());
    }
}
