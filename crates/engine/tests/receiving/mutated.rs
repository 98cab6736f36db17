//! Streams with some of their records changed: a generator that a seed or a fuzzer drives.
//!
//! Invariant: the sums of what comes out are right, so that changes reach what lies behind them.

use cenote_engine::stream::{Item, StreamReader, StreamWriter};
use cenote_format::ObjectType;
use cenote_format::send_stream::{Begin, Features, Free, FreeObjects, Record};

/// The records of a stream of one snapshot.
pub fn items(stream: &[u8]) -> Vec<Item> {
    let mut reader = StreamReader::new(stream);
    let mut items = Vec::new();
    while let Ok(Some(item)) = reader.record() {
        items.push(item);
    }
    items
}

/// The stream of these records, as far as they can be told.
pub fn written(items: &[Item]) -> Vec<u8> {
    let mut writer = StreamWriter::new(Vec::new());
    for Item { record, payload, .. } in items {
        let done = match record {
            Record::Begin(begin) => {
                let begin = Begin { payload_len: payload.len() as u32, ..begin.clone() };
                writer.begin(&begin, payload)
            }
            Record::End(end) => writer.end(end.to_guid),
            record => writer.write(record, payload),
        };
        if done.is_err() {
            // No header can say this: what came before stands.
            continue;
        }
    }
    std::mem::take(writer.sink())
}

/// Changes some records; `next` decides how.
pub fn mutate(items: &mut Vec<Item>, next: &mut dyn FnMut() -> u64) {
    for _ in 0..next() % 4 + 1 {
        let count = items.len() as u64;
        if count < 2 {
            return;
        }
        let (at, other) = ((next() % count) as usize, (next() % count) as usize);
        match next() % 10 {
            0 => drop(items.remove(at)),
            1 => {
                let copy = items[at].clone();
                items.insert(other, copy);
            }
            2 => items.swap(at, other),
            3 => {
                let (object, length) = (number(next), number(next));
                let free =
                    Free { object, offset: number(next), length, to_guid: Default::default() };
                let item =
                    Item { record: Record::Free(free), payload: Vec::new(), ..items[at].clone() };
                items.insert(at, item);
            }
            4 => {
                let (first, count) = (number(next), number(next));
                let range = FreeObjects { first, count, to_guid: Default::default() };
                let record = Record::FreeObjects(range);
                items.insert(at, Item { record, payload: Vec::new(), ..items[at].clone() });
            }
            5 => {
                let payload = &mut items[at].payload;
                if !payload.is_empty() {
                    let byte = (next() % payload.len() as u64) as usize;
                    payload[byte] = next() as u8;
                }
            }
            _ => change(&mut items[at], next),
        }
    }
}

/// A number of the kinds at which something ends.
fn number(next: &mut dyn FnMut() -> u64) -> u64 {
    let near = |middle: u64, next: &mut dyn FnMut() -> u64| {
        middle.wrapping_add(next() % 5).wrapping_sub(2)
    };
    match next() % 8 {
        0 => next() % 4,
        1 => next() % 300,
        2 => next() % 64 * 512,
        3 => near(1 << (next() % 64), next),
        4 => near(1 << 48, next),
        5 => near(u64::MAX, next),
        6 => (next() % 64) << 17,
        _ => next(),
    }
}

/// Changes one field of a record, with the payload that follows from it.
fn change(item: &mut Item, next: &mut dyn FnMut() -> u64) {
    let (which, value) = (next() % 8, number(next));
    match &mut item.record {
        Record::Begin(begin) => match which {
            0 => begin.from_guid.0 = value,
            1 => {
                begin.features =
                    Features::from_bits_retain(begin.features.bits() ^ 1 << (value % 30))
            }
            2 => begin.objset_kind = value as u32,
            3 => begin.flags = Default::default(),
            4 => begin.features |= Features::LARGE_BLOCKS | Features::LARGE_DNODE,
            _ => begin.creation_time = value,
        },
        Record::Object(object) => match which {
            0 if object.raw_bonus_len != 0 && next().is_multiple_of(2) => {
                (object.bonus_len, object.raw_bonus_len) = ((value % 20_000) as u32, 0);
                let len = u64::from(object.bonus_len).next_multiple_of(8) as usize;
                item.payload.resize(len, value as u8);
            }
            0 => object.object = value,
            1 => object.block_size = value as u32,
            2 => object.slots = value as u8,
            3 => object.object_type = ObjectType(value as u8),
            4 => object.bonus_type = ObjectType(value as u8),
            5 => {
                object.bonus_len = (value % 700) as u32;
                let len = u64::from(object.bonus_len).next_multiple_of(8) as usize;
                item.payload.resize(len, value as u8);
            }
            6 if next().is_multiple_of(2) => {
                object.levels = value as u8;
                object.max_block_id = value >> 8;
                object.pointers = (value >> 16) as u8 % 5;
            }
            6 => object.flags = value as u8,
            _ => (object.checksum, object.compression) = (value as u8, (value >> 8) as u8),
        },
        Record::Write(write) => match which {
            0 | 1 => write.object = value,
            2 | 3 => write.offset = value,
            4 | 5 => {
                write.logical_size = (value % (300 << 10)) & !3;
                item.payload.resize(write.logical_size as usize, value as u8);
            }
            6 => {
                write.compression = value as u8;
                write.compressed_size = item.payload.len() as u64;
            }
            _ => write.object_type = ObjectType(value as u8),
        },
        Record::Free(free) => match which {
            0..=2 => free.object = value,
            3..=5 => free.offset = value,
            _ => free.length = value,
        },
        Record::FreeObjects(range) => match which {
            0..=3 => range.first = value,
            _ => range.count = value,
        },
        Record::Spill(spill) => match which {
            0..=2 => spill.object = value,
            3..=5 => {
                spill.length = (value % (40 << 10)) & !3;
                item.payload.resize(spill.length as usize, value as u8);
            }
            _ => spill.flags = value as u8,
        },
        Record::WriteEmbedded(write) => match which {
            0 => write.object = value,
            1 | 2 => write.offset = value,
            3 => write.length = value,
            4 => write.logical_size = value as u32,
            5 => write.compression = value as u8,
            _ => write.kind = value as u8,
        },
        Record::ObjectRange(range) => match which {
            0..=2 => range.first = value & !31,
            3 => range.slots = value,
            4 => range.flags = value as u8,
            _ => range.iv[0] ^= 1,
        },
        Record::End(end) => end.to_guid.0 = value,
        _ => {}
    }
}
