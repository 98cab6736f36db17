//! The thread that writes groups: when it begins one, and what becomes of those who wait.
//!
//! Invariant: whoever waits for a group hears of its end, also if this program is at fault.

use std::sync::Arc;
use std::time::Duration;

use cenote_format::Txg;

use super::LivePool;
use crate::{Error, Result};

impl LivePool {
    /// Starts the thread.
    pub(in crate::pool) fn start(self: &Arc<Self>) -> Result<()> {
        let weak = Arc::downgrade(self);
        let gate = self.gate.clone();
        let interval = self.options.interval;
        let outage = self.outage.clone();
        let jobs = self.jobs.clone();
        let wait = move || if jobs.get_on() { Duration::ZERO } else { interval };
        let run = move || {
            outage.is_writer();
            while gate.wait_for_work(wait()) {
                let Some(live) = weak.upgrade() else { return };
                // Whoever waits for the group must hear of it, also of a fault of our own.
                let write = std::panic::AssertUnwindSafe(|| live.write_next());
                let panicked = |_| {
                    let reason = "a fault in this program; nothing more is written to the pool";
                    Err(Error::bug(reason).with_advice("export and import it, and report this"))
                };
                if let Err(error) = std::panic::catch_unwind(write).unwrap_or_else(panicked) {
                    tracing::error!(pool = live.pool.name(), %error, "the pool stops writing");
                    live.stop_with(error);
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name(crate::environment::WRITER.into()).spawn(run);
        *self.thread.lock() = Some(thread.map_err(Error::no_thread)?);
        self.start_scanning()?;
        self.start_rebuilding()?;
        self.start_sweeping()?;
        self.start_activity()
    }

    /// Whether a group has something to write.
    fn has_work(&self, txg: Txg) -> bool {
        !self.tasks.lock().is_empty()
            || self.jobs.are_due()
            || self.scan.is_due()
            || self.rebuilds.is_due()
            || self.sweeps.is_due()
            || self.has_new_errors()
            || self.config.lock().is_dirty()
            || self.has_missed(&self.vdevs())
            || !self.dirty_datasets(txg).is_empty()
    }

    fn write_next(&self) -> Result<()> {
        let open = self.gate.figures().open;
        self.wake_evacuation();
        self.wake_expansion();
        if !self.has_work(open) && !self.gate.is_wanted(open) {
            return Ok(());
        }
        let txg = self.gate.close();
        let tasks = self.take_tasks(txg);
        let mut answers = Vec::with_capacity(tasks.len());
        let written = self.write_group(txg, tasks, &mut answers);
        match written {
            Ok(()) => {
                self.gate.finished(txg);
                for (done, answer) in answers {
                    // Nobody waits any more if this fails.
                    let _ = done.send(answer);
                }
                Ok(())
            }
            Err(error) => {
                for (done, _) in answers {
                    let _ = done.send(Err(error.clone()));
                }
                Err(error)
            }
        }
    }

    pub(super) fn stop_with(&self, error: Error) {
        let tasks = {
            let mut tasks = self.tasks.lock();
            self.gate.fail(error.clone());
            std::mem::take(&mut *tasks)
        };
        for task in tasks {
            let _ = task.done.send(Err(error.clone()));
        }
    }
}
