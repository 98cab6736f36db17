//! Hot spares: which there are, and that they step in by themselves.
//!
//! Chapter 08, section 17. Invariant: a spare stays in the pool's list as long as it stands in for another
//! device; nothing is written to what does not say of itself that it is a spare.

use std::path::Path;
use std::time::Instant;

use cenote_device::{Device, DeviceError, FileDevice, Mode};
use cenote_format::Guid;
use cenote_format::config::{VdevConfig, VdevKind};

use super::add::AuxiliaryKind;
use super::members::Newcomer;
use super::own::refuse_other_than_spare;
use crate::Result;
use crate::pool::group::LivePool;
use crate::pool::leaves::HeldDevices;

impl LivePool {
    /// The pool's hot spare that `leaf` (its guid or path) is, as it stands in for others.
    ///
    /// # Errors
    /// If the list cannot be read.
    pub(super) fn spare_like(&self, leaf: &VdevConfig) -> Result<Option<VdevConfig>> {
        let is_it = |spare: &VdevConfig| {
            spare.guid == leaf.guid || spare.path.is_some() && spare.path == leaf.path
        };
        Ok(self.spares()?.into_iter().find(is_it))
    }

    fn spares(&self) -> Result<Vec<VdevConfig>> {
        let entries = self.entries(AuxiliaryKind::Spare)?.map(|(_, entries)| entries);
        let entries = entries.unwrap_or_default();
        let spares =
            entries.iter().map(VdevConfig::from_nvlist).collect::<std::result::Result<_, _>>();
        let mut spares: Vec<VdevConfig> = spares?;
        spares.iter_mut().for_each(|spare| spare.is_spare = true);
        Ok(spares)
    }

    /// Records which devices gave wrong bytes too often: they count as degraded until somebody trusts them again.
    fn record_liars(&self) {
        if self.vdevs().lying().is_empty() || self.gate.suspension().is_some() {
            return;
        }
        let recorded = self.change(|live, change| {
            // Somebody may have forgiven them meanwhile.
            live.record_worn(change, live.vdevs().lying())
        });
        if let Err(error) = recorded {
            tracing::info!(%error, "that a device had too many errors is not recorded");
        }
    }

    /// Lets spares step in for devices that are lost or had too many errors, where there are any.
    pub(in crate::pool) fn let_spares_step_in(&self) {
        self.record_liars();
        let lost = self.vdevs().lost();
        let due = self.spare_watch.due(&lost, Instant::now());
        if due.is_empty() || self.gate.suspension().is_some() {
            return;
        }
        let spares = match self.spares() {
            Ok(spares) => spares,
            Err(error) => return tracing::warn!(%error, "the list of spares cannot be read"),
        };
        for leaf in due {
            self.let_one_step_in(leaf, &spares);
        }
    }

    /// Lets the first of `spares` that can step in for `leaf`: of devices the smallest. One that had too many errors
    /// keeps its spare until somebody says that it is well.
    fn let_one_step_in(&self, leaf: Guid, spares: &[VdevConfig]) {
        let topology = self.vdevs().topology().clone();
        let top = topology.top_of(leaf).and_then(|id| topology.top(id)).map(|top| top.guid);
        // Those of its own dRAID first: the others of that share the work.
        let own = spares
            .iter()
            .filter(|spare| spare.kind == VdevKind::DistributedSpare && spare.top_guid == top);
        let goes_back = !self.vdevs().is_worn(leaf);
        let mut others: Vec<_> = spares.iter().filter(|spare| spare.kind.has_device()).collect();
        others.sort_by_cached_key(|spare| size_of(spare));
        for spare in own.chain(others).filter(|spare| topology.find(spare.guid).is_none()) {
            if !is_there(spare) {
                let path = spare.path.as_deref();
                tracing::info!(path, "what is there now is not the hot spare: it is left alone");
                continue;
            }
            // Where nothing is known of blocks, all of it comes in the order of the disks.
            for sequential in [true, false] {
                if sequential && spare.kind.has_device() {
                    continue;
                }
                let (path, opener) = (spare.path.clone(), HeldDevices::new().new_leaves());
                let newcomer = Newcomer {
                    beside: leaf,
                    leaf: spare.clone(),
                    replaces: true,
                    goes_back,
                    sequential,
                };
                match self.take_in(newcomer, opener) {
                    Ok(()) => {
                        tracing::warn!(leaf = leaf.0, path, "a hot spare steps in");
                        return;
                    }
                    Err(error) => tracing::info!(path, %error, "a hot spare does not step in"),
                }
            }
        }
    }
}

/// Bytes of the device of a hot spare; as if it was the largest if nobody knows.
fn size_of(spare: &VdevConfig) -> u64 {
    let path = spare.path.as_deref().unwrap_or_default();
    FileDevice::open(Path::new(path), Mode::ReadOnly).map_or(u64::MAX, |device| device.size())
}

/// Whether the device of a hot spare is where it was: another one may have its name by now.
fn is_there(spare: &VdevConfig) -> bool {
    let Some(path) = spare.path.as_deref().filter(|_| spare.kind.has_device()) else { return true };
    match FileDevice::open(Path::new(path), Mode::ReadOnly) {
        Ok(device) => refuse_other_than_spare(&device, spare.guid).is_ok(),
        // Nothing is taken that is not there.
        Err(DeviceError::Io(error)) => error.kind() == std::io::ErrorKind::NotFound,
        Err(_) => false,
    }
}
