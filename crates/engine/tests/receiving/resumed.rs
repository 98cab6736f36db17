//! Receives that are cut off and go on where they were.
//!
//! Invariant: however often a stream is cut off, what comes of it is what comes of the whole one.

use cenote_engine::ErrorKind;
use cenote_engine::dataset::resume_token;
use cenote_engine::receive::{ReceiveOrder, give_up_partial};
use cenote_engine::stream::{StreamReader, StreamWriter};
use cenote_format::NvList;
use cenote_format::bytes::ByteOrder;
use cenote_format::nvlist::{Encoding, Value};
use cenote_format::send_stream::{Features, Record};

use super::sealed::{encrypted, load_key};
use super::world::World;
use super::{order, receive, recorded};

/// The stream that goes on from object and offset, as a sender makes it.
fn rest(stream: &[u8], object: u64, offset: u64) -> Vec<u8> {
    let (mut reader, mut writer) = (StreamReader::new(stream), StreamWriter::new(Vec::new()));
    while let Some(item) = reader.record().unwrap() {
        let is_due = match &item.record {
            Record::Begin(begin) => {
                let mut begin = begin.clone();
                begin.features |= Features::RESUMING;
                let mut list = NvList::new();
                list.push("resume_object", Value::Uint64(object));
                list.push("resume_offset", Value::Uint64(offset));
                let list = list.encode(Encoding::Native(ByteOrder::Little)).unwrap();
                begin.payload_len = list.len() as u32;
                writer.begin(&begin, &list).unwrap();
                false
            }
            Record::End(end) => {
                writer.end(end.to_guid).unwrap();
                false
            }
            Record::Object(one) => one.object >= object,
            Record::Write(write) => (write.object, write.offset) >= (object, offset),
            Record::WriteEmbedded(write) => (write.object, write.offset) >= (object, offset),
            Record::Free(free) => (free.object, free.offset) >= (object, offset),
            Record::Spill(spill) => spill.object >= object,
            Record::FreeObjects(range) => range.first >= object,
            _ => panic!("{:?}", item.record),
        };
        if is_due {
            writer.write(&item.record, &item.payload).unwrap();
        }
    }
    writer.sink().clone()
}

fn token(world: &World, dataset: &str) -> Option<(u64, u64)> {
    let catalog = world.live.pool().catalog();
    let head = catalog.dataset_named(dataset).ok()?;
    let token = catalog.resume_token(&head).unwrap()?;
    let list = resume_token::decode(&token).unwrap();
    Some((list.u64("object").unwrap(), list.u64("offset").unwrap()))
}

#[test]
fn a_stream_that_is_cut_off_goes_on() {
    let world = World::new();
    let stream = recorded("full-one.zst");
    let order = ReceiveOrder { resumable: true, ..order("p/one") };
    receive(&world, &stream[..stream.len() / 4], &order).unwrap_err();
    world.census();
    let (object, offset) = token(&world, "p/one").unwrap();
    assert!((object, offset) > (1, 0));
    // Not what goes on elsewhere, nor the whole.
    let other = receive(&world, &rest(&stream, object + 1, 0), &order).unwrap_err();
    assert_eq!(other.kind(), ErrorKind::InvalidArgument);
    assert_eq!(receive(&world, &stream, &order).unwrap_err().kind(), ErrorKind::Busy);
    // A part more, and then all.
    let next = rest(&stream, object, offset);
    receive(&world, &next[..next.len() / 2], &order).unwrap_err();
    let later = token(&world, "p/one").unwrap();
    assert!(later > (object, offset));
    receive(&world, &rest(&stream, later.0, later.1), &order).unwrap();
    assert_eq!(token(&world, "p/one"), None);
    let whole = ReceiveOrder { dataset: "p/whole".into(), ..order };
    receive(&world, &stream, &whole).unwrap();
    assert_eq!(world.content("p/one@s"), world.content("p/whole@s"));
    world.finish();
}

#[test]
fn what_was_cut_off_can_be_given_up() {
    let world = World::new();
    let stream = recorded("full-one.zst");
    let order = ReceiveOrder { resumable: true, ..order("p/one") };
    receive(&world, &stream[..stream.len() / 2], &order).unwrap_err();
    assert_eq!(cenote_engine::receive::destroy_interrupted(&world.live).unwrap(), 0);
    give_up_partial(&world.live, "p/one").unwrap();
    assert_eq!(token(&world, "p/one"), None);
    assert!(world.live.pool().catalog().dataset_named("p/one").is_err());
    world.finish();
}

#[test]
fn what_was_received_stays_if_its_dataset_cannot_be_opened_to_go_on() {
    let world = World::new();
    encrypted(&world);
    let stream = recorded("full-one.zst");
    let once = order("p/secret/one");
    let resumable = ReceiveOrder { resumable: true, ..once.clone() };
    receive(&world, &stream[..stream.len() / 2], &resumable).unwrap_err();
    let (object, offset) = token(&world, "p/secret/one").unwrap();
    let next = rest(&stream, object, offset);
    let pool = world.live.pool();
    pool.keys().unload(&pool.catalog().directory("p/secret").unwrap()).unwrap();
    let refused = receive(&world, &next, &once).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::KeyNotLoaded, "{refused}");
    assert_eq!(token(&world, "p/secret/one"), Some((object, offset)));
    load_key(&world, "p/secret");
    receive(&world, &next, &once).unwrap();
    receive(&world, &stream, &order("p/whole")).unwrap();
    assert!(world.opened("p/secret/one@s") == world.content("p/whole@s"));
    world.finish();
}
