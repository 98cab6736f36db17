//! Who comes first at the devices: small reads, which somebody waits for, before what groups write.
//!
//! What is on a device's queue cannot be taken back, and a group that is written fills it with as much as may be under
//! way. So while reads come, the write queue hands on little at a time ([`super::write_queue`]). Invariant: this
//! decides when something is written, never whether, nor in which order blocks of one place are.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// How long after a read another one is expected.
const SOON: Duration = Duration::from_millis(20);
/// Reads of more than so many bytes are ahead of who wants them, or of somebody who streams.
const SMALL: u64 = 256 << 10;

/// When somebody last waited for a small read.
#[derive(Debug)]
pub struct Precedence {
    began: Instant,
    /// In microseconds after `began`, and one; zero for never.
    last: AtomicU64,
}

impl Default for Precedence {
    fn default() -> Self {
        Self { began: Instant::now(), last: AtomicU64::new(0) }
    }
}

impl Precedence {
    /// Blocks of so many bytes are read now.
    pub fn note(&self, bytes: u64) {
        if (1..=SMALL).contains(&bytes) {
            self.last.store(self.now(), Relaxed);
        }
    }

    /// Whether reads are to be expected at the devices.
    pub fn is_claimed(&self) -> bool {
        let last = self.last.load(Relaxed);
        last > 0 && self.now().saturating_sub(last) < SOON.as_micros() as u64
    }

    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX).saturating_add(1)
    }
}
