//! One rule of files at a time.

use std::sync::Arc;

use cenote_engine::zap::Zap;
use cenote_format::master_node::{self, CaseSensitivity};
use cenote_format::posix_acl::{ACCESS_NAME, DEFAULT_NAME, Entry, PosixAcl, Tag};
use cenote_format::sa::Attribute;
use cenote_format::{ObjectId, pflags};
use cenote_posix::create::NewFilesystem;
use cenote_posix::tree::{
    Allocate, NewNode, ROOT, RenameFlags, Seek, SetAttributes, SetTime, Timestamp, Tree, XattrWrite,
};
use cenote_posix::{AclType, View, WriteProperties, XattrMode};

use crate::consistent::check;
use crate::rig::{Rig, SOMEBODY, SUPERUSER, Setup, code, empty_set, new_node, plain};

const NO_FLAGS: RenameFlags = RenameFlags { no_replace: false, exchange: false, whiteout: false };

fn rename(rig: &Rig, from: (u64, &str), to: (u64, &str), flags: RenameFlags) -> i32 {
    let (old, new) = (from.1.as_bytes(), to.1.as_bytes());
    code(rig.tree.rename(SUPERUSER, from.0, old, to.0, new, flags))
}

fn names(rig: &Rig, node: u64) -> Vec<String> {
    let mut names = Vec::new();
    rig.tree
        .read_directory(node, 0, &mut |entry| {
            names.push(String::from_utf8(entry.name).unwrap());
            true
        })
        .unwrap();
    names.retain(|name| name != "." && name != "..");
    names.sort();
    names
}

#[test]
fn a_new_filesystem_is_what_zfs_create_makes() {
    let rig = plain();
    let master = Zap::open(rig.objects.object(master_node::OBJECT).unwrap()).unwrap();
    let mut keys: Vec<String> = master
        .entries()
        .map(|entry| String::from_utf8(entry.unwrap().name().to_vec()).unwrap())
        .collect();
    keys.sort();
    let expected = [
        "DELETE_QUEUE",
        "ROOT",
        "SA_ATTRS",
        "VERSION",
        "casesensitivity",
        "normalization",
        "utf8only",
    ];
    assert_eq!(keys, expected);
    let view = View::open(rig.objects.clone(), 0).unwrap();
    let root = view.directory(view.root()).unwrap();
    assert_eq!(root.facts.flags, 0x408_0000_0144);
    assert_eq!((root.facts.mode, root.facts.size, root.facts.links), (0o040_755, 2, 2));
    assert_eq!(root.facts.parent, view.root().0);
    assert_eq!((root.facts.generation, root.bonus().len()), (4, 168));
    let table = view.attribute_table().unwrap();
    assert_eq!(table.layout(2).unwrap(), [5, 6, 4, 12, 13, 7, 11, 0, 1, 2, 3, 8, 16, 19]);
    assert_eq!(table.layout(3), None);
    assert_eq!(
        (table.number(Attribute::Project), table.number(Attribute::Sequence)),
        (Some(21), None)
    );
    rig.file(ROOT, "first");
    let view = View::open(rig.objects.clone(), 0).unwrap();
    let table = view.attribute_table().unwrap();
    assert_eq!(table.layout(3).unwrap(), [5, 6, 4, 12, 13, 7, 11, 0, 1, 2, 3, 8, 21, 16, 19]);
    check(&rig.objects);
}

#[test]
fn files_are_made_written_and_removed() {
    let rig = plain();
    let directory = rig.directory(ROOT, "d");
    let file = rig.file(directory, "f");
    rig.write(file, 0, b"hello");
    rig.write(file, 5000, b"world");
    let stat = rig.tree.attributes(file).unwrap();
    assert_eq!((stat.size, stat.mode, stat.links, stat.generation), (5005, 0o100_644, 1, 4));
    let mut expected = vec![0; 5005];
    expected[..5].copy_from_slice(b"hello");
    expected[5000..].copy_from_slice(b"world");
    assert_eq!(rig.read(file, 0, 1 << 20), expected);
    // One block, as long as what it holds, in sectors.
    assert_eq!(stat.block_size, 5120);
    check(&rig.objects);
    let root = rig.tree.attributes(ROOT).unwrap();
    assert_eq!((root.links, root.size), (3, 3));
    assert_eq!(code(rig.tree.remove_directory(SUPERUSER, ROOT, b"d")), 39);
    rig.tree.unlink(SUPERUSER, directory, b"f").unwrap();
    assert_eq!(code(rig.tree.lookup(directory, b"f")), 2);
    assert_eq!(code(rig.tree.lookup(directory, &[b'n'; 256])), 36);
    // It is still there for whoever has it open.
    assert_eq!(rig.tree.attributes(file).unwrap().links, 0);
    rig.write(file, 0, b"HELLO");
    assert_eq!(rig.read(file, 0, 5), b"HELLO");
    check(&rig.objects);
    rig.tree.forget(file);
    assert_eq!(code(rig.tree.attributes(file)), 116);
    rig.tree.remove_directory(SUPERUSER, ROOT, b"d").unwrap();
    assert_eq!(code(rig.make(directory, "late", 0o100_644)), 2);
    rig.tree.forget(directory);
    check(&rig.objects);
    assert_eq!(rig.tree.attributes(ROOT).unwrap().links, 2);
}

#[test]
fn every_kind_of_file() {
    let rig = plain();
    for (name, mode) in [("fifo", 0o010_600), ("sock", 0o140_755), ("reg", 0o600)] {
        let made = rig.make(ROOT, name, mode).unwrap();
        assert_eq!(made.mode & 0o7777, mode & 0o7755 & !0o022, "{name}");
    }
    for (name, mode, rdev) in
        [("chr", 0o020_666, 0x103), ("blk", 0o060_660, 259 << 8 | 0x4200_0011)]
    {
        let new = NewNode { rdev, ..new_node(mode) };
        let made = rig.tree.create(SUPERUSER, ROOT, name.as_bytes(), new).unwrap();
        assert_eq!((made.rdev, made.mode & 0o170_000), (rdev, mode & 0o170_000), "{name}");
    }
    for target in ["short", &"long".repeat(300)] {
        let new = NewNode { target: target.as_bytes(), ..new_node(0o120_777) };
        let name = format!("link{}", target.len());
        let made = rig.tree.create(SUPERUSER, ROOT, name.as_bytes(), new).unwrap();
        assert_eq!((made.size, made.mode), (target.len() as u64, 0o120_777));
        assert_eq!(rig.tree.read_link(made.node).unwrap(), target.as_bytes());
    }
    assert_eq!(code(rig.make(ROOT, "odd", 0o030_644)), 22);
    let empty = NewNode { target: b"", ..new_node(0o120_777) };
    assert_eq!(code(rig.tree.create(SUPERUSER, ROOT, b"empty", empty)), 2);
    check(&rig.objects);
}

#[test]
fn names_that_cannot_be() {
    let rig = plain();
    let file = rig.file(ROOT, "f");
    for (name, number) in [("", 2), (".", 17), ("..", 17), ("a/b", 22), ("f", 17)] {
        assert_eq!(code(rig.make(ROOT, name, 0o100_644)), number, "{name}");
    }
    assert_eq!(code(rig.make(ROOT, &"x".repeat(256), 0o100_644)), 36);
    assert_eq!(code(rig.make(ROOT, &"x".repeat(255), 0o100_644)), 0);
    assert_eq!(code(rig.make(file, "x", 0o100_644)), 20);
    assert_eq!(code(rig.tree.unlink(SUPERUSER, ROOT, b"none")), 2);
    assert_eq!(code(rig.tree.remove_directory(SUPERUSER, ROOT, b"f")), 20);
    assert_eq!(code(rig.tree.remove_directory(SUPERUSER, ROOT, b".")), 22);
    rig.directory(ROOT, "d");
    assert_eq!(code(rig.tree.unlink(SUPERUSER, ROOT, b"d")), 21);
    assert_eq!(code(rig.tree.link(SUPERUSER, file, ROOT, b"d")), 17);
    let directory = rig.tree.lookup(ROOT, b"d").unwrap().node;
    assert_eq!(code(rig.tree.link(SUPERUSER, directory, ROOT, b"e")), 1);
}

#[test]
fn hard_links_count() {
    let rig = plain();
    let file = rig.file(ROOT, "a");
    let directory = rig.directory(ROOT, "d");
    assert_eq!(rig.tree.link(SUPERUSER, file, directory, b"b").unwrap().links, 2);
    check(&rig.objects);
    rig.tree.unlink(SUPERUSER, ROOT, b"a").unwrap();
    rig.tree.forget(file);
    assert_eq!(rig.tree.attributes(file).unwrap().links, 1);
    let unnamed = rig.tree.create_unnamed(SUPERUSER, ROOT, new_node(0o100_600)).unwrap();
    assert_eq!(unnamed.links, 0);
    rig.write(unnamed.node, 0, b"data");
    check(&rig.objects);
    assert_eq!(rig.tree.link(SUPERUSER, unnamed.node, ROOT, b"named").unwrap().links, 1);
    rig.tree.forget(unnamed.node);
    assert_eq!(rig.read(unnamed.node, 0, 10), b"data");
    check(&rig.objects);
}

#[test]
fn renames() {
    let rig = plain();
    let (a, b) = (rig.directory(ROOT, "a"), rig.directory(ROOT, "b"));
    let file = rig.file(a, "f");
    assert_eq!(rename(&rig, (a, "f"), (a, "g"), NO_FLAGS), 0);
    assert_eq!(rename(&rig, (a, "f"), (a, "g"), NO_FLAGS), 2);
    assert_eq!(rename(&rig, (a, "g"), (b, "f"), NO_FLAGS), 0);
    assert_eq!(rig.tree.lookup(b, b"f").unwrap().node, file);
    check(&rig.objects);
    let inner = rig.directory(a, "inner");
    assert_eq!(rename(&rig, (ROOT, "a"), (inner, "x"), NO_FLAGS), 22);
    assert_eq!(rename(&rig, (ROOT, "a"), (a, "x"), NO_FLAGS), 22);
    assert_eq!(rename(&rig, (a, "inner"), (ROOT, "a"), NO_FLAGS), 39);
    assert_eq!(rename(&rig, (a, "inner"), (b, "f"), NO_FLAGS), 20);
    assert_eq!(rename(&rig, (b, "f"), (a, "inner"), NO_FLAGS), 21);
    assert_eq!(rename(&rig, (ROOT, "a"), (ROOT, "b"), NO_FLAGS), 39);
    let empty = rig.directory(ROOT, "empty");
    assert_eq!(rename(&rig, (ROOT, "a"), (ROOT, "empty"), NO_FLAGS), 0);
    rig.tree.forget(empty);
    assert_eq!(names(&rig, ROOT), ["b", "empty"]);
    check(&rig.objects);
    let other = rig.file(ROOT, "other");
    let no_replace = RenameFlags { no_replace: true, ..NO_FLAGS };
    assert_eq!(rename(&rig, (ROOT, "other"), (b, "f"), no_replace), 17);
    assert_eq!(rename(&rig, (ROOT, "other"), (b, "f"), NO_FLAGS), 0);
    assert_eq!(rig.tree.attributes(file).unwrap().links, 0);
    rig.tree.forget(file);
    let exchange = RenameFlags { exchange: true, ..NO_FLAGS };
    assert_eq!(rename(&rig, (b, "f"), (a, "inner"), exchange), 0);
    assert_eq!(rig.tree.lookup(a, b"inner").unwrap().node, other);
    assert_eq!(rig.tree.lookup(b, b"f").unwrap().node, inner);
    check(&rig.objects);
    assert_eq!(rename(&rig, (ROOT, "b"), (b, "f"), exchange), 22);
    assert_eq!(rename(&rig, (b, "f"), (ROOT, "b"), exchange), 22);
    let whiteout = RenameFlags { whiteout: true, ..NO_FLAGS };
    assert_eq!(rename(&rig, (a, "inner"), (ROOT, "moved"), whiteout), 0);
    let white = rig.tree.lookup(a, b"inner").unwrap();
    assert_eq!((white.mode, white.rdev), (0o020_000, 0));
    check(&rig.objects);
    // Two names of one file: nothing happens.
    rig.tree.link(SUPERUSER, other, ROOT, b"again").unwrap();
    assert_eq!(rename(&rig, (ROOT, "again"), (ROOT, "moved"), NO_FLAGS), 0);
    assert_eq!(names(&rig, ROOT), ["again", "b", "empty", "moved"]);
    check(&rig.objects);
}

#[test]
fn names_of_any_case() {
    let new = NewFilesystem {
        case: CaseSensitivity::Insensitive,
        normalization: 0x50,
        utf8_only: true,
        ..NewFilesystem::default()
    };
    let rig = Setup { new, ..Setup::default() }.make();
    let file = rig.file(ROOT, "Readme");
    assert_eq!(rig.tree.lookup(ROOT, b"README").unwrap().node, file);
    assert_eq!(code(rig.make(ROOT, "readme", 0o100_644)), 17);
    assert_eq!(rename(&rig, (ROOT, "readme"), (ROOT, "README"), NO_FLAGS), 0);
    assert_eq!(names(&rig, ROOT), ["README"]);
    rig.file(ROOT, "other");
    assert_eq!(rename(&rig, (ROOT, "OTHER"), (ROOT, "reAdme"), NO_FLAGS), 0);
    rig.tree.forget(file);
    assert_eq!(names(&rig, ROOT), ["reAdme"]);
    check(&rig.objects);
    assert_eq!(code(rig.tree.create(SUPERUSER, ROOT, b"\xff", new_node(0o100_644))), 84);
    rig.tree.unlink(SUPERUSER, ROOT, "README".as_bytes()).unwrap();
    assert!(names(&rig, ROOT).is_empty());
}

#[test]
fn modes_owners_and_times() {
    let rig = plain();
    let file = rig.file(ROOT, "f");
    let set = |change: SetAttributes| rig.tree.set_attributes(SUPERUSER, file, &change).unwrap();
    let none = SetAttributes::default();
    for mode in [0o777, 0o000, 0o642, 0o7755, 0o246, 0o644] {
        assert_eq!(set(SetAttributes { mode: Some(mode), ..none }).mode, 0o100_000 | mode);
        check(&rig.objects);
    }
    let owned = set(SetAttributes { uid: Some(7), gid: Some(8), ..none });
    assert_eq!((owned.uid, owned.gid), (7, 8));
    let at = Timestamp { seconds: -5, nanoseconds: 123_456_789 };
    let timed = set(SetAttributes {
        accessed: Some(SetTime::At(at)),
        modified: Some(SetTime::Now),
        ..none
    });
    assert_eq!(timed.accessed, at);
    assert!(timed.modified > owned.modified && timed.changed >= timed.modified);
    set(SetAttributes { mode: Some(0o6775), ..none });
    rig.tree.write(SOMEBODY, file, 0, b"x", true).unwrap();
    assert_eq!(rig.tree.attributes(file).unwrap().mode, 0o100_775);
    set(SetAttributes { mode: Some(0o6765), ..none });
    assert_eq!(set(SetAttributes { size: Some(0), kill_set_id: true, ..none }).mode, 0o102_765);
    // Everything is in the objects, not only in memory.
    let view = View::open(rig.objects.clone(), 0).unwrap();
    let facts = view.file(ObjectId(file)).unwrap().facts;
    assert_eq!((facts.mode, facts.uid, facts.size), (0o102_765, 7, 0));
}

#[test]
fn set_group_id_directories_hand_their_group_on() {
    let rig = plain();
    let directory = rig.directory(ROOT, "d");
    let change = SetAttributes { mode: Some(0o2777), gid: Some(55), ..SetAttributes::default() };
    rig.tree.set_attributes(SUPERUSER, directory, &change).unwrap();
    let inner = rig.tree.create(SOMEBODY, directory, b"i", new_node(0o040_755)).unwrap();
    assert_eq!((inner.mode, inner.uid, inner.gid), (0o042_755, 1000, 55));
    let file = rig.tree.create(SOMEBODY, directory, b"f", new_node(0o102_775)).unwrap();
    assert_eq!((file.mode, file.gid), (0o100_755, 55), "somebody is no member");
}

#[test]
fn blocks_grow_to_the_record_size() {
    let properties = WriteProperties { record_size: 8192, ..WriteProperties::default() };
    let rig = Setup { properties, ..Setup::default() }.make();
    let file = rig.file(ROOT, "f");
    let block = || rig.tree.attributes(file).unwrap().block_size;
    for (end, size) in [(100, 512), (513, 1024), (3000, 3072), (8000, 8192), (100_000, 8192)] {
        rig.write(file, end - 1, b"x");
        assert_eq!(block(), size, "{end}");
    }
    let long = rig.file(ROOT, "long");
    rig.write(long, 0, &[7; 9000]);
    assert_eq!(rig.tree.attributes(long).unwrap().block_size, 8192);
    let change = SetAttributes { size: Some(1 << 32), ..SetAttributes::default() };
    let huge = rig.file(ROOT, "huge");
    rig.tree.set_attributes(SUPERUSER, huge, &change).unwrap();
    rig.write(huge, (1 << 32) - 1, b"!");
    assert_eq!(rig.read(huge, (1 << 32) - 2, 10), b"\0!");
    assert_eq!(rig.tree.seek(huge, 5, Seek::Data).unwrap(), (1 << 32) - 8192);
    check(&rig.objects);
    let too_far = rig.tree.write(SUPERUSER, huge, i64::MAX as u64, b"x", false);
    assert_eq!(code(too_far), 27);
    let change = SetAttributes { size: Some(100), ..SetAttributes::default() };
    rig.tree.set_attributes(SUPERUSER, huge, &change).unwrap();
    check(&rig.objects);
}

#[test]
fn ranges_are_punched_zeroed_and_reserved() {
    let rig = plain();
    let file = rig.file(ROOT, "f");
    rig.write(file, 0, &[9; 300_000]);
    let allocate = |offset, len, what| code(rig.tree.allocate(SUPERUSER, file, offset, len, what));
    assert_eq!(allocate(100, 200_000, Allocate::PunchHole), 0);
    let data = rig.read(file, 0, 300_000);
    assert!(data[..100].iter().all(|b| *b == 9) && data[100..200_100].iter().all(|b| *b == 0));
    assert!(data[200_100..].iter().all(|b| *b == 9));
    assert_eq!(allocate(299_000, 5000, Allocate::ZeroRange { keep_size: true }), 0);
    assert_eq!(rig.tree.attributes(file).unwrap().size, 300_000);
    assert_eq!(allocate(299_000, 5000, Allocate::ZeroRange { keep_size: false }), 0);
    assert_eq!(rig.tree.attributes(file).unwrap().size, 304_000);
    assert_eq!(allocate(0, 400_000, Allocate::Reserve { keep_size: true }), 0);
    assert_eq!(allocate(0, 400_000, Allocate::Reserve { keep_size: false }), 0);
    assert_eq!(rig.tree.attributes(file).unwrap().size, 400_000);
    assert_eq!(allocate(0, 0, Allocate::PunchHole), 22);
    assert_eq!(allocate(u64::MAX, 2, Allocate::PunchHole), 27);
    check(&rig.objects);
    let copy = rig.file(ROOT, "copy");
    let copied = rig.tree.copy_range(SUPERUSER, (file, 50), (copy, 7), 1 << 30).unwrap();
    assert_eq!(copied, 400_000 - 50);
    assert_eq!(rig.read(copy, 7, 400_000), rig.read(file, 50, 400_000));
    let overlap = rig.tree.copy_range(SUPERUSER, (file, 0), (file, 5), 10);
    assert_eq!(code(overlap), 22);
    check(&rig.objects);
}

fn xattrs(mode: XattrMode) {
    let rig = Setup { xattr: mode, ..Setup::default() }.make();
    let file = rig.file(ROOT, "f");
    let set = |name: &str, value: &[u8], how| {
        code(rig.tree.set_xattr(SUPERUSER, file, name.as_bytes(), value, how))
    };
    let get = |name: &str| rig.tree.get_xattr(file, name.as_bytes()).map_err(|error| error.code);
    assert_eq!(set("user.a", b"one", XattrWrite::Replace), 61);
    assert_eq!(set("user.a", b"one", XattrWrite::Create), 0);
    assert_eq!(set("user.a", b"two", XattrWrite::Create), 17);
    assert_eq!(set("user.a", b"two", XattrWrite::Replace), 0);
    assert_eq!(set("trusted.empty", b"", XattrWrite::Any), 0);
    // Too large for the list: it becomes a file; what no longer fits beside others does too.
    let large = vec![5; 40_000];
    assert_eq!(set("user.large", &large, XattrWrite::Any), 0);
    for index in 0..5 {
        assert_eq!(set(&format!("user.n{index}"), &[index; 20_000], XattrWrite::Any), 0);
    }
    check(&rig.objects);
    assert_eq!(get("user.a").unwrap(), b"two");
    assert_eq!(get("trusted.empty").unwrap(), b"");
    assert_eq!(get("user.large").unwrap(), large);
    for index in 0..5 {
        assert_eq!(get(&format!("user.n{index}")).unwrap(), [index; 20_000]);
    }
    assert_eq!(set("user.large", b"small", XattrWrite::Any), 0);
    assert_eq!(get("user.large").unwrap(), b"small");
    let mut listed = rig.tree.list_xattr(file).unwrap();
    listed.sort();
    assert_eq!(listed.len(), 8);
    for name in &listed {
        rig.tree.remove_xattr(SUPERUSER, file, name).unwrap();
    }
    assert!(rig.tree.list_xattr(file).unwrap().is_empty());
    assert_eq!(code(rig.tree.remove_xattr(SUPERUSER, file, b"user.a")), 61);
    assert_eq!(set("nonsense", b"", XattrWrite::Any), 95);
    set("user.large", &large, XattrWrite::Any);
    check(&rig.objects);
    rig.tree.unlink(SUPERUSER, ROOT, b"f").unwrap();
    rig.tree.forget(file);
    check(&rig.objects);
    // The hidden directory and its files went with it: the root is the only file left.
    let view = View::open(rig.objects.clone(), 0).unwrap();
    let mut after = 0;
    while let Some(id) = rig.objects.next_object(after).unwrap() {
        assert!(id == view.root() || view.file(id).is_err(), "object {id} is left");
        after = id.0;
    }
}

#[test]
fn xattrs_in_the_list() {
    xattrs(XattrMode::SystemAttributes);
}

#[test]
fn xattrs_in_the_directory() {
    xattrs(XattrMode::Directory);
}

#[test]
fn access_lists_follow_the_mode_and_are_inherited() {
    let entry = |tag, permissions| Entry { tag, permissions };
    let list = PosixAcl {
        entries: vec![
            entry(Tag::Owner, 7),
            entry(Tag::User(1000), 7),
            entry(Tag::OwningGroup, 5),
            entry(Tag::Mask, 7),
            entry(Tag::Other, 0),
        ],
    };
    for xattr in [XattrMode::SystemAttributes, XattrMode::Directory] {
        let rig = Setup { xattr, acl: AclType::Posix, ..Setup::default() }.make();
        let directory = rig.directory(ROOT, "d");
        let set = |node, name: &[u8], value: &[u8]| {
            code(rig.tree.set_xattr(SUPERUSER, node, name, value, XattrWrite::Any))
        };
        assert_eq!(set(directory, ACCESS_NAME, &list.encode()), 0);
        assert_eq!(rig.tree.attributes(directory).unwrap().mode, 0o040_770);
        assert!(rig.tree.access(directory, SOMEBODY, 7).is_ok());
        let change = SetAttributes { mode: Some(0o750), ..SetAttributes::default() };
        rig.tree.set_attributes(SUPERUSER, directory, &change).unwrap();
        let now = rig.tree.get_xattr(directory, ACCESS_NAME).unwrap();
        let now = PosixAcl::decode(&now).unwrap();
        assert_eq!((now.mode(), now.entries[3].permissions), (0o750, 5));
        assert!(rig.tree.access(directory, SOMEBODY, 2).is_err());
        assert_eq!(set(directory, DEFAULT_NAME, &list.encode()), 0);
        let file = rig.tree.create(SUPERUSER, directory, b"f", new_node(0o100_666)).unwrap();
        // The umask does not count: the default list does.
        assert_eq!(file.mode, 0o100_660);
        let inherited = rig.tree.get_xattr(file.node, ACCESS_NAME).unwrap();
        assert_eq!(PosixAcl::decode(&inherited).unwrap().mode(), 0o660);
        assert_eq!(code(rig.tree.get_xattr(file.node, DEFAULT_NAME)), 61);
        assert_eq!(set(file.node, DEFAULT_NAME, &list.encode()), 13);
        let inner = rig.directory(directory, "inner");
        assert_eq!(rig.tree.get_xattr(inner, DEFAULT_NAME).unwrap(), list.encode());
        let plain = PosixAcl {
            entries: vec![entry(Tag::Owner, 6), entry(Tag::OwningGroup, 4), entry(Tag::Other, 0)],
        };
        assert_eq!(set(file.node, ACCESS_NAME, &plain.encode()), 0);
        assert_eq!(rig.tree.attributes(file.node).unwrap().mode, 0o100_640);
        assert_eq!(code(rig.tree.get_xattr(file.node, ACCESS_NAME)), 61);
        assert_eq!(set(file.node, ACCESS_NAME, b"\x02\0\0\0junk"), 22);
        check(&rig.objects);
    }
}

#[test]
fn flags_forbid() {
    let rig = plain();
    let file = rig.file(ROOT, "f");
    let directory = rig.directory(ROOT, "d");
    rig.file(directory, "inside");
    rig.write(file, 0, b"data");
    let writer = rig.tree.writer().unwrap();
    writer.set_flags(ObjectId(file), pflags::APPEND_ONLY, 0).unwrap();
    let write = |offset| code(rig.tree.write(SUPERUSER, file, offset, b"x", false));
    assert_eq!((write(0), write(4)), (1, 0));
    assert_eq!(code(rig.tree.unlink(SUPERUSER, ROOT, b"f")), 1);
    assert_eq!(rename(&rig, (ROOT, "f"), (ROOT, "g"), NO_FLAGS), 1);
    let cut = SetAttributes { size: Some(0), ..SetAttributes::default() };
    assert_eq!(code(rig.tree.set_attributes(SUPERUSER, file, &cut)), 1);
    writer.set_flags(ObjectId(file), pflags::IMMUTABLE, pflags::APPEND_ONLY).unwrap();
    assert_eq!(write(5), 1);
    let touch = SetAttributes { modified: Some(SetTime::Now), ..SetAttributes::default() };
    assert_eq!(code(rig.tree.set_attributes(SUPERUSER, file, &touch)), 1);
    assert_eq!(code(rig.tree.link(SUPERUSER, file, ROOT, b"l")), 1);
    writer.set_flags(ObjectId(directory), pflags::APPEND_ONLY, 0).unwrap();
    assert_eq!(code(rig.make(directory, "more", 0o100_644)), 0);
    assert_eq!(code(rig.tree.unlink(SUPERUSER, directory, b"inside")), 1);
    writer.set_flags(ObjectId(directory), pflags::IMMUTABLE, 0).unwrap();
    assert_eq!(code(rig.make(directory, "again", 0o100_644)), 1);
    writer.set_flags(ObjectId(file), 0, pflags::IMMUTABLE).unwrap();
    assert_eq!(write(0), 0);
}

#[test]
fn what_lost_its_names_before_a_crash_goes_at_the_next_mount() {
    let rig = plain();
    let file = rig.file(ROOT, "f");
    rig.write(file, 0, &[1; 100_000]);
    rig.tree.unlink(SUPERUSER, ROOT, b"f").unwrap();
    let Rig { tree, objects, gate } = rig;
    drop(tree);
    let rig = Setup::default().mount(objects, gate);
    rig.tree.writer().unwrap().drain().unwrap();
    assert_eq!(code(rig.tree.attributes(file)), 116);
    check(&rig.objects);
}

#[test]
fn reading_notes_the_time() {
    let rig = plain();
    let file = rig.file(ROOT, "f");
    rig.write(file, 0, b"data");
    let before = rig.tree.attributes(file).unwrap();
    rig.read(file, 0, 4);
    let after = rig.tree.attributes(file).unwrap();
    assert!(after.accessed > before.accessed);
    assert_eq!(after.changed, before.changed);
    rig.tree.writer().unwrap().store_access_times();
    let view = View::open(rig.objects.clone(), 0).unwrap();
    assert_eq!(view.file(ObjectId(file)).unwrap().facts.accessed, after.accessed);
}

#[test]
fn a_set_for_reading_is_refused() {
    let rig = plain();
    let Rig { objects, gate, tree } = rig;
    drop(tree);
    let other = empty_set();
    assert!(View::open(other, 0).is_err(), "an empty set is no filesystem");
    let again = Setup::default().mount(objects, gate);
    assert!(again.tree.is_writable());
    let _ = Arc::new(again.tree);
}

#[test]
fn many_names() {
    let rig = plain();
    let directory = rig.directory(ROOT, "many");
    for index in 0..5000 {
        rig.file(directory, &format!("a-rather-long-name-of-a-file-{index}"));
    }
    assert_eq!(names(&rig, directory).len(), 5000);
    check(&rig.objects);
    for index in (0..5000).step_by(3) {
        let name = format!("a-rather-long-name-of-a-file-{index}");
        let node = rig.tree.lookup(directory, name.as_bytes()).unwrap().node;
        rig.tree.unlink(SUPERUSER, directory, name.as_bytes()).unwrap();
        rig.tree.forget(node);
    }
    assert_eq!(names(&rig, directory).len(), 3333);
    check(&rig.objects);
}
