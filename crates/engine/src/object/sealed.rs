//! Objects whose bonuses and blocks stay sealed: their dnodes are as somebody who has the key made them.
//!
//! Invariant: what the MAC of a block of dnodes covers (shape, levels, last block, sealed bonus) is what was
//! given, whatever is written of the object here.

use cenote_format::dnode::FLAG_SPILL;
use cenote_format::{Dnode, ObjectId};

use super::{OBJECTS_END, Object, ObjectSet};
use crate::txg::Tx;
use crate::{Error, Result};

impl ObjectSet {
    /// Makes an object with this dnode, whose pointers are holes.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Exists`] if the number is taken.
    pub fn claim_sealed(&self, tx: &Tx, id: ObjectId, dnode: Dnode) -> Result<Object> {
        if id.0 == 0 || id.0 >= OBJECTS_END {
            return Err(Error::invalid(format!("object number {id}")));
        }
        self.make(tx, id, dnode)
    }

    /// The set's root is to have these flags, and its array of dnodes this last block and these ids of
    /// checksum and compression.
    ///
    /// # Errors
    /// If the set cannot be changed.
    pub fn shape_sealed(&self, flags: u64, last: u64, checksum: u8, compression: u8) -> Result<()> {
        self.live()?.change_header(|header| {
            header.flags = flags;
            let meta = &mut header.meta_dnode;
            meta.max_block_id = meta.max_block_id.max(last);
            (meta.checksum, meta.compression) = (checksum, compression);
        });
        Ok(())
    }
}

impl Object {
    /// Gives the object another sealed dnode of the same size and the same number of pointers; blocks behind
    /// its last one go.
    ///
    /// # Errors
    /// If the object was freed.
    pub fn reshape_sealed(&self, tx: &Tx, new: &Dnode) -> Result<()> {
        self.change(tx, |state, dirt| {
            let current = state.current_mut()?;
            let before = current.max_block_id;
            current.object_type = new.object_type;
            current.bonus_type = new.bonus_type;
            current.bonus_len = new.bonus_len;
            current.bonus_area.clone_from(&new.bonus_area);
            (current.checksum, current.compression) = (new.checksum, new.compression);
            current.levels = current.levels.max(new.levels);
            current.max_block_id = new.max_block_id;
            current.flags = current.flags & !FLAG_SPILL | new.flags & FLAG_SPILL;
            match (new.spill.is_some(), current.spill.is_some()) {
                (true, false) => current.spill = new.spill,
                (false, true) => {
                    current.spill = None;
                    dirt.spill = Some(None);
                }
                _ => {}
            }
            if let Some(first) = new.max_block_id.checked_add(1).filter(|first| *first <= before) {
                let ids: Vec<u64> = dirt.blocks.range(first..).map(|(&id, _)| id).collect();
                ids.iter().for_each(|id| drop(dirt.blocks.remove(id)));
                dirt.freed.insert(first, before);
            }
            Ok(())
        })
    }

    /// The object has blocks up to this one, holes or not.
    ///
    /// # Errors
    /// If the object was freed.
    pub fn reach(&self, tx: &Tx, last: u64) -> Result<()> {
        self.change(tx, |state, _| {
            state.current_mut()?.max_block_id = last;
            Ok(())
        })
    }
}
