//! Whom hidden files of extended attributes belong to: whom their file does, for space is counted so.

use cenote_format::{ObjectId, pflags};
use cenote_posix::tree::{FileFlags, NodeId, ROOT, SetAttributes, Tree, XattrWrite};
use cenote_posix::{View, XattrMode};

use super::rig::{Rig, SUPERUSER, Setup};

/// More than are changed at once.
const MANY: usize = 1_500;

fn rig_with(xattrs: usize) -> (Rig, NodeId) {
    let rig = Setup { xattr: XattrMode::Directory, ..Setup::default() }.make();
    let file = rig.file(ROOT, "f");
    for number in 0..xattrs {
        let name = format!("user.n{number}");
        rig.tree.set_xattr(SUPERUSER, file, name.as_bytes(), b"x", XattrWrite::Any).unwrap();
    }
    (rig, file)
}

/// Owner, group and project of all hidden files and directories.
fn hidden(rig: &Rig) -> Vec<(u32, u32, u64)> {
    let view = View::open(rig.objects.clone(), 0).unwrap();
    let all = (1..2 * MANY as u64).filter_map(|id| view.file(ObjectId(id)).ok());
    let hidden = all.filter(|file| file.facts.flags & pflags::XATTR != 0);
    hidden.map(|file| (file.facts.uid, file.facts.gid, file.facts.project)).collect()
}

fn give(rig: &Rig, file: NodeId, uid: Option<u32>, gid: Option<u32>) {
    let change = SetAttributes { uid, gid, ..SetAttributes::default() };
    rig.tree.set_attributes(SUPERUSER, file, &change).unwrap();
}

#[test]
fn attribute_files_follow_their_file_to_its_owner() {
    let (rig, file) = rig_with(3);
    assert_eq!(hidden(&rig), [(0, 0, 0); 4]);
    give(&rig, file, Some(7), None);
    assert_eq!(hidden(&rig), [(7, 0, 0); 4]);
    give(&rig, file, None, Some(8));
    assert_eq!(hidden(&rig), [(7, 8, 0); 4]);
    assert_eq!(rig.tree.get_xattr(file, b"user.n1").unwrap(), b"x");
}

#[test]
fn attribute_files_follow_their_file_into_its_project() {
    let (rig, file) = rig_with(3);
    let flags = FileFlags { project: 9, ..FileFlags::default() };
    rig.tree.set_file_flags(SUPERUSER, file, &flags).unwrap();
    assert_eq!(hidden(&rig), [(0, 0, 9); 4]);
}

#[test]
fn very_many_attribute_files_follow_in_several_changes() {
    let (rig, file) = rig_with(MANY);
    give(&rig, file, Some(7), Some(8));
    assert_eq!(hidden(&rig).len(), MANY + 1);
    assert!(hidden(&rig).iter().all(|owners| *owners == (7, 8, 0)));
}
