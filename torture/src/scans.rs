//! Steps that are scrubs and resilvers.
//!
//! Invariant: after a scan that was begun and ended in one step, without errors and with all leaves well,
//! every copy of every block is right, and is asked for from then on.

use cenote_device::SimDevice;
use cenote_engine::pool::group::{ScanKind, ScanOrder};
use cenote_format::scan_state::{ScanFunction, ScanPhase, ScanState};

use crate::plan::Trouble;
use crate::run::{Runner, Verdict, leaf_at};

impl Runner {
    /// Gives an order about the scan, and writes at most so many groups while it works.
    pub(crate) fn scan(&mut self, what: u8, groups: u8) -> Verdict {
        let order = match what % 8 {
            0..=3 => ScanOrder::Begin(ScanKind::Scrub),
            4..=5 => ScanOrder::Begin(ScanKind::Resilver),
            6 => ScanOrder::Pause,
            _ => ScanOrder::Stop,
        };
        let mark = self.model.mark();
        let before = self.live.is_scanning();
        let earlier = self.live.scan_progress().record;
        match self.live.scan(order) {
            Ok(()) => {
                self.model.acknowledge(&mark);
                self.note_missed();
            }
            Err(error) => return self.declined(&error),
        }
        for _ in 0..groups {
            if self.live.is_scanning().is_none() {
                break;
            }
            self.group()?;
        }
        let record = self.live.scan_progress().record;
        // A resilver of nothing is none.
        let is_own = before.is_none() && record != earlier;
        let Some(record) = record.filter(|_| is_own) else { return Ok(()) };
        if !is_whole(&record) || !self.troubles.is_empty() || !matches!(order, ScanOrder::Begin(_))
        {
            return Ok(());
        }
        // A leaf that an import did without is away, whatever its device does since.
        let is_complete = self.live.vdevs().missed().is_empty();
        if is_complete {
            self.missed.clear();
        }
        let is_scrub = record.function == ScanFunction::Scrub && record.min_txg.0 == 0;
        if is_scrub && is_complete && self.missed.is_empty() && !self.rotten_labels {
            self.rotten = false;
            self.clean_since = SimDevice::newest_order();
        }
        Ok(())
    }

    /// Leaves got what they had missed, if a scan has ended without errors since this was last asked.
    pub(crate) fn follow_scan(&mut self) {
        let record = self.live.scan_progress().record;
        let Some(record) = record.filter(is_whole) else { return };
        if self.followed.replace(record) == Some(record) {
            return;
        }
        let Some(root) = self.live.vdevs().status() else { return };
        let missing = self.live.vdevs().missed();
        let is_missing = |path: &String| {
            let leaf = leaf_at(&root, path);
            leaf.is_some_and(|leaf| missing.iter().any(|(guid, _)| *guid == leaf.config.guid))
        };
        // A leaf that only says it writes is believed.
        let misses_on = |path: &String| {
            let trouble = self.troubles.get(path);
            trouble.is_some_and(|now| !matches!(now, Trouble::Reads | Trouble::Loses))
        };
        self.missed.retain(|path| misses_on(path) || is_missing(path));
    }
}

/// It has come to its end, and found nothing that is lost.
fn is_whole(record: &ScanState) -> bool {
    record.phase == ScanPhase::Finished && record.errors == 0
}
