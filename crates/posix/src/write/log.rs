//! The intent log of a filesystem: which changes are noted how.
//!
//! Chapter 05, section 18. Invariant: what a record cannot tell (or not every release of OpenZFS
//! understands) makes the next commit wait for the whole transaction group instead.

use std::sync::Arc;

use bytes::Bytes;
use cenote_engine::intent::{IntentLog, WriteSource};
use cenote_engine::object::DirtyBlocks;
use cenote_engine::txg::Tx;
use cenote_format::zil::{Payload, RenameKind};
use cenote_format::{ObjectId, Txg};

use super::{ChangeLog, Durability};
use crate::error::ESTALE;
use crate::filesystem::Filesystem;
use crate::tree::Result;
use crate::view::{File, View};

/// Writes of fewer bytes are kept with the record; of longer ones the file is read again
/// when they are committed.
const KEPT_DATA: usize = 32 << 10;

/// Notes a filesystem's changes in its intent log, and commits them.
pub struct Intents {
    log: Arc<IntentLog>,
    /// Feature `zilsaxattr` is enabled: extended attributes have records.
    xattr_records: bool,
}

impl Intents {
    /// For `log`; `xattr_records` tells whether the feature `zilsaxattr` is enabled.
    pub fn new(log: Arc<IntentLog>, xattr_records: bool) -> Arc<Self> {
        Arc::new(Self { log, xattr_records })
    }
}

impl ChangeLog for Intents {
    fn note(&self, tx: &Tx, object: u64, payload: Payload) -> Result<()> {
        match &payload {
            Payload::SetXattr { .. } if !self.xattr_records => {
                self.log.append_whole(tx);
                Ok(())
            }
            Payload::Rename { kind: RenameKind::Exchange | RenameKind::Whiteout(_), .. } => {
                self.log.append_whole(tx);
                Ok(())
            }
            Payload::Create(_)
            | Payload::Remove { .. }
            | Payload::Link { .. }
            | Payload::Rename { .. } => Ok(self.log.append(tx, object, payload, false)?),
            _ => Ok(self.log.append_later(tx, object, payload)?),
        }
    }

    fn note_write(&self, tx: &Tx, object: u64, offset: u64, data: &[u8]) {
        if data.len() < KEPT_DATA {
            self.log.append_write(tx, object, offset, Bytes::copy_from_slice(data), false);
        } else {
            self.log.append_later_write(tx, object, offset, data.len() as u64);
        }
    }

    fn note_whole(&self, tx: &Tx) {
        self.log.append_whole(tx);
    }

    fn forget(&self, object: u64) {
        self.log.forget(object);
    }
}

impl Durability for Intents {
    fn commit(&self, object: u64) -> Result<()> {
        Ok(self.log.commit(object)?)
    }

    fn sync_all(&self) -> Result<()> {
        Ok(self.log.commit(0)?)
    }
}

impl WriteSource for Filesystem {
    fn read(&self, object: u64, offset: u64, length: u64) -> cenote_engine::Result<Option<Bytes>> {
        self.for_log(object, |file| {
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            let pieces = View::read(file, offset, length)?;
            Ok(match pieces.as_slice() {
                [piece] => piece.clone(),
                _ => pieces.concat().into(),
            })
        })
    }

    fn dirty(
        &self,
        txg: Txg,
        object: u64,
        offset: u64,
        length: u64,
    ) -> cenote_engine::Result<Option<DirtyBlocks>> {
        let dirty = self.for_log(object, |file| Ok(file.object.dirty_blocks(txg, offset, length)));
        Ok(dirty?.flatten())
    }
}

impl Filesystem {
    /// Looks at a file for its records while nobody changes it; `None` if it is gone.
    fn for_log<T>(
        &self,
        object: u64,
        look: impl FnOnce(&File) -> Result<T>,
    ) -> cenote_engine::Result<Option<T>> {
        let looked = || -> Result<Option<T>> {
            let Some(writer) = self.writer() else { return Ok(None) };
            let node = writer.node(ObjectId(object))?;
            let state = node.read()?;
            look(&state.file).map(Some)
        };
        match looked() {
            Ok(found) => Ok(found),
            Err(error) if error.code == ESTALE => Ok(None),
            Err(error) => {
                Err(cenote_engine::Error::new(cenote_engine::ErrorKind::Io, error.reason))
            }
        }
    }
}
