//! From an object back to the path that leads to it.
//!
//! Chapter 05. Invariant: walks towards the root end, whatever the parents claim.

use std::cell::RefCell;
use std::collections::HashMap;

use cenote_engine::zap::Zap;
use cenote_format::ObjectId;
use cenote_format::pflags::XATTR;

use crate::attributes::Facts;
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
    names: RefCell<HashMap<u64, HashMap<u64, Vec<u8>>>>,
}

impl Paths {
    /// The path of `object` whose parent is `parent`; `Err` with the parts of it that exist.
    pub fn find(&self, view: &View, object: ObjectId, parent: u64) -> Result<String, String> {
        let text = |path: Vec<u8>| String::from_utf8_lossy(&path).into_owned();
        self.find_bytes(view, object, parent).map(text).map_err(text)
    }

    /// The same, as it is stored.
    pub fn find_bytes(
        &self,
        view: &View,
        object: ObjectId,
        parent: u64,
    ) -> Result<Vec<u8>, Vec<u8>> {
        let mut names: Vec<Vec<u8>> = Vec::new();
        let path = |names: &[Vec<u8>]| -> Vec<u8> {
            names.iter().rev().flat_map(|name| [&b"/"[..], name].concat()).collect()
        };
        let is_of_attributes = |facts: &Facts| facts.is_directory() && facts.flags & XATTR != 0;
        let own = view.file(object).map(|file| file.facts);
        let mut hidden = own.is_ok_and(|facts| is_of_attributes(&facts));
        let (mut child, mut parent, mut whole) = (object.0, parent, true);
        for _ in 0..DEPTH_MAX {
            if child == view.root().0 {
                let path = if names.is_empty() { b"/".to_vec() } else { path(&names) };
                return if whole { Ok(path) } else { Err(path) };
            }
            let name = match hidden {
                true => Some(b"<xattrdir>".to_vec()),
                false => self.name(view, parent, child),
            };
            whole &= name.is_some();
            names.push(name.unwrap_or_else(|| format!("???<object#{child}>").into_bytes()));
            child = parent;
            match view.file(ObjectId(parent)) {
                Ok(file) => {
                    hidden = is_of_attributes(&file.facts);
                    parent = file.facts.parent;
                }
                Err(_) => break,
            }
        }
        Err([&b"???"[..], &path(&names)].concat())
    }

    fn name(&self, view: &View, directory: u64, child: u64) -> Option<Vec<u8>> {
        if let Some(names) = self.names.borrow().get(&directory) {
            return names.get(&child).cloned();
        }
        let mut names = HashMap::new();
        if let Ok(zap) = view.objects().object(ObjectId(directory)).and_then(Zap::open) {
            for entry in zap.entries().take(NAMES_MAX).flatten() {
                if let Some(value) = entry.value.as_u64() {
                    names.insert(value & OBJECT_MASK, entry.name().to_vec());
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
