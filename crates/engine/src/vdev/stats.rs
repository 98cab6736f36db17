//! Counters of a vdev, for status and iostat.
//!
//! Invariant: counters only grow (until cleared); reading them takes no lock and waits for nothing.

use cenote_device::DeviceError;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Buckets of the latency histogram: bucket `n` counts what took from 2^n nanoseconds up to twice that
/// (the first one also 0, the last one also all longer ones).
pub const LATENCY_BUCKETS: usize = 37;
/// Buckets of the histogram of sizes: bucket `n` counts operations of 2^n bytes up to twice that.
pub const SIZE_BUCKETS: usize = 25;

type Histogram<const N: usize> = [AtomicU64; N];

/// The live counters.
#[derive(Debug)]
pub(super) struct Stats {
    reads: AtomicU64,
    bytes: AtomicU64,
    nanos: AtomicU64,
    read_errors: AtomicU64,
    checksum_errors: AtomicU64,
    slow: AtomicU64,
    latency: Histogram<LATENCY_BUCKETS>,
    sizes: Histogram<SIZE_BUCKETS>,
    reading: AtomicU64,
    writes: AtomicU64,
    bytes_written: AtomicU64,
    write_nanos: AtomicU64,
    write_errors: AtomicU64,
    healed: AtomicU64,
    write_latency: Histogram<LATENCY_BUCKETS>,
    write_sizes: Histogram<SIZE_BUCKETS>,
    writing: AtomicU64,
}

impl Default for Stats {
    fn default() -> Self {
        let zero = AtomicU64::default;
        Self {
            reads: zero(),
            bytes: zero(),
            nanos: zero(),
            read_errors: zero(),
            checksum_errors: zero(),
            slow: zero(),
            latency: [const { AtomicU64::new(0) }; LATENCY_BUCKETS],
            sizes: [const { AtomicU64::new(0) }; SIZE_BUCKETS],
            reading: zero(),
            writes: zero(),
            bytes_written: zero(),
            write_nanos: zero(),
            write_errors: zero(),
            healed: zero(),
            write_latency: [const { AtomicU64::new(0) }; LATENCY_BUCKETS],
            write_sizes: [const { AtomicU64::new(0) }; SIZE_BUCKETS],
            writing: zero(),
        }
    }
}

/// What the counters were at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VdevStats {
    /// Reads answered.
    pub reads: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Sum of the time the device took for them, in nanoseconds.
    pub nanos: u64,
    /// Reads that failed.
    pub read_errors: u64,
    /// Reads that gave wrong bytes.
    pub checksum_errors: u64,
    /// Reads, writes and flushes that nobody waited for any longer, or that took half a minute.
    pub slow: u64,
    /// Reads by the time they took, see [`LATENCY_BUCKETS`].
    pub latency: [u64; LATENCY_BUCKETS],
    /// Reads by size, see [`SIZE_BUCKETS`].
    pub sizes: [u64; SIZE_BUCKETS],
    /// Reads sent and not answered.
    pub reading: u64,
    /// Writes carried out.
    pub writes: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Sum of the time the device took for them, in nanoseconds.
    pub write_nanos: u64,
    /// Writes and flushes that failed.
    pub write_errors: u64,
    /// Bytes that were wrong or unreadable and were written again.
    pub healed: u64,
    /// Writes by the time they took.
    pub write_latency: [u64; LATENCY_BUCKETS],
    /// Writes by size.
    pub write_sizes: [u64; SIZE_BUCKETS],
    /// Writes sent and not answered.
    pub writing: u64,
}

/// Index of the highest bit of `value`, at most the last of `buckets`; 0 of 0.
fn bucket(value: u64, buckets: usize) -> usize {
    (value.checked_ilog2().unwrap_or(0) as usize).min(buckets.saturating_sub(1))
}

/// Counts how long an operation took in a histogram, and in the sum.
fn add_time(histogram: &[AtomicU64], sum: &AtomicU64, took: Duration) {
    let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
    sum.fetch_add(nanos, Relaxed);
    if let Some(counter) = histogram.get(bucket(nanos, histogram.len())) {
        counter.fetch_add(1, Relaxed);
    }
}

/// A histogram at one moment.
fn copy<const N: usize>(histogram: &Histogram<N>) -> [u64; N] {
    histogram.each_ref().map(|counter| counter.load(Relaxed))
}

impl Stats {
    /// Counts a read of `bytes` bytes that took so long.
    pub(super) fn add_read(&self, bytes: u64, took: Duration) {
        self.reads.fetch_add(1, Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
        add_time(&self.latency, &self.nanos, took);
    }

    /// Counts a write of `bytes` bytes that took so long.
    pub(super) fn add_write(&self, bytes: u64, took: Duration) {
        self.writes.fetch_add(1, Relaxed);
        self.bytes_written.fetch_add(bytes, Relaxed);
        add_time(&self.write_latency, &self.write_nanos, took);
    }

    /// A read of `len` bytes goes to the device; [`Stats::read_answered`] follows.
    pub(super) fn read_sent(&self, len: u64) {
        self.reading.fetch_add(1, Relaxed);
        if let Some(counter) = self.sizes.get(bucket(len, SIZE_BUCKETS)) {
            counter.fetch_add(1, Relaxed);
        }
    }

    /// A read that was sent came back.
    pub(super) fn read_answered(&self) {
        self.reading.fetch_sub(1, Relaxed);
    }

    /// A write of `len` bytes goes to the device; [`Stats::write_answered`] follows.
    pub(super) fn write_sent(&self, len: u64) {
        self.writing.fetch_add(1, Relaxed);
        if let Some(counter) = self.write_sizes.get(bucket(len, SIZE_BUCKETS)) {
            counter.fetch_add(1, Relaxed);
        }
    }

    /// A write that was sent came back.
    pub(super) fn write_answered(&self) {
        self.writing.fetch_sub(1, Relaxed);
    }

    pub(super) fn add_write_error(&self, error: &DeviceError) {
        self.write_errors.fetch_add(1, Relaxed);
        self.add_silence(error);
    }

    pub(super) fn add_healed(&self, bytes: u64) {
        self.healed.fetch_add(bytes, Relaxed);
    }

    pub(super) fn add_read_error(&self, error: &DeviceError) {
        self.read_errors.fetch_add(1, Relaxed);
        self.add_silence(error);
    }

    /// What was not answered at all was slow as well.
    fn add_silence(&self, error: &DeviceError) {
        if matches!(error, DeviceError::TimedOut(_)) {
            self.add_slow();
        }
    }

    pub(super) fn add_slow(&self) {
        self.slow.fetch_add(1, Relaxed);
    }

    pub(super) fn add_checksum_error(&self) {
        self.checksum_errors.fetch_add(1, Relaxed);
    }

    /// Sets the error counters to 0 (`zpool clear`).
    pub(super) fn clear_errors(&self) {
        self.read_errors.store(0, Relaxed);
        self.checksum_errors.store(0, Relaxed);
        self.write_errors.store(0, Relaxed);
        self.slow.store(0, Relaxed);
    }

    pub(super) fn snapshot(&self) -> VdevStats {
        VdevStats {
            reads: self.reads.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            nanos: self.nanos.load(Relaxed),
            read_errors: self.read_errors.load(Relaxed),
            checksum_errors: self.checksum_errors.load(Relaxed),
            slow: self.slow.load(Relaxed),
            latency: copy(&self.latency),
            sizes: copy(&self.sizes),
            reading: self.reading.load(Relaxed),
            writes: self.writes.load(Relaxed),
            bytes_written: self.bytes_written.load(Relaxed),
            write_nanos: self.write_nanos.load(Relaxed),
            write_errors: self.write_errors.load(Relaxed),
            healed: self.healed.load(Relaxed),
            write_latency: copy(&self.write_latency),
            write_sizes: copy(&self.write_sizes),
            writing: self.writing.load(Relaxed),
        }
    }
}

impl Default for VdevStats {
    fn default() -> Self {
        Stats::default().snapshot()
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
        self.reading += child.reading;
        self.writing += child.writing;
        let latency = self.latency.iter_mut().chain(&mut self.write_latency);
        for (own, other) in latency.zip(child.latency.iter().chain(&child.write_latency)) {
            *own += other;
        }
        let sizes = self.sizes.iter_mut().chain(&mut self.write_sizes);
        for (own, other) in sizes.zip(child.sizes.iter().chain(&child.write_sizes)) {
            *own += other;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_sizes_are_counted_by_their_highest_bit() {
        let stats = Stats::default();
        (0..2).for_each(|_| stats.add_read(4096, Duration::from_nanos(4095)));
        stats.add_write(512, Duration::MAX);
        stats.read_sent(4096);
        stats.read_sent(8191);
        stats.write_sent(1 << 40);
        stats.write_answered();
        let seen = stats.snapshot();
        assert_eq!((seen.latency[11], seen.write_latency[LATENCY_BUCKETS - 1]), (2, 1));
        assert_eq!((seen.sizes[12], seen.write_sizes[SIZE_BUCKETS - 1]), (2, 1));
        assert_eq!((seen.reading, seen.writing), (2, 0));
        let mut both = seen;
        both.add_traffic(&seen);
        assert_eq!((both.sizes[12], both.reading, both.latency[11]), (4, 4, 4));
    }
}
