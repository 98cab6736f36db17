//! Access times: noted when files are read, stored when something is written anyway.
//!
//! Invariant: whoever reads waits for nobody because of a time; so few files are only noted that
//! they may stay in memory; what is noted and not stored is shown as if it were.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cenote_engine::txg::{Purpose, Reservation};
use cenote_format::ObjectId;
use parking_lot::Mutex;

use super::nodes::Node;
use super::{AccessTimes, FilesystemWriter, SMALL_CHANGE, SYNC_PATIENCE};
use crate::attributes::Facts;
use crate::error::{EINTR, EIO, RETRY};
use crate::tree::Timestamp;

/// Seconds after which a relative access time is renewed.
const DAY: i64 = 24 * 60 * 60;
/// Files noted after which their times are stored.
const STORED_FROM: usize = 512;
/// Files noted at most, while nothing can be stored.
const NOTED_MOST: usize = 16 * STORED_FROM;
/// Groups that are waited for to store the times of all files.
const MOST_WAITS: u32 = 4;

/// The files whose times are only noted.
#[derive(Default)]
pub(super) struct Noted(Mutex<NotedFiles>);

#[derive(Default)]
struct NotedFiles {
    /// Some of them may be stored by now.
    nodes: Vec<Arc<Node>>,
    /// When the first was noted.
    since: Option<Instant>,
}

impl Noted {
    /// Whether no more are to be noted.
    fn is_full(&self) -> bool {
        self.0.lock().nodes.len() >= NOTED_MOST
    }

    /// Adds a file; whether it is time to store some.
    fn add(&self, node: Arc<Node>) -> bool {
        let mut noted = self.0.lock();
        noted.since.get_or_insert_with(Instant::now);
        noted.nodes.push(node);
        noted.nodes.len().is_multiple_of(STORED_FROM)
    }

    /// Takes all of them, if the first was noted so long ago.
    fn take(&self, age: Duration) -> Vec<Arc<Node>> {
        let mut noted = self.0.lock();
        match noted.since.is_some_and(|since| since.elapsed() >= age) {
            true => std::mem::take(&mut *noted).nodes,
            false => Vec::new(),
        }
    }
}

impl FilesystemWriter {
    /// Notes that a file was read, as the property says. The caller must hold no lock.
    pub fn note_access(&self, id: ObjectId) {
        let forced = *self.access_times.read();
        let mode = forced.unwrap_or_else(|| self.properties().access_times);
        if mode == AccessTimes::Never {
            return;
        }
        let Ok(node) = self.node(id) else { return };
        let time = Timestamp::now();
        if mode == AccessTimes::Relative {
            let Ok(state) = node.read() else { return };
            let facts = &state.file.facts;
            let accessed = node.accessed.get().unwrap_or(facts.accessed);
            let is_recent = time.seconds.saturating_sub(accessed.seconds) < DAY;
            if accessed > facts.modified && accessed > facts.changed && is_recent {
                return;
            }
        }
        // What cannot be stored is noted of some files only.
        if node.accessed.get().is_none() && self.noted.is_full() {
            return;
        }
        if node.accessed.note(time) && self.noted.add(node) {
            self.store_old_access_times(Duration::ZERO);
        }
    }

    /// Stores what was noted, unless writing is suspended: before the files are closed.
    pub fn store_access_times(&self) {
        let mut waits = 0;
        for node in self.noted.take(Duration::ZERO) {
            while !self.store_noted(&node, true) {
                waits += 1;
                let open = self.gate.figures().open;
                let wait = || self.gate.wait_synced_unless_suspended(open, SYNC_PATIENCE);
                if waits > MOST_WAITS || wait().is_err() {
                    self.note_again(node);
                    break;
                }
            }
        }
    }

    /// Stores what was noted when the first was noted so long ago. Waits for nobody: what would have to
    /// stays noted.
    pub fn store_old_access_times(&self, age: Duration) {
        for node in self.noted.take(age) {
            if !self.store_noted(&node, false) {
                self.note_again(node);
            }
        }
    }

    /// Stores what was noted of one file, if it can be now.
    pub fn store_access_time_of(&self, id: ObjectId) {
        if let Some(node) = self.nodes.known(id).filter(|node| node.accessed.get().is_some()) {
            self.store_noted(&node, true);
        }
    }

    fn note_again(&self, node: Arc<Node>) {
        if node.accessed.get().is_some() {
            self.noted.add(node);
        }
    }

    /// Stores what is noted of a file. False if it has to be tried again: there is no room in the open
    /// group or (unless `patient`) somebody uses the file.
    fn store_noted(&self, node: &Node, patient: bool) -> bool {
        let Some(_reservation) = self.admit_at_once() else { return false };
        let state = if patient { Some(node.write()) } else { node.try_write() };
        let mut state = match state {
            None => return false,
            // The file is gone.
            Some(Err(_)) => return true,
            Some(Ok(state)) => state,
        };
        let Some(accessed) = node.accessed.take() else { return true };
        let facts = Facts { accessed, ..state.file.facts };
        let stored = self.begin().and_then(|tx| self.store(&tx, &mut state.file, &facts, &[]));
        match stored {
            Ok(()) => true,
            Err(error) if matches!(error.code, RETRY | EINTR | EIO) => {
                node.accessed.note(accessed);
                false
            }
            Err(error) => {
                tracing::debug!("access time of object {}: {error}", node.id());
                true
            }
        }
    }

    /// Space for a small change, if it can be had without waiting for anything.
    fn admit_at_once(&self) -> Option<Reservation> {
        if !self.gate.has_room() {
            return None;
        }
        match &self.space {
            Some(space) => space.reserve_at_once(1, SMALL_CHANGE, Purpose::Spare),
            None => Some(Reservation::none()),
        }
    }
}
