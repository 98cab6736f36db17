//! Space of directories: charged where it is used, and to every directory above.
//!
//! Chapter 06, section 8.3. Invariant: the breakdown of a directory adds up to its used bytes, and
//! what its children use or reserve is in its breakdown, unless it was found otherwise; used bytes never
//! wrap.

use cenote_format::bpobj::Space;
use cenote_format::dsl_directory::{DslDirectory, FLAG_USED_BREAKDOWN};
use cenote_format::{ObjectId, dsl_directory};

use super::super::allowance::{DirectoryLimits, available_below};
use super::super::name::DEPTH_MAX;
use super::MosChange;
use crate::{Error, Result};

/// A change of space, which may be negative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delta {
    /// Allocated bytes.
    pub used: i128,
    /// Physical bytes.
    pub compressed: i128,
    /// Logical bytes.
    pub uncompressed: i128,
}

impl Delta {
    /// A change of allocated bytes alone.
    pub fn used(used: i128) -> Self {
        Self { used, ..Self::default() }
    }

    /// The difference `to - from`.
    pub fn between(from: u64, to: u64) -> i128 {
        i128::from(to) - i128::from(from)
    }
}

impl From<Space> for Delta {
    fn from(space: Space) -> Self {
        Self {
            used: space.used.into(),
            compressed: space.compressed.into(),
            uncompressed: space.uncompressed.into(),
        }
    }
}

impl std::ops::AddAssign for Delta {
    fn add_assign(&mut self, other: Self) {
        self.used += other.used;
        self.compressed += other.compressed;
        self.uncompressed += other.uncompressed;
    }
}

impl std::ops::Add for Delta {
    type Output = Self;
    fn add(mut self, other: Self) -> Self {
        self += other;
        self
    }
}

impl std::ops::Neg for Delta {
    type Output = Self;
    fn neg(self) -> Self {
        Self { used: -self.used, compressed: -self.compressed, uncompressed: -self.uncompressed }
    }
}

impl std::ops::Sub for Delta {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        self + -other
    }
}

/// Which part of a directory's used bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// The live head's.
    Head,
    /// Its snapshots'.
    Snapshots,
    /// Its children's.
    Children,
    /// What its children reserve and do not use.
    ChildReservations,
    /// What is held back for the head's refreservation.
    Refreservation,
}

/// `value + change`, which must be a number; an accounting that goes below nothing is wrong.
pub(super) fn shifted(value: u64, change: i128, what: &str) -> Result<u64> {
    u64::try_from(i128::from(value).saturating_add(change)).map_err(|_| {
        Error::corrupt(format!("the {what} bytes of {value} cannot change by {change}"))
    })
}

/// `value + change`, kept within bounds: for sums that only inform.
pub(super) fn clipped(value: u64, change: i128) -> u64 {
    u64::try_from(i128::from(value).saturating_add(change).max(0)).unwrap_or(u64::MAX)
}

/// A share as a number that may have been counted below nothing.
pub(super) fn signed(share: u64) -> i128 {
    share.cast_signed().into()
}

/// Changes a share of what a directory uses. Shares only inform, and software before this let some of them
/// get below nothing: that must not stop the pool, of which the totals are right.
fn add_to(at: ObjectId, phys: &mut DslDirectory, share: Share, used: i128) {
    if phys.flags & FLAG_USED_BREAKDOWN == 0 {
        return;
    }
    let breakdown = &mut phys.used_breakdown;
    let (field, what) = match share {
        Share::Head => (&mut breakdown.head, "head's used"),
        Share::Snapshots => (&mut breakdown.snapshots, "snapshots' used"),
        Share::Children => (&mut breakdown.children, "children's used"),
        Share::ChildReservations => (&mut breakdown.child_reservations, "children's reserved"),
        Share::Refreservation => (&mut breakdown.refreservation, "refreservation's"),
    };
    let sum = signed(*field) + used;
    if sum < 0 {
        tracing::warn!(directory = at.0, sum, "the {what} bytes were left wrong: counted as none");
    }
    *field = clipped(0, sum);
}

impl MosChange<'_> {
    /// Charges `delta` to a directory and, as far as reservations do not cover it, to all above.
    pub fn charge(&self, directory: ObjectId, share: Share, delta: Delta) -> Result<()> {
        if delta == Delta::default() {
            return Ok(());
        }
        let (mut at, mut share, mut delta) = (directory, share, delta);
        let mut covered = 0;
        for _ in 0..=DEPTH_MAX {
            let located = |error: Error| error.at_object(0, at.0);
            let mut phys = self.directory(at)?;
            let before = phys.used_bytes.max(phys.reserved);
            phys.used_bytes = shifted(phys.used_bytes, delta.used, "used").map_err(located)?;
            add_to(at, &mut phys, share, delta.used);
            if covered != 0 {
                add_to(at, &mut phys, Share::ChildReservations, -covered);
                add_to(at, &mut phys, Share::Children, covered);
            }
            phys.compressed_bytes = clipped(phys.compressed_bytes, delta.compressed);
            phys.uncompressed_bytes = clipped(phys.uncompressed_bytes, delta.uncompressed);
            let accounted = Delta::between(before, phys.used_bytes.max(phys.reserved));
            self.set_directory(at, &phys)?;
            if phys.parent.0 == 0 {
                return Ok(());
            }
            covered = delta.used - accounted;
            delta.used = accounted;
            (at, share) = (phys.parent, Share::Children);
        }
        Err(Error::corrupt("the parents of a directory do not end").at_object(0, directory.0))
    }

    /// Moves `used` bytes of one directory from one share to another.
    pub fn transfer(&self, directory: ObjectId, used: i128, from: Share, to: Share) -> Result<()> {
        if used == 0 {
            return Ok(());
        }
        let mut phys = self.directory(directory)?;
        add_to(directory, &mut phys, from, -used);
        add_to(directory, &mut phys, to, used);
        self.set_directory(directory, &phys)
    }

    /// The hidden directory `name` (such as `$MOS`) below the root.
    pub fn hidden_directory(&self, name: &str) -> Result<ObjectId> {
        let root = self.directory(self.root_directory()?)?;
        let id = self.number(root.child_map, name)?;
        let missing = || Error::corrupt(format!("the pool has no directory '{name}'"));
        id.map(ObjectId).ok_or_else(missing)
    }

    /// Charges the meta object set's own blocks: what it gained less what it lost since the last
    /// call. To be called before each pass that writes it.
    pub fn charge_mos(&self, delta: Delta) -> Result<()> {
        if delta == Delta::default() {
            return Ok(());
        }
        self.charge(self.hidden_directory(MOS_DIRECTORY)?, Share::Head, delta)
    }
}

impl MosChange<'_> {
    /// The limits of a directory and of those above it, the root last.
    pub(super) fn limits_above(&self, directory: ObjectId) -> Result<Vec<DirectoryLimits>> {
        let (mut levels, mut at) = (Vec::new(), directory);
        while levels.len() <= DEPTH_MAX {
            let phys = self.directory(at)?;
            levels.push(DirectoryLimits::from(&phys));
            at = phys.parent;
            if at.0 == 0 {
                return Ok(levels);
            }
        }
        Err(Error::corrupt("the parents of a directory do not end").at_object(0, directory.0))
    }

    /// Bytes that may be charged to a directory when `moved` bytes leave another for it: what both have above
    /// them gets those back, but for what stays reserved for those they leave.
    pub(super) fn available_to_moved(
        &self,
        from: ObjectId,
        to: ObjectId,
        moved: u64,
    ) -> Result<u64> {
        let common = self.limits_above(self.common_ancestor(from, to)?)?.len();
        let mut levels = self.limits_above(to)?;
        let mut leaving = moved;
        let mut left = Vec::new();
        for level in self.limits_above(from)? {
            left.push(leaving);
            let now = level.used.saturating_sub(leaving).max(level.reserved);
            leaving = level.used.max(level.reserved).saturating_sub(now);
        }
        for (level, left) in levels.iter_mut().rev().zip(left.iter().rev()).take(common) {
            level.used = level.used.saturating_sub(*left);
        }
        Ok(available_below(&levels, &self.hooks.capacity(), 0))
    }

    /// Bytes that may still be charged to a directory.
    pub(super) fn available_to(&self, directory: ObjectId) -> Result<u64> {
        Ok(available_below(&self.limits_above(directory)?, &self.hooks.capacity(), 0))
    }
}

/// Directory that the meta object set's blocks are charged to.
pub const MOS_DIRECTORY: &str = "$MOS";
/// Directory that blocks waiting to be freed are charged to.
pub const FREE_DIRECTORY: &str = "$FREE";
/// Directory of the empty snapshot that every dataset is a clone of.
pub const ORIGIN_DIRECTORY: &str = "$ORIGIN";

/// A directory as it begins: nothing used.
pub(super) fn blank_directory(parent: ObjectId, now: u64) -> DslDirectory {
    DslDirectory {
        creation_time: now,
        parent,
        flags: dsl_directory::FLAG_USED_BREAKDOWN,
        ..DslDirectory::default()
    }
}
