//! Writing a stream to the descriptor that came with the order.
//!
//! Invariant: who only waits for the reader of the stream notices within a second that who gave the order has
//! gone, and tells him that something is still done.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;

use cenote_control::replies::Replies;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, fstat};

/// How long is waited for room before it is looked who is still there.
const GLANCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 500_000_000 };
/// What a pipe that has room takes without waiting, in bytes.
const PIPE_PIECE: usize = 4096;
/// Written to what takes everything at once, in bytes.
const FILE_PIECE: usize = 1 << 20;
/// Room a pipe is asked to have, in bytes.
const PIPE_SIZE: usize = 1 << 20;

/// After so many bytes it is told how far it is, in bytes.
const TELL: usize = 256 << 10;

/// Where the stream goes.
pub(super) struct Sink<'a> {
    file: File,
    /// It may make who writes wait.
    waits: bool,
    replies: &'a Replies<'a>,
    /// Bytes written since it was told how far it is.
    quiet: usize,
    /// Bytes of the present snapshot.
    pub(super) written: u64,
    /// What they will be, about.
    pub(super) total: u64,
}

impl<'a> Sink<'a> {
    pub(super) fn new(to: OwnedFd, replies: &'a Replies<'a>) -> io::Result<Self> {
        let kind = FileType::from_raw_mode(fstat(&to)?.st_mode);
        let waits = matches!(kind, FileType::Fifo | FileType::Socket);
        if kind == FileType::Fifo {
            // A small pipe only makes the stream slower.
            let _ = rustix::pipe::fcntl_setpipe_size(&to, PIPE_SIZE);
        }
        Ok(Self { file: File::from(to), waits, replies, quiet: TELL, written: 0, total: 0 })
    }

    /// Tells how far it is; an error if nobody is there to be told.
    fn tell(&self) -> io::Result<()> {
        self.replies.progress(self.written, self.total.max(self.written.saturating_add(1)));
        self.replies.check().map_err(|failure| io::Error::other(failure.message))
    }

    /// Waits until there is room.
    fn wait(&self) -> io::Result<()> {
        loop {
            let mut ends = [PollFd::new(&self.file, PollFlags::OUT)];
            match poll(&mut ends, Some(&GLANCE)) {
                Ok(0) => self.tell()?,
                Err(rustix::io::Errno::INTR) => {}
                ready => return Ok(ready.map(|_| ())?),
            }
        }
    }
}

impl Write for Sink<'_> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        if self.quiet >= TELL {
            self.tell()?;
            self.quiet = 0;
        }
        let piece = if self.waits { PIPE_PIECE } else { FILE_PIECE };
        let some = buffer.get(..piece).unwrap_or(buffer);
        if self.waits {
            self.wait()?;
        }
        let count = self.file.write(some)?;
        self.written = self.written.saturating_add(count as u64);
        self.quiet = self.quiet.saturating_add(count);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}
