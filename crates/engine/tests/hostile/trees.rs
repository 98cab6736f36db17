//! Attacks on block trees, ZAPs, dataset trees and space maps.

use std::ops::ControlFlow;

use cenote_engine::ErrorKind;
use cenote_engine::check::{CheckOptions, check};
use cenote_engine::dataset::NoKeys;
use cenote_engine::object::Object;
use cenote_engine::pool::history::History;
use cenote_engine::zap::Zap;
use cenote_format::{BlockPointer, ObjectId, ObjectType};

use crate::bench::{Bench, soon};
use crate::circles;
use crate::tally::Tally;
use crate::walk;

/// The object of dataset `name` that has the most levels.
pub fn deepest(bench: &Bench, name: &str) -> Object {
    let catalog = bench.pool.catalog();
    let set = catalog.object_set(&catalog.dataset_named(name).unwrap(), &NoKeys).unwrap();
    let mut best: Option<Object> = None;
    let mut at = 0;
    while let Some(ObjectId(id)) = set.next_object(at).unwrap() {
        at = id;
        let object = set.object(ObjectId(id)).unwrap();
        let levels = |object: &Object| object.dnode().levels;
        if best.as_ref().is_none_or(|best| levels(best) < levels(&object)) {
            best = Some(object);
        }
    }
    best.unwrap()
}

/// The same object in the pool as it is now.
pub fn again(bench: &Bench, name: &str, id: ObjectId) -> Object {
    let pool = bench.attack().unwrap();
    let catalog = pool.catalog();
    let set = catalog.object_set(&catalog.dataset_named(name).unwrap(), &NoKeys).unwrap();
    set.object(id).unwrap()
}

#[test]
fn an_indirect_block_that_points_to_itself() {
    let mut bench = Bench::new();
    let object = deepest(&bench, "fuzzed/a");
    assert!(object.dnode().levels >= 2);
    let own = object.pointer(1, 0).unwrap();
    let extent = bench.extent(&own);
    bench.image.patch(extent, 0, &own.encode());
    let object = again(&bench, "fuzzed/a", object.id());
    let error = object.read(0, 100).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    let text = error.to_string();
    assert!(text.contains("pointer of level 1 where 0 belongs"), "{text}");
    assert!(text.contains(&format!("object {}", object.id().0)), "{text}");
    soon(5, || assert!(object.seek_data(0).is_err()));
}

#[test]
fn a_tree_of_twelve_levels_in_twelve_blocks() {
    let mut bench = Bench::new();
    let object = deepest(&bench, "fuzzed/a");
    circles::tree(&mut bench, &object);
    let object = again(&bench, "fuzzed/a", object.id());
    soon(120, || {
        assert_eq!(object.read(1 << 55, 10).unwrap().len(), 1);
        assert_eq!(object.seek_data(77).unwrap(), Some(77));
        // There is no hole, and it would take for ever to be sure.
        let _ = object.seek_hole(0);
    });
}

#[test]
fn objects_that_claim_more_than_their_trees_hold() {
    for blocks in [u64::MAX, 1 << 63, 1 << 40, (1 << 60) - 1] {
        let mut bench = Bench::new();
        let set = bench.pool.mos().clone();
        let mut at = 0;
        let mut changed = Vec::new();
        while let Some(ObjectId(id)) = set.next_object(at).unwrap() {
            at = id;
            let (extent, position) = bench.dnode(&set, id);
            // The config and the directory of objects are left alone, so that the pool opens.
            if id > 1
                && set.dnode(ObjectId(id)).unwrap().bonus_type != ObjectType::PACKED_NVLIST_SIZE
            {
                bench.word((extent, position + 16), blocks);
                changed.push(id);
            }
        }
        let Ok(pool) = bench.attack() else { continue };
        soon(20, || {
            for id in changed {
                let object = pool.mos().object(ObjectId(id)).unwrap();
                for offset in [0, 1 << 20, 1 << 62] {
                    let _ = (object.seek_data(offset), object.seek_hole(offset));
                }
                if let Ok(zap) = Zap::open(object) {
                    let _ = zap.entries().take(10_000).count();
                }
            }
            let _ = (pool.space(), pool.mos().next_object(1 << 47));
        });
    }
}

#[test]
fn an_object_set_of_endless_objects() {
    let mut bench = Bench::new();
    let root = bench.extent(&bench.pool.uberblock().root);
    for blocks in [u64::MAX, u64::MAX / 32, 1 << 59, 1 << 43] {
        bench.word((root, 16), blocks);
        let Ok(pool) = bench.attack() else { continue };
        soon(20, || {
            let mut tally = Tally::default();
            walk::objects(&pool.mos(), &mut tally);
            let _ = pool.mos().next_object(1 << 46);
            let _ = pool.mos().next_object(u64::MAX - 1);
        });
    }
}

#[test]
fn space_maps_longer_than_anything() {
    let mut bench = Bench::new();
    let set = bench.pool.mos().clone();
    let mut at = 0;
    while let Some(ObjectId(id)) = set.next_object(at).unwrap() {
        at = id;
        let dnode = set.dnode(ObjectId(id)).unwrap();
        if dnode.object_type == ObjectType::SPACE_MAP {
            let (extent, position) = bench.bonus(&set, id);
            bench.word((extent, position + 8), 1 << 60);
            bench.word((extent, position + 16), i64::MIN as u64);
            let (extent, position) = bench.dnode(&set, id);
            bench.word((extent, position + 16), 1 << 50);
        }
    }
    let pool = bench.attack().unwrap();
    soon(20, || {
        let _ = pool.space();
    });
}

#[test]
fn space_maps_of_segments_elsewhere() {
    let mut bench = Bench::new();
    let set = bench.pool.mos().clone();
    let mut at = 0;
    let mut maps = 0;
    while let Some(ObjectId(id)) = set.next_object(at).unwrap() {
        at = id;
        let object = set.object(ObjectId(id)).unwrap();
        if object.dnode().object_type != ObjectType::SPACE_MAP
            || object.pointer(0, 0).unwrap().is_hole()
        {
            continue;
        }
        maps += 1;
        let extent = bench.block(&object, 0, 0);
        // Allocated, 2^47 sectors from the start of the metaslab; freed; allocated again.
        let far = |action: u64| 1 << 63 | ((1_u64 << 46) - 1) << 16 | action << 15 | 0x7fff;
        for (word, value) in [far(0), far(1), far(0), far(0)].into_iter().enumerate() {
            bench.word((extent, 8 * word), value & !(1 << 63));
        }
    }
    assert!(maps > 0);
    let pool = bench.attack().unwrap();
    soon(20, || {
        let _ = pool.space();
        let report = check(&pool, &CheckOptions::default(), &mut |_| ControlFlow::Continue(()));
        if let Ok(report) = report {
            assert!(!report.is_clean());
        }
    });
}

#[test]
fn a_history_longer_than_anything() {
    let mut bench = Bench::new();
    let set = bench.pool.mos().clone();
    let mut at = 0;
    while let Some(ObjectId(id)) = set.next_object(at).unwrap() {
        at = id;
        if set.dnode(ObjectId(id)).unwrap().object_type == ObjectType::HISTORY {
            let (extent, position) = bench.bonus(&set, id);
            for word in 0..4 {
                bench.word((extent, position + 8 * word), u64::MAX >> word);
            }
            let (extent, position) = bench.dnode(&set, id);
            bench.word((extent, position + 16), 1 << 50);
        }
    }
    let pool = bench.attack().unwrap();
    soon(20, || {
        if let Ok(history) = History::open(&pool.catalog()) {
            let _ = history.take(100_000).count();
        }
    });
}

/// Changes the word `offset` bytes into the bonus of the directory of `name`.
fn directory_word(bench: &mut Bench, name: &str, offset: usize, value: u64) {
    let directory = bench.pool.catalog().directory(name).unwrap();
    let mos = bench.pool.mos().clone();
    let (extent, position) = bench.bonus(&mos, directory.id.0);
    bench.word((extent, position + offset), value);
}

/// Everything a user can ask about datasets, within `seconds`.
fn ask(bench: &Bench, seconds: u64) -> Tally {
    let mut tally = Tally::default();
    soon(seconds, || {
        if let Some(pool) = tally.of(bench.attack()) {
            for dataset in walk::datasets(&pool, &mut tally) {
                walk::dataset(&pool, &dataset, &NoKeys, &mut tally);
            }
        }
    });
    tally
}

#[test]
fn dataset_directories_in_circles() {
    let catalog_ids = |bench: &Bench| {
        let catalog = bench.pool.catalog().clone();
        (catalog.root_id().0, catalog.directory("fuzzed/a").unwrap())
    };
    // The parent of `a` is `a`; of the root, `a`.
    for (victim, offset, to_child) in [("fuzzed/a", 16, true), ("fuzzed", 16, true)] {
        let mut bench = Bench::new();
        let (root, a) = catalog_ids(&bench);
        directory_word(&mut bench, victim, offset, if to_child { a.id.0 } else { root });
        ask(&bench, 60);
    }
    // The children of `a` are those of the root: it is its own grandchild.
    let mut bench = Bench::new();
    let map = bench.pool.catalog().root().unwrap().phys.child_map;
    directory_word(&mut bench, "fuzzed/a", 32, map.0);
    let tally = ask(&bench, 60);
    let text = "names another parent";
    assert!(tally.errors.iter().any(|error| error.contains(text)), "{:#?}", tally.errors);
}

#[test]
fn snapshots_in_circles() {
    // Previous snapshot (8), next snapshot (24), snapshot names (40 and on): all to itself.
    for offset in (0..128).step_by(8) {
        let mut bench = Bench::new();
        let catalog = bench.pool.catalog().clone();
        for name in ["fuzzed/a@one", "fuzzed/a@s1", "fuzzed/a@s3", "fuzzed/a"] {
            let id = catalog.dataset_named(name).unwrap().id.0;
            let (extent, position) = bench.bonus(catalog.mos(), id);
            bench.word((extent, position + offset), id);
        }
        let mut tally = Tally::default();
        soon(30, || {
            let Some(pool) = tally.of(bench.attack()) else { return };
            for name in ["fuzzed/a@one", "fuzzed/a@s3", "fuzzed/a"] {
                if let Ok(dataset) = pool.catalog().dataset_named(name) {
                    tally.of(pool.catalog().written(&dataset));
                    tally.of(pool.catalog().previous(&dataset));
                    if let Ok(other) = pool.catalog().dataset_named("fuzzed/a@two") {
                        tally.of(pool.catalog().written_since(&dataset, &other));
                        tally.of(pool.catalog().written_since(&other, &dataset));
                    }
                }
            }
        });
    }
}

#[test]
fn names_that_lead_elsewhere() {
    let bench = Bench::new();
    let map = bench.pool.catalog().root().unwrap().phys.child_map;
    let object = bench.pool.mos().object(map).unwrap();
    let extent = bench.block(&object, 0, 0);
    let block = bench.image.extents[extent].used.clone();
    let at = (0..block.len() / 64).find(|chunk| block[chunk * 64 + 14..].starts_with(b"xa\0"));
    let at = at.expect("the child map is a micro ZAP that lists `xa`") * 64 + 14;
    for name in ["..", ".", "/", "a/", "@x", "#y", "\u{1}x"] {
        let mut bench = Bench::new();
        let mut bytes = name.as_bytes().to_vec();
        bytes.push(0);
        bench.image.patch(extent, at, &bytes);
        let pool = bench.attack().unwrap();
        let root = pool.catalog().root().unwrap();
        let error = pool.catalog().children(&root).unwrap_err();
        assert!(error.to_string().contains("is no name of a dataset"), "{error}");
    }
}

#[test]
fn gang_headers_in_circles() {
    let mut bench = Bench::new();
    let object = deepest(&bench, "fuzzed/a");
    let (extent, _) = bench.dnode(object.set(), object.id().0);
    let old = object.pointer(0, 0).unwrap();
    // A header whose children are itself, sealed as the reader expects.
    let mut gang = bench.add(vec![0; 512], &old, 0);
    gang.words[1] |= 1 << 63;
    gang.words[10] = 50;
    let mut header = gang.encode().repeat(3);
    header.resize(512, 0);
    let at = gang.first_dva().unwrap();
    let verifier = [u64::from(at.vdev), at.offset, gang.physical_birth().0, 0];
    use cenote_codec::checksum::{Algorithm, Width, WordOrder, seal_embedded};
    let (kind, order) = (Algorithm::GangHeader, WordOrder::Little);
    seal_embedded(&mut header, kind, &verifier, order, Width::Full).unwrap();
    let index = bench.extent(&gang);
    bench.image.patch(index, 0, &header);
    let parent = bench.block(&object, object.dnode().levels - 1, 0);
    assert_ne!(parent, extent);
    let lowest = bench.block(&object, 1, 0);
    let mut pointer: BlockPointer = gang;
    pointer.words[6] = old.words[6];
    bench.image.patch(lowest, 0, &pointer.encode());
    let object = again(&bench, "fuzzed/a", object.id());
    soon(10, || {
        let error = object.read(0, 100).unwrap_err();
        assert!(error.to_string().contains("gang"), "{error}");
    });
}
