//! The intent log of a filesystem: which changes are noted how.
//!
//! Chapter 05, section 18. Invariant: what a record cannot tell (or not every release of OpenZFS
//! understands) makes the next commit wait for the whole transaction group instead.

use std::sync::Arc;

use bytes::Bytes;
use cenote_engine::intent::IntentLog;
use cenote_engine::txg::Tx;
use cenote_format::zil::{Payload, RenameKind};

use super::{ChangeLog, Durability};
use crate::tree::Result;

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
            _ => Ok(self.log.note(tx, object, payload)?),
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
