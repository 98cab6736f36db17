//! When a device has failed often enough to be given up, and when to try it again.
//!
//! The thresholds are those of OpenZFS's event daemon: 10 I/O errors within 10 minutes fault a
//! device, 10 checksum errors degrade it. Invariant: a device that is given up because it is silent or gone is always
//! tried again after a pause, which doubles each time up to a maximum; one good answer ends it. One that had too many
//! errors is given up until somebody forgives it, but for where nothing else has what it holds.

use super::state::{Aux, Condition, VdevState};
use std::collections::VecDeque;
use std::time::Duration;

/// Errors within [`WINDOW`] that make a device faulted or degraded.
pub const ERROR_LIMIT: usize = 10;
/// How long an error counts.
pub const WINDOW: Duration = Duration::from_secs(600);
/// Failures in a row after which a device that had too many is said to fail always.
const FAILS_ALWAYS: usize = 3;
/// First pause before a device that was given up is tried again.
pub const FIRST_PAUSE: Duration = Duration::from_secs(15);
/// Longest pause.
pub const LONGEST_PAUSE: Duration = Duration::from_secs(600);

/// What a failed read says of the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failure {
    /// The read failed.
    Io,
    /// No answer in time.
    Silent,
    /// The device is gone.
    Gone,
}

/// Recent errors of one device. Times are since the tree was built.
#[derive(Debug, Default)]
pub(super) struct Health {
    read_errors: VecDeque<Duration>,
    checksum_errors: VecDeque<Duration>,
    given_up: Option<GivenUp>,
    worn: bool,
    /// It was given up for its errors.
    exceeded: bool,
    /// Failures since the last good answer.
    in_a_row: usize,
    slow: Option<Slow>,
}

/// A device that others were read instead of because it took too long.
#[derive(Debug, Clone, Copy)]
struct Slow {
    until: Duration,
    pause: Duration,
}

#[derive(Debug, Clone, Copy)]
struct GivenUp {
    condition: Condition,
    until: Duration,
    pause: Duration,
}

/// A device that had too many errors. No pause makes up for them.
const FAULTED: GivenUp = GivenUp {
    condition: Condition::new(VdevState::Faulted, Aux::ErrorsExceeded),
    until: Duration::MAX,
    pause: FIRST_PAUSE,
};

/// Adds an error to `errors` and tells whether the limit is reached.
fn note(errors: &mut VecDeque<Duration>, now: Duration) -> bool {
    while errors.front().is_some_and(|&first| first + WINDOW < now) {
        errors.pop_front();
    }
    errors.push_back(now);
    if errors.len() > ERROR_LIMIT {
        errors.pop_front();
    }
    errors.len() >= ERROR_LIMIT
}

impl Health {
    /// The condition errors have brought the device to.
    pub(super) fn condition(&self) -> Condition {
        match self.given_up {
            Some(given_up) => given_up.condition,
            None if self.worn => Condition::new(VdevState::Degraded, Aux::ErrorsExceeded),
            None => Condition::ONLINE,
        }
    }

    /// The device may be read at `now`.
    pub(super) fn may_try(&self, now: Duration) -> bool {
        self.given_up.is_none_or(|given_up| !self.exceeded && now >= given_up.until)
    }

    /// The device is not read, or only to see whether it works again.
    pub(super) fn is_given_up(&self) -> bool {
        self.given_up.is_some()
    }

    /// It is not read before somebody forgives it, or it is the last that has something.
    pub(super) fn is_faulted(&self) -> bool {
        self.given_up.is_some() && self.exceeded
    }

    /// It gave wrong bytes too often.
    pub(super) fn is_lying(&self) -> bool {
        self.worn && self.checksum_errors.len() >= ERROR_LIMIT
    }

    /// It is kept in use only because there is nothing else, and fails whatever it is asked.
    pub(super) fn fails_always(&self) -> bool {
        self.worn && self.in_a_row >= FAILS_ALWAYS
    }

    /// It did what it was asked; `needed` as for [`Health::failed`]. True if that changes the condition.
    pub(super) fn answered(&mut self, needed: bool) -> bool {
        self.in_a_row = 0;
        let before = self.condition();
        if self.given_up.is_none() {
            return false;
        }
        if self.exceeded && !needed {
            // It was silent meanwhile, at most.
            self.given_up = Some(FAULTED);
            return before != self.condition();
        }
        self.worn |= self.exceeded;
        (self.given_up, self.exceeded) = (None, false);
        self.read_errors.clear();
        true
    }

    /// A read of it took too long for who could do without it.
    pub(super) fn was_slow(&mut self, now: Duration) {
        let pause = match self.slow {
            // Answers to reads sent before do not lengthen the pause.
            Some(old) if now < old.until => return,
            Some(old) => (old.pause * 2).min(LONGEST_PAUSE),
            None => FIRST_PAUSE,
        };
        self.slow = Some(Slow { until: now + pause, pause });
    }

    /// It is read at `now` only where nothing else can be.
    pub(super) fn is_slow(&self, now: Duration) -> bool {
        self.slow.is_some_and(|slow| now < slow.until)
    }

    /// A read was answered in good time: after its pause it is as others are.
    pub(super) fn was_prompt(&mut self, now: Duration) {
        if !self.is_slow(now) {
            self.slow = None;
        }
    }

    /// A read failed. `needed` says that no data is left without this device: then it is never
    /// faulted, only degraded. True if that changes the condition.
    pub(super) fn failed(&mut self, failure: Failure, now: Duration, needed: bool) -> bool {
        let before = self.condition();
        self.in_a_row = self.in_a_row.saturating_add(1);
        let exceeded = note(&mut self.read_errors, now);
        let condition = match failure {
            Failure::Silent => Condition::new(VdevState::Unavailable, Aux::IoFailure),
            Failure::Gone => Condition::new(VdevState::Removed, Aux::None),
            Failure::Io if self.is_faulted() => return false,
            Failure::Io if self.given_up.is_some() => before,
            Failure::Io if !exceeded => return false,
            Failure::Io if needed => {
                self.worn = true;
                return before != self.condition();
            }
            Failure::Io => {
                self.exceeded = true;
                self.given_up = Some(FAULTED);
                return before != self.condition();
            }
        };
        let pause = match self.given_up {
            // Answers to reads sent before it was given up do not lengthen the pause.
            Some(old) if now < old.until => old.pause,
            Some(old) => (old.pause * 2).min(LONGEST_PAUSE),
            None => FIRST_PAUSE,
        };
        self.given_up = Some(GivenUp { condition, until: now + pause, pause });
        before != condition
    }

    /// The device gave wrong bytes. True if that changes the condition.
    pub(super) fn lied(&mut self, now: Duration) -> bool {
        let before = self.condition();
        self.worn |= note(&mut self.checksum_errors, now);
        before != self.condition()
    }

    /// Forgets everything (`zpool clear`).
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn ten_errors_in_ten_minutes_fault() {
        let mut health = Health::default();
        for i in 0..9 {
            assert!(!health.failed(Failure::Io, SECOND * i, false));
        }
        assert_eq!(health.condition(), Condition::ONLINE);
        assert!(health.failed(Failure::Io, SECOND * 9, false));
        assert_eq!(health.condition().state, VdevState::Faulted);
        // Neither time nor a good answer makes up for them, nor that it was silent in between.
        assert!(!health.may_try(SECOND * 20) && !health.may_try(LONGEST_PAUSE * 100));
        assert!(!health.answered(false) && health.is_faulted());
        assert!(health.failed(Failure::Silent, SECOND * 20, false));
        assert_eq!(health.condition().state, VdevState::Unavailable);
        assert!(!health.may_try(LONGEST_PAUSE * 100));
        assert!(health.answered(false) && health.is_faulted());
        assert_eq!(health.condition().state, VdevState::Faulted);
        // The last that has something is used, and called worn.
        assert!(health.answered(true));
        assert_eq!(health.condition(), Condition::new(VdevState::Degraded, Aux::ErrorsExceeded));
        assert!(health.may_try(SECOND * 30));
        health.clear();
        assert_eq!(health.condition(), Condition::ONLINE);
    }

    #[test]
    fn old_errors_do_not_count() {
        let mut health = Health::default();
        for i in 0..100 {
            assert!(!health.failed(Failure::Io, WINDOW / 8 * i, false));
        }
    }

    #[test]
    fn the_last_copy_is_only_degraded() {
        let mut health = Health::default();
        for i in 0..20 {
            health.failed(Failure::Io, SECOND * i, true);
        }
        assert_eq!(health.condition().state, VdevState::Degraded);
        assert!(health.may_try(SECOND * 20) && health.fails_always());
        health.answered(true);
        assert!(!health.fails_always());
    }

    #[test]
    fn silence_and_absence_count_at_once() {
        let mut health = Health::default();
        assert!(health.failed(Failure::Silent, SECOND, true));
        assert_eq!(health.condition(), Condition::new(VdevState::Unavailable, Aux::IoFailure));
        assert!(!health.may_try(SECOND * 2) && health.may_try(SECOND + FIRST_PAUSE));
        assert!(health.answered(false));
        assert_eq!(health.condition(), Condition::ONLINE);
        let mut health = Health::default();
        assert!(health.failed(Failure::Gone, SECOND, true));
        assert_eq!(health.condition().state, VdevState::Removed);
    }

    #[test]
    fn the_slow_sit_out_longer_each_time() {
        let mut health = Health::default();
        health.was_slow(SECOND);
        health.was_slow(SECOND * 2);
        assert_eq!(health.condition(), Condition::ONLINE);
        assert!(health.is_slow(SECOND * 15) && !health.is_slow(SECOND * 16));
        health.was_prompt(SECOND * 15);
        health.was_slow(SECOND * 16);
        assert!(health.is_slow(SECOND * 45) && !health.is_slow(SECOND * 46));
        health.was_prompt(SECOND * 46);
        health.was_slow(SECOND * 47);
        assert!(!health.is_slow(SECOND * 62));
    }

    #[test]
    fn liars_are_degraded() {
        let mut health = Health::default();
        let changes = (0..12).filter(|&i| health.lied(SECOND * i)).count();
        assert_eq!(changes, 1);
        assert_eq!(health.condition(), Condition::new(VdevState::Degraded, Aux::ErrorsExceeded));
        assert!(health.may_try(SECOND * 12) && health.is_lying());
        health.clear();
        assert_eq!(health.condition(), Condition::ONLINE);
    }
}
