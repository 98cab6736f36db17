//! Reading every copy of a block, and making right what is wrong.
//!
//! Chapter 08, section 4. Invariant: only bytes that verified are written. That nothing takes the place of
//! the block meanwhile is for the caller to see to.

use bytes::Bytes;
use cenote_format::{BlockPointer, Dva, Txg};

use super::Pipe;
use super::physical::block_read;
use crate::vdev::{BlockRead, BlockWrite, Recovered};
use crate::{Error, Result};

/// Deepest nesting of gang headers that are followed.
const MAX_GANG_DEPTH: u32 = 16;

/// What a scrub of one block did.
#[derive(Debug, Default)]
pub struct Scrubbed {
    /// Bytes read, without the parity.
    pub read: u64,
    /// Bytes written over wrong or missing ones.
    pub repaired: u64,
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
        if let Err(error) = self.scrub_at(bp, wanted, &mut done, 0) {
            done.lost = Some(error);
        }
        done
    }

    fn scrub_at(
        &self,
        bp: &BlockPointer,
        wanted: &dyn Fn(&BlockPointer, Dva) -> bool,
        done: &mut Scrubbed,
        depth: u32,
    ) -> Result<()> {
        bp.validate()?;
        if !bp.is_gang() {
            return self.scrub_copies(bp, wanted, done);
        }
        if depth >= MAX_GANG_DEPTH {
            return Err(Error::corrupt(format!("gang headers nested {depth} deep")));
        }
        // The header's copies are made right by reading it.
        let (length, members) = self.gang_children(bp)?;
        done.read = done.read.saturating_add(length);
        members.iter().try_for_each(|one| self.scrub_at(one, wanted, done, depth + 1))
    }

    fn scrub_copies(
        &self,
        bp: &BlockPointer,
        wanted: &dyn Fn(&BlockPointer, Dva) -> bool,
        done: &mut Scrubbed,
    ) -> Result<()> {
        let (mut right, mut wrong, mut failure) = (None, Vec::new(), None);
        for dva in bp.dvas().filter(|dva| wanted(bp, *dva)) {
            let read = block_read(bp, dva);
            done.read = done.read.saturating_add(bp.psize());
            match self.vdevs().read_all_copies(&read, &mut |data| self.verify(bp, data)) {
                Ok(found) => {
                    self.repair_copies(&found, &read, done);
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
            None if bp.dvas().count() > wrong.len() => self.read_physical(bp),
            None => Err(failure),
        }?;
        for read in wrong {
            self.write_again(&read, &data, done);
        }
        Ok(())
    }

    fn repair_copies(&self, found: &Recovered, read: &BlockRead, done: &mut Scrubbed) {
        let written = self.vdevs().resilver(&found.repairs, read.birth);
        for (repair, written) in found.repairs.iter().zip(written) {
            match written {
                Ok(()) => done.repaired = done.repaired.saturating_add(repair.data.len() as u64),
                Err(_) => {
                    let birth = read.birth.0..read.birth.0.saturating_add(1);
                    self.vdevs().add_missing_txgs(repair.leaf, birth);
                    done.failed.push(read.birth);
                }
            }
        }
    }

    /// Nothing at this address is right, but what belongs there is known.
    fn write_again(&self, read: &BlockRead, data: &Bytes, done: &mut Scrubbed) {
        let BlockRead { vdev, offset, birth, .. } = *read;
        let write = BlockWrite { vdev, offset, data: data.clone(), birth };
        match self.vdevs().write_batch(&[write]).pop() {
            Some(Ok(())) => done.repaired = done.repaired.saturating_add(read.size),
            _ => done.failed.push(birth),
        }
    }
}
