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
use super::{order, receive, recorded};

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

/// Whoever sends it keeps nobody from looking at the pool, and from destroying it.
#[test]
fn what_is_no_filesystem_inside_is_shown() {
    let world = World::new();
    let mut foreign = items(&recorded("full-one.zst"));
    let mut spoiled = 0;
    for item in &mut foreign {
        if matches!(&item.record, Record::Write(write) if write.object == 1) {
            item.payload.fill(0);
            spoiled += 1;
        }
    }
    assert_eq!(spoiled, 1);
    receive(&world, &written(&foreign), &order("p/foreign")).unwrap();
    world.survey();
    plain_dataset(&world, "other");
    let both = ["p/foreign@s".to_owned(), "p/foreign".to_owned()];
    world.live.orders().destroy(&both, false).unwrap();
    world.survey();
    world.finish();
}

/// A volume's blocks would be taken for a filesystem's objects.
#[test]
fn volumes_and_filesystems_do_not_start_from_each_other() {
    let world = World::new();
    plain_dataset(&world, "files");
    world.snapshot("p/files@s");
    let files = world.sent(None, "p/files@s", &Options::default());
    let volume = recorded("vol.zst");
    receive(&world, &volume, &order("p/volume")).unwrap();
    let from =
        |origin: &str, name: &str| ReceiveOrder { origin: Some(origin.to_owned()), ..order(name) };
    for (stream, order) in
        [(&volume, from("p/files@s", "p/first")), (&files, from("p/volume@s", "p/second"))]
    {
        let error = receive(&world, stream, &order).unwrap_err();
        assert!(error.to_string().contains("does not start from a"), "{error}");
    }
    world.survey();
    world.finish();
}

/// Trees are planned some thousands at a time, of all sets together.
#[test]
fn a_group_of_many_objects_of_two_sets_is_whole() {
    let world = World::new();
    plain_dataset(&world, "first");
    plain_dataset(&world, "second");
    world.live.sync().unwrap();
    let heads = ["p/first", "p/second"].map(|name| world.head(name));
    let tx = world.live.begin().unwrap();
    let mut made = Vec::new();
    for number in 0..2400_usize {
        for head in &heads {
            let new = NewObject::new(ObjectType::PLAIN_FILE, 512);
            let object = head.set().create_object(&tx, &new).unwrap();
            object.write(&tx, 0, &number.to_le_bytes().repeat(64)).unwrap();
            made.push(object);
        }
    }
    drop(tx);
    let pair = ["p/first@a".to_owned(), "p/second@a".to_owned()];
    world.live.sync().unwrap();
    world.live.orders().snapshot(&pair, Vec::new()).unwrap();
    let tx = world.live.begin().unwrap();
    for (number, object) in made.iter().enumerate() {
        match number % 3 {
            0 => object.write(&tx, 0, &number.to_be_bytes().repeat(64)).unwrap(),
            1 => object.set().free_object(&tx, object.id()).unwrap(),
            _ => object.write(&tx, 512, &[1; 512]).unwrap(),
        }
    }
    drop((tx, made, heads));
    for name in ["first", "second"] {
        world.snapshot(&format!("p/{name}@b"));
        for (from, to) in [(None, "a"), (Some(format!("p/{name}@a")), "b")] {
            let sent = format!("p/{name}@{to}");
            let stream = world.sent(from.as_deref(), &sent, &Options::default());
            let copy = format!("p/copy-of-{name}");
            let order = ReceiveOrder { snapshot: to.into(), ..order(&copy) };
            receive(&world, &stream, &order).unwrap();
            let content = world.content(&sent);
            assert_eq!(content.len(), if to == "a" { 2401 } else { 1601 });
            assert!(content == world.content(&format!("{copy}@{to}")), "{sent}");
        }
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
