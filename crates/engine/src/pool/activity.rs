//! Whether another host is using a pool right now (multihost).
//!
//! Invariant: a pool whose uberblock changes while it is watched is never called idle. Chapter 01,
//! section 12.

use std::time::Duration;

use cenote_format::config::PoolState;
use cenote_format::{Txg, Uberblock};

/// Time, as the check needs it.
pub trait Clock {
    /// Waits.
    fn sleep(&self, time: Duration);
}

/// The clock of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn sleep(&self, time: Duration) {
        std::thread::sleep(time);
    }
}

/// This host's settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Time between activity writes.
    pub interval: Duration,
    /// How many intervals an import watches a pool.
    pub import_intervals: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self { interval: Duration::from_millis(1000), import_intervals: 20 }
    }
}

/// What is to be done before a pool may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Nothing: multihost is off, the pool was left in order, or this host had it last.
    Nothing,
    /// The pool must be watched.
    Check,
    /// Multihost is on but this host has no identity: the pool must not be used.
    HostIdRequired,
}

/// What `uberblock` asks for, given the state and host id of the label and the id of this host.
pub fn need(uberblock: &Uberblock, state: PoolState, label_hostid: u64, own: u64) -> Need {
    if !uberblock.has_activity() || uberblock.activity_delay == 0 || state != PoolState::Active {
        Need::Nothing
    } else if own == 0 {
        Need::HostIdRequired
    } else if label_hostid == own {
        Need::Nothing
    } else {
        Need::Check
    }
}

/// How long the pool must be watched, before the random part is added.
pub fn duration(uberblock: &Uberblock, settings: &Settings) -> Duration {
    let intervals = settings.import_intervals.max(1);
    let own = settings.interval.max(Duration::from_millis(100));
    let base = own.saturating_mul(intervals).max(Duration::from_secs(1));
    let delay = Duration::from_nanos(uberblock.activity_delay);
    let interval = uberblock.activity_interval().map(Duration::from_millis);
    match (interval, uberblock.activity_fail_intervals()) {
        // The writer gives up by itself after this long; twice that is certain.
        (Some(interval), Some(fail)) if fail > 0 => interval.saturating_mul(u32::from(fail) * 2),
        (Some(interval), Some(_)) => base.max((interval + delay).saturating_mul(intervals)),
        _ if uberblock.has_activity() => base.max((own + delay).saturating_mul(intervals)),
        _ => base,
    }
}

/// What changed while a pool was watched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the pool is in use by another host: its uberblock of group {txg} changed while watched")]
pub struct ActiveElsewhere {
    /// Group of the uberblock that was new.
    pub txg: Txg,
}

/// Watches the pool: reads its newest uberblock again every second for `time` and a random part of up
/// to a quarter more (`random` between 0 and 1). `reread` gives `None` if nothing could be read,
/// which proves nothing.
pub fn watch(
    first: &Uberblock,
    time: Duration,
    random: f64,
    clock: &dyn Clock,
    reread: &mut dyn FnMut() -> Option<Uberblock>,
) -> Result<(), ActiveElsewhere> {
    let mut left = time.mul_f64(1.0 + random.clamp(0.0, 1.0) / 4.0);
    while !left.is_zero() {
        let step = left.min(Duration::from_secs(1));
        clock.sleep(step);
        left -= step;
        if let Some(now) = reread()
            && now.compare_recency(first).is_ne()
        {
            return Err(ActiveElsewhere { txg: now.txg });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::pool::testing::uberblock;

    #[derive(Default)]
    struct Counting(Cell<Duration>);

    impl Clock for Counting {
        fn sleep(&self, time: Duration) {
            self.0.set(self.0.get() + time);
        }
    }

    fn active() -> Uberblock {
        let mut active = uberblock(7, 0);
        active.activity_delay = 1_000_000_000;
        // Ten missed intervals of 1000 ms, sequence 0 (chapter 01, section 20.5).
        active.activity_config = 0x000a_0000_0003_e807;
        active
    }

    #[test]
    fn only_a_pool_left_in_use_by_another_host_is_watched() {
        let state = PoolState::Active;
        assert_eq!(need(&active(), state, 5, 6), Need::Check);
        assert_eq!(need(&active(), state, 0, 6), Need::Check);
        assert_eq!(need(&active(), state, 6, 6), Need::Nothing);
        assert_eq!(need(&active(), state, 5, 0), Need::HostIdRequired);
        assert_eq!(need(&active(), PoolState::Exported, 5, 6), Need::Nothing);
        assert_eq!(need(&uberblock(7, 0), state, 5, 6), Need::Nothing);
    }

    #[test]
    fn durations_follow_what_the_writer_recorded() {
        let settings = Settings::default();
        let mut ub = active();
        assert_eq!(duration(&ub, &settings), Duration::from_secs(20));
        ub.activity_config = 0x003c_0000_0003_e807;
        assert_eq!(duration(&ub, &settings), Duration::from_secs(120));
        ub.activity_config = 0x0000_0000_0003_e807;
        assert_eq!(duration(&ub, &settings), Duration::from_secs(40));
        ub.activity_config = 0;
        assert_eq!(duration(&ub, &settings), Duration::from_secs(40));
        ub.activity_magic = 0;
        assert_eq!(duration(&ub, &settings), Duration::from_secs(20));
    }

    #[test]
    fn an_idle_pool_is_watched_to_the_end() {
        let clock = Counting::default();
        let same = || Some(active());
        watch(&active(), Duration::from_secs(20), 1.0, &clock, &mut { same }).unwrap();
        assert_eq!(clock.0.get(), Duration::from_secs(25));
    }

    #[test]
    fn one_activity_write_is_enough() {
        let clock = Counting::default();
        let mut reads = 0;
        let mut reread = || {
            reads += 1;
            let mut now = active();
            if reads > 3 {
                now.activity_config |= 1 << 32;
            }
            (reads != 2).then_some(now)
        };
        let found = watch(&active(), Duration::from_secs(20), 0.0, &clock, &mut reread);
        assert_eq!(found.unwrap_err().txg, Txg(7));
        assert_eq!(clock.0.get(), Duration::from_secs(4));
    }
}
