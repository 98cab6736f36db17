//! Reading ahead of sequential readers.
//!
//! Every file read lately has a [`Stream`]: the second read that goes on where the first ended
//! opens a window, which doubles with every further one. Invariant: what is asked for ahead lies
//! between the reader and `MAX_WINDOW` bytes before it, and is asked for once.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use quick_cache::sync::Cache;

use crate::tree::NodeId;

/// Files whose streams are remembered.
const STREAMS: usize = 4096;
/// First window in bytes.
const MIN_WINDOW: u64 = 512 << 10;
/// Largest window in bytes.
const MAX_WINDOW: u64 = 16 << 20;
/// Concurrent requests of one reader arrive in any order: reads this near to the expected place
/// are part of the stream.
const SLACK: u64 = 4 << 20;

/// One reader of one file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stream {
    /// End of the furthest read.
    next: u64,
    /// Bytes to keep loaded ahead; 0 while no stream is recognized.
    window: u64,
    /// End of what was asked for ahead.
    ahead: u64,
}

impl Stream {
    /// Notes a read of `len` bytes at `offset` in a file of `size` bytes, and says what to load
    /// ahead now.
    pub fn note(&mut self, offset: u64, len: u64, size: u64) -> Option<Range<u64>> {
        let end = offset.saturating_add(len);
        let sequential = if self.window == 0 {
            self.next != 0 && offset == self.next
        } else {
            offset.abs_diff(self.next) <= SLACK
        };
        if !sequential {
            *self = Self { next: end, window: 0, ahead: 0 };
            return None;
        }
        self.next = self.next.max(end);
        let from = self.ahead.max(self.next);
        // Ask again only when half of the window is used up, in large pieces.
        if self.window != 0 && from.saturating_sub(self.next) > self.window / 2 {
            return None;
        }
        self.window = (self.window * 2).max(MIN_WINDOW).max(len).min(MAX_WINDOW);
        let to = self.next.saturating_add(self.window).min(size);
        if from >= to {
            return None;
        }
        self.ahead = to;
        Some(from..to)
    }
}

/// What a read tells of those to come.
#[derive(Clone, Debug, Default)]
pub struct Advice {
    /// What to load ahead now.
    pub ahead: Option<Range<u64>>,
    /// The read is part of a stream: what it has read whole will not be asked for again soon.
    pub streaming: bool,
    /// Where the reader is: what lies before it need not be loaded any more.
    pub position: Arc<AtomicU64>,
}

/// The streams of a filesystem.
pub struct Streams {
    streams: Cache<NodeId, Arc<Shared>>,
}

#[derive(Default)]
struct Shared {
    stream: Mutex<Stream>,
    position: Arc<AtomicU64>,
}

impl Default for Streams {
    fn default() -> Self {
        Self { streams: Cache::new(STREAMS) }
    }
}

impl Streams {
    /// As [`Stream::note`], for the stream of `node`.
    pub fn note(&self, node: NodeId, offset: u64, len: u64, size: u64) -> Advice {
        // Most files are read whole by one request: they need no stream.
        if offset == 0 && len >= size {
            return Advice::default();
        }
        let stream = match self.streams.get(&node) {
            Some(stream) => stream,
            None => {
                let stream = Arc::<Shared>::default();
                self.streams.insert(node, stream.clone());
                stream
            }
        };
        let position = stream.position.clone();
        let mut stream = stream.stream.lock();
        let ahead = stream.note(offset, len, size);
        position.store(stream.next, Ordering::Relaxed);
        Advice { ahead, streaming: stream.window != 0, position }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: u64 = 128 << 10;

    #[test]
    fn window_grows_and_nothing_is_asked_twice() {
        let size = 100 << 20;
        let mut stream = Stream::default();
        let mut covered = 0;
        let mut asked = 0;
        for index in 0..size / STEP {
            if let Some(range) = stream.note(index * STEP, STEP, size) {
                assert!(range.start >= covered && range.start >= (index + 1) * STEP);
                assert!(range.end <= (index + 1) * STEP + MAX_WINDOW && range.end <= size);
                covered = range.end;
                asked += 1;
            }
            assert!(index < 1 || covered > (index + 1) * STEP || covered == size);
        }
        assert_eq!(covered, size);
        assert!(asked < 30, "{asked} requests");
    }

    #[test]
    fn random_readers_get_nothing() {
        let mut stream = Stream::default();
        for index in 0..1000_u64 {
            let offset = index.wrapping_mul(0x9e37_79b9) % 1000 * (8 << 20);
            assert_eq!(stream.note(offset, 4096, 8000 << 20), None);
        }
    }

    #[test]
    fn requests_out_of_order_stay_in_the_stream() {
        let mut stream = Stream::default();
        for index in [0, 1, 3, 2, 5, 4, 7, 6] {
            stream.note(index * STEP, STEP, 1 << 30);
        }
        assert!(stream.window >= 2 * MIN_WINDOW, "{stream:?}");
    }

    #[test]
    fn hostile_sizes_do_not_overflow() {
        let mut stream = Stream::default();
        for offset in [0, STEP, u64::MAX - 1, u64::MAX] {
            stream.note(offset, u64::MAX, u64::MAX);
        }
        let streams = Streams::default();
        assert_eq!(streams.note(5, 0, 10, 10).ahead, None);
    }
}
