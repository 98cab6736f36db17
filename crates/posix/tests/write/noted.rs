//! What the intent log is told of a change: all of it, and nothing that did not happen.

use std::sync::{Arc, OnceLock};

use cenote_engine::object::ObjectSet;
use cenote_engine::txg::Tx;
use cenote_format::ObjectId;
use cenote_format::posix_acl::{ACCESS_NAME, DEFAULT_NAME, Entry, PosixAcl, Tag};
use cenote_format::zil::{Payload, mask_linux};
use cenote_posix::tree::{Allocate, Errno, ROOT, SetAttributes, Tree, XattrWrite};
use cenote_posix::{AclType, ChangeLog, XattrMode};
use parking_lot::Mutex;

use crate::replayed::{Notes, apply};
use crate::rig::{Rig, SOMEBODY, SUPERUSER, Setup};

/// A filesystem with POSIX lists that notes its changes, and another like it.
fn pair() -> (Arc<Notes>, Rig, Rig) {
    let (xattr, acl) = (XattrMode::SystemAttributes, AclType::Posix);
    let notes = Arc::new(Notes::default());
    let rig = Setup { log: Some(notes.clone()), xattr, acl, ..Setup::default() }.make();
    (notes, rig, Setup { xattr, acl, ..Setup::default() }.make())
}

fn list(entries: &[(Tag, u8)]) -> Vec<u8> {
    let entry = |(tag, permissions): &(Tag, u8)| Entry { tag: *tag, permissions: *permissions };
    PosixAcl { entries: entries.iter().map(entry).collect() }.encode()
}

/// A list that says no more than mode 0640.
fn plain_list() -> Vec<u8> {
    list(&[(Tag::Owner, 6), (Tag::OwningGroup, 4), (Tag::Other, 0)])
}

/// A list of mode 0660 that names somebody.
fn real_list() -> Vec<u8> {
    let named = [(Tag::Owner, 6), (Tag::User(1000), 6), (Tag::OwningGroup, 4)];
    list(&[named.as_slice(), &[(Tag::Mask, 6), (Tag::Other, 0)]].concat())
}

fn set(rig: &Rig, node: u64, name: &[u8], value: &[u8]) {
    rig.tree.set_xattr(SUPERUSER, node, name, value, XattrWrite::Any).unwrap();
}

fn mode(rig: &Rig, node: u64) -> u32 {
    rig.tree.attributes(node).unwrap().mode
}

/// The records since the one with this number, as `mode 640`, `set a`, `removed a`, or their name.
fn said(notes: &Notes, since: usize) -> Vec<String> {
    let say = |payload: &Payload| match payload {
        Payload::SetAttributes(set) if set.mask == mask_linux::MODE => {
            format!("mode {:o}", set.mode & 0o7777)
        }
        Payload::SetXattr { name, value, .. } => {
            let what = if value.is_some() { "set" } else { "removed" };
            format!("{what} {}", String::from_utf8_lossy(name))
        }
        other => other.name().to_owned(),
    };
    notes.records.lock()[since..].iter().map(say).collect()
}

#[test]
fn a_list_that_equals_the_mode_is_a_change_of_the_mode() {
    let (notes, rig, again) = pair();
    let file = rig.file(ROOT, "f");
    set(&rig, file, ACCESS_NAME, &plain_list());
    assert_eq!(said(&notes, 1), ["mode 640"]);
    set(&rig, file, ACCESS_NAME, &real_list());
    set(&rig, file, ACCESS_NAME, &plain_list());
    let access = String::from_utf8_lossy(ACCESS_NAME);
    let expected = [
        "mode 640",
        "mode 660",
        &format!("set {access}"),
        "mode 640",
        &format!("removed {access}"),
    ];
    assert_eq!(said(&notes, 1), expected);
    assert!(notes.wholes.lock().is_empty());
    notes.replay(&again);
    assert_eq!(mode(&again, file), 0o100_640);
    assert!(again.tree.get_xattr(file, ACCESS_NAME).is_err());
}

#[test]
fn the_name_that_is_stored_is_noted() {
    let (notes, rig, again) = pair();
    let file = rig.file(ROOT, "f");
    // As other systems store it.
    let value = Some(b"value".to_vec());
    let bare = Payload::SetXattr { object: file, name: b"x".to_vec(), value };
    apply(&rig, 1, &bare).unwrap();
    assert_eq!(rig.tree.get_xattr(file, b"user.x").unwrap(), b"value");
    notes.wholes.lock().clear();
    rig.tree.remove_xattr(SUPERUSER, file, b"user.x").unwrap();
    assert_eq!(said(&notes, 1), ["removed x"]);
    apply(&rig, 1, &bare).unwrap();
    set(&rig, file, b"user.x", b"other");
    assert_eq!(said(&notes, 2), ["removed x", "set user.x"]);
    notes.records.lock().insert(1, bare);
    notes.replay(&again);
    assert_eq!(again.tree.get_xattr(file, b"user.x").unwrap(), b"other");
    assert_eq!(again.tree.list_xattr(file).unwrap(), [b"user.x".to_vec()]);
}

#[test]
fn a_write_that_takes_set_id_bits_away_says_so_first() {
    let (notes, rig, again) = pair();
    let file = rig.make(ROOT, "f", 0o100_755).unwrap().node;
    let change = SetAttributes { mode: Some(0o6755), ..SetAttributes::default() };
    rig.tree.set_attributes(SUPERUSER, file, &change).unwrap();
    rig.tree.write(SOMEBODY, file, 0, b"evil", true).unwrap();
    rig.tree.write(SOMEBODY, file, 4, b"more", true).unwrap();
    assert_eq!(said(&notes, 1), ["mode 6755", "mode 755", "TX_WRITE", "TX_WRITE"]);
    notes.replay(&again);
    assert_eq!((mode(&again, file), again.read(file, 0, 9)), (0o100_755, b"evilmore".to_vec()));
}

#[test]
fn a_copy_that_takes_set_id_bits_away_does_it_with_the_data() {
    let (notes, rig, again) = pair();
    let (from, file) = (rig.file(ROOT, "from"), rig.make(ROOT, "f", 0o100_755).unwrap().node);
    rig.write(from, 0, b"evilmore");
    let change = SetAttributes { mode: Some(0o6755), ..SetAttributes::default() };
    rig.tree.set_attributes(SUPERUSER, file, &change).unwrap();
    rig.tree.copy_range(SUPERUSER, (from, 0), (file, 0), 4).unwrap();
    assert_eq!(mode(&rig, file), 0o106_755, "root keeps them");
    rig.tree.copy_range(SOMEBODY, (from, 4), (file, 4), 4).unwrap();
    assert_eq!(mode(&rig, file), 0o100_755);
    assert_eq!(said(&notes, 3), ["mode 6755", "TX_WRITE", "mode 755", "TX_WRITE"]);
    notes.replay(&again);
    assert_eq!((mode(&again, file), again.read(file, 0, 9)), (0o100_755, b"evilmore".to_vec()));
    // The same of what `fallocate` changes, and of what it would not.
    for len in [20, 5] {
        rig.tree.set_attributes(SUPERUSER, file, &change).unwrap();
        let what = Allocate::Reserve { keep_size: false };
        rig.tree.allocate(SOMEBODY, file, 0, len, what).unwrap();
        assert_eq!(mode(&rig, file), 0o100_755, "{len}");
    }
}

#[test]
fn a_mode_that_changes_a_list_is_noted_with_the_list() {
    let (notes, rig, again) = pair();
    let file = rig.file(ROOT, "f");
    set(&rig, file, ACCESS_NAME, &real_list());
    let access = String::from_utf8_lossy(ACCESS_NAME);
    assert_eq!(said(&notes, 1), ["mode 660", &format!("set {access}")]);
    let change = SetAttributes { mode: Some(0o600), ..SetAttributes::default() };
    rig.tree.set_attributes(SUPERUSER, file, &change).unwrap();
    assert_eq!(said(&notes, 3), ["mode 600", &format!("set {access}")]);
    let changed = rig.tree.get_xattr(file, ACCESS_NAME).unwrap();
    let last = notes.records.lock().last().cloned();
    let value = Some(changed.clone());
    let told = Payload::SetXattr { object: file, name: ACCESS_NAME.to_vec(), value };
    assert_eq!(last, Some(told));
    notes.replay(&again);
    assert_eq!(mode(&again, file), 0o100_600);
    assert_eq!(again.tree.get_xattr(file, ACCESS_NAME).unwrap(), changed);
}

#[test]
fn a_name_that_inherits_lists_waits_for_its_group() {
    let (notes, rig, _) = pair();
    let directory = rig.directory(ROOT, "d");
    set(&rig, directory, DEFAULT_NAME, &real_list());
    let before = notes.records.lock().len();
    rig.file(directory, "f");
    assert_eq!(said(&notes, before), ["TX_CREATE"]);
    // Nobody can commit the record without what says that it does not tell all.
    assert_eq!(*notes.wholes.lock(), [before]);
}

/// What a file held first when each cut of it was noted.
#[derive(Default)]
struct Looking {
    objects: OnceLock<ObjectSet>,
    seen: Mutex<Vec<u8>>,
}

impl ChangeLog for Looking {
    fn note(&self, _tx: &Tx, object: u64, payload: Payload) -> Result<(), Errno> {
        if let (Payload::Truncate { .. }, Some(objects)) = (payload, self.objects.get()) {
            let object = objects.object(ObjectId(object))?;
            self.seen.lock().extend(object.read_vec(0, 1)?);
        }
        Ok(())
    }
    fn note_write(&self, _tx: &Tx, _object: u64, _offset: u64, _data: &[u8]) {}
    fn note_whole(&self, _tx: &Tx) {}
    fn forget(&self, _object: u64) {}
}

#[test]
fn a_cut_is_noted_before_it_is_made() {
    let log = Arc::new(Looking::default());
    let rig = Setup { log: Some(log.clone()), ..Setup::default() }.make();
    assert!(log.objects.set(rig.objects.clone()).is_ok());
    let file = rig.file(ROOT, "f");
    rig.write(file, 0, &[7; 5000]);
    rig.tree.allocate(SUPERUSER, file, 0, 1000, Allocate::PunchHole).unwrap();
    rig.write(file, 0, &[8; 5000]);
    let cut = SetAttributes { size: Some(0), ..SetAttributes::default() };
    rig.tree.set_attributes(SUPERUSER, file, &cut).unwrap();
    assert_eq!(*log.seen.lock(), [7, 8]);
}
