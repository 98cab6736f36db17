//! Random changes of names against a tree of maps.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use cenote_posix::XattrMode;
use cenote_posix::tree::{NodeId, ROOT, RenameFlags, Tree, XattrWrite};
use proptest::prelude::*;

use crate::consistent::check;
use crate::rig::{Rig, SUPERUSER, Setup, new_node};

/// Names are few, so that they meet.
const NAMES: u8 = 6;

#[derive(Clone, Debug)]
enum Step {
    File(u8, u8),
    Directory(u8, u8),
    Link(u8, u8, u8),
    Unlink(u8, u8),
    RemoveDirectory(u8, u8),
    Rename(u8, u8, u8, u8, u8),
    Xattr(u8, u16),
    Unnamed(u8, Option<u8>),
    Forget,
    NextGroup,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (d, n) = (any::<u8>, || 0..NAMES);
    let step = prop_oneof![
        4 => (d(), n()).prop_map(|(d, n)| Step::File(d, n)),
        4 => (d(), n()).prop_map(|(d, n)| Step::Directory(d, n)),
        2 => (d(), d(), n()).prop_map(|(f, d, n)| Step::Link(f, d, n)),
        3 => (d(), n()).prop_map(|(d, n)| Step::Unlink(d, n)),
        2 => (d(), n()).prop_map(|(d, n)| Step::RemoveDirectory(d, n)),
        8 => (d(), n(), d(), n(), 0..4_u8).prop_map(|(a, b, c, e, f)| Step::Rename(a, b, c, e, f)),
        1 => (d(), any::<u16>()).prop_map(|(f, len)| Step::Xattr(f, len)),
        1 => (d(), prop::option::of(n())).prop_map(|(d, n)| Step::Unnamed(d, n)),
        1 => Just(Step::Forget),
        1 => Just(Step::NextGroup),
    ];
    prop::collection::vec(step, 1..120)
}

/// What should be there.
#[derive(Default)]
struct Model {
    directories: BTreeMap<NodeId, BTreeMap<String, NodeId>>,
    parents: BTreeMap<NodeId, NodeId>,
    files: BTreeSet<NodeId>,
    unnamed: BTreeSet<NodeId>,
}

impl Model {
    fn directory(&self, pick: u8) -> NodeId {
        let index = usize::from(pick) % self.directories.len();
        *self.directories.keys().nth(index).unwrap()
    }

    fn file(&self, pick: u8) -> Option<NodeId> {
        let count = self.files.len();
        (count > 0).then(|| *self.files.iter().nth(usize::from(pick) % count).unwrap())
    }

    fn is_directory(&self, node: NodeId) -> bool {
        self.directories.contains_key(&node)
    }

    fn is_below(&self, mut node: NodeId, above: NodeId) -> bool {
        loop {
            if node == above {
                return true;
            }
            match self.parents.get(&node) {
                Some(parent) if *parent != node => node = *parent,
                _ => return false,
            }
        }
    }

    /// A name was taken away.
    fn dropped(&mut self, node: NodeId) {
        if self.directories.remove(&node).is_some() {
            self.parents.remove(&node);
            self.unnamed.insert(node);
        } else if !self.directories.values().any(|names| names.values().any(|id| *id == node)) {
            self.files.remove(&node);
            self.unnamed.insert(node);
        }
    }

    fn rename(&mut self, from: NodeId, old: &str, to: NodeId, new: &str, kind: u8) -> i32 {
        let (exchange, no_replace) = (kind == 1, kind == 2);
        let Some(source) = self.directories[&from].get(old).copied() else { return 2 };
        let target = self.directories[&to].get(new).copied();
        if self.is_directory(source) && from != to && self.is_below(to, source) {
            return 22;
        }
        if let Some(target) = target {
            if exchange && self.is_directory(target) && from != to && self.is_below(from, target) {
                return 22;
            }
            if target == from {
                return 39;
            }
            if no_replace {
                return 17;
            }
            if target == source {
                return 0;
            }
        }
        if exchange {
            let Some(target) = target else { return 2 };
            self.directories.get_mut(&to).unwrap().insert(new.into(), source);
            self.directories.get_mut(&from).unwrap().insert(old.into(), target);
            for (node, parent) in [(source, to), (target, from)] {
                if self.is_directory(node) {
                    self.parents.insert(node, parent);
                }
            }
            return 0;
        }
        if let Some(target) = target {
            match (self.is_directory(source), self.is_directory(target)) {
                (true, false) => return 20,
                (false, true) => return 21,
                (true, true) if !self.directories[&target].is_empty() => return 39,
                _ => {}
            }
        }
        self.directories.get_mut(&from).unwrap().remove(old);
        self.directories.get_mut(&to).unwrap().insert(new.into(), source);
        if self.is_directory(source) {
            self.parents.insert(source, to);
        }
        if let Some(target) = target {
            self.dropped(target);
        }
        0
    }
}

fn name(number: u8) -> String {
    // Some are too long for a micro ZAP.
    if number == 0 { "long".repeat(20) } else { format!("n{number}") }
}

fn apply(rig: &Rig, model: &mut Model, step: &Step, groups: &mut u32) {
    let tree = &rig.tree;
    match *step {
        Step::File(d, n) | Step::Directory(d, n) => {
            let is_directory = matches!(step, Step::Directory(..));
            let (directory, name) = (model.directory(d), name(n));
            let mode = if is_directory { 0o040_755 } else { 0o100_644 };
            let made = rig.make(directory, &name, mode);
            let names = model.directories.get_mut(&directory).unwrap();
            if names.contains_key(&name) {
                assert_eq!(made.unwrap_err().code, 17);
                return;
            }
            let node = made.unwrap().node;
            names.insert(name, node);
            if is_directory {
                model.directories.insert(node, BTreeMap::new());
                model.parents.insert(node, directory);
            } else {
                model.files.insert(node);
            }
        }
        Step::Link(f, d, n) => {
            let Some(file) = model.file(f) else { return };
            let (directory, name) = (model.directory(d), name(n));
            let linked = tree.link(SUPERUSER, file, directory, name.as_bytes());
            let names = model.directories.get_mut(&directory).unwrap();
            match names.entry(name) {
                Entry::Occupied(_) => assert_eq!(linked.unwrap_err().code, 17),
                Entry::Vacant(free) => {
                    linked.unwrap();
                    free.insert(file);
                }
            }
        }
        Step::Unlink(d, n) | Step::RemoveDirectory(d, n) => {
            let wants_directory = matches!(step, Step::RemoveDirectory(..));
            let (directory, name) = (model.directory(d), name(n));
            let done = match wants_directory {
                true => tree.remove_directory(SUPERUSER, directory, name.as_bytes()),
                false => tree.unlink(SUPERUSER, directory, name.as_bytes()),
            };
            let code = done.err().map_or(0, |error| error.code);
            let found = model.directories[&directory].get(&name).copied();
            let Some(node) = found else { return assert_eq!(code, 2) };
            let expected = match (wants_directory, model.directories.get(&node)) {
                (true, None) => 20,
                (false, Some(_)) => 21,
                (true, Some(names)) if !names.is_empty() => 39,
                _ => 0,
            };
            assert_eq!(code, expected);
            if code == 0 {
                model.directories.get_mut(&directory).unwrap().remove(&name);
                model.dropped(node);
            }
        }
        Step::Rename(a, old, b, new, kind) => {
            let (from, to, old, new) =
                (model.directory(a), model.directory(b), name(old), name(new));
            let flags = RenameFlags {
                exchange: kind == 1,
                no_replace: kind == 2,
                ..RenameFlags::default()
            };
            let done = tree.rename(SUPERUSER, from, old.as_bytes(), to, new.as_bytes(), flags);
            let code = done.err().map_or(0, |error| error.code);
            assert_eq!(code, model.rename(from, &old, to, &new, kind), "{step:?}");
        }
        Step::Xattr(f, len) => {
            let Some(file) = model.file(f) else { return };
            let value = vec![7; usize::from(len)];
            tree.set_xattr(SUPERUSER, file, b"user.x", &value, XattrWrite::Any).unwrap();
            assert_eq!(tree.get_xattr(file, b"user.x").unwrap(), value);
        }
        Step::Unnamed(d, n) => {
            let directory = model.directory(d);
            let made = tree.create_unnamed(SUPERUSER, directory, new_node(0o100_600)).unwrap();
            model.unnamed.insert(made.node);
            let Some(name) = n.map(name) else { return };
            let names = model.directories.get_mut(&directory).unwrap();
            if let Entry::Vacant(free) = names.entry(name) {
                tree.link(SUPERUSER, made.node, directory, free.key().as_bytes()).unwrap();
                free.insert(made.node);
                model.unnamed.remove(&made.node);
                model.files.insert(made.node);
            }
        }
        Step::Forget => {
            for node in std::mem::take(&mut model.unnamed) {
                tree.forget(node);
                assert_eq!(tree.attributes(node).unwrap_err().code, 116);
            }
        }
        Step::NextGroup if *groups == 0 => {
            *groups = 1;
            rig.gate.close();
        }
        Step::NextGroup => {}
    }
}

fn compare(rig: &Rig, model: &Model) {
    for (directory, names) in &model.directories {
        let mut found = BTreeMap::new();
        rig.tree
            .read_directory(*directory, 0, &mut |entry| {
                found.insert(String::from_utf8(entry.name).unwrap(), entry.node);
                true
            })
            .unwrap();
        found.remove(".");
        let parent = found.remove("..").unwrap();
        assert_eq!(parent, model.parents[directory]);
        assert_eq!(found, *names);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn names_are_where_they_were_put(steps in steps(), in_list in any::<bool>()) {
        let xattr = if in_list { XattrMode::SystemAttributes } else { XattrMode::Directory };
        let rig = Setup { xattr, ..Setup::default() }.make();
        let root = rig.tree.attributes(ROOT).unwrap().node;
        let mut model = Model::default();
        model.directories.insert(root, BTreeMap::new());
        model.parents.insert(root, root);
        let mut groups = 0;
        for step in &steps {
            apply(&rig, &mut model, step, &mut groups);
        }
        compare(&rig, &model);
        check(&rig.objects);
    }
}
