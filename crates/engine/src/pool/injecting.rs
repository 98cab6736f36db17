//! Faults of what objects hold, on purpose.
//!
//! Invariant: what is to fail are the blocks that the object has at that time; the object itself stays as it is.

use cenote_format::ObjectId;

use super::Pool;
use crate::cache::BlockKey;
use crate::pipe::ObjectFault;
use crate::{Error, Result};

/// Blocks that one fault is about, at most.
const MOST: u64 = 1 << 20;

impl Pool {
    /// From now on reading these blocks fails: the number of the fault.
    ///
    /// # Errors
    /// If there is no such object, or it has no such blocks.
    pub fn inject_object(&self, fault: ObjectFault) -> Result<u64> {
        let set = match fault.objset {
            0 => self.mos(),
            objset => {
                let catalog = self.catalog();
                let dataset = catalog.dataset_by_id(ObjectId(objset))?;
                catalog.object_set(&dataset, &**self.keys())?
            }
        };
        let object = match fault.object {
            0 => set.meta_object(),
            id => set.object(ObjectId(id))?,
        };
        let fanout = object.pointers_per_block().max(2);
        let mut count = object.block_count();
        for _ in 0..fault.level {
            count = count.div_ceil(fanout);
        }
        let (first, end) = fault.blocks.unwrap_or((0, count));
        let end = end.min(count);
        if end.saturating_sub(first) > MOST {
            return Err(Error::invalid(format!("more than {MOST} blocks at once")));
        }
        let mut blocks = Vec::new();
        for id in first..end {
            let pointer = object.pointer(fault.level, id)?;
            if pointer.first_dva().is_some() {
                blocks.push(pointer);
            }
        }
        if blocks.is_empty() {
            return Err(Error::not_found("the object has no such blocks on the disks"));
        }
        let pipe = &self.io().pipe;
        let id = self.vdevs().next_fault();
        pipe.faulty().add(id, fault, &blocks);
        let cached = blocks.iter().filter_map(BlockKey::of);
        cached.for_each(|key| pipe.cache().remove(&key));
        Ok(id)
    }
}
