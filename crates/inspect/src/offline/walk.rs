//! Walking a [`Tree`] in name order, depth first, without recursion.
//!
//! Invariant: a directory with several names, its own descendant maybe (a damaged or hostile image),
//! is entered once.

use std::collections::HashSet;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use cenote_posix::tree::{Attributes, Errno, NodeId, Tree};

/// File type bits of a directory in `st_mode`.
const S_IFMT: u32 = 0o170_000;
const S_IFDIR: u32 = 0o040_000;

/// What a walk meets.
pub enum Step<'a> {
    /// A file, directory or other entry below the start.
    Entry {
        /// Path relative to the start.
        path: &'a Path,
        /// Its attributes.
        attributes: &'a Attributes,
    },
    /// Something that could not be read.
    Unreadable {
        /// Path relative to the start.
        path: &'a Path,
        /// Why.
        error: Errno,
    },
}

/// Whether `attributes` are those of a directory.
pub fn is_directory(attributes: &Attributes) -> bool {
    attributes.mode & S_IFMT == S_IFDIR
}

/// Names and attributes in directory `node`, "." and ".." left out, sorted by name.
pub fn list(tree: &dyn Tree, node: NodeId) -> Result<Vec<(Vec<u8>, NodeId)>, Errno> {
    let mut names = Vec::new();
    tree.read_directory(node, 0, &mut |entry| {
        if entry.name != b"." && entry.name != b".." {
            names.push((entry.name, entry.node));
        }
        true
    })?;
    names.sort();
    Ok(names)
}

/// A name that is still to be met.
struct Pending {
    directory: Rc<Path>,
    parent: NodeId,
    name: Vec<u8>,
}

/// Calls `each` for everything below `start`; a directory for which it says false is not entered.
pub fn walk(
    tree: &dyn Tree,
    start: NodeId,
    each: &mut dyn FnMut(Step<'_>) -> io::Result<bool>,
) -> io::Result<()> {
    // The root has two numbers, of which this is the one that lookups give.
    let start = tree.attributes(start).map_or(start, |attributes| attributes.node);
    let mut entered = HashSet::from([start]);
    // The next one last.
    let mut pending = Vec::new();
    open(tree, PathBuf::new(), start, &mut pending, each)?;
    while let Some(Pending { directory, parent, name }) = pending.pop() {
        if name.is_empty() || name.contains(&b'/') || name.contains(&0) {
            let reason = "a name that no file can have".to_owned();
            let path = directory.join(String::from_utf8_lossy(&name).replace('/', "\u{2215}"));
            let error = Errno { code: rustix::io::Errno::INVAL.raw_os_error(), reason };
            each(Step::Unreadable { path: &path, error })?;
            continue;
        }
        let looked_up = tree.lookup(parent, &name);
        let path = directory.join(OsString::from_vec(name));
        let attributes = match looked_up {
            Ok(attributes) => attributes,
            Err(error) => {
                each(Step::Unreadable { path: &path, error })?;
                continue;
            }
        };
        let enters = each(Step::Entry { path: &path, attributes: &attributes })?;
        if !enters || !is_directory(&attributes) {
            continue;
        }
        if entered.insert(attributes.node) {
            open(tree, path, attributes.node, &mut pending, each)?;
        } else {
            let reason = "a directory that has another name already: not entered again".to_owned();
            let error = Errno { code: rustix::io::Errno::LOOP.raw_os_error(), reason };
            each(Step::Unreadable { path: &path, error })?;
        }
    }
    Ok(())
}

/// Puts the names in a directory before all that is pending.
fn open(
    tree: &dyn Tree,
    directory: PathBuf,
    node: NodeId,
    pending: &mut Vec<Pending>,
    each: &mut dyn FnMut(Step<'_>) -> io::Result<bool>,
) -> io::Result<()> {
    match list(tree, node) {
        Ok(names) => {
            let directory: Rc<Path> = directory.into();
            pending.extend(names.into_iter().rev().map(|(name, _)| Pending {
                directory: directory.clone(),
                parent: node,
                name,
            }));
            Ok(())
        }
        Err(error) => each(Step::Unreadable { path: &directory, error }).map(drop),
    }
}

/// Follows `path` from the root of `tree`; symbolic links are not followed.
pub fn resolve(tree: &dyn Tree, path: &str) -> Result<NodeId, Errno> {
    let mut node = cenote_posix::tree::ROOT;
    for part in path.split('/').filter(|part| !part.is_empty() && *part != ".") {
        let found = tree.lookup(node, part.as_bytes());
        node = match found {
            Ok(found) => found.node,
            Err(error) if path.trim_end_matches('/').ends_with(part) => return Err(error),
            Err(error) => {
                return Err(Errno { reason: format!("{part}: {}", error.reason), ..error });
            }
        };
    }
    Ok(node)
}
