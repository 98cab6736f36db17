//! Vectors of chapter 05, section 20, round trips of every type, and hostile bytes.

use proptest::prelude::*;

use super::*;
use crate::bytes::ByteOrder;

fn create(what: Created) -> Create {
    Create {
        what,
        directory: 34,
        object: LogId { object: 0x16d, extra_slots: 1 },
        mode: 0o100644,
        owner: 1000,
        group: 1 << 32 | 5,
        generation: 9,
        created: [1, 2],
        device: 3,
        acl: None,
        attributes: None,
        domains: vec![b"S-1-5-21".to_vec()],
        name: b"name".to_vec(),
    }
}

fn every_payload() -> Vec<Payload> {
    let acl = AclParts { count: 1, flags: 4, entries: vec![1; 12], fuids: vec![7, 8] };
    let attributes =
        ExtendedAttributes { requested: [0x81, 0, 0], values: 1, created: [3, 4], stamp: [5; 32] };
    let mut all = Vec::new();
    for what in [Created::File, Created::Directory] {
        for (with_acl, with_attributes) in
            [(false, false), (true, false), (false, true), (true, true)]
        {
            let mut one = create(what.clone());
            one.acl = with_acl.then(|| acl.clone());
            one.attributes = with_attributes.then_some(attributes);
            all.push(Payload::Create(Box::new(one)));
        }
    }
    all.push(Payload::Create(Box::new(create(Created::XattrDirectory))));
    let link = Created::Symlink { target: b"to/there".to_vec() };
    all.push(Payload::Create(Box::new(create(link))));
    let whiteout = Whiteout {
        object: LogId { object: 5, extra_slots: 0 },
        mode: 0o20000,
        owner: 1,
        group: 2,
        generation: 3,
        created: [4, 5],
        device: 0,
    };
    for kind in [RenameKind::Plain, RenameKind::Exchange, RenameKind::Whiteout(whiteout)] {
        let (source, target) = (b"from".to_vec(), b"to".to_vec());
        let (source_directory, target_directory) = (1, 2);
        all.push(Payload::Rename { kind, source_directory, source, target_directory, target });
    }
    let write = |data: Option<Vec<u8>>| Payload::Write {
        object: 1,
        offset: 2,
        length: 64,
        block_offset: 0,
        block: BlockPointer::HOLE,
        data,
    };
    let mut set = SetAttributes {
        object: 1,
        mask: mask_linux::MODE,
        mode: 0o600,
        owner: 0,
        group: 0,
        size: 0,
        accessed: [1, 2],
        modified: [3, 4],
        extended: None,
        domains: Vec::new(),
    };
    all.push(Payload::SetAttributes(Box::new(set.clone())));
    set.mask |= mask_linux::EXTENDED;
    set.extended = Some(attributes);
    all.push(Payload::SetAttributes(Box::new(set)));
    all.extend([
        Payload::Remove { directory: 1, name: b"n".to_vec(), is_directory: false },
        Payload::Remove { directory: 1, name: b"n".to_vec(), is_directory: true },
        Payload::Link { directory: 1, object: 2, name: b"n".to_vec() },
        write(None),
        write(Some(vec![7; 64])),
        Payload::WriteExtend { object: 1, offset: 2, length: 3 },
        Payload::Truncate { object: 1, offset: 2, length: 0 },
        Payload::SetOldAcl { object: 1, count: 2, entries: vec![3; 24] },
        Payload::SetAcl { object: 1, acl, domains: vec![b"d".to_vec()] },
        Payload::SetXattr { object: 1, name: b"user.k".to_vec(), value: Some(b"v".to_vec()) },
        Payload::SetXattr { object: 1, name: b"user.k".to_vec(), value: None },
        Payload::CloneRange {
            object: 1,
            offset: 2,
            length: 3,
            block_size: 512,
            blocks: vec![BlockPointer::HOLE; 2],
        },
    ]);
    all
}

#[test]
fn every_record_round_trips() {
    let mut kinds = Vec::new();
    for (index, payload) in every_payload().into_iter().enumerate() {
        let sequence = index as u64 + 1;
        let record = Record { txg: Txg(7), sequence, case_insensitive: index % 2 == 0, payload };
        let raw = record.encode().unwrap();
        assert_eq!(raw.len() % 8, 0);
        assert_eq!(Record::decode(&raw, ByteOrder::Little).unwrap(), record);
        for cut in 0..raw.len() {
            assert!(Record::decode(&raw[..cut], ByteOrder::Little).is_err());
        }
        kinds.push(record.payload.kind());
    }
    kinds.sort_unstable();
    kinds.dedup();
    assert_eq!(kinds, (1..=24).collect::<Vec<u64>>());
}

#[test]
fn sizes_of_chapter_05() {
    let size = |payload| {
        let record = Record { txg: Txg(1), sequence: 1, case_insensitive: false, payload };
        record.encode().unwrap().len()
    };
    let name = b"ztest_zap(0)[0]".to_vec();
    assert_eq!(size(Payload::Remove { directory: 1, name, is_directory: false }), 56);
    assert_eq!(size(Payload::Truncate { object: 1, offset: 0, length: 0 }), 56);
    assert_eq!(size(Payload::WriteExtend { object: 1, offset: 0, length: 0 }), 192);
    let write = |data| Payload::Write {
        object: 1,
        offset: 0,
        length: 64,
        block_offset: 0,
        block: BlockPointer::HOLE,
        data,
    };
    assert_eq!(size(write(None)), 192);
    assert_eq!(size(write(Some(vec![0; 64]))), 256);
}

#[test]
fn create_record_of_ztest() {
    let raw = hex::decode(
        [
            "0100000000000000",
            "7800000000000000",
            "3f00000000000000",
            "5200000000000000",
            "0100000000000000",
            "6d01000000000000",
            "1b00000000000000",
            "0002000000000000",
            "1000000000000000",
            "0000000000000000",
            "dd83006b00000000",
            "0008000000000000",
            "1a00000000000000",
            "7a746573745f7a61",
            "702830295b305d00",
        ]
        .concat(),
    )
    .unwrap();
    let record = Record::decode(&raw, ByteOrder::Little).unwrap();
    assert_eq!((record.txg, record.sequence), (Txg(0x3f), 0x52));
    let Payload::Create(create) = &record.payload else { panic!("{record:?}") };
    assert_eq!((create.directory, create.object.object, create.device), (1, 0x16d, 0x1a));
    assert_eq!(create.name, b"ztest_zap(0)[0]");
    assert_eq!(record.encode().unwrap(), raw);
    // The same record by a big-endian host.
    let mut big = raw.clone();
    crate::bytes::swap_elements::<8>(&mut big[..104]);
    assert_eq!(Record::decode(&big, ByteOrder::Big).unwrap(), record);
}

/// A block of the newer kind with one record, and the pointer that leads to it.
fn block() -> (Vec<u8>, BlockPointer) {
    let mut to_it = BlockPointer::HOLE;
    // Type 9, checksum 9, compression off; verifier with sequence 1.
    to_it.words[6] = 9 << 48 | 9 << 40 | 2 << 32;
    to_it.words[12..16].copy_from_slice(&[11, 12, 13, 1]);
    let mut next = to_it;
    next.words[0] = 1;
    next.words[1] = 8;
    next.words[15] = 2;
    let payload = Payload::Truncate { object: 1, offset: 2, length: 3 };
    let record = Record { txg: Txg(4), sequence: 5, case_insensitive: false, payload };
    let record = record.encode().unwrap();
    let used = (CHAIN_SIZE + record.len()) as u64;
    let mut data = Chain { next, used, checksum: [1, 2, 3, 4] }.encode();
    data.extend(record);
    data.resize(8192, 0xee);
    (data, to_it)
}

#[test]
fn blocks_of_the_newer_kind() {
    let (data, to_it) = block();
    let decoded = LogBlock::decode(&data, &to_it).unwrap();
    assert_eq!((decoded.covered.clone(), decoded.checksum_at), (0..4096, 152));
    assert_eq!(decoded.chain.checksum, [1, 2, 3, 4]);
    let records: Vec<_> = decoded.raw_records(&data).map(|raw| raw.unwrap()).collect();
    assert_eq!(records.len(), 1);
    assert_eq!(records[0].decode().unwrap().payload.name(), "TX_TRUNCATE");
    let mut other_chain = to_it;
    other_chain.words[13] = 99;
    assert!(LogBlock::decode(&data, &other_chain).is_err());
    assert!(LogBlock::decode(&data[..200], &to_it).is_err());
    let mut hostile = data.clone();
    hostile[CHAIN_SIZE + 8..CHAIN_SIZE + 16].fill(0xff);
    let records: Vec<_> = decoded.raw_records(&hostile).collect();
    assert!(records.len() == 1 && records[0].is_err());
}

/// The last block OpenZFS 2.1 wrote before a crash: its pointer, then the bytes in use.
const NAMESPACE: &[u8] = include_bytes!("../../tests/fixtures/zil/block-namespace.bin");

fn fletcher4(data: &[u8]) -> [u64; 4] {
    data.chunks_exact(4).fold([0; 4], |[a, b, c, d], word| {
        let a = a.wrapping_add(u64::from(u32::from_le_bytes(word.try_into().unwrap())));
        let b = b.wrapping_add(a);
        let c = c.wrapping_add(b);
        [a, b, c, d.wrapping_add(c)]
    })
}

#[test]
fn a_block_of_openzfs() {
    let (pointer, used) = NAMESPACE.split_at(crate::blkptr::SIZE);
    let pointer = BlockPointer::decode(pointer).unwrap();
    let mut data = used.to_vec();
    data.resize(pointer.lsize() as usize, 0);
    let block = LogBlock::decode(&data, &pointer).unwrap();
    // Verified as chapter 05, section 16.2 says.
    let mut covered = data[block.covered.clone()].to_vec();
    for (index, word) in pointer.checksum().iter().enumerate() {
        let at = block.checksum_at + 8 * index;
        covered[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }
    assert_eq!(fletcher4(&covered), block.chain.checksum);
    let mut names = Vec::new();
    for raw in block.raw_records(&data) {
        let raw = raw.unwrap();
        let record = raw.decode().unwrap();
        // What is not said by a record (padding, a name's rest) is zero in these.
        assert_eq!(record.encode().unwrap(), raw.data, "{record:?}");
        names.push((record.sequence, record.payload.name()));
    }
    let expected = [
        (291, "TX_MKDIR"),
        (292, "TX_MKDIR"),
        (293, "TX_RENAME"),
        (294, "TX_LINK"),
        (295, "TX_SYMLINK"),
        (296, "TX_REMOVE"),
        (297, "TX_SETATTR"),
    ];
    assert_eq!(names, expected);
}

#[test]
fn blocks_of_the_older_kind() {
    let (data, mut to_it) = block();
    to_it.words[6] = 9 << 48 | 5 << 40 | 2 << 32;
    let mut old = data[CHAIN_SIZE..CHAIN_SIZE + 56].to_vec();
    old.resize(4096 - CHAIN_SIZE, 0);
    let newer = LogBlock::decode(&data, &block().1).unwrap();
    old.extend(Chain { used: 56, ..newer.chain }.encode());
    let decoded = LogBlock::decode(&old, &to_it).unwrap();
    assert_eq!((decoded.covered.clone(), decoded.records.clone()), (0..4096, 0..56));
    assert_eq!(decoded.raw_records(&old).count(), 1);
}

#[test]
fn header_round_trips() {
    let header = Header {
        claim_txg: Txg(1),
        replay_seq: 2,
        log: block().1,
        claim_block_seq: 3,
        flags: REPLAY_NEEDED,
        claim_record_seq: 4,
    };
    assert_eq!(Header::decode(&header.encode().unwrap()).unwrap(), header);
    assert!(Header::decode(&[0; 100]).is_err());
}

proptest! {
    #[test]
    fn no_bytes_panic(kind in 0_u64..30, mut data in prop::collection::vec(any::<u8>(), 32..400)) {
        data[0..8].copy_from_slice(&kind.to_le_bytes());
        let length = data.len() as u64;
        data[8..16].copy_from_slice(&length.to_le_bytes());
        if let Ok(record) = Record::decode(&data, ByteOrder::Little) {
            prop_assert!(record.payload.kind() == kind);
        }
        data[0..8].copy_from_slice(&kind.to_be_bytes());
        data[8..16].copy_from_slice(&length.to_be_bytes());
        let _ = Record::decode(&data, ByteOrder::Big);
    }
}
