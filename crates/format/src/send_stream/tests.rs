//! Vectors of chapter 07, section 18, round trips of every kind of record, and hostile bytes.

use proptest::prelude::*;

use super::*;
use crate::bytes::{ByteOrder, swap_elements};
use crate::{Guid, ObjectType};

fn header(lines: &[(usize, &str)]) -> [u8; HEADER] {
    let mut bytes = [0; HEADER];
    for (at, line) in lines {
        let raw = hex::decode(line.replace(' ', "")).unwrap();
        bytes[*at..*at + raw.len()].copy_from_slice(&raw);
    }
    bytes
}

/// The headers of S2, without their checksums.
fn vectors() -> [[u8; HEADER]; 5] {
    [
        header(&[
            (0, "0000000000000000 accbbaf502000000 01002c0100000000 6989006b00000000"),
            (32, "040000000c000000 968dd1fa8831d4e2 b2c261f6a6943231 74702f6673407332"),
        ]),
        header(&[
            (0, "0100000000000000 0100000000000000 1300000000000000 0010000000000000"),
            (32, "0000010000000000 968dd1fa8831d4e2"),
        ]),
        header(&[
            (0, "0400000000000000 0100000000000000 0090000000000000 ffffffffffffffff"),
            (32, "968dd1fa8831d4e2"),
        ]),
        header(&[
            (0, "0300000000000000 0100000000000000 1300000000000000 0000000000000000"),
            (32, "0010000000000000 968dd1fa8831d4e2 0700000000000000 0347912af6010000"),
            (64, "cf3cdfc904f00300 ce29eb8222c24605 e96db758da1c324e 0700070002000000"),
        ]),
        header(&[
            (0, "0500000000000000 0078368c4a020000 0d62fee387530c00 0c4891c7b7d0ae24"),
            (32, "7c396329551d0bdf 968dd1fa8831d4e2"),
        ]),
    ]
}

#[test]
fn headers_of_a_real_stream() {
    let records = vectors().map(|bytes| {
        let record = Record::decode(&bytes, ByteOrder::Little).unwrap();
        assert_eq!(record.encode().unwrap(), bytes, "{record:?}");
        record
    });
    let [Record::Begin(begin), Record::Object(object), Record::Free(free), Record::Write(write), _] =
        &records
    else {
        panic!("{records:?}")
    };
    assert_eq!(order_of(&vectors()[0]), Some(ByteOrder::Little));
    assert_eq!((&*begin.to_name, begin.objset_kind), (&b"tp/fs@s2"[..], 4));
    assert_eq!(begin.from_guid, Guid(0x3132_94a6_f661_c2b2));
    let expected = Features::EMBED_DATA | Features::LZ4 | Features::LARGE_BLOCKS;
    assert_eq!(begin.features, expected | Features::COMPRESSED);
    assert_eq!(begin.features.unknown(), Features::empty());
    assert_eq!(begin.flags, BeginFlags::FREE_RECORDS | BeginFlags::SPILL_BLOCK);
    assert_eq!((object.object_type, object.block_size, object.slots), (ObjectType(19), 4096, 1));
    assert_eq!((free.offset, free.length), (36864, TO_END));
    assert_eq!((write.logical_size, write.key.properties), (4096, 0x2_0007_0007));
    assert_eq!(records[3].payload_len(), 4096);
    assert!(matches!(records[4], Record::End(End { to_guid, .. }) if to_guid == begin.to_guid));
}

#[test]
fn a_stream_of_a_big_endian_sender() {
    let [begin, _, mut free, ..] = vectors();
    assert_eq!(order_of(&free), None);
    let expected = Record::decode(&free, ByteOrder::Little).unwrap();
    swap_elements::<4>(&mut free[..4]);
    swap_elements::<8>(&mut free[8..]);
    assert_eq!(Record::decode(&free, ByteOrder::Big).unwrap(), expected);
    let mut swapped = begin;
    swap_elements::<8>(&mut swapped[8..56]);
    swapped[32..36].copy_from_slice(&[0, 0, 0, 4]);
    swapped[36..40].copy_from_slice(&[0, 0, 0, 12]);
    assert_eq!(order_of(&swapped), Some(ByteOrder::Big));
    let expected = Record::decode(&begin, ByteOrder::Little).unwrap();
    assert_eq!(Record::decode(&swapped, ByteOrder::Big).unwrap(), expected);
}

#[test]
fn payloads_are_bounded() {
    let with = |kind: u32, at: usize, value: u64| {
        let mut bytes = header(&[]);
        bytes[..4].copy_from_slice(&kind.to_le_bytes());
        bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        Record::decode(&bytes, ByteOrder::Little)
    };
    let begin = |len: u32| {
        let mut bytes = vectors()[0];
        bytes[4..8].copy_from_slice(&len.to_le_bytes());
        Record::decode(&bytes, ByteOrder::Little)
    };
    assert!(begin(1028).is_ok() && begin(1030).is_err() && begin(u32::MAX - 3).is_err());
    assert!(with(3, 32, 16 << 20).is_ok() && with(3, 32, (16 << 20) + 4).is_err());
    assert!(with(3, 32, u64::MAX).is_err() && with(7, 16, !3).is_err());
    assert!(with(1, 28, 320).is_ok() && with(1, 28, 0xffff_ffff).is_err());
    assert!(with(1, 36, 320).is_ok() && with(1, 36, 0xffff_fffc).is_err());
    assert!(with(8, 52, 109).is_ok() && with(8, 52, 113).is_err());
    assert!(with(11, 8, 0).is_err() && with(0, 8, 0).is_err());
    assert!(with(1, 16, 256).is_err() && with(3, 16, 1 << 20).is_err());
}

#[test]
fn a_name_that_does_not_fit_is_refused() {
    let Record::Begin(begin) = Record::decode(&vectors()[0], ByteOrder::Little).unwrap() else {
        panic!("no beginning")
    };
    let with =
        |name: &[u8]| Record::Begin(Begin { to_name: name.into(), ..begin.clone() }).encode();
    assert!(with(&[b'a'; 255]).is_ok() && with(&[b'a'; 256]).is_err() && with(b"a\0b").is_err());
}

proptest! {
    #[test]
    fn what_decodes_encodes_to_what_decodes_the_same(
        kind in 0u32..11, bytes in proptest::collection::vec(any::<u8>(), HEADER - 8), small: bool,
    ) {
        let mut raw = [0; HEADER];
        raw[8..].copy_from_slice(&bytes);
        raw[..4].copy_from_slice(&kind.to_le_bytes());
        if kind == 0 {
            raw[8..16].copy_from_slice(&MAGIC.to_le_bytes());
        }
        if small {
            // Sizes and types that can be, or nearly nothing would decode.
            for at in [16, 20, 28, 32, 36, 96, 40] {
                raw[at + 1..at + 8].fill(0);
            }
        }
        for order in [ByteOrder::Little, ByteOrder::Big] {
            if let Ok(record) = Record::decode(&raw, order) {
                let again = Record::decode(&record.encode().unwrap(), ByteOrder::Little).unwrap();
                prop_assert_eq!(again, record);
            }
        }
    }
}
