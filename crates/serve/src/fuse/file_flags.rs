//! Flags and projects of files through ioctls: answering them.
//!
//! Invariant: flags we do not know are never taken for set, and setting one is refused.

use cenote_posix::tree::{Errno, FileFlags, NodeId};
use zerocopy::{FromBytes, IntoBytes};

use super::abi::{FileAttributes, InHeader, IoctlOut};
use super::handler::{Answering, caller};
use super::reply::Body;

/// `FS_IOC_GETFLAGS`.
const GET_FLAGS: u32 = 0x8008_6601;
/// `FS_IOC_SETFLAGS`.
const SET_FLAGS: u32 = 0x4008_6602;
/// `FS_IOC_FSGETXATTR`.
const GET_ATTRIBUTES: u32 = 0x801C_581F;
/// `FS_IOC_FSSETXATTR`.
const SET_ATTRIBUTES: u32 = 0x401C_5820;

/// A flag, its bit in `FS_IOC_GETFLAGS` and in `FS_IOC_FSGETXATTR`.
type Bit = (fn(&mut FileFlags) -> &mut bool, u32, u32);
const BITS: [Bit; 4] = [
    (|flags| &mut flags.immutable, 0x10, 0x8),
    (|flags| &mut flags.append_only, 0x20, 0x10),
    (|flags| &mut flags.no_dump, 0x40, 0x80),
    (|flags| &mut flags.project_inherit, 0x2000_0000, 0x200),
];
/// `FS_XFLAG_HASATTR`: of no meaning when set.
const HAS_ATTRIBUTES: u32 = 0x8000_0000;

/// The bits of either form.
fn bits(mut flags: FileFlags, extended: bool) -> u32 {
    BITS.iter()
        .filter(|(flag, ..)| *flag(&mut flags))
        .fold(0, |sum, (_, plain, long)| sum | if extended { *long } else { *plain })
}

/// The flags of either form; `project` stays.
fn flags_of(bits: u32, extended: bool, project: u32) -> Option<FileFlags> {
    let mut flags = FileFlags { project, ..FileFlags::default() };
    let mut unknown = bits;
    for (flag, plain, long) in BITS {
        let bit = if extended { long } else { plain };
        *flag(&mut flags) = bits & bit != 0;
        unknown &= !bit;
    }
    (unknown & !HAS_ATTRIBUTES == 0).then_some(flags)
}

fn answer(out: &[u8]) -> Body {
    let mut bytes = IoctlOut::default().as_bytes().to_vec();
    bytes.extend_from_slice(out);
    Body::Fixed(bytes)
}

impl Answering<'_> {
    /// Answers IOCTL.
    pub(super) fn io_control(
        &self,
        header: &InHeader,
        node: NodeId,
        command: u32,
        argument: &[u8],
        out_size: u32,
    ) -> Result<Body, Errno> {
        let tree = self.tree();
        let get = || {
            let flags = tree.file_flags(node);
            flags.map_err(|error| Errno { code: libc::ENOTTY, reason: error.reason })
        };
        let set = |flags: Option<FileFlags>| {
            let Some(flags) = flags else { return Ok(Body::Status(libc::EOPNOTSUPP)) };
            if self.refuses_changes() {
                return Ok(Body::Status(libc::EROFS));
            }
            let caller = caller(header);
            tree.set_file_flags(caller, node, &flags)?;
            Ok(answer(&[]))
        };
        match command {
            GET_FLAGS if out_size >= 4 => Ok(answer(bits(get()?, false).as_bytes())),
            GET_ATTRIBUTES if out_size as usize >= size_of::<FileAttributes>() => {
                let flags = get()?;
                let all = FileAttributes {
                    flags: bits(flags, true),
                    project: flags.project,
                    ..FileAttributes::default()
                };
                Ok(answer(all.as_bytes()))
            }
            SET_FLAGS => {
                let Ok((bits, _)) = u32::read_from_prefix(argument) else {
                    return Ok(Body::Status(libc::EINVAL));
                };
                set(flags_of(bits, false, get()?.project))
            }
            SET_ATTRIBUTES => {
                let Ok((all, _)) = FileAttributes::read_from_prefix(argument) else {
                    return Ok(Body::Status(libc::EINVAL));
                };
                set(flags_of(all.flags, true, all.project))
            }
            _ => Ok(Body::Status(libc::ENOTTY)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_have_two_forms() {
        let all = FileFlags {
            immutable: true,
            append_only: true,
            no_dump: true,
            project_inherit: true,
            project: 7,
        };
        assert_eq!((bits(all, false), bits(all, true)), (0x2000_0070, 0x298));
        for (number, extended) in [(0x2000_0070, false), (0x298, true), (0x8000_0298, true)] {
            assert_eq!(flags_of(number, extended, 7), Some(all));
        }
        assert_eq!(flags_of(0x4, true, 7), None, "a flag nobody knows");
        assert_eq!(flags_of(0, true, 7), Some(FileFlags { project: 7, ..FileFlags::default() }));
    }
}
