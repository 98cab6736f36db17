//! Ways to make what a pool holds lead back to itself.
//!
//! Invariant: every change leaves each block well-formed; only where it leads is a lie.

use cenote_codec::checksum::Algorithm;
use cenote_engine::intent::BlockBuilder;
use cenote_engine::object::Object;
use cenote_format::zil::Header;
use cenote_format::{BlockPointer, Dva, ObjectId, Txg};

use crate::bench::Bench;

/// Bytes of a ZAP leaf's header.
pub const HEADER: usize = 48;
/// Words in the header of a list of blocks: the array of the lists in it, and their number.
const LISTS: usize = 4;
/// Bytes of a block of an intent log.
pub const LOG_BLOCK: usize = 4096;
/// Where an object set has the header of its log.
pub const LOG_HEADER: usize = 512;

/// Every leaf of a fat ZAP: extent and bytes.
pub fn leaves(bench: &Bench, table: &Object) -> Vec<(usize, Vec<u8>)> {
    let extents = (1..table.block_count()).map(|id| bench.block(table, 0, id));
    extents.map(|extent| (extent, bench.image.extents[extent].bytes(0, 16 << 10))).collect()
}

/// Every entry of a fat ZAP is followed by itself (`attack` 0) or by the first (1); or every name
/// goes on in itself (2).
pub fn chains(bench: &mut Bench, table: &Object, attack: u8) {
    let size = table.block_size() as usize;
    for (extent, bytes) in leaves(bench, table) {
        let chunks = (HEADER + size / 16..size.min(bytes.len())).step_by(24);
        for (number, at) in chunks.enumerate() {
            let to = if attack == 1 { 0 } else { number as u16 };
            match (bytes[at], attack) {
                (252, 0 | 1) => bench.image.patch(extent, at + 2, &to.to_le_bytes()),
                (251, 2) => bench.image.patch(extent, at + 22, &to.to_le_bytes()),
                _ => {}
            }
        }
    }
}

/// Every pointer in the table of a fat ZAP leads to block `target`.
pub fn pointers(bench: &mut Bench, table: &Object, target: u64) {
    let first = bench.block(table, 0, 0);
    let size = table.block_size() as usize;
    for at in (size / 2..size).step_by(8) {
        bench.word((first, at), target);
    }
}

/// The list of blocks `list` has itself in it; its array of lists is the pool's history.
pub fn list(bench: &mut Bench, list: ObjectId) {
    let mos = bench.pool.mos();
    let array = bench.pool.catalog().object_directory().unwrap().number("history").unwrap();
    let array = mos.object(ObjectId(array.unwrap())).unwrap();
    let first = bench.block(&array, 0, 0);
    bench.word((first, 0), list.0);
    let (extent, position) = bench.bonus(&mos, list.0);
    bench.word((extent, position + 8 * LISTS), array.id().0);
    bench.word((extent, position + 8 * (LISTS + 1)), 1);
}

/// The list of what is freed in the background.
pub fn free_list(bench: &Bench) -> ObjectId {
    let directory = bench.pool.catalog().object_directory().unwrap();
    ObjectId(directory.number("free_bpobj").unwrap().unwrap())
}

/// An object of twelve levels whose every indirect block is full of pointers to the one below: 2^77
/// blocks that are one.
pub fn tree(bench: &mut Bench, object: &Object) {
    let (extent, position) = bench.dnode(object.set(), object.id().0);
    let mut bp = object.pointer(0, 0).unwrap();
    for level in 1..12 {
        let bytes = bp.encode().repeat(1 << 7);
        bp = bench.add(bytes, &bp, level);
    }
    bench.image.patch(extent, position + 1, &[14, 12, 1]);
    bench.word((extent, position + 16), (1 << 60) - 1);
    bench.image.patch(extent, position + 64, &bp.encode());
}

/// Blocks of an intent log at these offsets in the data area of the first vdev, each leading to the
/// next and the last to the first, as if that came next; the header of that log. Born in group
/// `birth`.
pub fn log(offsets: &[u64], birth: Txg) -> (Header, Vec<Vec<u8>>) {
    let pointer = |(number, offset): (usize, &u64)| {
        let dva = Dva { vdev: 0, offset: *offset, asize: LOG_BLOCK as u64, gang: false };
        let mut pointer = BlockPointer::HOLE;
        pointer.words[..2].copy_from_slice(&dva.to_words());
        let (sectors, kind) = ((LOG_BLOCK as u64 >> 9) - 1, u64::from(Algorithm::Zilog2.id()));
        // Little-endian, of type intent log, not compressed.
        pointer.words[6] = 1 << 63 | 9 << 48 | kind << 40 | 2 << 32 | sectors << 16 | sectors;
        pointer.words[10] = birth.0;
        pointer.words[12..].copy_from_slice(&[0x1234, 0x5678, 9, number as u64 + 1]);
        pointer
    };
    let pointers: Vec<BlockPointer> = offsets.iter().enumerate().map(pointer).collect();
    let block = |number: usize| {
        let mut block = BlockBuilder::new(pointers[number]);
        block.push_write(birth, number as u64 + 1, 1 << 40, 0, b"data").unwrap();
        let mut next = pointers[(number + 1) % pointers.len()];
        next.words[15] = number as u64 + 2;
        block.finish(&next, None).unwrap().data.to_vec()
    };
    let header = Header {
        claim_txg: Txg(0),
        replay_seq: 0,
        log: pointers[0],
        claim_block_seq: 0,
        flags: 0,
        claim_record_seq: 0,
    };
    (header, (0..pointers.len()).map(block).collect())
}
