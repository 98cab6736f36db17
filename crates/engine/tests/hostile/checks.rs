//! Attacks on the checker and on what lists the space of a pool: trees, lists and logs that would
//! keep them busy for ever.

use cenote_engine::check::Report;
use cenote_engine::dataset::{NoKeys, Table};
use cenote_engine::intent::{Met, PoolLogReader, walk as walk_log};
use cenote_engine::pipe::ReadContext;
use cenote_format::{ObjectId, ObjectType};

use crate::bench::{Bench, soon};
use crate::circles;
use crate::tally::Tally;
use crate::trees::deepest;
use crate::walk;

/// What a check of the pool says, which comes soon.
fn check(bench: &Bench) -> Report {
    let pool = bench.attack().unwrap();
    let mut tally = Tally::default();
    soon(60, || walk::check(&pool, &mut tally)).unwrap()
}

fn says(report: &Report, text: &str) {
    let mut texts = report.findings.iter().map(|finding| finding.error.to_string());
    assert!(texts.any(|found| found.contains(text)), "no {text}: {:#?}", report.findings);
}

/// A log space map of the pool.
fn space_log(bench: &Bench) -> ObjectId {
    let directory = bench.pool.catalog().object_directory().unwrap();
    let logs = directory.number("com.delphix:log_spacemap_zap").unwrap().unwrap();
    let logs = Table::open(&bench.pool.mos(), ObjectId(logs)).unwrap().unwrap();
    ObjectId(logs.numbers().unwrap()[0].1)
}

#[test]
fn a_tree_of_one_block_is_walked_once() {
    let mut bench = Bench::new();
    let object = deepest(&bench, "fuzzed/a");
    circles::tree(&mut bench, &object);
    says(&check(&bench), "to another block as well");
}

#[test]
fn a_list_of_blocks_that_is_in_itself() {
    let mut bench = Bench::new();
    let list = circles::free_list(&bench);
    circles::list(&mut bench, list);
    says(&check(&bench), "part of itself");
}

#[test]
fn lists_of_blocks_longer_than_anything() {
    for word in [0, 5] {
        let mut bench = Bench::new();
        let list = circles::free_list(&bench);
        circles::list(&mut bench, list);
        let mos = bench.pool.mos();
        let (extent, position) = bench.bonus(&mos, list.0);
        bench.word((extent, position + 8 * word), u64::MAX >> 8);
        let directory = bench.pool.catalog().object_directory().unwrap();
        for id in [list.0, directory.number("history").unwrap().unwrap()] {
            let (extent, position) = bench.dnode(&mos, id);
            bench.word((extent, position + 16), 1 << 50);
        }
        says(&check(&bench), "has a hole");
    }
}

#[test]
fn space_maps_of_one_block_or_none() {
    let sound = Bench::new();
    let log = sound.pool.mos().object(space_log(&sound)).unwrap();
    for repeated in [true, false] {
        let mut bench = Bench::new();
        let (extent, position) = bench.bonus(log.set(), log.id().0);
        bench.word((extent, position + 8), 1 << 60);
        if repeated {
            circles::tree(&mut bench, &log);
            // Nobody has the vdev that its entries name.
            let first = bench.block(&log, 0, 0);
            let two_words = [3 << 62 | 77_u64, 1 << 63 | 5].map(u64::to_le_bytes).concat();
            let block = two_words.repeat(log.block_size() as usize / two_words.len());
            bench.image.patch(first, 0, &block);
        } else {
            let (extent, position) = bench.dnode(log.set(), log.id().0);
            bench.word((extent, position + 16), 1 << 50);
        }
        let pool = bench.attack().unwrap();
        let text = if repeated { "the same block in two places" } else { "has a hole" };
        let error = soon(20, || pool.space()).unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
        says(&check(&bench), text);
    }
}

#[test]
fn every_space_map_longer_than_anything() {
    let mut bench = Bench::new();
    let set = bench.pool.mos();
    let mut at = 0;
    while let Some(ObjectId(id)) = set.next_object(at).unwrap() {
        at = id;
        if set.dnode(ObjectId(id)).unwrap().object_type == ObjectType::SPACE_MAP {
            let (extent, position) = bench.bonus(&set, id);
            bench.word((extent, position + 8), 1 << 60);
            let (extent, position) = bench.dnode(&set, id);
            bench.word((extent, position + 16), 1 << 50);
        }
    }
    says(&check(&bench), "has a hole");
}

#[test]
fn intent_logs_in_circles() {
    for length in [1, 2, 5] {
        let mut bench = Bench::new();
        let catalog = bench.pool.catalog();
        let head = catalog.dataset_named("fuzzed/a").unwrap();
        let set = catalog.object_set(&head, &NoKeys).unwrap();
        let birth = bench.pool.uberblock().txg;
        let like = *set.root_pointer();
        let places: Vec<_> =
            (0..length).map(|_| bench.add(vec![0; circles::LOG_BLOCK], &like, 0)).collect();
        let offsets: Vec<u64> = places.iter().map(|bp| bp.first_dva().unwrap().offset).collect();
        let (header, blocks) = circles::log(&offsets, birth);
        for (place, block) in places.iter().zip(&blocks) {
            let extent = bench.extent(place);
            bench.image.patch(extent, 0, block);
        }
        let root = bench.extent(&like);
        bench.image.patch(root, circles::LOG_HEADER, &header.encode().unwrap());
        let pool = bench.attack().unwrap();
        let reader = PoolLogReader {
            io: pool.io().clone(),
            context: ReadContext::default(),
            accepts_losses: false,
        };
        let mut records = 0;
        let ended = soon(5, || {
            walk_log(&reader, &header, None, |met| {
                records += u64::from(matches!(met, Met::Record(_)));
                Ok(true)
            })
        });
        assert_eq!((ended.unwrap().blocks, records), (length, length));
        check(&bench);
    }
}
