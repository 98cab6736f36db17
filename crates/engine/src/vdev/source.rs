//! Every place a block's bytes can come from, and what each of them should hold.
//!
//! Invariant: a source mirrors the vdev tree above the leaves of one block; comparing it with a
//! verified block visits each leaf piece exactly once.

use super::layout::Map;
use super::parity;
use super::plan::Answers;
use bytes::Bytes;

/// A range read from one leaf: part of a batch's answer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Piece {
    pub(super) op: usize,
    /// First byte in the answer.
    pub(super) skip: usize,
    pub(super) len: usize,
    /// The leaf's dirty time log says it misses the block.
    pub(super) stale: bool,
}

impl Piece {
    /// The bytes read, if the leaf answered.
    pub(super) fn bytes(&self, answers: &Answers) -> Option<Bytes> {
        match answers.get(self.op) {
            Some(Ok(bytes)) if bytes.len() >= self.skip + self.len => {
                Some(bytes.slice(self.skip..self.skip + self.len))
            }
            _ => None,
        }
    }
}

/// Where a range's bytes can come from.
#[derive(Debug)]
pub(super) enum Source {
    /// A leaf.
    Leaf(Piece),
    /// Any of these holds the same, best first.
    Any(Vec<Source>),
    /// One after the other, each cut to the given length.
    Join(Vec<(Source, usize)>),
    /// Columns with parity.
    Rows {
        map: Map,
        /// As the map's columns.
        cells: Vec<Source>,
        /// Zero sectors and their lengths.
        pads: Vec<(Source, usize)>,
        /// What else holds columns, whose indexes these are.
        twins: Vec<(usize, Source)>,
        /// Widths the sectors were laid out with since they were written, newest first.
        widths: Vec<u32>,
    },
    /// Nowhere.
    Nothing,
}

impl Source {
    /// Calls `visit` with every leaf piece and the bytes it should hold, given the block's `truth`
    /// (which may end before the padding does; padding is not compared where it is not needed).
    pub(super) fn compare(&self, truth: &[u8], visit: &mut dyn FnMut(&Piece, &[u8])) {
        match self {
            Self::Leaf(piece) => visit(piece, truth.get(..piece.len).unwrap_or(truth)),
            Self::Any(copies) => copies.iter().for_each(|copy| copy.compare(truth, visit)),
            Self::Join(parts) => {
                let mut rest = truth;
                for (part, len) in parts {
                    let (own, after) = rest.split_at(rest.len().min(*len));
                    part.compare(own, visit);
                    rest = after;
                }
            }
            Self::Rows { map, cells, pads, twins, .. } => {
                let mut block = truth.to_vec();
                block.resize(usize::try_from(map.size).unwrap_or(block.len()), 0);
                for (start, row) in map.rows() {
                    let data: Vec<&[u8]> = row
                        .iter()
                        .skip(map.parity)
                        .map(|column| match column.size {
                            0 => &[],
                            _ => map.slice_of(column, &block).unwrap_or_default(),
                        })
                        .collect();
                    let height = row.first().map_or(0, |column| column.size as usize);
                    let parity = parity::generate(map.parity, &data, height);
                    let expected = parity.iter().map(Vec::as_slice).chain(data);
                    let columns = cells.iter().enumerate().skip(start).zip(expected);
                    for ((index, cell), expected) in columns {
                        cell.compare(expected, visit);
                        for (_, twin) in twins.iter().filter(|(column, _)| *column == index) {
                            twin.compare(expected, visit);
                        }
                    }
                }
                for (pad, len) in pads {
                    pad.compare(&vec![0; *len], visit);
                }
            }
            Self::Nothing => {}
        }
    }

    /// Calls `visit` with every leaf piece.
    pub(super) fn each_piece(&self, visit: &mut dyn FnMut(&Piece)) {
        match self {
            Self::Leaf(piece) => visit(piece),
            Self::Any(copies) => copies.iter().for_each(|copy| copy.each_piece(visit)),
            Self::Join(parts) => parts.iter().for_each(|(part, _)| part.each_piece(visit)),
            Self::Rows { cells, .. } => cells.iter().for_each(|cell| cell.each_piece(visit)),
            Self::Nothing => {}
        }
    }

    /// True if every leaf holds a whole copy; then `visit` has seen them all.
    pub(super) fn whole_copies(&self, visit: &mut dyn FnMut(&Piece)) -> bool {
        match self {
            Self::Leaf(piece) => {
                visit(piece);
                true
            }
            Self::Any(copies) => copies.iter().all(|copy| copy.whole_copies(visit)),
            Self::Nothing => true,
            Self::Join(parts) => match parts.as_slice() {
                [(only, _)] => only.whole_copies(visit),
                _ => false,
            },
            Self::Rows { .. } => false,
        }
    }
}
