//! Real blocks: objects of pools made by OpenZFS, with the listing `zdb` gives of them.

use std::io::Read;

use super::leaf::{self, ARRAY_BYTES};
use super::leaf_build::{Room, StoredKey};
use super::*;

macro_rules! fixture {
    ($name:literal) => {
        unpack(include_bytes!(concat!("../../tests/fixtures/zap/", $name, ".bin.gz")))
    };
}

macro_rules! listing {
    ($name:literal) => {
        include_str!(concat!("../../tests/fixtures/zap/", $name, ".txt"))
            .lines()
            .map(|line| line.split_once(' ').unwrap())
            .map(|(value, name)| (name.to_owned(), value.parse().unwrap()))
            .collect::<Vec<(String, u64)>>()
    };
}

fn unpack(packed: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    flate2::read::GzDecoder::new(packed).read_to_end(&mut out).unwrap();
    out
}

const BLOCK: usize = 16384;
const OBJECT_BITS: u64 = (1 << 48) - 1;

fn block(object: &[u8], id: u64) -> &[u8] {
    &object[usize::try_from(id).unwrap() * BLOCK..][..BLOCK]
}

fn pointer(object: &[u8], header: &FatHeader, hash: u64) -> u64 {
    let slot = header.slot(hash);
    crate::bytes::le64(block(object, slot.block), slot.offset).unwrap()
}

#[test]
fn fat_directory_reads_as_zdb_lists_it() {
    let object = fixture!("directory-fat");
    let header = FatHeader::decode(block(&object, 0)).unwrap();
    assert_eq!((header.leaves, header.entries, header.free_block), (15, 1345, 16));
    let mut listed = Vec::new();
    let mut hash = Some(0);
    while let Some(at) = hash {
        let leaf = Leaf::new(block(&object, pointer(&object, &header, at))).unwrap();
        leaf.check().unwrap();
        assert!(leaf.owns(at));
        for entry in leaf.sorted_entries().unwrap() {
            let name = String::from_utf8(leaf.name(&entry).unwrap().to_vec()).unwrap();
            assert_eq!(entry.hash, header.settings.hash_name(name.as_bytes()));
            listed.push((name, leaf.value(&entry).unwrap().as_u64().unwrap() & OBJECT_BITS));
        }
        hash = leaf.end();
    }
    assert_eq!(listed, listing!("directory-fat"));
    for (name, value) in listed {
        let hash = header.settings.hash_name(name.as_bytes());
        let leaf = Leaf::new(block(&object, pointer(&object, &header, hash))).unwrap();
        let found = leaf.find(hash, |e| leaf.name_is(e, name.as_bytes())).unwrap().unwrap();
        assert_eq!(leaf.value(&found).unwrap().as_u64().unwrap() & OBJECT_BITS, value);
        let other = [name.as_bytes(), b"x"].concat();
        assert!(leaf.find(hash, |e| leaf.name_is(e, &other)).unwrap().is_none());
    }
}

#[test]
fn headers_and_leaves_encode_to_the_bytes_they_came_from() {
    let object = fixture!("layouts-fat");
    let header = FatHeader::decode(block(&object, 0)).unwrap();
    let (mut made, mut raw) = FatHeader::fresh(14, header.settings).unwrap();
    made.entries = header.entries;
    made.encode_into(&mut raw).unwrap();
    assert_eq!((made, raw.as_slice()), (header, block(&object, 0)));

    let leaf = Leaf::new(block(&object, 1)).unwrap();
    let mut entries = leaf.sorted_entries().unwrap();
    entries.sort_by_key(|entry| entry.chunk);
    let mut built = LeafBuilder::new(14, 0, 0, false).unwrap();
    for entry in entries {
        let name = leaf.name(&entry).unwrap();
        let room = built
            .insert(StoredKey::Name(&name), &leaf.value(&entry).unwrap(), entry.hash, entry.cd)
            .unwrap();
        assert_eq!(room, Room::Done(entry.chunk));
    }
    assert_eq!(built.as_bytes(), block(&object, 1));
    let layout = built.view().unwrap();
    let hash = header.settings.hash_name(b"5");
    let found = layout.find(hash, |e| layout.name_is(e, b"5")).unwrap().unwrap();
    let value = layout.value(&found).unwrap();
    assert_eq!((value.integer_size(), value.count()), (2, 1));
    assert_eq!(value.integers().collect::<Vec<_>>(), [17]);
}

#[test]
fn micro_blocks_encode_to_the_bytes_they_came_from() {
    for raw in [fixture!("registry-micro"), fixture!("directory-normalized-micro")] {
        assert_eq!(Kind::of(&raw), Some(Kind::Micro));
        let micro = Micro::new(&raw).unwrap();
        let settings = micro.settings();
        let mut size = 512;
        let mut built = MicroBuilder::new(size, settings.salt, settings.normalization).unwrap();
        for entry in micro.entries().map(Result::unwrap) {
            let done = built.insert(entry.name, entry.value, entry.cd).unwrap();
            if done.is_none() {
                size += 512;
                built.grow(size).unwrap();
                built.insert(entry.name, entry.value, entry.cd).unwrap().unwrap();
            }
        }
        assert_eq!(built.into_bytes(), raw);
    }
}

#[test]
fn micro_directory_is_in_the_order_of_its_hashes() {
    let raw = fixture!("directory-normalized-micro");
    let micro = Micro::new(&raw).unwrap();
    assert_eq!(micro.settings().normalization, Normalization(0x12));
    let index = MicroIndex::build(&micro).unwrap();
    let name_of = |chunk| micro.entry(chunk).unwrap().unwrap().name;
    let mut listed = listing!("directory-normalized-micro");
    assert_eq!(index.len(), listed.len());
    // `zdb` walks micro ZAPs by hash as well.
    let ours: Vec<_> = index.from_cursor(Cursor::START).iter().map(|row| name_of(row.2)).collect();
    assert_eq!(ours, listed.iter().map(|(name, _)| name.as_bytes()).collect::<Vec<_>>());
    let (hash, cd, _) = index.from_cursor(Cursor::START)[4];
    let rest = index.from_cursor(Cursor::after(hash, cd, HashWidth::Bits28));
    assert_eq!(rest.len(), listed.len() - 5);
    for (name, value) in listed.drain(..) {
        let hash = index.settings().hash_name(name.to_ascii_uppercase().as_bytes());
        let chunk = index.chunks_of(hash).next().unwrap();
        let entry = micro.entry(chunk).unwrap().unwrap();
        assert_eq!((entry.name, entry.value & OBJECT_BITS), (name.as_bytes(), value));
    }
}

#[test]
fn leaves_split_and_forget() {
    let settings = KeySettings { salt: 0x1234_5677, ..KeySettings::default() };
    let mut leaves = vec![LeafBuilder::new(12, 0, 0, false).unwrap()];
    let name = |i: u64| format!("entry number {i} {}", "x".repeat((i % 40) as usize));
    let value = |i: u64| Value::of_u64s(&vec![i; (i % 9) as usize]).unwrap();
    for i in 0..500 {
        let name = name(i);
        let hash = settings.hash_name(name.as_bytes());
        loop {
            let at = leaves.iter().position(|l| l.view().unwrap().owns(hash)).unwrap();
            let cd = leaves[at].free_differentiator(hash).unwrap();
            let key = StoredKey::Name(name.as_bytes());
            match leaves[at].insert(key, &value(i), hash, cd).unwrap() {
                Room::Done(_) => break,
                Room::Full => {
                    let upper = leaves[at].split().unwrap();
                    leaves.push(upper);
                }
            }
        }
    }
    assert!(leaves.len() > 8);
    leaves.iter().for_each(|leaf| leaf.view().unwrap().check().unwrap());
    for i in 0..500 {
        let name = name(i);
        let hash = settings.hash_name(name.as_bytes());
        let leaf = leaves.iter_mut().find(|l| l.view().unwrap().owns(hash)).unwrap();
        let view = leaf.view().unwrap();
        let found = view.find(hash, |e| view.name_is(e, name.as_bytes())).unwrap().unwrap();
        assert_eq!(view.value(&found).unwrap(), value(i));
        if i % 3 == 0 {
            assert_eq!(leaf.set_value(&found, &Value::of_u64(7)).unwrap(), Room::Done(found.chunk));
            let view = leaf.view().unwrap();
            assert_eq!(view.value(&view.entry(found.chunk).unwrap()).unwrap().as_u64(), Some(7));
            leaf.view().unwrap().check().unwrap();
            let now = leaf.view().unwrap().entry(found.chunk).unwrap();
            leaf.remove(&now).unwrap();
        } else {
            leaf.remove(&found).unwrap();
        }
        leaf.view().unwrap().check().unwrap();
    }
    let empty = |l: &LeafBuilder| (l.header().entries, usize::from(l.header().free_chunks));
    assert!(leaves.iter().all(|l| empty(l) == (0, 158)));
}

#[test]
fn equal_hashes_are_told_apart() {
    let mut leaf = LeafBuilder::new(12, 0, 0, true).unwrap();
    let hash = 0xabcd_ef00_0000_0000;
    for (name, cd) in [("b", 1), ("c", 2), ("a", 0)] {
        leaf.insert(StoredKey::Name(name.as_bytes()), &Value::of_u64(1), hash, cd).unwrap();
    }
    assert_eq!(leaf.free_differentiator(hash).unwrap(), 3);
    let view = leaf.view().unwrap();
    let slot = view.geometry().slot(hash, 0);
    let chain: Vec<_> = view.chain(slot).map(|e| e.unwrap().cd).collect();
    assert_eq!(chain, [0, 1, 2]);
    let first = view.find_lowest(hash, |_| Ok(true)).unwrap().unwrap();
    assert_eq!(view.name(&first).unwrap().as_slice(), b"a");
    leaf.remove(&first).unwrap();
    assert_eq!(leaf.free_differentiator(hash).unwrap(), 0);
}

#[test]
fn words_are_keys_too() {
    let mut leaf = LeafBuilder::new(12, 0, 0, false).unwrap();
    let words = [0x0102_0304_0506_0708, u64::MAX, 3, 0, 5];
    let hash = KeySettings { salt: 9, flags: 3, ..KeySettings::default() }.hash_words(&words);
    leaf.insert(StoredKey::Words(&words), &Value::of_bytes(b"payload").unwrap(), hash, 0).unwrap();
    let view = leaf.view().unwrap();
    let found = view.find(hash, |e| view.words_are(e, &words)).unwrap().unwrap();
    assert_eq!(found.name_len, 5);
    assert_eq!(view.words(&found).unwrap().as_slice(), words);
    assert_eq!(view.value(&found).unwrap().as_c_string(), Some(&b"payload"[..]));
    assert!(view.find(hash, |e| view.words_are(e, &words[..4])).unwrap().is_none());
    let upper = leaf.split().unwrap();
    let side = if hash >> 63 == 0 { &leaf } else { &upper };
    let view = side.view().unwrap();
    assert!(view.find(hash, |e| view.words_are(e, &words)).unwrap().is_some());
    view.check().unwrap();
}

#[test]
fn circles_and_lies_are_errors() {
    let object = fixture!("layouts-fat");
    let good = block(&object, 1).to_vec();
    let leaf = Leaf::new(&good).unwrap();
    let entry = leaf.sorted_entries().unwrap()[0];
    let geometry = leaf.geometry();
    let at = geometry.chunk_at(entry.chunk);
    let with = |offset: usize, bytes: &[u8]| {
        let mut raw = good.clone();
        raw[offset..offset + bytes.len()].copy_from_slice(bytes);
        raw
    };
    // The entry follows itself.
    let raw = with(at + 2, &entry.chunk.to_le_bytes());
    let circle = Leaf::new(&raw).unwrap();
    assert!(circle.sorted_entries().unwrap_err().to_string().contains("joined"));
    let error = circle.find(entry.hash, |_| Ok(false)).unwrap_err();
    assert!(error.to_string().contains("circle"));
    // Its name is longer than the leaf, or its value leads outside.
    for (offset, lie) in [(6, 0xffff_u16), (10, 0xffff), (8, 700), (4, 9999)] {
        let raw = with(at + offset, &lie.to_le_bytes());
        let view = Leaf::new(&raw).unwrap();
        let entry = view.entry(entry.chunk).unwrap();
        assert!(view.name(&entry).is_err() || view.value(&entry).is_err(), "field {offset}");
    }
    // The name is a circle of chunks.
    let raw = with(geometry.chunk_at(entry.name_chunk) + 22, &entry.name_chunk.to_le_bytes());
    let view = Leaf::new(&raw).unwrap();
    let long = LeafEntry { name_len: (geometry.chunks + 1) * ARRAY_BYTES as u16, ..entry };
    assert!(view.name(&long).is_err());
    for (offset, lie) in [(32, 60), (16, 1), (24, 0), (0, 3)] {
        assert!(Leaf::new(&with(offset, &[lie])).is_err(), "byte {offset}");
    }
    assert!(Leaf::new(&with(30, &[9])).unwrap().check().is_err());
    assert!(Leaf::new(&with(28, &[9])).unwrap().check().is_err());
    for size in [0, 511, 3000, 2 << 20] {
        assert!(Leaf::new(&vec![0; size]).is_err() && FatHeader::decode(&vec![0; size]).is_err());
    }
    let header = block(&object, 0);
    for (offset, lie) in [(24, 3), (24, 1), (32, 11), (32, 200), (16, 1), (8, 0)] {
        let mut raw = header.to_vec();
        raw[offset] = lie;
        assert!(FatHeader::decode(&raw).is_err(), "header byte {offset}");
    }
}

#[test]
fn random_damage_never_panics() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695);
        (state >> 33) as usize % below
    };
    let object = fixture!("directory-fat");
    for round in 0..300 {
        let mut raw = block(&object, 1 + round % 15).to_vec();
        for _ in 0..40 {
            let at = if random(2) == 0 { random(1100) } else { random(BLOCK) };
            raw[at] = random(256) as u8;
        }
        let Ok(leaf) = Leaf::new(&raw) else { continue };
        let _ = leaf.check();
        for chunk in 0..leaf.geometry().chunks {
            if let Ok(entry) = leaf.entry(chunk) {
                let _ = (leaf.name(&entry), leaf.value(&entry), leaf.words(&entry));
                let _ = leaf.find_lowest(entry.hash, |e| leaf.name_is(e, b"a name"));
            }
        }
    }
    let raw = leaf::Geometry::of(BLOCK).unwrap();
    assert_eq!((raw.slots, raw.chunks), (512, 638));
}
