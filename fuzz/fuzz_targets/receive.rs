//! A stream received into a pool in memory. The input decides which records of a stream that OpenZFS made are
//! changed, and how (`receiving/mutated.rs`); sums are made good. Errors are welcome.
#![no_main]

#[allow(dead_code, reason = "others use the rest")]
#[path = "../../crates/engine/tests/receiving/mutated.rs"]
mod mutated;
#[allow(dead_code, reason = "others use the rest")]
#[path = "../../crates/engine/tests/receiving/world.rs"]
mod world;

use std::sync::{LazyLock, Mutex};

use cenote_engine::receive::{Landing, ReceiveOrder, StreamFacts, next_record};
use cenote_engine::stream::{Item, StreamReader};
use cenote_format::send_stream::Record;
use world::World;

static BASE: LazyLock<Vec<Item>> = LazyLock::new(|| {
    let packed = include_bytes!("../../tests/fixtures/streams/full-one.zst");
    mutated::items(&zstd::decode_all(&packed[..]).unwrap())
});

static WORLD: LazyLock<Mutex<World>> = LazyLock::new(|| Mutex::new(World::in_memory()));

fn receive(world: &World, stream: &[u8]) -> cenote_engine::Result<()> {
    let order = ReceiveOrder {
        dataset: "p/new".into(),
        snapshot: "s".into(),
        ..ReceiveOrder::default()
    };
    let mut reader = StreamReader::new(stream);
    let item = next_record(&mut reader)?;
    let Record::Begin(begin) = item.record else { return Ok(()) };
    let facts = StreamFacts::of(&begin, &item.payload)?;
    let mut landing = Landing::begin(&world.live, facts, order)?;
    landing.apply_all(&mut reader, |_| Ok(()))?;
    landing.end().map(drop)
}

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let mut words = input.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    });
    let mut items = BASE.clone();
    mutated::mutate(&mut items, &mut || words.next().unwrap_or(0));
    let world = WORLD.lock().unwrap();
    let stream = mutated::written(&items);
    drop(cenote_engine::error::take_bug());
    let _ = receive(&world, &stream);
    assert!(world.live.gate().failure().is_none());
    assert!(cenote_engine::error::take_bug().is_none());
    world.clear("p/new", true);
    assert!(world.live.pool().catalog().dataset_named("p/new").is_err());
});
