//! Resilvers that wait for the one under way, and such as begin anew.
//!
//! Chapter 08, section 7. Invariant: whoever lacks what the resilver under way does not give it waits for
//! the next, which begins in the group that ends this one; without the feature for that, the one under way
//! begins anew.

use cenote_format::Guid;
use cenote_format::scan_state::ScanFunction;

use super::run::Run;
use super::start::{ScanKind, ScanOrder};
use super::{LivePool, Relaxed};
use crate::dataset::change::MosChange;
use crate::{Error, Result};

/// The feature that counts whether a resilver waits.
const FEATURE: &str = "resilver_defer";

impl LivePool {
    /// Begins a resilver of what devices lack, for who asked for what made them lack it; has it wait for the
    /// one under way, if there is one.
    pub(in crate::pool) fn resilver_now(&self) {
        if self.is_rebuilding() || self.vdevs().resilver_range().is_none() {
            return;
        }
        if let Err(error) = self.change(|live, change| live.resilver_or_defer(change)) {
            tracing::info!(%error, "no resilver now");
        }
    }

    fn resilver_under_way(&self) -> Option<Run> {
        let run = self.scan.run.lock();
        let is_it = |run: &&Run| run.is_active() && run.record.function == ScanFunction::Resilver;
        run.as_ref().filter(is_it).cloned()
    }

    fn resilver_or_defer(&self, change: &MosChange<'_>) -> Result<()> {
        let Some(run) = self.resilver_under_way() else {
            return self.order_scan(change, ScanOrder::Begin(ScanKind::Resilver));
        };
        let late = self.vdevs().lacking_since(run.record.max_txg);
        if late.is_empty() {
            return Ok(());
        }
        if !change.is_enabled(FEATURE)? {
            return self.begin_scan(change, ScanKind::Resilver);
        }
        if !change.is_active(FEATURE)? {
            change.add_reference(FEATURE)?;
        }
        self.mark_leaves(change, late, |node| node.resilver_defer = true);
        self.when_done(|live| live.scan.waits.store(true, Relaxed));
        Ok(())
    }

    /// `zpool resilver`: the one under way begins anew, so that those that wait take part.
    pub(super) fn restart_resilver(&self, change: &MosChange<'_>) -> Result<()> {
        if !change.is_enabled(FEATURE)? {
            return Err(Error::unsupported("this action requires the resilver_defer feature"));
        }
        match self.resilver_under_way() {
            Some(_) => self.begin_scan(change, ScanKind::Resilver),
            None => self.order_scan(change, ScanOrder::Begin(ScanKind::Resilver)),
        }
    }

    /// A scan ends: nobody waits for it any more.
    pub(super) fn forget_deferred(&self, change: &MosChange<'_>) -> Result<()> {
        let vdevs = self.vdevs();
        let leaves = vdevs.topology().root().walk().filter(|node| node.resilver_defer);
        let leaves: Vec<Guid> = leaves.map(|leaf| leaf.guid).collect();
        self.mark_leaves(change, leaves, |node| node.resilver_defer = false);
        if change.is_active(FEATURE)? {
            change.remove_reference(FEATURE)?;
        }
        Ok(())
    }

    /// A resilver has ended: the next begins, if something waits for it. Whether it does.
    pub(super) fn begin_deferred(&self, change: &MosChange<'_>) -> bool {
        let waits = self.scan.waits.swap(false, Relaxed);
        if !waits || self.vdevs().resilver_range().is_none() {
            return false;
        }
        let begun = change
            .log_event("starting deferred resilver", None, "errors=0")
            .and_then(|()| self.begin_scan(change, ScanKind::Resilver));
        if let Err(error) = &begun {
            tracing::warn!(%error, "a resilver that waited does not begin");
        }
        begun.is_ok()
    }

    /// Somebody waits for the end of the scan that an earlier life of the pool began.
    pub(in crate::pool) fn load_deferred(&self) {
        let vdevs = self.vdevs();
        let any = vdevs.topology().root().walk().any(|node| node.resilver_defer);
        self.scan.waits.store(any, Relaxed);
    }
}
