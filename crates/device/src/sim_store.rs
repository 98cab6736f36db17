//! What lies on a simulated disk: pieces that copies of it share until one of them is written.
//!
//! Invariant: a piece that only ever held zeros takes no memory; a copy costs nothing until it is
//! written, and then one piece at a time.

use std::sync::Arc;

/// Bytes of a piece: most writes are of one or a few.
const PIECE: usize = 4 << 10;
/// Bytes that [`Store::written`] tells of together.
const STRETCH: usize = 32 << 10;

/// The bytes of a disk.
#[derive(Debug, Clone, Default)]
pub(crate) struct Store {
    size: usize,
    pieces: Vec<Option<Arc<Vec<u8>>>>,
}

/// Pieces that were replaced, and where they lay.
#[derive(Debug)]
pub(crate) struct Replaced(Vec<(usize, Option<Arc<Vec<u8>>>)>);

/// A range within one piece.
struct Part {
    piece: usize,
    start: usize,
    len: usize,
}

/// The `piece` with `bytes` in this part of it.
fn over(mut piece: Vec<u8>, part: &Part, bytes: &[u8]) -> Option<Vec<u8>> {
    piece.get_mut(part.start..part.start + part.len)?.copy_from_slice(bytes);
    Some(piece)
}

impl Store {
    /// `size` zeros.
    pub(crate) fn new(size: usize) -> Self {
        Self { size, pieces: vec![None; size.div_ceil(PIECE)] }
    }

    /// These bytes.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        let piece = |bytes: &[u8]| {
            let is_blank = bytes.iter().all(|byte| *byte == 0);
            (!is_blank).then(|| {
                let mut piece = bytes.to_vec();
                piece.resize(PIECE, 0);
                Arc::new(piece)
            })
        };
        Self { size: bytes.len(), pieces: bytes.chunks(PIECE).map(piece).collect() }
    }

    /// Bytes it has.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// It has `size` bytes, if that is more; the new ones are zero.
    pub(crate) fn grow(&mut self, size: usize) {
        if size > self.size {
            self.size = size;
            self.pieces.resize(size.div_ceil(PIECE), None);
        }
    }

    /// The parts of a range; `None` if it does not lie within the disk.
    fn parts(&self, start: usize, len: usize) -> Option<impl Iterator<Item = Part> + use<>> {
        let end = start.checked_add(len).filter(|end| *end <= self.size)?;
        let pieces = start / PIECE..end.div_ceil(PIECE).max(start / PIECE);
        Some(pieces.map(move |piece| {
            let from = start.max(piece * PIECE);
            let to = end.min((piece + 1) * PIECE);
            Part { piece, start: from - piece * PIECE, len: to - from }
        }))
    }

    /// The bytes of a range.
    pub(crate) fn get(&self, start: usize, len: usize) -> Option<Vec<u8>> {
        let mut bytes = Vec::with_capacity(len);
        for part in self.parts(start, len)? {
            match self.pieces.get(part.piece)? {
                Some(piece) => {
                    bytes.extend_from_slice(piece.get(part.start..part.start + part.len)?);
                }
                None => bytes.resize(bytes.len() + part.len, 0),
            }
        }
        Some(bytes)
    }

    /// Puts `bytes` at `start`; what lay in the pieces they touch is handed out for [`Store::restore`].
    pub(crate) fn put(&mut self, start: usize, bytes: &[u8]) -> Option<Replaced> {
        let mut rest = bytes;
        let mut replaced = Vec::new();
        for part in self.parts(start, bytes.len())? {
            let (these, others) = rest.split_at_checked(part.len)?;
            rest = others;
            let slot = self.pieces.get_mut(part.piece)?;
            let piece = match slot {
                _ if part.len == PIECE => these.to_vec(),
                Some(before) => over(before.to_vec(), &part, these)?,
                None => over(vec![0; PIECE], &part, these)?,
            };
            replaced.push((part.piece, slot.replace(Arc::new(piece))));
        }
        Some(Replaced(replaced))
    }

    /// What [`Store::put`] replaced lies there again.
    pub(crate) fn restore(&mut self, replaced: Replaced) {
        for (index, piece) in replaced.0 {
            if let Some(slot) = self.pieces.get_mut(index) {
                *slot = piece;
            }
        }
    }

    /// Where something lies that is not known to be zeros: stretches of 32 KiB, offsets and bytes, ascending.
    pub(crate) fn written(&self) -> Vec<(u64, Vec<u8>)> {
        let stretches = self.pieces.chunks(STRETCH / PIECE).enumerate();
        let written = stretches.filter(|(_, pieces)| pieces.iter().any(Option::is_some));
        written
            .filter_map(|(index, _)| {
                let start = index * STRETCH;
                let len = STRETCH.min(self.size.saturating_sub(start));
                Some((start as u64, self.get(start, len)?))
            })
            .collect()
    }
}
