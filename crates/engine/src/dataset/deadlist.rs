//! Space in deadlists: how much died since a snapshot.
//!
//! Chapter 06, sections 10.1, 10.2 and 11. Invariant: only headers are read; the recursion into
//! sub-objects that a free needs is not needed for sums.

use cenote_format::bpobj::{BpobjHeader, Space};
use cenote_format::deadlist::{Entries, decode_header, parse_integer_key};
use cenote_format::{ObjectId, ObjectType, Txg};

use super::{Catalog, Table};
use crate::{Error, Result};

/// A difference of two spaces, which may be negative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SpaceDifference {
    pub used: i128,
    pub compressed: i128,
    pub uncompressed: i128,
}

impl SpaceDifference {
    pub fn add(&mut self, space: &Space) {
        self.used += i128::from(space.used);
        self.compressed += i128::from(space.compressed);
        self.uncompressed += i128::from(space.uncompressed);
    }

    pub fn subtract(&mut self, space: &Space) {
        self.used -= i128::from(space.used);
        self.compressed -= i128::from(space.compressed);
        self.uncompressed -= i128::from(space.uncompressed);
    }

    /// The sums; what should not be negative and is, counts as nothing.
    pub fn total(&self) -> Space {
        let clip = |value: i128| u64::try_from(value.max(0)).unwrap_or(u64::MAX);
        Space {
            used: clip(self.used),
            compressed: clip(self.compressed),
            uncompressed: clip(self.uncompressed),
        }
    }
}

impl Catalog {
    /// Space of everything in a deadlist.
    pub(super) fn deadlist_space(&self, id: ObjectId) -> Result<Space> {
        if id.0 == 0 {
            return Ok(Space::default());
        }
        let dnode = self.mos().dnode(id)?;
        let space = match dnode.bonus_type {
            ObjectType::BPOBJ_HEADER => BpobjHeader::decode(dnode.bonus()).map(|h| h.space),
            _ => decode_header(dnode.bonus()),
        };
        space.map_err(|error| Error::from(error).at_object(0, id.0))
    }

    /// Space of the blocks in a deadlist that were born in `(0, high]`.
    pub(super) fn deadlist_space_until(&self, id: ObjectId, high: Txg) -> Result<Space> {
        if id.0 == 0 {
            return Ok(Space::default());
        }
        if self.mos().dnode(id)?.bonus_type == ObjectType::BPOBJ_HEADER {
            let reason = "the deadlists of pools before version 26 have no ranges";
            return Err(Error::unsupported(reason).at_object(0, id.0));
        }
        let mut entries = Entries::default();
        if let Some(table) = Table::open(self.mos(), id)? {
            for (name, object) in table.numbers()? {
                entries.0.insert(Txg(parse_integer_key(name.as_bytes())?), ObjectId(object));
            }
        }
        let mut sum = SpaceDifference::default();
        for (_, bpobj) in entries.range(Txg(0), high) {
            sum.add(&self.bpobj_space(bpobj)?);
        }
        Ok(sum.total())
    }

    fn bpobj_space(&self, id: ObjectId) -> Result<Space> {
        let dnode = self.mos().dnode(id)?;
        if dnode.bonus_type != ObjectType::BPOBJ_HEADER {
            return Err(Error::corrupt("not a list of blocks").at_object(0, id.0));
        }
        let header = BpobjHeader::decode(dnode.bonus())
            .map_err(|error| Error::from(error).at_object(0, id.0))?;
        Ok(header.space)
    }
}
