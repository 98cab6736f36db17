//! What a device that is to come into the pool says of itself: whether it is a part of that already.
//!
//! Chapter 01, section 9. Invariant: nothing is written to a device before it was asked; what cannot be read says
//! nothing.

use std::path::Path;

use cenote_device::{Device, FileDevice, Mode};
use cenote_format::Guid;
use cenote_format::config::PoolState;

use super::add::AuxiliaryKind;
use crate::pool::found_labels::{FoundLabel, read_labels};
use crate::pool::group::LivePool;
use crate::{Error, ErrorKind, Result};

impl LivePool {
    /// Refuses a device that is a member of this pool by its labels, one that rests or was lost: as a new one it
    /// would lose what it has.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`].
    pub fn refuse_member(&self, device: &dyn Device) -> Result<()> {
        let (pool, vdevs) = (self.pool.guid(), self.vdevs());
        let is_own = |label: &FoundLabel| {
            let leaf = label.config.guid.filter(|_| label.config.pool_guid == Some(pool));
            label.verified && leaf.is_some_and(|leaf| vdevs.topology().find(leaf).is_some())
        };
        if !read_labels(device).unwrap_or_default().iter().any(is_own) {
            return Ok(());
        }
        let (path, name) = (device.path(), self.pool.name());
        let path = path.display();
        let reason = format!(
            "{path} is part of active pool '{name}': zpool online takes it into use again, zpool \
             detach lets it go"
        );
        Err(Error::new(ErrorKind::Busy, reason))
    }

    /// Refuses a device that this pool lists among its hot spares or cache devices.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`]; what the disks say.
    pub fn refuse_listed(&self, device: &dyn Device) -> Result<()> {
        let labels = read_labels(device).unwrap_or_default();
        for kind in [AuxiliaryKind::Spare, AuxiliaryKind::Cache] {
            let entries = self.entries(kind)?.map(|(_, entries)| entries).unwrap_or_default();
            let is_listed = |label: &FoundLabel| {
                let own = label.config.guid.filter(|_| label.verified).map(|guid| guid.0);
                own.is_some() && entries.iter().any(|entry| entry.u64("guid") == own)
            };
            if labels.iter().any(is_listed) {
                let words = match kind {
                    AuxiliaryKind::Spare => "reserved as a hot spare for",
                    AuxiliaryKind::Cache => "a cache device of",
                };
                let (path, name) = (device.path(), self.pool.name());
                let reason = format!("{} is {words} pool {name}", path.display());
                return Err(Error::new(ErrorKind::Busy, reason));
            }
        }
        Ok(())
    }

    /// [`Self::refuse_member`] of what is at `path`, if there is anything that can be read.
    ///
    /// # Errors
    /// As there.
    pub fn refuse_member_at(&self, path: &Path) -> Result<()> {
        match FileDevice::open(path, Mode::ReadOnly) {
            Ok(device) => self.refuse_member(&device),
            Err(_) => Ok(()),
        }
    }

    /// [`Self::refuse_listed`] of what is at `path`, if there is anything that can be read.
    ///
    /// # Errors
    /// As there.
    pub fn refuse_listed_at(&self, path: &Path) -> Result<()> {
        match FileDevice::open(path, Mode::ReadOnly) {
            Ok(device) => self.refuse_listed(&device),
            Err(_) => Ok(()),
        }
    }
}

/// Refuses what is where the hot spare `guid` was and does not say that it is one: another device may have its name
/// by now.
pub(super) fn refuse_other_than_spare(device: &dyn Device, guid: Guid) -> Result<()> {
    // Pools may share one: whose it is does not matter. Where stepping in was cut off it says that it is a member.
    let is_spare = |label: &FoundLabel| {
        label.config.state == Some(PoolState::Spare) || label.config.guid == Some(guid)
    };
    if read_labels(device).unwrap_or_default().iter().any(is_spare) {
        return Ok(());
    }
    let reason = format!("what is at {} now is not the hot spare", device.path().display());
    Err(Error::new(ErrorKind::Busy, reason))
}
