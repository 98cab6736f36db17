//! Receives under way: the heads they fill, and how far each has come by group.
//!
//! Invariant: what a group records as received is what that group and those before it hold; nobody else
//! destroys or renames a head that is being filled.

use std::collections::BTreeMap;

use cenote_format::{ObjectId, Txg};
use parking_lot::Mutex;

use super::LivePool;
use crate::dataset::change::{MosChange, ResumePoint};
use crate::txg::Tx;
use crate::{Error, ErrorKind, Result};

/// The newest point of a receive in each group, modulo 4.
type Points = [Option<(Txg, ResumePoint)>; 4];

/// Heads that are being filled.
#[derive(Default)]
pub(in crate::pool) struct Receives(Mutex<BTreeMap<ObjectId, Points>>);

fn slot(txg: Txg) -> usize {
    (txg.0 & 3) as usize
}

impl LivePool {
    /// The head `id` is being filled, until [`LivePool::release_received`].
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if it is already.
    pub fn claim_received(&self, id: ObjectId) -> Result<()> {
        let mut all = self.receives.0.lock();
        if all.contains_key(&id) {
            return Err(busy());
        }
        all.insert(id, Points::default());
        Ok(())
    }

    /// The head is not filled any more.
    pub fn release_received(&self, id: ObjectId) {
        self.receives.0.lock().remove(&id);
    }

    /// Notes how far the receive into the head `id` has come with `tx`.
    pub fn note_received(&self, tx: &Tx, id: ObjectId, point: ResumePoint) {
        let mut all = self.receives.0.lock();
        let points = all.get_mut(&id);
        if let Some(place) = points.and_then(|points| points.get_mut(slot(tx.txg()))) {
            *place = Some((tx.txg(), point));
        }
    }

    /// Whether something is being received.
    pub fn is_receiving(&self) -> bool {
        !self.receives.0.lock().is_empty()
    }

    /// [`ErrorKind::Busy`] if the head `id` is being filled.
    pub(crate) fn refuse_received(&self, id: ObjectId) -> Result<()> {
        match self.receives.0.lock().contains_key(&id) {
            true => Err(busy()),
            false => Ok(()),
        }
    }

    /// Records in the group being written how far resumable receives have come with it.
    pub(super) fn record_receives(&self, change: &MosChange<'_>) -> Result<()> {
        let txg = change.tx.txg();
        let due: Vec<(ObjectId, ResumePoint)> = {
            let mut all = self.receives.0.lock();
            let points = all.iter_mut().filter_map(|(id, points)| {
                let point = points.get_mut(slot(txg))?;
                let (of, point) = point.take_if(|(of, _)| *of <= txg)?;
                (of == txg).then_some((*id, point))
            });
            points.collect()
        };
        for (id, point) in due {
            match change.dataset(id) {
                // It has just been given up.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                found => found.and_then(|_| change.set_resume_point(id, &point))?,
            }
        }
        Ok(())
    }
}

fn busy() -> Error {
    Error::new(ErrorKind::Busy, "dataset is busy")
}
