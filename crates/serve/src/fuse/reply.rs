//! Encoding of replies.
//!
//! Invariant: file data is never copied: a reply holds the pieces the tree gave, and the transport
//! writes header and pieces with one system call.

use std::time::Duration;

use bytes::Bytes;
use cenote_posix::tree::{Attributes, Pieces, Space, Timestamp};
use zerocopy::{FromBytes, IntoBytes};

use super::abi;

/// What follows the header of a reply.
#[derive(Debug)]
pub enum Body {
    /// Nothing, or a failure (errno).
    Status(i32),
    /// A structure or a listing.
    Fixed(Vec<u8>),
    /// File data.
    Data(Pieces),
}

/// A reply to one request.
#[derive(Debug)]
pub struct Reply {
    /// Which request.
    pub unique: u64,
    /// The answer.
    pub body: Body,
}

impl Reply {
    /// A failure, or plain success for 0.
    pub fn status(unique: u64, errno: i32) -> Self {
        Self { unique, body: Body::Status(errno) }
    }

    /// The header. `None` if the body is too long to be described.
    pub fn header(&self) -> Option<abi::OutHeader> {
        let len = match &self.body {
            Body::Status(_) => 0,
            Body::Fixed(bytes) => bytes.len(),
            Body::Data(pieces) => pieces.iter().map(Bytes::len).sum(),
        };
        let len = u32::try_from(len.checked_add(size_of::<abi::OutHeader>())?).ok()?;
        let error = match self.body {
            Body::Status(errno) => errno.checked_abs()?.checked_neg()?,
            Body::Fixed(_) | Body::Data(_) => 0,
        };
        Some(abi::OutHeader { len, error, unique: self.unique })
    }
}

/// A structure as a body.
pub(super) fn fixed<T: IntoBytes + zerocopy::Immutable>(value: &T) -> Body {
    Body::Fixed(value.as_bytes().to_vec())
}

/// Cuts `pieces` to at most `size` bytes.
pub(super) fn truncate(pieces: &mut Pieces, size: usize) {
    let mut left = size;
    let mut keep = 0;
    for piece in pieces.iter_mut() {
        if left == 0 {
            break;
        }
        piece.truncate(left);
        left = left.saturating_sub(piece.len());
        keep += 1;
    }
    pieces.truncate(keep);
}

/// How long the kernel may keep what it is told.
#[derive(Debug, Clone, Copy)]
pub(super) struct Validity {
    /// Names: which node they mean.
    pub names: Duration,
    /// Attributes.
    pub attributes: Duration,
}

/// Attributes as GETATTR and LOOKUP report them.
pub(super) fn attr(attributes: &Attributes) -> abi::Attr {
    // Before 1970 the kernel reads the unsigned seconds as a negative number again.
    let seconds = |time: Timestamp| time.seconds.cast_unsigned();
    abi::Attr {
        ino: attributes.node,
        size: attributes.size,
        blocks: attributes.sectors,
        atime: seconds(attributes.accessed),
        mtime: seconds(attributes.modified),
        ctime: seconds(attributes.changed),
        atime_nanos: attributes.accessed.nanoseconds,
        mtime_nanos: attributes.modified.nanoseconds,
        ctime_nanos: attributes.changed.nanoseconds,
        mode: attributes.mode,
        nlink: attributes.links,
        uid: attributes.uid,
        gid: attributes.gid,
        // The low half of glibc's encoding is the kernel's.
        rdev: attributes.rdev as u32,
        block_size: attributes.block_size,
        flags: 0,
    }
}

/// Reply to GETATTR.
pub(super) fn attr_out(attributes: &Attributes, valid: Validity) -> abi::AttrOut {
    abi::AttrOut {
        attr_valid: valid.attributes.as_secs(),
        attr_valid_nanos: valid.attributes.subsec_nanos(),
        attr: attr(attributes),
        ..abi::AttrOut::default()
    }
}

/// Reply to LOOKUP; `node` is the number the kernel will use.
pub(super) fn entry_out(node: u64, attributes: &Attributes, valid: Validity) -> abi::EntryOut {
    abi::EntryOut {
        node,
        generation: attributes.generation,
        entry_valid: valid.names.as_secs(),
        attr_valid: valid.attributes.as_secs(),
        entry_valid_nanos: valid.names.subsec_nanos(),
        attr_valid_nanos: valid.attributes.subsec_nanos(),
        attr: attr(attributes),
    }
}

/// Reply to LOOKUP of a name that does not exist, which the kernel may remember.
pub(super) fn no_entry(valid: Duration) -> abi::EntryOut {
    abi::EntryOut {
        entry_valid: valid.as_secs(),
        entry_valid_nanos: valid.subsec_nanos(),
        ..abi::EntryOut::default()
    }
}

/// Reply to STATX.
pub(super) fn statx_out(attributes: &Attributes, valid: Validity) -> abi::StatxOut {
    let time = |time: Timestamp| abi::StatxTime {
        seconds: time.seconds,
        nanoseconds: time.nanoseconds,
        reserved: 0,
    };
    let rdev = attributes.rdev;
    abi::StatxOut {
        attr_valid: valid.attributes.as_secs(),
        attr_valid_nanos: valid.attributes.subsec_nanos(),
        stat: abi::Statx {
            mask: libc::STATX_BASIC_STATS | libc::STATX_BTIME,
            block_size: attributes.block_size,
            nlink: attributes.links,
            uid: attributes.uid,
            gid: attributes.gid,
            mode: attributes.mode as u16,
            ino: attributes.node,
            size: attributes.size,
            blocks: attributes.sectors,
            atime: time(attributes.accessed),
            btime: time(attributes.created),
            ctime: time(attributes.changed),
            mtime: time(attributes.modified),
            rdev_major: libc::major(rdev),
            rdev_minor: libc::minor(rdev),
            ..abi::Statx::default()
        },
        ..abi::StatxOut::default()
    }
}

/// Reply to STATFS.
pub(super) fn statfs_out(space: &Space) -> abi::StatfsOut {
    abi::StatfsOut {
        blocks: space.blocks,
        free: space.free,
        available: space.free,
        files: space.files,
        files_free: space.files_free,
        block_size: space.block_size,
        fragment_size: space.block_size,
        name_max: space.name_max,
        ..abi::StatfsOut::default()
    }
}

/// A listing under construction, at most `limit` bytes.
#[derive(Debug)]
pub(super) struct Listing {
    bytes: Vec<u8>,
    limit: usize,
}

impl Listing {
    /// An empty listing.
    pub(super) fn new(limit: usize) -> Self {
        Self { bytes: Vec::with_capacity(limit), limit }
    }

    /// Whether another entry with this name fits.
    pub(super) fn fits(&self, name: &[u8], plus: bool) -> bool {
        let head = if plus { size_of::<abi::EntryOut>() } else { 0 };
        let need = (head + size_of::<abi::Dirent>() + name.len()).next_multiple_of(8);
        self.bytes.len() + need <= self.limit
    }

    /// Appends an entry, with its attributes for READDIRPLUS.
    pub(super) fn push(
        &mut self,
        entry: Option<&abi::EntryOut>,
        ino: u64,
        next: u64,
        kind: u8,
        name: &[u8],
    ) {
        if let Some(entry) = entry {
            self.bytes.extend_from_slice(entry.as_bytes());
        }
        let head =
            abi::Dirent { ino, offset: next, name_len: name.len() as u32, kind: u32::from(kind) };
        self.bytes.extend_from_slice(head.as_bytes());
        self.bytes.extend_from_slice(name);
        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
    }

    /// The encoded listing.
    pub(super) fn finish(self) -> Body {
        Body::Fixed(self.bytes)
    }
}

/// The node a LOOKUP gives; none for a name that is not there.
pub(super) fn nodes_in_entry(bytes: &[u8]) -> Option<u64> {
    let (entry, _) = abi::EntryOut::read_from_prefix(bytes).ok()?;
    (entry.node != 0).then_some(entry.node)
}

/// The nodes a READDIRPLUS gives.
pub(super) fn nodes_in_listing(mut bytes: &[u8]) -> Vec<u64> {
    let mut nodes = Vec::new();
    while let Ok((entry, rest)) = abi::EntryOut::read_from_prefix(bytes) {
        let Ok((head, _)) = abi::Dirent::read_from_prefix(rest) else { break };
        if entry.node != 0 {
            nodes.push(entry.node);
        }
        let length = (size_of::<abi::Dirent>() + head.name_len as usize).next_multiple_of(8);
        bytes = rest.get(length..).unwrap_or_default();
    }
    nodes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_cut_without_a_copy() {
        let whole = Bytes::from_static(b"0123456789");
        for size in 0..25 {
            let mut pieces: Pieces = [whole.clone(), whole.clone()].into_iter().collect();
            truncate(&mut pieces, size);
            let bytes = pieces.concat();
            assert_eq!(bytes, b"01234567890123456789"[..size.min(20)]);
            assert!(pieces.iter().all(|piece| !piece.is_empty()));
        }
    }

    #[test]
    fn headers_say_length_and_error() {
        let header = Reply::status(5, libc::ENOENT).header().unwrap();
        assert_eq!((header.len, header.error, header.unique), (16, -libc::ENOENT, 5));
        let data = Reply {
            unique: 1,
            body: Body::Data([Bytes::from_static(b"abc")].into_iter().collect()),
        };
        assert_eq!(data.header().unwrap().len, 19);
    }

    #[test]
    fn nodes_of_a_listing_are_found_again() {
        let mut listing = Listing::new(4096);
        for (node, name) in [(0, &b"."[..]), (5, b"abc"), (9, b"12345678"), (7, b"x")] {
            let entry = abi::EntryOut { node, ..abi::EntryOut::default() };
            assert!(listing.fits(name, true));
            listing.push(Some(&entry), node, 1, 8, name);
        }
        let Body::Fixed(bytes) = listing.finish() else { panic!() };
        assert_eq!(nodes_in_listing(&bytes), [5, 9, 7]);
        assert_eq!(nodes_in_entry(&bytes), None);
        assert!(nodes_in_listing(&[]).is_empty());
    }

    #[test]
    fn listings_stop_at_their_limit() {
        let mut listing = Listing::new(64);
        assert!(listing.fits(b"abc", false));
        listing.push(None, 5, 1, 8, b"abc");
        assert!(listing.fits(b"12345678", false));
        assert!(!listing.fits(b"123456789", false));
        assert!(!listing.fits(b"a", true));
        let Body::Fixed(bytes) = listing.finish() else { panic!() };
        assert_eq!(bytes.len(), 32);
        assert_eq!(&bytes[24..], b"abc\0\0\0\0\0");
    }
}
