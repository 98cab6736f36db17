//! Intent logs on real devices: a crash, the claim, the replay.
//!
//! Invariant: what a commit answered for is there after the pool is opened again, and `zdb` finds
//! nothing leaked before, between and after.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use bytes::Bytes;
use cenote_engine::Result;
use cenote_engine::dataset::change::{NewDataset, PropertyInput};
use cenote_engine::intent::{BlockBuilder, IntentLog, LogReader, Met, Replay, walk};
use cenote_engine::object::{NewObject, ObjectSet};
use cenote_engine::pool::OpenOptions;
use cenote_engine::pool::assemble::assemble;
use cenote_engine::pool::discover::{FileOpener, Opener, ScanOptions, scan};
use cenote_engine::pool::group::{LiveDataset, LivePool, WriteOptions};
use cenote_engine::vdev::AllocationClass;
use cenote_format::config::VdevKind;
use cenote_format::objset::ObjsetKind;
use cenote_format::zil::{LogBlock, Payload, REPLAY_NEEDED, Record};
use cenote_format::{ObjectId, ObjectType};

use super::{census, layout, make, noise, nothing, top, zdb};

/// Opens the one pool on the files of `directory`.
pub(super) fn try_reopen(directory: &Path, write: WriteOptions) -> Result<Arc<LivePool>> {
    let opener: Arc<dyn Opener> = Arc::new(FileOpener { mode: cenote_device::Mode::ReadWrite });
    let pools = assemble(&scan(&opener, &ScanOptions::new(vec![directory.to_owned()])));
    assert_eq!(pools.len(), 1);
    LivePool::open(&pools[0], &OpenOptions::default(), write)
}

pub(super) fn reopen(directory: &Path) -> Arc<LivePool> {
    try_reopen(directory, WriteOptions::default()).unwrap()
}

pub(super) fn head(live: &LivePool) -> Arc<LiveDataset> {
    let catalog = live.pool().catalog();
    live.open_dataset(&catalog.head(&catalog.root().unwrap()).unwrap()).unwrap()
}

/// Writes data into objects as a file system would, and remembers names.
pub(super) struct Target<'a> {
    pub(super) live: &'a LivePool,
    pub(super) set: &'a ObjectSet,
    pub(super) log: &'a IntentLog,
    pub(super) names: parking_lot::Mutex<Vec<Vec<u8>>>,
}

impl Replay for Target<'_> {
    fn exists(&self, object: u64) -> cenote_engine::Result<bool> {
        Ok(self.set.object(ObjectId(object)).is_ok())
    }
    fn apply(&self, record: &Record, block: Option<&Bytes>) -> cenote_engine::Result<()> {
        let tx = self.live.begin()?;
        match &record.payload {
            Payload::Write { object, offset, data: Some(data), .. } => {
                self.set.object(ObjectId(*object))?.write(&tx, *offset, data)?;
            }
            Payload::Write { object, offset, data: None, .. } => {
                // The block behind a record is a whole one of the object.
                let block = block.unwrap();
                let start = offset - offset % block.len() as u64;
                self.set.object(ObjectId(*object))?.write(&tx, start, block)?;
            }
            Payload::Remove { name, .. } => self.names.lock().push(name.clone()),
            other => panic!("{other:?}"),
        }
        self.log.note(&tx, 1, record.payload.clone()).unwrap();
        Ok(())
    }
}

#[test]
fn what_was_committed_survives_a_crash() {
    for kind in ["stripe", "mirror", "raidz1", "log"] {
        let directory = tempfile::tempdir().unwrap();
        let tops = match kind {
            "log" => {
                let mut leaves = super::devices(directory.path(), 2).into_iter();
                let mut one = || vec![leaves.next().unwrap()];
                vec![
                    (top(VdevKind::File, None, one()), AllocationClass::Normal),
                    (top(VdevKind::File, None, one()), AllocationClass::Log),
                ]
            }
            kind => layout(kind, directory.path()),
        };
        let live = make(kind, tops, nothing);
        let (mut model, mut names) = (vec![0; 4 << 20], Vec::new());
        let id = {
            let dataset = head(&live);
            let (set, log) = (dataset.set(), dataset.log().unwrap());
            let file = {
                let tx = live.begin().unwrap();
                let new = NewObject::new(ObjectType::OTHER_U64, 128 << 10);
                set.create_object(&tx, &new).unwrap()
            };
            let id = file.id().0;
            live.sync().unwrap();
            let mut start = std::time::Instant::now();
            for number in 0..60_u64 {
                let at = (number * 54_321) % (3 << 20);
                let data = noise([100, 4096, 30_000, 200_000][number as usize % 4], number + 1);
                let tx = live.begin().unwrap();
                file.write(&tx, at, &data).unwrap();
                model[at as usize..at as usize + data.len()].copy_from_slice(&data);
                match number % 3 {
                    0 => log.append_later_write(&tx, id, at, data.len() as u64),
                    _ => log.append_write(&tx, id, at, Bytes::from(data), number % 3 == 1),
                }
                let name = format!("name {number}").into_bytes();
                let payload =
                    Payload::Remove { directory: 1, name: name.clone(), is_directory: false };
                log.note(&tx, 1, payload).unwrap();
                names.push(name);
                drop(tx);
                log.commit(id).unwrap();
                if number == 0 {
                    // The first waits for a group.
                    start = std::time::Instant::now();
                }
                if number == 20 {
                    live.sync().unwrap();
                    names.clear();
                }
            }
            println!("{kind}: {:?} a commit", start.elapsed() / 59);
            // Never committed: may be lost.
            log.append_later_write(&live.begin().unwrap(), id, 0, 100);
            id
        };
        // Nothing is written any more: as if the power had gone.
        live.gate().fail(cenote_engine::Error::invalid("crash"));
        drop(live);
        zdb(directory.path(), kind);

        let live = reopen(directory.path());
        {
            let dataset = head(&live);
            let (set, log) = (dataset.set(), dataset.log().unwrap());
            live.sync().unwrap();
            census(live.pool());
            assert_eq!(log.old_header().flags & REPLAY_NEEDED, 1, "{kind}");
            let target = Target { live: &live, set, log, names: Default::default() };
            let replayed = log.replay(&dataset.log_reader(), &target).unwrap();
            assert!(replayed.failure.is_none() && replayed.applied > 0, "{replayed:?}");
            let found = target.names.lock().clone();
            assert!(found.ends_with(&names), "{kind}: {found:?}");
            let object = set.object(ObjectId(id)).unwrap();
            assert!(object.read_vec(0, model.len()).unwrap() == model, "{kind}");
            live.sync().unwrap();
            census(live.pool());
            // The log goes on as a new one.
            let tx = live.begin().unwrap();
            log.append_write(&tx, id, 5, Bytes::from_static(b"again"), true);
            object.write(&tx, 5, b"again").unwrap();
            drop(tx);
            log.commit(id).unwrap();
            log.commit(id).unwrap();
        }
        live.export().unwrap();
        drop(live);
        zdb(directory.path(), kind);
    }
}

/// Unpacks a pool of OpenZFS that lies beside the repository; nothing if it is not there.
fn unpack(name: &str) -> Option<tempfile::TempDir> {
    let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/pools").join(name);
    let place = if place.exists() { place } else { Path::new("/work/shared/pools").join(name) };
    let images = fs::File::open(place.join("images.tar.zst")).ok()?;
    let directory = tempfile::TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut tar = Command::new("tar")
        .args(["-S", "-xf", "-", "-C"])
        .arg(directory.path())
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut pipe = tar.stdin.take().unwrap();
    std::io::copy(&mut zstd::Decoder::new(images).unwrap(), &mut pipe).unwrap();
    pipe.flush().unwrap();
    drop(pipe);
    assert!(tar.wait().unwrap().success());
    Some(directory)
}

#[test]
fn logs_of_openzfs_are_claimed_and_made_again() {
    for name in ["crash-slog0", "crash-slog1"] {
        let Some(directory) = unpack(name) else {
            eprintln!("skipped: no pool {name}");
            continue;
        };
        let live = reopen(directory.path());
        live.sync().unwrap();
        census(live.pool());
        let catalog = live.pool().catalog();
        let mut records = 0;
        for directory in catalog.walk(&catalog.root().unwrap()).unwrap() {
            if directory.phys.head_dataset.0 == 0 || directory.component().starts_with('$') {
                continue;
            }
            let dataset = live.open_dataset(&catalog.head(&directory).unwrap()).unwrap();
            let log = dataset.log().unwrap();
            let reader = dataset.log_reader();
            let mut blocks = Vec::new();
            let header = log.old_header();
            let ended = walk(&reader, &header, None, |met| {
                if let Met::Block(pointer) = met {
                    blocks.push(*pointer);
                }
                Ok(true)
            })
            .unwrap();
            assert_eq!(ended.record_seq, header.claim_record_seq);
            records += ended.records;
            for pointer in blocks {
                // The last was never written.
                let Some(data) = reader.read_log_block(&pointer).unwrap() else { continue };
                let block = LogBlock::decode(&data, &pointer).unwrap();
                let mut builder = BlockBuilder::new(pointer);
                for raw in block.raw_records(&data) {
                    let record = raw.unwrap().decode().unwrap();
                    match &record.payload {
                        Payload::Write { object, offset, length, data: Some(data), .. } => {
                            let data = &data[..*length as usize];
                            builder
                                .push_write(record.txg, record.sequence, *object, *offset, data)
                                .unwrap();
                        }
                        _ => builder.push(&record.encode().unwrap(), record.sequence).unwrap(),
                    }
                }
                let made = builder.finish(&block.chain.next, None).unwrap();
                let covered = &data[block.covered.clone()];
                assert!(made.data[..covered.len()] == *covered, "{name}: {pointer:?}");
            }
            log.discard(&reader).unwrap();
        }
        println!("{name}: {records} records");
        assert!(records > 0);
        census(live.pool());
        let pool = live.pool().name().to_owned();
        live.export().unwrap();
        drop(live);
        zdb(directory.path(), &pool);
    }
}

#[test]
fn a_set_of_which_only_the_log_changed_carries_the_features_of_its_root() {
    let directory = tempfile::tempdir().unwrap();
    let live = make("rootonly", layout("stripe", directory.path()), nothing);
    let parent = live.pool().catalog().root().unwrap().id;
    live.change(move |live, change| {
        let properties = [PropertyInput::number("checksum", 12)];
        let new =
            NewDataset { parent, name: "s", properties: &properties, ..NewDataset::default() };
        live.make_dataset(change, &new, ObjsetKind::Zfs, nothing)
    })
    .unwrap();
    {
        let found = live.pool().catalog().dataset_named("rootonly/s").unwrap();
        let dataset = live.open_dataset(&found).unwrap();
        let log = dataset.log().unwrap();
        let payload = Payload::Remove { directory: 1, name: b"gone".to_vec(), is_directory: false };
        log.note(&live.begin().unwrap(), 1, payload).unwrap();
        log.commit(1).unwrap();
    }
    live.sync().unwrap();
    let catalog = live.pool().catalog();
    let found = catalog.dataset_named("rootonly/s").unwrap();
    assert_eq!(found.phys.pointer.checksum_id(), 12);
    assert!(catalog.dataset_features(&found).unwrap().contains(&"org.illumos:skein"));
}
