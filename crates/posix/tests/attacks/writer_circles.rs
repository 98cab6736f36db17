//! What leads back to itself, met while writing: lists of blocks to be freed, directories, tables,
//! logs.
//!
//! Invariant: each ends soon, with an error that says what is wrong or with none.

use std::sync::{Arc, LazyLock};

use cenote_device::{Device, SimDevice};
use cenote_engine::dataset::NoKeys;
use cenote_engine::object::{Object, ObjectSet};
use cenote_engine::pool::Pool;
use cenote_engine::pool::group::LivePool;
use cenote_engine::zap::Zap;
use cenote_format::{ObjectId, ObjectType};
use cenote_posix::tree::{ROOT, RenameFlags, Tree};

use crate::bench::Bench;
use crate::image::{self, DATA_START};
use crate::tally::Tally;
use crate::work::{self, SUPERUSER, files_of, new_node};
use crate::{BASE, attack_soon, circles, count_panics, soon, walk};

/// A directory, as an entry of its parent says it.
const DIRECTORY: u64 = 4 << 60;

static POOL: LazyLock<Arc<Pool>> = LazyLock::new(|| {
    let device = SimDevice::from_bytes("/sim/d0", BASE.device(&BASE.image));
    let device: Arc<dyn Device> = Arc::new(device);
    Pool::open(&image::discover(vec![device])[0], &walk::options()).unwrap()
});

fn bench() -> Bench {
    count_panics();
    Bench { image: BASE.image.clone(), pool: POOL.clone() }
}

fn set(bench: &Bench) -> ObjectSet {
    let catalog = bench.pool.catalog();
    catalog.object_set(&catalog.dataset_named("tank").unwrap(), &NoKeys).unwrap()
}

fn number(table: &Object, name: &str) -> u64 {
    let found = Zap::open(table.clone()).unwrap().lookup(name.as_bytes()).unwrap();
    found.unwrap().as_u64().unwrap()
}

/// The root directory and the directory `fat` in it.
fn directories(set: &ObjectSet) -> (Object, Object) {
    let root = number(&set.object(ObjectId(1)).unwrap(), "ROOT");
    let root = set.object(ObjectId(root)).unwrap();
    let fat = number(&root, "fat") & !DIRECTORY;
    (root, set.object(ObjectId(fat)).unwrap())
}

/// Makes the entry `name` of a table say `value`.
fn point(bench: &mut Bench, table: &Object, name: &str, value: u64) {
    let old = number(table, name);
    for id in 0..table.block_count() {
        let extent = bench.block(table, 0, id);
        let bytes = bench.image.extents[extent].used.clone();
        for (old, new) in
            [(old.to_le_bytes(), value.to_le_bytes()), (old.to_be_bytes(), value.to_be_bytes())]
        {
            if let Some(at) = bytes.windows(8).position(|found| found == old) {
                return bench.image.patch(extent, at, &new);
            }
        }
    }
    panic!("no entry {name} that says {old:#x}");
}

#[test]
fn lists_of_blocks_in_themselves() {
    let mut sound = bench();
    let mos = sound.pool.mos();
    let mut lists = Vec::new();
    let mut at = 0;
    while let Some(id) = mos.next_object(at).unwrap() {
        at = id.0;
        if mos.dnode(id).unwrap().bonus_type == ObjectType::BPOBJ_HEADER {
            lists.push(id);
        }
    }
    let free_list = circles::free_list(&sound);
    assert!(lists.contains(&free_list) && lists.len() > 3, "{lists:?}");
    circles::list(&mut sound, free_list);
    let tally = soon(sound.image, "the list of what is freed");
    let text = "a list of blocks that is part of itself";
    assert!(tally.errors.iter().any(|error| error.contains(text)), "{tally:#?}");
    for list in lists {
        let mut bench = bench();
        circles::list(&mut bench, list);
        soon(bench.image, &format!("list {list}"));
    }
}

#[test]
fn tables_in_circles() {
    let sound = bench();
    let (_, fat) = directories(&set(&sound));
    for attack in 0..3 {
        let mut bench = bench();
        circles::chains(&mut bench, &fat, attack);
        let tally = soon(bench.image, &format!("chains {attack}"));
        assert!(tally.good > 0);
    }
    for target in [0, 1, 2, 1 << 40, u64::MAX] {
        let mut bench = bench();
        circles::pointers(&mut bench, &fat, target);
        soon(bench.image, &format!("pointers to {target}"));
    }
}

/// Renames into and out of `fat`, looks through it, and removes from it.
fn stir(live: &Arc<LivePool>, tally: &mut Tally) {
    let Some(files) = tally.of(files_of(live, "tank")) else { return };
    let flags = RenameFlags::default();
    tally.of(files.create(SUPERUSER, ROOT, b"new", new_node(0o040_755)));
    let Some(fat) = tally.of(files.lookup(ROOT, b"fat")) else { return };
    let fat = fat.node;
    tally.of(files.rename(SUPERUSER, ROOT, b"new", fat, b"new", flags));
    tally.of(files.rename(SUPERUSER, ROOT, b"fat", fat, b"fat", flags));
    for (parent, name) in [(fat, name(7)), (fat, name(8)), (ROOT, "small25".to_owned())] {
        let name = name.as_bytes();
        if let Some(found) = tally.of(files.lookup(parent, name)) {
            tally.of(files.read_directory(found.node, 0, &mut |_| true));
            let again = RenameFlags { exchange: true, ..RenameFlags::default() };
            tally.of(files.rename(SUPERUSER, parent, name, found.node, b"deeper", flags));
            tally.of(files.rename(SUPERUSER, parent, name, ROOT, b"small26", again));
            tally.of(files.create(SUPERUSER, found.node, b"below", new_node(0o100_644)));
            tally.of(files.remove_directory(SUPERUSER, parent, name));
            tally.of(files.unlink(SUPERUSER, parent, name));
        }
    }
    tally.of(files.remove_directory(SUPERUSER, fat, b"new"));
    tally.of(files.sync_all());
    tally.of(live.sync());
}

fn name(number: u32) -> String {
    format!("a rather long name that makes the directory fat, number {number}")
}

#[test]
fn directories_in_circles() {
    let (root, fat) = directories(&set(&bench()));
    let (root_id, fat_id) = (root.id().0, fat.id().0);
    let parent = |bench: &mut Bench| {
        // Wherever `fat` names its parent.
        let (extent, position) = bench.bonus(fat.set(), fat_id);
        let bonus = bench.image.extents[extent].bytes(position, 192);
        for at in (0..192).step_by(8) {
            if bonus[at..at + 8] == root_id.to_le_bytes() {
                bench.word((extent, position + at), fat_id);
            }
        }
    };
    for attack in 0..4 {
        let mut bench = bench();
        if attack & 1 == 0 {
            point(&mut bench, &fat, &name(7), DIRECTORY | root_id);
            point(&mut bench, &fat, &name(8), DIRECTORY | fat_id);
            point(&mut bench, &root, "small25", DIRECTORY | root_id);
        }
        if attack >= 1 {
            parent(&mut bench);
        }
        let device = BASE.device(&bench.image);
        let tally = attack_soon(
            move || {
                let mut tally = work::on_pool(device.clone(), stir);
                let other = work::attack(device);
                tally.good += other.good;
                tally
            },
            &format!("directories {attack}"),
        );
        let text = "a directory cannot move";
        assert!(tally.errors.iter().any(|error| error.contains(text)), "{attack}: {tally:#?}");
    }
}

#[test]
fn intent_logs_in_circles() {
    for length in [1_u64, 2, 7] {
        let mut bench = bench();
        let offsets: Vec<u64> = (1..=length).map(|number| (number + 20) << 20).collect();
        let birth = cenote_format::Txg(bench.pool.uberblock().txg.0 + 1);
        let (header, blocks) = circles::log(&offsets, birth);
        let root = bench.extent(set(&bench).root_pointer());
        bench.image.patch(root, circles::LOG_HEADER, &header.encode().unwrap());
        let mut device = BASE.device(&bench.image);
        for (offset, block) in offsets.iter().zip(&blocks) {
            let at = (DATA_START + offset) as usize;
            device[at..at + block.len()].copy_from_slice(block);
        }
        let tally = attack_soon(move || work::attack(device), &format!("log of {length}"));
        assert!(tally.good > 100, "{length}: {tally:#?}");
    }
}
