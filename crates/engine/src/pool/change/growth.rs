//! Using more of devices than was used of them: they have grown, or larger ones have taken the places of all.
//!
//! Chapter 01, section 19; chapter 03, section 9. Invariant: nothing is allocated in new metaslabs before the
//! configuration that has them is on the disks, so that whatever refers to a block there can be read; labels
//! are written where the devices end now.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cenote_format::Guid;

use crate::Result;
use crate::dataset::change::MosChange;
use crate::pool::group::LivePool;

/// Time between two looks at the sizes of devices.
const LOOK: Duration = Duration::from_secs(5);

impl LivePool {
    /// Looks for devices that came or grew: what `zpool reopen` does. A pool that grows by itself does so.
    ///
    /// # Errors
    /// If it cannot be written down.
    pub fn look_again(&self) -> Result<()> {
        self.examine_devices();
        self.vdevs().reopen();
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

    /// Uses what the device of the leaf `leaf` has, or those of all. A vdev grows when all devices below it
    /// count.
    ///
    /// # Errors
    /// If it cannot be written down.
    pub fn grow(&self, leaf: Option<Guid>) -> Result<()> {
        self.measure();
        self.vdevs().count_all(leaf);
        let only = leaf.and_then(|leaf| self.vdevs().topology().top_of(leaf));
        let wanted = move |id: &u32| leaf.is_none() || only == Some(*id);
        if !self.vdevs().growable().iter().any(|(id, _)| wanted(id)) {
            return Ok(());
        }
        let grown = self.change(move |live, change| {
            let vdevs = live.vdevs();
            let mut grown = vdevs.growable();
            grown.retain(|(id, _)| wanted(id));
            let topology = vdevs.topology().grown(&grown, change.tx.txg());
            let tree = Arc::new(vdevs.with_topology(topology)?);
            live.log_growth(change, &grown)?;
            live.when_done(move |live| live.take_vdevs(tree));
            Ok(grown)
        })?;
        for (id, size) in grown {
            self.allocator.grow_vdev(id, size)?;
        }
        // Who looks sees it with the next group.
        self.gate.want(self.gate.figures().open);
        Ok(())
    }

    /// The history is told how large the pool is now.
    pub(in crate::pool) fn log_growth(
        &self,
        change: &MosChange<'_>,
        grown: &[(u32, u64)],
    ) -> Result<()> {
        let figures = self.allocator.figures();
        let before: u64 = figures.tops.iter().map(|top| top.size).sum();
        let more = grown.iter().map(|(id, size)| {
            let own = figures.tops.iter().find(|top| top.id == *id).map_or(0, |top| top.size);
            self.allocator.size_with(*id, *size).saturating_sub(own)
        });
        let more: u64 = more.sum();
        let (name, after) = (self.pool.name(), before.saturating_add(more));
        change.log_event("vdev online", None, &format!("pool '{name}' size: {after}(+{more})"))
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
