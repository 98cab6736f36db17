//! Changes that wait for their turn, so that some threads stay free for reading.
//!
//! Invariant: a change that was put aside is taken up: changes are put aside only while others run,
//! and who finishes one asks for the next.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use parking_lot::Mutex;

/// Bytes of requests put aside, above which threads do take changes up.
const MAX_BYTES: usize = 64 << 20;

/// A request that was put aside.
#[derive(Debug)]
pub(super) struct Change {
    /// The descriptor it came by.
    pub device: Arc<OwnedFd>,
    /// The whole request.
    pub request: Vec<u8>,
}

#[derive(Debug, Default)]
struct State {
    running: usize,
    waiting: VecDeque<Change>,
    /// Bytes in `waiting`.
    bytes: usize,
}

/// Changes running and waiting.
#[derive(Debug)]
pub(super) struct Backlog {
    /// Changes that may run at once.
    limit: usize,
    state: Mutex<State>,
}

impl Backlog {
    /// Lets `limit` changes run at once.
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, state: Mutex::default() }
    }

    /// Whether the caller shall run this change now (and call [`Backlog::next`] after it);
    /// otherwise it has been put aside.
    pub(super) fn begin(&self, device: &Arc<OwnedFd>, request: &[u8]) -> bool {
        let mut state = self.state.lock();
        if state.running >= self.limit && state.bytes.saturating_add(request.len()) <= MAX_BYTES {
            state.bytes += request.len();
            // One copy: the thread needs its buffer.
            let change = Change { device: device.clone(), request: request.to_vec() };
            state.waiting.push_back(change);
            return false;
        }
        state.running += 1;
        true
    }

    /// A change is finished. The one to run next, if any waits.
    pub(super) fn next(&self) -> Option<Change> {
        let mut state = self.state.lock();
        let next = state.waiting.pop_front();
        match &next {
            Some(change) => state.bytes -= change.request.len(),
            None => state.running -= 1,
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_beyond_the_limit_wait_in_order() {
        let device = Arc::new(
            super::super::mount::open_device()
                .unwrap_or_else(|_| OwnedFd::from(std::fs::File::open("/dev/null").unwrap())),
        );
        let backlog = Backlog::new(2);
        assert!(backlog.begin(&device, b"1") && backlog.begin(&device, b"2"));
        assert!(!backlog.begin(&device, b"3") && !backlog.begin(&device, b"4"));
        assert_eq!(backlog.next().unwrap().request, b"3");
        assert_eq!(backlog.next().unwrap().request, b"4");
        assert!(backlog.next().is_none());
        assert!(backlog.begin(&device, b"5"));
        // What would fill the memory is not put aside.
        assert!(backlog.begin(&device, &vec![0; MAX_BYTES + 1]));
    }
}
