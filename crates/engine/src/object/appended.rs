//! Reading objects that are only ever appended to: space maps, logs, lists of blocks.
//!
//! Chapter 04, section 4. Invariant: such an object has no hole before its end and no block in two
//! places, so reading it ends after as many blocks as the devices hold, whatever it claims to be.

use std::collections::HashSet;

use super::Object;
use crate::{Error, Result};

/// Bytes read at once, about.
const STEP: u64 = 1 << 20;
/// Most blocks without an address of their own, because they lie in their pointers.
const EMBEDDED_MAX: u32 = 1 << 20;

/// Pieces of an object, in order: to the end of a block each, all but the last.
pub struct Appended {
    object: Object,
    at: u64,
    end: u64,
    seen: HashSet<(u32, u64)>,
    embedded: u32,
}

impl Object {
    /// Bytes `from..end` of an object that was only appended to, as far as it goes.
    pub fn appended(&self, from: u64, end: u64) -> Appended {
        Appended {
            object: self.clone(),
            at: from,
            end: end.min(self.dnode().max_offset()),
            seen: HashSet::new(),
            embedded: 0,
        }
    }
}

impl Appended {
    fn read(&mut self) -> Result<Vec<u8>> {
        let size = self.object.block_size();
        let first = self.at / size;
        let count = (STEP / size).max(1);
        let end = first.saturating_add(count).saturating_mul(size).min(self.end);
        for pointer in self.object.pointers(first, (end - 1) / size)? {
            let new = match pointer.first_dva() {
                _ if pointer.is_hole() => return Err(self.wrong("has a hole")),
                Some(dva) => self.seen.insert((dva.vdev, dva.offset)),
                None => {
                    self.embedded += 1;
                    self.embedded <= EMBEDDED_MAX
                }
            };
            if !new {
                return Err(self.wrong("has the same block in two places"));
            }
        }
        let len = usize::try_from(end - self.at).unwrap_or(usize::MAX);
        let bytes = self.object.read_vec(self.at, len)?;
        self.at = end;
        Ok(bytes)
    }

    fn wrong(&self, what: &str) -> Error {
        self.object.named(Error::corrupt(format!("what is only appended to {what}")))
    }
}

impl Iterator for Appended {
    type Item = Result<Vec<u8>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.at >= self.end {
            return None;
        }
        let piece = self.read();
        if piece.is_err() {
            self.at = self.end;
        }
        Some(piece)
    }
}
