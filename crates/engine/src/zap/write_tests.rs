//! ZAPs written here, compared with a map and walked block by block.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;

use bytes::Bytes;
use cenote_format::bytes::{le64, put, put_le64};
use cenote_format::zap::hash::{FLAG_HASH64, FLAG_PRE_HASHED, FLAG_UINT64_KEY};
use cenote_format::zap::leaf_build::StoredKey;
use cenote_format::zap::{FatHeader, Kind, Leaf, MatchKind, Normalization};

use super::*;
use crate::ErrorKind;
use crate::txg::Tx;

/// An object in memory.
#[derive(Default)]
struct Memory(RefCell<Blocks>);

#[derive(Default)]
struct Blocks {
    size: usize,
    blocks: Vec<Bytes>,
    /// What leads to blocks from this one on cannot be read.
    unready: Option<u64>,
}

impl Memory {
    fn new(size: usize) -> Self {
        Self(RefCell::new(Blocks { size, ..Blocks::default() }))
    }
    fn of(data: &[u8], size: usize) -> Self {
        let blocks = data.chunks(size).map(Bytes::copy_from_slice).collect();
        Self(RefCell::new(Blocks { size, blocks, unready: None }))
    }
}

impl BlockSource for &Memory {
    fn block_size(&self) -> u64 {
        self.0.borrow().size as u64
    }
    fn block_count(&self) -> u64 {
        self.0.borrow().blocks.len().max(1) as u64
    }
    fn read_block(&self, id: u64) -> Result<Bytes> {
        let inner = self.0.borrow();
        let block = inner.blocks.get(id as usize).cloned();
        Ok(block.unwrap_or_else(|| Bytes::from(vec![0; inner.size])))
    }
    fn prefetch_block(&self, _id: u64) {}
    fn named(&self, error: Error) -> Error {
        error.at_object(21, 144)
    }
}

impl BlockSink for &Memory {
    fn ready_to_write(&self, id: u64) -> Result<()> {
        match self.0.borrow().unready.is_some_and(|from| id >= from) {
            true => Err(Error::new(ErrorKind::Io, "not to be read")),
            false => Ok(()),
        }
    }

    fn write_block(&self, _tx: &Tx, id: u64, data: Bytes) -> Result<()> {
        self.ready_to_write(id)?;
        let mut inner = self.0.borrow_mut();
        assert_eq!(data.len(), inner.size);
        while inner.blocks.len() <= id as usize {
            let hole = Bytes::from(vec![0; inner.size]);
            inner.blocks.push(hole);
        }
        inner.blocks[id as usize] = data;
        Ok(())
    }
    fn write_at(&self, tx: &Tx, offset: u64, data: &[u8]) -> Result<()> {
        let size = self.block_size();
        let mut block = self.read_block(offset / size)?.to_vec();
        put(&mut block, (offset % size) as usize, data).unwrap();
        self.write_block(tx, offset / size, block.into())
    }
    fn set_block_size(&self, _tx: &Tx, bytes: u64) -> Result<()> {
        let mut inner = self.0.borrow_mut();
        assert!(inner.blocks.len() <= 1 && bytes.is_multiple_of(512));
        inner.size = bytes as usize;
        let resized = inner.blocks.first().map(|block| {
            let mut block = block.to_vec();
            block.resize(bytes as usize, 0);
            block
        });
        if let Some(block) = resized {
            inner.blocks[0] = block.into();
        }
        Ok(())
    }
    fn free_blocks(&self, _tx: &Tx, first: u64, count: u64) -> Result<()> {
        let mut inner = self.0.borrow_mut();
        for id in first..first + count {
            inner.blocks[id as usize] = Bytes::from(vec![0; inner.size]);
        }
        Ok(())
    }
}

fn tx() -> Tx {
    Tx::detached(cenote_format::Txg(7))
}

/// A small generator of numbers that are the same in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

/// Looks at every block: what the header counts, where the pointers lead, what the leaves hold.
fn walk(memory: &Memory) {
    let block = memory.read_block(0).unwrap();
    if Kind::of(&block) == Some(Kind::Micro) {
        return;
    }
    let header = FatHeader::decode(&block).unwrap();
    let pointer = |index| {
        let slot = header.slot_of_index(index);
        le64(&memory.read_block(slot.block).unwrap(), slot.offset).unwrap()
    };
    let (mut index, mut entries, mut leaves) = (0, 0, BTreeSet::new());
    while index < header.pointers() {
        let id = pointer(index);
        assert!(id > 0 && id < header.free_block, "pointer {index} leads to {id}");
        assert!(leaves.insert(id), "leaf {id} is met twice");
        let block = memory.read_block(id).unwrap();
        let leaf = Leaf::new(&block).unwrap();
        leaf.check().unwrap();
        let span = 1 << (header.table.shift - u32::from(leaf.header().prefix_len));
        assert_eq!(leaf.header().prefix * span, index);
        assert!((index..index + span).all(|index| pointer(index) == id));
        assert_eq!(leaf.header().flags & 1 != 0, !header.settings.normalization.is_none());
        let sorted = leaf.sorted_entries().unwrap();
        for pair in sorted.windows(2) {
            assert_ne!((pair[0].hash, pair[0].cd), (pair[1].hash, pair[1].cd));
        }
        for slot in 0..leaf.geometry().slots {
            let cds: Vec<u32> = leaf.chain(slot).map(|entry| entry.unwrap().cd).collect();
            assert!(cds.is_sorted(), "{cds:?}");
        }
        entries += sorted.len() as u64;
        index += span;
    }
    assert_eq!((entries, leaves.len() as u64), (header.entries, header.leaves));
    assert!(header.free_block <= memory.block_count());
    assert_eq!((header.table.next_block, header.table.blocks_copied), (0, 0));
    let table = header.table.first_block..header.table.first_block + header.table.blocks;
    assert!(table.clone().all(|id| !leaves.contains(&id)));
    for id in 1..memory.block_count() {
        let hole = memory.read_block(id).unwrap().iter().all(|byte| *byte == 0);
        assert!(hole || leaves.contains(&id) || table.contains(&id), "block {id} is in no use");
    }
}

fn same(memory: &Memory, model: &BTreeMap<Vec<u8>, Value>) {
    walk(memory);
    let zap = Zap::open(memory).unwrap();
    assert_eq!(zap.count().unwrap(), model.len() as u64);
    let listed: BTreeMap<Vec<u8>, Value> =
        zap.entries().map(|e| e.unwrap()).map(|e| (e.name().to_vec(), e.value)).collect();
    assert!(listed == *model);
    for (name, value) in model {
        assert_eq!(zap.lookup(name).unwrap().as_ref(), Some(value));
    }
}

fn kind(memory: &Memory) -> Kind {
    Zap::open(memory).unwrap().kind()
}

#[test]
fn micro_grows_by_512_and_becomes_fat_beyond_128_kib() {
    let memory = Memory::new(512);
    create(&&memory, &tx(), 0x1234, Normalization::NONE).unwrap();
    assert_eq!(le64(&(&memory).read_block(0).unwrap(), 8), Some(0x1235));
    let mut model = BTreeMap::new();
    for number in 0..2048_u64 {
        let name = format!("file number {number}");
        insert_u64(&&memory, &tx(), name.as_str(), number).unwrap();
        model.insert(name.into_bytes(), Value::of_u64(number));
        let expected = (64 * (number as usize + 2)).next_multiple_of(512);
        match number {
            ..2047 => assert_eq!((&memory).block_size(), expected as u64),
            _ => assert_eq!((kind(&memory), (&memory).block_size()), (Kind::Fat, 16384)),
        }
        if number % 300 == 0 {
            same(&memory, &model);
        }
    }
    same(&memory, &model);
    assert_eq!(Zap::open(&memory).unwrap().settings().salt, 0x1235);
}

#[test]
fn what_is_made_at_once_is_what_comes_one_by_one() {
    for count in [0, 1, 7, 8, 2000, 2047, 2048, 5000] {
        let entries: Vec<(String, u64)> =
            (0..count).map(|number| (int_name(number * 7), number)).collect();
        let one_by_one = Memory::new(512);
        create(&&one_by_one, &tx(), 9, Normalization::NONE).unwrap();
        for (name, number) in &entries {
            insert_u64(&&one_by_one, &tx(), name.as_bytes(), *number).unwrap();
        }
        let size = filled_block_size(entries.len());
        let at_once = Memory::new(size as usize);
        create_filled(&&at_once, &tx(), 8, &entries).unwrap();
        assert_eq!(kind(&at_once), kind(&one_by_one), "{count}");
        if kind(&at_once) == Kind::Micro {
            let block = |memory: &Memory| memory.read_block(0).unwrap();
            assert!(block(&at_once) == block(&one_by_one), "{count}");
        }
        walk(&at_once);
        let model = entries
            .iter()
            .map(|(name, number)| (name.clone().into_bytes(), Value::of_u64(*number)));
        same(&at_once, &model.collect());
        // It goes on like any other.
        insert_u64(&&at_once, &tx(), &b"more"[..], 1).unwrap();
        walk(&at_once);
    }
    let twice = [("a name of a micro ZAP that is longer than it can be, by far".to_owned(), 1)];
    let long = Memory::new(512);
    create_filled(&&long, &tx(), 9, &twice).unwrap();
    assert_eq!(kind(&long), Kind::Fat);
    assert!(create_filled(&&Memory::new(512), &tx(), 9, &[(String::new(), 1)]).is_err());
}

#[test]
fn where_an_entry_goes_follows_from_the_block() {
    let memory = Memory::new(512);
    create(&&memory, &tx(), 0x1234, Normalization::NONE).unwrap();
    for number in 0..60 {
        insert_u64(&&memory, &tx(), format!("name {number}").as_str(), number).unwrap();
    }
    remove(&&memory, &tx(), "name 7").unwrap();
    // Nothing is remembered of a copy.
    let block = |memory: &Memory| memory.0.borrow().blocks[0].clone();
    let copy = Memory::of(&block(&memory), block(&memory).len());
    for memory in [&memory, &copy] {
        insert_u64(&memory, &tx(), "further", 1).unwrap();
        insert_u64(&memory, &tx(), "and one more", 2).unwrap();
    }
    assert_eq!(block(&memory), block(&copy));
}

#[test]
fn what_makes_a_micro_zap_fat() {
    let fits = "n".repeat(49);
    let cases: [(&str, Value, Kind); 4] = [
        (&fits, Value::of_u64(1), Kind::Micro),
        (&"n".repeat(50), Value::of_u64(1), Kind::Fat),
        ("a", Value::of_u64s(&[1, 2]).unwrap(), Kind::Fat),
        ("a", Value::of_bytes(b"x").unwrap(), Kind::Fat),
    ];
    for (name, value, expected) in cases {
        let memory = Memory::new(512);
        create(&&memory, &tx(), 77, Normalization::NONE).unwrap();
        insert_u64(&&memory, &tx(), "a", 5).unwrap();
        insert_u64(&&memory, &tx(), "b", 6).unwrap();
        update(&&memory, &tx(), name, &value).unwrap();
        assert_eq!(kind(&memory), expected);
        let mut model = BTreeMap::new();
        model.insert(b"a".to_vec(), Value::of_u64(5));
        model.insert(b"b".to_vec(), Value::of_u64(6));
        model.insert(name.as_bytes().to_vec(), value);
        same(&memory, &model);
    }
}

fn random_name(random: &mut Random, longest: u64) -> Vec<u8> {
    let number = random.below(4000);
    let mut name = format!("{number:x}").into_bytes();
    let len = 1 + (number * 7919) % longest;
    name.resize((len as usize).max(name.len()), b'a' + (number % 26) as u8);
    name
}

fn random_value(random: &mut Random) -> Value {
    let count = 1 + random.below(12) as usize;
    let words: Vec<u64> = (0..count).map(|_| random.next()).collect();
    match random.below(8) {
        0 => Value::of_u64s(&words).unwrap(),
        1 => Value::of_bytes(&vec![7; 1 + random.below(700) as usize]).unwrap(),
        2 => Value::from_raw(2, smallvec::SmallVec::from_slice(&[1, 2, 3, 4])).unwrap(),
        _ => Value::of_u64(words[0]),
    }
}

fn torture(seed: u64, block_shift: Option<u32>, steps: u64) {
    let mut random = Random(seed);
    let memory = Memory::new(512);
    let (longest, any_value) = match block_shift {
        None => (50, false),
        Some(shift) => {
            let settings = KeySettings { salt: random.next(), ..KeySettings::default() };
            create_fat(&&memory, &tx(), &NewFat { settings, block_shift: shift }).unwrap();
            (255, true)
        }
    };
    if block_shift.is_none() {
        create(&&memory, &tx(), random.next(), Normalization::NONE).unwrap();
    }
    let mut model: BTreeMap<Vec<u8>, Value> = BTreeMap::new();
    for step in 0..steps {
        let name = random_name(&mut random, longest);
        let value = match any_value {
            true => random_value(&mut random),
            false => Value::of_u64(random.next()),
        };
        // Mostly grows, then mostly shrinks.
        let removes = if step < steps * 2 / 3 { 2 } else { 7 };
        match random.below(10) {
            choice if choice < removes => {
                let result = remove(&&memory, &tx(), name.as_slice());
                match model.remove(&name) {
                    Some(_) => result.unwrap(),
                    None => assert_eq!(result.unwrap_err().kind(), ErrorKind::NotFound),
                }
            }
            8 => {
                update(&&memory, &tx(), name.as_slice(), &value).unwrap();
                model.insert(name, value);
            }
            _ => {
                let result = insert(&&memory, &tx(), name.as_slice(), &value);
                match model.contains_key(&name) {
                    true => assert_eq!(result.unwrap_err().kind(), ErrorKind::Exists),
                    false => {
                        result.unwrap();
                        model.insert(name, value);
                    }
                }
            }
        }
        if step % 1500 == 0 {
            same(&memory, &model);
        }
    }
    same(&memory, &model);
    clear(&&memory, &tx()).unwrap();
    same(&memory, &BTreeMap::new());
    insert_u64(&&memory, &tx(), "again", 1).unwrap();
    assert_eq!(Zap::open(&memory).unwrap().require_u64("again").unwrap(), 1);
}

#[test]
fn random_changes_of_micro_zaps() {
    torture(1, None, 6000);
    torture(2, None, 6000);
}

#[test]
fn random_changes_of_fat_zaps() {
    torture(3, Some(14), 9000);
    torture(4, Some(12), 9000);
    torture(5, Some(17), 6000);
}

#[test]
fn a_growing_table_leaves_the_header() {
    // 4 KiB blocks: 256 pointers in the header, 512 in a block outside.
    let memory = Memory::new(4096);
    let flags = FLAG_HASH64 | FLAG_UINT64_KEY;
    let settings = KeySettings { salt: 99, flags, ..KeySettings::default() };
    create_fat(&&memory, &tx(), &NewFat { settings, block_shift: 12 }).unwrap();
    for number in 0..60_000_u64 {
        insert_u64(&&memory, &tx(), &[number, 1][..], number * 3).unwrap();
        if number.is_power_of_two() {
            walk(&memory);
        }
    }
    walk(&memory);
    let header = *Zap::open(&memory).unwrap().fat_header().unwrap();
    assert!(header.table.blocks >= 4, "{header:?}");
    for number in (0..60_000_u64).step_by(7) {
        remove(&&memory, &tx(), &[number, 1][..]).unwrap();
    }
    walk(&memory);
    let zap = Zap::open(&memory).unwrap();
    for number in 0..60_000 {
        let expected = (number % 7 != 0).then(|| Value::of_u64(number * 3));
        assert_eq!(zap.lookup_words(&[number, 1]).unwrap(), expected);
    }
    let error = insert_u64(&&memory, &tx(), "name", 1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

#[test]
fn a_growth_left_half_done_is_finished() {
    let memory = Memory::new(4096);
    let settings = KeySettings { salt: 5, flags: 7, ..KeySettings::default() };
    create_fat(&&memory, &tx(), &NewFat { settings, block_shift: 12 }).unwrap();
    let key = |number: u64| [number.wrapping_mul(0x9e37_79b9_7f4a_7c15), number];
    let mut number = 0;
    while Zap::open(&memory).unwrap().fat_header().unwrap().table.blocks < 2 {
        insert_u64(&&memory, &tx(), &key(number)[..], number).unwrap();
        number += 1;
    }
    // As OpenZFS leaves it: one of two blocks copied to the next table.
    let mut block = (&memory).read_block(0).unwrap().to_vec();
    let mut header = FatHeader::decode(&block).unwrap();
    let old = (&memory).read_block(header.table.first_block).unwrap();
    let next = header.free_block;
    header.free_block += 4;
    (header.table.next_block, header.table.blocks_copied) = (next, 1);
    header.encode_into(&mut block).unwrap();
    (&memory).write_block(&tx(), 0, block.into()).unwrap();
    for half in 0..2 {
        let mut copy = vec![0; 4096];
        for at in 0..512 {
            let from = (half * 256 + at / 2) * 8;
            put_le64(&mut copy, at * 8, le64(&old, from).unwrap()).unwrap();
        }
        (&memory).write_block(&tx(), next + half as u64, copy.into()).unwrap();
    }
    for _ in 0..2000 {
        insert_u64(&&memory, &tx(), &key(number)[..], number).unwrap();
        number += 1;
    }
    walk(&memory);
    let zap = Zap::open(&memory).unwrap();
    assert!(zap.fat_header().unwrap().settings.flags & FLAG_PRE_HASHED != 0);
    assert!((0..number).all(|n| zap.lookup_words(&key(n)).unwrap() == Some(Value::of_u64(n))));
}

#[test]
fn a_leaf_whose_other_half_cannot_be_written_is_not_split() {
    let memory = Memory::new(4096);
    let settings = KeySettings { flags: FLAG_HASH64 | FLAG_UINT64_KEY, ..KeySettings::default() };
    create_fat(&&memory, &tx(), &NewFat { settings, block_shift: 12 }).unwrap();
    let insert = |number: u64| insert_u64(&&memory, &tx(), &[number, 1][..], number);
    let (mut there, mut refused) = (Vec::new(), 0);
    for number in 1..20_000 {
        // Now and then the end of the object cannot be read for a while.
        let count = (&memory).block_count();
        memory.0.borrow_mut().unready = (number % 3 == 1).then_some(count);
        match insert(number) {
            Ok(()) => there.push(number),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Io, "{error}");
                refused += 1;
            }
        }
    }
    assert!(refused > 10 && there.len() > 10_000, "{refused}");
    memory.0.borrow_mut().unready = None;
    walk(&memory);
    let zap = Zap::open(&memory).unwrap();
    for number in there {
        let found = zap.lookup_words(&[number, 1]).unwrap();
        assert_eq!(found.and_then(|value| value.as_u64()), Some(number));
    }
}

#[test]
fn names_of_one_hash_are_told_apart() {
    for fat in [false, true] {
        let memory = Memory::new(512);
        let normalization = Normalization(Normalization::UPPER);
        let settings = KeySettings { salt: 0x242f9, normalization, flags: 0 };
        match fat {
            false => create(&&memory, &tx(), settings.salt, normalization).unwrap(),
            true => create_fat(&&memory, &tx(), &NewFat::new(settings)).unwrap(),
        }
        for (value, name) in ["foo", "FOO", "Foo", "fOO"].iter().enumerate() {
            insert_u64(&&memory, &tx(), *name, value as u64).unwrap();
        }
        walk(&memory);
        let cds = |memory: &Memory| {
            let zap = Zap::open(memory).unwrap();
            zap.entries()
                .map(|entry| entry.unwrap())
                .map(|entry| (String::from_utf8(entry.name().to_vec()).unwrap(), entry.cd))
                .collect::<Vec<_>>()
        };
        let named = |list: &[(&str, u32)]| -> Vec<(String, u32)> {
            list.iter().map(|(name, cd)| ((*name).to_owned(), *cd)).collect()
        };
        let all = [("foo", 0), ("FOO", 1), ("Foo", 2), ("fOO", 3)];
        assert_eq!(cds(&memory), named(&all));
        // A match of several is the lowest; what is added takes the lowest place free.
        remove_normalized(&&memory, &tx(), b"fOo", MatchKind::Normalized).unwrap();
        remove(&&memory, &tx(), "Foo").unwrap();
        assert_eq!(cds(&memory), named(&[("FOO", 1), ("fOO", 3)]));
        insert_u64(&&memory, &tx(), "foO", 9).unwrap();
        insert_u64(&&memory, &tx(), "Foo", 9).unwrap();
        insert_u64(&&memory, &tx(), "fOo", 9).unwrap();
        let now = [("foO", 0), ("FOO", 1), ("Foo", 2), ("fOO", 3), ("fOo", 4)];
        assert_eq!(cds(&memory), named(&now));
        walk(&memory);
        // A changed value keeps the stored name.
        let set = |_: Option<&Value>| Ok(EntryChange::Set(Value::of_u64s(&[4, 5]).unwrap()));
        modify(&&memory, &tx(), "FoO", MatchKind::Normalized, set).unwrap();
        let zap = Zap::open(&memory).unwrap();
        assert_eq!(zap.lookup(b"foO").unwrap().unwrap().as_u64s(), Some(vec![4, 5]));
        assert_eq!((zap.lookup(b"FoO").unwrap(), zap.kind()), (None, Kind::Fat));
    }
}

#[test]
fn sums_vanish_at_zero() {
    let memory = Memory::new(512);
    create(&&memory, &tx(), 3, Normalization::NONE).unwrap();
    let name = int_name(1000);
    assert_eq!(add(&&memory, &tx(), name.as_str(), 512).unwrap(), 512);
    assert_eq!(add(&&memory, &tx(), name.as_str(), -112).unwrap(), 400);
    assert_eq!(Zap::open(&memory).unwrap().lookup_u64("3e8").unwrap(), Some(400));
    assert_eq!(add(&&memory, &tx(), name.as_str(), -400).unwrap(), 0);
    assert_eq!(add(&&memory, &tx(), name.as_str(), 0).unwrap(), 0);
    assert_eq!(Zap::open(&memory).unwrap().count().unwrap(), 0);
}

#[test]
fn what_cannot_be_stored_is_refused() {
    let memory = Memory::new(512);
    create(&&memory, &tx(), 3, Normalization::NONE).unwrap();
    let before = (&memory).read_block(0).unwrap();
    let large = Value::of_bytes(&[1; 8192]).unwrap();
    for name in [&b""[..], b"a\0b", &[b'x'; 1024]] {
        let error = insert_u64(&&memory, &tx(), name, 1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    }
    assert!(insert_u64(&&memory, &tx(), &[1_u64][..], 1).is_err());
    assert_eq!((&memory).read_block(0).unwrap(), before);
    insert(&&memory, &tx(), "large", &large).unwrap();
    let small = Memory::new(512);
    let settings = KeySettings { salt: 1, ..KeySettings::default() };
    create_fat(&&small, &tx(), &NewFat { settings, block_shift: 12 }).unwrap();
    let error = insert(&&small, &tx(), "large", &large).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    walk(&small);
}

#[test]
fn a_zap_of_openzfs_goes_on() {
    let packed = include_bytes!("../../../format/tests/fixtures/zap/directory-fat.bin.gz");
    let mut data = Vec::new();
    flate2::read::GzDecoder::new(&packed[..]).read_to_end(&mut data).unwrap();
    let memory = Memory::of(&data, 16384);
    walk(&memory);
    let mut model: BTreeMap<Vec<u8>, Value> = Zap::open(&memory)
        .unwrap()
        .entries()
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.name().to_vec(), entry.value))
        .collect();
    for number in 0..3000_u64 {
        let name = format!("another name {number}");
        insert_u64(&&memory, &tx(), name.as_str(), number).unwrap();
        model.insert(name.into_bytes(), Value::of_u64(number));
    }
    same(&memory, &model);
    for name in model.keys() {
        remove(&&memory, &tx(), name.as_slice()).unwrap();
    }
    same(&memory, &BTreeMap::new());
}

#[test]
fn hostile_leaves_are_refused_not_spread() {
    let memory = Memory::new(512);
    let settings = KeySettings { salt: 1, ..KeySettings::default() };
    create_fat(&&memory, &tx(), &NewFat { settings, block_shift: 12 }).unwrap();
    for number in 0..20_u64 {
        insert_u64(&&memory, &tx(), format!("{number}").as_str(), number).unwrap();
    }
    let (header, leaf) = ((&memory).read_block(0).unwrap(), (&memory).read_block(1).unwrap());
    let mut random = Random(8);
    for _ in 0..3000 {
        let hostile = Memory::new(4096);
        (&hostile).write_block(&tx(), 0, header.clone()).unwrap();
        let mut bytes = leaf.to_vec();
        for _ in 0..1 + random.below(6) {
            let at = random.below(4096) as usize;
            bytes[at] = random.next() as u8;
        }
        (&hostile).write_block(&tx(), 1, bytes.into()).unwrap();
        for number in 0..40_u64 {
            let name = format!("{number}");
            let _ = update(&&hostile, &tx(), name.as_str(), &Value::of_bytes(&[1; 300]).unwrap());
            let _ = remove(&&hostile, &tx(), StoredKey::Name(name.as_bytes()));
        }
    }
}

fn fill<S: BlockSink>(what: &str, count: u64, sink: &S) {
    let start = std::time::Instant::now();
    for number in 0..count {
        let name = format!("file-{number:08}.data");
        insert_u64(sink, &tx(), name.as_str(), number).unwrap();
    }
    println!("{what}: {:?} each", start.elapsed() / count as u32);
}

#[test]
fn speed_is_told() {
    let micro = Memory::new(512);
    create(&&micro, &tx(), 3, Normalization::NONE).unwrap();
    fill("micro ZAP to 2047 entries", 2047, &&micro);
    let fat = Memory::new(512);
    create(&&fat, &tx(), 3, Normalization::NONE).unwrap();
    fill("fat ZAP to 100000 entries", 100_000, &&fat);
    walk(&fat);
}

#[test]
fn objects_of_a_live_set_are_filled() {
    let set = crate::object::tests::empty_set(cenote_format::objset::ObjsetKind::Zfs);
    let new = crate::object::NewObject::new(cenote_format::ObjectType::DIRECTORY, 512);
    for count in [2047, 30_000] {
        let object = set.create_object(&tx(), &new).unwrap();
        create(&object, &tx(), 3, Normalization::NONE).unwrap();
        fill("live object", count, &object);
        let zap = Zap::open(set.object(object.id()).unwrap()).unwrap();
        assert_eq!(zap.entries().filter(Result::is_ok).count() as u64, count);
        for number in 0..count {
            let name = format!("file-{number:08}.data");
            assert_eq!(zap.require_u64(&name).unwrap(), number);
        }
        clear(&object, &tx()).unwrap();
        fill("live object again", count, &object);
        let zap = Zap::open(set.object(object.id()).unwrap()).unwrap();
        assert_eq!(zap.count().unwrap(), count);
    }
}
