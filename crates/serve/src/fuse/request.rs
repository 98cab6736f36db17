//! Decoding of requests.
//!
//! Invariant: whatever the bytes, decoding gives an operation or a typed error; nothing is trusted
//! beyond the length that was read.

use zerocopy::FromBytes;

use super::abi::{self, InHeader, opcode};
pub use super::arguments::BadRequest;
use super::arguments::{fixed, name};
use super::change_request::ChangeRequest;

/// A decoded request.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// Who asks, about what.
    pub header: InHeader,
    /// What is asked.
    pub operation: Operation<'a>,
}

/// What a request asks for.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs)] // sizes and offsets are bytes; the rest says what it is
pub enum Operation<'a> {
    Init(abi::InitIn),
    /// The mount goes away.
    Destroy,
    Lookup {
        name: &'a [u8],
    },
    /// The kernel gives up so many of the references to the header's node it was given. No reply.
    Forget {
        lookups: u64,
    },
    /// The same for many nodes.
    ForgetMany(Forgets<'a>),
    GetAttributes,
    Statx,
    ReadLink,
    Open {
        flags: u32,
    },
    OpenDirectory,
    /// RELEASE and RELEASEDIR.
    Release,
    Read {
        offset: u64,
        size: u32,
    },
    ReadDirectory {
        offset: u64,
        size: u32,
        /// With attributes (READDIRPLUS).
        plus: bool,
    },
    StatFs,
    GetXattr {
        name: &'a [u8],
        size: u32,
    },
    ListXattr {
        size: u32,
    },
    Access {
        mask: u32,
    },
    Seek {
        offset: u64,
        whence: u32,
    },
    /// Another request is no longer wanted.
    Interrupt {
        unique: u64,
    },
    /// Anything that changes the filesystem.
    Change(ChangeRequest<'a>),
    /// FSYNC and FSYNCDIR.
    Sync {
        /// What is needed to read the data suffices.
        data_only: bool,
    },
    /// SYNCFS.
    SyncAll,
    /// IOCTL.
    IoControl {
        /// Number of the command.
        command: u32,
        /// What goes in.
        argument: &'a [u8],
        /// Bytes that may come out.
        out_size: u32,
    },
    /// A request we do not know, or that we answer by "not implemented" so that the kernel
    /// does without it (FLUSH, POLL, ...).
    Other,
}

/// The nodes of a BATCH_FORGET.
#[derive(Debug, Clone, Copy)]
pub struct Forgets<'a>(&'a [u8]);

impl Forgets<'_> {
    /// Each node of the kernel, and how many references it gives up.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        self.0.chunks_exact(size_of::<abi::ForgetOne>()).filter_map(|chunk| {
            abi::ForgetOne::read_from_bytes(chunk).ok().map(|one| (one.node, one.lookups))
        })
    }
}

impl<'a> Request<'a> {
    /// The header alone, as far as it can be made out, for answering a malformed request.
    pub fn header(bytes: &[u8]) -> Option<InHeader> {
        InHeader::read_from_prefix(bytes).ok().map(|(header, _)| header)
    }

    /// The request that is not wanted any more, if this says so.
    pub fn interrupted(bytes: &[u8]) -> Option<u64> {
        let (header, rest) = InHeader::read_from_prefix(bytes).ok()?;
        let interrupt = (header.opcode == opcode::INTERRUPT)
            .then(|| fixed::<abi::InterruptIn>(header.opcode, rest));
        interrupt?.ok().map(|(interrupt, _)| interrupt.unique)
    }

    /// Decodes what one read of the device gave.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, BadRequest> {
        let (header, rest) =
            InHeader::read_from_prefix(bytes).map_err(|_| BadRequest::NoHeader(bytes.len()))?;
        if header.len as usize != bytes.len() {
            return Err(BadRequest::Length { said: header.len, read: bytes.len() });
        }
        // Extensions (security contexts, groups) come last; nothing here needs them.
        let extensions = usize::from(header.extension_units) * 8;
        let arguments = rest
            .len()
            .checked_sub(extensions)
            .and_then(|end| rest.get(..end))
            .ok_or(BadRequest::Arguments { opcode: header.opcode })?;
        let operation = Operation::decode(header.opcode, arguments)?;
        Ok(Self { header, operation })
    }
}

impl<'a> Operation<'a> {
    fn decode(code: u32, arguments: &'a [u8]) -> Result<Self, BadRequest> {
        Ok(match code {
            opcode::INIT => Self::Init(init(arguments)?),
            opcode::DESTROY => Self::Destroy,
            opcode::LOOKUP => Self::Lookup { name: name(code, arguments)? },
            opcode::FORGET => {
                let (forget, _) = fixed::<abi::ForgetIn>(code, arguments)?;
                Self::Forget { lookups: forget.lookups }
            }
            opcode::BATCH_FORGET => {
                let (batch, rest) = fixed::<abi::BatchForgetIn>(code, arguments)?;
                let len = (batch.count as usize).checked_mul(size_of::<abi::ForgetOne>());
                let nodes = len.and_then(|len| rest.get(..len));
                Self::ForgetMany(Forgets(nodes.ok_or(BadRequest::Arguments { opcode: code })?))
            }
            opcode::GETATTR => Self::GetAttributes,
            opcode::STATX => Self::Statx,
            opcode::READLINK => Self::ReadLink,
            opcode::OPEN => {
                let (open, _) = fixed::<abi::OpenIn>(code, arguments)?;
                Self::Open { flags: open.flags }
            }
            opcode::OPENDIR => Self::OpenDirectory,
            opcode::RELEASE | opcode::RELEASEDIR => Self::Release,
            opcode::READ => {
                let (read, _) = fixed::<abi::ReadIn>(code, arguments)?;
                Self::Read { offset: read.offset, size: read.size }
            }
            opcode::READDIR | opcode::READDIRPLUS => {
                let (read, _) = fixed::<abi::ReadIn>(code, arguments)?;
                let plus = code == opcode::READDIRPLUS;
                Self::ReadDirectory { offset: read.offset, size: read.size, plus }
            }
            opcode::STATFS => Self::StatFs,
            opcode::GETXATTR => {
                let (get, rest) = fixed::<abi::XattrIn>(code, arguments)?;
                Self::GetXattr { name: name(code, rest)?, size: get.size }
            }
            opcode::LISTXATTR => {
                let (list, _) = fixed::<abi::XattrIn>(code, arguments)?;
                Self::ListXattr { size: list.size }
            }
            opcode::ACCESS => {
                let (access, _) = fixed::<abi::AccessIn>(code, arguments)?;
                Self::Access { mask: access.mask }
            }
            opcode::LSEEK => {
                let (seek, _) = fixed::<abi::SeekIn>(code, arguments)?;
                Self::Seek { offset: seek.offset, whence: seek.whence }
            }
            opcode::INTERRUPT => {
                let (interrupt, _) = fixed::<abi::InterruptIn>(code, arguments)?;
                Self::Interrupt { unique: interrupt.unique }
            }
            opcode::IOCTL => {
                let (control, rest) = fixed::<abi::IoctlIn>(code, arguments)?;
                let argument = rest.get(..control.in_size as usize);
                let argument = argument.ok_or(BadRequest::Arguments { opcode: code })?;
                Self::IoControl { command: control.command, argument, out_size: control.out_size }
            }
            opcode::FSYNC | opcode::FSYNCDIR => {
                let (sync, _) = fixed::<abi::FsyncIn>(code, arguments)?;
                Self::Sync { data_only: sync.fsync_flags & abi::FSYNC_DATA != 0 }
            }
            opcode::SYNCFS => Self::SyncAll,
            _ => ChangeRequest::decode(code, arguments)?.map_or(Self::Other, Self::Change),
        })
    }
}

/// INIT's arguments; older kernels send fewer fields, the missing ones count as zero.
fn init(arguments: &[u8]) -> Result<abi::InitIn, BadRequest> {
    let mut whole = [0; size_of::<abi::InitIn>()];
    let have = arguments.len().min(whole.len());
    match (whole.get_mut(..have), arguments.get(..have)) {
        (Some(target), Some(source)) if have >= 8 => target.copy_from_slice(source),
        _ => return Err(BadRequest::Arguments { opcode: opcode::INIT }),
    }
    fixed(opcode::INIT, &whole).map(|(init, _)| init)
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::IntoBytes;

    fn request(opcode: u32, arguments: &[u8]) -> Vec<u8> {
        let header = InHeader {
            len: 40 + arguments.len() as u32,
            opcode,
            unique: 7,
            node: 1,
            ..InHeader::default()
        };
        [header.as_bytes(), arguments].concat()
    }

    #[test]
    fn names_end_at_their_zero() {
        let bytes = request(opcode::LOOKUP, b"file\0");
        let request = Request::decode(&bytes).unwrap();
        assert!(matches!(request.operation, Operation::Lookup { name: b"file" }));
        assert_eq!(request.header.unique, 7);
    }

    #[test]
    fn every_prefix_of_every_request_decodes_or_fails() {
        for code in 0..64 {
            for len in 0..100 {
                let bytes = request(code, &vec![b'x'; len]);
                let _ = Request::decode(&bytes);
                for cut in 0..bytes.len() {
                    assert!(Request::decode(&bytes[..cut]).is_err());
                }
            }
        }
        let missing_zero = request(opcode::LOOKUP, b"file");
        let malformed = BadRequest::Arguments { opcode: opcode::LOOKUP };
        assert_eq!(Request::decode(&missing_zero).unwrap_err(), malformed);
        let empty = request(opcode::GETXATTR, &[0; 9]);
        assert!(Request::decode(&empty).is_err());
        let mut extended = request(opcode::LOOKUP, b"file\0");
        extended[36] = 200;
        assert!(Request::decode(&extended).is_err());
    }

    #[test]
    fn forgets_are_as_many_as_they_say() {
        let one = |node, lookups| abi::ForgetOne { node, lookups };
        let batch = abi::BatchForgetIn { count: 2, dummy: 0 };
        let nodes = [one(5, 1), one(7, u64::MAX)];
        let bytes = request(opcode::BATCH_FORGET, &[batch.as_bytes(), nodes.as_bytes()].concat());
        let Operation::ForgetMany(forgets) = Request::decode(&bytes).unwrap().operation else {
            panic!()
        };
        assert_eq!(forgets.iter().collect::<Vec<_>>(), [(5, 1), (7, u64::MAX)]);
        let batch = abi::BatchForgetIn { count: u32::MAX, dummy: 0 };
        let bytes = request(opcode::BATCH_FORGET, &[batch.as_bytes(), nodes.as_bytes()].concat());
        assert!(Request::decode(&bytes).is_err());
    }

    #[test]
    fn short_init_of_old_kernels() {
        let bytes = request(opcode::INIT, [7u32, 31, 131_072, 5].as_bytes());
        let Operation::Init(init) = Request::decode(&bytes).unwrap().operation else { panic!() };
        assert_eq!((init.minor, init.flags, init.flags2), (31, 5, 0));
    }
}
