//! Blocks and the leaves that should hold a part of them.
//!
//! Invariant: a leaf is said to be without a block only if it answered, and the block is known from
//! the others.

use cenote_codec::checksum::{self, Algorithm, Width};
use cenote_format::{BlockPointer, Guid};

use super::Pipe;
use super::physical::block_read;

impl Pipe {
    /// The leaves that gave something else than their part of the block behind `pointer`.
    pub(crate) fn leaves_without(&self, pointer: &BlockPointer) -> Vec<Guid> {
        let mut without = Vec::new();
        for dva in pointer.dvas().filter(|dva| !dva.gang) {
            let read = block_read(pointer, dva);
            let found = self.vdevs().read_all_copies(&read, &mut |data| self.verify(pointer, data));
            without.extend(found.into_iter().flat_map(|found| found.liars));
        }
        without
    }

    /// Makes the block behind `pointer` whole on all of its leaves; those that cannot be written
    /// note it as missed. For blocks of intent logs and their data.
    pub(crate) fn complete(&self, pointer: &BlockPointer) {
        let vdevs = self.vdevs();
        for dva in pointer.dvas().filter(|dva| !dva.gang) {
            let mut is_good = |data: &[u8]| self.is_stored(pointer, data);
            vdevs.complete(&block_read(pointer, dva), &mut is_good);
        }
    }

    /// These are the stored bytes of a block, or of a block of an intent log.
    fn is_stored(&self, pointer: &BlockPointer, data: &[u8]) -> bool {
        match Algorithm::from_id(pointer.checksum_id()) {
            Some(algorithm @ (Algorithm::Zilog | Algorithm::Zilog2)) => {
                let width = if pointer.is_crypt() { Width::Truncated } else { Width::Full };
                checksum::verify_embedded(data, algorithm, &pointer.checksum(), width).is_ok()
            }
            Some(algorithm) => algorithm.verifies() && self.verify(pointer, data),
            None => false,
        }
    }
}
