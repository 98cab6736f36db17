//! Where a thread reads requests into.
//!
//! Invariant: what is shown of it lies inside it, whatever length the kernel says.

use std::io;

use memmap2::MmapMut;

use super::abi::{self, InHeader};
use super::handler::MAX_IO;

/// Page size of the machine, for aligning the data of writes.
const PAGE: usize = 4096;
/// Where a request begins: a WRITE's header and arguments are 80 bytes, and a mapping begins on a page.
const START: usize = PAGE - size_of::<InHeader>() - size_of::<abi::ReadIn>();

/// A buffer for requests in which the data of a WRITE begins on a page.
///
/// It is a mapping of its own, made with the first request, so that only what the kernel filled takes memory: most
/// threads never read more than a page.
#[derive(Default)]
pub(super) struct RequestBuffer {
    bytes: Option<MmapMut>,
}

impl RequestBuffer {
    /// Where a request may be put.
    pub(super) fn space(&mut self) -> io::Result<&mut [u8]> {
        let bytes = match &mut self.bytes {
            Some(bytes) => bytes,
            none => none
                .insert(MmapMut::map_anon(2 * PAGE + (MAX_IO as usize).max(abi::MIN_READ_BUFFER))?),
        };
        Ok(bytes.get_mut(START..).unwrap_or_default())
    }

    /// A request of so many bytes that was put there.
    pub(super) fn filled(&self, len: usize) -> &[u8] {
        let bytes = self.bytes.as_deref();
        bytes.and_then(|bytes| bytes.get(START..START.saturating_add(len))).unwrap_or_default()
    }
}
