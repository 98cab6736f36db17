//! What a scan has still to visit, and how orders about datasets change that.
//!
//! Chapter 08, sections 2, 3 and 6. Invariant: every block born in the scan's range that some dataset
//! held when the scan began, and still holds, is below the bookmark or below a dataset that waits.

use std::collections::BTreeMap;

use cenote_format::bptree::BlockBookmark;
use cenote_format::dsl_dataset::DslDataset;
use cenote_format::scan_state::{FLAG_SCRUB_PAUSED, FLAG_VISIT_AGAIN, ScanPhase, ScanState};
use cenote_format::{ObjectId, Txg};

use crate::Result;

/// Number of an object set in the bookmark when nothing is left.
const NOTHING: u64 = u64::MAX;

/// Something happened to a dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::pool) enum DatasetEvent {
    /// A snapshot of a head was taken.
    Snapshot {
        /// The head.
        head: ObjectId,
        /// The snapshot.
        snapshot: ObjectId,
    },
    /// A snapshot went.
    SnapshotDestroyed {
        /// The snapshot.
        snapshot: ObjectId,
        /// The snapshot or head after it, which keeps what it still shares.
        next: ObjectId,
    },
    /// A head went.
    HeadDestroyed(ObjectId),
    /// Two heads exchanged their content.
    Swapped(ObjectId, ObjectId),
}

/// What one dataset leads to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Successors {
    /// Its birth: what is older was visited with it.
    pub(super) birth: Txg,
    /// The snapshot or head after it, and the first of each clone.
    pub(super) next: Vec<ObjectId>,
}

/// A scan under way.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) record: ScanState,
    /// Datasets that wait, and up to which group their blocks were visited elsewhere (0: up to their
    /// previous snapshot).
    queue: BTreeMap<u64, Txg>,
    /// What happened to datasets since the group of the view that the visitor uses.
    recent: Vec<(Txg, DatasetEvent)>,
    /// The bookmark is in something that was taken from the queue. What is not begun is not recorded.
    begun: bool,
    /// Changes whenever what is being visited is not to be gone on with.
    pub(super) serial: u64,
}

/// What becomes of a dataset that is taken from the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Taken {
    /// Its blocks are to be visited.
    Visit,
    /// It has no block in the range, what comes after it may.
    Empty,
    /// Neither has what comes after it.
    Done,
}

impl Run {
    /// The run that a record and its queue tell.
    pub(super) fn new(record: ScanState, queue: BTreeMap<u64, Txg>) -> Self {
        let mut run = Self { record, queue, recent: Vec::new(), begun: true, serial: 0 };
        if run.is_through() {
            // OpenZFS records so, too, that what it was in was destroyed: others may wait.
            run.next();
        }
        run
    }

    /// It works, or would if it did not pause.
    pub(super) fn is_active(&self) -> bool {
        self.record.phase == ScanPhase::Scanning
    }

    pub(super) fn is_paused(&self) -> bool {
        self.record.flags & FLAG_SCRUB_PAUSED != 0
    }

    pub(super) fn pause(&mut self, paused: bool) {
        match paused {
            true => self.record.flags |= FLAG_SCRUB_PAUSED,
            false => self.record.flags &= !FLAG_SCRUB_PAUSED,
        }
    }

    /// Everything was visited.
    pub(super) fn is_through(&self) -> bool {
        self.record.bookmark.objset == NOTHING
    }

    /// Datasets that wait.
    pub(super) fn queue(&self) -> &BTreeMap<u64, Txg> {
        &self.queue
    }

    /// What happened to datasets in groups until `txg` shows in the view that is used now.
    pub(super) fn seen(&mut self, txg: Txg) {
        self.recent.retain(|(when, _)| *when > txg);
    }

    /// The view that is used now may not know what was queued.
    pub(super) fn is_ahead(&self) -> bool {
        !self.recent.is_empty()
    }

    /// Group `txg` does this to a dataset.
    pub(super) fn happened(&mut self, txg: Txg, event: DatasetEvent) {
        if !self.is_active() {
            return;
        }
        self.recent.push((txg, event));
        let begun = self.record.bookmark.objset;
        let is_at = |dataset: ObjectId| self.begun && begun == dataset.0;
        match event {
            DatasetEvent::Snapshot { head, snapshot } => {
                if is_at(head) {
                    self.record.bookmark.objset = snapshot.0;
                } else if let Some(until) = self.queue.remove(&head.0) {
                    self.queue.insert(snapshot.0, until);
                }
            }
            DatasetEvent::SnapshotDestroyed { snapshot, next } => {
                if is_at(snapshot) {
                    self.record.bookmark.objset = next.0;
                    self.record.flags |= FLAG_VISIT_AGAIN;
                } else if let Some(until) = self.queue.remove(&snapshot.0) {
                    self.queue.entry(next.0).or_insert(until);
                }
            }
            DatasetEvent::HeadDestroyed(head) => {
                if is_at(head) {
                    self.next();
                } else {
                    self.queue.remove(&head.0);
                }
            }
            DatasetEvent::Swapped(one, other) => {
                if is_at(one) {
                    self.record.bookmark.objset = other.0;
                } else if is_at(other) {
                    self.record.bookmark.objset = one.0;
                }
                let (first, second) = (self.queue.remove(&one.0), self.queue.remove(&other.0));
                self.queue.extend(first.map(|until| (other.0, until)));
                self.queue.extend(second.map(|until| (one.0, until)));
            }
        }
        if !self.begun {
            self.next();
        }
    }

    /// `dataset` waits. What happened meanwhile may have put another in its place.
    fn enqueue(&mut self, dataset: ObjectId, until: Txg) {
        let mut dataset = dataset;
        for (_, event) in &self.recent {
            match *event {
                DatasetEvent::Snapshot { head, snapshot } if head == dataset => dataset = snapshot,
                DatasetEvent::SnapshotDestroyed { snapshot, next } if snapshot == dataset => {
                    dataset = next;
                }
                DatasetEvent::HeadDestroyed(head) if head == dataset => return,
                DatasetEvent::Swapped(one, other) if one == dataset => dataset = other,
                DatasetEvent::Swapped(one, other) if other == dataset => dataset = one,
                _ => {}
            }
        }
        // What was visited less is what counts.
        let known = self.queue.entry(dataset.0).or_insert(until);
        *known = until.min(*known);
    }

    /// The meta object set is done: the datasets are next, beginning with the origin of all.
    pub(super) fn mos_is_done(&mut self, origin: Option<ObjectId>) {
        if let Some(origin) = origin {
            self.enqueue(origin, Txg(0));
        }
        self.next();
    }

    /// The dataset being visited is done.
    pub(super) fn dataset_is_done(&mut self, after: Successors) {
        if self.record.flags & FLAG_VISIT_AGAIN != 0 {
            self.record.flags &= !FLAG_VISIT_AGAIN;
            let again = ObjectId(self.record.bookmark.objset);
            self.queue.insert(again.0, self.record.current_max_txg);
        } else {
            after.next.into_iter().for_each(|next| self.enqueue(next, after.birth));
        }
        self.next();
    }

    /// The one with the lowest number is next; it is not begun.
    fn next(&mut self) {
        self.serial += 1;
        let objset = self.queue.first_key_value().map_or(NOTHING, |(dataset, _)| *dataset);
        self.begun = objset == NOTHING;
        self.record.bookmark = BlockBookmark { objset, object: 0, level: 0, block: 0 };
    }

    /// The dataset that is to be begun.
    pub(super) fn to_be_begun(&self) -> Option<ObjectId> {
        (!self.begun).then_some(ObjectId(self.record.bookmark.objset))
    }

    /// Takes the dataset that is to be begun from the queue.
    fn begin(&mut self, phys: &DslDataset) -> Taken {
        let until = self.queue.remove(&self.record.bookmark.objset).unwrap_or(Txg(0));
        self.begun = true;
        let before = if until.0 == 0 { phys.previous_snapshot_txg } else { until };
        let record = &mut self.record;
        record.current_min_txg = record.min_txg.max(before);
        record.current_max_txg = match phys.is_snapshot() {
            true => record.max_txg.min(phys.creation_txg),
            false => record.max_txg,
        };
        match () {
            () if record.current_min_txg >= record.max_txg => Taken::Done,
            () if record.current_min_txg >= record.current_max_txg => Taken::Empty,
            () => Taken::Visit,
        }
    }

    /// Takes the dataset that is to be begun; true if its blocks are to be visited. If it has none in the
    /// range, what comes `after` it waits.
    pub(super) fn take_up(
        &mut self,
        phys: &DslDataset,
        after: impl FnOnce() -> Result<Successors>,
    ) -> Result<bool> {
        match self.begin(phys) {
            Taken::Visit => return Ok(true),
            Taken::Done => self.leave_out(),
            Taken::Empty => self.dataset_is_done(after()?),
        }
        Ok(false)
    }

    /// What is next, or is being visited, and all after it, has nothing in the range, or is not there
    /// any more.
    pub(super) fn leave_out(&mut self) {
        if !self.begun {
            self.queue.remove(&self.record.bookmark.objset);
        }
        self.next();
    }

    /// Blocks up to `next` of what is being visited are done.
    pub(super) fn advance(&mut self, next: BlockBookmark) {
        self.record.bookmark = BlockBookmark { objset: self.record.bookmark.objset, ..next };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_format::scan_state::ScanFunction;

    fn run() -> Run {
        let words: Vec<u64> = vec![0; 24];
        let record = ScanState {
            function: ScanFunction::Scrub,
            phase: ScanPhase::Scanning,
            max_txg: Txg(100),
            ..ScanState::from_words(&words).unwrap()
        };
        Run::new(record, BTreeMap::new())
    }

    fn snapshot(previous: u64, creation: u64) -> DslDataset {
        DslDataset {
            previous_snapshot_txg: Txg(previous),
            creation_txg: Txg(creation),
            children: 1,
            ..DslDataset::default()
        }
    }

    fn at(run: &Run) -> u64 {
        run.record.bookmark.objset
    }

    fn after(birth: u64, next: &[u64]) -> Successors {
        let next = next.iter().copied().map(ObjectId).collect();
        Successors { birth: Txg(birth), next }
    }

    #[test]
    fn datasets_are_visited_after_what_they_share() {
        let mut run = run();
        run.mos_is_done(Some(ObjectId(20)));
        assert_eq!(run.to_be_begun(), Some(ObjectId(20)));
        assert_eq!(run.begin(&snapshot(0, 1)), Taken::Visit);
        assert!(run.to_be_begun().is_none() && at(&run) == 20);
        run.dataset_is_done(after(1, &[30, 50]));
        assert_eq!((at(&run), run.queue().len()), (30, 2));
        assert_eq!(run.begin(&snapshot(1, 60)), Taken::Visit);
        assert_eq!((run.record.current_min_txg, run.record.current_max_txg), (Txg(1), Txg(60)));
        run.dataset_is_done(after(60, &[31]));
        assert_eq!(at(&run), 31);
        run.happened(
            Txg(101),
            DatasetEvent::Snapshot { head: ObjectId(31), snapshot: ObjectId(70) },
        );
        assert_eq!(run.queue().keys().copied().collect::<Vec<_>>(), [50, 70]);
        assert_eq!(at(&run), 50);
        assert_eq!(run.begin(&snapshot(1, 101)), Taken::Visit);
        run.dataset_is_done(after(101, &[]));
        assert_eq!(at(&run), 70);
        run.begin(&snapshot(60, 101));
        // What is younger than the scan holds nothing that is not visited elsewhere.
        run.dataset_is_done(after(101, &[31]));
        assert_eq!(run.begin(&snapshot(101, 0)), Taken::Done);
        run.leave_out();
        assert!(run.is_through());
    }

    #[test]
    fn a_snapshot_that_goes_hands_on_what_was_not_visited() {
        let mut run = run();
        run.mos_is_done(Some(ObjectId(20)));
        run.begin(&snapshot(0, 50));
        run.advance(BlockBookmark { objset: 20, object: 7, level: 0, block: 3 });
        let gone = DatasetEvent::SnapshotDestroyed { snapshot: ObjectId(20), next: ObjectId(30) };
        run.happened(Txg(101), gone);
        // Goes on in the next one where it was, then visits what is newer there.
        assert_eq!((at(&run), run.record.bookmark.object), (30, 7));
        run.dataset_is_done(after(60, &[31]));
        assert_eq!(run.queue().get(&30), Some(&Txg(50)));
        // What the view does not know yet is followed.
        let taken = DatasetEvent::Snapshot { head: ObjectId(31), snapshot: ObjectId(40) };
        run.happened(Txg(102), taken);
        run.begin(&snapshot(0, 60));
        run.dataset_is_done(after(60, &[31]));
        assert_eq!(run.queue().keys().copied().collect::<Vec<_>>(), [40]);
        assert!(run.is_ahead());
        run.seen(Txg(102));
        assert!(!run.is_ahead());
    }

    #[test]
    fn heads_that_go_are_not_visited() {
        let mut run = run();
        run.mos_is_done(Some(ObjectId(20)));
        run.begin(&snapshot(0, 1));
        run.dataset_is_done(after(1, &[30, 31]));
        run.happened(Txg(101), DatasetEvent::HeadDestroyed(ObjectId(31)));
        assert_eq!((at(&run), run.queue().len()), (30, 1));
        run.begin(&snapshot(1, 0));
        let serial = run.serial;
        run.happened(Txg(101), DatasetEvent::HeadDestroyed(ObjectId(30)));
        assert!(run.serial != serial && run.is_through());
    }
}
