//! Page-aligned read buffers that are handed out as [`Bytes`] and come back to a small pool.
//!
//! Invariant: a buffer always holds initialised memory (zeros, or what an earlier read left), and
//! only the part a read has filled is ever shown.

use std::collections::HashMap;

use bytemuck::{Pod, Zeroable};
use bytes::Bytes;
use parking_lot::Mutex;

/// Size and alignment of a page in bytes; covers what any direct I/O asks for.
pub(crate) const PAGE: usize = 4096;
/// Most bytes kept for reuse.
const POOL_BYTES: usize = 16 << 20;
/// Largest buffer kept for reuse, in bytes.
const POOL_BUFFER: usize = 2 << 20;

/// One page.
#[derive(Clone, Copy, Zeroable, Pod)]
#[repr(C, align(4096))]
struct Page([u8; PAGE]);

/// Idle buffers by page count. Reuse saves zeroing (and page faults) for every read.
#[derive(Default)]
struct Pool {
    idle: HashMap<usize, Vec<Vec<Page>>>,
    bytes: usize,
}

static POOL: Mutex<Option<Pool>> = Mutex::new(None);

/// A page-aligned buffer.
pub(crate) struct Buffer {
    pages: Vec<Page>,
}

impl Buffer {
    /// A buffer of at least `len` bytes, or none if memory is short.
    pub(crate) fn new(len: usize) -> Option<Self> {
        let count = len.div_ceil(PAGE);
        if let Some(pool) = POOL.lock().as_mut()
            && let Some(pages) = pool.idle.get_mut(&count).and_then(Vec::pop)
        {
            pool.bytes = pool.bytes.saturating_sub(count * PAGE);
            return Some(Self { pages });
        }
        Some(Self { pages: bytemuck::allocation::try_zeroed_vec(count).ok()? })
    }

    /// Its bytes.
    pub(crate) fn as_slice(&self) -> &[u8] {
        bytemuck::cast_slice(&self.pages)
    }

    /// Its bytes, to fill.
    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(&mut self.pages)
    }

    /// `len` bytes from `skip` on, without a copy; empty if the buffer is shorter.
    pub(crate) fn into_bytes(self, skip: usize, len: usize) -> Bytes {
        let all = Bytes::from_owner(self);
        match skip.checked_add(len) {
            Some(end) if end <= all.len() => all.slice(skip..end),
            _ => Bytes::new(),
        }
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let pages = std::mem::take(&mut self.pages);
        let bytes = pages.len() * PAGE;
        if bytes == 0 || bytes > POOL_BUFFER {
            return;
        }
        let mut pool = POOL.lock();
        let pool = pool.get_or_insert_default();
        if pool.bytes + bytes <= POOL_BYTES {
            pool.bytes += bytes;
            pool.idle.entry(pages.len()).or_default().push(pages);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_and_reused() {
        let mut buffer = Buffer::new(5000).unwrap();
        assert_eq!(buffer.as_slice().as_ptr() as usize % PAGE, 0);
        assert_eq!(buffer.as_slice().len(), 8192);
        buffer.as_mut_slice()[4999] = 7;
        let bytes = buffer.into_bytes(4990, 10);
        assert_eq!(bytes.as_ref(), [0, 0, 0, 0, 0, 0, 0, 0, 0, 7]);
        drop(bytes);
        assert!(Buffer::new(0).unwrap().as_slice().is_empty());
        assert!(Buffer::new(10).unwrap().into_bytes(4090, 10).is_empty());
    }
}
