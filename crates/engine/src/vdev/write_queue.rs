//! Blocks on their way to the devices: threads that write what is handed in, in large batches.
//!
//! Invariant: at most the given number of bytes is under way (or one block, if that is larger); two
//! writes whose places overlap are never under way together, so the later one stays, and readers get
//! the later one from the moment it is handed in; every block handed in is written when
//! [`WriteQueue::settle`] says so, or stays here, readable, to be written again. What was written is
//! kept until it is known to be durable ([`WriteQueue::flushed`]).
//!
//! Nobody waits to write a block anew where it is: the newer bytes take the place of those that are
//! still queued, and follow those that a thread is writing.

use super::error::VdevError;
use super::handle::VdevHandle;
use super::write::BlockWrite;
use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::thread::JoinHandle;

/// Bytes one thread takes at once.
const BATCH: u64 = 8 << 20;
/// And while reads come, of which one would wait for all that is under way; one thread at a time then.
const SMALL_BATCH: u64 = 1 << 20;
/// While others are at work, a thread waits until this much has come together.
const WORTHWHILE: u64 = 1 << 20;

/// A queue of blocks to be written, with its threads. Dropping it writes what is queued.
pub struct WriteQueue {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    /// What is written to: looked up anew for each batch.
    vdevs: VdevHandle,
    max_bytes: u64,
    /// There are no threads.
    inline: bool,
    state: Mutex<QueueState>,
    /// There is work for a thread.
    work: Condvar,
    /// Something was written.
    done: Condvar,
}

/// Vdev and start.
type Place = (u32, u64);

#[derive(Default)]
struct QueueState {
    /// The blocks no thread has taken yet.
    queue: VecDeque<Place>,
    queued: u64,
    /// What is queued or being written.
    pending: BTreeMap<Place, Pending>,
    /// Bytes of those.
    bytes: u64,
    /// Threads that are writing.
    active: usize,
    /// Callers that wait for everything, or for room.
    waiters: usize,
    /// By place.
    failures: BTreeMap<Place, (BlockWrite, VdevError)>,
    /// What was written and is not known to be durable, by place.
    unflushed: BTreeMap<Place, BlockWrite>,
    /// How often somebody waited for everything, or for an overlapping write.
    waits: u64,
    stopping: bool,
}

/// A block under way.
struct Pending {
    /// Where its place ends on its vdev.
    end: u64,
    write: BlockWrite,
    /// A thread is writing it.
    active: bool,
    /// What is to be written there after it.
    newer: Option<BlockWrite>,
}

impl Pending {
    /// The bytes that will be there in the end.
    fn newest(&self) -> &BlockWrite {
        self.newer.as_ref().unwrap_or(&self.write)
    }
}

fn length(write: &BlockWrite) -> u64 {
    write.data.len() as u64
}

impl std::fmt::Debug for WriteQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WriteQueue").field("bytes", &self.bytes()).finish_non_exhaustive()
    }
}

impl WriteQueue {
    /// A queue that writes to `vdevs`, on `threads` threads, with at most `max_bytes` bytes
    /// under way. Without threads, whoever waits writes.
    pub fn new(vdevs: VdevHandle, threads: usize, max_bytes: u64) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            vdevs,
            max_bytes,
            inline: threads == 0,
            state: Mutex::default(),
            work: Condvar::new(),
            done: Condvar::new(),
        });
        let mut queue = Self { shared, threads: Vec::new() };
        for _ in 0..threads {
            let shared = queue.shared.clone();
            let thread =
                std::thread::Builder::new().name("write".into()).spawn(move || shared.run());
            match thread {
                Ok(thread) => queue.threads.push(thread),
                Err(error) if queue.threads.is_empty() => return Err(error),
                Err(_) => break,
            }
        }
        Ok(queue)
    }

    /// Hands a block in. Waits while too much is under way, and while an earlier write overlaps whose
    /// place is not the very same. How it went is told by [`WriteQueue::settle`].
    pub fn submit(&self, write: BlockWrite) {
        let place = (write.vdev, write.offset);
        let len = length(&write);
        let size =
            self.shared.vdevs.load().asize(write.vdev, len, write.birth).unwrap_or(len).max(len);
        let end = write.offset.saturating_add(size);
        let mut state = self.shared.state.lock();
        while state.is_full(len, self.shared.max_bytes) {
            self.shared.wait(&mut state);
        }
        if !state.is_same(place, end) && state.overlaps(write.vdev, write.offset, end) {
            state.waits += 1;
            while state.overlaps(write.vdev, write.offset, end)
                || state.is_full(len, self.shared.max_bytes)
            {
                self.shared.wait(&mut state);
            }
        }
        state.put(place, end, write);
        if self.shared.is_worthwhile(&state) {
            self.shared.work.notify_one();
        }
    }

    /// Waits until everything handed in before was tried. Each write has the device room's deadline.
    /// One of the blocks that could not be written; those stay until [`WriteQueue::retry`].
    pub fn settle(&self) -> Option<(BlockWrite, VdevError)> {
        let mut state = self.shared.state.lock();
        state.waits += 1;
        while state.bytes > 0 || !state.queue.is_empty() || state.active > 0 {
            self.shared.wait(&mut state);
        }
        // One that another try cannot help tells more.
        let lasting = |error: &VdevError| !matches!(error, VdevError::NotWritten { .. });
        let first = state.failures.values().find(|(_, error)| lasting(error));
        first.or(state.failures.values().next()).cloned()
    }

    /// Hands in what could not be written once more.
    pub fn retry(&self) {
        let failed: Vec<BlockWrite> = {
            let state = self.shared.state.lock();
            state.failures.values().map(|(write, _)| write.clone()).collect()
        };
        failed.into_iter().for_each(|write| self.submit(write));
    }

    /// Hands in everything once more that was written and is not known to be durable.
    pub fn rewrite(&self) {
        let written = std::mem::take(&mut self.shared.state.lock().unflushed);
        written.into_values().for_each(|write| self.submit(write));
    }

    /// Everything written before is durable.
    pub fn flushed(&self) {
        self.shared.state.lock().unflushed.clear();
    }

    /// The bytes of a block that was handed in and is not written yet: what a reader must take
    /// instead of what the devices hold.
    pub fn pending(&self, vdev: u32, offset: u64) -> Option<Bytes> {
        let state = self.shared.state.lock();
        let pending = state.pending.get(&(vdev, offset)).map(|pending| &pending.newest().data);
        let failed = || state.failures.get(&(vdev, offset)).map(|(write, _)| &write.data);
        pending.or_else(failed).cloned()
    }

    /// How often somebody waited until everything was written, or until an overlapping write was.
    pub fn waits(&self) -> u64 {
        self.shared.state.lock().waits
    }

    /// Bytes under way.
    pub fn bytes(&self) -> u64 {
        self.shared.state.lock().bytes
    }
}

impl Drop for WriteQueue {
    fn drop(&mut self) {
        self.shared.state.lock().stopping = true;
        self.shared.work.notify_all();
        if self.shared.inline {
            let mut state = self.shared.state.lock();
            while !state.queue.is_empty() {
                self.shared.write_some(&mut state);
            }
        }
        for thread in self.threads.drain(..) {
            // A thread that failed has nothing left to say.
            let _ = thread.join();
        }
    }
}

impl QueueState {
    fn is_full(&self, more: u64, max: u64) -> bool {
        self.bytes > 0 && self.bytes.saturating_add(more) > max
    }

    fn overlaps(&self, vdev: u32, start: u64, end: u64) -> bool {
        // Those under way do not overlap each other: only the last to start before `end` can reach
        // over `start`.
        let last = self.pending.range((vdev, 0)..(vdev, end.max(start))).next_back();
        last.is_some_and(|(_, last)| last.end > start)
    }

    /// What is under way at this place is as long as this.
    fn is_same(&self, place: Place, end: u64) -> bool {
        self.pending.get(&place).is_some_and(|pending| pending.end == end)
    }

    /// Takes a block in; what is under way at its place, if anything, is as long.
    fn put(&mut self, place: Place, end: u64, write: BlockWrite) {
        let len = length(&write);
        self.failures.remove(&place);
        self.bytes += len;
        let Some(pending) = self.pending.get_mut(&place) else {
            self.queued += len;
            self.queue.push_back(place);
            self.pending.insert(place, Pending { end, write, active: false, newer: None });
            return;
        };
        let replaced = match pending.active {
            true => pending.newer.replace(write).map_or(0, |old| length(&old)),
            false => {
                let old = length(&std::mem::replace(&mut pending.write, write));
                self.queued = self.queued.saturating_sub(old).saturating_add(len);
                old
            }
        };
        self.bytes = self.bytes.saturating_sub(replaced);
    }

    /// A thread tried to write `write`: what is newer comes next.
    fn tried(&mut self, write: BlockWrite, answer: Result<(), VdevError>) {
        let place = (write.vdev, write.offset);
        self.bytes = self.bytes.saturating_sub(length(&write));
        let newer = self.pending.get_mut(&place).and_then(|pending| {
            pending.active = false;
            pending.write = pending.newer.take()?;
            Some(length(&pending.write))
        });
        match newer {
            Some(len) => {
                self.queued += len;
                self.queue.push_back(place);
            }
            None => drop(self.pending.remove(&place)),
        }
        match answer {
            Ok(()) => drop(self.unflushed.insert(place, write)),
            // Nothing refers to what was to be written over.
            Err(_) if newer.is_some() => {}
            Err(error) => drop(self.failures.insert(place, (write, error))),
        }
    }

    fn take(&mut self, most: u64) -> Vec<BlockWrite> {
        let mut batch = Vec::new();
        let mut bytes = 0;
        while let Some(place) = self.queue.front() {
            let Some(pending) = self.pending.get_mut(place) else {
                self.queue.pop_front();
                continue;
            };
            let len = length(&pending.write);
            if !batch.is_empty() && bytes + len > most {
                break;
            }
            bytes += len;
            self.queued = self.queued.saturating_sub(len);
            pending.active = true;
            batch.push(pending.write.clone());
            self.queue.pop_front();
        }
        batch.sort_by_key(|write| (write.vdev, write.offset));
        batch
    }
}

impl Shared {
    /// Reads come first now. Without threads everything follows from what was handed in.
    fn gives_way(&self) -> bool {
        !self.inline && self.vdevs.precedence().is_claimed()
    }

    /// A thread should take something now rather than wait for more to write with it.
    fn is_worthwhile(&self, state: &QueueState) -> bool {
        let is_much = || state.queued >= WORTHWHILE || state.waiters > 0 || state.stopping;
        !state.queue.is_empty() && (state.active == 0 || is_much() && !self.gives_way())
    }

    /// Waits until something was written.
    fn wait(&self, state: &mut parking_lot::MutexGuard<'_, QueueState>) {
        if self.inline && !state.queue.is_empty() {
            return self.write_some(state);
        }
        state.waiters += 1;
        self.work.notify_all();
        self.done.wait(state);
        state.waiters = state.waiters.saturating_sub(1);
    }

    fn run(&self) {
        let mut state = self.state.lock();
        loop {
            while !self.is_worthwhile(&state) {
                if state.stopping && state.queue.is_empty() {
                    // Others may have seen the queue when there was something in it.
                    self.work.notify_all();
                    return;
                }
                self.work.wait(&mut state);
            }
            self.write_some(&mut state);
        }
    }

    /// Writes a batch of what is queued.
    fn write_some(&self, state: &mut parking_lot::MutexGuard<'_, QueueState>) {
        let batch = state.take(if self.gives_way() { SMALL_BATCH } else { BATCH });
        state.active += 1;
        if self.is_worthwhile(state) {
            self.work.notify_one();
        }
        let write = || self.vdevs.current().write_batch(&batch);
        let answers = parking_lot::MutexGuard::unlocked(state, write);
        state.active = state.active.saturating_sub(1);
        for (write, answer) in batch.into_iter().zip(answers) {
            state.tried(write, answer);
        }
        self.done.notify_all();
        if self.is_worthwhile(state) {
            self.work.notify_one();
        }
    }
}
