//! How much space there is, as published after every group.
//!
//! Chapter 03, sections 1 and 11; chapter 06, section 8. Sizes are bytes, parity included, unless
//! they are called deflated. Invariant: sums never wrap.

use cenote_format::Txg;

use crate::vdev::AllocationClass;

/// Share of a pool kept back, as a shift.
const SLOP_SHIFT: u32 = 5;
/// Least space kept back, unless that is more than half the pool.
const SLOP_MIN: u64 = 128 << 20;
/// Most space kept back.
const SLOP_MAX: u64 = 128 << 30;

/// Bytes kept back of a pool whose normal class has `normal` deflated bytes and `embedded` more in
/// metaslabs of the intent log.
pub fn slop(normal: u64, embedded: u64) -> u64 {
    let slop = (normal >> SLOP_SHIFT).min(SLOP_MAX);
    let slop = slop - embedded.min(slop >> 1);
    slop.max(SLOP_MIN.min(normal >> 1))
}

/// Space of a top-level vdev.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopFigures {
    /// Its id.
    pub id: u32,
    /// What it is for.
    pub class: AllocationClass,
    /// Bytes in its metaslabs.
    pub size: u64,
    /// Of these, allocated according to the space maps.
    pub allocated: u64,
    /// Freed in the last groups: not in `allocated`, but not to be used yet. OpenZFS shows the sum
    /// of both as allocated.
    pub deferred: u64,
    /// Free, but nobody knows where: space maps that cannot be read any more tell.
    pub lost: u64,
    /// Bytes of what is free that gang headers would take if large blocks filled what lies in short segments; 0 if the
    /// pool does not keep the histograms.
    pub headers: u64,
    /// Percent; `None` if the pool does not keep the histograms.
    pub fragmentation: Option<u64>,
    /// 512ths of an allocated size that datasets are charged.
    pub deflate_ratio: u64,
    /// Bytes of the metaslab set aside for the intent log.
    pub embedded_log: u64,
    /// Nothing new goes there.
    pub passive: bool,
    /// Bytes of memory its mapping takes if it is removed, about; `None` if the pool does not keep the
    /// histograms.
    pub mapping_estimate: Option<u64>,
}

impl TopFigures {
    /// What datasets are charged for so many allocated bytes.
    pub fn deflated(&self, bytes: u64) -> u64 {
        (bytes >> 9).saturating_mul(self.deflate_ratio)
    }

    /// Bytes that are neither allocated nor held back nor lost.
    pub fn free(&self) -> u64 {
        let taken = self.allocated.saturating_add(self.deferred).saturating_add(self.lost);
        self.size.saturating_sub(taken)
    }

    /// Bytes that blocks of any size can have.
    pub fn free_for_blocks(&self) -> u64 {
        self.free().saturating_sub(self.headers)
    }
}

/// Space of a pool as of the newest group on the disks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// That group.
    pub txg: Txg,
    /// By top-level vdev that holds data, ascending.
    pub tops: Vec<TopFigures>,
}

impl Figures {
    fn sum(&self, class: AllocationClass, what: impl Fn(&TopFigures) -> u64) -> u64 {
        let tops = self.tops.iter().filter(|top| top.class == class);
        tops.fold(0, |sum: u64, top| sum.saturating_add(what(top)))
    }

    /// Bytes of a class.
    pub fn size(&self, class: AllocationClass) -> u64 {
        self.sum(class, |top| top.size)
    }

    /// Allocated bytes of a class.
    pub fn allocated(&self, class: AllocationClass) -> u64 {
        self.sum(class, |top| top.allocated)
    }

    /// Allocated bytes of all classes.
    pub fn all_allocated(&self) -> u64 {
        self.tops.iter().fold(0, |sum, top| sum.saturating_add(top.allocated))
    }

    /// Bytes of a class that are freed but not to be used yet.
    pub fn deferred(&self, class: AllocationClass) -> u64 {
        self.sum(class, |top| top.deferred)
    }

    /// Bytes of a class that can be allocated.
    pub fn free(&self, class: AllocationClass) -> u64 {
        self.sum(class, |top| if top.passive { 0 } else { top.free() })
    }

    /// Deflated bytes of the normal class, the intent log's metaslabs, vdevs that take nothing and what is
    /// lost left out: what the datasets share, before [`Figures::slop`].
    pub fn usable(&self) -> u64 {
        self.sum(AllocationClass::Normal, |top| match top.passive {
            true => 0,
            false => {
                let left_out = top.embedded_log.saturating_add(top.lost);
                top.deflated(top.size.saturating_sub(left_out))
            }
        })
    }

    /// Deflated bytes of the metaslabs set aside for the intent log.
    pub fn embedded_log(&self) -> u64 {
        self.sum(AllocationClass::Normal, |top| match top.passive {
            true => 0,
            false => top.deflated(top.embedded_log),
        })
    }

    /// Deflated bytes of the normal class held back after frees.
    pub fn deferred_deflated(&self) -> u64 {
        self.sum(AllocationClass::Normal, |top| top.deflated(top.deferred))
    }

    /// Bytes that are kept back so that a full pool still works.
    pub fn slop(&self) -> u64 {
        slop(self.usable(), self.embedded_log())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slop_of_small_and_large_pools() {
        assert_eq!(slop(480 << 20, 0), 128 << 20);
        assert_eq!(slop(100 << 20, 0), 50 << 20);
        assert_eq!(slop(1 << 40, 0), 32 << 30);
        assert_eq!(slop(1 << 50, 0), 128 << 30);
        assert_eq!(slop(1 << 40, 1 << 30), 31 << 30);
    }

    #[test]
    fn sums_go_by_class() {
        let top = |class, passive| TopFigures {
            id: 0,
            class,
            size: 1 << 30,
            allocated: 1 << 20,
            deferred: 1 << 12,
            lost: 0,
            headers: 0,
            fragmentation: None,
            deflate_ratio: 256,
            embedded_log: 1 << 29,
            passive,
            mapping_estimate: None,
        };
        let tops = vec![
            top(AllocationClass::Normal, false),
            top(AllocationClass::Normal, true),
            top(AllocationClass::Log, false),
        ];
        let figures = Figures { txg: Txg(5), tops };
        assert_eq!(figures.size(AllocationClass::Normal), 2 << 30);
        assert_eq!(figures.free(AllocationClass::Normal), (1 << 30) - (1 << 20) - (1 << 12));
        assert_eq!((figures.usable(), figures.embedded_log()), (1 << 28, 1 << 28));
        assert_eq!(figures.deferred(AllocationClass::Log), 1 << 12);
        assert_eq!(figures.deferred_deflated(), 1 << 12);
    }
}
