//! Raw streams: sent of encrypted datasets here, received without their keys, and opened with them.
//!
//! Invariant: what is opened is what was sent; whatever a raw stream says, the pool goes on.

use bytes::Bytes;
use cenote_codec::cipher::Suite;
use cenote_engine::ErrorKind;
use cenote_engine::dataset::change::{NewDataset, PropertyInput};
use cenote_engine::error::take_bug;
use cenote_engine::keys::Wrapping;
use cenote_engine::object::NewObject;
use cenote_engine::pool::change::Encryption;
use cenote_engine::receive::{Landing, ReceiveOrder, StreamFacts, next_record};
use cenote_engine::send::Options;
use cenote_engine::stream::StreamReader;
use cenote_format::crypto_key::KeyFormat;
use cenote_format::objset::ObjsetKind;
use cenote_format::send_stream::Record;
use cenote_format::{ObjectId, ObjectType};

use super::hostile::{alone_with_mistakes, generator};
use super::mutated::{items, mutate, written};
use super::ours::{fill, thin_out};
use super::receive;
use super::world::{World, nothing};

const KEY: [u8; 32] = [7; 32];
const RAW: Options = Options {
    large_blocks: true,
    embedded: false,
    compressed: true,
    raw: true,
    resume: None,
    saved: None,
};
/// Streams of every run.
const FEW: u64 = 150;

fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut next = generator(seed);
    (0..len).map(|_| next() as u8).collect()
}

/// An encrypted dataset, `p/secret`.
pub fn encrypted(world: &World) {
    let parent = world.live.pool().catalog().root().unwrap().id;
    world
        .live
        .change(move |live, change| {
            let properties = [PropertyInput::text("keylocation", "prompt")];
            let name = "secret";
            let new = NewDataset { parent, name, properties: &properties, ..NewDataset::default() };
            let wrapping = Some(Wrapping::new(KeyFormat::Raw, &KEY, None)?);
            let encryption = Encryption::On { suite: Some(Suite::Aes256Gcm), wrapping };
            live.make_encrypted_dataset(change, &new, &encryption, ObjsetKind::Zfs, nothing)
                .map(drop)
        })
        .unwrap();
}

/// Loads the key of what was received raw, or of [`encrypted`].
pub fn load_key(world: &World, dataset: &str) {
    let pool = world.live.pool();
    let root = pool.catalog().directory(dataset).unwrap();
    pool.keys().load(&pool.catalog(), &root, &KEY).unwrap();
}

/// An encrypted dataset with objects of all shapes, and two snapshots of it.
fn populate(world: &World) {
    encrypted(world);
    let set = world.head("p/secret");
    let set = set.set();
    let tx = world.live.begin().unwrap();
    for number in 0..40_u64 {
        let bonus = noise(100, number);
        let slots = if number % 7 == 0 { 2 } else { 1 };
        let new = NewObject { slots, ..NewObject::new(ObjectType::PLAIN_FILE, 4096) }
            .with_bonus(ObjectType::SYSTEM_ATTRIBUTES, bonus);
        let object = set.create_object(&tx, &new).unwrap();
        object.write(&tx, number * 4096, &noise(number as usize * 700, number)).unwrap();
        if number % 5 == 0 {
            object.set_spill(&tx, Some(Bytes::from(noise(512, number)))).unwrap();
        }
    }
    let big = set.create_object(&tx, &NewObject::new(ObjectType::PLAIN_FILE, 512)).unwrap();
    big.write(&tx, 0, &vec![b'x'; 900_000]).unwrap();
    drop(tx);
    world.snapshot("p/secret@a");
    let tx = world.live.begin().unwrap();
    big.write(&tx, 300_000, &noise(20_000, 9)).unwrap();
    big.free_range(&tx, 800_000, u64::MAX).unwrap();
    set.free_object(&tx, ObjectId(10)).unwrap();
    let new = NewObject::new(ObjectType::PLAIN_FILE, 8192);
    set.create_object(&tx, &new).unwrap().write(&tx, 0, &noise(30_000, 3)).unwrap();
    drop(tx);
    world.snapshot("p/secret@b");
}

fn sent(world: &World, from: Option<&str>, to: &str) -> Vec<u8> {
    world.sent(from, to, &RAW)
}

fn order(snapshot: &str) -> ReceiveOrder {
    let (dataset, snapshot) = snapshot.split_once('@').unwrap();
    ReceiveOrder { dataset: dataset.into(), snapshot: snapshot.into(), ..ReceiveOrder::default() }
}

#[test]
fn raw_streams_are_stored_as_they_come() {
    let world = World::new();
    populate(&world);
    let (full, more) =
        (sent(&world, None, "p/secret@a"), sent(&world, Some("p/secret@a"), "p/secret@b"));
    receive(&world, &full[..full.len() / 2], &order("p/raw@a")).unwrap_err();
    assert!(world.live.pool().catalog().dataset_named("p/raw").is_err());
    receive(&world, &full, &order("p/raw@a")).unwrap();
    receive(&world, &more, &order("p/raw@b")).unwrap();
    load_key(&world, "p/raw");
    for snapshot in ["a", "b"] {
        let (ours, theirs) = (format!("p/raw@{snapshot}"), format!("p/secret@{snapshot}"));
        assert!(world.opened(&ours) == world.opened(&theirs), "{snapshot}");
    }
    assert_eq!(sent(&world, Some("p/raw@a"), "p/raw@b").len(), more.len());
    world.finish();
}

#[test]
fn a_long_run_of_freed_objects_is_freed_in_what_came_raw() {
    let world = World::new();
    encrypted(&world);
    let objects = fill(&world, "p/secret");
    let full = sent(&world, None, "p/secret@a");
    thin_out(&world, "p/secret", &objects);
    let more = sent(&world, Some("p/secret@a"), "p/secret@b");
    receive(&world, &full, &order("p/raw@a")).unwrap();
    receive(&world, &more, &order("p/raw@b")).unwrap();
    load_key(&world, "p/raw");
    assert!(world.opened("p/raw@b") == world.opened("p/secret@b"));
    assert!(world.opened("p/raw") == world.opened("p/secret@b"));
    world.finish();
}

#[test]
fn sealed_blocks_go_from_memory_when_they_are_on_the_disks() {
    let world = World::in_memory();
    populate(&world);
    let full = sent(&world, None, "p/secret@a");
    let mut reader = StreamReader::new(full.as_slice());
    let item = next_record(&mut reader).unwrap();
    let Record::Begin(begin) = item.record else { panic!("no beginning") };
    let facts = StreamFacts::of(&begin, &item.payload).unwrap();
    let mut landing = Landing::begin(&world.live, facts, order("p/raw@a")).unwrap();
    let mut held = Vec::new();
    for _ in 0..2 {
        // Up to a place where much was read.
        let enough = reader.bytes() + full.len() as u64 / 3;
        let cut = landing.apply_all(&mut reader, |bytes| match bytes < enough {
            true => Ok(()),
            false => Err(cenote_engine::Error::invalid("enough")),
        });
        cut.unwrap_err();
        held.push(landing.sealed_bytes());
        world.live.sync().unwrap();
    }
    // A third each, not two of them after the second.
    let [first, second] = held.as_slice() else { panic!("two parts") };
    assert!(*first > 100_000 && *second < first * 3 / 2, "{held:?}");
    landing.apply_all(&mut reader, |_| Ok(())).unwrap();
    landing.end().unwrap();
    world.census();
}

#[test]
fn a_sealed_object_whose_bonus_does_not_fit_is_refused() {
    let world = World::in_memory();
    populate(&world);
    // Without the area it would be in, and larger than that.
    for has_area in [false, true] {
        let mut stream = items(&sent(&world, None, "p/secret@a"));
        let object = stream.iter_mut().find_map(|item| match &mut item.record {
            Record::Object(object) if object.bonus_len != 0 => Some((object, &mut item.payload)),
            _ => None,
        });
        let (object, payload) = object.unwrap();
        object.bonus_len = 16_000;
        if !has_area {
            object.raw_bonus_len = 0;
            payload.resize(16_000, 0);
        }
        let refused = receive(&world, &written(&stream), &order("p/raw@a")).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
        for _ in 0..20 {
            world.live.sync().unwrap();
        }
        world.census();
    }
}

#[test]
fn hostile_raw_streams_change_nothing() {
    let world = World::in_memory();
    populate(&world);
    let (full, more) =
        (sent(&world, None, "p/secret@a"), sent(&world, Some("p/secret@a"), "p/secret@b"));
    receive(&world, &full, &order("p/base@one")).unwrap();
    let (full, more) = (items(&full), items(&more));
    let (mut landed, mut refused) = (0, 0);
    for seed in 0..FEW {
        let mut next = generator(seed + 1_000_000);
        let is_full = next().is_multiple_of(2);
        let mut changed = if is_full { full.clone() } else { more.clone() };
        mutate(&mut changed, &mut next);
        let _turn = alone_with_mistakes();
        let stream = written(&changed);
        // What cannot be written is told as a mistake of ours.
        drop(take_bug());
        let dataset = if is_full { "p/new" } else { "p/base" };
        match receive(&world, &stream, &order(&format!("{dataset}@s"))) {
            Ok(()) => landed += 1,
            Err(_) => refused += 1,
        }
        assert_eq!(world.live.gate().failure().map(|e| e.to_string()), None, "seed {seed}");
        assert_eq!(take_bug(), None, "seed {seed}");
        world.clear(dataset, is_full);
    }
    eprintln!("{landed} landed, {refused} were refused");
    world.census();
}

/// The features that datasets carry, and how many datasets of the pool carry each.
fn features(world: &World, dataset: &str) -> Vec<&'static str> {
    let catalog = world.live.pool().catalog();
    let found = catalog.dataset_named(dataset).unwrap();
    catalog.dataset_features(&found).unwrap()
}

#[test]
fn what_comes_sealed_activates_what_its_blocks_need() {
    const ZSTD: &str = "org.freebsd:zstd_compress";
    let world = World::new();
    populate(&world);
    let secret = world.live.pool().catalog().dataset_named("p/secret").unwrap().id;
    world
        .live
        .change(move |_, change| {
            change.set_property(secret, &PropertyInput::number("compression", 16))
        })
        .unwrap();
    world.live.close_dataset(secret).unwrap();
    let set = world.head("p/secret");
    let tx = world.live.begin().unwrap();
    let new = NewObject::new(ObjectType::PLAIN_FILE, 128 << 10);
    set.set().create_object(&tx, &new).unwrap().write(&tx, 0, &vec![b'z'; 900_000]).unwrap();
    drop((tx, set));
    world.snapshot("p/secret@z");
    assert!(features(&world, "p/secret@z").contains(&ZSTD));
    let (plain, full) = (sent(&world, None, "p/secret@a"), sent(&world, None, "p/secret@z"));
    receive(&world, &plain, &order("p/plain@a")).unwrap();
    receive(&world, &full, &order("p/raw@z")).unwrap();
    assert!(!features(&world, "p/plain").contains(&ZSTD));
    for dataset in ["p/raw", "p/raw@z"] {
        assert!(features(&world, dataset).contains(&ZSTD), "{dataset}");
    }
    // What is sent on says so, too.
    assert_eq!(sent(&world, None, "p/raw@z").len(), full.len());
    world.finish();
}

#[test]
fn features_that_a_stream_tells_of_are_active_afterwards() {
    const TOLD: [&str; 3] =
        ["org.zfsonlinux:longname", "com.klarasystems:large_microzap", "org.open-zfs:large_blocks"];
    let world = World::new();
    for feature in ["longname", "large_microzap"] {
        world.live.change(move |_, change| change.enable_feature(feature)).unwrap();
    }
    let parent = world.live.pool().catalog().root().unwrap().id;
    world
        .live
        .change(move |live, change| {
            let new = NewDataset { parent, name: "one", ..NewDataset::default() };
            let made = live.make_dataset(change, &new, ObjsetKind::Zfs, nothing)?;
            change.activate_feature(made.dataset, "longname")
        })
        .unwrap();
    let set = world.head("p/one");
    let tx = world.live.begin().unwrap();
    let new = NewObject::new(ObjectType::DIRECTORY, 256 << 10);
    set.set().create_object(&tx, &new).unwrap().write(&tx, 0, &noise(256 << 10, 3)).unwrap();
    drop((tx, set));
    world.snapshot("p/one@s");
    let options = Options { compressed: false, raw: false, ..RAW };
    let stream = world.sent(None, "p/one@s", &options);
    receive(&world, &stream, &order("p/two@s")).unwrap();
    for dataset in ["p/one", "p/two", "p/two@s"] {
        for feature in TOLD {
            assert!(features(&world, dataset).contains(&feature), "{dataset}: {feature}");
        }
    }
    world.census();
    world.live.export().unwrap();
}
