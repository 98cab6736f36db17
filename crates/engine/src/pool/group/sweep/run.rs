//! One initializing or trimming of a leaf: where it stands, and what orders make of it.
//!
//! Chapter 08, sections 12 and 13. Invariant: one that was suspended goes on where it was, one that ended or was
//! given up begins anew.

use crate::pool::group::seconds_now;
use crate::{Error, ErrorKind, Result};

/// What is done with free space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SweepKind {
    /// It is overwritten.
    Initialize,
    /// It is given up to the device.
    Trim,
}

/// What somebody wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SweepOrder {
    /// That it begins, or goes on: with so many bytes a second at most (0: as fast as can be), as long as it is a trim.
    Begin {
        /// Bytes a second.
        rate: Option<u64>,
    },
    /// That it pauses.
    Suspend,
    /// That it is given up.
    Cancel,
    /// That it counts as never begun.
    Forget,
}

/// What the history says of a leaf that counts as never initialised again.
pub(super) const UNDONE: &str = "uninitialize";

/// Where it stands; the numbers are OpenZFS's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u64)]
pub(super) enum State {
    #[default]
    None = 0,
    Active = 1,
    Cancelled = 2,
    Suspended = 3,
    Complete = 4,
}

impl State {
    pub(super) fn from_number(number: u64) -> Self {
        match number {
            1 => Self::Active,
            2 => Self::Cancelled,
            3 => Self::Suspended,
            4 => Self::Complete,
            _ => Self::None,
        }
    }
}

/// One run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) state: State,
    /// The byte of the device, labels included, before which everything is done.
    pub(super) done: u64,
    /// Seconds since 1970 when it was begun, given up or came to its end.
    pub(super) time: u64,
    /// Bytes a second; 0: as fast as can be.
    pub(super) rate: u64,
    /// What is on the disks of it may be otherwise.
    pub(super) dirty: bool,
    /// What is to be told of it in the history.
    pub(super) news: Option<&'static str>,
}

impl Run {
    /// What an order makes of it; what OpenZFS says of it if it does not fit.
    pub(super) fn after(self, kind: SweepKind, order: SweepOrder) -> Result<Self> {
        let is_initialize = kind == SweepKind::Initialize;
        let next = |state, word| Self { state, dirty: true, news: Some(word), ..self };
        let now = |run: Self| Self { time: seconds_now(), ..run };
        match (order, self.state) {
            (SweepOrder::Begin { .. }, State::Active) => Err(Error::new(
                ErrorKind::Busy,
                if is_initialize { "currently initializing" } else { "currently trimming" },
            )),
            (SweepOrder::Begin { rate }, State::Suspended) => {
                let rate = rate.unwrap_or(self.rate);
                Ok(Self { rate, ..next(State::Active, "activated") })
            }
            (SweepOrder::Begin { rate }, _) => {
                let rate = rate.unwrap_or(0);
                Ok(now(Self { done: 0, rate, ..next(State::Active, "activated") }))
            }
            (SweepOrder::Suspend, State::Active) => Ok(next(State::Suspended, "suspended")),
            (SweepOrder::Cancel, State::Active) => Ok(now(next(State::Cancelled, "canceled"))),
            (SweepOrder::Cancel, State::Suspended) => Ok(next(State::Cancelled, "canceled")),
            (SweepOrder::Suspend | SweepOrder::Cancel, _) => {
                let what = if is_initialize { "initialization" } else { "trim" };
                Err(Error::not_found(format!("there is no active {what}")))
            }
            (SweepOrder::Forget, State::Active) => {
                Err(Error::new(ErrorKind::Busy, "currently initializing"))
            }
            (SweepOrder::Forget, _) => {
                Ok(Self { dirty: true, news: Some(UNDONE), ..Self::default() })
            }
        }
    }

    /// The device was said to be faulty: it begins anew if somebody wants that.
    pub(super) fn given_up(self) -> Self {
        let (state, news) = (State::Cancelled, Some("canceled"));
        Self { state, news, time: seconds_now(), dirty: true, ..self }
    }

    /// It has come to its end.
    pub(super) fn ended(self) -> Self {
        let (state, news) = (State::Complete, Some("complete"));
        Self { state, news, time: seconds_now(), dirty: true, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suspended_runs_go_on_and_others_begin_anew() {
        let kind = SweepKind::Trim;
        let begin = |rate| SweepOrder::Begin { rate };
        let run = Run::default().after(kind, begin(Some(5))).unwrap();
        assert_eq!((run.state, run.done, run.rate), (State::Active, 0, 5));
        let run = Run { done: 77, ..run };
        let words = |error: Error| error.reason().to_owned();
        assert_eq!(words(run.after(kind, begin(None)).unwrap_err()), "currently trimming");
        let run = run.after(kind, SweepOrder::Suspend).unwrap();
        let again = run.after(kind, begin(None)).unwrap();
        assert_eq!((again.state, again.done, again.rate), (State::Active, 77, 5));
        let run = run.after(kind, SweepOrder::Cancel).unwrap();
        assert_eq!(run.state, State::Cancelled);
        let error = run.after(SweepKind::Initialize, SweepOrder::Suspend).unwrap_err();
        assert_eq!(words(error), "there is no active initialization");
        assert_eq!(run.after(kind, begin(None)).unwrap().done, 0);
        assert_eq!(run.ended().after(kind, SweepOrder::Forget).unwrap().state, State::None);
    }
}
