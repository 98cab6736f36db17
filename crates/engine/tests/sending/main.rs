//! Streams of snapshots that OpenZFS made, compared with the streams OpenZFS sent of them.
//!
//! Invariant: a stream passes only if it is the same byte for byte.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may fail")]

#[path = "../golden_properties/fixtures.rs"]
mod fixtures;

use std::fs;
use std::path::{Path, PathBuf};

use cenote_engine::dataset::{DatasetName, Suffix};
use cenote_engine::pool::Pool;
use cenote_engine::send::{Options, Resume, Sending, Since};
use cenote_engine::stream::{Item, StreamReader, StreamWriter};
use cenote_format::send_stream::{Begin, Features, Record, TO_END};

/// A recorded stream: its pool, its file, what it goes on from, what it is of.
type Recorded = (&'static str, &'static str, Option<&'static str>, &'static str, Options);

const PLAIN: Options = Options {
    large_blocks: false,
    embedded: false,
    compressed: false,
    raw: false,
    resume: None,
    saved: None,
};

/// Those of the fixtures, and those that lie with larger ones (`CENOTE_POOLS`).
const RECORDED: &[Recorded] = &[
    ("snaps", "full-one", None, "g101/a@one", PLAIN),
    ("snaps", "vol", None, "g101/vol@v1", PLAIN),
    ("snaps", "incr-one-s5", Some("g101/a@one"), "g101/a@s5", PLAIN),
    ("snaps", "incr-bookmark", Some("g101/a#bm"), "g101/a@s5", PLAIN),
    ("crypt", "raw-gcm-s", None, "g101/gcm@s", Options { raw: true, ..PLAIN }),
    ("crypt", "raw-gcm-s-t", Some("g101/gcm@s"), "g101/gcm@t", Options { raw: true, ..PLAIN }),
];

/// The folder of a pool and the file of a stream of it, where they are.
fn find(pool: &str, stream: &str) -> Option<(PathBuf, PathBuf)> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/streams");
    let more = std::env::var_os("CENOTE_POOLS").map(|more| PathBuf::from(more).join(pool));
    let known = fixtures::fixtures().into_iter().filter(|folder| folder.ends_with(pool));
    let file = format!("{stream}.zst");
    known.chain(more).find_map(|folder| {
        let places = [own.join(&file), folder.join("streams").join(&file)];
        let stream = places.into_iter().find(|place| place.exists())?;
        folder.exists().then_some((folder, stream))
    })
}

fn send(pool: &Pool, from: Option<&str>, to: &str, options: &Options) -> Vec<u8> {
    let catalog = pool.catalog();
    let to = catalog.dataset_named(to).unwrap();
    let since = from.map(|from| {
        let name = DatasetName::parse(from).unwrap();
        match name.suffix() {
            Suffix::Bookmark(_) => Since::bookmark(&catalog, &to, &name).unwrap(),
            _ => Since::snapshot(&catalog, &to, &catalog.dataset(&name).unwrap()).unwrap(),
        }
    });
    let sending = Sending::new(pool, &catalog, &to, since, options).unwrap();
    let mut writer = StreamWriter::new(Vec::new());
    sending.write(&mut writer, &mut |_| Ok(())).unwrap();
    std::mem::take(writer.sink())
}

/// The first record that is not the same, in words.
fn difference(ours: &[u8], theirs: &[u8]) -> String {
    let (mut a, mut b) = (StreamReader::new(ours), StreamReader::new(theirs));
    for place in 0.. {
        let (a, b) = (a.record(), b.record());
        let told = |item: &Result<Option<_>, _>| format!("{item:.900?}");
        let short = |text: String| text.chars().take(900).collect::<String>();
        let (a, b) = (short(told(&a)), short(told(&b)));
        if a != b {
            return format!("record {place}:\nours   {a}\ntheirs {b}");
        }
        if a == "Ok(None)" {
            break;
        }
    }
    "only payloads differ".to_owned()
}

#[test]
fn streams_are_those_openzfs_sends() {
    let mut compared = 0;
    for (pool, file, from, to, options) in RECORDED {
        let Some((folder, stream)) = find(pool, file) else { continue };
        let recorded = zstd::decode_all(fs::File::open(stream).unwrap()).unwrap();
        let (_directory, pool) = fixtures::open(&folder);
        let ours = send(&pool, *from, to, options);
        assert!(ours == recorded, "{file}: {}", difference(&ours, &recorded));
        compared += 1;
    }
    assert!(compared >= 2, "the recorded streams are missing");
}

/// The records between the beginning and the end of a stream; the beginning apart.
fn records(stream: &[u8]) -> (Begin, Vec<Item>) {
    let mut reader = StreamReader::new(stream);
    let mut items = Vec::new();
    while let Some(item) = reader.record().unwrap() {
        items.push(item);
    }
    let Some(Item { record: Record::End(_), .. }) = items.pop() else { panic!("no end") };
    let Record::Begin(begin) = items.remove(0).record else { panic!("no beginning") };
    (begin, items)
}

#[test]
fn a_resumed_stream_is_the_rest_of_the_whole() {
    let (folder, _) = find("snaps", "full-one").unwrap();
    let (_directory, pool) = fixtures::open(&folder);
    for (from, to) in
        [(None, "g101/a@s5"), (Some("g101/a@one"), "g101/a@s5"), (None, "g101/vol@v1")]
    {
        let (_, whole) = records(&send(&pool, from, to, &PLAIN));
        let mut resumed = 0;
        for (place, item) in whole.iter().enumerate() {
            let (object, offset) = match &item.record {
                Record::Write(write) if place % 3 == 0 => (write.object, write.offset),
                Record::Object(object) if place % 5 == 0 => (object.object, 0),
                _ => continue,
            };
            let resume = Some(Resume { object, offset, bytes: 0 });
            let (begin, rest) = records(&send(&pool, from, to, &Options { resume, ..PLAIN }));
            assert!(begin.features.contains(Features::RESUMING) && begin.payload_len > 0);
            let is_dnode = |item: &&Item| match &item.record {
                Record::Object(own) => own.object == object,
                Record::Free(free) => free.object == object && free.length == TO_END,
                _ => false,
            };
            let dnode = whole.iter().filter(is_dnode);
            let is_left = |item: &&Item| match &item.record {
                Record::Write(write) => write.object != object || write.offset >= offset,
                _ => !is_dnode(item),
            };
            let expected: Vec<String> = dnode
                .chain(whole[place..].iter().filter(is_left))
                .map(|item| format!("{:?} {:?}", item.record, item.payload))
                .collect();
            let rest: Vec<String> =
                rest.iter().map(|item| format!("{:?} {:?}", item.record, item.payload)).collect();
            assert!(rest == expected, "{to} from {object} at {offset}");
            resumed += 1;
        }
        assert!(resumed > 3, "{to}");
    }
}

#[test]
fn what_is_not_earlier_or_cannot_be_read_is_refused() {
    let (folder, _) = find("snaps", "full-one").unwrap();
    let (_directory, pool) = fixtures::open(&folder);
    let catalog = pool.catalog();
    let dataset = |name: &str| catalog.dataset_named(name).unwrap();
    let (one, two, other) = (dataset("g101/a@one"), dataset("g101/a@two"), dataset("g101@two"));
    for from in [&two, &other, &one] {
        let refused = Since::snapshot(&catalog, &one, from).unwrap_err();
        assert_eq!(refused.kind(), cenote_engine::ErrorKind::InvalidArgument);
    }
    let clone = dataset("g101/cl2@c1");
    assert!(Since::snapshot(&catalog, &clone, &one).unwrap().is_origin);
    assert!(Since::snapshot(&catalog, &clone, &two).is_err());

    // Who takes no more ends it.
    struct Full(usize);
    impl std::io::Write for Full {
        fn write(&mut self, some: &[u8]) -> std::io::Result<usize> {
            self.0 = self.0.checked_sub(some.len()).ok_or(std::io::ErrorKind::BrokenPipe)?;
            Ok(some.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let sending = Sending::new(&pool, &catalog, &one, None, &PLAIN).unwrap();
    let written = sending.write(&mut StreamWriter::new(Full(100_000)), &mut |_| Ok(()));
    assert_eq!(written.unwrap_err().kind(), cenote_engine::ErrorKind::Interrupted);
}
