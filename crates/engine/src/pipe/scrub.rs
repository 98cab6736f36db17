//! Reading the copies of blocks, and making right what is wrong or missing.
//!
//! Chapter 08, section 4. Invariant: only bytes that verified are written. That nothing takes the place of
//! the block meanwhile is for the caller to see to.

use bytes::Bytes;
use cenote_format::{BlockPointer, Dva, Guid, Txg};

use super::Pipe;
use super::physical::{block_read, is_verified};
use super::special::Piece;
use crate::vdev::{BlockRead, BlockWrite, Reading, Recovered, Repair, VdevError};
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

/// What is looked at.
#[derive(Clone, Copy)]
pub struct Scope<'a> {
    /// Whether an address of a block is.
    pub wanted: &'a (dyn Fn(&BlockPointer, Dva) -> bool + Sync),
    /// What of the copies is read: what leaves lack is written in any case.
    pub reading: Reading,
}

impl Scope<'_> {
    /// All there is.
    pub const ALL: Self = Self { wanted: &|_, _| true, reading: Reading::Held };
}

/// What reading an address gave.
type Found = std::result::Result<Recovered, VdevError>;

/// Both lead to the same place.
fn is_same(one: &BlockPointer, other: &BlockPointer) -> bool {
    one.physical_birth() == other.physical_birth()
        && !one.is_gang()
        && one.checksum() == other.checksum()
        && one.dvas().eq(other.dvas())
}

/// What is to be written, of the block of that number, born then.
struct Write {
    owner: usize,
    birth: Txg,
    repair: Repair,
}

/// A block being scrubbed.
struct Scrubbing<'a> {
    number: usize,
    scope: Scope<'a>,
    /// What was read already; nothing of a block in pieces.
    ahead: Vec<(BlockRead, Found)>,
    done: Scrubbed,
    writes: &'a mut Vec<Write>,
}

impl Pipe {
    /// Reads the copies of a block that are in `scope`, and writes again what is not as it should
    /// be. The caller keeps the block where it is.
    pub fn scrub(&self, bp: &BlockPointer, scope: Scope<'_>) -> Scrubbed {
        self.scrub_many(&[bp], scope).pop().unwrap_or_default()
    }

    /// [`Pipe::scrub`] of blocks that are read together, and written together.
    pub fn scrub_many(&self, bps: &[&BlockPointer], scope: Scope<'_>) -> Vec<Scrubbed> {
        // While an expansion moves sectors, what is read is to be written at once.
        if bps.len() > 1 && self.vdevs().expanding().is_some() {
            return bps.iter().map(|bp| self.scrub(bp, scope)).collect();
        }
        // Blocks that are shared are met one after another: what is wrong of them is one fault.
        let mut different: Vec<&BlockPointer> = bps.to_vec();
        different.dedup_by(|bp, before| is_same(bp, before));
        let mut writes = Vec::new();
        let ahead = self.read_ahead(&different, scope);
        let scrub = |(number, (bp, ahead)): (usize, (&&BlockPointer, _))| {
            let done = Scrubbed::default();
            let mut own = Scrubbing { number, scope, ahead, done, writes: &mut writes };
            let scrubbed =
                self.each_piece(bp, &mut |bp, piece| self.scrub_copies((bp, piece), &mut own));
            own.done.lost = scrubbed.err();
            own.done
        };
        let mut done: Vec<Scrubbed> = different.iter().zip(ahead).enumerate().map(scrub).collect();
        self.write_repairs(&writes, &mut done);
        if different.len() == bps.len() {
            return done;
        }
        let mut own = different.into_iter().zip(done).peekable();
        let mut lost = None;
        let told = |bp: &&BlockPointer| match own.next_if(|(next, _)| std::ptr::eq(*next, *bp)) {
            Some((_, done)) => {
                lost.clone_from(&done.lost);
                done
            }
            None => Scrubbed { lost: lost.clone(), ..Scrubbed::default() },
        };
        bps.iter().map(told).collect()
    }

    /// What lies at the addresses of blocks that are not in pieces.
    fn read_ahead(&self, bps: &[&BlockPointer], scope: Scope<'_>) -> Vec<Vec<(BlockRead, Found)>> {
        let (mut reads, mut owners) = (Vec::new(), Vec::new());
        let plain = bps.iter().enumerate().filter(|(_, bp)| bp.validate().is_ok() && !bp.is_gang());
        for (number, bp) in plain {
            for dva in bp.dvas().filter(|dva| (scope.wanted)(bp, *dva)) {
                reads.push(block_read(bp, dva));
                owners.push((number, *bp));
            }
        }
        let mut verify = |read: usize, data: &[u8]| {
            owners.get(read).is_some_and(|(_, bp)| Piece::Data.verifies(self, bp, data))
        };
        let is_known =
            |read: usize| owners.get(read).is_some_and(|(_, bp)| Piece::Data.is_verified(bp));
        let found = self.vdevs().read_copies_of(&reads, scope.reading, &is_known, &mut verify);
        let mut ahead: Vec<_> = bps.iter().map(|_| Vec::new()).collect();
        for ((number, _), found) in owners.iter().zip(reads.into_iter().zip(found)) {
            if let Some(own) = ahead.get_mut(*number) {
                own.push(found);
            }
        }
        ahead
    }

    fn scrub_copies(
        &self,
        (bp, piece): (&BlockPointer, Piece),
        own: &mut Scrubbing<'_>,
    ) -> Result<()> {
        if let Some(failure) = self.faulty().failure(bp) {
            return Err(failure);
        }
        let (mut right, mut wrong, mut failure) = (None, Vec::new(), None);
        let Scope { wanted, reading } = own.scope;
        for (number, dva) in bp.dvas().enumerate() {
            let read = piece.read(bp, dva);
            let is_ahead = own.ahead.iter().any(|(ahead, _)| *ahead == read);
            if !is_ahead && !wanted(bp, dva) {
                continue;
            }
            if let Some(other) = self.faulty().failure_of_copy(bp, number) {
                wrong.push(read);
                failure = Some(other);
                continue;
            }
            match self.examine((bp, piece), &read, reading, &mut own.ahead) {
                Ok(found) => {
                    own.done.away.extend(&found.away);
                    let is_verified = piece.is_verified(bp);
                    own.writes.extend(self.repairs_of(is_verified, &found, &read, own.number));
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
            self.write_again(&read, &data, &mut own.done);
        }
        Ok(())
    }

    /// What was read ahead, or is now; once more if an expansion has moved it meanwhile.
    fn examine(
        &self,
        (bp, piece): (&BlockPointer, Piece),
        read: &BlockRead,
        reading: Reading,
        ahead: &mut Vec<(BlockRead, Found)>,
    ) -> Found {
        let vdevs = self.vdevs();
        let mut verify = |_: usize, data: &[u8]| piece.verifies(self, bp, data);
        let mut now = || {
            let own = std::slice::from_ref(read);
            let is_known = |_| piece.is_verified(bp);
            let found = vdevs.read_copies_of(own, reading, &is_known, &mut verify).pop();
            found.unwrap_or_else(|| vdevs.read_all_copies(read, &mut |data| verify(0, data)))
        };
        let known = ahead.iter().position(|(own, _)| own == read);
        let found = known.map_or_else(&mut now, |known| ahead.swap_remove(known).1);
        match &found {
            Ok(it) if vdevs.have_moved(&it.repairs) => now(),
            _ => found,
        }
    }

    fn repairs_of(
        &self,
        is_verified: bool,
        found: &Recovered,
        read: &BlockRead,
        owner: usize,
    ) -> Vec<Write> {
        let birth = read.birth;
        // Without a checksum nobody knows who is right, but for those who lack the block.
        let is_sure = |repair: &&Repair| is_verified || repair.lacking;
        let sure = found.repairs.iter().filter(is_sure);
        sure.map(|repair| Write { owner, birth, repair: repair.clone() }).collect()
    }

    fn write_repairs(&self, writes: &[Write], done: &mut [Scrubbed]) {
        let vdevs = self.vdevs();
        let repairs: Vec<_> = writes.iter().map(|own| (own.repair.clone(), own.birth)).collect();
        for (Write { owner, birth, repair }, written) in writes.iter().zip(vdevs.resilver(&repairs))
        {
            let Some(done) = done.get_mut(*owner) else { continue };
            match written {
                Ok(()) => done.repaired = done.repaired.saturating_add(repair.data.len() as u64),
                Err(_) => {
                    vdevs.add_missing_txgs(repair.leaf, birth.0..birth.0.saturating_add(1));
                    done.failed.push(*birth);
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
