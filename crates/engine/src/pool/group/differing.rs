//! Sides of a vdev that is emptied differ: which of them is right, a scrub has to tell.
//!
//! No checksum is known of what a removal copies, and where it goes may have fewer sides: what is right
//! could be left behind. So the removal waits for a scrub of the whole pool, which writes anew what is
//! wrong, and goes on. What differs afterwards is in no block (space taken and never written), or was
//! written to a device that only says it writes: there the side is believed that the scrub found fewest
//! errors on. Invariant: of sides that differ none is preferred before a scrub has ended that began after
//! they were seen to differ.

use std::ops::Range;

use bytes::Bytes;
use cenote_format::Txg;
use cenote_format::scan_state::{ScanFunction, ScanPhase};

use super::LivePool;
use crate::dataset::change::MosChange;
use crate::{Error, ErrorKind, Result};

/// Scrubs after which a side is believed though all had errors in each of them.
const MOST_SCRUBS: u32 = 3;

/// Sides of a vdev were found to differ.
#[derive(Clone, Debug)]
pub(super) struct Doubt {
    vdev: u32,
    /// Group in which the last scrub was begun that is to tell.
    since: Txg,
    /// Errors of each side by then.
    errors: Vec<u64>,
    /// Scrubs begun.
    scrubs: u32,
}

fn part<'a>(side: &'a Bytes, range: &Range<u64>) -> Option<&'a [u8]> {
    let (start, end) = (usize::try_from(range.start).ok()?, usize::try_from(range.end).ok()?);
    side.get(start..end)
}

/// Whether sides are not all the same in what is `used`.
pub(super) fn differ(sides: &[Bytes], used: &[Range<u64>]) -> bool {
    let Some((first, others)) = sides.split_first() else { return false };
    let is_other = |side: &Bytes| used.iter().any(|range| part(side, range) != part(first, range));
    others.iter().any(|side| side != first && is_other(side))
}

/// The side with fewest errors; none where all have some and it `may_ask` again.
fn least(errors: &[u64], may_ask: bool) -> Option<usize> {
    let (side, fewest) = errors.iter().enumerate().min_by_key(|(_, errors)| **errors)?;
    (*fewest == 0 || !may_ask).then_some(side)
}

impl LivePool {
    /// The side of vdev `id` that is to be believed where they differ, if that is known.
    pub(super) fn right_side(&self, id: u32) -> Option<usize> {
        let doubt = self.evacuation.doubt.lock().clone().filter(|doubt| doubt.vdev == id)?;
        let record = self.scan.progress().record?;
        let is_whole = record.function == ScanFunction::Scrub && record.min_txg.0 == 0;
        let is_over = record.phase == ScanPhase::Finished && record.max_txg >= doubt.since;
        if !is_whole || !is_over {
            return None;
        }
        let now = self.vdevs().errors_of_sides(id);
        let met = now.iter().zip(&doubt.errors).map(|(now, then)| now.saturating_sub(*then));
        least(&met.collect::<Vec<u64>>(), doubt.scrubs < MOST_SCRUBS)
    }

    /// Has a scrub begun that tells which side of vdev `id` is right, unless the pool is scanned already:
    /// then that has to end first. What the removal waits for.
    pub(super) fn have_sides_told_apart(&self, change: &MosChange<'_>, id: u32) -> Result<Error> {
        let words = "two sides of what is removed differ, and the removal goes on when a scrub has \
                     told which is right";
        if self.is_scanning().is_some() || self.is_rebuilding() {
            return Ok(Error::new(ErrorKind::Busy, format!("{words}; see 'zpool status'")));
        }
        self.begin_scrub_after(change, None)?;
        let (since, errors) = (change.tx.txg(), self.vdevs().errors_of_sides(id));
        let mut slot = self.evacuation.doubt.lock();
        let before = slot.take().filter(|doubt| doubt.vdev == id);
        let scrubs = before.map_or(1, |doubt| doubt.scrubs.saturating_add(1));
        *slot = Some(Doubt { vdev: id, since, errors, scrubs });
        Ok(Error::new(ErrorKind::Busy, format!("{words}; it has begun")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sides_differ_where_something_is_in_use() {
        let side = |bytes: &[u8]| Bytes::copy_from_slice(bytes);
        let all = std::slice::from_ref(&(0..6));
        let (one, other) = (side(b"abcdef"), side(b"abXdef"));
        assert!(differ(&[one.clone(), other.clone()], all));
        assert!(!differ(&[one.clone(), other.clone()], &[0..2, 3..6]));
        assert!(differ(&[one.clone(), one.clone(), other], &[0..1, 2..4]));
        assert!(!differ(std::slice::from_ref(&one), all) && !differ(&[], all));
        // One that is shorter is another.
        assert!(differ(&[one, side(b"abc")], all));
    }

    #[test]
    fn the_side_without_errors_is_believed_and_of_all_with_some_the_best_in_the_end() {
        assert_eq!(least(&[3, 0, 1], true), Some(1));
        assert_eq!(least(&[0, 0], true), Some(0));
        assert_eq!(least(&[3, 2], true), None);
        assert_eq!(least(&[3, 2], false), Some(1));
        assert_eq!(least(&[], false), None);
    }
}
