//! What those who look are told: the inventory of datasets that follows what groups write.
//!
//! Invariant: after every order it says of every dataset what a reading of everything finds.

use cenote_engine::dataset::{InventoryReader, PropertyReader, Surroundings};

use crate::run::{Runner, Verdict};

impl Runner {
    /// Compares the inventory with what is on the disks, while all copies of that are right.
    pub(crate) fn look_around(&mut self) -> Verdict {
        let is_well = self.troubles.is_empty() && !self.rotten && !self.dark && !self.failing;
        if !is_well || !self.model.damaged.is_empty() {
            // What could not be read is read from the beginning.
            self.survey = InventoryReader::default();
            return Ok(());
        }
        let pool = self.live.pool();
        let (catalog, changed) = pool.take_changed();
        let (keys, capacity) = (pool.keys().as_ref(), pool.capacity());
        let words = |error| format!("looking around: {error}");
        let next = self.survey.next(&catalog, keys, &changed, self.setup.encrypted);
        let inventory = next.map_err(words)?;
        let around = Surroundings::new(capacity, keys, "");
        let reader = PropertyReader::new(&catalog, capacity, keys, "");
        let root = catalog.root().map_err(words)?;
        let mut known = inventory.all();
        for listed in catalog.list(&root).map_err(words)? {
            let found = known.next().filter(|one| one.name() == listed.name());
            let found =
                found.ok_or_else(|| format!("{} is not seen in its place", listed.name()))?;
            let Ok(read) = reader.all(&listed) else { continue };
            let found = found.properties(&around).map_err(words)?;
            if let Some((one, other)) = found.iter().zip(&read).find(|(one, other)| one != other) {
                return Err(format!("of {} is seen {one:?}, there is {other:?}", listed.name()));
            }
        }
        match known.next() {
            None => Ok(()),
            Some(gone) => Err(format!("{} is seen, and is not there", gone.name())),
        }
    }
}
