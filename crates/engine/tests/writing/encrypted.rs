//! Encrypted datasets made and written here: read back with their keys only, also after a crash.
//!
//! Invariant: nothing of what was written in an encrypted dataset is found on the devices in the
//! clear, and a pool whose keys are not loaded can be opened and written all the same.

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use cenote_codec::cipher::Suite;
use cenote_engine::ErrorKind;
use cenote_engine::dataset::Keys;
use cenote_engine::dataset::change::{FreeingPass, NewDataset};
use cenote_engine::job::Budget;
use cenote_engine::keys::Wrapping;
use cenote_engine::object::{NewObject, ObjectSet};
use cenote_engine::pool::change::Encryption;
use cenote_engine::pool::group::{LiveDataset, LivePool};
use cenote_format::crypto_key::KeyFormat;
use cenote_format::objset::ObjsetKind;
use cenote_format::zil::REPLAY_NEEDED;
use cenote_format::{ObjectId, ObjectType};

use super::log::{Target, reopen};
use super::{census, layout, make, noise, nothing, zdb};

/// Stands in everything written to encrypted datasets.
const SECRET: &[u8] = b"nobody may read these words ";

/// An object that `sealed/a/b` is made with, which holds [`SECRET`].
const FIRST: ObjectId = ObjectId(1);

fn secret(len: usize, seed: u64) -> Vec<u8> {
    let mut data = noise(len, seed);
    for chunk in data.chunks_mut(1000) {
        let len = chunk.len().min(SECRET.len());
        chunk[..len].copy_from_slice(&SECRET[..len]);
    }
    data
}

fn on_the_devices(directory: &Path, word: &[u8]) -> bool {
    let mut files = fs::read_dir(directory).unwrap().flatten();
    files.any(|file| {
        let data = fs::read(file.path()).unwrap();
        data.chunks(1 << 20).any(|part| {
            part.iter().enumerate().any(|(at, byte)| {
                *byte == word[0] && part.get(at..at + word.len()).is_some_and(|w| w == word)
            })
        })
    })
}

fn open(live: &LivePool, name: &str) -> cenote_engine::Result<Arc<LiveDataset>> {
    let catalog = live.pool().catalog();
    live.open_dataset(&catalog.dataset_named(name)?)
}

/// Makes `sealed/a`, an encryption root, and `sealed/a/b` below it.
fn make_datasets(live: &LivePool, suite: Suite) {
    let wrapping = Wrapping::new(KeyFormat::Raw, &[7; 32], None).unwrap();
    let parent = live.pool().catalog().root().unwrap().id;
    let made = live
        .change(move |live, change| {
            let new = NewDataset { parent, name: "a", ..NewDataset::default() };
            let encryption = Encryption::On { suite: Some(suite), wrapping: Some(wrapping) };
            live.make_encrypted_dataset(change, &new, &encryption, ObjsetKind::Zfs, nothing)
        })
        .unwrap();
    live.change(move |live, change| {
        let new = NewDataset { parent: made.directory, name: "b", ..NewDataset::default() };
        live.make_dataset(change, &new, ObjsetKind::Zfs, |set, tx| {
            let file = set.create_object(tx, &NewObject::new(ObjectType::PLAIN_FILE, 4096))?;
            assert_eq!(file.id(), FIRST);
            file.write(tx, 0, SECRET)
        })
    })
    .unwrap();
}

fn load(live: &LivePool, material: &[u8]) -> cenote_engine::Result<()> {
    let catalog = live.pool().catalog();
    let root = catalog.directory("sealed/a")?;
    live.pool().keys().load(&catalog, &root, material)
}

fn write_objects(live: &LivePool, set: &ObjectSet, seed: u64) -> Vec<(ObjectId, Vec<u8>)> {
    let mut files = Vec::new();
    for (number, block) in [512, 4096, 128 << 10, 1 << 20].into_iter().enumerate() {
        let tx = live.begin().unwrap();
        let new = NewObject {
            bonus_type: ObjectType::SYSTEM_ATTRIBUTES,
            bonus: SECRET.to_vec(),
            ..NewObject::new(ObjectType::PLAIN_FILE, block)
        };
        let file = set.create_object(&tx, &new).unwrap();
        let data = secret(1_500_000, seed + number as u64);
        file.write(&tx, 0, &data).unwrap();
        file.write(&tx, 1 << 33, &data[..70_000]).unwrap();
        files.push((file.id(), data));
    }
    files
}

#[test]
fn encrypted_datasets_are_read_with_their_keys_only() {
    for suite in [Suite::Aes256Gcm, Suite::Aes128Ccm] {
        let directory = tempfile::tempdir().unwrap();
        let live = make("sealed", layout("stripe", directory.path()), nothing);
        make_datasets(&live, suite);
        let mut files = Vec::new();
        for name in ["sealed/a", "sealed/a/b"] {
            let dataset = open(&live, name).unwrap();
            assert!(dataset.policy().encryptor.is_some());
            files.push((name, write_objects(&live, dataset.set(), 40)));
            live.sync().unwrap();
            // Again, over what is there.
            let (id, data) = &mut files.last_mut().unwrap().1[2];
            let change = secret(200_000, 99);
            let tx = live.begin().unwrap();
            dataset.set().object(*id).unwrap().write(&tx, 100_000, &change).unwrap();
            data[100_000..300_000].copy_from_slice(&change);
        }
        live.sync().unwrap();
        let head = live.pool().catalog().dataset_named("sealed/a").unwrap().id;
        live.change(move |_, change| change.create_snapshot(head, "s", &[]).map(drop)).unwrap();
        census(live.pool());
        live.export().unwrap();
        drop(live);
        zdb(directory.path(), "sealed");
        assert!(!on_the_devices(directory.path(), SECRET), "{suite:?}");

        let live = reopen(directory.path());
        let error = open(&live, "sealed/a/b").err().unwrap();
        assert_eq!(error.kind(), ErrorKind::KeyNotLoaded);
        assert_eq!(load(&live, &[8; 32]).unwrap_err().kind(), ErrorKind::WrongKey);
        load(&live, &[7; 32]).unwrap();
        let catalog = live.pool().catalog();
        let keys: &dyn Keys = live.pool().keys().as_ref();
        for (name, files) in &files {
            let set = catalog.object_set(&catalog.dataset_named(name).unwrap(), keys).unwrap();
            for (id, data) in files {
                let file = set.object(*id).unwrap();
                assert!(file.read_vec(0, data.len()).unwrap() == *data, "{name} {id}");
                assert_eq!(file.dnode().bonus(), SECRET);
            }
        }
        census(live.pool());
        live.export().unwrap();
    }
}

#[test]
fn logs_of_encrypted_datasets_are_claimed_without_keys() {
    let directory = tempfile::tempdir().unwrap();
    let live = make("sealed", layout("mirror", directory.path()), nothing);
    make_datasets(&live, Suite::Aes256Gcm);
    let dataset = open(&live, "sealed/a").unwrap();
    let mut model = secret(1 << 20, 1);
    let file = {
        let tx = live.begin().unwrap();
        let new = NewObject::new(ObjectType::PLAIN_FILE, 128 << 10);
        let file = dataset.set().create_object(&tx, &new).unwrap();
        file.write(&tx, 0, &model).unwrap();
        file
    };
    live.sync().unwrap();
    let id = file.id().0;
    for number in 0..20 {
        let (at, data) = (number * 30_000, secret([100, 5000, 70_000][number % 3], 50));
        let tx = live.begin().unwrap();
        file.write(&tx, at as u64, &data).unwrap();
        model[at..at + data.len()].copy_from_slice(&data);
        let log = dataset.log().unwrap();
        log.append_write(&tx, id, at as u64, Bytes::from(data), true);
        drop(tx);
        log.commit(id).unwrap();
    }
    live.gate().fail(cenote_engine::Error::invalid("crash"));
    drop((file, dataset));
    drop(live);
    assert!(!on_the_devices(directory.path(), SECRET));
    zdb(directory.path(), "sealed");

    let live = reopen(directory.path());
    census(live.pool());
    live.sync().unwrap();
    census(live.pool());
    load(&live, &[7; 32]).unwrap();
    {
        let dataset = open(&live, "sealed/a").unwrap();
        let (set, log) = (dataset.set(), dataset.log().unwrap());
        assert_eq!(log.old_header().flags & REPLAY_NEEDED, 1);
        let target = Target { live: &live, set, log, names: Default::default() };
        let replayed = log.replay(&dataset.log_reader(), &target).unwrap();
        assert!(replayed.failure.is_none() && replayed.applied > 0, "{replayed:?}");
        let object = set.object(ObjectId(id)).unwrap();
        assert!(object.read_vec(0, model.len()).unwrap() == model);
        live.sync().unwrap();
        census(live.pool());
    }
    live.export().unwrap();
    drop(live);
    zdb(directory.path(), "sealed");
    assert!(!on_the_devices(directory.path(), SECRET));
}

#[test]
fn clones_share_keys_and_roots_come_and_go() {
    let directory = tempfile::tempdir().unwrap();
    let live = make("sealed", layout("mirror", directory.path()), nothing);
    make_datasets(&live, Suite::Aes192Gcm);
    let files = write_objects(&live, open(&live, "sealed/a/b").unwrap().set(), 7);
    live.sync().unwrap();
    let catalog = live.pool().catalog();
    let (parent, head) =
        (catalog.root().unwrap().id, catalog.dataset_named("sealed/a/b").unwrap().id);
    let snapshot = live.change(move |_, change| change.create_snapshot(head, "s", &[])).unwrap();
    live.change(move |_, change| {
        let origin = Some(snapshot);
        let new = NewDataset { parent, name: "clone", origin, ..NewDataset::default() };
        change.create_dataset(&new)
    })
    .unwrap();
    // Below the clone, outside of the root, under the root's key all the same.
    let parent = live.pool().catalog().directory("sealed/clone").unwrap().id;
    live.change(move |live, change| {
        let new = NewDataset { parent, name: "below", ..NewDataset::default() };
        live.make_dataset(change, &new, ObjsetKind::Zfs, nothing)
    })
    .unwrap();
    let below = write_objects(&live, open(&live, "sealed/clone/below").unwrap().set(), 8);
    let (id, data) = &files[2];
    {
        let clone = open(&live, "sealed/clone").unwrap();
        let tx = live.begin().unwrap();
        clone.set().object(*id).unwrap().write(&tx, 5000, &data[..5000]).unwrap();
    }
    live.sync().unwrap();

    let change_key = |name: &'static str, key: Option<[u8; 32]>| {
        live.change(move |live, change| {
            let new = key.map(|key| Wrapping::new(KeyFormat::Raw, &key, None).unwrap());
            live.change_key(change, name, new.as_ref().map(|new| (new, "prompt")))
        })
    };
    let refused = |result: cenote_engine::Result<()>| result.unwrap_err().kind();
    assert_eq!(refused(change_key("sealed/clone", Some([1; 32]))), ErrorKind::InvalidArgument);
    assert_eq!(refused(change_key("sealed", Some([1; 32]))), ErrorKind::InvalidArgument);
    assert_eq!(refused(change_key("sealed/a/b", None)), ErrorKind::InvalidArgument);
    change_key("sealed/a", Some([8; 32])).unwrap();
    change_key("sealed/a/b", Some([9; 32])).unwrap();
    change_key("sealed/a/b", None).unwrap();
    census(live.pool());
    live.export().unwrap();
    drop(live);
    zdb(directory.path(), "sealed");
    assert!(!on_the_devices(directory.path(), SECRET));

    let live = reopen(directory.path());
    assert_eq!(load(&live, &[7; 32]).unwrap_err().kind(), ErrorKind::WrongKey);
    load(&live, &[8; 32]).unwrap();
    let read = |name: &str, id: ObjectId, len: usize| {
        open(&live, name).unwrap().set().object(id).unwrap().read_vec(0, len).unwrap()
    };
    for (id, data) in &files {
        assert!(read("sealed/a/b", *id, data.len()) == *data);
    }
    for (id, data) in &below {
        assert!(read("sealed/clone/below", *id, data.len()) == *data);
    }
    let found = read("sealed/clone", *id, data.len());
    assert!(found[5000..10_000] == data[..5000] && found[10_000..] == data[10_000..]);
    let root = live.pool().catalog().directory("sealed/a").unwrap();
    assert!(live.is_key_in_use(root.id).unwrap());
    census(live.pool());
    live.export().unwrap();
}

#[test]
fn a_dataset_with_the_numbers_of_one_that_is_gone_has_its_own_keys() {
    let directory = tempfile::tempdir().unwrap();
    let live = make("sealed", layout("mirror", directory.path()), nothing);
    let mut numbers = HashSet::new();
    let mut again = 0;
    for _ in 0..40 {
        make_datasets(&live, Suite::Aes256Gcm);
        open(&live, "sealed/a/b").unwrap();
        let catalog = live.pool().catalog();
        let keys: &dyn Keys = live.pool().keys().as_ref();
        let dataset = catalog.dataset_named("sealed/a/b").unwrap();
        let set = catalog.object_set(&dataset, keys).unwrap();
        let first = set.object(FIRST).unwrap();
        // From the disks, not from the cache, which holds it in the clear.
        first.forget(0, 4096);
        assert_eq!(first.read_vec(0, SECRET.len()).unwrap(), SECRET);
        let key = catalog.key_object(&dataset.directory).unwrap().unwrap();
        again += u64::from(!numbers.insert(key.id));
        let root = key.root;
        assert!(keys.is_loaded(root));
        for name in ["sealed/a/b", "sealed/a"] {
            let head = catalog.dataset_named(name).unwrap().id;
            live.close_dataset(head).unwrap();
            live.change(move |_, change| change.destroy_head(head)).unwrap();
        }
        live.change(|_, change| {
            change
                .process_async_destroy(&mut FreeingPass::default(), Budget::blocks(u64::MAX))
                .map(drop)
        })
        .unwrap();
        assert!(!keys.is_loaded(root), "the user key of a dataset that is gone");
    }
    assert!(again > 0, "no number came again: nothing was tried");
    census(live.pool());
    live.export().unwrap();
}
