//! The tree of DSL directories: path to object and back.
//!
//! Chapter 06, sections 4 and 6. Invariant: a child names its parent, and walks are bounded by
//! [`DEPTH_MAX`], so no image makes one endless.

use std::collections::HashSet;

use cenote_format::dsl_directory::{self, DslDirectory};
use cenote_format::{ObjectId, ObjectType};

use super::name::{DEPTH_MAX, check_stored};
use super::side_by_side::SideBySide;
use super::{Catalog, DatasetName, Table};
use crate::{Error, Result};

/// One directory of the dataset tree.
#[derive(Clone, Debug)]
pub struct Directory {
    /// Its object in the MOS.
    pub id: ObjectId,
    /// Its full path, beginning with the pool.
    pub path: String,
    /// Its bonus.
    pub phys: DslDirectory,
    /// It has a ZAP of extension fields.
    pub extended: bool,
}

impl Directory {
    /// The name of its head.
    pub fn name(&self) -> DatasetName {
        DatasetName::head(self.path.clone())
    }

    /// The last component of its path.
    pub fn component(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }

    /// The path of its parent; `None` for the root.
    pub fn parent_path(&self) -> Option<&str> {
        self.path.rsplit_once('/').map(|(parent, _)| parent)
    }
}

/// Hidden from users: the pool's own directories and temporary datasets.
pub fn is_hidden(component: &str) -> bool {
    component.starts_with(['$', '%'])
}

impl Catalog {
    /// The directory in object `id`, to be known by `path`.
    pub(super) fn read_directory(&self, id: ObjectId, path: String) -> Result<Directory> {
        let dnode = self.mos().dnode(id)?;
        if dnode.bonus_type != ObjectType::DSL_DIRECTORY {
            let name = dnode.bonus_type.name();
            let reason = format!("a directory of '{path}' holds '{name}'");
            return Err(Error::corrupt(reason).at_object(0, id.0));
        }
        let phys = DslDirectory::decode(dnode.bonus())
            .map_err(|error| Error::from(error).at_object(0, id.0))?;
        Ok(Directory { id, path, phys, extended: dnode.object_type != ObjectType::DSL_DIRECTORY })
    }

    /// The pool's root directory.
    pub fn root(&self) -> Result<Directory> {
        self.read_directory(self.root_id(), self.pool().to_owned())
    }

    /// The child called `component`.
    pub fn child(&self, parent: &Directory, component: &str) -> Result<Directory> {
        let path = format!("{}/{component}", parent.path);
        let id = match Table::open(self.mos(), parent.phys.child_map)? {
            Some(table) => table.number(component)?,
            None => None,
        };
        let id = id.ok_or_else(|| Error::not_found(format!("dataset '{path}' does not exist")))?;
        self.names().note(parent.phys.child_map, id, component);
        self.adopted(parent, self.read_directory(ObjectId(id), path)?)
    }

    /// A child must name its parent, or the walk could go in circles.
    fn adopted(&self, parent: &Directory, child: Directory) -> Result<Directory> {
        if child.phys.parent != parent.id {
            let reason = format!("'{}' names another parent", child.path);
            return Err(Error::corrupt(reason).at_object(0, child.id.0));
        }
        Ok(child)
    }

    /// The directory at `path`, which begins with the pool.
    pub fn directory(&self, path: &str) -> Result<Directory> {
        let mut components = path.split('/');
        if components.next() != Some(self.pool()) {
            return Err(Error::not_found(format!("dataset '{path}' does not exist")));
        }
        let mut directory = self.root()?;
        for (depth, component) in components.enumerate() {
            if depth >= DEPTH_MAX {
                return Err(Error::invalid(format!("'{path}' is nested too deeply")));
            }
            directory = self.child(&directory, component)?;
        }
        Ok(directory)
    }

    /// The directory in object `id`, with its path found by asking its ancestors.
    pub fn directory_by_id(&self, id: ObjectId) -> Result<Directory> {
        let mut components = Vec::new();
        let mut at = self.read_directory(id, format!("directory {id}"))?;
        while at.phys.parent.0 != 0 {
            if components.len() >= DEPTH_MAX {
                let reason = "the parents of a directory do not lead to the root";
                return Err(Error::corrupt(reason).at_object(0, id.0));
            }
            let parent = at.phys.parent;
            let parent = self.read_directory(parent, format!("directory {parent}"))?;
            let name = match Table::open(self.mos(), parent.phys.child_map)? {
                Some(table) => self.names().of(&table, parent.phys.child_map, at.id.0)?,
                None => None,
            };
            let missing = || Error::corrupt("its parent does not list it").at_object(0, at.id.0);
            let name = name.ok_or_else(missing)?;
            check_stored(&name, at.id)?;
            components.push(name);
            at = parent;
        }
        if at.id != self.root_id() {
            let reason = "the parents of a directory do not lead to the root";
            return Err(Error::corrupt(reason).at_object(0, id.0));
        }
        components.push(self.pool().to_owned());
        components.reverse();
        self.read_directory(id, components.join("/"))
    }

    /// The children of a directory by name, hidden ones left out.
    pub fn children(&self, parent: &Directory) -> Result<Vec<Directory>> {
        let mut children = self.all_children(parent)?;
        children.retain(|child| !is_hidden(child.component()));
        Ok(children)
    }

    /// The children of a directory by name, hidden ones too.
    pub fn all_children(&self, parent: &Directory) -> Result<Vec<Directory>> {
        self.children_of(vec![parent], &SideBySide::default(), |_| true)
    }

    /// Those children of several directories that are `wanted` by name, with each other by path.
    fn children_of(
        &self,
        parents: Vec<&Directory>,
        side_by_side: &SideBySide,
        wanted: impl Fn(&str) -> bool + Sync,
    ) -> Result<Vec<Directory>> {
        let listed = side_by_side.each(parents, |parent| {
            let table = Table::open(self.mos(), parent.phys.child_map)?;
            let mut names = table.map_or(Ok(Vec::new()), |table| table.numbers())?;
            names.retain(|(name, _)| wanted(name));
            Ok(names.into_iter().map(|(name, id)| (parent, name, ObjectId(id))).collect::<Vec<_>>())
        })?;
        let listed: Vec<_> = listed.into_iter().flatten().collect();
        let mut children = side_by_side.each(listed, |(parent, name, id)| {
            check_stored(&name, id)?;
            let path = format!("{}/{name}", parent.path);
            self.adopted(parent, self.read_directory(id, path)?)
        })?;
        children.sort_by(|a, b| a.path.split('/').cmp(b.path.split('/')));
        Ok(children)
    }

    /// The directory and everything below it, parents first, siblings by name, hidden ones left
    /// out.
    pub fn walk(&self, top: &Directory) -> Result<Vec<Directory>> {
        let side_by_side = SideBySide::default();
        let (mut found, mut seen) = (Vec::new(), HashSet::new());
        let mut level = vec![top.clone()];
        for _ in 0..DEPTH_MAX {
            // Listed under two names, the levels below would multiply.
            if let Some(directory) = level.iter().find(|one| !seen.insert(one.id)) {
                let reason = format!("'{}' has a second name", directory.path);
                return Err(Error::corrupt(reason).at_object(0, directory.id.0));
            }
            let below =
                self.children_of(level.iter().collect(), &side_by_side, |name| !is_hidden(name))?;
            found.append(&mut level);
            level = below;
        }
        if let Some(directory) = level.first() {
            let reason = format!("'{}' is nested too deeply", directory.path);
            return Err(Error::corrupt(reason).at_object(0, directory.id.0));
        }
        found.sort_by(|a, b| a.path.split('/').cmp(b.path.split('/')));
        Ok(found)
    }

    /// The ancestors of a directory, nearest first, the directory itself left out.
    pub fn ancestors(&self, directory: &Directory) -> Result<Vec<Directory>> {
        let mut ancestors: Vec<Directory> = Vec::new();
        let mut path = directory.path.as_str();
        let mut parent = directory.phys.parent;
        while let (Some((above, _)), true) = (path.rsplit_once('/'), parent.0 != 0) {
            let found = self.read_directory(parent, above.to_owned())?;
            parent = found.phys.parent;
            path = above;
            ancestors.push(found);
        }
        Ok(ancestors)
    }

    /// One number among the extension fields of a directory.
    pub fn directory_field(&self, directory: &Directory, key: &str) -> Result<Option<u64>> {
        self.extension(directory.id, directory.extended, |table| table.number(key))
    }

    /// When a snapshot last came or went: seconds since 1970.
    pub fn snapshots_changed(&self, directory: &Directory) -> Result<Option<u64>> {
        let key = dsl_directory::KEY_SNAPSHOTS_CHANGED;
        let words =
            self.extension(directory.id, directory.extended, |table| table.numbers_of(key))?;
        Ok(words.and_then(|words| words.first().copied()))
    }
}
