//! Directories that cannot be read while their names change, although lookups in them need no disk.
//!
//! Invariant: what fails has changed nothing, and is done once the disk answers again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cenote_engine::dataset::change::PropertyInput;
use cenote_engine::object::{Object, ObjectSet};
use cenote_engine::pool::group::LivePool;
use cenote_engine::zap::{self, Zap};
use cenote_format::ObjectId;
use cenote_format::directory_entry::{EntryValue, kind_of_mode};
use cenote_format::sa::Attribute;
use cenote_posix::tree::{NodeId, ROOT, RenameFlags, Tree, XattrWrite};
use cenote_posix::{Filesystem, View, XattrMode};

use crate::consistent::check;
use crate::pool::{Disks, NAME, census};
use crate::rig::{SUPERUSER, Setup, code, new_node};
use crate::slow_reads::{PATIENCE, places_of};

/// The I/O error.
const EIO: i32 = 5;
/// Names in the directory that cannot be read.
const NAMES: u32 = 60;

/// A name that is too long for a micro ZAP, while its first 40 bytes are not, of letters that do not compress well.
fn name(number: u32) -> Vec<u8> {
    let letter =
        |at: u32| b'a' + ((number + 1).wrapping_mul(2_654_435_761) >> (at % 23)) as u8 % 26;
    format!("{number:03}").into_bytes().into_iter().chain((0..90).map(letter)).collect()
}

/// A pool that was opened anew.
struct Opened {
    disks: Disks,
    live: Arc<LivePool>,
    files: Arc<Filesystem>,
    set: ObjectSet,
}

impl Opened {
    /// A pool that `fill` has filled before.
    fn after(fill: impl FnOnce(&Filesystem)) -> Self {
        let in_directories = [PropertyInput::number("xattr", 1)];
        let disks = Disks::new("disk").with(&[], &in_directories);
        let live = disks.create_unrecorded();
        let files = disks.files(&live, "new");
        fill(&files);
        live.sync().unwrap();
        drop(files);
        live.export().unwrap();
        Self::open(disks)
    }

    fn open(disks: Disks) -> Self {
        let live = disks.open("again");
        let files = disks.files(&live, "again");
        let dataset = live.pool().catalog().dataset_named(NAME).unwrap();
        let set = live.open_dataset(&dataset).unwrap().set().clone();
        Self { disks, live, files, set }
    }

    fn again(self) -> Self {
        let Self { disks, live, files, set } = self;
        drop((files, set));
        live.export().unwrap();
        Self::open(disks)
    }

    fn object(&self, node: NodeId) -> Object {
        self.set.object(ObjectId(node & ((1 << 48) - 1))).unwrap()
    }

    /// Of the first block of an object nothing is known but what is open, and it cannot be read.
    fn lose(&self, object: &Object) {
        let first = object.pointer(0, 0).unwrap();
        let lost = places_of(&first);
        assert!(!lost.is_empty(), "the block is in its pointer");
        self.live.pool().io().pipe.forget(&[first]);
        lost.into_iter().for_each(|range| self.disks.disk(0).fail_range(range));
    }

    /// The disk answers, and what is on it is as it should be.
    fn heal(&self, what: &str) {
        self.disks.disk(0).heal();
        self.live.sync().unwrap();
        check(&self.set);
        census(self.live.pool(), what);
    }
}

/// The node that `name` names in `parent`, and how many names it has.
fn named(files: &Filesystem, parent: NodeId, name: &[u8]) -> Option<(NodeId, u64)> {
    let found = files.lookup(parent, name).ok()?;
    Some((found.node, found.links.into()))
}

#[test]
fn a_move_between_directories_of_which_one_cannot_be_read_changes_nothing() {
    let none = RenameFlags::default();
    let exchange = RenameFlags { exchange: true, ..none };
    let whiteout = RenameFlags { whiteout: true, ..none };
    let cases: [(&str, &[u8], RenameFlags, bool); 5] = [
        ("rename", b"new", none, false),
        ("replace", b"old", none, false),
        ("exchange", b"old", exchange, false),
        ("whiteout", b"new", whiteout, false),
        ("into", b"new", none, true),
    ];
    for (what, new, flags, into) in cases {
        // Of a fat ZAP lookups have read the leaf.
        for length in [40, 90] {
            println!("{what}, names of {length} bytes");
            move_unread(&|number| name(number)[..length].to_vec(), (what, new, flags, into));
        }
    }
}

/// Names that `name` gives stand in the directory that cannot be read.
fn move_unread(
    name: &dyn Fn(u32) -> Vec<u8>,
    (what, new, flags, into): (&str, &[u8], RenameFlags, bool),
) {
    let opened = Opened::after(|files| {
        let directory =
            |name: &[u8]| files.create(SUPERUSER, ROOT, name, new_node(0o040_755)).unwrap().node;
        let (a, b) = (directory(b"a"), directory(b"b"));
        for number in 0..NAMES {
            files.create(SUPERUSER, a, &name(number), new_node(0o100_644)).unwrap();
        }
        files.create(SUPERUSER, b, b"old", new_node(0o100_644)).unwrap();
    });
    let files = &opened.files;
    let [a, b] = [b"a", b"b"].map(|name| files.lookup(ROOT, name).unwrap().node);
    let x = name(7);
    // What comes from the directory that cannot be read, or goes into it.
    let (from, to) = if into { ((b, &b"old"[..]), (a, new)) } else { ((a, &x[..]), (b, new)) };
    let before = [from, to].map(|(parent, name)| named(files, parent, name));
    assert!(named(files, a, &x).is_some());
    files.create(SUPERUSER, b, b"warm", new_node(0o100_644)).unwrap();
    opened.lose(&opened.object(a));
    let failed = files.rename(SUPERUSER, from.0, from.1, to.0, to.1, flags);
    assert_eq!(code(failed), EIO, "{what}");
    opened.heal(what);
    let after = [from, to].map(|(parent, name)| named(files, parent, name));
    assert_eq!(after, before, "{what}");
    files.rename(SUPERUSER, from.0, from.1, to.0, to.1, flags).unwrap();
    assert_eq!(named(files, to.0, to.1), before[0], "{what}");
    opened.heal(what);
}

/// The hidden directory of a file's extended attributes.
fn hidden(set: &ObjectSet, file: NodeId) -> Object {
    let view = View::open(set.clone(), 0).unwrap();
    let file = view.file(ObjectId(file & ((1 << 48) - 1))).unwrap();
    let directory = view.word(&file, Attribute::XattrDirectory).unwrap().unwrap();
    set.object(ObjectId(directory)).unwrap()
}

#[test]
fn no_attribute_goes_where_its_name_cannot() {
    // Short enough for a micro ZAP, which is all in memory while it is open.
    let attribute = |number| [&b"user."[..], &name(number)[..40]].concat();
    let opened = Opened::after(|files| {
        let file = files.create(SUPERUSER, ROOT, b"file", new_node(0o100_644)).unwrap().node;
        for number in 0..4 {
            let name = attribute(number);
            files.set_xattr(SUPERUSER, file, &name, b"value", XattrWrite::Any).unwrap();
        }
    });
    let files = &opened.files;
    let file = files.lookup(ROOT, b"file").unwrap().node;
    let directory = hidden(&opened.set, file);
    assert_eq!(files.get_xattr(file, &attribute(0)).unwrap(), b"value");
    files.unlink(SUPERUSER, ROOT, b"file").unwrap();
    opened.lose(&directory);
    files.forget(file);
    opened.heal("an attribute");
    let opened = opened.again();
    let start = Instant::now();
    while opened.files.writer().unwrap().queued().unwrap() > 0 && start.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(10));
    }
    opened.heal("freed");
    assert!(opened.set.object(directory.id()).is_err(), "it is not freed when that can be");
}

#[test]
fn what_is_no_attribute_of_a_file_does_not_go_with_it() {
    let rig = Setup { xattr: XattrMode::Directory, ..Setup::default() }.make();
    let (file, other) = (rig.file(ROOT, "file"), rig.file(ROOT, "other"));
    for (node, value) in [(file, b"first"), (other, b"other")] {
        rig.tree.set_xattr(SUPERUSER, node, b"user.own", value, XattrWrite::Any).unwrap();
    }
    rig.write(other, 0, b"content");
    let own_of_other = Zap::open(hidden(&rig.objects, other)).unwrap();
    let own_of_other = own_of_other.entries().next().unwrap().unwrap().value.as_u64().unwrap();
    let stale = EntryValue { object: ObjectId(other), kind: kind_of_mode(0o100_644) }.encode();
    for (name, word) in [("a", stale), ("b", own_of_other)] {
        zap::insert_u64(&hidden(&rig.objects, file), &rig.gate.begin().unwrap(), name, word)
            .unwrap();
    }
    rig.tree.unlink(SUPERUSER, ROOT, b"file").unwrap();
    rig.tree.forget(file);
    assert_eq!(rig.read(other, 0, 10), b"content");
    assert_eq!(rig.tree.get_xattr(other, b"user.own").unwrap(), b"other");
    check(&rig.objects);
}
