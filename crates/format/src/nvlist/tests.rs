//! Vectors of chapter 01, section 20, and properties of both encodings.

use super::*;
use proptest::prelude::*;

fn bytes(text: &str) -> Vec<u8> {
    hex::decode(text.split_whitespace().collect::<String>()).unwrap()
}

fn one(name: &str, value: impl Into<Value>) -> NvList {
    let mut list = NvList::new();
    list.push(name, value);
    list
}

fn native(list: &NvList) -> Vec<u8> {
    list.encode(Encoding::Native(ByteOrder::Little)).unwrap()
}

/// The one pair of an XDR stream: without headers and terminator.
fn xdr_pair(list: &NvList) -> Vec<u8> {
    let packed = list.encode(Encoding::Xdr).unwrap();
    assert_eq!(NvList::decode(&packed).unwrap(), *list);
    packed[12..packed.len() - 8].to_vec()
}

#[test]
fn one_integer_in_both_encodings() {
    let list = one("a", 0x0102_0304_0506_0708);
    let xdr = bytes(
        "0101000000000000 00000001 00000020 00000020 00000001 61000000 00000008 00000001
         0102030405060708 0000000000000000",
    );
    let packed = bytes(
        "0001000000000000 01000000 20000000 0200 0000 01000000 08000000 6100000000000000
         0807060504030201 00000000",
    );
    assert_eq!(list.encode(Encoding::Xdr).unwrap(), xdr);
    assert_eq!(native(&list), packed);
    assert_eq!(NvList::decode(&xdr).unwrap(), list);
    assert_eq!(NvList::decode(&packed).unwrap(), list);
}

#[test]
fn pairs_of_each_shape() {
    let texts = vec![Box::from(&b"x"[..]), Box::from(&b"yz"[..])];
    for (list, pair) in [
        (
            one("k", "hello"),
            "00000024 00000020 00000001 6b000000 00000009 00000001 00000005 68656c6c6f000000",
        ),
        (one("a", Value::Boolean), "00000018 00000018 00000001 61000000 00000001 00000000"),
        (
            one("a", vec![1, 2]),
            "0000002c 00000028 00000001 61000000 00000010 00000002 00000002 0000000000000001 0000000000000002",
        ),
        (
            one("a", Value::StringArray(texts)),
            "00000028 00000030 00000001 61000000 00000011 00000002 00000001 78000000 00000002 797a0000",
        ),
        (
            one("a", Value::ByteArray(vec![1, 2, 3, 4, 5])),
            "00000020 00000020 00000001 61000000 0000000a 00000005 0102030405000000",
        ),
    ] {
        assert_eq!(xdr_pair(&list), bytes(pair));
        assert_eq!(NvList::decode(&native(&list)).unwrap(), list);
    }
}

#[test]
fn an_empty_array_counts_a_word_it_does_not_write() {
    let list = one("a", Vec::<u64>::new());
    let packed = list.encode(Encoding::Xdr).unwrap();
    let pair = bytes("0000001c 00000018 00000001 61000000 00000010 00000000");
    assert_eq!(packed[12..36], pair);
    assert_eq!(packed.len(), 12 + 24 + 8 + 4);
    assert_eq!(packed[36..], [0; 12]);
    assert_eq!(NvList::decode(&packed).unwrap(), list);
}

#[test]
fn nested_lists_in_both_encodings() {
    let list = one("n", one("g", 9));
    let xdr = bytes(
        "0101000000000000 00000001 00000048 00000030 00000001 6e000000 00000013 00000001
         00000000 00000001 00000020 00000020 00000001 67000000 00000008 00000001
         0000000000000009 0000000000000000 0000000000000000",
    );
    let packed = bytes(
        "0001000000000000 01000000 30000000 02000000 01000000 13000000 6e00000000000000
         00000000 01000000 0000000000000000 00000000 00000000
         20000000 02000000 01000000 08000000 6700000000000000 0900000000000000 00000000 00000000",
    );
    assert_eq!(list.encode(Encoding::Xdr).unwrap(), xdr);
    assert_eq!(native(&list), packed);
    assert_eq!(NvList::decode(&packed).unwrap(), list);

    let array = one("c", vec![one("g", 9), one("h", Value::Boolean)]);
    let packed = array.encode(Encoding::Xdr).unwrap();
    assert_eq!(packed[12..20], bytes("00000070 00000058"));
    assert_eq!(NvList::decode(&packed).unwrap(), array);
    assert_eq!(native(&array)[12..16], [0x58, 0, 0, 0]);
    assert_eq!(NvList::decode(&native(&array)).unwrap(), array);
}

#[test]
fn a_real_cache_label_decodes() {
    let packed = bytes(
        "01010000 00000000 00000001
         00000024 00000020 00000007 76657273696f6e00 00000008 00000001 0000000000001388
         00000024 00000020 00000005 7374617465000000 00000008 00000001 0000000000000004
         00000020 00000020 00000004 67756964 00000008 00000001 4caa0dd946fea9e7
         00000000 00000000",
    );
    let (list, encoding, len) = NvList::decode_prefix(&packed).unwrap();
    assert_eq!((encoding, len), (Encoding::Xdr, 124));
    assert_eq!(list.u64("version"), Some(5000));
    assert_eq!(list.u64("state"), Some(4));
    assert_eq!(list.u64("guid"), Some(0x4caa_0dd9_46fe_a9e7));
    assert_eq!(list.string("state"), None);
    assert_eq!(list.encode(Encoding::Xdr).unwrap(), packed);
}

#[test]
fn damage_is_an_error() {
    let packed = one("a", 7).encode(Encoding::Xdr).unwrap();
    for len in 0..packed.len() {
        assert!(NvList::decode(&packed[..len]).is_err(), "cut at {len}");
    }
    let mut wrong_size = packed.clone();
    wrong_size[19] = 0x28;
    assert!(NvList::decode(&wrong_size).unwrap_err().reason.contains("decoded size"));
    let mut wrong_type = packed.clone();
    wrong_type[31] = 99;
    assert!(NvList::decode(&wrong_type).unwrap_err().reason.contains("unknown type"));
    let mut huge_count = packed;
    huge_count[31] = 16;
    huge_count[32..36].copy_from_slice(&[0x7f, 0xff, 0xff, 0xff]);
    assert!(NvList::decode(&huge_count).is_err());
}

#[test]
fn nesting_is_bounded() {
    let mut list = NvList::new();
    for _ in 0..MAX_DEPTH {
        list = one("n", list);
    }
    assert!(list.encode(Encoding::Xdr).is_err());
    assert!(list.encode(Encoding::Native(ByteOrder::Big)).is_err());
    let level = bytes("00000048 00000030 00000001 6e000000 00000013 00000001 00000000 00000001");
    let mut packed = bytes("0101000000000000 00000001");
    (0..100_000).for_each(|_| packed.extend_from_slice(&level));
    assert!(NvList::decode(&packed).unwrap_err().reason.contains("deeply"));
}

#[test]
fn names_with_nul_are_refused() {
    assert!(one("a\0b", 1).encode(Encoding::Xdr).is_err());
    assert!(one("a", "b\0c").encode(Encoding::Native(ByteOrder::Little)).is_err());
}

#[test]
fn set_replaces_in_place() {
    let mut list = one("a", 1);
    list.push("b", 2);
    list.set("a", 3);
    list.set("c", 4);
    let order: Vec<_> = list.iter().map(|pair| pair.name.to_vec()).collect();
    assert_eq!(order, [b"a".to_vec(), b"b".to_vec(), b"c".to_vec()]);
    assert_eq!(list.u64("a"), Some(3));
    assert!(list.remove("b"));
    assert!(!list.remove("b"));
    assert_eq!(list.len(), 2);
}

fn text() -> impl Strategy<Value = Box<[u8]>> {
    prop::collection::vec(1u8..=255, 0..12).prop_map(Vec::into_boxed_slice)
}

fn list() -> impl Strategy<Value = NvList> {
    let leaf = prop_oneof![
        Just(Value::Boolean),
        any::<u8>().prop_map(Value::Byte),
        any::<i16>().prop_map(Value::Int16),
        any::<u32>().prop_map(Value::Uint32),
        any::<i64>().prop_map(Value::Int64),
        any::<u64>().prop_map(Value::Uint64),
        text().prop_map(Value::String),
        prop::collection::vec(any::<u8>(), 0..9).prop_map(Value::ByteArray),
        prop::collection::vec(any::<i16>(), 0..4).prop_map(Value::Int16Array),
        prop::collection::vec(any::<u32>(), 0..4).prop_map(Value::Uint32Array),
        prop::collection::vec(any::<u64>(), 0..4).prop_map(Value::Uint64Array),
        prop::collection::vec(text(), 0..4).prop_map(Value::StringArray),
        any::<bool>().prop_map(Value::BooleanValue),
        any::<i8>().prop_map(Value::Int8),
        prop::collection::vec(any::<bool>(), 0..4).prop_map(Value::BooleanArray),
        prop::collection::vec(any::<i8>(), 0..9).prop_map(Value::Int8Array),
        prop::collection::vec(any::<u8>(), 0..9).prop_map(Value::Uint8Array),
        any::<u64>().prop_map(Value::Double),
    ];
    let pairs = |value: BoxedStrategy<Value>| {
        prop::collection::vec((text(), value), 0..5).prop_map(|pairs| {
            let mut list = NvList::new();
            pairs.into_iter().for_each(|(name, value)| list.push(name, value));
            list
        })
    };
    let value = leaf.prop_recursive(3, 24, 4, move |inner| {
        prop_oneof![
            pairs(inner.clone()).prop_map(Value::List),
            prop::collection::vec(pairs(inner), 0..3).prop_map(Value::ListArray),
        ]
    });
    pairs(value.boxed())
}

proptest! {
    #[test]
    fn every_list_survives_every_encoding(list in list()) {
        for encoding in [
            Encoding::Xdr,
            Encoding::Native(ByteOrder::Little),
            Encoding::Native(ByteOrder::Big),
        ] {
            let packed = list.encode(encoding).unwrap();
            let (back, found, len) = NvList::decode_prefix(&packed).unwrap();
            prop_assert_eq!(&back, &list);
            prop_assert_eq!(found, encoding);
            prop_assert!(len <= packed.len());
        }
    }

    #[test]
    fn noise_never_panics(header in prop_oneof![Just([1u8, 1]), Just([0, 1]), Just([0, 0])],
                          noise in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut data = vec![header[0], header[1], 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
        data.extend(noise);
        let _ = NvList::decode(&data);
    }

    #[test]
    fn flipped_bytes_never_panic(list in list(), at in any::<prop::sample::Index>(), with in 1u8..) {
        for encoding in [Encoding::Xdr, Encoding::Native(ByteOrder::Little)] {
            let mut packed = list.encode(encoding).unwrap();
            let at = at.index(packed.len());
            packed[at] ^= with;
            let _ = NvList::decode(&packed);
        }
    }
}
