//! Reading a stream from the descriptor that came with the order.
//!
//! Invariant: who only waits for the stream notices within a second that who gave the order has gone, or the
//! process is to end, and tells him that something is still done.

use std::fs::File;
use std::io::{self, IoSliceMut, Read};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use cenote_control::replies::Replies;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::FileType;

use crate::service::leaving::Leaving;

/// How long is waited for bytes before it is looked who is still there.
const GLANCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 500_000_000 };
/// How often that is looked while bytes come.
const INTERVAL: Duration = Duration::from_millis(50);
/// Nobody knows how long a stream is.
const UNKNOWN: u64 = u64::MAX;

/// The stream.
pub(super) struct Source<'a> {
    file: File,
    /// Nothing has to be waited for.
    is_plain: bool,
    replies: &'a Replies<'a>,
    leaving: &'a Leaving,
    read: u64,
    /// When it was looked last who is still there.
    looked: Option<Instant>,
}

impl<'a> Source<'a> {
    pub(super) fn new(from: OwnedFd, replies: &'a Replies<'a>, leaving: &'a Leaving) -> Self {
        let kind = rustix::fs::fstat(&from).map(|stat| FileType::from_raw_mode(stat.st_mode));
        let is_plain = kind == Ok(FileType::RegularFile);
        Self { file: File::from(from), is_plain, replies, leaving, read: 0, looked: None }
    }

    /// Waits until there is something to read.
    fn wait(&mut self) -> io::Result<()> {
        loop {
            if self.looked.is_none_or(|at| at.elapsed() >= INTERVAL) {
                self.replies.progress(self.read, UNKNOWN);
                self.replies.check().map_err(|failure| io::Error::other(failure.message))?;
                self.leaving.check()?;
                self.looked = Some(Instant::now());
            }
            if self.is_plain {
                return Ok(());
            }
            let mut ends = [PollFd::new(&self.file, PollFlags::IN)];
            match poll(&mut ends, Some(&GLANCE)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => self.looked = None,
                ready => return ready.map(|_| ()).map_err(io::Error::from),
            }
        }
    }
}

impl Read for Source<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.read_vectored(&mut [IoSliceMut::new(buffer)])
    }

    fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.wait()?;
        let count = self.file.read_vectored(buffers)?;
        self.read = self.read.saturating_add(count as u64);
        Ok(count)
    }
}
