//! Space for blocks of intent logs, which they take outside of transaction groups.
//!
//! Invariant: on ordinary devices the logs leave alone what promised changes need and half of the
//! pool's reserve, so that the writer of groups never lacks space for their sake. Who gets no space
//! waits for a group instead.

use std::sync::Arc;

use cenote_format::{Dva, Txg};

use super::Runway;
use crate::alloc::{AllocRequest, Allocator};
use crate::dataset::Promises;
use crate::vdev::{AllocationClass, VdevTree};
use crate::{Error, ErrorKind, Result};

/// Where the logs of a pool find space.
#[derive(Clone)]
pub struct LogSpace {
    /// Hands it out.
    pub allocator: Arc<Allocator>,
    /// What was prepared ahead; all logs of the pool share it.
    pub runway: Arc<Runway>,
    /// Knows what others were promised.
    pub promises: Arc<Promises>,
}

impl LogSpace {
    /// Allocates a block of `size` bytes in group `txg`, which is held open; `spares` leaves log
    /// devices to others.
    pub(super) fn allocate(
        &self,
        vdevs: &VdevTree,
        size: u64,
        txg: Txg,
        spares: bool,
    ) -> Result<Dva> {
        let full = || Error::new(ErrorKind::NoSpace, "no room for the intent log");
        let may_share = self.promises.may_log(size);
        if may_share
            && !spares
            && let Some(dva) = self.runway.take(&self.allocator, vdevs, size, txg)
        {
            return Ok(dva);
        }
        let class = if spares { AllocationClass::Normal } else { AllocationClass::Log };
        let request = AllocRequest { class, ..AllocRequest::new(size, txg) };
        let dvas = match (may_share, spares) {
            (true, _) => self.allocator.allocate_at_once(&request)?,
            (false, true) => return Err(full()),
            (false, false) => self.allocator.allocate_set_aside(&request)?,
        };
        let dva = dvas.first().copied().ok_or_else(full)?;
        if may_share && !spares {
            self.runway.prepare(&self.allocator, vdevs, txg);
        }
        Ok(dva)
    }

    /// Counts what was allocated in group `txg`; whether that is to be written soon.
    pub(super) fn took(&self, vdevs: &VdevTree, dvas: &[Dva], txg: Txg) -> bool {
        let ordinary = dvas.iter().filter(|dva| vdevs.class(dva.vdev) != AllocationClass::Log);
        let bytes = ordinary.fold(0, |sum: u64, dva| {
            let charged = (dva.asize >> 9).saturating_mul(vdevs.deflate_ratio(dva.vdev));
            sum.saturating_add(charged)
        });
        bytes > 0 && self.promises.logged(txg, bytes)
    }
}
