//! Volumes: one object as a block device.
//!
//! Chapter 05, section 15. Invariant: nothing beyond the volume's size is ever given.

use cenote_engine::object::{Object, ObjectSet};
use cenote_engine::zap::Zap;
use cenote_format::ObjectId;
use cenote_format::objset::ObjsetKind;

use crate::error::EINVAL;
use crate::stream::Streams;
use crate::tree::{Errno, Pieces, Result};

const DATA: ObjectId = ObjectId(1);
const PROPERTIES: ObjectId = ObjectId(2);

/// A volume or a snapshot of one.
pub struct Volume {
    data: Object,
    size: u64,
    streams: Streams,
}

impl Volume {
    /// Opens the volume in `objects`.
    pub fn open(objects: &ObjectSet) -> Result<Self> {
        if objects.kind() != ObjsetKind::Zvol {
            let reason = format!("dataset object {} is no volume", objects.id());
            return Err(Errno::new(EINVAL, reason));
        }
        let properties = Zap::open(objects.object(PROPERTIES)?)?;
        let size = properties.require_u64("size")?;
        let data = objects.object(DATA)?;
        Ok(Self { data, size, streams: Streams::default() })
    }

    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Property `volblocksize` in bytes.
    pub fn block_size(&self) -> u64 {
        self.data.block_size()
    }

    /// Reads up to `len` bytes at `offset`; short only at the end of the volume.
    pub fn read_at(&self, offset: u64, len: usize) -> Result<Pieces> {
        let rest = self.size.saturating_sub(offset);
        let len = usize::try_from(rest).unwrap_or(usize::MAX).min(len);
        let advice = self.streams.note(0, offset, len as u64, self.size);
        if let Some(ahead) = advice.ahead {
            self.data.prefetch(ahead.start, ahead.end - ahead.start, &advice.position);
        }
        Ok(self.data.read(offset, len)?)
    }

    /// The stored range at or after `offset`: where it starts, and where the next hole does; none
    /// if only holes follow.
    pub fn next_stored(&self, offset: u64) -> Result<Option<(u64, u64)>> {
        let Some(start) = self.data.seek_data(offset)?.filter(|start| *start < self.size) else {
            return Ok(None);
        };
        let end = self.data.seek_hole(start)?.unwrap_or(self.data.dnode().max_offset());
        Ok(Some((start, end.max(start).min(self.size))))
    }
}
