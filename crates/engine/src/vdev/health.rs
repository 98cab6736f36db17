//! When a device has failed often enough to be given up, and when to try it again.
//!
//! The thresholds are those of OpenZFS's event daemon: 10 I/O errors within 10 minutes fault a
//! device, 10 checksum errors degrade it. Invariant: a device that is given up because it is silent, gone or too slow
//! is always tried again after a pause, which doubles each time up to a maximum, also if it worked for a while in
//! between; one good answer after it ends it, and of one that was too slow a quick answer. One that had too many
//! errors is given up until somebody forgives it, but for where nothing else has what it holds.

use super::state::{Aux, Condition, VdevState};
use std::collections::VecDeque;
use std::ops::Range;
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

/// What takes longer may be done by others.
pub(super) const PROMPT: Duration = Duration::from_secs(1);
/// How long it counts that a device was waited for.
const LATENESS: Duration = Duration::from_secs(15);
/// How much longer than its pause nothing but a trial is sent to a device that was too slow.
const TRIAL: Duration = Duration::from_secs(10);

/// The condition of a device that sits out because it is too slow.
pub(super) const SITS_OUT: Condition = Condition::new(VdevState::Degraded, Aux::ErrorsExceeded);

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
    /// How long it is given up.
    pauses: Pauses,
    worn: bool,
    /// It was given up for its errors.
    exceeded: bool,
    /// Failures since the last good answer.
    in_a_row: usize,
    /// How long others are read instead of it because it took too long.
    slow: Pauses,
    /// When writes waited for nobody but it.
    late: VecDeque<Range<Duration>>,
}

#[derive(Debug, Clone, Copy)]
struct GivenUp {
    condition: Condition,
    /// It did nothing worse than to take too long.
    is_slow: bool,
}

/// Pauses, each twice as long as the one before that ended not long ago.
#[derive(Debug, Default, Clone, Copy)]
struct Pauses {
    is_on: bool,
    /// When it ends, or ended.
    until: Duration,
    length: Duration,
}

impl Pauses {
    /// Answers to what was sent before do not lengthen a pause.
    fn begin(&mut self, now: Duration) {
        if self.lasts(now) {
            return;
        }
        let is_first = self.length.is_zero() || !self.is_on && now > self.until + WINDOW;
        self.length = if is_first { FIRST_PAUSE } else { (self.length * 2).min(LONGEST_PAUSE) };
        (self.is_on, self.until) = (true, now + self.length);
    }

    fn lasts(&self, now: Duration) -> bool {
        self.is_on && now < self.until
    }

    /// The device does what it should.
    fn end(&mut self, now: Duration) {
        if self.is_on {
            (self.is_on, self.until) = (false, now);
        }
    }
}

/// A device that had too many errors. No pause makes up for them.
const FAULTED: GivenUp =
    GivenUp { condition: Condition::new(VdevState::Faulted, Aux::ErrorsExceeded), is_slow: false };

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
        self.given_up.is_none_or(|given_up| {
            let trial = if given_up.is_slow { TRIAL } else { Duration::ZERO };
            !self.exceeded && now >= self.pauses.until + trial
        })
    }

    /// It was given up, and its pause is over.
    pub(super) fn is_due(&self, now: Duration) -> bool {
        self.is_given_up() && !self.exceeded && !self.pauses.lasts(now)
    }

    /// It was given up because it took too long, and for nothing worse.
    pub(super) fn sits_out(&self) -> bool {
        self.given_up.is_some_and(|given_up| given_up.is_slow)
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

    /// It did what it was asked, and `took` so long; `needed` as for [`Health::failed`]. True if that changes the
    /// condition.
    pub(super) fn answered(&mut self, now: Duration, took: Duration, needed: bool) -> bool {
        self.in_a_row = 0;
        if self.sits_out() {
            if self.pauses.lasts(now) {
                return false;
            }
            if took >= PROMPT {
                self.pauses.begin(now);
                return false;
            }
        }
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
        self.pauses.end(now);
        self.read_errors.clear();
        true
    }

    /// Writes waited for nobody else at these times.
    pub(super) fn was_late(&mut self, when: Range<Duration>) {
        // Many may have waited together.
        match self.late.back_mut() {
            Some(last) if when.start <= last.end => {
                *last = last.start.min(when.start)..last.end.max(when.end);
            }
            _ => self.late.push_back(when),
        }
        let end = self.late.back().map_or(Duration::ZERO, |last| last.end);
        self.late.retain(|range| range.end + LATENESS >= end);
    }

    /// How long writes waited for it lately.
    pub(super) fn lateness(&self, now: Duration) -> Duration {
        let since = now.saturating_sub(LATENESS);
        self.late.iter().map(|range| range.end.saturating_sub(range.start.max(since))).sum()
    }

    /// Others do without it, for it takes too long: it sits out. True if that changes the condition.
    pub(super) fn was_too_late(&mut self, now: Duration) -> bool {
        if self.given_up.is_some_and(|given_up| !given_up.is_slow) {
            return false;
        }
        let before = self.condition();
        self.given_up = Some(GivenUp { condition: SITS_OUT, is_slow: true });
        self.pauses.begin(now);
        before != SITS_OUT
    }

    /// A read of it took too long for who could do without it.
    pub(super) fn was_slow(&mut self, now: Duration) {
        self.slow.begin(now);
    }

    /// It is read at `now` only where nothing else can be.
    pub(super) fn is_slow(&self, now: Duration) -> bool {
        self.slow.lasts(now)
    }

    /// A read was answered in good time: after its pause it is as others are.
    pub(super) fn was_prompt(&mut self, now: Duration) {
        if !self.is_slow(now) {
            self.slow.end(now);
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
        let is_slow = failure == Failure::Io && self.sits_out();
        self.given_up = Some(GivenUp { condition, is_slow });
        self.pauses.begin(now);
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

    /// It was opened anew: what is remembered is only how long it rested.
    pub(super) fn reopened(&mut self, now: Duration) {
        let (mut pauses, mut slow) = (self.pauses, self.slow);
        pauses.end(now);
        slow.end(now);
        *self = Self { pauses, slow, ..Self::default() };
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
        assert!(!health.answered(SECOND * 20, Duration::ZERO, false) && health.is_faulted());
        assert!(health.failed(Failure::Silent, SECOND * 20, false));
        assert_eq!(health.condition().state, VdevState::Unavailable);
        assert!(!health.may_try(LONGEST_PAUSE * 100));
        assert!(health.answered(SECOND * 30, Duration::ZERO, false) && health.is_faulted());
        assert_eq!(health.condition().state, VdevState::Faulted);
        // The last that has something is used, and called worn.
        assert!(health.answered(SECOND * 30, Duration::ZERO, true));
        assert_eq!(health.condition(), Condition::new(VdevState::Degraded, Aux::ErrorsExceeded));
        assert!(health.may_try(SECOND * 30));
        health.clear();
        assert_eq!(health.condition(), Condition::ONLINE);
    }

    #[test]
    fn who_comes_and_goes_rests_longer_each_time() {
        let mut health = Health::default();
        let mut now = SECOND;
        let mut pauses = Vec::new();
        for _ in 0..8 {
            health.failed(Failure::Silent, now, false);
            let begun = now;
            while !health.may_try(now) {
                now += SECOND;
            }
            pauses.push((now - begun).as_secs());
            assert!(health.answered(now, Duration::ZERO, false));
            health.reopened(now);
            now += SECOND * 20;
        }
        assert_eq!(pauses, [15, 30, 60, 120, 240, 480, 600, 600]);
        health.failed(Failure::Silent, now + WINDOW, false);
        assert!(health.may_try(now + WINDOW + FIRST_PAUSE));
    }

    #[test]
    fn who_is_too_late_sits_out_until_it_is_quick() {
        let mut health = Health::default();
        health.was_late(SECOND..SECOND * 3);
        health.was_late(SECOND * 2..SECOND * 4);
        health.was_late(SECOND * 5..SECOND * 6);
        assert_eq!(health.lateness(SECOND * 6), SECOND * 4);
        assert_eq!(health.lateness(SECOND * 18), SECOND * 2);
        assert_eq!(health.lateness(SECOND * 21), Duration::ZERO);
        assert!(health.was_too_late(SECOND) && !health.was_too_late(SECOND * 2));
        assert_eq!(health.condition().state, VdevState::Degraded);
        assert!(
            !health.answered(SECOND * 15, Duration::ZERO, false) && !health.is_due(SECOND * 15)
        );
        assert!(health.is_due(SECOND * 16) && !health.may_try(SECOND * 16));
        // It is as slow as before.
        assert!(!health.answered(SECOND * 16, PROMPT, false) && !health.is_due(SECOND * 45));
        assert!(health.answered(SECOND * 46, Duration::ZERO, false) && health.may_try(SECOND * 46));
        assert_eq!(health.condition(), Condition::ONLINE);
        // What is silent to the end is worse.
        health.was_too_late(SECOND * 50);
        assert!(health.failed(Failure::Silent, SECOND * 80, false) && !health.sits_out());
        assert!(!health.was_too_late(SECOND * 81));
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
        health.answered(SECOND * 20, Duration::ZERO, true);
        assert!(!health.fails_always());
    }

    #[test]
    fn silence_and_absence_count_at_once() {
        let mut health = Health::default();
        assert!(health.failed(Failure::Silent, SECOND, true));
        assert_eq!(health.condition(), Condition::new(VdevState::Unavailable, Aux::IoFailure));
        assert!(!health.may_try(SECOND * 2) && health.may_try(SECOND + FIRST_PAUSE));
        assert!(health.answered(SECOND * 60, Duration::ZERO, false));
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
        assert!(health.is_slow(SECOND * 106) && !health.is_slow(SECOND * 107));
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
