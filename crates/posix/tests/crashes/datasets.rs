//! Snapshots, filesystems and clones that come and go, as part of a story.

use std::sync::Arc;

use cenote_codec::cipher::Suite;
use cenote_engine::dataset::change::{NewDataset, PropertyInput};
use cenote_engine::keys::Wrapping;
use cenote_engine::pool::change::Encryption;
use cenote_engine::pool::group::LivePool;
use cenote_format::crypto_key::KeyFormat;
use cenote_format::objset::ObjsetKind;
use cenote_posix::create::{NewFilesystem, initialise};

use super::pool::{NAME, files_of};
use super::story::{Content, FileStory, Sequence, SetStory, Story};
use super::work::Work;

impl Work<'_> {
    /// Takes snapshot `name` (full).
    pub fn snapshot(&self, name: &str) {
        let (head, short) = name.split_once('@').unwrap();
        let (of, short) = (head.to_owned(), short.to_owned());
        self.alter(
            |state, sets| {
                let listing = Arc::new(sets[head].listing());
                state.snapshots.insert(name.to_owned(), listing);
            },
            move |live, change| {
                let head = live.pool().catalog().dataset_named(&of)?;
                change.create_snapshot(head.id, &short, &[]).map(drop)
            },
        );
    }

    /// Destroys a snapshot.
    pub fn unsnapshot(&self, name: &str) {
        let full = name.to_owned();
        self.alter(
            |state, _| drop(state.snapshots.remove(name)),
            move |live, change| {
                let snapshot = live.pool().catalog().dataset_named(&full)?;
                change.destroy_snapshot(snapshot.id, false)?;
                live.wake_freeing();
                Ok(())
            },
        );
    }

    /// Makes a filesystem below the root, encrypted if there is a key, and opens it.
    pub fn filesystem(&mut self, name: &str, key: Option<[u8; 32]>) {
        self.story.lock().sets.insert(name.to_owned(), SetStory::new(false, key));
        let short = name.split_once('/').unwrap().1.to_owned();
        self.alter(
            |state, _| assert!(state.filesystems.insert(name.to_owned())),
            move |live, change| {
                let parent = live.pool().catalog().directory(NAME)?.id;
                let properties = [PropertyInput::text("keylocation", "prompt")];
                let properties = if key.is_some() { properties.as_slice() } else { &[] };
                let new = NewDataset { parent, name: &short, properties, ..NewDataset::default() };
                let encryption = match &key {
                    Some(key) => Encryption::On {
                        suite: Some(Suite::Aes256Gcm),
                        wrapping: Some(Wrapping::new(KeyFormat::Raw, key, None)?),
                    },
                    None => Encryption::Inherited,
                };
                let kind = ObjsetKind::Zfs;
                live.make_encrypted_dataset(change, &new, &encryption, kind, |set, tx| {
                    initialise(set, tx, &NewFilesystem::default()).unwrap();
                    Ok(())
                })
                .map(drop)
            },
        );
        self.open(name);
    }

    /// Makes a clone of a snapshot, below the root, and opens it.
    pub fn clone_of(&mut self, origin: &str, name: &str) {
        let (head, _) = origin.split_once('@').unwrap();
        let copy = copied(&self.story.lock(), head);
        self.story.lock().sets.insert(name.to_owned(), copy);
        let short = name.split_once('/').unwrap().1.to_owned();
        let origin = origin.to_owned();
        self.alter(
            |state, _| assert!(state.filesystems.insert(name.to_owned())),
            move |live, change| {
                let catalog = live.pool().catalog();
                let parent = catalog.directory(NAME)?.id;
                let origin = Some(catalog.dataset_named(&origin)?.id);
                let new = NewDataset { parent, name: &short, origin, ..NewDataset::default() };
                live.clone_dataset(change, &new).map(drop)
            },
        );
        self.open(name);
    }

    fn open(&mut self, name: &str) {
        self.files.insert(name.to_owned(), files_of(&self.live, name, "new"));
    }

    /// Destroys a filesystem or clone.
    pub fn destroy(&mut self, name: &str) {
        self.files.remove(name);
        let id = self.live.pool().catalog().dataset_named(name).unwrap().id;
        self.live.close_dataset(id).unwrap();
        self.alter(
            |state, _| assert!(state.filesystems.remove(name)),
            move |live: &LivePool, change| {
                change.check_destroy_head(id)?;
                change.destroy_head(id)?;
                live.wake_freeing();
                Ok(())
            },
        );
    }
}

/// The story of a clone of what filesystem `head` is now: a snapshot was just taken.
fn copied(story: &Story, head: &str) -> SetStory {
    let from = &story.sets[head];
    let content = |file: &FileStory| {
        let content = file.content.as_ref()?;
        Some(Sequence::new(Content { bytes: content.newest().bytes.clone(), written: None }))
    };
    let files = from.files.iter();
    let files = files.map(|file| FileStory { node: file.node, content: content(file) }).collect();
    let names = Sequence::new(from.names.newest().clone());
    SetStory { names, files, prompt: from.prompt, key: None }
}
