//! Reading every copy of a block, and making right what is wrong.
//!
//! Chapter 08, section 4. Invariant: only bytes that verified are written. That nothing takes the place of
//! the block meanwhile is for the caller to see to.

use bytes::Bytes;
use cenote_format::{BlockPointer, Dva, Guid, Txg};

use super::Pipe;
use super::physical::{block_read, is_verified};
use super::special::Piece;
use crate::vdev::{BlockRead, BlockWrite, Recovered, Repair};
use crate::{Error, ErrorKind, Result};

/// What a scrub of one block did.
#[derive(Debug, Default)]
pub struct Scrubbed {
    /// Bytes written over wrong or missing ones.
    pub repaired: u64,
    /// Leaves that could not be asked for their part of it.
    pub away: Vec<Guid>,
    /// Groups whose data some leaf still lacks: writing it failed.
    pub failed: Vec<Txg>,
    /// Why the block, or one of several it consists of, is lost.
    pub lost: Option<Error>,
}

impl Pipe {
    /// Reads every copy of a block whose address is `wanted`, and writes again what is not as it should
    /// be. The caller keeps the block where it is.
    pub fn scrub(
        &self,
        bp: &BlockPointer,
        wanted: &dyn Fn(&BlockPointer, Dva) -> bool,
    ) -> Scrubbed {
        let mut done = Scrubbed::default();
        let scrubbed =
            self.each_piece(bp, &mut |bp, piece| self.scrub_copies((bp, piece), wanted, &mut done));
        done.lost = scrubbed.err();
        done
    }

    fn scrub_copies(
        &self,
        (bp, piece): (&BlockPointer, Piece),
        wanted: &dyn Fn(&BlockPointer, Dva) -> bool,
        done: &mut Scrubbed,
    ) -> Result<()> {
        if let Some(failure) = self.faulty().failure(bp) {
            return Err(failure);
        }
        let (mut right, mut wrong, mut failure) = (None, Vec::new(), None);
        for (number, dva) in bp.dvas().enumerate().filter(|(_, dva)| wanted(bp, *dva)) {
            let read = piece.read(bp, dva);
            if let Some(other) = self.faulty().failure_of_copy(bp, number) {
                wrong.push(read);
                failure = Some(other);
                continue;
            }
            let examine = || {
                let vdevs = self.vdevs();
                let mut verify = |data: &[u8]| piece.verifies(self, bp, data);
                let found = vdevs.read_all_copies(&read, &mut verify);
                let outdated = found.as_ref().is_ok_and(|it| vdevs.have_moved(&it.repairs));
                (found, outdated)
            };
            let (mut found, outdated) = examine();
            if outdated {
                // An expansion has moved it meanwhile.
                found = examine().0;
            }
            match found {
                Ok(found) => {
                    done.away.extend(&found.away);
                    self.repair_copies(piece.is_verified(bp), &found, &read, done);
                    right = Some(found.data);
                }
                Err(error) => {
                    wrong.push(read);
                    failure = Some(Error::from(error));
                }
            }
        }
        let Some(failure) = failure else { return Ok(()) };
        // Another address may be one that was not wanted.
        let data = match right {
            Some(data) => Ok(data),
            None if piece == Piece::Data && bp.dvas().count() > wrong.len() => {
                self.read_physical(bp)
            }
            None => Err(failure),
        }?;
        for read in wrong {
            self.write_again(&read, &data, done);
        }
        Ok(())
    }

    fn repair_copies(
        &self,
        is_verified: bool,
        found: &Recovered,
        read: &BlockRead,
        done: &mut Scrubbed,
    ) {
        let vdevs = self.vdevs();
        // Without a checksum nobody knows who is right, but for those who lack the block.
        let is_sure = |repair: &&Repair| is_verified || vdevs.misses(repair.leaf, read.birth);
        let repairs: Vec<Repair> = found.repairs.iter().filter(is_sure).cloned().collect();
        let written = vdevs.resilver(&repairs, read.birth);
        for (repair, written) in repairs.iter().zip(written) {
            match written {
                Ok(()) => done.repaired = done.repaired.saturating_add(repair.data.len() as u64),
                Err(_) => {
                    let birth = read.birth.0..read.birth.0.saturating_add(1);
                    vdevs.add_missing_txgs(repair.leaf, birth);
                    done.failed.push(read.birth);
                }
            }
        }
    }

    /// Whether `stored` are the bytes that `bp`, which is no gang, points to, as far as its checksum tells.
    pub(crate) fn would_verify(&self, bp: &BlockPointer, stored: &[u8]) -> bool {
        is_verified(bp) && stored.len() as u64 == bp.psize() && self.verify(bp, stored)
    }

    /// Writes bytes that are stored at `bp` ([`Pipe::would_verify`]) over every copy. The caller keeps the block
    /// where it is.
    pub(crate) fn write_over(&self, bp: &BlockPointer, stored: &Bytes) -> Result<()> {
        let mut done = Scrubbed::default();
        for dva in bp.dvas() {
            self.write_again(&block_read(bp, dva), stored, &mut done);
        }
        match done.failed.is_empty() {
            true => self.read_physical(bp).map(drop),
            false => Err(Error::new(ErrorKind::Io, "a copy of the block cannot be written")),
        }
    }

    /// Nothing at this address is right, but what belongs there is known.
    fn write_again(&self, read: &BlockRead, data: &Bytes, done: &mut Scrubbed) {
        let BlockRead { vdev, offset, birth, .. } = *read;
        let write = BlockWrite { sides: None, vdev, offset, data: data.clone(), birth };
        match self.vdevs().write_batch(&[write]).pop() {
            Some(Ok(())) => done.repaired = done.repaired.saturating_add(read.size),
            _ => done.failed.push(birth),
        }
    }
}
