//! Writing replies to `/dev/fuse`.
//!
//! Invariant: a reply that the kernel refuses becomes EIO, so that no caller waits for ever.

use std::io::IoSlice;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use zerocopy::IntoBytes;

use super::reply::{Body, Reply};

/// Pieces written with one call; more are joined first.
const MAX_PIECES: usize = 512;

/// Sends a reply; if the kernel refuses it, sends EIO instead.
pub(super) fn send(device: BorrowedFd<'_>, reply: Reply) {
    match write(device, &reply) {
        Ok(_) => {}
        // The request was interrupted, or the mount is gone: nobody waits.
        Err(Errno::NOENT | Errno::NODEV | Errno::CONNABORTED) => {}
        Err(error) => {
            tracing::warn!(%error, "the kernel refused a reply");
            if !matches!(reply.body, Body::Status(libc::EIO)) {
                let _ = write(device, &Reply::status(reply.unique, libc::EIO));
            }
        }
    }
}

fn write(device: BorrowedFd<'_>, reply: &Reply) -> Result<usize, Errno> {
    let header = reply.header().ok_or(Errno::INVAL)?;
    let head = IoSlice::new(header.as_bytes());
    rustix::io::retry_on_intr(|| match &reply.body {
        Body::Status(_) => rustix::io::write(device, header.as_bytes()),
        Body::Fixed(bytes) => rustix::io::writev(device, &[head, IoSlice::new(bytes)]),
        Body::Data(pieces) => match pieces.as_slice() {
            [] => rustix::io::write(device, header.as_bytes()),
            [one] => rustix::io::writev(device, &[head, IoSlice::new(one)]),
            many if many.len() <= MAX_PIECES => {
                let mut vectors = Vec::with_capacity(many.len() + 1);
                vectors.push(head);
                vectors.extend(many.iter().map(|piece| IoSlice::new(piece)));
                rustix::io::writev(device, &vectors)
            }
            many => rustix::io::writev(device, &[head, IoSlice::new(&many.concat())]),
        },
    })
}
