//! ZAPs of pools made by OpenZFS, read block by block, and what hostile ones get.

use std::cell::Cell;
use std::io::Read;

use bytes::Bytes;
use cenote_format::bytes::put_le64;
use cenote_format::zap::leaf_build::{Room, StoredKey};
use cenote_format::zap::{KeySettings, LeafBuilder, MatchKind, Normalization};

use super::*;

struct Blocks {
    data: Bytes,
    size: usize,
    reads: Cell<u64>,
}

impl Blocks {
    fn new(data: Vec<u8>, size: usize) -> Self {
        Self { data: Bytes::from(data), size, reads: Cell::new(0) }
    }
}

impl BlockSource for Blocks {
    fn block_size(&self) -> u64 {
        self.size as u64
    }
    fn block_count(&self) -> u64 {
        (self.data.len() / self.size) as u64
    }
    fn read_block(&self, id: u64) -> Result<Bytes> {
        self.reads.set(self.reads.get() + 1);
        let start = id as usize * self.size;
        Ok(match start < self.data.len() {
            true => self.data.slice(start..start + self.size),
            false => Bytes::from(vec![0; self.size]),
        })
    }
    fn prefetch_block(&self, _id: u64) {}
    fn named(&self, error: Error) -> Error {
        error.at_object(21, 144)
    }
}

macro_rules! fixture {
    ($name:literal) => {{
        let packed =
            include_bytes!(concat!("../../../format/tests/fixtures/zap/", $name, ".bin.gz"));
        let mut out = Vec::new();
        flate2::read::GzDecoder::new(&packed[..]).read_to_end(&mut out).unwrap();
        out
    }};
}

macro_rules! listing {
    ($name:literal) => {
        include_str!(concat!("../../../format/tests/fixtures/zap/", $name, ".txt"))
            .lines()
            .map(|line| line.split_once(' ').unwrap())
            .map(|(value, name)| (name.to_owned(), value.parse().unwrap()))
            .collect::<Vec<(String, u64)>>()
    };
}

const OBJECT_BITS: u64 = (1 << 48) - 1;

fn listed<S: BlockSource>(zap: &Zap<S>, from: Cursor) -> Vec<(String, u64)> {
    let one = |entry: Result<Entry>| {
        let entry = entry.unwrap();
        let name = String::from_utf8(entry.name().to_vec()).unwrap();
        (name, entry.value.as_u64().unwrap() & OBJECT_BITS)
    };
    zap.iterate(from).map(one).collect()
}

#[test]
fn fat_directory_lists_and_resumes() {
    let zap = Zap::open(Blocks::new(fixture!("directory-fat"), 16384)).unwrap();
    let expected = listing!("directory-fat");
    assert_eq!((zap.kind(), zap.count().unwrap()), (Kind::Fat, 1345));
    assert_eq!(listed(&zap, Cursor::START), expected);
    assert!(zap.source().reads.get() <= 16);
    for at in [0, 1, 300, 700, 1344] {
        let entry = zap.entries().nth(at).unwrap().unwrap();
        assert_eq!(listed(&zap, entry.cursor), expected[at..]);
        assert_eq!(listed(&zap, entry.next), expected[at + 1..]);
    }
    assert!(zap.iterate(Cursor::END).next().is_none());
}

#[test]
fn fat_directory_finds_names() {
    let zap = Zap::open(Blocks::new(fixture!("directory-fat"), 16384)).unwrap();
    for (name, value) in listing!("directory-fat") {
        let before = zap.source().reads.get();
        assert_eq!(zap.lookup_u64(&name).unwrap().unwrap() & OBJECT_BITS, value);
        assert_eq!(zap.source().reads.get(), before + 1);
        assert_eq!(zap.lookup(format!("{name}.").as_bytes()).unwrap(), None);
        let found = zap.lookup_normalized(name.as_bytes(), MatchKind::Normalized).unwrap();
        assert_eq!(found.unwrap().name, name.as_bytes());
    }
    assert!(zap.require_u64("absent").unwrap_err().to_string().contains("object 144"));
    assert!(zap.lookup_words(&[1]).is_err());
}

#[test]
fn layouts_have_arrays_for_values() {
    let zap = Zap::open(Blocks::new(fixture!("layouts-fat"), 16384)).unwrap();
    let value = zap.lookup(b"2").unwrap().unwrap();
    let expected = [5, 6, 4, 12, 13, 7, 11, 0, 1, 2, 3, 8, 21, 16, 19];
    assert_eq!(value.integers().collect::<Vec<_>>(), expected);
    assert_eq!(zap.lookup_int(5).unwrap().unwrap().integers().collect::<Vec<_>>(), [17]);
    let error = zap.lookup_u64("2").unwrap_err();
    assert!(error.to_string().contains("15 integers of 2 bytes"), "{error}");
}

#[test]
fn micro_directory_normalizes() {
    let zap = Zap::open(Blocks::new(fixture!("directory-normalized-micro"), 1536)).unwrap();
    let expected = listing!("directory-normalized-micro");
    assert_eq!((zap.kind(), zap.count().unwrap()), (Kind::Micro, 17));
    assert_eq!(listed(&zap, Cursor::START), expected);
    for (index, (name, value)) in expected.iter().enumerate() {
        let upper = name.to_uppercase();
        let found = zap.lookup_normalized(upper.as_bytes(), MatchKind::Normalized).unwrap();
        assert_eq!(found.unwrap().name, name.as_bytes());
        let exact = zap.lookup_u64(name).unwrap();
        assert_eq!(exact.map(|v| v & OBJECT_BITS), Some(*value));
        let other = upper != *name;
        let keep = MatchKind::NormalizedKeepCase;
        assert_eq!(zap.lookup_normalized(upper.as_bytes(), keep).unwrap().is_none(), other);
        assert_eq!(zap.lookup(upper.as_bytes()).unwrap().is_none(), other);
        let entry = zap.entries().nth(index).unwrap().unwrap();
        assert_eq!(listed(&zap, entry.next), expected[index + 1..]);
    }
    assert_eq!(zap.source().reads.get(), 1);
}

#[test]
fn names_equal_but_for_case_are_found_in_order() {
    let mut builder =
        cenote_format::zap::MicroBuilder::new(512, 0x242f9, Normalization(0x52)).unwrap();
    for (name, value, cd) in [("Foo", 3, 2), ("foo", 1, 0), ("FOO", 2, 1)] {
        builder.insert(name.as_bytes(), value, cd).unwrap().unwrap();
    }
    let zap = Zap::open(Blocks::new(builder.into_bytes(), 512)).unwrap();
    let find = |name: &str, kind| {
        zap.lookup_normalized(name.as_bytes(), kind).unwrap().map(|found| found.value.as_u64())
    };
    assert_eq!(find("fOO", MatchKind::Normalized), Some(Some(1)));
    assert_eq!(find("FOO", MatchKind::NormalizedKeepCase), Some(Some(2)));
    assert_eq!(find("Foo", MatchKind::Exact), Some(Some(3)));
    assert_eq!(find("fOO", MatchKind::NormalizedKeepCase), None);
    assert_eq!(listed(&zap, Cursor::START).iter().map(|e| e.1).collect::<Vec<_>>(), [1, 2, 3]);
}

/// A ZAP of words with an external pointer table of four blocks.
fn words_zap() -> (Vec<u8>, Vec<[u64; 2]>) {
    let shift = 12;
    let settings = KeySettings { salt: 0xdf943, flags: 3, ..KeySettings::default() };
    let mut leaves = vec![LeafBuilder::new(shift, 0, 0, false).unwrap()];
    let keys: Vec<[u64; 2]> = (0..6000).map(|i| [i * 0x9e37_79b9, i]).collect();
    for key in &keys {
        let hash = settings.hash_words(key);
        loop {
            let at = leaves.iter().position(|l| l.view().unwrap().owns(hash)).unwrap();
            let value = Value::of_u64(key[1]);
            match leaves[at].insert(StoredKey::Words(key), &value, hash, 0).unwrap() {
                Room::Done(_) => break,
                Room::Full => {
                    let upper = leaves[at].split().unwrap();
                    leaves.push(upper);
                }
            }
        }
    }
    let table_shift = 11;
    let (mut header, mut block) = FatHeader::fresh(shift, settings).unwrap();
    header.table.first_block = 1;
    header.table.blocks = 4;
    header.table.shift = table_shift;
    header.entries = keys.len() as u64;
    header.leaves = leaves.len() as u64;
    header.free_block = 5 + header.leaves;
    header.encode_into(&mut block).unwrap();
    let mut data = block;
    let mut table = vec![0; 8 << table_shift];
    for index in 0..1_u64 << table_shift {
        let hash = index << (64 - table_shift);
        let at = leaves.iter().position(|l| l.view().unwrap().owns(hash)).unwrap();
        put_le64(&mut table, index as usize * 8, 5 + at as u64).unwrap();
    }
    data.extend(table);
    leaves.into_iter().for_each(|leaf| data.extend(leaf.into_bytes()));
    (data, keys)
}

#[test]
fn words_with_an_external_table() {
    let (data, keys) = words_zap();
    let zap = Zap::open(Blocks::new(data, 4096)).unwrap();
    for key in &keys {
        assert_eq!(zap.lookup_words(key).unwrap().unwrap().as_u64(), Some(key[1]));
    }
    assert_eq!(zap.lookup_words(&[1, 2]).unwrap(), None);
    assert!(zap.lookup(b"name").is_err());
    let mut found: Vec<[u64; 2]> =
        zap.entries().map(|e| e.unwrap().key.words().try_into().unwrap()).collect();
    let mut resumed = 0;
    let mut cursor = Cursor::START;
    // The cursor of one page starts the next, as directory reads do.
    while let Some(entry) = zap.iterate(cursor).nth(99) {
        (resumed, cursor) = (resumed + 100, entry.unwrap().next);
    }
    assert_eq!(resumed + zap.iterate(cursor).count(), keys.len());
    found.sort_unstable_by_key(|key| key[1]);
    assert_eq!(found, keys);
}

#[test]
fn lies_are_errors_that_name_the_object() {
    let (good, keys) = words_zap();
    let with = |at: usize, value: u64| {
        let mut data = good.clone();
        put_le64(&mut data, at, value).unwrap();
        Zap::open(Blocks::new(data, 4096))
    };
    let said = |zap: Result<Zap<Blocks>>| {
        let error = match zap {
            Err(error) => error,
            Ok(zap) => {
                let failed = keys.iter().find_map(|key| zap.lookup_words(key).err());
                let listing = zap.entries().take(10_000).find_map(Result::err);
                failed.or(listing).unwrap()
            }
        };
        assert_eq!(error.place().object, Some(144), "{error}");
        error.to_string()
    };
    assert!(said(with(16, 1 << 40)).contains("beyond the object"));
    assert!(said(with(24, 1 << 44)).contains("pointer table"));
    assert!(said(with(32, 12)).contains("shift"));
    assert!(said(with(0, 7)).contains("no ZAP"));
    let settings = KeySettings { salt: 0xdf943, flags: 3, ..KeySettings::default() };
    for key in keys.iter().step_by(397) {
        let at = 4096 + (settings.hash_words(key) >> 53) as usize * 8;
        assert!(said(with(at, 0)).contains("leads to block 0"));
        assert!(said(with(at, u64::MAX)).contains("leads to block"));
        assert!(said(with(at, 2)).contains("leaf"), "a table block for a leaf");
        let own = cenote_format::bytes::le64(&good, at).unwrap();
        assert!(said(with(at, if own == 5 { 6 } else { 5 })).contains("prefix"));
    }
    // An absurd table that the object does not hold, and a hole for block 0.
    let mut huge = good.clone();
    put_le64(&mut huge, 24, 1 << 39).unwrap();
    put_le64(&mut huge, 32, 48).unwrap();
    assert!(said(Zap::open(Blocks::new(huge, 4096))).contains("beyond the object"));
    assert!(said(Zap::open(Blocks::new(vec![0; 4096], 4096))).contains("no ZAP"));
}

#[test]
fn random_damage_ends_in_time() {
    let (good, keys) = words_zap();
    let mut state = 12345_u64;
    let mut random = move |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695);
        (state >> 33) as usize % below
    };
    for _ in 0..60 {
        let mut data = good.clone();
        for _ in 0..20 {
            let at = random(3) * 4096 * 7 + random(4096);
            data[at] = random(256) as u8;
        }
        let Ok(zap) = Zap::open(Blocks::new(data, 4096)) else { continue };
        let _ = zap.entries().filter(Result::is_ok).count();
        let _ = keys.iter().step_by(61).filter(|key| zap.lookup_words(*key).is_ok()).count();
    }
}
