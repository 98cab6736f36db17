//! Reads that checkers need: the addresses inside gangs, intent-log blocks, every copy of a block.
//!
//! Chapter 02, sections 4 and 6. Invariant: nothing here goes through the cache.

use bytes::Bytes;
use cenote_codec::checksum::{self, Algorithm, Width};
use cenote_format::{BlockPointer, Dva, Guid};

use super::Pipe;
use super::physical::{block_read, gang_header_order, is_verified};
use crate::vdev::BlockRead;
use crate::{Error, ErrorKind, Result};

/// Deepest nesting of gang headers a checker follows.
const MAX_GANG_DEPTH: u32 = 16;

/// What reading every copy of a block found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Copies {
    /// Leaves that gave wrong bytes.
    pub liars: Vec<Guid>,
    /// Leaves that did not answer.
    pub failed: Vec<Guid>,
    /// Addresses behind which nothing matches the checksum.
    pub lost: u32,
}

impl Copies {
    /// Every copy and all parity is as it should be.
    pub fn are_good(&self) -> bool {
        *self == Self::default()
    }
}

/// What of a block lies at the addresses of a pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// The bytes it has the checksum of.
    Data,
    /// A gang's header of so many bytes.
    Header(u64),
}

impl Piece {
    pub(super) fn read(self, bp: &BlockPointer, dva: Dva) -> BlockRead {
        let whole = block_read(bp, dva);
        match self {
            Self::Data => whole,
            Self::Header(size) => BlockRead { size, ..whole },
        }
    }

    /// Whether these are the bytes, as far as can be told.
    pub(super) fn verifies(self, pipe: &Pipe, bp: &BlockPointer, data: &[u8]) -> bool {
        match self {
            Self::Data => pipe.verify(bp, data),
            Self::Header(_) => gang_header_order(bp, data).is_some(),
        }
    }

    /// Whether it can be told.
    pub(super) fn is_verified(self, bp: &BlockPointer) -> bool {
        matches!(self, Self::Header(_)) || is_verified(bp)
    }
}

impl Pipe {
    /// Bytes of a gang's header and the pointers in it, holes left out.
    pub fn gang_children(&self, bp: &BlockPointer) -> Result<(u64, Vec<BlockPointer>)> {
        let header = || self.read_gang_header(bp);
        let header = self.patiently(bp, header(), header)?;
        let pointers = header.len().saturating_sub(40) / cenote_format::blkptr::SIZE;
        let mut children = Vec::with_capacity(pointers.min(64));
        for index in 0..pointers {
            let mut child = BlockPointer::decode_at(&header, index)?;
            if child.is_hole() || child.is_embedded() {
                continue;
            }
            // Children carry the full checksum of their bytes, never a MAC.
            child.words[6] &= !(1 << 61);
            children.push(child);
        }
        Ok((header.len() as u64, children))
    }

    /// Stored bytes of many blocks are read and verified, one good copy each.
    pub fn verify_many(&self, bps: &[BlockPointer]) -> Vec<Result<()>> {
        let results = self.read_physical_many(bps).into_iter();
        results.map(|result| result.map(|_| ())).collect()
    }

    /// Reads every copy and all parity of a block. An error means that no copy is good.
    pub fn verify_copies(&self, bp: &BlockPointer) -> Result<Copies> {
        let mut copies = Copies::default();
        self.each_piece(bp, &mut |bp, piece| self.verify_piece(bp, piece, &mut copies))?;
        Ok(copies)
    }

    /// Calls `look` for a block, or for each of the blocks that it lies in pieces of, and the headers that lead
    /// to those.
    pub(super) fn each_piece(
        &self,
        bp: &BlockPointer,
        look: &mut dyn FnMut(&BlockPointer, Piece) -> Result<()>,
    ) -> Result<()> {
        self.each_piece_at(bp, look, 0)
    }

    fn each_piece_at(
        &self,
        bp: &BlockPointer,
        look: &mut dyn FnMut(&BlockPointer, Piece) -> Result<()>,
        depth: u32,
    ) -> Result<()> {
        bp.validate()?;
        if !bp.is_gang() {
            return look(bp, Piece::Data);
        }
        if depth >= MAX_GANG_DEPTH {
            return Err(Error::corrupt(format!("gang headers nested {depth} deep")));
        }
        let (size, children) = self.gang_children(bp)?;
        look(bp, Piece::Header(size))?;
        children.iter().try_for_each(|child| self.each_piece_at(child, look, depth + 1))
    }

    fn verify_piece(&self, bp: &BlockPointer, piece: Piece, found: &mut Copies) -> Result<()> {
        let (mut good, mut failure) = (false, None);
        for dva in bp.dvas() {
            let read = piece.read(bp, dva);
            let mut verify = |data: &[u8]| piece.verifies(self, bp, data);
            match self.vdevs().read_all_copies(&read, &mut verify) {
                Ok(recovered) => {
                    good = true;
                    if piece.is_verified(bp) {
                        self.heal(&read, &recovered);
                    }
                    add_new(&mut found.liars, recovered.liars);
                    add_new(&mut found.failed, recovered.failed);
                }
                Err(error) => {
                    found.lost += 1;
                    failure = Some(Error::from(error));
                }
            }
        }
        match failure {
            Some(failure) if !good => Err(failure),
            None if !good => Err(Error::corrupt("block pointer without an address")),
            _ => Ok(()),
        }
    }

    /// Stored bytes of the intent-log block behind `bp`, verified: any copy will do, or what parity
    /// gives. `None` if all devices answered and nothing is right, as at the end of a chain, whose
    /// last block is allocated, but not written. A device that does not answer is an error: what it
    /// keeps to itself may be the block.
    pub fn read_log_block(&self, bp: &BlockPointer) -> Result<Option<Bytes>> {
        let algorithm = Algorithm::from_id(bp.checksum_id())
            .filter(|algorithm| matches!(algorithm, Algorithm::Zilog | Algorithm::Zilog2));
        let Some(algorithm) = algorithm.filter(|_| bp.validate().is_ok()) else { return Ok(None) };
        let width = if bp.is_crypt() { Width::Truncated } else { Width::Full };
        let verifier = bp.checksum();
        self.read_if_written(bp, &|data| {
            checksum::verify_embedded(data, algorithm, &verifier, width).is_ok()
        })
    }

    /// Whether the data block behind `bp`, of which a record of a log tells, was written: any copy
    /// will do, or what parity gives. A device that does not answer is an error.
    pub fn is_written(&self, bp: &BlockPointer) -> Result<bool> {
        if bp.validate().is_err() {
            return Ok(false);
        }
        if bp.is_gang() {
            return match self.read_physical(bp) {
                Ok(_) => Ok(true),
                Err(error) if error.kind() == ErrorKind::Io => Err(error),
                Err(_) => Ok(false),
            };
        }
        Ok(self.read_if_written(bp, &|data| self.verify(bp, data))?.is_some())
    }

    /// Stored bytes of a block that may not be there.
    fn read_if_written(
        &self,
        bp: &BlockPointer,
        is_good: &dyn Fn(&[u8]) -> bool,
    ) -> Result<Option<Bytes>> {
        let mut failure = None;
        for dva in bp.dvas() {
            let read = block_read(bp, dva);
            if let Some(Ok(data)) = self.vdevs().read_batch(&[read]).pop()
                && is_good(&data)
            {
                return Ok(Some(data));
            }
            match self
                .vdevs()
                .read_if_written(&read, &mut |data| is_good(data))
                .map_err(Error::from)
            {
                Ok(Some(recovered)) => {
                    self.heal(&read, &recovered);
                    return Ok(Some(recovered.data));
                }
                Ok(None) => {}
                // An address that makes no sense was never written.
                Err(error) if error.kind() != ErrorKind::Io => {}
                Err(error) => failure = Some(error),
            }
        }
        failure.map_or(Ok(None), Err)
    }
}

fn add_new(known: &mut Vec<Guid>, more: Vec<Guid>) {
    for guid in more {
        if !known.contains(&guid) {
            known.push(guid);
        }
    }
}
