//! Which blocks could not be read since the pool was opened.
//!
//! Invariant: at most [`MOST`] are remembered; noting one waits for nothing but a short lock.

use std::collections::BTreeSet;

use parking_lot::Mutex;

use crate::{Error, ErrorKind};

/// Most blocks that are remembered.
const MOST: usize = 1 << 16;

/// A block that somebody asked for and that could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fault {
    /// Object number of the dataset (0: the MOS).
    pub objset: u64,
    /// The object.
    pub object: u64,
    /// Its level and number in the object, if known.
    pub block: Option<(u8, u64)>,
}

/// The blocks that could not be read.
#[derive(Debug, Default)]
pub struct Faults(Mutex<BTreeSet<Fault>>);

impl Faults {
    /// Notes where `error` happened, if it is lost data.
    pub fn note(&self, error: &Error) {
        let place = error.place();
        let lost = matches!(error.kind(), ErrorKind::Io | ErrorKind::Checksum);
        if let (true, Some(objset), Some(object)) = (lost, place.objset, place.object) {
            let mut known = self.0.lock();
            if known.len() < MOST {
                known.insert(Fault { objset, object, block: place.block });
            }
        }
    }

    /// All of them.
    pub fn all(&self) -> BTreeSet<Fault> {
        self.0.lock().clone()
    }

    /// How many.
    pub fn count(&self) -> usize {
        self.0.lock().len()
    }

    /// Forgets them (`zpool clear`).
    pub fn clear(&self) {
        self.0.lock().clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lost_data_with_a_place_is_noted() {
        let faults = Faults::default();
        faults.note(&Error::new(ErrorKind::Checksum, "bad"));
        faults.note(&Error::not_found("none").at_object(5, 7));
        assert_eq!(faults.count(), 0);
        let error = Error::new(ErrorKind::Checksum, "bad").at_object(5, 7);
        faults.note(&error);
        faults.note(&error);
        let expected = Fault { objset: 5, object: 7, block: None };
        assert_eq!(faults.all().into_iter().collect::<Vec<_>>(), [expected]);
        faults.clear();
        assert_eq!(faults.count(), 0);
    }
}
