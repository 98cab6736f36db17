//! The way back to who asked: what an order or a question gives out while it is answered.
//!
//! Invariant: nothing is collected here. A client that does not read is waited for no longer than a bound,
//! and not at all by what only tells how far it is; when it has gone, or did not read, whoever gives
//! something out is told so, every time.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SendFlags, send};
use serde::Serialize;
use zeroize::Zeroizing;

use crate::frame::{ExchangeError, Timed, framed};
use crate::protocol::{Failure, FailureKind, Part, Progress, Reply};

/// Things in one part of a list.
const BATCH: usize = 500;
/// How often it is told how far something is.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// See the module.
pub struct Replies<'a> {
    /// `None`: nobody listens.
    to: Option<&'a UnixStream>,
    patience: Duration,
    state: Mutex<State>,
    slow: Option<WhenSlow<'a>>,
}

/// What is done before a client is waited for.
type WhenSlow<'a> = Box<dyn Fn() + Send + Sync + 'a>;

#[derive(Default)]
struct State {
    /// The rest of a frame of which a piece was sent.
    unsent: Zeroizing<Vec<u8>>,
    /// Nothing can be sent any more.
    gone: Option<Failure>,
    /// When it was told last how far it is.
    told: Option<Instant>,
}

impl<'a> Replies<'a> {
    /// To the client at the other end of `to`, which is waited for so long, for each part anew.
    pub fn to(to: &'a UnixStream, patience: Duration) -> Self {
        Self { to: Some(to), patience, state: Mutex::default(), slow: None }
    }

    /// `then` is done whenever the client has to be waited for.
    #[must_use]
    pub fn when_slow(self, then: impl Fn() + Send + Sync + 'a) -> Self {
        Self { slow: Some(Box::new(then)), ..self }
    }

    /// To nobody.
    pub fn to_nobody() -> Replies<'static> {
        Replies { to: None, patience: Duration::ZERO, state: Mutex::default(), slow: None }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives out a part; waits while the client is slow.
    ///
    /// # Errors
    /// `Gone` if it has gone or reads nothing.
    pub fn part(&self, part: Part) -> Result<(), Failure> {
        self.send(&Reply::Part(part))
    }

    /// Gives out a list in parts, each when it is full.
    ///
    /// # Errors
    /// As [`Self::part`], and the first of the list.
    pub fn list<T>(
        &self,
        all: impl IntoIterator<Item = Result<T, Failure>>,
        part: impl Fn(Vec<T>) -> Part,
    ) -> Result<(), Failure> {
        let mut batch = Vec::new();
        for one in all {
            batch.push(one?);
            if batch.len() == BATCH {
                self.part(part(std::mem::take(&mut batch)))?;
            }
        }
        if batch.is_empty() { Ok(()) } else { self.part(part(batch)) }
    }

    /// Tells how far it is. Never waits: it is left out if the client is slow, was told a moment ago, or
    /// has gone.
    pub fn progress(&self, done: u64, total: u64) {
        let mut state = self.state();
        let Some(to) = self.to.filter(|_| state.gone.is_none()) else { return };
        let is_soon = |told: Instant| told.elapsed() < PROGRESS_INTERVAL && done < total;
        if state.told.is_some_and(is_soon) || !state.send_some(to) {
            return;
        }
        state.told = Some(Instant::now());
        if let Ok(frame) = framed(Reply::Part(Part::Progress(Progress { done, total }))) {
            state.unsent = frame;
            let all = state.unsent.len();
            state.send_some(to);
            if state.unsent.len() == all {
                state.unsent.clear();
            }
        }
    }

    /// Whether somebody waits for more.
    ///
    /// # Errors
    /// `Gone` if not.
    pub fn check(&self) -> Result<(), Failure> {
        let mut state = self.state();
        if let Some(to) = self.to.filter(|_| state.gone.is_none()) {
            let mut ends = [PollFd::new(to, PollFlags::empty())];
            let now = Timespec::default();
            let has_ended = poll(&mut ends, Some(&now)).is_ok_and(|count| count > 0);
            if has_ended {
                state.gone = Some(gone("who asked has gone"));
            }
        }
        state.gone.clone().map_or(Ok(()), Err)
    }

    /// Sends the last reply.
    ///
    /// # Errors
    /// As [`Self::part`].
    pub fn end(&self, last: Reply) -> Result<(), Failure> {
        self.send(&last)
    }

    fn send<T: Serialize>(&self, message: &T) -> Result<(), Failure> {
        let mut state = self.state();
        if let Some(gone) = &state.gone {
            return Err(gone.clone());
        }
        let Some(to) = self.to else { return Ok(()) };
        // What is too long, say, can be told: nothing of it was sent.
        let frame = framed(message).map_err(|error| {
            Failure::new(FailureKind::Other, format!("the answer cannot be sent: {error}"))
        })?;
        let timed = Timed::new(to, self.patience);
        for bytes in [std::mem::take(&mut state.unsent), frame] {
            state.unsent = bytes;
            if state.send_some(to) || state.gone.is_some() {
                continue;
            }
            self.slow.iter().for_each(|then| then());
            let rest = std::mem::take(&mut state.unsent);
            if let Err(error) = timed.write_all(&rest) {
                let why = match error {
                    ExchangeError::Deadline => "who asked does not read the answer".to_owned(),
                    error => format!("who asked has gone: {error}"),
                };
                state.gone = Some(gone(&why));
            }
        }
        state.gone.clone().map_or(Ok(()), Err)
    }
}

impl State {
    /// Sends of the rest what is taken at once; whether that was all.
    fn send_some(&mut self, to: &UnixStream) -> bool {
        while self.gone.is_none() && !self.unsent.is_empty() {
            match send(to, &self.unsent, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(count) => {
                    let sent = count.min(self.unsent.len());
                    drop(self.unsent.drain(..sent));
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return false,
                Err(error) => {
                    let why = format!("who asked has gone: {}", io::Error::from(error));
                    self.gone = Some(gone(&why));
                    return false;
                }
            }
        }
        true
    }
}

fn gone(why: &str) -> Failure {
    Failure::new(FailureKind::Gone, why)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;
    use crate::report::HistoryRecord;

    const PATIENCE: Duration = Duration::from_millis(200);

    fn record(number: i64) -> Result<HistoryRecord, Failure> {
        Ok(HistoryRecord { time: number, ..HistoryRecord::default() })
    }

    #[test]
    fn lists_are_cut_into_parts() {
        for (count, sizes) in
            [(0, vec![]), (BATCH, vec![BATCH]), (2 * BATCH + 1, vec![BATCH, BATCH, 1])]
        {
            let (a, b) = UnixStream::pair().unwrap();
            let all = (0..i64::try_from(count).unwrap()).map(record);
            std::thread::scope(|scope| {
                let reader = scope.spawn(|| {
                    let next = || Timed::new(&b, PATIENCE * 10).receive::<Reply>();
                    std::iter::from_fn(|| match next() {
                        Ok(Reply::Part(Part::History(records))) => Some(records.len()),
                        _ => None,
                    })
                    .collect::<Vec<_>>()
                });
                Replies::to(&a, PATIENCE).list(all, Part::History).unwrap();
                a.shutdown(std::net::Shutdown::Write).unwrap();
                assert_eq!(reader.join().unwrap(), sizes);
            });
        }
    }

    #[test]
    fn a_client_that_does_not_read_holds_nobody() {
        let (a, _b) = UnixStream::pair().unwrap();
        let replies = Replies::to(&a, PATIENCE);
        let begun = Instant::now();
        // Far more than the socket holds, none of it waited for.
        for done in 0..50_000 {
            replies.state().told = None;
            replies.progress(done, 100_000);
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
        replies.check().unwrap();
        let begun = Instant::now();
        let slow = std::sync::atomic::AtomicUsize::new(0);
        let replies = replies.when_slow(|| {
            slow.fetch_add(1, Relaxed);
        });
        let error = replies.list((0..).map(record), Part::History).unwrap_err();
        assert_eq!(slow.load(Relaxed), 1);
        assert_eq!(error.kind, FailureKind::Gone, "{error}");
        assert!(begun.elapsed() < PATIENCE * 10, "{:?}", begun.elapsed());
        // It is not waited for again.
        let begun = Instant::now();
        assert_eq!(replies.part(Part::History(Vec::new())), Err(error));
        assert!(begun.elapsed() < PATIENCE / 2);
    }

    #[test]
    fn what_was_left_out_leaves_whole_frames() {
        let (a, b) = UnixStream::pair().unwrap();
        let replies = Replies::to(&a, PATIENCE * 50);
        for done in 0..50_000 {
            replies.state().told = None;
            replies.progress(done, 100_000);
        }
        std::thread::scope(|scope| {
            scope.spawn(|| replies.part(Part::Usage(Vec::new())));
            let mut before = None;
            loop {
                match Timed::new(&b, PATIENCE * 10).receive::<Reply>().unwrap() {
                    Reply::Part(Part::Progress(now)) => {
                        assert!(before < Some(now.done));
                        before = Some(now.done);
                    }
                    Reply::Part(Part::Usage(_)) => break,
                    other => panic!("{other:?}"),
                }
            }
            assert!(before.is_some_and(|last| last < 49_999), "{before:?}");
        });
    }

    #[test]
    fn an_order_hears_that_its_client_has_gone() {
        let (a, b) = UnixStream::pair().unwrap();
        let replies = Replies::to(&a, PATIENCE);
        replies.check().unwrap();
        drop(b);
        assert_eq!(replies.check().unwrap_err().kind, FailureKind::Gone);
        assert_eq!(replies.part(Part::Usage(Vec::new())).unwrap_err().kind, FailureKind::Gone);
        replies.progress(1, 2);
        Replies::to_nobody().check().unwrap();
    }
}
