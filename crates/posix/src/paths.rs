//! From an object back to the path that leads to it.
//!
//! Chapter 05. Invariant: walks towards the root end, whatever the parents claim.

use std::cell::RefCell;
use std::collections::HashMap;

use cenote_engine::zap::Zap;
use cenote_format::ObjectId;

use crate::view::View;

/// Deepest directory that is followed.
const DEPTH_MAX: usize = 1024;
/// Most names that are remembered.
const NAMES_MAX: usize = 1 << 20;
/// Bits of a directory entry that are the object.
const OBJECT_MASK: u64 = (1 << 48) - 1;

/// Paths of objects of one view.
#[derive(Default)]
pub struct Paths {
    /// Names by object, of the directories read last.
    names: RefCell<HashMap<u64, HashMap<u64, String>>>,
}

impl Paths {
    /// The path of `object` whose parent is `parent`; `Err` with the parts of it that exist.
    pub fn find(&self, view: &View, object: ObjectId, parent: u64) -> Result<String, String> {
        let mut path = String::new();
        let (mut child, mut parent, mut whole) = (object.0, parent, true);
        for _ in 0..DEPTH_MAX {
            if child == view.root().0 {
                let path = if path.is_empty() { "/".to_owned() } else { path };
                return if whole { Ok(path) } else { Err(path) };
            }
            let name = self.name(view, parent, child);
            whole &= name.is_some();
            path = format!("/{}{path}", name.unwrap_or_else(|| format!("???<object#{child}>")));
            child = parent;
            match view.file(ObjectId(parent)) {
                Ok(file) => parent = file.facts.parent,
                Err(_) => break,
            }
        }
        Err(format!("???{path}"))
    }

    fn name(&self, view: &View, directory: u64, child: u64) -> Option<String> {
        if let Some(names) = self.names.borrow().get(&directory) {
            return names.get(&child).cloned();
        }
        let mut names = HashMap::new();
        if let Ok(zap) = view.objects().object(ObjectId(directory)).and_then(Zap::open) {
            for entry in zap.entries().take(NAMES_MAX).flatten() {
                if let Some(value) = entry.value.as_u64() {
                    let name = String::from_utf8_lossy(entry.name()).into_owned();
                    names.insert(value & OBJECT_MASK, name);
                }
            }
        }
        let found = names.get(&child).cloned();
        let mut kept = self.names.borrow_mut();
        if kept.values().map(HashMap::len).sum::<usize>().saturating_add(kept.len()) > NAMES_MAX {
            kept.clear();
        }
        kept.insert(directory, names);
        found
    }
}
