//! How a top-level vdev is cut into metaslabs.
//!
//! Chapter 03, sections 1, 5.1 and 8. Invariant: a metaslab begins and ends where allocations of
//! its vdev may, and metaslabs do not overlap.

use cenote_format::Txg;
use cenote_format::config::{VdevConfig, VdevKind};

use crate::vdev::draid::{Draid, DraidConfig};
use crate::vdev::raidz::Raidz;
use crate::vdev::{METASLABS_MAX, VdevError};
use crate::{Error, Result};

/// Vdevs of the normal class with more metaslabs give one to the intent log.
pub(crate) const EMBEDDED_LOG_ABOVE: u64 = 64;

/// Metaslabs a new vdev has at least, unless they get too small.
const FEWEST: u64 = 16;
/// Metaslabs a new vdev has about.
const WANTED: u64 = 200;
/// log2 of the size of a new vdev's metaslabs if their number allows it.
const USUAL_SHIFT: u32 = 29;
/// log2 of the smallest metaslab of a new vdev.
const SMALLEST_SHIFT: u32 = 24;
/// log2 of the largest metaslab of a new vdev, unless they get too many.
const LARGEST_SHIFT: u32 = 34;
/// Most metaslabs a new vdev has.
const MOST: u64 = 131_072;

/// What the places of allocations on a top-level vdev follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    /// 512ths of allocated bytes that datasets are charged.
    pub(crate) deflate_ratio: u64,
    /// Bytes that the smallest block takes.
    pub(crate) least: u64,
    /// Starts of metaslabs are multiples of this; 1 if only of the sector.
    pub(crate) alignment: u64,
    /// New blocks do not cross multiples of this.
    pub(crate) boundary: Option<u64>,
}

impl Geometry {
    /// Of a top-level vdev.
    pub(crate) fn of(config: &VdevConfig, ashift: u64) -> Result<Self> {
        let children = config.children().len();
        let parity = config.nparity.unwrap_or(1);
        let sector = 1_u64.checked_shl(u32::try_from(ashift).unwrap_or(9)).unwrap_or(512);
        let bad = |error: VdevError| Error::corrupt(error.to_string());
        match config.kind {
            VdevKind::Raidz => {
                let txgs = config.raidz_expand_txgs.iter().flatten().map(|txg| Txg(*txg)).collect();
                let raidz = Raidz::new(ashift, children, parity, txgs, config.raidz_expanding)
                    .map_err(bad)?;
                let least = sector.saturating_mul(parity.saturating_add(1));
                let deflate_ratio = raidz.deflate_ratio();
                Ok(Self { deflate_ratio, least, alignment: 1, boundary: None })
            }
            VdevKind::Draid => {
                let shape = config.draid.unwrap_or_default();
                let draid = Draid::new(DraidConfig {
                    ashift,
                    children,
                    parity,
                    data: shape.data,
                    spares: shape.spares,
                    groups: shape.groups,
                    set: shape.children,
                })
                .map_err(bad)?;
                Ok(Self {
                    deflate_ratio: draid.deflate_ratio(),
                    least: draid.alignment(),
                    alignment: draid.alignment(),
                    boundary: Some(draid.group_size()),
                })
            }
            _ => Ok(Self { deflate_ratio: 512, least: sector, alignment: 1, boundary: None }),
        }
    }

    /// First byte and number of bytes that can be allocated of metaslab `index`; 0 bytes if the
    /// alignment leaves none.
    pub(crate) fn metaslab(&self, index: u64, shift: u32) -> (u64, u64) {
        let (start, size) = (index << shift, 1 << shift);
        let alignment = self.alignment.max(1);
        let aligned = start.checked_next_multiple_of(alignment).unwrap_or(u64::MAX);
        let rest = start.saturating_add(size).saturating_sub(aligned);
        (aligned, rest - rest % alignment)
    }
}

/// A metaslab size (log2) that can be. Early releases cut small devices into metaslabs far smaller
/// than today's 16 MiB: a sector is the only floor.
fn metaslab_shift(shift: u64) -> Option<u32> {
    u32::try_from(shift).ok().filter(|shift| (9..=62).contains(shift))
}

/// What is wrong with the top-level vdev `id`.
pub(crate) fn bad(id: u32, what: &str) -> Error {
    Error::corrupt(format!("top-level vdev {id}: {what}"))
}

/// log2 of the distance of the metaslabs of a vdev of `asize` allocatable bytes, and their number.
pub(crate) fn metaslab_count(id: u32, asize: u64, shift: u64) -> Result<(u32, u64)> {
    let shift = metaslab_shift(shift).ok_or_else(|| bad(id, "impossible metaslab size"))?;
    let count = asize >> shift;
    if count > METASLABS_MAX { Err(bad(id, "too many metaslabs")) } else { Ok((shift, count)) }
}

/// log2 of the size of metaslabs for a new vdev of `asize` allocatable bytes.
pub(super) fn new_metaslab_shift(asize: u64) -> u32 {
    let bits = |size: u64| size.checked_ilog2().map_or(0, |log| log + 1);
    let count = asize >> USUAL_SHIFT;
    let shift = if count < FEWEST {
        bits(asize / FEWEST)
    } else if count > WANTED {
        bits(asize / WANTED)
    } else {
        USUAL_SHIFT
    };
    if shift < SMALLEST_SHIFT {
        SMALLEST_SHIFT
    } else if shift > LARGEST_SHIFT && asize >> LARGEST_SHIFT > MOST {
        bits(asize / MOST)
    } else {
        shift.min(LARGEST_SHIFT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_metaslabs_have_the_size_of_the_reference() {
        // Chapter 03, section 8: four real vdevs.
        let real =
            [(1_054_867_456, 26), (263_716_864, 24), (1_846_018_048, 27), (4_328_521_728, 29)];
        for (asize, shift) in real {
            assert_eq!(new_metaslab_shift(asize), shift, "{asize}");
        }
        assert_eq!(new_metaslab_shift(64 << 20), 24);
        assert_eq!(new_metaslab_shift(100 << 30), 29);
        assert_eq!(new_metaslab_shift(4 << 40), 35 - 1);
        assert_eq!(new_metaslab_shift(4 << 50), 36);
    }

    #[test]
    fn metaslabs_of_aligned_vdevs_shrink() {
        let plain = Geometry { deflate_ratio: 512, least: 4096, alignment: 1, boundary: None };
        assert_eq!(plain.metaslab(1, 29), (1 << 29, 1 << 29));
        let alignment = 6 << 12;
        let draid = Geometry { alignment, ..plain };
        // Chapter 03, section 8: nominal 0x20000000 begins at 0x20004000.
        let (start, size) = draid.metaslab(1, 29);
        assert_eq!(start, 0x2000_4000);
        assert_eq!((size % alignment, start + size <= 2 << 29), (0, true));
        assert_eq!(draid.metaslab(0, 12).1, 0);
    }

    #[test]
    fn metaslabs_of_early_pools_are_small() {
        // A version 1 pool on a 64 MiB device has metaslabs of 512 KiB.
        assert_eq!(metaslab_shift(19), Some(19));
        assert_eq!([0, 8, 64, u64::MAX].map(metaslab_shift), [None; 4]);
    }
}
