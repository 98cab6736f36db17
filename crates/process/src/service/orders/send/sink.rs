//! Writing a stream to the descriptor that came with the order.
//!
//! Invariant: who only waits for the reader of the stream notices within a second that who gave the order has
//! gone, or the process is to end, and tells him that something is still done.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};

use cenote_control::replies::Replies;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Mode, OFlags, fstat};

use crate::service::leaving::Leaving;

/// How long is waited for room before it is looked who is still there.
const GLANCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 500_000_000 };
/// What a pipe or socket that has room takes without waiting, in bytes.
const SMALL_PIECE: usize = 4096;
/// Written to what never makes us wait, in bytes.
const LARGE_PIECE: usize = 1 << 20;
/// Room a pipe is asked to have, in bytes.
const PIPE_SIZE: usize = 1 << 20;

/// After so many bytes it is told how far it is, in bytes.
const TELL: usize = 256 << 10;

/// Where the stream goes.
pub(super) struct Sink<'a> {
    file: File,
    /// It is waited for room.
    waits: bool,
    /// What is written at once, in bytes.
    piece: usize,
    replies: &'a Replies<'a>,
    leaving: &'a Leaving,
    /// Bytes written since it was told how far it is.
    quiet: usize,
    /// Bytes of the present snapshot.
    pub(super) written: u64,
    /// What they will be, about.
    pub(super) total: u64,
}

impl<'a> Sink<'a> {
    pub(super) fn new(
        to: OwnedFd,
        replies: &'a Replies<'a>,
        leaving: &'a Leaving,
    ) -> io::Result<Self> {
        let kind = FileType::from_raw_mode(fstat(&to)?.st_mode);
        let waits = matches!(kind, FileType::Fifo | FileType::Socket);
        let (mut file, mut piece) = (File::from(to), LARGE_PIECE);
        if waits {
            piece = SMALL_PIECE;
        }
        if kind == FileType::Fifo {
            // A small pipe only makes the stream slower.
            let _ = rustix::pipe::fcntl_setpipe_size(&file, PIPE_SIZE);
            if let Ok(own) = without_waiting(&file) {
                (file, piece) = (own, LARGE_PIECE);
            }
        }
        Ok(Self { file, waits, piece, replies, leaving, quiet: TELL, written: 0, total: 0 })
    }

    /// Tells how far it is; an error if nobody is there to be told.
    fn tell(&self) -> io::Result<()> {
        self.replies.progress(self.written, self.total.max(self.written.saturating_add(1)));
        self.leaving.check()?;
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
        let some = buffer.get(..self.piece).unwrap_or(buffer);
        let count = loop {
            if self.waits {
                self.wait()?;
            }
            match self.file.write(some) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => break written?,
            }
        };
        self.written = self.written.saturating_add(count as u64);
        self.quiet = self.quiet.saturating_add(count);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// The same pipe, opened anew so that writing to it never waits: those who share the first are not concerned.
fn without_waiting(pipe: &File) -> io::Result<File> {
    let path = format!("/proc/self/fd/{}", pipe.as_raw_fd());
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::open(path, flags, Mode::empty())?))
}
