//! How much a dataset may still grow: the pool's room, quotas and reservations on the way up.
//!
//! Chapter 06, section 8.4. Invariant: pure arithmetic over what was read before; nothing waits.

use cenote_format::dsl_dataset::DslDataset;
use cenote_format::dsl_directory::DslDirectory;

use super::PoolCapacity;
use crate::{Error, ErrorKind, Result};

/// What bounds the growth of one directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirectoryLimits {
    /// Bytes used, children and reservations included.
    pub used: u64,
    /// Most bytes; 0 for any.
    pub quota: u64,
    /// Bytes reserved.
    pub reserved: u64,
}

impl From<&DslDirectory> for DirectoryLimits {
    fn from(phys: &DslDirectory) -> Self {
        Self { used: phys.used_bytes, quota: phys.quota, reserved: phys.reserved }
    }
}

/// What bounds the growth of a head.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allowance {
    /// Its directory first, then those above, the pool's root last.
    pub directories: Vec<DirectoryLimits>,
    /// Bytes the head refers to.
    pub referenced: u64,
    /// Most bytes it may refer to; 0 for any.
    pub refquota: u64,
    /// Bytes of it that no snapshot has.
    pub unique: u64,
    /// Bytes held back for it.
    pub refreservation: u64,
}

/// Bytes that a directory may grow by. `directories` as in [`Allowance`]; `pending` bytes are on
/// their way into the directory itself.
pub fn available_below(
    directories: &[DirectoryLimits],
    capacity: &PoolCapacity,
    pending: u64,
) -> u64 {
    let mut available = u64::MAX;
    for (index, level) in directories.iter().rev().enumerate() {
        let used = level.used.saturating_add(pending);
        let mut quota = if level.quota == 0 { u64::MAX } else { level.quota };
        if index == 0 {
            quota = quota.min(capacity.usable);
        } else {
            available = available.saturating_add(level.reserved.saturating_sub(used));
        }
        available = available.min(quota.saturating_sub(used));
    }
    available
}

impl Allowance {
    /// The limits of a head below `directories`, its own first.
    pub fn new<'a>(
        directories: impl IntoIterator<Item = &'a DslDirectory>,
        head: &DslDataset,
        refquota: u64,
        refreservation: u64,
    ) -> Self {
        Self {
            directories: directories.into_iter().map(DirectoryLimits::from).collect(),
            referenced: head.referenced_bytes,
            refquota,
            unique: head.unique_bytes,
            refreservation,
        }
    }

    /// Bytes that the head may still grow by when `pending` bytes are on their way into it.
    pub fn available(&self, capacity: &PoolCapacity, pending: u64) -> u64 {
        let below = available_below(&self.directories, capacity, pending);
        let held = self.refreservation.saturating_sub(self.unique.saturating_add(pending));
        let available = below.saturating_add(held);
        match self.refquota {
            0 => available,
            quota => {
                let referenced = self.referenced.saturating_add(pending);
                available.min(quota.saturating_sub(referenced))
            }
        }
    }

    /// Whether the head may grow by `growth` bytes when `pending` are on their way into it:
    /// [`ErrorKind::Quota`] if a quota is in the way, [`ErrorKind::NoSpace`] if the pool is full.
    pub fn check(&self, capacity: &PoolCapacity, pending: u64, growth: u64) -> Result<()> {
        if growth <= self.available(capacity, pending) {
            return Ok(());
        }
        let unlimited = Self {
            directories: self
                .directories
                .iter()
                .map(|level| DirectoryLimits { quota: 0, ..*level })
                .collect(),
            refquota: 0,
            ..*self
        };
        if growth <= unlimited.available(capacity, pending) {
            return Err(Error::new(ErrorKind::Quota, "disk quota exceeded"));
        }
        Err(Error::new(ErrorKind::NoSpace, "no space left in the pool"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POOL: PoolCapacity = PoolCapacity { usable: 1000, slop: 0 };

    fn level(used: u64, quota: u64, reserved: u64) -> DirectoryLimits {
        DirectoryLimits { used, quota, reserved }
    }

    fn below(directories: Vec<DirectoryLimits>) -> Allowance {
        Allowance { directories, ..Allowance::default() }
    }

    #[test]
    fn the_tightest_limit_counts() {
        let plain = below(vec![level(100, 0, 0), level(300, 0, 0)]);
        assert_eq!(plain.available(&POOL, 0), 700);
        assert_eq!(plain.available(&POOL, 50), 650);
        let quota = below(vec![level(100, 150, 0), level(300, 0, 0)]);
        assert_eq!(quota.available(&POOL, 0), 50);
        assert_eq!(quota.check(&POOL, 0, 60).unwrap_err().kind(), ErrorKind::Quota);
        assert_eq!(plain.check(&POOL, 0, 701).unwrap_err().kind(), ErrorKind::NoSpace);
        assert!(plain.check(&POOL, 0, 700).is_ok());
        let refquota = Allowance { referenced: 90, refquota: 100, ..plain };
        assert_eq!(refquota.available(&POOL, 4), 6);
        assert_eq!(refquota.check(&POOL, 4, 7).unwrap_err().kind(), ErrorKind::Quota);
    }

    #[test]
    fn reservations_are_room_of_ones_own() {
        // The root is full, but 200 bytes of that are this directory's, unused.
        let reserved = below(vec![level(100, 0, 300), level(1000, 0, 0)]);
        assert_eq!(reserved.available(&POOL, 0), 200);
        let held = Allowance { unique: 40, refreservation: 100, ..reserved };
        assert_eq!(held.available(&POOL, 0), 260);
    }
}
