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
    writes: AtomicU64,
    bytes_written: AtomicU64,
    write_nanos: AtomicU64,
    write_errors: AtomicU64,
    write_latency: [AtomicU64; LATENCY_BUCKETS],
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
    /// Waits of reads by duration, see [`LATENCY_BUCKETS`].
    pub latency: [u64; LATENCY_BUCKETS],
    /// Writes carried out.
    pub writes: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Sum of the time writes waited, in nanoseconds.
    pub write_nanos: u64,
    /// Writes and flushes that failed.
    pub write_errors: u64,
    /// Waits of writes by duration.
    pub write_latency: [u64; LATENCY_BUCKETS],
}

/// Counts `count` waits of `wait` in a histogram, and their sum.
fn add_waits(histogram: &[AtomicU64], sum: &AtomicU64, count: u64, wait: Duration) {
    let nanos = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
    sum.fetch_add(nanos.saturating_mul(count), Relaxed);
    let bucket = (64 - (nanos / 1000).leading_zeros()) as usize;
    if let Some(counter) = histogram.get(bucket.min(LATENCY_BUCKETS - 1)) {
        counter.fetch_add(count, Relaxed);
    }
}

/// A histogram at one moment.
fn copy(histogram: &[AtomicU64; LATENCY_BUCKETS]) -> [u64; LATENCY_BUCKETS] {
    histogram.each_ref().map(|counter| counter.load(Relaxed))
}

impl Stats {
    /// Counts `reads` reads of `bytes` bytes that waited `wait` each.
    pub(super) fn add_reads(&self, reads: u64, bytes: u64, wait: Duration) {
        self.reads.fetch_add(reads, Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
        add_waits(&self.latency, &self.nanos, reads, wait);
    }

    /// Counts `writes` writes of `bytes` bytes that waited `wait` each.
    pub(super) fn add_writes(&self, writes: u64, bytes: u64, wait: Duration) {
        self.writes.fetch_add(writes, Relaxed);
        self.bytes_written.fetch_add(bytes, Relaxed);
        add_waits(&self.write_latency, &self.write_nanos, writes, wait);
    }

    pub(super) fn add_write_error(&self) {
        self.write_errors.fetch_add(1, Relaxed);
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
        self.write_errors.store(0, Relaxed);
    }

    pub(super) fn snapshot(&self) -> VdevStats {
        VdevStats {
            reads: self.reads.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            nanos: self.nanos.load(Relaxed),
            read_errors: self.read_errors.load(Relaxed),
            checksum_errors: self.checksum_errors.load(Relaxed),
            latency: copy(&self.latency),
            writes: self.writes.load(Relaxed),
            bytes_written: self.bytes_written.load(Relaxed),
            write_nanos: self.write_nanos.load(Relaxed),
            write_errors: self.write_errors.load(Relaxed),
            write_latency: copy(&self.write_latency),
        }
    }
}

impl VdevStats {
    /// Adds a child's traffic; errors stay with the vdev they happened on.
    pub(super) fn add_traffic(&mut self, child: &Self) {
        self.reads += child.reads;
        self.bytes += child.bytes;
        self.nanos = self.nanos.saturating_add(child.nanos);
        self.writes += child.writes;
        self.bytes_written += child.bytes_written;
        self.write_nanos = self.write_nanos.saturating_add(child.write_nanos);
        let histograms = self.latency.iter_mut().chain(&mut self.write_latency);
        for (own, other) in histograms.zip(child.latency.iter().chain(&child.write_latency)) {
            *own += other;
        }
    }
}
