//! Devices that fail, beyond the redundancy too, only while a pool is opened and its logs are replayed.
//!
//! Invariant: a read that fails is the end of nothing: whatever becomes of such an import, what was acknowledged is
//! there when the devices are well again.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use cenote_engine::ErrorKind;

use crate::disks::{Disks, open_with, settle};
use crate::judge::Seen;
use crate::run::{Runner, Verdict, load_key};

impl Runner {
    /// The process dies, and `reads` reads fail while the pool is opened and mounted, after `skip` of them.
    pub(crate) fn blink(&mut self, skip: u16, reads: u16) -> Verdict {
        self.tally.cuts += 1;
        self.tally.faults += 1;
        let left = self.disks.copy();
        let attempt = left.copy();
        attempt.ail(&self.troubles);
        self.open_blinking(&attempt, skip, reads)?;
        attempt.all().for_each(|disk| disk.fail_reads(None));
        let judge = self.judge(attempt, u64::MAX);
        judge.disks.ail(&self.troubles);
        judge.judge().map_err(|reason| format!("after devices failed in an import: {reason}"))?;
        self.end_life(left, u64::MAX, 0)
    }

    fn open_blinking(&self, disks: &Disks, skip: u16, reads: u16) -> Verdict {
        let found = disks.candidate().map_err(|error| error.to_string())?;
        let failing = u64::from(skip)..u64::from(skip) + u64::from(reads);
        let count = Arc::new(AtomicU64::new(0));
        disks.all().for_each(|disk| disk.fail_reads(Some((count.clone(), failing.clone()))));
        let live = match open_with(&found, Arc::new(disks.clone())) {
            Ok(live) => live,
            Err(error) if error.kind() == ErrorKind::Bug => return Err(error.to_string()),
            Err(_) => return Ok(()),
        };
        // What does not work now works later.
        if load_key(&live, &self.setup).is_ok()
            && let Ok(seen) = Seen::of(live.pool())
        {
            for name in seen.filesystems {
                let dataset = live.pool().catalog().dataset_named(&name);
                drop(dataset.map(|dataset| cenote_posix::live::open(&live, &dataset, false)));
                settle(&live);
            }
        }
        let _ = live.sync();
        live.abandon();
        Ok(())
    }
}
