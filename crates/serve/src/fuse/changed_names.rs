//! Which names in directories that the kernel knows mean other files after the tree was exchanged.
//!
//! The kernel keeps names, those that are not there too. To make it forget all of them at once is possible
//! (`INC_EPOCH`), but takes down what is mounted on directories that have not changed. So the listings of before
//! and after are compared.
//!
//! Invariant: a name is told of if the kernel may know it and it means another node, or none, or means one only now.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};

use cenote_posix::tree::{DirectoryEntry, NodeId, Result, Tree};

/// Most entries gone through: requests wait meanwhile.
const MOST: usize = 200_000;

/// What the kernel may know of a directory.
struct Directory {
    /// The kernel's number and the tree's.
    number: u64,
    node: NodeId,
    /// Names of nodes that it knows.
    known: Vec<(Vec<u8>, NodeId)>,
}

/// The names of one moment.
pub(super) struct Names {
    directories: Vec<Directory>,
    /// Digests of all entries.
    all: HashSet<u64>,
    digests: RandomState,
}

/// A name in a directory of the kernel.
pub(super) type Name = (u64, Vec<u8>);

impl Names {
    /// Those in `directories` (the kernel's numbers and the tree's) of `tree`. None if there are too many, or some
    /// cannot be read.
    pub(super) fn of(
        tree: &dyn Tree,
        directories: impl IntoIterator<Item = (u64, NodeId)>,
        is_known: impl Fn(NodeId) -> bool,
    ) -> Option<Self> {
        let (mut all, digests) = (HashSet::new(), RandomState::new());
        let mut names = Vec::new();
        for (number, node) in directories {
            let mut known = Vec::new();
            let listed = each(tree, node, &mut |name, meant| {
                all.insert(digests.hash_one((node, &name, meant)));
                if is_known(meant) {
                    known.push((name, meant));
                }
                all.len() <= MOST
            });
            // A directory that was removed while somebody works in it has none.
            if listed.is_err_and(|error| error.code != libc::ESTALE) || all.len() > MOST {
                return None;
            }
            names.push(Directory { number, node, known });
        }
        Some(Self { directories: names, all, digests })
    }

    /// The names that mean something else in `tree`, where `is_there` tells whether a directory is the same.
    pub(super) fn changed_in(&self, tree: &dyn Tree, is_there: impl Fn(u64) -> bool) -> Vec<Name> {
        let mut changed = Vec::new();
        for Directory { number, node, known } in &self.directories {
            if !is_there(*number) {
                continue;
            }
            let mut now = HashSet::new();
            let listed = each(tree, *node, &mut |name, meant| {
                let digest = self.digests.hash_one((*node, &name, meant));
                if !self.all.contains(&digest) {
                    changed.push((*number, name));
                }
                now.insert(digest);
                true
            });
            if let Err(error) = listed {
                tracing::warn!(node, %error, "names may be those of before");
            }
            let is_now = |name: &Vec<u8>, meant: &NodeId| {
                now.contains(&self.digests.hash_one((*node, name, meant)))
            };
            let gone = known.iter().filter(|(name, meant)| !is_now(name, meant));
            changed.extend(gone.map(|(name, _)| (*number, name.clone())));
        }
        changed
    }
}

/// Calls `each` for the entries of a directory until it says no.
fn each(
    tree: &dyn Tree,
    node: NodeId,
    each: &mut dyn FnMut(Vec<u8>, NodeId) -> bool,
) -> Result<()> {
    tree.read_directory(node, 0, &mut |entry: DirectoryEntry| {
        matches!(entry.name.as_slice(), b"." | b"..") || each(entry.name, entry.node)
    })
}
