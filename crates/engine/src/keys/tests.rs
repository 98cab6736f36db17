//! Tests of sealing: what goes through the write pipeline with keys comes back through the reading
//! half with keys, and only with them.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;
use cenote_codec::cipher::Suite;
use cenote_format::blkptr::SIZE as POINTER;
use cenote_format::crypto_key::KeyFormat;
use cenote_format::objset::{FLAG_USERACCOUNTING_COMPLETE, MACS_AT};
use cenote_format::{BlockPointer, Dnode, ObjectType, Objset};

use super::*;
use crate::ErrorKind;
use crate::pipe::write_tests::{Bench, block, noise, text};
use crate::pipe::{
    BlockKind, BlockToWrite, Decryptor, Encryptor, ObjsetPolicy, ReadContext, WriteFeatures,
};

fn keys(suite: Suite) -> Arc<DatasetKeys> {
    let wrapping = Wrapping::new(KeyFormat::Raw, &[3; 32], None).unwrap();
    Arc::new(wrapping.new_keys(suite).unwrap().1)
}

/// A block of an encrypted dataset.
fn sealed_block(
    keys: &Arc<DatasetKeys>,
    object_type: ObjectType,
    level: u8,
    data: Bytes,
) -> BlockToWrite {
    let set = ObjsetPolicy {
        copies: 1,
        encryptor: Some(keys.clone() as Arc<dyn Encryptor>),
        ..ObjsetPolicy::mos()
    };
    let kind = BlockKind::new(object_type, level);
    let policy = set.block(&kind, &WriteFeatures::ALL).unwrap();
    BlockToWrite { policy, ..block(object_type, level, data) }
}

fn context(keys: &Arc<DatasetKeys>) -> ReadContext {
    let decryptor = Some(keys.clone() as Arc<dyn Decryptor>);
    ReadContext { decryptor, ..ReadContext::default() }
}

fn dnode(bonus: u8) -> Dnode {
    let mut dnode =
        Dnode::decode(&[&[19, 17, 1, 1, 44, 0, 0, 0, 1, 0, 100, 0][..], &[0; 500]].concat())
            .unwrap()
            .unwrap();
    dnode.bonus_area.iter_mut().take(100).for_each(|byte| *byte = bonus);
    dnode
}

fn dnodes() -> Bytes {
    let mut data = vec![0; 16384];
    for (slot, bonus) in [(1, 0x11), (7, 0x77), (31, 0xff)] {
        data[slot * 512..(slot + 1) * 512].copy_from_slice(&dnode(bonus).encode().unwrap());
    }
    Bytes::from(data)
}

fn pointers(bp: &BlockPointer) -> Bytes {
    let mut data = vec![0; 4096];
    data[5 * POINTER..6 * POINTER].copy_from_slice(&bp.encode());
    Bytes::from(data)
}

fn object_set() -> Bytes {
    let mut data = vec![0; 4096];
    let meta = [10, 17, 1, 3, 0, 0, 0, 0, 32, 0, 0, 0];
    data[..12].copy_from_slice(&meta);
    let mut set = Objset::decode(&data).unwrap();
    set.flags = FLAG_USERACCOUNTING_COMPLETE;
    set.user_used = Some(dnode(0));
    Bytes::from(set.encode().unwrap())
}

#[test]
fn sealed_blocks_open_with_their_keys_only() {
    for suite in [Suite::Aes128Ccm, Suite::Aes256Gcm, Suite::Aes192Gcm] {
        let (bench, keys) = (Bench::new(), keys(suite));
        let plain = bench.write(4, 1, block(ObjectType::PLAIN_FILE, 0, noise(9, 4096))).unwrap();
        // A block that nobody with the keys wrote.
        let error = bench.read(&plain.pointer, &context(&keys)).unwrap_err();
        assert!(error.to_string().contains("authentication failed"), "{error}");
        let blocks = [
            (ObjectType::PLAIN_FILE, 0, text(1, 128 << 10, 5), 1),
            (ObjectType::PLAIN_FILE, 0, noise(2, 12_800), 1),
            (ObjectType::PLAIN_FILE, 0, Bytes::from([vec![1], vec![0; 4095]].concat()), 1),
            (ObjectType::DIRECTORY, 0, text(3, 16 << 10, 8), 2),
            (ObjectType::MASTER_NODE, 0, text(4, 16 << 10, 3), 2),
            (ObjectType::DNODE, 0, dnodes(), 2),
            (ObjectType::PLAIN_FILE, 1, pointers(&plain.pointer), 2),
        ];
        for (object_type, level, data, copies) in blocks {
            let request = sealed_block(&keys, object_type, level, data.clone());
            let bp = bench.write(5, 1, request.clone()).unwrap().pointer;
            assert!(bp.is_crypt() && !bp.is_embedded());
            assert_eq!(bp.dvas().count(), copies, "{bp:?}");
            assert_eq!(bench.read(&bp, &context(&keys)).unwrap(), data, "{bp:?}");
            let mut damaged = bp;
            damaged.words[14] ^= 1;
            let error = bench.read(&damaged, &context(&keys)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Checksum, "{bp:?}");
            if level > 0 {
                assert!(error.to_string().contains("authentication failed"), "{error}");
                assert_eq!(keys.indirect_mac(&data).unwrap(), bp.mac());
                // Without keys the MAC says nothing, and what was read so is not kept for others.
                assert_eq!(bench.pipe.read(&damaged, &ReadContext::default()).unwrap(), data);
                assert!(bench.pipe.read(&damaged, &context(&keys)).is_err());
            }
            if bp.is_encrypted() {
                let error = bench.read(&bp, &ReadContext::default()).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::KeyNotLoaded);
                let other = super::tests::keys(suite);
                assert!(bench.read(&bp, &context(&other)).is_err());
                let again = bench.write(5, 1, request.clone()).unwrap().pointer;
                assert_eq!(again.salt(), bp.salt());
                assert_ne!(again.iv(), bp.iv());
            }
            // Never in the same place with other content.
            let rewrite = BlockToWrite { old: bp, ..request };
            let moved = bench.write(5, 3, rewrite).unwrap();
            assert_ne!(moved.pointer.first_dva(), bp.first_dva());
        }
        // Dnode cores stay readable without keys, their bonuses do not.
        let request = sealed_block(&keys, ObjectType::DNODE, 0, dnodes());
        let bp = bench.write(5, 1, request).unwrap().pointer;
        let sealed = ReadContext { sealed: true, ..ReadContext::default() };
        let stored = bench.read(&bp, &sealed).unwrap();
        assert_eq!(stored[512..512 + 192], dnodes()[512..512 + 192]);
        assert_ne!(stored[512 + 192..1024], dnodes()[512 + 192..1024]);
    }
}

#[test]
fn object_sets_carry_their_macs() {
    let (bench, keys) = (Bench::new(), keys(Suite::Aes256Gcm));
    let request = sealed_block(&keys, ObjectType::OBJSET, 0, object_set());
    let bp = bench.write(5, 1, request).unwrap().pointer;
    assert!(bp.is_crypt() && bp.compression() == 2 && bp.dvas().count() == 2);
    let cached = bench.pipe.read(&bp, &context(&keys)).unwrap();
    let read = bench.read(&bp, &context(&keys)).unwrap();
    assert_eq!(cached, read);
    for at in MACS_AT {
        assert_ne!(read[at..at + 32], [0; 32]);
    }
    let error = bench.read(&bp, &context(&self::keys(Suite::Aes256Gcm))).unwrap_err();
    assert!(error.to_string().contains("authentication failed"), "{error}");
    for at in [16, 704, 712, 725, 757, 1024 + 16] {
        let mut changed = read.to_vec();
        changed[at] ^= 2;
        assert!(keys.authenticate_object_set(&changed).is_err(), "byte {at}");
    }
    keys.authenticate_object_set(&read).unwrap();
    assert!(keys.authenticate_object_set(&read[..700]).is_err());
    let mut blank = read.to_vec();
    MACS_AT.into_iter().for_each(|at| blank[at..at + 32].fill(0));
    assert_eq!(blank, object_set());
    // The MACs depend on the pointers, the flags and the accounting, not on the log header.
    let macs = |change: &dyn Fn(&mut [u8])| {
        let mut block = object_set().to_vec();
        change(&mut block);
        keys.seal_object_set(&mut block).unwrap();
        MACS_AT.map(|at| block[at..at + 32].to_vec())
    };
    let same = macs(&|_| {});
    assert_eq!(macs(&|block| block[600] = 1), same);
    let [portable, local] = macs(&|block| block[16] = 1);
    assert!(portable != same[0] && local == same[1]);
    let [portable, local] = macs(&|block| block[1024 + 16] = 1);
    assert!(portable == same[0] && local != same[1]);
    assert_eq!(macs(&|block| block[712] = 0)[1], [0; 32]);
    // Programs of others left a local MAC where accounting is to be counted anew (OpenZFS issue 13709).
    let mut uncounted = read.to_vec();
    uncounted[712] = 0;
    keys.authenticate_object_set(&uncounted).unwrap();
}

#[test]
fn gangs_of_encrypted_blocks() {
    let (bench, keys) = (Bench::new(), keys(Suite::Aes256Gcm));
    bench.space.longest.store(16 << 10, Relaxed);
    for (object_type, copies) in [(ObjectType::PLAIN_FILE, 2), (ObjectType::MASTER_NODE, 3)] {
        let data = noise(7, 100 << 10);
        let request = sealed_block(&keys, object_type, 0, data.clone());
        let bp = bench.write(5, 1, request).unwrap().pointer;
        assert!(bp.is_gang());
        assert_eq!(bp.dvas().count(), copies);
        assert_eq!(bench.read(&bp, &context(&keys)).unwrap(), data);
    }
}
