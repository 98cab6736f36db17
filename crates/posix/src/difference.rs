//! What of the files of a snapshot is different in a later one: `zfs diff`.
//!
//! Invariant: only objects are looked at whose dnodes were written or freed between the two; the same object of
//! another generation is another file.

use cenote_engine::object::ObjectSet;
use cenote_engine::zap::Zap;
use cenote_format::{ObjectId, Txg, master_node};

use crate::attributes::Facts;
use crate::error::ESTALE;
use crate::paths::Paths;
use crate::tree::{Result, Timestamp};
use crate::view::View;

/// What happened to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// It was made.
    Added,
    /// It is gone.
    Removed,
    /// It, or something in the directory, changed.
    Modified,
    /// It has another path.
    Renamed,
    /// It got, or lost, so many names.
    Links(i64),
}

/// A file that is different.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// What happened.
    pub how: How,
    /// `st_mode`.
    pub mode: u32,
    /// When its attributes changed last.
    pub changed: Timestamp,
    /// Its path; of what was renamed the old one.
    pub path: Vec<u8>,
    /// The new path of what was renamed.
    pub to: Option<Vec<u8>>,
}

/// A file as it is in one of the two.
struct Seen {
    facts: Facts,
    path: Vec<u8>,
}

/// One of the two.
struct Side<'a> {
    view: &'a View,
    paths: Paths,
    /// The directory of shares, which no path leads to.
    shares: u64,
}

impl<'a> Side<'a> {
    fn of(view: &'a View) -> Result<Self> {
        let master = Zap::open(view.objects().object(master_node::OBJECT)?)?;
        let shares = master.lookup(master_node::SHARES)?.and_then(|value| value.as_u64());
        Ok(Self { view, paths: Paths::default(), shares: shares.unwrap_or(0) })
    }

    /// The file in `object`; none if there is no file, or one that has no name any more.
    fn seen(&self, object: u64) -> Result<Option<Seen>> {
        if object == self.shares {
            return Ok(None);
        }
        let file = match self.view.file(ObjectId(object)) {
            Ok(file) => file,
            Err(error) if error.code == ESTALE => return Ok(None),
            Err(error) => return Err(error),
        };
        let facts = file.facts;
        if facts.links == 0 {
            return Ok(None);
        }
        let found = self.paths.find_bytes(self.view, ObjectId(object), facts.parent);
        let path = found.unwrap_or_else(|parts| parts);
        Ok(Some(Seen { facts, path }))
    }

    fn next(&self, after: u64) -> Result<Option<u64>> {
        Ok(self.view.objects().next_object(after)?.map(|id| id.0))
    }
}

/// Tells what is different in `to`, in the order of the objects, since `from` was taken in the group `after`;
/// `looked_at`: how far it is, as numbers of objects.
///
/// # Errors
/// What cannot be read; what `told` says.
pub fn differences(
    from: &ObjectSet,
    to: &ObjectSet,
    after: Txg,
    looked_at: &dyn Fn(u64),
    told: &mut dyn FnMut(Difference) -> Result<()>,
) -> Result<()> {
    let (old, new) = (View::open(from.clone(), 0)?, View::open(to.clone(), 0)?);
    let (old, new) = (Side::of(&old)?, Side::of(&new)?);
    for range in to.changed_since(after)? {
        let mut at = range.start.saturating_sub(1);
        loop {
            let next = [old.next(at)?, new.next(at)?].into_iter().flatten().min();
            let Some(object) = next.filter(|object| *object < range.end) else { break };
            for difference in compared(old.seen(object)?, new.seen(object)?) {
                told(difference)?;
            }
            at = object;
            looked_at(object);
        }
    }
    Ok(())
}

/// What is to be told of one object.
fn compared(old: Option<Seen>, new: Option<Seen>) -> Vec<Difference> {
    let one = |how, seen: Seen, to| {
        let Seen { facts, path } = seen;
        Difference { how, mode: facts.mode, changed: facts.changed, path, to }
    };
    let (old, new) = match (old, new) {
        (None, None) => return Vec::new(),
        (Some(old), None) => return vec![one(How::Removed, old, None)],
        (None, Some(new)) => return vec![one(How::Added, new, None)],
        (Some(old), Some(new)) => (old, new),
    };
    let (was, is) = (old.facts, new.facts);
    if was.generation != is.generation || was.kind() != is.kind() {
        return vec![one(How::Removed, old, None), one(How::Added, new, None)];
    }
    if was.changed == is.changed {
        return Vec::new();
    }
    let links = match is.is_directory() {
        true => 0,
        false => (is.links as i64).saturating_sub(was.links as i64),
    };
    // What it is now is told, under the name that it had or has.
    let told = |path| Seen { facts: is, path };
    vec![match (links, old.path == new.path) {
        (1.., _) => one(How::Links(links), told(old.path), None),
        (..0, _) => one(How::Links(links), told(new.path), None),
        (0, true) => one(How::Modified, new, None),
        (0, false) => one(How::Renamed, told(old.path), Some(new.path)),
    }]
}
