//! What the history tells of a pool's coming and going.
//!
//! Chapter 06, section 3.4. Invariant: a pool that keeps no history is opened and closed all the
//! same.

use crate::Result;
use crate::dataset::change::MosChange;
use crate::pool::group::LivePool;
use crate::pool::host::HostIdentity;

/// Records that the pool was made or opened: which software did so, and where.
pub(super) fn log_version(change: &MosChange<'_>, event: &str) -> Result<()> {
    let (version, software) = (change.version, env!("CARGO_PKG_VERSION"));
    let system = HostIdentity::system();
    let text = format!("pool version {version}; software version cenote-{software}; {system}");
    change.log_event(event, None, &text)
}

impl LivePool {
    /// The first group written tells who opened the pool.
    pub(super) fn note_opening(&self) {
        let back = self.pool.gone_back().map(|_| self.pool.uberblock().txg);
        let run = move |_: &LivePool, change: &MosChange<'_>| {
            log_version(change, "open")?;
            if let Some(txg) = back {
                change.log_event("rewind", None, &format!("rewound state to txg={txg}"))?;
            }
            log_version(change, "import")?;
            change.hooks.tell("pool_import", Vec::new());
            Ok(())
        };
        self.change_when_it_goes_on(run);
    }
}
