//! Reading a stream from the descriptor that came with the order.
//!
//! Invariant: who only waits for the stream notices within a second that who gave the order has gone, or the
//! process is to end, and tells him that something is still done.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;

use cenote_control::replies::Replies;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::service::leaving::Leaving;

/// How long is waited for bytes before it is looked who is still there.
const GLANCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 500_000_000 };
/// Nobody knows how long a stream is.
const UNKNOWN: u64 = u64::MAX;

/// The stream.
pub(super) struct Source<'a> {
    file: File,
    replies: &'a Replies<'a>,
    leaving: &'a Leaving,
    read: u64,
}

impl<'a> Source<'a> {
    pub(super) fn new(from: OwnedFd, replies: &'a Replies<'a>, leaving: &'a Leaving) -> Self {
        Self { file: File::from(from), replies, leaving, read: 0 }
    }
}

impl Read for Source<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            self.replies.progress(self.read, UNKNOWN);
            self.replies.check().map_err(|failure| io::Error::other(failure.message))?;
            self.leaving.check()?;
            let mut ends = [PollFd::new(&self.file, PollFlags::IN)];
            match poll(&mut ends, Some(&GLANCE)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => continue,
                ready => ready?,
            };
            let count = self.file.read(buffer)?;
            self.read = self.read.saturating_add(count as u64);
            return Ok(count);
        }
    }
}
