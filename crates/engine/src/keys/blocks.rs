//! Opening and sealing the blocks of one encrypted dataset with its loaded keys.
//!
//! Chapter 02, sections 8.3 to 8.7. Invariant: a block is given out only after its MAC matched; no
//! initialisation vector is used twice with a salt for different bytes (both are random, and the
//! salt changes long before chance could make them meet; or both are a MAC of the bytes).

use std::collections::HashMap;
use std::sync::Arc;

use cenote_codec::cipher::{self, Cipher, CipherError, MasterKeys, Suite, mac_matches};
use cenote_format::bytes::ByteOrder;
use cenote_format::{BlockPointer, ObjectType, objset};
use parking_lot::{Mutex, RwLock};

use super::sealed;
use crate::pipe::{Decryptor, Encryptor, Sealing};
use crate::{Error, ErrorKind, Result};

/// Ciphers with expanded block keys remembered; a writer changes its salt once in 400 million blocks.
const SALTS_KEPT: usize = 64;
/// Blocks written with one salt before another is drawn.
const BLOCKS_PER_SALT: u64 = 400_000_000;

/// A dataset's keys, ready to open and seal its blocks.
pub struct DatasetKeys {
    suite: Suite,
    version: u64,
    keys: MasterKeys,
    by_salt: RwLock<HashMap<[u8; 8], Arc<Cipher>>>,
    /// The salt new blocks are written with, and how many more may be.
    writing: Mutex<Option<([u8; 8], u64)>>,
}

impl DatasetKeys {
    /// From the opened key object: its suite, its version (0 or 1), its master keys.
    pub fn new(suite: Suite, version: u64, keys: MasterKeys) -> Self {
        Self { suite, version, keys, by_salt: RwLock::default(), writing: Mutex::default() }
    }

    /// Salt and initialisation vector for a block to be written.
    pub fn new_parameters(&self) -> Result<([u8; 8], [u8; 12])> {
        let mut iv = [0; 12];
        crate::environment::fill_random(&mut iv).map_err(not_sealed)?;
        let mut writing = self.writing.lock();
        if let Some((salt, left)) = &mut *writing
            && *left > 0
        {
            *left -= 1;
            return Ok((*salt, iv));
        }
        let mut salt = [0; 8];
        crate::environment::fill_random(&mut salt).map_err(not_sealed)?;
        *writing = Some((salt, BLOCKS_PER_SALT - 1));
        Ok((salt, iv))
    }

    /// Encrypts the stored bytes of a level-0 block in place with the given parameters; its MAC.
    pub fn encrypt_with(
        &self,
        object_type: ObjectType,
        salt: [u8; 8],
        iv: [u8; 12],
        data: &mut [u8],
    ) -> Result<[u8; 16]> {
        let cipher = self.cipher(salt)?;
        if object_type != ObjectType::DNODE {
            return cipher.seal(&iv, &[], data).map_err(not_sealed);
        }
        let parts = sealed::dnode_block(data, ByteOrder::Little, self.version);
        cipher.seal_segments(&iv, &parts.authenticated, data, &parts.encrypted).map_err(not_sealed)
    }

    /// The portable and the local MAC of a little-endian object-set block.
    fn object_set_macs(&self, block: &[u8]) -> Result<[[u8; 32]; 2]> {
        let messages = sealed::object_set(block, self.version).ok_or_else(short_object_set)?;
        let local = match &messages.local {
            Some(message) => self.hmac(message)?,
            None => [0; 32],
        };
        Ok([self.hmac(&messages.portable)?, local])
    }

    fn hmac<const N: usize>(&self, message: &[u8]) -> Result<[u8; N]> {
        let mac = cipher::hmac_sha512(&self.keys.hmac, &[message]).map_err(not_sealed)?;
        mac.first_chunk().copied().ok_or_else(|| not_sealed(CipherError::Message))
    }

    pub(crate) fn cipher(&self, salt: [u8; 8]) -> Result<Arc<Cipher>> {
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
    Error::new(ErrorKind::Checksum, format!("encrypted block does not open: {error}")).forged()
}

fn changed(what: &str) -> Error {
    let reason = format!("authentication failed: {what} does not match its MAC");
    Error::new(ErrorKind::Checksum, reason)
        .forged()
        .with_advice("its checksum is right: it was written by somebody without the key")
}

fn short_object_set() -> Error {
    Error::invalid("an object-set block that is too short")
}

fn not_sealed(error: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Io, format!("a block cannot be encrypted: {error}"))
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
        let mac = cipher::hmac_sha512(&self.keys.hmac, &[data]).map_err(refused)?;
        if mac_matches(&mac, &bp.mac()) {
            Ok(())
        } else {
            Err(refused(CipherError::Authentication))
        }
    }

    fn authenticate_indirect(&self, bp: &BlockPointer, data: &[u8]) -> Result<()> {
        let message = sealed::indirect_block(data, order_of(bp), self.version);
        if mac_matches(&cipher::sha512_mac(&message), &bp.mac()) {
            Ok(())
        } else {
            Err(changed("an indirect block"))
        }
    }

    fn authenticate_object_set(&self, block: &[u8]) -> Result<()> {
        let [portable, local] = self.object_set_macs(block).map_err(|error| {
            // Too short a block, or a message that cannot be hashed.
            Error::corrupt(error.to_string())
        })?;
        let matches = |at: usize, mac: [u8; 32]| {
            block.get(at..at + mac.len()).is_some_and(|found| mac_matches(&mac, found))
        };
        let [portable_at, local_at] = objset::MACS_AT;
        if !matches(portable_at, portable) {
            return Err(changed("the object set"));
        }
        // Where accounting is not complete there is nothing to protect: it is counted anew, whatever older programs
        // left in this MAC.
        if local != [0; 32] && !matches(local_at, local) {
            return Err(changed("the object set's flags and accounting"));
        }
        Ok(())
    }
}

impl Encryptor for DatasetKeys {
    fn encrypt(&self, object_type: ObjectType, data: &mut [u8]) -> Result<Sealing> {
        let (salt, iv) = self.new_parameters()?;
        let mac = self.encrypt_with(object_type, salt, iv, data)?;
        Ok(Sealing { salt, iv, mac })
    }

    fn encrypt_alike(&self, object_type: ObjectType, data: &mut [u8]) -> Result<Sealing> {
        let (salt, iv) = cipher::dedup_salt_and_nonce(&self.keys.hmac, data).map_err(not_sealed)?;
        let mac = self.encrypt_with(object_type, salt, iv, data)?;
        Ok(Sealing { salt, iv, mac })
    }

    fn mac(&self, data: &[u8]) -> Result<[u8; 16]> {
        self.hmac(data)
    }

    fn indirect_mac(&self, data: &[u8]) -> Result<[u8; 16]> {
        let message = sealed::indirect_block(data, ByteOrder::Little, self.version);
        Ok(cipher::sha512_mac(&message))
    }

    fn seal_object_set(&self, block: &mut [u8]) -> Result<()> {
        let macs = self.object_set_macs(block)?;
        for (at, mac) in objset::MACS_AT.into_iter().zip(macs) {
            block.get_mut(at..at + mac.len()).ok_or_else(short_object_set)?.copy_from_slice(&mac);
        }
        Ok(())
    }
}
