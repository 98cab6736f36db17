//! Page-aligned read buffers that are handed out as [`Bytes`] and come back to a small pool.
//!
//! Invariant: a buffer always holds initialised memory (zeros, or what an earlier read left), and
//! only the part a read has filled is ever shown. What is handed out keeps little more memory than
//! its length, so that a cache above may count lengths.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use bytemuck::{Pod, Zeroable};
use bytes::Bytes;
use parking_lot::Mutex;

/// Size and alignment of a page in bytes; covers what any direct I/O asks for.
pub(crate) const PAGE: usize = 4096;
/// Most bytes kept for reuse, unless [`keep_buffers`] says otherwise.
const POOL_BYTES: usize = 32 << 20;
/// Largest buffer kept for reuse, in bytes.
const POOL_BUFFER: usize = 2 << 20;
/// Results up to this size are copied out: whole pages would be held for less than a page, and
/// aligned allocations cost another page each.
const COPY: usize = 16 << 10;

/// One page.
#[derive(Clone, Copy, Zeroable, Pod)]
#[repr(C, align(4096))]
struct Page([u8; PAGE]);

/// Keeps the C library from giving every thread a heap of its own: buffers are allocated by one
/// thread and freed by another, and each such heap would grow to the size of all of them.
pub(crate) fn limit_heaps() {
    #[cfg(target_env = "gnu")]
    {
        static ONCE: std::sync::Once = std::sync::Once::new();
        ONCE.call_once(|| {
            // SAFETY: sets a number inside the allocator, which locks itself.
            let _ = unsafe { libc::mallopt(libc::M_ARENA_MAX, 2) };
        });
    }
}

/// Idle buffers by page count. Reuse saves zeroing (and page faults) for every read.
#[derive(Default)]
struct Pool {
    idle: HashMap<usize, Vec<Vec<Page>>>,
    bytes: usize,
}

static POOL: Mutex<Option<Pool>> = Mutex::new(None);
static KEPT: AtomicUsize = AtomicUsize::new(POOL_BYTES);

/// Sets how many bytes of idle buffers are kept for reuse. A stream of writes goes through as much
/// memory as is dirty: fresh pages for it cost more than the copy into them.
pub fn keep_buffers(bytes: usize) {
    KEPT.store(bytes, Relaxed);
}

/// A page-aligned buffer.
pub(crate) struct Buffer {
    pages: Vec<Page>,
}

impl Buffer {
    /// A buffer of at least `len` bytes, or none if memory is short.
    pub(crate) fn new(len: usize) -> Option<Self> {
        let count = len.div_ceil(PAGE);
        match Self::idle(count) {
            Some(buffer) => Some(buffer),
            None => Some(Self { pages: bytemuck::allocation::try_zeroed_vec(count).ok()? }),
        }
    }

    /// A buffer that was used before.
    fn idle(count: usize) -> Option<Self> {
        let mut pool = POOL.lock();
        let pool = pool.as_mut()?;
        let pages = pool.idle.get_mut(&count).and_then(Vec::pop)?;
        pool.bytes = pool.bytes.saturating_sub(count * PAGE);
        Some(Self { pages })
    }

    fn copy_of(pages: &[Page]) -> Self {
        match Self::idle(pages.len()) {
            Some(mut buffer) => {
                buffer.pages.copy_from_slice(pages);
                buffer
            }
            None => Self { pages: pages.to_vec() },
        }
    }

    /// Its bytes.
    pub(crate) fn as_slice(&self) -> &[u8] {
        bytemuck::cast_slice(&self.pages)
    }

    /// Its bytes, to fill.
    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(&mut self.pages)
    }

    /// `len` bytes from `skip` on, large ones without a copy; empty if the buffer is shorter.
    pub(crate) fn into_bytes(self, skip: usize, len: usize) -> Bytes {
        let capacity = self.as_slice().len();
        let Some(end) = skip.checked_add(len).filter(|&end| end <= capacity) else {
            return Bytes::new();
        };
        if len <= COPY || len < capacity / 4 * 3 {
            Bytes::copy_from_slice(self.as_slice().get(skip..end).unwrap_or_default())
        } else {
            Bytes::from_owner(self).slice(skip..end)
        }
    }
}

/// A copy of `data`, followed by zeros up to `len` bytes (at least those of `data`), in memory that
/// direct I/O takes as it is, unless it is small.
pub fn aligned_copy(data: &[u8], len: usize) -> Bytes {
    let len = len.max(data.len());
    if len == data.len()
        && len > COPY
        && let Ok(pages) = bytemuck::try_cast_slice::<u8, Page>(data)
    {
        // Nothing has to be zeroed first.
        return Buffer::copy_of(pages).into_bytes(0, len);
    }
    let aligned = if len > COPY { Buffer::new(len) } else { None };
    let Some(mut buffer) = aligned else {
        let mut plain = Vec::with_capacity(len);
        plain.extend_from_slice(data);
        plain.resize(len, 0);
        return Bytes::from(plain);
    };
    let (front, rest) = buffer.as_mut_slice().split_at_mut(data.len());
    front.copy_from_slice(data);
    rest.fill(0);
    buffer.into_bytes(0, len)
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
        if pool.bytes + bytes <= KEPT.load(Relaxed) {
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
        let mut buffer = Buffer::new(100_000).unwrap();
        let start = buffer.as_slice().as_ptr();
        buffer.as_mut_slice()[99_999] = 9;
        let bytes = buffer.into_bytes(512, 99_488);
        assert_eq!((bytes.as_ptr() as usize, bytes[99_487]), (start as usize + 512, 9), "no copy");
        drop(bytes);
        let copy = aligned_copy(&[7; 20_000], 20_480);
        assert_eq!((copy.as_ptr() as usize % PAGE, copy.len()), (0, 20_480));
        assert!(copy[..20_000].iter().all(|byte| *byte == 7) && copy[20_000..] == [0; 480]);
        assert_eq!(aligned_copy(b"ab", 4).as_ref(), b"ab\0\0");
        assert!(Buffer::new(0).unwrap().as_slice().is_empty());
        assert!(Buffer::new(10).unwrap().into_bytes(4090, 10).is_empty());
    }
}
