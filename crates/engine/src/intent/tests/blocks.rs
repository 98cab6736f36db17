//! Log blocks as OpenZFS makes them, in the clear and encrypted.

use cenote_format::zil::LogBlock;

use super::*;

#[test]
fn a_block_of_openzfs_is_made_again() {
    let fixture = include_bytes!("../../../../format/tests/fixtures/zil/block-namespace.bin");
    let (pointer, used) = fixture.split_at(cenote_format::blkptr::SIZE);
    let pointer = BlockPointer::decode(pointer).unwrap();
    let mut data = used.to_vec();
    data.resize(pointer.lsize() as usize, 0);
    let block = LogBlock::decode(&data, &pointer).unwrap();
    let mut builder = BlockBuilder::new(pointer);
    for raw in block.raw_records(&data) {
        let record = raw.unwrap().decode().unwrap();
        builder.push(&record.encode().unwrap(), record.sequence).unwrap();
    }
    let made = builder.finish(&block.chain.next, None).unwrap();
    assert_eq!(made.dva, pointer.first_dva().unwrap());
    assert_eq!(made.data, data[..4096]);
    // Pointers are those OpenZFS makes of the same addresses.
    for (of, verifier) in
        [(pointer, pointer.checksum()), (block.chain.next, block.chain.next.checksum())]
    {
        let size = of.psize() as usize;
        let again = block::pointer_to(of.first_dva().unwrap(), size, of.logical_birth(), verifier);
        assert_eq!(again, of);
    }
}

#[test]
fn encrypted_blocks_open_again_and_only_whole() {
    use cenote_codec::cipher::{MasterKeys, SecretKey, Suite};
    for suite in [Suite::Aes256Gcm, Suite::Aes192Ccm] {
        let master = SecretKey::new(vec![3; suite.key_len()]);
        let keys = MasterKeys { master, hmac: SecretKey::new(vec![4; 64]) };
        let keys = crate::keys::DatasetKeys::new(suite, 1, keys);
        let dva = Dva { vdev: 0, offset: 4096, asize: 12288, gang: false };
        let mut pointer = block::pointer_to(dva, 12288, Txg(9), [1, 2, OBJSET, 1]);
        keys.prepare(&mut pointer).unwrap();
        let next = block::pointer_to(dva, 4096, Txg(9), [1, 2, OBJSET, 2]);
        let mut builder = BlockBuilder::new(pointer);
        let name = b"secret name".to_vec();
        let payload = Payload::Remove { directory: 1, name, is_directory: false };
        let record = Record { txg: Txg(9), sequence: 1, case_insensitive: false, payload };
        builder.push(&record.encode().unwrap(), 1).unwrap();
        builder.push_write(Txg(9), 2, 5, 0, b"secret data").unwrap();
        let made = builder.finish(&next, Some(&keys)).unwrap();
        verify_embedded(&made.data, Algorithm::Zilog2, &pointer.checksum(), Width::Truncated)
            .unwrap();
        assert!(!made.data.windows(6).any(|bytes| bytes == b"secret"));
        let mut opened = made.data.to_vec();
        keys.open(&pointer, &mut opened).unwrap();
        let block = LogBlock::decode(&opened, &pointer).unwrap();
        let records: Vec<Record> =
            block.raw_records(&opened).map(|raw| raw.unwrap().decode().unwrap()).collect();
        assert_eq!(records[0], record);
        let Payload::Write { data: Some(data), .. } = &records[1].payload else { panic!() };
        assert!(data.starts_with(b"secret data"));
        // Neither the records' headers nor what is encrypted can be changed.
        for at in [16, 184 + 16, 184 + 40, 184 + 56 + 70, 184 + 56 + 200] {
            let mut damaged = made.data.to_vec();
            damaged[at] ^= 1;
            assert!(keys.open(&pointer, &mut damaged).is_err(), "byte {at}");
        }
        // A block without records has a MAC all the same.
        let empty = BlockBuilder::new(pointer).finish(&next, Some(&keys)).unwrap();
        keys.open(&pointer, &mut empty.data.to_vec()).unwrap();
    }
}
