//! Streams that OpenZFS made, received into a pool on a device: what comes of them, what is left of those
//! that are cut off or wrong, checked by our own census and, where it is installed, by `zdb`.
//!
//! Invariant: a receive that fails leaves every dataset as it was.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod hostile;
mod mutated;
mod ours;
mod resumed;
mod sealed;
mod world;

use std::path::Path;

use cenote_engine::ErrorKind;
use cenote_engine::dataset::change::NewDataset;
use cenote_engine::receive::{
    Landing, ReceiveOrder, StreamFacts, destroy_interrupted, next_record,
};
use cenote_engine::stream::StreamReader;
use cenote_engine::{Result, receive};
use cenote_format::objset::ObjsetKind;
use cenote_format::send_stream::{HEADER, HeaderKind, Record};

use world::{World, nothing};

/// A recorded stream of `tests/fixtures/streams`.
fn recorded(name: &str) -> Vec<u8> {
    let streams = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/streams");
    let packed = std::fs::File::open(streams.join(name)).unwrap();
    zstd::decode_all(packed).unwrap()
}

fn order(dataset: &str) -> ReceiveOrder {
    ReceiveOrder { dataset: dataset.into(), snapshot: "s".into(), ..ReceiveOrder::default() }
}

/// Receives every snapshot of `stream`, the first of a package into a new dataset.
fn receive(world: &World, stream: &[u8], order: &ReceiveOrder) -> Result<()> {
    let mut reader = StreamReader::new(stream);
    let item = next_record(&mut reader)?;
    let Record::Begin(begin) = item.record else { panic!("no beginning") };
    let facts = StreamFacts::of(&begin, &item.payload)?;
    let mut landing = Landing::begin(&world.live, facts, order.clone())?;
    landing.apply_all(&mut reader, |_| Ok(()))?;
    landing.end().map(drop)
}

#[test]
fn full_streams_become_datasets() {
    let world = World::new();
    for (name, dataset) in [("full-one.zst", "p/one"), ("vol.zst", "p/vol")] {
        let stream = recorded(name);
        receive(&world, &stream, &order(dataset)).unwrap();
        world.census();
        let again = receive(&world, &stream, &order(dataset)).unwrap_err();
        assert_eq!(again.kind(), ErrorKind::Exists);
        let catalog = world.live.pool().catalog();
        let snapshot = catalog.dataset_named(&format!("{dataset}@s")).unwrap();
        let head = catalog.dataset_named(dataset).unwrap();
        assert!(!head.phys.is_inconsistent() && !snapshot.phys.is_inconsistent());
        let mut reader = StreamReader::new(stream.as_slice());
        let Record::Begin(begin) = next_record(&mut reader).unwrap().record else { panic!() };
        assert_eq!(begin.kind, HeaderKind::Substream);
        assert_eq!(snapshot.phys.guid, begin.to_guid);
        assert_eq!(snapshot.phys.creation_time, begin.creation_time);
    }
    world.finish();
}

#[test]
fn a_stream_that_is_cut_off_or_damaged_leaves_nothing() {
    let world = World::new();
    let stream = recorded("full-one.zst");
    let all = stream.len();
    for cut in [HEADER, HEADER + 100, all / 3, all / 2, all - 1, all - HEADER] {
        let error = receive(&world, &stream[..cut], &order("p/one")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Interrupted, "{cut}: {error}");
        assert!(world.live.pool().catalog().dataset_named("p/one").is_err());
    }
    for at in [all / 4, all / 2, all - 400, all - 20] {
        let mut damaged = stream.clone();
        damaged[at] ^= 0x10;
        receive(&world, &damaged, &order("p/one")).unwrap_err();
        assert!(world.live.pool().catalog().dataset_named("p/one").is_err(), "{at}");
    }
    world.census();
    receive(&world, &stream, &order("p/one")).unwrap();
    world.finish();
}

#[test]
fn what_a_dead_process_left_goes_at_the_next_opening() {
    let world = World::new();
    let stream = recorded("full-one.zst");
    let mut reader = StreamReader::new(&stream[..]);
    let item = next_record(&mut reader).unwrap();
    let Record::Begin(begin) = item.record else { panic!() };
    let facts = StreamFacts::of(&begin, &item.payload).unwrap();
    let mut landing = Landing::begin(&world.live, facts, order("p/one")).unwrap();
    let mut left = 30;
    let cut = landing.apply_all(&mut reader, |_| {
        left -= 1;
        if left == 0 { Err(cenote_engine::Error::invalid("enough")) } else { Ok(()) }
    });
    assert!(cut.is_err());
    world.live.sync().unwrap();
    // As if the process had died: nobody gives it up.
    std::mem::forget(landing);
    let head = world.live.pool().catalog().dataset_named("p/one").unwrap();
    assert!(head.phys.is_inconsistent());
    // As long as it is received, nobody closes it.
    assert_eq!(world.live.close_dataset(head.id).unwrap_err().kind(), ErrorKind::Busy);
    world.live.release_received(head.id);
    world.live.close_dataset(head.id).unwrap();
    assert_eq!(destroy_interrupted(&world.live).unwrap(), 1);
    assert_eq!(destroy_interrupted(&world.live).unwrap(), 0);
    assert!(world.live.pool().catalog().dataset_named("p/one").is_err());
    world.finish();
}

#[test]
fn a_full_stream_takes_a_place_only_if_it_may() {
    let world = World::new();
    let parent = world.live.pool().catalog().root().unwrap().id;
    world
        .live
        .change(move |live, change| {
            let new = NewDataset { parent, name: "one", ..NewDataset::default() };
            live.make_dataset(change, &new, ObjsetKind::Zfs, nothing).map(drop)
        })
        .unwrap();
    let stream = recorded("full-one.zst");
    let kept = receive(&world, &stream, &order("p/one")).unwrap_err();
    assert_eq!(kept.kind(), ErrorKind::Exists);
    let forced = ReceiveOrder { force: true, ..order("p/one") };
    receive(&world, &stream[..stream.len() / 2], &forced).unwrap_err();
    world.census();
    assert!(world.live.pool().catalog().dataset_named("p/one@s").is_err());
    receive(&world, &stream, &forced).unwrap();
    assert!(world.live.pool().catalog().dataset_named("p/one@s").is_ok());
    let skipped = receive::skip(&mut StreamReader::new(stream.as_slice()), |_| Ok(()));
    skipped.unwrap();
    world.finish();
}
