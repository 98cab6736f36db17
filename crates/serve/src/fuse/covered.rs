//! Directories that other mounts cover, or are about to.
//!
//! Invariant: while a directory is covered, nothing gets a name in it or below it. Whoever walks along a
//! path while mounts are replaced may come upon the directory below a mount; what it made there would
//! be hidden as soon as the mount is back. ESTALE makes the kernel walk the path once more.

use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use cenote_posix::tree::{NodeId, ROOT, Result, Tree};
use parking_lot::Mutex;

/// How long a directory stays covered after the mount over it was made: somebody may have walked by
/// before that.
const GRACE: Duration = Duration::from_secs(5);
/// Directories looked through on the way up to the root.
const DEEPEST: usize = 1024;

/// The directory at `path`; none for the root.
fn find(tree: &dyn Tree, path: &Path) -> Option<NodeId> {
    let mut node = ROOT;
    for part in path.components() {
        let Component::Normal(name) = part else { continue };
        node = tree.lookup(node, name.as_encoded_bytes()).ok()?.node;
    }
    (node != ROOT).then_some(node)
}

/// Covered directories, and until when.
#[derive(Debug, Default)]
pub(super) struct Covered {
    any: AtomicBool,
    nodes: Mutex<HashMap<NodeId, Place>>,
}

#[derive(Debug)]
struct Place {
    path: PathBuf,
    until: Option<Instant>,
}

impl Covered {
    /// The directory at `path` in `tree` is covered from now on, if it is there.
    pub(super) fn cover(&self, tree: &dyn Tree, path: &Path) {
        if let Some(node) = find(tree, path) {
            self.nodes.lock().insert(node, Place { path: path.to_path_buf(), until: None });
            self.any.store(true, SeqCst);
        }
    }

    /// The directory at `path` is not, nor will be.
    pub(super) fn uncover(&self, tree: &dyn Tree, path: &Path) {
        if self.any.load(SeqCst)
            && let Some(node) = find(tree, path)
        {
            self.nodes.lock().remove(&node);
        }
    }

    /// What is covered is so for a moment only.
    pub(super) fn end_soon(&self) {
        let end = Instant::now() + GRACE;
        self.nodes.lock().values_mut().for_each(|place| {
            place.until.get_or_insert(end);
        });
    }

    /// The directories are those of another tree from now on.
    pub(super) fn exchanged(&self, tree: &dyn Tree) {
        let mut nodes = self.nodes.lock();
        let places = std::mem::take(&mut *nodes).into_values();
        nodes.extend(places.filter_map(|place| Some((find(tree, &place.path)?, place))));
    }

    /// Whether a name in `directory` would be hidden; `parent` gives the directory above another.
    pub(super) fn hides(
        &self,
        directory: NodeId,
        parent: impl Fn(NodeId) -> Result<NodeId>,
    ) -> bool {
        if !self.any.load(SeqCst) {
            return false;
        }
        let covered: Vec<NodeId> = {
            let mut nodes = self.nodes.lock();
            let now = Instant::now();
            nodes.retain(|_, place| place.until.is_none_or(|until| now < until));
            self.any.store(!nodes.is_empty(), SeqCst);
            nodes.keys().copied().collect()
        };
        if covered.is_empty() {
            return false;
        }
        let mut node = directory;
        for _ in 0..DEEPEST {
            if covered.contains(&node) {
                return true;
            }
            match parent(node) {
                Ok(above) if above != node && node != ROOT => node = above,
                _ => return false,
            }
        }
        false
    }
}
