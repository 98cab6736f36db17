//! Streams that are made here and received here.
//!
//! Invariant: what is received is what was sent, however the stream has to say it.

use cenote_engine::dataset::change::NewDataset;
use cenote_engine::object::NewObject;
use cenote_engine::receive::ReceiveOrder;
use cenote_engine::send::Options;
use cenote_format::objset::ObjsetKind;
use cenote_format::send_stream::{Features, Record};
use cenote_format::{ObjectId, ObjectType};

use super::mutated::{items, written};
use super::world::{World, nothing};
use super::{order, receive};

/// Objects made together.
const MANY: usize = 1000;
/// Of these, as many stay at either end.
const STAY: usize = 50;
const LARGE: u64 = 1 << 20;
const ZSTD: u8 = 16;

fn plain_dataset(world: &World, name: &'static str) {
    let parent = world.live.pool().catalog().root().unwrap().id;
    world
        .live
        .change(move |live, change| {
            let new = NewDataset { parent, name, ..NewDataset::default() };
            live.make_dataset(change, &new, ObjsetKind::Zfs, nothing).map(drop)
        })
        .unwrap();
}

/// Makes many objects in a dataset, and the snapshot `@a` of it.
pub fn fill(world: &World, dataset: &str) -> Vec<ObjectId> {
    let head = world.head(dataset);
    let tx = world.live.begin().unwrap();
    let objects = (0..MANY).map(|number| {
        let new = NewObject::new(ObjectType::PLAIN_FILE, 512);
        let object = head.set().create_object(&tx, &new).unwrap();
        object.write(&tx, 0, &[number as u8; 512]).unwrap();
        object.id()
    });
    let objects = objects.collect();
    drop(tx);
    world.snapshot(&format!("{dataset}@a"));
    objects
}

/// Frees all but the first and the last of them, and takes the snapshot `@b`.
pub fn thin_out(world: &World, dataset: &str, objects: &[ObjectId]) {
    let head = world.head(dataset);
    let tx = world.live.begin().unwrap();
    for object in &objects[STAY..MANY - STAY] {
        head.set().free_object(&tx, *object).unwrap();
    }
    drop(tx);
    world.snapshot(&format!("{dataset}@b"));
}

#[test]
fn a_long_run_of_freed_objects_is_freed() {
    let world = World::new();
    plain_dataset(&world, "many");
    let objects = fill(&world, "p/many");
    thin_out(&world, "p/many", &objects);
    for (from, to) in [(None, "a"), (Some("p/many@a"), "b")] {
        let stream = world.sent(from, &format!("p/many@{to}"), &Options::default());
        let order = ReceiveOrder { snapshot: to.into(), ..order("p/copy") };
        receive(&world, &stream, &order).unwrap();
    }
    for snapshot in ["a", "b"] {
        let (ours, theirs) = (format!("p/copy@{snapshot}"), format!("p/many@{snapshot}"));
        let count = |name: &str| world.content(name).len();
        assert_eq!(count(&ours), count(&theirs), "{snapshot}");
        assert!(world.content(&ours) == world.content(&theirs), "{snapshot}");
    }
    world.finish();
}

#[test]
fn large_blocks_that_lie_in_their_pointers_are_received_in_pieces() {
    let world = World::new();
    plain_dataset(&world, "large");
    let head = world.head("p/large");
    let tx = world.live.begin().unwrap();
    let new = NewObject { compression: ZSTD, ..NewObject::new(ObjectType::PLAIN_FILE, LARGE) };
    let object = head.set().create_object(&tx, &new).unwrap();
    object.write(&tx, 0, &vec![b'z'; 3 * LARGE as usize]).unwrap();
    drop(tx);
    world.snapshot("p/large@s");
    let packed = Options { embedded: true, compressed: true, ..Options::default() };
    let with_large = Options { large_blocks: true, ..packed };
    let longest = |stream: &[u8]| {
        let all = items(stream);
        let lengths = all.iter().filter_map(|item| match &item.record {
            Record::WriteEmbedded(write) => Some(write.length),
            _ => None,
        });
        lengths.max()
    };
    let whole = world.sent(None, "p/large@s", &with_large);
    assert_eq!(longest(&whole), Some(LARGE));
    let split = world.sent(None, "p/large@s", &packed);
    assert!(longest(&split).unwrap_or(0) <= 128 << 10, "{:?}", longest(&split));
    // OpenZFS says so of objects that it does not send with large blocks, and sends their pointers all the same.
    let mut foreign = items(&whole);
    for item in &mut foreign {
        match &mut item.record {
            Record::Begin(begin) => begin.features.remove(Features::LARGE_BLOCKS),
            Record::Object(object) => object.block_size = object.block_size.min(128 << 10),
            _ => {}
        }
    }
    for (stream, dataset) in [(whole, "p/a"), (split, "p/b"), (written(&foreign), "p/c")] {
        receive(&world, &stream, &order(dataset)).unwrap();
        let (ours, theirs) = (format!("{dataset}@s"), "p/large@s");
        assert!(world.content(&ours) == world.content(theirs), "{dataset}");
    }
    world.finish();
}
