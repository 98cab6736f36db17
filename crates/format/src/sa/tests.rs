//! Vectors of chapter 05, section 20, and hostile buffers.

use super::*;
use crate::bytes::ByteOrder;

const PLAIN: &[u16] = &[5, 6, 4, 12, 13, 7, 11, 0, 1, 2, 3, 8, 21, 16, 19];

pub(crate) fn table() -> AttributeTable {
    let registry: Vec<(&[u8], u64)> = Attribute::ALL
        .iter()
        .map(|a| (a.name().as_bytes(), a.default_registration().encode()))
        .collect();
    let with = |more: &[u16]| [PLAIN, more].concat();
    AttributeTable::new(
        registry,
        [(2, with(&[9])), (3, with(&[])), (4, with(&[17])), (5, vec![20]), (6, with(&[20]))],
    )
    .unwrap()
}

pub(crate) fn empty_file() -> Vec<u8> {
    let time = "d535635c0000000082de531d00000000";
    hex::decode(
        [
            "5a502f0003041800",
            "a481000000000000",
            "0000000000000000",
            "1300000000000000",
            "0000000000000000",
            "0000000000000000",
            "2200000000000000",
            "0400000008840000",
            time,
            time,
            time,
            time,
            "0100000000000000",
            "0000000000000000",
            "0300000000000000",
            "000000109f011e00",
            "0000402089001200",
            "0000004089001200",
        ]
        .concat(),
    )
    .unwrap()
}

/// The same buffer as a big-endian host writes it.
fn swapped(buffer: &[u8]) -> Vec<u8> {
    let mut out = buffer.to_vec();
    out[0..4].reverse();
    out[4..6].reverse();
    out[6..8].reverse();
    Class::U64.swap(&mut out[8..152]);
    for entry in out[152..].chunks_exact_mut(8) {
        entry[0..2].reverse();
        entry[2..4].reverse();
        entry[4..8].reverse();
    }
    out
}

#[test]
fn registry_values() {
    for (attribute, raw) in [
        (Attribute::Accessed, 0x1000_0000),
        (Attribute::Generation, 0x800_0004),
        (Attribute::Mode, 0x800_0005),
        (Attribute::Padding, 0x2000_000e),
        (Attribute::LegacyAcl, 0x5803_000f),
        (Attribute::AclCount, 0x800_0010),
        (Attribute::SymlinkTarget, 0x3_0011),
        (Attribute::ScanStamp, 0x2003_0012),
        (Attribute::AclEntries, 0x4_0013),
        (Attribute::XattrList, 0x3_0014),
        (Attribute::Project, 0x800_0015),
    ] {
        assert_eq!(attribute.default_registration().encode(), raw, "{}", attribute.name());
        assert_eq!(Registration::decode(raw).unwrap(), attribute.default_registration());
    }
    assert!(Registration::decode(5 << 16).is_err());
    assert!(Registration::decode(1 << 40).is_err());
}

#[test]
fn empty_file_in_both_byte_orders() {
    let table = table();
    let little = empty_file();
    assert_eq!(little.len(), 176);
    let big = swapped(&little);
    for (buffer, order) in [(&little, ByteOrder::Little), (&big, ByteOrder::Big)] {
        let view = table.view(buffer).unwrap();
        assert_eq!((view.order(), view.layout(), view.header_size()), (order, 3, 8));
        assert_eq!(view.word(Attribute::Mode).unwrap(), Some(0o100644));
        assert_eq!(view.word(Attribute::Generation).unwrap(), Some(19));
        assert_eq!(view.word(Attribute::Parent).unwrap(), Some(34));
        assert_eq!(view.word(Attribute::Flags).unwrap(), Some(0x8408_0000_0004));
        assert_eq!(view.word(Attribute::Links).unwrap(), Some(1));
        assert_eq!(view.word(Attribute::XattrDirectory).unwrap(), None);
        let created = view.pair(Attribute::Created).unwrap();
        assert_eq!(created, Some((0x5c63_35d5, 0x1d53_de82)));
        let entries = view.value(Attribute::AclEntries).unwrap().unwrap();
        assert_eq!(hex::encode(&entries[..8]), "000000109f011e00");
        assert_eq!(view.iter().count(), 15);
    }
}

#[test]
fn encode_is_the_inverse() {
    let table = table();
    let buffer = empty_file();
    let view = table.view(&buffer).unwrap();
    let values: Vec<(&[u8], bool)> = view
        .iter()
        .map(|entry| entry.unwrap())
        .map(|(number, value)| (value, table.shape(number).unwrap().1 == 0))
        .collect();
    assert_eq!(encode_buffer(3, &values).unwrap(), buffer);
    assert_eq!(table.find_layout(PLAIN), Some(3));
    assert_eq!(table.find_layout(&[1, 2]), None);
}

#[test]
fn two_variable_attributes_have_a_header_of_sixteen_bytes() {
    let header = encode_buffer(3, &[(&[0; 24], true), (&[0; 56], true)]).unwrap();
    assert_eq!(hex::encode(&header[..16]), "5a502f000308180038000000".to_owned() + "00000000");
    assert_eq!([header_size(0), header_size(1), header_size(2), header_size(5)], [8, 8, 16, 16]);
    assert_eq!(header_size(6), 24);
}

#[test]
fn symlink_target_follows_the_entries() {
    let table = table();
    let file = empty_file();
    let view = table.view(&file).unwrap();
    let mut values: Vec<(&[u8], bool)> = view
        .iter()
        .map(|entry| entry.unwrap())
        .map(|(number, value)| (value, table.shape(number).unwrap().1 == 0))
        .collect();
    values.push((b"hello/world", true));
    let buffer = encode_buffer(4, &values).unwrap();
    assert_eq!(buffer.len(), 195);
    let view = table.view(&buffer).unwrap();
    let target = view.value(Attribute::SymlinkTarget).unwrap().unwrap();
    assert_eq!(&*target, b"hello/world");
    assert_eq!(view.word(Attribute::Links).unwrap(), Some(1));
}

#[test]
fn spill_takes_what_does_not_fit() {
    // Twelve fixed attributes, the project id, the ACL, then a large list of xattrs.
    let mut lengths = vec![(8, false); 7];
    lengths.extend([(16, false); 4]);
    lengths.extend([(8, false), (8, false), (8, false), (24, true)]);
    assert_eq!(bonus_split(320, &lengths), 15);
    lengths.push((684, true));
    assert_eq!(bonus_split(320, &lengths), 15);
    assert_eq!(bonus_split(832, &lengths), 15);
    assert_eq!(bonus_split(1856, &lengths), 16);
}

#[test]
fn hostile_buffers_are_errors() {
    let table = table();
    let good = empty_file();
    assert!(table.view(&[]).is_err());
    for (at, value) in [(0, 0), (4, 9), (5, 0), (5, 0xfc)] {
        let mut raw = good.clone();
        raw[at] = value;
        let view = table.view(&raw);
        assert!(view.is_err(), "byte {at} = {value}");
    }
    let mut long = good.clone();
    long[7] = 0xff;
    assert!(table.view(&long).unwrap().raw(Attribute::AclEntries).is_err());
    for cut in 0..good.len() {
        if let Ok(view) = table.view(&good[..cut]) {
            assert!(view.iter().any(|entry| entry.is_err()), "cut at {cut}");
        }
    }
    assert!(AttributeTable::new([], [(2, vec![400])]).is_err());
    assert!(AttributeTable::new([], [(1, vec![5])]).is_err());
    assert!(AttributeTable::new([], [(1024, vec![5])]).is_err());
    assert!(AttributeTable::new([(&b"ZPL_MODE"[..], 0x1000_0005)], []).is_err());
}

proptest::proptest! {
    #[test]
    fn no_bytes_panic(
        info in proptest::prelude::any::<u16>(),
        big in proptest::prelude::any::<bool>(),
        rest in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..300),
    ) {
        let table = table();
        let mut buffer = Vec::new();
        buffer.extend(if big { MAGIC.to_be_bytes() } else { MAGIC.to_le_bytes() });
        buffer.extend(if big { info.to_be_bytes() } else { info.to_le_bytes() });
        buffer.extend(rest);
        if let Ok(view) = table.view(&buffer) {
            let total: usize = view.iter().flatten().map(|(_, value)| value.len()).sum();
            proptest::prop_assert!(total + view.header_size() <= buffer.len());
            for attribute in Attribute::ALL {
                // Both ways to an attribute agree.
                let number = table.number(*attribute);
                let listed = view.iter().find(|e| e.as_ref().is_ok_and(|e| Some(e.0) == number));
                if let (Some(Ok((_, value))), Ok(Some(raw))) = (listed, view.raw(*attribute)) {
                    proptest::prop_assert_eq!(value, raw);
                }
                let _ = view.value(*attribute);
            }
        }
    }
}
