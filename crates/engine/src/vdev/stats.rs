//! Counters of a vdev, for status and iostat.
//!
//! Invariant: counters only grow (until cleared); reading them takes no lock and waits for nothing.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Buckets of the latency histogram: bucket `n` counts waits below 2^n microseconds (the last one
/// also all longer ones).
pub const LATENCY_BUCKETS: usize = 26;

/// The live counters.
#[derive(Debug, Default)]
pub(super) struct Stats {
    reads: AtomicU64,
    bytes: AtomicU64,
    nanos: AtomicU64,
    read_errors: AtomicU64,
    checksum_errors: AtomicU64,
    latency: [AtomicU64; LATENCY_BUCKETS],
}

/// What the counters were at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct VdevStats {
    /// Reads answered.
    pub reads: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Sum of the time reads waited, in nanoseconds.
    pub nanos: u64,
    /// Reads that failed.
    pub read_errors: u64,
    /// Reads that gave wrong bytes.
    pub checksum_errors: u64,
    /// Waits by duration, see [`LATENCY_BUCKETS`].
    pub latency: [u64; LATENCY_BUCKETS],
}

impl Stats {
    /// Counts `reads` reads of `bytes` bytes that waited `wait` each.
    pub(super) fn add_reads(&self, reads: u64, bytes: u64, wait: Duration) {
        self.reads.fetch_add(reads, Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
        let nanos = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
        self.nanos.fetch_add(nanos.saturating_mul(reads), Relaxed);
        let bucket = (64 - (nanos / 1000).leading_zeros()) as usize;
        if let Some(counter) = self.latency.get(bucket.min(LATENCY_BUCKETS - 1)) {
            counter.fetch_add(reads, Relaxed);
        }
    }

    pub(super) fn add_read_error(&self) {
        self.read_errors.fetch_add(1, Relaxed);
    }

    pub(super) fn add_checksum_error(&self) {
        self.checksum_errors.fetch_add(1, Relaxed);
    }

    /// Sets the error counters to 0 (`zpool clear`).
    pub(super) fn clear_errors(&self) {
        self.read_errors.store(0, Relaxed);
        self.checksum_errors.store(0, Relaxed);
    }

    pub(super) fn snapshot(&self) -> VdevStats {
        VdevStats {
            reads: self.reads.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            nanos: self.nanos.load(Relaxed),
            read_errors: self.read_errors.load(Relaxed),
            checksum_errors: self.checksum_errors.load(Relaxed),
            latency: std::array::from_fn(|index| {
                self.latency.get(index).map_or(0, |counter| counter.load(Relaxed))
            }),
        }
    }
}

impl VdevStats {
    /// Adds a child's traffic; errors stay with the vdev they happened on.
    pub(super) fn add_traffic(&mut self, child: &Self) {
        self.reads += child.reads;
        self.bytes += child.bytes;
        self.nanos = self.nanos.saturating_add(child.nanos);
        for (own, other) in self.latency.iter_mut().zip(child.latency) {
            *own += other;
        }
    }
}
