//! Blocks that were sealed elsewhere, stored as they come: for datasets that are received without their key.
//!
//! Chapter 07, section 8. Invariant: nothing here has a key. What a MAC covers is written as it was received;
//! only the MACs of indirect blocks, which need no key, are made.

use std::collections::HashMap;

use cenote_codec::cipher::sha512_mac;
use cenote_format::bytes::ByteOrder;
use cenote_format::{ObjectType, Txg, objset};
use parking_lot::Mutex;

use super::sealed;
use crate::pipe::{BlockPlace, Encryptor, GivenBlock, Sealing};
use crate::{Error, Result};

/// Seals the blocks of one dataset with what was received for them.
pub struct ReceivedSeals {
    /// Version of the dataset's key object.
    version: u64,
    /// The portable MAC of its object set.
    portable: [u8; 32],
    state: Mutex<Received>,
}

#[derive(Default)]
struct Received {
    /// Blocks of dnodes by number.
    dnodes: HashMap<u64, Sealing>,
    /// Level-0 blocks by object and number, with the group they are written in.
    blocks: HashMap<(u64, u64), (Txg, GivenBlock)>,
    /// The blocks of groups up to this one are forgotten.
    forgotten: Txg,
}

impl ReceivedSeals {
    /// Of a dataset whose object set will have this portable MAC.
    pub fn new(version: u64, portable: [u8; 32]) -> Self {
        Self { version, portable, state: Mutex::default() }
    }

    /// The block of dnodes `number` is sealed so.
    pub fn dnode_block(&self, number: u64, sealing: Sealing) {
        self.state.lock().dnodes.insert(number, sealing);
    }

    /// Block `number` of an object (`u64::MAX`: its spill block) is this one, from group `txg` on; false if it
    /// was already given one that is not on the disks yet.
    pub fn block(&self, txg: Txg, object: u64, number: u64, given: GivenBlock) -> bool {
        let mut state = self.state.lock();
        if state.blocks.contains_key(&(object, number)) {
            return false;
        }
        state.blocks.insert((object, number), (txg, given));
        true
    }

    /// The groups up to `txg` are on the disks. Costs nothing if that was said before.
    pub fn forget(&self, txg: Txg) {
        let mut state = self.state.lock();
        if txg > state.forgotten {
            state.forgotten = txg;
            state.blocks.retain(|_, (of, _)| *of > txg);
        }
    }

    /// Bytes of the blocks that were given and not forgotten.
    pub fn waiting(&self) -> u64 {
        let state = self.state.lock();
        let stored = state.blocks.values().filter_map(|(_, given)| given.stored.as_ref());
        stored.map(|stored| stored.len() as u64).sum()
    }
}

/// What stands where nothing was received: it will not open.
const NOTHING: Sealing = Sealing { salt: [0; 8], iv: [0; 12], mac: [0; 16] };

impl Encryptor for ReceivedSeals {
    fn encrypt(&self, _: ObjectType, _: &mut [u8]) -> Result<Sealing> {
        Ok(NOTHING)
    }

    fn encrypt_alike(&self, _: ObjectType, _: &mut [u8]) -> Result<Sealing> {
        Ok(NOTHING)
    }

    fn mac(&self, _: &[u8]) -> Result<[u8; 16]> {
        Ok(NOTHING.mac)
    }

    fn indirect_mac(&self, data: &[u8]) -> Result<[u8; 16]> {
        let message = sealed::indirect_block(data, ByteOrder::Little, self.version);
        Ok(sha512_mac(&message))
    }

    fn seal_object_set(&self, block: &mut [u8]) -> Result<()> {
        for (at, mac) in objset::MACS_AT.into_iter().zip([self.portable, [0; 32]]) {
            let short = || Error::invalid("an object-set block that is too short");
            block.get_mut(at..at + mac.len()).ok_or_else(short)?.copy_from_slice(&mac);
        }
        Ok(())
    }

    fn given(&self, place: &BlockPlace) -> Option<GivenBlock> {
        let state = self.state.lock();
        match place.object.0 {
            0 => {
                let sealing = state.dnodes.get(&place.block).copied().unwrap_or(NOTHING);
                Some(GivenBlock { stored: None, compression: 0, sealing })
            }
            object => state.blocks.get(&(object, place.block)).map(|(_, given)| given.clone()),
        }
    }

    fn keeps_sealed(&self) -> bool {
        true
    }
}
