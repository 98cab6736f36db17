//! ZAPs in memory: opened, looked up, listed. The first byte chooses the block size.
#![no_main]

use bytes::Bytes;
use cenote_engine::zap::{BlockSource, Cursor, Zap};
use cenote_engine::{Error, Result};
use cenote_format::zap::{Leaf, LeafBuilder, MatchKind, Micro};

struct Blocks {
    data: Vec<u8>,
    size: usize,
}

impl BlockSource for Blocks {
    fn block_size(&self) -> u64 {
        self.size as u64
    }
    fn block_count(&self) -> u64 {
        (self.data.len() / self.size) as u64
    }
    fn read_block(&self, id: u64) -> Result<Bytes> {
        let start = usize::try_from(id).ok().and_then(|id| id.checked_mul(self.size));
        let block = start.and_then(|start| self.data.get(start..start + self.size));
        Ok(Bytes::from(block.map_or_else(|| vec![0; self.size], <[u8]>::to_vec)))
    }
    fn prefetch_block(&self, _: u64) {}
    fn named(&self, error: Error) -> Error {
        error
    }
}

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Some((&choice, data)) = input.split_first() else { return };
    let size = 512usize << (choice % 6);
    let mut data = data.to_vec();
    data.resize(data.len().max(1).next_multiple_of(size).min(1 << 20), 0);
    for block in data.chunks_exact(size) {
        if let Ok(leaf) = Leaf::new(block) {
            let _ = (leaf.check(), leaf.end(), leaf.sorted_entries());
            let _ = LeafBuilder::from_block(block.to_vec()).map(|mut leaf| leaf.split().is_ok());
        }
        if let Ok(micro) = Micro::new(block) {
            let _ = micro.entries().flatten().count();
        }
    }
    let blocks = data.len() / size;
    let Ok(zap) = Zap::open(Blocks { data, size }) else { return };
    let _ = (zap.settings(), zap.count());
    let names: [&[u8]; 3] = [b"", b"name", b"\xc3\x85ngstr\xc3\xb6m"];
    for name in names {
        let _ = zap.lookup(name);
        let _ = zap.lookup_normalized(name, MatchKind::Normalized);
    }
    let _ = (zap.lookup_words(&[1, 2, 3, 4, 5]), zap.lookup_int(7));
    // A listing cannot give more entries than there is room for, with each leaf visited once per
    // pointer to it.
    let most = blocks * size * 1024;
    let mut count = 0;
    for entry in zap.entries() {
        let Ok(entry) = entry else { break };
        let _ = entry.value.as_u64s();
        count += 1;
        assert!(count <= most, "the listing does not end");
        if count < 50 {
            let _ = zap.lookup(entry.name());
        }
    }
    let _ = zap.iterate(Cursor(u64::MAX)).take(10).count();
});
