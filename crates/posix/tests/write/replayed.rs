//! Records of the intent log, noted in one filesystem and applied to another.

use std::sync::Arc;

use bytes::Bytes;
use cenote_engine::intent::Replay;
use cenote_engine::txg::{Gate, Tx};
use cenote_format::bytes::ByteOrder;
use cenote_format::objset::ObjsetKind;
use cenote_format::zil::{
    AclParts, Create, Created, ExtendedAttributes, LogId, Payload, Record, SetAttributes as LogSet,
    mask_linux,
};
use cenote_format::{BlockPointer, ObjectId, Txg, acl, pflags};
use cenote_posix::create::initialise_volume;
use cenote_posix::tree::{
    Allocate, FileFlags, ROOT, RenameFlags, SetAttributes, SetTime, Tree, XattrWrite,
};
use cenote_posix::write::AclMode;
use cenote_posix::{ChangeLog, View, Volume, VolumeWriteOptions, WriteProperties, XattrMode};
use parking_lot::Mutex;

use crate::consistent::check;
use crate::rig::{Rig, SOMEBODY, SUPERUSER, Setup, code, new_node, set_of};

/// Keeps what is noted.
#[derive(Default)]
pub struct Notes {
    /// The records.
    pub records: Mutex<Vec<Payload>>,
    /// For each change that no record tells, how many records there were before.
    pub wholes: Mutex<Vec<usize>>,
}

impl Notes {
    /// Applies the records to `again`, as the log has them.
    pub fn replay(&self, again: &Rig) {
        again.tree.writer().unwrap().set_replaying(true);
        for (index, payload) in self.records.lock().iter().enumerate() {
            apply(again, index as u64 + 1, payload).unwrap_or_else(|error| {
                panic!("{payload:?}: {error}");
            });
        }
        again.tree.writer().unwrap().set_replaying(false);
    }
}

/// Applies a record, as the log has it.
pub fn apply(rig: &Rig, sequence: u64, payload: &Payload) -> cenote_engine::Result<()> {
    let payload = payload.clone();
    let record = Record { txg: Txg(9), sequence, case_insensitive: false, payload };
    let record = Record::decode(&record.encode().unwrap(), ByteOrder::Little).unwrap();
    rig.tree.apply(&record, None)
}

impl ChangeLog for Notes {
    fn note(
        &self,
        _tx: &Tx,
        _object: u64,
        payload: Payload,
    ) -> Result<(), cenote_posix::tree::Errno> {
        self.records.lock().push(payload);
        Ok(())
    }

    fn note_write(&self, _tx: &Tx, object: u64, offset: u64, data: &[u8]) {
        self.records.lock().push(Payload::Write {
            object,
            offset,
            length: data.len() as u64,
            block_offset: 0,
            block: BlockPointer::HOLE,
            data: Some(data.to_vec()),
        });
    }

    fn note_whole(&self, _tx: &Tx) {
        self.wholes.lock().push(self.records.lock().len());
    }

    fn forget(&self, _object: u64) {}
}

/// Path, what `stat` says of it, its data.
type Listed = Vec<(String, String, Vec<u8>)>;

fn listing(rig: &Rig, node: u64, path: &str, out: &mut Listed) {
    let mut entries = Vec::new();
    rig.tree
        .read_directory(node, 0, &mut |entry| {
            entries.push((String::from_utf8(entry.name).unwrap(), entry.node));
            true
        })
        .unwrap();
    entries.retain(|(name, _)| name != "." && name != "..");
    entries.sort();
    for (name, node) in entries {
        let stat = rig.tree.attributes(node).unwrap();
        let path = format!("{path}/{name}");
        let said = format!(
            "{} {:o} {} {} {} {} {} {:?} {}",
            stat.node,
            stat.mode,
            stat.links,
            stat.uid,
            stat.gid,
            stat.size,
            stat.rdev,
            stat.created,
            stat.generation
        );
        let data = match stat.mode & 0o170_000 {
            0o100_000 => rig.read(node, 0, 1 << 20),
            0o120_000 => rig.tree.read_link(node).unwrap(),
            _ => Vec::new(),
        };
        out.push((path.clone(), said, data));
        if stat.mode & 0o170_000 == 0o040_000 {
            listing(rig, node, &path, out);
        }
    }
}

#[test]
fn a_filesystem_is_made_again_from_its_records() {
    let notes = Arc::new(Notes::default());
    let xattr = XattrMode::SystemAttributes;
    let rig = Setup { log: Some(notes.clone()), xattr, ..Setup::default() }.make();
    let directory = rig.directory(ROOT, "d");
    let file = rig.file(directory, "f");
    rig.write(file, 0, &[5; 70_000]);
    rig.write(file, 100_000, b"tail");
    rig.tree.allocate(SUPERUSER, file, 10, 60_000, Allocate::PunchHole).unwrap();
    let change = SetAttributes {
        mode: Some(0o4711),
        uid: Some(9),
        gid: Some(8),
        size: Some(99_000),
        ..SetAttributes::default()
    };
    rig.tree.set_attributes(SUPERUSER, file, &change).unwrap();
    rig.tree.link(SUPERUSER, file, ROOT, b"second").unwrap();
    let link = cenote_posix::tree::NewNode { target: b"to/somewhere", ..new_node(0o120_777) };
    rig.tree.create(SUPERUSER, ROOT, b"link", link).unwrap();
    let device = cenote_posix::tree::NewNode { rdev: 0x103, ..new_node(0o020_600) };
    rig.tree.create(SUPERUSER, ROOT, b"device", device).unwrap();
    let inner = rig.directory(directory, "inner");
    rig.file(inner, "gone");
    rig.tree.unlink(SUPERUSER, inner, b"gone").unwrap();
    let flags = RenameFlags::default();
    rig.tree.rename(SUPERUSER, directory, b"inner", ROOT, b"moved", flags).unwrap();
    let exchange = RenameFlags { exchange: true, ..flags };
    rig.tree.rename(SUPERUSER, ROOT, b"moved", directory, b"f", exchange).unwrap();
    rig.file(inner, "covered");
    let whiteout = RenameFlags { whiteout: true, ..flags };
    rig.tree.rename(SOMEBODY, inner, b"covered", ROOT, b"shown", whiteout).unwrap();
    rig.directory(ROOT, "removed");
    rig.tree.remove_directory(SUPERUSER, ROOT, b"removed").unwrap();
    rig.tree.set_xattr(SUPERUSER, file, b"user.a", b"value", XattrWrite::Any).unwrap();
    rig.tree.set_xattr(SUPERUSER, file, b"user.b", b"value", XattrWrite::Any).unwrap();
    rig.tree.remove_xattr(SUPERUSER, file, b"user.b").unwrap();

    let again = Setup { xattr, ..Setup::default() }.make();
    notes.replay(&again);
    let (mut first, mut second) = (Vec::new(), Vec::new());
    listing(&rig, ROOT, "", &mut first);
    listing(&again, ROOT, "", &mut second);
    assert_eq!((first.len(), second.len()), (8, 8));
    for (one, other) in first.iter().zip(&second) {
        assert_eq!((&one.0, &one.1), (&other.0, &other.1));
        assert!(one.2 == other.2, "{}", one.0);
    }
    assert_eq!(first.len(), second.len());
    assert_eq!(again.tree.list_xattr(file).unwrap(), [b"user.a".to_vec()]);
    check(&rig.objects);
    check(&again.objects);
    assert!(again.tree.exists(file).unwrap() && !again.tree.exists(1 << 40).unwrap());
}

#[test]
fn a_volume_is_written_again_from_its_records() {
    let objects = set_of(ObjsetKind::Zvol);
    let gate = Gate::new(Txg(3), 1 << 40);
    initialise_volume(&objects, &gate.begin().unwrap(), 1 << 20, 8192).unwrap();
    let options = VolumeWriteOptions { gate, durability: None, log: None, space: None };
    let volume = Volume::open_writable(&objects, options).unwrap();
    let write = |offset: u64, length: usize, data: Option<&[u8]>| Payload::Write {
        object: 1,
        offset,
        length: length as u64,
        block_offset: 0,
        block: BlockPointer::HOLE,
        data: data.map(<[u8]>::to_vec),
    };
    let end = (1 << 20) - 100;
    let block = Bytes::from(vec![7; 16384]);
    let records = [
        (write(5000, 3000, Some(&[1; 3000])), None),
        (write(20_000, 10, None), Some(&block)),
        // Of a time when the volume was larger.
        (write(end, 3000, Some(&[2; 3000])), None),
        (write(5 << 20, 10, Some(&[3; 10])), None),
        (Payload::Truncate { object: 1, offset: 24_576, length: 4096 }, None),
        (Payload::Truncate { object: 1, offset: 2 << 20, length: 4096 }, None),
    ];
    for (index, (payload, block)) in records.into_iter().enumerate() {
        let sequence = index as u64 + 1;
        let record = Record { txg: Txg(9), sequence, case_insensitive: false, payload };
        volume.apply(&record, block).unwrap();
    }
    let mut expected = vec![0; 1 << 20];
    expected[5000..8000].fill(1);
    expected[16_384..32_768].fill(7);
    expected[24_576..28_672].fill(0);
    expected[end as usize..].fill(2);
    let read: Vec<u8> = volume.read_at(0, 2 << 20).unwrap().into_iter().flatten().collect();
    assert!(read == expected);
    assert!(volume.exists(1).unwrap() && !volume.exists(2).unwrap());
    let gone = Payload::Remove { directory: 1, name: b"a".to_vec(), is_directory: false };
    let record = Record { txg: Txg(9), sequence: 9, case_insensitive: false, payload: gone };
    assert!(volume.apply(&record, None).is_err());
}

/// A record that makes a file of `mode`.
fn create(directory: u64, object: u64, name: &[u8], mode: u64) -> Create {
    Create {
        what: if mode & 0o040_000 != 0 { Created::Directory } else { Created::File },
        directory,
        object: LogId { object, extra_slots: 0 },
        mode,
        owner: 0,
        group: 0,
        generation: 9,
        created: [1, 2],
        device: 0,
        acl: None,
        attributes: None,
        domains: Vec::new(),
        name: name.to_vec(),
    }
}

/// The flags `values` among those `requested`, and project 7 if that is one of them.
fn extended(requested: u32, values: u64) -> ExtendedAttributes {
    let mut stamp = [0; 32];
    stamp[0] = 7;
    ExtendedAttributes { requested: [requested, 0, 0], values, created: [5, 6], stamp }
}

fn flags(rig: &Rig, node: u64) -> FileFlags {
    rig.tree.file_flags(node).unwrap()
}

/// The root directory as records have it.
fn root(rig: &Rig) -> u64 {
    View::open(rig.objects.clone(), 0).unwrap().root().0
}

/// A record that gives object 40 a mode.
fn mode_of_40(mask: u64, mode: u64) -> LogSet {
    LogSet {
        object: 40,
        mask,
        mode,
        owner: 0,
        group: 0,
        size: 0,
        accessed: [0; 2],
        modified: [0; 2],
        extended: None,
        domains: Vec::new(),
    }
}

#[test]
fn flags_and_projects_in_records_are_applied() {
    let rig = Setup::default().make();
    let made = Create {
        attributes: Some(extended(0x4_0101, 0x100)),
        ..create(root(&rig), 40, b"f", 0o100_644)
    };
    apply(&rig, 1, &Payload::Create(Box::new(made))).unwrap();
    let made = FileFlags { no_dump: true, project: 7, ..FileFlags::default() };
    assert_eq!(flags(&rig, 40), made);
    assert_eq!(rig.tree.attributes(40).unwrap().created.seconds, 5);
    let set = |mask: u64, extended: ExtendedAttributes| {
        let set =
            LogSet { extended: Some(extended), ..mode_of_40(mask | mask_linux::EXTENDED, 0o600) };
        apply(&rig, 2, &Payload::SetAttributes(Box::new(set)))
    };
    set(mask_linux::MODE, extended(0x140, 0x40)).unwrap();
    assert_eq!(flags(&rig, 40), FileFlags { no_dump: false, immutable: true, ..made });
    assert_eq!(rig.tree.attributes(40).unwrap().mode, 0o100_600);
    // Flags of an immutable file still can be changed; its mode with the flag only.
    set(0, extended(0x100, 0x100)).unwrap();
    assert_eq!(flags(&rig, 40), FileFlags { immutable: true, ..made });
    set(mask_linux::MODE, extended(0x40, 0)).unwrap();
    assert_eq!(flags(&rig, 40), made);
    // Nothing that is asked for is left out silently.
    assert!(set(0, extended(0x1000, 0x1000)).is_err());
    check(&rig.objects);
}

/// A list of a directory that gives a user more than the mode says.
fn list_of_directory() -> Vec<acl::Ace> {
    let named = acl::Ace {
        kind: acl::ALLOW,
        flags: acl::FILE_INHERIT | acl::DIRECTORY_INHERIT,
        mask: acl::READ_DATA | acl::WRITE_DATA,
        id: 1000,
        objects: None,
    };
    [named].into_iter().chain(acl::trivial(0o755, true)).collect()
}

fn parts_of(list: &[acl::Ace]) -> AclParts {
    AclParts { count: list.len() as u64, flags: 0, entries: acl::encode(list), fuids: Vec::new() }
}

/// A record that gives an object a list.
fn set_list(object: u64, list: &[acl::Ace]) -> Payload {
    Payload::SetAcl { object, acl: parts_of(list), domains: Vec::new() }
}

#[test]
fn lists_of_directories_are_inherited_in_a_replay() {
    let rig = Setup::default().make();
    let make = |made: Create| apply(&rig, 1, &Payload::Create(Box::new(made))).unwrap();
    make(create(root(&rig), 40, b"d", 0o040_755));
    let list = list_of_directory();
    let set = set_list(40, &list);
    apply(&rig, 2, &set).unwrap();
    make(create(40, 41, b"inherits", 0o100_600));
    make(Create { acl: Some(parts_of(&list)), ..create(root(&rig), 42, b"own", 0o100_600) });
    make(create(root(&rig), 43, b"plain", 0o100_600));
    let view = View::open(rig.objects.clone(), 0).unwrap();
    let is_trivial = |node: u64| {
        let flags = view.file(ObjectId(node)).unwrap().facts.flags;
        flags & pflags::ACL_TRIVIAL != 0
    };
    assert_eq!([41, 42, 43].map(is_trivial), [false, false, true]);
    check(&rig.objects);
}

#[test]
fn what_was_allowed_is_replayed_whatever_form_its_record_has() {
    let notes = Arc::new(Notes::default());
    // What the log does not tell of is on the disks before it.
    let before = |setup: Setup| {
        let rig = setup.make();
        let (file, directory) = (rig.file(ROOT, "f"), rig.directory(ROOT, "d"));
        rig.write(file, 0, &[5; 5000]);
        let appends = FileFlags { append_only: true, ..flags(&rig, file) };
        rig.tree.set_file_flags(SUPERUSER, file, &appends).unwrap();
        let inherits = FileFlags { project_inherit: true, project: 7, ..FileFlags::default() };
        rig.tree.set_file_flags(SUPERUSER, directory, &inherits).unwrap();
        (rig, file, directory)
    };
    let (rig, file, directory) = before(Setup { log: Some(notes.clone()), ..Setup::default() });
    notes.records.lock().clear();
    let tree = &rig.tree;
    let now = Some(SetTime::Now);
    let touch = SetAttributes { accessed: now, modified: now, ..SetAttributes::default() };
    tree.set_attributes(SUPERUSER, file, &touch).unwrap();
    rig.write(file, 5000, &[6; 1000]);
    tree.allocate(SUPERUSER, file, 0, 9000, Allocate::Reserve { keep_size: false }).unwrap();
    // What is appended may be told of with the block that it ends.
    let data = rig.read(file, 0, 9000);
    notes.note_write(&rig.gate.begin().unwrap(), file, 0, &data);
    let link = cenote_posix::tree::NewNode { target: b"somewhere", ..new_node(0o120_777) };
    let link = tree.create(SUPERUSER, directory, b"link", link).unwrap().node;
    let pipe = tree.create(SUPERUSER, directory, b"pipe", new_node(0o010_644)).unwrap().node;
    let all = [file, directory, link, pipe, rig.file(directory, "file")];
    let projects = |rig: &Rig| {
        let view = View::open(rig.objects.clone(), 0).unwrap();
        all.map(|node| view.file(ObjectId(node)).unwrap().facts.project)
    };

    let (again, ..) = before(Setup::default());
    notes.replay(&again);
    assert!(again.read(file, 0, 20_000) == data);
    assert_eq!((projects(&again), projects(&rig)), ([0, 7, 0, 0, 7], [0, 7, 0, 0, 7]));
    // It is as ever afterwards.
    let cut = SetAttributes { size: Some(0), ..SetAttributes::default() };
    assert_eq!(code(again.tree.set_attributes(SUPERUSER, file, &cut)), 1);
    check(&again.objects);
}

#[test]
fn names_that_are_too_long_by_now_can_go() {
    let rig = Setup { long_names: true, ..Setup::default() }.make();
    let (name, other) = ("n".repeat(300), "m".repeat(300));
    let directory = rig.directory(ROOT, "d");
    rig.file(directory, &name);
    rig.file(directory, &other);
    let Rig { tree, objects, gate } = rig;
    drop(tree);
    let rig = Setup::default().mount(objects, gate);
    assert_eq!(code(rig.make(directory, &"l".repeat(300), 0o100_644)), 36);
    let flags = RenameFlags::default();
    rig.tree.rename(SUPERUSER, directory, name.as_bytes(), ROOT, b"short", flags).unwrap();
    rig.tree.unlink(SUPERUSER, directory, other.as_bytes()).unwrap();
    rig.tree.remove_directory(SUPERUSER, ROOT, b"d").unwrap();
    check(&rig.objects);
}

#[test]
fn a_mode_that_was_changed_before_modes_were_restricted_is_replayed() {
    let restricted =
        WriteProperties { acl_mode: AclMode::Restricted, ..WriteProperties::default() };
    let rig = Setup { properties: restricted, ..Setup::default() }.make();
    let made = create(root(&rig), 40, b"d", 0o040_755);
    apply(&rig, 1, &Payload::Create(Box::new(made))).unwrap();
    apply(&rig, 2, &set_list(40, &list_of_directory())).unwrap();
    let change = SetAttributes { mode: Some(0o700), ..SetAttributes::default() };
    assert_eq!(code(rig.tree.set_attributes(SUPERUSER, 40, &change)), 1);
    let set = mode_of_40(mask_linux::MODE, 0o700);
    let writer = rig.tree.writer().unwrap();
    writer.set_replaying(true);
    apply(&rig, 3, &Payload::SetAttributes(Box::new(set))).unwrap();
    writer.set_replaying(false);
    assert_eq!(rig.tree.attributes(40).unwrap().mode, 0o040_700);
    check(&rig.objects);
}
