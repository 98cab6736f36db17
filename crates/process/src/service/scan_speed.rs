//! How fast the scan of the pool goes, lately.
//!
//! Invariant: who looks takes no lock; a scan that pauses, or another one, begins anew.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use cenote_engine::job::Speed;
use cenote_engine::pool::group::ScanProgress;
use cenote_format::scan_state::ScanPhase;
use parking_lot::Mutex;

/// It is not measured more often than this, however many groups are written.
const OFTEN: Duration = Duration::from_millis(500);
/// No rate is known.
const UNKNOWN: u64 = u64::MAX;

/// The speed of one scan after another.
pub struct ScanSpeed {
    begun: Instant,
    /// Only who measures takes it.
    measured: Mutex<Measured>,
    rate: AtomicU64,
}

#[derive(Default)]
struct Measured {
    /// When the pass began.
    pass: u64,
    speed: Speed,
    /// When it was measured last.
    last: Duration,
}

impl Default for ScanSpeed {
    fn default() -> Self {
        let (begun, measured) = (Instant::now(), Mutex::default());
        Self { begun, measured, rate: AtomicU64::new(UNKNOWN) }
    }
}

impl ScanSpeed {
    /// Takes note of how far the scan is. Now and then, by one thread.
    pub fn measure(&self, progress: Option<&ScanProgress>) {
        let scanning = progress.and_then(|progress| {
            let record = progress.record.filter(|record| record.phase == ScanPhase::Scanning)?;
            (progress.paused == 0).then_some((progress, record))
        });
        let mut measured = self.measured.lock();
        let Some((progress, record)) = scanning else {
            *measured = Measured::default();
            self.rate.store(UNKNOWN, Relaxed);
            return;
        };
        let now = self.begun.elapsed();
        if measured.pass != progress.pass_start {
            *measured = Measured { pass: progress.pass_start, ..Measured::default() };
        } else if now.saturating_sub(measured.last) < OFTEN {
            return;
        }
        measured.last = now;
        let total = record.to_examine.saturating_sub(record.skipped);
        let left = total.saturating_sub(progress.issued);
        let pace = measured.speed.measure(now, progress.pass_issued, left);
        self.rate.store(pace.known_rate().unwrap_or(UNKNOWN), Relaxed);
    }

    /// Bytes per second, lately.
    pub fn rate(&self) -> Option<u64> {
        Some(self.rate.load(Relaxed)).filter(|rate| *rate != UNKNOWN)
    }
}
