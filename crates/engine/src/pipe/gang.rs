//! Blocks for which no single run of free space is long enough: pieces behind a gang header.
//!
//! Chapter 02, section 4. Invariant: nothing is submitted before every piece has its addresses, and
//! a gang that cannot be completed leaves nothing allocated.

use bytes::Bytes;
use cenote_codec::checksum::{Algorithm as Checksum, Width, WordOrder, seal_embedded};
use cenote_format::blkptr::{SECTOR, SIZE as POINTER};
use cenote_format::{BlockPointer, Dva, Level, ObjectType, StoredBlock};

use super::prepare::{self, Stored};
use super::write::{BlockToWrite, Run};
use crate::alloc::{AllocRequest, Dvas};
use crate::vdev::AllocationClass;
use crate::{Error, ErrorKind, Result};

/// Bytes of a gang header.
const HEADER: usize = 512;
/// Pointers in a gang header.
const PIECES: u64 = 3;
/// Deepest nesting of headers that is made: the largest block in pieces of one sector takes ten.
const MAX_DEPTH: u32 = 12;

/// What a gang is made of so far.
pub(super) struct Gang {
    class: AllocationClass,
    copies: u8,
    header_copies: u8,
    checksum: Checksum,
    /// Every address allocated, to be given back if the gang fails.
    taken: Vec<Dva>,
    /// What to submit once it is complete.
    writes: Vec<(Dvas, Bytes)>,
}

impl Run<'_> {
    /// Stores a block in pieces: the addresses of its gang header.
    pub(super) fn gang(&self, request: &BlockToWrite, stored: &Stored) -> Result<(Dvas, Gang)> {
        let policy = &request.policy;
        let sealed = stored.sealing.is_some();
        let truncated = stored.crypt && policy.object_type != ObjectType::OBJSET;
        let mut gang = Gang {
            class: policy.class_for(stored.bytes.len() as u64),
            copies: policy.copies,
            header_copies: (policy.copies + 1).min(if sealed { 2 } else { 3 }),
            checksum: policy.checksum,
            taken: Vec::new(),
            writes: Vec::new(),
        };
        let width = if truncated { Width::Truncated } else { Width::Full };
        let made = self.header(&mut gang, &stored.bytes, width, None, 0);
        match made {
            Ok(dvas) => Ok((dvas, gang)),
            Err(error) => {
                self.give_back(&gang.taken);
                Err(error)
            }
        }
    }

    /// Submits all of a gang.
    pub(super) fn submit_gang(&self, gang: &Gang) -> Result<()> {
        gang.writes.iter().try_for_each(|(dvas, data)| self.submit(dvas, data))
    }

    /// Gives up a gang of which nothing was submitted.
    pub(super) fn drop_gang(&self, gang: &Gang) {
        self.give_back(&gang.taken);
    }

    /// A header with `data` behind it.
    fn header(
        &self,
        gang: &mut Gang,
        data: &Bytes,
        width: Width,
        hint: Option<Dva>,
        depth: u32,
    ) -> Result<Dvas> {
        if depth >= MAX_DEPTH {
            return Err(Error::new(ErrorKind::NoSpace, "free space is in too small pieces"));
        }
        let mut dvas = self.header_addresses(gang, hint)?;
        let first = dvas.first().copied().ok_or_else(|| Error::bug("no address given"))?;
        let mut header = vec![0; HEADER];
        let mut rest = data.clone();
        for slot in 0..PIECES {
            if rest.is_empty() {
                break;
            }
            let piece = rest.split_to(self.piece_size(rest.len(), PIECES - slot));
            let pointer = self.piece(gang, &piece, first, depth)?;
            let at = slot as usize * POINTER;
            if let Some(place) = header.get_mut(at..at + POINTER) {
                place.copy_from_slice(&pointer.encode());
            }
            for (dva, below) in dvas.iter_mut().zip(pointer.dvas()) {
                dva.asize += below.asize;
            }
        }
        let verifier = [u64::from(first.vdev), first.offset, self.txg.0, 0];
        seal_embedded(&mut header, Checksum::GangHeader, &verifier, WordOrder::Little, width)
            .map_err(|error| Error::corrupt(error.to_string()))?;
        dvas.iter_mut().for_each(|dva| dva.gang = true);
        gang.writes.push((dvas.clone(), Bytes::from(header)));
        Ok(dvas)
    }

    /// One copy of the header more than of the data, so that the pieces are found; where there is
    /// no room for that, as many as of the data.
    fn header_addresses(&self, gang: &mut Gang, hint: Option<Dva>) -> Result<Dvas> {
        let ask = |copies| AllocRequest {
            psize: HEADER as u64,
            copies,
            class: gang.class,
            txg: self.txg,
            hint,
        };
        let addresses = &self.writer.addresses;
        let dvas = match addresses.allocate(&ask(gang.header_copies)) {
            Err(error)
                if error.kind() == ErrorKind::NoSpace && gang.header_copies > gang.copies =>
            {
                addresses.allocate(&ask(gang.copies))?
            }
            other => other?,
        };
        gang.taken.extend_from_slice(&dvas);
        Ok(dvas)
    }

    /// An even share of what is left, in whole units.
    fn piece_size(&self, left: usize, slots: u64) -> usize {
        let unit = self.writer.rules.units.min.max(SECTOR);
        let share = (left as u64).div_ceil(slots.max(1)).next_multiple_of(unit);
        usize::try_from(share).unwrap_or(usize::MAX).min(left)
    }

    /// A piece: where it lies whole if that can be, else a gang of its own.
    fn piece(&self, gang: &mut Gang, piece: &Bytes, hint: Dva, depth: u32) -> Result<BlockPointer> {
        let psize = piece.len() as u64;
        let request = AllocRequest {
            psize,
            copies: gang.copies,
            class: gang.class,
            txg: self.txg,
            hint: Some(hint),
        };
        let dvas = match self.writer.addresses.allocate(&request) {
            Ok(dvas) => {
                gang.taken.extend_from_slice(&dvas);
                gang.writes.push((dvas.clone(), piece.clone()));
                dvas
            }
            Err(error)
                if error.kind() == ErrorKind::NoSpace && psize > self.writer.rules.units.min =>
            {
                self.header(gang, piece, Width::Full, Some(hint), depth + 1)?
            }
            Err(error) => return Err(error),
        };
        let block = StoredBlock {
            dvas: &dvas,
            lsize: psize,
            psize,
            compression: prepare::COMPRESSION_OFF,
            checksum_id: gang.checksum.id(),
            checksum: prepare::piece_checksum(&self.writer.rules, gang.checksum, piece),
            object_type: ObjectType::NONE,
            level: Level(0),
            crypt: false,
            birth: self.txg,
            fill: 0,
        };
        Ok(block.pointer()?)
    }
}
