//! Scrubs that are begun by time.
//!
//! Invariant: one is begun only if none ended within the time that is set, none runs or pauses, and nothing is
//! resilvered; a pool that was never scrubbed counts from when it was first met.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use cenote_control::changes::{Change, ScanRequest};
use cenote_control::client::Client;
use cenote_control::events::EventRecord;
use cenote_control::report::{ScanFunction, ScanState};
use cenote_control::terminal;

use super::settings::Settings;
use super::state::State;
use crate::zpool::common;

/// How often it is looked, at most.
const GLANCE: Duration = Duration::from_secs(60);
/// How soon one that could not begin is tried again, at most.
const AGAIN: Duration = Duration::from_secs(3600);

/// See the module.
#[derive(Default)]
pub struct Schedule {
    looked: Option<Instant>,
    /// When a scrub was last to begin, by the pools' guids.
    tried: BTreeMap<u64, Instant>,
}

impl Schedule {
    /// Takes note of scrubs that others began.
    pub fn heard(&mut self, event: &EventRecord, state: &mut State) {
        if matches!(event.subclass(), "scrub_start" | "scrub_finish")
            && let Some(pool) = event.number_of("pool_guid")
        {
            state.set_scrubbed(pool, event.seconds);
        }
    }

    /// Begins those that are due.
    pub fn begin_scrubs(&mut self, client: &Client, settings: &Settings, state: &mut State) {
        let set = settings.scrub_of.values().copied().chain([settings.scrub]).flatten();
        let Some(shortest) = set.min() else { return };
        let pause = GLANCE.min(shortest / 2);
        if self.looked.is_some_and(|looked| looked.elapsed() < pause) {
            return;
        }
        self.looked = Some(Instant::now());
        for pool in client.pools() {
            if let Some(every) = settings.scrub_every(&pool) {
                self.begin_if_due(client, &pool, every, state);
            }
        }
        state.write();
    }

    fn begin_if_due(&mut self, client: &Client, pool: &str, every: Duration, state: &mut State) {
        let Ok(report) = client.pool_report(pool) else { return };
        let now = common::now();
        if let Some(scan) = &report.scan {
            if scan.state == ScanState::Scanning {
                return;
            }
            if scan.function == ScanFunction::Scrub && scan.state == ScanState::Finished {
                state.set_scrubbed(report.guid, scan.end_time);
            }
        }
        let since = now.saturating_sub(state.scrubbed(report.guid, now));
        if since < i64::try_from(every.as_secs()).unwrap_or(i64::MAX) {
            return;
        }
        let again = AGAIN.min(every);
        if self.tried.get(&report.guid).is_some_and(|tried| tried.elapsed() < again) {
            return;
        }
        self.tried.insert(report.guid, Instant::now());
        let command = Some(format!("zpool scrub {pool}"));
        let request = common::change(command, Change::Scan(ScanRequest::Scrub));
        if let Err(failure) = client.order(pool, &request) {
            terminal::complain(&format!("zed: {}", failure.message));
        }
    }
}
