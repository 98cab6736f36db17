//! What the allocator makes of pools that OpenZFS wrote.
//!
//! Invariant: its figures are those of the reader, what it hands out is free by the reader's count
//! to the last sector, and what is in use is not free.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

#[path = "../golden_properties/fixtures.rs"]
mod fixtures;

use std::sync::Arc;

use cenote_engine::alloc::{AllocRequest, Allocator, SpaceSource};
use cenote_engine::dataset::Table;
use cenote_engine::object::ObjectSet;
use cenote_engine::vdev::AllocationClass;
use cenote_engine::{ErrorKind, Result};
use cenote_format::config::VdevKind;
use cenote_format::{ObjectId, Txg};

/// The metadata of a pool that is read.
struct Mos(ObjectSet);

impl SpaceSource for Mos {
    fn bonus(&self, object: ObjectId) -> Result<Vec<u8>> {
        Ok(self.0.dnode(object)?.bonus().to_vec())
    }
    fn block_size(&self, object: ObjectId) -> Result<u64> {
        Ok(self.0.object(object)?.block_size())
    }
    fn read(&self, object: ObjectId, offset: u64, bytes: usize) -> Result<Vec<u8>> {
        self.0.object(object)?.read_vec(offset, bytes)
    }
    fn zap_number(&self, zap: ObjectId, name: &str) -> Result<Option<u64>> {
        Table::open(&self.0, zap)?.unwrap().number(name)
    }
    fn zap_words(&self, zap: ObjectId, name: &str) -> Result<Option<Vec<u64>>> {
        Table::open(&self.0, zap)?.unwrap().numbers_of(name)
    }
    fn zap_has(&self, zap: ObjectId, name: &str) -> Result<bool> {
        Ok(Table::open(&self.0, zap)?.unwrap().value(name)?.is_some())
    }
    fn zap_numbers(&self, zap: ObjectId) -> Result<Vec<(String, u64)>> {
        Table::open(&self.0, zap)?.unwrap().numbers()
    }
    fn feature_enabled(&self, _: &str) -> bool {
        true
    }
}

#[test]
fn free_space_of_real_pools() {
    let mut refused = Vec::new();
    for fixture in fixtures::fixtures() {
        let name = fixture.file_name().unwrap().to_string_lossy().into_owned();
        let (_dir, pool) = fixtures::open(&fixture);
        let tree = pool.config().vdev_tree.clone().unwrap();
        let source = Arc::new(Mos(pool.mos().clone()));
        let synced = pool.uberblock().txg;
        let allocator = match Allocator::open(pool.io().pipe.vdev_handle().clone(), source, synced)
        {
            Ok(allocator) => allocator,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unsupported, "{name}: {error}");
                refused.push(format!("{name}: {error}"));
                continue;
            }
        };
        let (figures, space) = (allocator.figures(), pool.space().unwrap());
        assert_eq!(figures.tops.len(), space.tops.len(), "{name}");
        for (own, read) in figures.tops.iter().zip(&space.tops) {
            let at = format!("{name} {own:?} {read:?}");
            assert_eq!(
                (own.id, own.size, own.allocated),
                (read.id, read.size, read.allocated),
                "{at}"
            );
            assert_eq!(own.deflate_ratio, read.deflate_ratio, "{at}");
            assert_eq!(
                (own.fragmentation, own.passive),
                (read.fragmentation, read.passive),
                "{at}"
            );
            assert_eq!(own.embedded_log, read.embedded_log, "{at}");
        }
        assert_eq!(figures.slop(), pool.capacity().slop, "{name}");
        for dva in pool.uberblock().root.dvas() {
            assert!(!allocator.is_free(&dva).unwrap(), "{name}: {dva:?}");
        }
        exhaust(&name, &allocator, Txg(synced.0 + 1), &tree);
    }
    println!("refused: {refused:#?}");
}

/// Allocates all there is, in blocks of ever smaller size.
fn exhaust(name: &str, allocator: &Allocator, txg: Txg, tree: &cenote_format::config::VdevConfig) {
    let figures = allocator.figures();
    let mut taken = vec![0u64; tree.children().len()];
    for class in [AllocationClass::Log, AllocationClass::Dedup] {
        for shift in (9..=24).rev() {
            let request = AllocRequest { class, ..AllocRequest::new(1 << shift, txg) };
            loop {
                match allocator.allocate(&request) {
                    Ok(dvas) => taken[dvas[0].vdev as usize] += dvas[0].asize,
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::NoSpace, "{name}: {error}");
                        break;
                    }
                }
            }
        }
    }
    for top in figures.tops.iter().filter(|top| !top.passive) {
        let (taken, free) = (taken[top.id as usize], top.size - top.allocated);
        let raidz = tree.children()[top.id as usize].kind == VdevKind::Raidz;
        // A raidz cannot use single sectors between blocks.
        let least = if raidz { free - free / 20 } else { free };
        assert!((least..=free).contains(&taken), "{name} {}: {taken} of {free}", top.id);
    }
}
