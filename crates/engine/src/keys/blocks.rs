//! Opening the blocks of one encrypted dataset with its loaded keys.
//!
//! Chapter 02, sections 8.3 to 8.5. Invariant: a block is given out only after its MAC matched.

use std::collections::HashMap;
use std::sync::Arc;

use cenote_codec::cipher::{self, Cipher, CipherError, MasterKeys, Suite, mac_matches};
use cenote_format::bytes::ByteOrder;
use cenote_format::{BlockPointer, ObjectType};
use parking_lot::RwLock;

use super::sealed;
use crate::pipe::Decryptor;
use crate::{Error, ErrorKind, Result};

/// Ciphers with expanded block keys remembered; a writer changes its salt once in 400 million blocks.
const SALTS_KEPT: usize = 64;

/// A dataset's keys, ready to open its blocks.
pub struct DatasetKeys {
    suite: Suite,
    version: u64,
    keys: MasterKeys,
    by_salt: RwLock<HashMap<[u8; 8], Arc<Cipher>>>,
}

impl DatasetKeys {
    /// From the opened key object: its suite, its version (0 or 1), its master keys.
    pub fn new(suite: Suite, version: u64, keys: MasterKeys) -> Self {
        Self { suite, version, keys, by_salt: RwLock::default() }
    }

    fn cipher(&self, salt: [u8; 8]) -> Result<Arc<Cipher>> {
        if let Some(key) = self.by_salt.read().get(&salt) {
            return Ok(key.clone());
        }
        let key = cipher::block_key(self.suite, &self.keys.master, &salt).map_err(refused)?;
        let key = Arc::new(Cipher::new(self.suite, key.bytes()).map_err(refused)?);
        let mut known = self.by_salt.write();
        if known.len() >= SALTS_KEPT {
            known.clear();
        }
        known.insert(salt, key.clone());
        Ok(key)
    }
}

fn refused(error: CipherError) -> Error {
    Error::new(ErrorKind::Checksum, format!("encrypted block does not open: {error}"))
}

fn order_of(bp: &BlockPointer) -> ByteOrder {
    if bp.is_little_endian() { ByteOrder::Little } else { ByteOrder::Big }
}

impl Decryptor for DatasetKeys {
    fn decrypt(&self, bp: &BlockPointer, data: &mut [u8]) -> Result<()> {
        let cipher = self.cipher(bp.salt())?;
        let (iv, mac) = (bp.iv(), bp.mac());
        if bp.object_type() != ObjectType::DNODE {
            return cipher.open(&iv, &[], data, &mac).map_err(refused);
        }
        let parts = sealed::dnode_block(data, order_of(bp), self.version);
        cipher
            .open_segments(&iv, &parts.authenticated, data, &parts.encrypted, &mac)
            .map_err(refused)
    }

    fn authenticate(&self, bp: &BlockPointer, data: &[u8]) -> Result<()> {
        if bp.object_type() == ObjectType::OBJSET {
            // Its MACs are inside the block.
            return Ok(());
        }
        let mac = cipher::hmac_sha512(&self.keys.hmac, &[data]).map_err(refused)?;
        if mac_matches(&mac, &bp.mac()) {
            Ok(())
        } else {
            Err(refused(CipherError::Authentication))
        }
    }
}
