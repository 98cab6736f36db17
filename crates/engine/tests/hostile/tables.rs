//! Attacks on fat ZAPs: chains and pointer tables that lead in circles, numbers that are lies.

use cenote_engine::dataset::NoKeys;
use cenote_engine::object::{Object, ObjectSet};
use cenote_engine::zap::Zap;
use cenote_format::ObjectId;
use cenote_format::zap::Kind;

use crate::bench::{Bench, soon};
use crate::circles;

/// The first fat ZAP of dataset `name`.
fn fat(bench: &Bench, name: &str) -> Object {
    let catalog = bench.pool.catalog();
    let set = catalog.object_set(&catalog.dataset_named(name).unwrap(), &NoKeys).unwrap();
    fat_in(&set).unwrap()
}

fn fat_in(set: &ObjectSet) -> Option<Object> {
    let mut at = 0;
    while let Some(ObjectId(id)) = set.next_object(at).unwrap() {
        at = id;
        let object = set.object(ObjectId(id)).unwrap();
        if Zap::open(object.clone()).is_ok_and(|zap| zap.kind() == Kind::Fat && many(&zap)) {
            return Some(object);
        }
    }
    None
}

fn many(zap: &Zap) -> bool {
    zap.count().is_ok_and(|count| count > 50)
}

/// Lists the table and looks up its names, soon; the errors' texts.
fn ask(bench: &Bench, id: ObjectId, names: &[Vec<u8>]) -> Vec<String> {
    let Ok(pool) = bench.attack() else { return Vec::new() };
    let catalog = pool.catalog();
    let set = catalog.object_set(&catalog.dataset_named("fuzzed").unwrap(), &NoKeys).unwrap();
    let mut errors = Vec::new();
    soon(10, || {
        let zap = match Zap::open(set.object(id).unwrap()) {
            Ok(zap) => zap,
            Err(error) => return errors.push(error.to_string()),
        };
        let listed = zap.entries().take(1_000_000);
        let mut count = 0;
        for entry in listed {
            count += 1;
            if let Err(error) = entry {
                errors.push(error.to_string());
            }
        }
        assert!(count < 1_000_000, "a listing that does not end");
        for name in names {
            if let Err(error) = zap.lookup(name) {
                errors.push(error.to_string());
            }
        }
    });
    for error in &errors {
        assert!(error.contains(&format!("object {}", id.0)), "{error}");
    }
    errors
}

fn names(object: &Object) -> Vec<Vec<u8>> {
    let zap = Zap::open(object.clone()).unwrap();
    zap.entries().map(|entry| entry.unwrap().name().to_vec()).collect()
}

#[test]
fn chains_in_circles() {
    let sound = Bench::new();
    let object = fat(&sound, "fuzzed");
    let names = names(&object);
    for attack in 0..3 {
        let mut bench = Bench::new();
        circles::chains(&mut bench, &object, attack);
        let errors = ask(&bench, object.id(), &names);
        assert!(!errors.is_empty() || attack == 2, "attack {attack}");
    }
    // All rows of the hash table start at one chunk.
    let mut bench = Bench::new();
    for (extent, _) in circles::leaves(&sound, &object) {
        for row in 0..object.block_size() as usize / 32 {
            bench.image.patch(extent, circles::HEADER + 2 * row, &[0, 0]);
        }
    }
    ask(&bench, object.id(), &names);
}

#[test]
fn pointer_tables_in_circles() {
    let sound = Bench::new();
    let object = fat(&sound, "fuzzed");
    let names = names(&object);
    let first = sound.block(&object, 0, 0);
    // Every pointer leads to block 0, to one leaf, far away.
    for target in [0_u64, 1, 2, 1 << 40, u64::MAX] {
        let mut bench = Bench::new();
        circles::pointers(&mut bench, &object, target);
        let errors = ask(&bench, object.id(), &names);
        // The table may have one leaf only.
        assert!(!errors.is_empty() || target == 1, "all pointers to {target}");
    }
    // The table is outside, in the leaves, in itself; as long as can be.
    for (block, blocks, shift) in
        [(0, 1, 11), (1, 1, 11), (1, 1, 62), (1, 1 << 40, 50), (1, u64::MAX, 63), (1 << 50, 1, 12)]
    {
        let mut bench = Bench::new();
        for (at, value) in [(16, block), (24, blocks), (32, shift)] {
            bench.word((first, at), value);
        }
        ask(&bench, object.id(), &names);
    }
    // Counts of leaves and entries are lies.
    for at in [40, 48, 56, 64, 72, 80] {
        for value in [0, 1, u64::MAX, 1 << 60] {
            let mut bench = Bench::new();
            bench.word((first, at), value);
            ask(&bench, object.id(), &names);
        }
    }
}

#[test]
fn leaves_that_own_everything() {
    let sound = Bench::new();
    let object = fat(&sound, "fuzzed");
    let names = names(&object);
    for (prefix, len) in [(0, 0), (0, 64), (0, 65), (1, 1), (u64::MAX, 64), (0, u16::MAX)] {
        let mut bench = Bench::new();
        for (extent, _) in circles::leaves(&sound, &object) {
            bench.word((extent, 16), prefix);
            bench.image.patch(extent, 32, &len.to_le_bytes());
        }
        ask(&bench, object.id(), &names);
    }
}
