//! How much space datasets use, may use, and have written.
//!
//! Chapter 06, sections 8 and 11. Sizes are allocated bytes. Invariant: sums never wrap; what would
//! be negative is nothing.

use cenote_format::Txg;
use cenote_format::bookmark::Bookmark;
use cenote_format::bpobj::Space;
use cenote_format::dsl_dataset::DslDataset;

use super::allowance::{Allowance, DirectoryLimits, available_below};
use super::deadlist::SpaceDifference;
use super::{Catalog, Dataset, Directory};
use crate::alloc::slop;
use crate::{Error, Result};

/// Longest chain of snapshots a sum follows.
const CHAIN_MAX: usize = 1 << 20;
/// What the pool offers to its datasets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolCapacity {
    /// Bytes the root dataset may use.
    pub usable: u64,
    /// Bytes kept back.
    pub slop: u64,
}

impl PoolCapacity {
    /// From the deflated size of the normal class, the deflated size of its embedded log metaslabs
    /// (not in the former), what dedup and cloning save, and what a checkpoint holds.
    pub fn new(normal: u64, embedded_log: u64, saved: u64, checkpoint: u64) -> Self {
        let slop = slop(normal, embedded_log);
        let space = normal.saturating_add(saved).saturating_sub(checkpoint);
        Self { usable: space.saturating_sub(slop), slop }
    }
}

/// `uncompressed / compressed` in hundredths.
pub(super) fn ratio(uncompressed: u64, compressed: u64) -> u64 {
    let hundredfold = u128::from(uncompressed) * 100;
    let ratio = hundredfold.checked_div(compressed.into()).unwrap_or(100);
    u64::try_from(ratio).unwrap_or(u64::MAX)
}

impl Catalog {
    /// Bytes that may still be written below a directory.
    pub fn directory_available(
        &self,
        directory: &Directory,
        capacity: &PoolCapacity,
    ) -> Result<u64> {
        let ancestors = self.ancestors(directory)?;
        let levels: Vec<DirectoryLimits> =
            std::iter::once(directory).chain(&ancestors).map(|at| (&at.phys).into()).collect();
        Ok(available_below(&levels, capacity, 0))
    }

    /// Bytes that may still be written to a head, given its refquota and refreservation.
    pub fn available(
        &self,
        head: &Dataset,
        capacity: &PoolCapacity,
        refquota: u64,
        refreservation: u64,
    ) -> Result<u64> {
        let allowance = self.allowance(head, refquota, refreservation)?;
        Ok(allowance.available(capacity, 0))
    }

    /// What bounds the growth of a head, given its refquota and refreservation.
    pub fn allowance(
        &self,
        head: &Dataset,
        refquota: u64,
        refreservation: u64,
    ) -> Result<Allowance> {
        let ancestors = self.ancestors(&head.directory)?;
        let levels = std::iter::once(&*head.directory).chain(&ancestors).map(|at| &at.phys);
        Ok(Allowance::new(levels, &head.phys, refquota, refreservation))
    }

    /// Space written to a dataset since its previous snapshot (or origin).
    pub fn written(&self, dataset: &Dataset) -> Result<u64> {
        match dataset.phys.previous_snapshot.0 {
            0 => Ok(dataset.phys.referenced_bytes),
            _ => {
                let previous = self.phys(dataset.phys.previous_snapshot)?;
                let since = (referenced(&previous), previous.creation_txg, None);
                Ok(self.written_since_point(dataset, since)?.used)
            }
        }
    }

    /// Space written to `newer` since the snapshot `older` of the same dataset or an ancestor.
    pub fn written_since(&self, newer: &Dataset, older: &Dataset) -> Result<Space> {
        let point = (referenced(&older.phys), older.phys.creation_txg, None);
        self.written_since_point(newer, point)
    }

    /// Space written to `newer` since `bookmark`, which must carry sizes.
    pub fn written_since_bookmark(&self, newer: &Dataset, bookmark: &Bookmark) -> Result<Space> {
        let details = bookmark.details.filter(|details| {
            details.flags & cenote_format::bookmark::FLAG_HAS_FREED_BEFORE_NEXT != 0
        });
        let details =
            details.ok_or_else(|| Error::unsupported("the bookmark does not carry sizes"))?;
        let point = (details.referenced, bookmark.creation_txg, Some(details.freed_before_next));
        self.written_since_point(newer, point)
    }

    /// `point`: referenced sizes, txg, and what was freed before the next snapshot when that is
    /// not in a deadlist of its own.
    fn written_since_point(
        &self,
        newer: &Dataset,
        point: (Space, Txg, Option<Space>),
    ) -> Result<Space> {
        let (old, txg, freed) = point;
        if newer.phys.creation_txg < txg && newer.is_snapshot() {
            return Err(Error::invalid(format!("'{}' is not newer", newer.name)));
        }
        let mut sum = SpaceDifference::default();
        sum.add(&referenced(&newer.phys));
        sum.subtract(&old);
        let mut at = newer.phys.clone();
        for _ in 0..CHAIN_MAX {
            if at.previous_snapshot_txg <= txg {
                // Blocks of this deadlist were born at or before the point; since a bookmark's snapshot
                // went, what died before that is among them too.
                sum.add(&freed.map_or_else(|| self.deadlist_space(at.deadlist), Ok)?);
                return Ok(sum.total());
            }
            sum.add(&self.deadlist_space_until(at.deadlist, txg)?);
            if at.previous_snapshot.0 == 0 {
                return Err(Error::invalid(format!("'{}' is not a descendant", newer.name)));
            }
            let previous = self.phys(at.previous_snapshot)?;
            if previous.previous_snapshot_txg >= at.previous_snapshot_txg {
                break;
            }
            at = previous;
        }
        Err(Error::corrupt("the snapshots form no chain").at_object(0, newer.id.0))
    }
}

fn referenced(phys: &DslDataset) -> Space {
    Space {
        used: phys.referenced_bytes,
        compressed: phys.compressed_bytes,
        uncompressed: phys.uncompressed_bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slop_of_small_and_large_pools() {
        let small = PoolCapacity::new(480 << 20, 0, 0, 0);
        assert_eq!((small.slop, small.usable), (128 << 20, 352 << 20));
        assert_eq!(PoolCapacity::new(100 << 20, 0, 0, 0).slop, 50 << 20);
        let large = PoolCapacity::new(1 << 40, 0, 5, 2);
        assert_eq!((large.slop, large.usable), (32 << 30, (1 << 40) - (32 << 30) + 3));
        assert_eq!(PoolCapacity::new(1 << 50, 0, 0, 0).slop, 128 << 30);
        assert_eq!(PoolCapacity::new(1 << 40, 1 << 30, 0, 0).slop, 31 << 30);
    }

    #[test]
    fn ratios_are_hundredths() {
        assert_eq!((ratio(300, 200), ratio(5, 0), ratio(u64::MAX, 1)), (150, 100, u64::MAX));
    }
}
