//! Using more of devices than was used of them: they have grown, or larger ones have taken the places of all.
//!
//! Chapter 01, section 19; chapter 03, section 9. Invariant: nothing is allocated in new metaslabs before the
//! configuration that has them is on the disks, so that whatever refers to a block there can be read; labels
//! are written where the devices end now.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cenote_format::Guid;

use crate::Result;
use crate::pool::group::LivePool;

/// Time between two looks at the sizes of devices.
const LOOK: Duration = Duration::from_secs(5);

impl LivePool {
    /// Looks for devices that came or grew: what `zpool reopen` does. A pool that grows by itself does so.
    ///
    /// # Errors
    /// If it cannot be written down.
    pub fn look_again(&self) -> Result<()> {
        let vdevs = self.vdevs();
        vdevs.reopen();
        self.measure();
        if self.gate.suspension().is_some() {
            return Ok(());
        }
        if self.growth.by_itself() {
            self.grow(None)?;
        }
        self.resilver_now();
        Ok(())
    }

    /// Uses what the devices of the top-level vdev of, or above, `vdev` have, or those of all.
    ///
    /// # Errors
    /// If it cannot be written down.
    pub fn grow(&self, vdev: Option<Guid>) -> Result<()> {
        self.measure();
        let only = vdev.and_then(|vdev| self.vdevs().topology().top_of(vdev));
        let wanted = move |id: &u32| vdev.is_none() || only == Some(*id);
        if !self.vdevs().growable().iter().any(|(id, _)| wanted(id)) {
            return Ok(());
        }
        let grown = self.change(move |live, change| {
            let vdevs = live.vdevs();
            let mut grown = vdevs.growable();
            grown.retain(|(id, _)| wanted(id));
            let topology = vdevs.topology().grown(&grown, change.tx.txg());
            let tree = Arc::new(vdevs.with_topology(topology)?);
            live.when_done(move |live| live.take_vdevs(tree));
            Ok(grown)
        })?;
        for (id, size) in grown {
            self.allocator.grow_vdev(id, size)?;
        }
        Ok(())
    }

    /// Lets a pool grow whose property says so; looks now and then only.
    pub fn grow_by_itself(&self) {
        let growth = &self.growth;
        if !growth.by_itself() || self.gate.suspension().is_some() {
            return;
        }
        if !growth.is_due(Instant::now(), LOOK) {
            return;
        }
        if let Err(error) = self.grow(None) {
            tracing::warn!(%error, "the pool does not grow");
        }
    }

    fn measure(&self) {
        if self.vdevs().measure() {
            self.dirty_labels();
        }
    }
}
