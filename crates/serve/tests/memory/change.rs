//! What changes do to the nodes in memory.
//!
//! Invariant: link counts are the names there are, and those of directories count ".." too.

use super::*;

impl MemoryTree {
    pub(super) fn make(
        &self,
        caller: Caller,
        parent: NodeId,
        name: Option<&[u8]>,
        new: NewNode<'_>,
    ) -> Result<Attributes> {
        let mut state = self.lock();
        state.next += 1;
        let node = state.next;
        let parent = real(parent);
        let directory = state.node(parent)?;
        if let Some(name) = name {
            if name.len() > NAME_MAX {
                return fail(libc::ENAMETOOLONG);
            }
            if directory.attributes.links == 0 {
                return fail(libc::ENOENT);
            }
            if directory.directory()?.find(name).is_some() {
                return fail(libc::EEXIST);
            }
        }
        let kind = new.mode & libc::S_IFMT;
        let set_group = directory.attributes.mode & libc::S_ISGID != 0;
        let gid = if set_group { directory.attributes.gid } else { caller.gid };
        let mut mode = new.mode;
        let mut xattrs = BTreeMap::new();
        match directory.xattrs.get(acl::DEFAULT) {
            Some(default) if kind != libc::S_IFLNK => {
                let (access, bits) = acl::inherit(default, mode);
                mode = bits;
                xattrs.extend(access.map(|access| (acl::ACCESS.to_vec(), access)));
                if kind == libc::S_IFDIR {
                    xattrs.insert(acl::DEFAULT.to_vec(), default.clone());
                }
            }
            _ => mode &= !new.umask,
        }
        if kind == libc::S_IFDIR && set_group {
            mode |= libc::S_ISGID;
        }
        let content = match kind {
            libc::S_IFREG => Content::File(Extents::default()),
            libc::S_IFDIR => {
                let mut directory = Directory::default();
                directory.insert(b".", node);
                directory.insert(b"..", parent);
                Content::Directory(directory)
            }
            libc::S_IFLNK => Content::Link(new.target.to_vec()),
            _ => Content::Other,
        };
        let mut made = new_node(node, mode, new.target.len() as u64, content, now());
        made.xattrs = xattrs;
        made.attributes.uid = caller.uid;
        made.attributes.gid = gid;
        made.attributes.rdev = new.rdev;
        let directory = state.node(parent)?;
        match name {
            Some(name) => {
                directory.directory()?.insert(name, node);
                touch(directory);
                directory.attributes.links += u32::from(kind == libc::S_IFDIR);
            }
            None => made.attributes.links = 0,
        }
        let attributes = made.attributes.clone();
        state.nodes.insert(node, made);
        Ok(attributes)
    }

    pub(super) fn link_to(&self, node: NodeId, parent: NodeId, name: &[u8]) -> Result<Attributes> {
        if name.len() > NAME_MAX {
            return fail(libc::ENAMETOOLONG);
        }
        let mut state = self.lock();
        if state.node(node)?.is_directory() {
            return fail(libc::EPERM);
        }
        let directory = state.node(parent)?;
        if directory.directory()?.find(name).is_some() {
            return fail(libc::EEXIST);
        }
        directory.directory()?.insert(name, node);
        touch(directory);
        let node = state.node(node)?;
        node.attributes.links += 1;
        node.attributes.changed = now();
        Ok(node.attributes.clone())
    }

    pub(super) fn remove(&self, parent: NodeId, name: &[u8], directory: bool) -> Result<()> {
        let mut state = self.lock();
        let Some(node) = state.node(parent)?.directory()?.find(name) else {
            return fail(libc::ENOENT);
        };
        state.drop_name(node, Some(directory))?;
        let parent = state.node(parent)?;
        parent.directory()?.remove(name);
        parent.attributes.links -= u32::from(directory);
        touch(parent);
        Ok(())
    }

    pub(super) fn move_name(
        &self,
        caller: Caller,
        from: (NodeId, &[u8]),
        to: (NodeId, &[u8]),
        flags: RenameFlags,
    ) -> Result<()> {
        if to.1.len() > NAME_MAX {
            return fail(libc::ENAMETOOLONG);
        }
        let mut state = self.lock();
        let Some(node) = state.node(from.0)?.directory()?.find(from.1) else {
            return fail(libc::ENOENT);
        };
        let target = state.node(to.0)?.directory()?.find(to.1);
        let is_directory = state.node(node)?.is_directory();
        match target {
            Some(_) if flags.no_replace => return fail(libc::EEXIST),
            None if flags.exchange => return fail(libc::ENOENT),
            Some(target) if target == node => return Ok(()),
            _ => {}
        }
        if flags.exchange {
            let target = target.unwrap();
            state.node(from.0)?.directory()?.replace(from.1, target);
            state.node(to.0)?.directory()?.replace(to.1, node);
            state.moved(target, to.0, from.0)?;
        } else {
            match target {
                Some(target) => {
                    if state.node(target)?.is_directory() != is_directory {
                        return fail(if is_directory { libc::ENOTDIR } else { libc::EISDIR });
                    }
                    state.drop_name(target, Some(is_directory))?;
                    state.node(to.0)?.directory()?.replace(to.1, node);
                    state.node(to.0)?.attributes.links -= u32::from(is_directory);
                }
                None => state.node(to.0)?.directory()?.insert(to.1, node),
            }
            state.node(from.0)?.directory()?.remove(from.1);
        }
        state.moved(node, from.0, to.0)?;
        for parent in [from.0, to.0] {
            touch(state.node(parent)?);
        }
        drop(state);
        if flags.whiteout {
            let new = NewNode { mode: libc::S_IFCHR, umask: 0, rdev: 0, target: &[] };
            self.make(caller, from.0, Some(from.1), new)?;
        }
        Ok(())
    }

    pub(super) fn set(&self, node: NodeId, to: &SetAttributes) -> Result<Attributes> {
        let mut state = self.lock();
        let node = state.node(node)?;
        let now = now();
        let time = |time: SetTime| match time {
            SetTime::Now => now,
            SetTime::At(time) => time,
        };
        if let Some(mode) = to.mode {
            node.attributes.mode = node.attributes.mode & libc::S_IFMT | mode & 0o7777;
            if let Some(access) = node.xattrs.get_mut(acl::ACCESS) {
                *access = acl::after_chmod(access, mode);
            }
        }
        if to.kill_set_id {
            kill_set_id(node);
        }
        if let Some(size) = to.size {
            node.file()?.cut(size, u64::MAX);
            node.attributes.modified = now;
            resize(node, size);
        }
        let attributes = &mut node.attributes;
        attributes.uid = to.uid.unwrap_or(attributes.uid);
        attributes.gid = to.gid.unwrap_or(attributes.gid);
        attributes.accessed = to.accessed.map_or(attributes.accessed, time);
        attributes.modified = to.modified.map_or(attributes.modified, time);
        attributes.changed = to.changed.unwrap_or(now);
        Ok(attributes.clone())
    }

    pub(super) fn write_data(
        &self,
        node: NodeId,
        offset: u64,
        data: &[u8],
        kill: bool,
    ) -> Result<()> {
        let mut state = self.lock();
        let node = state.node(node)?;
        node.file()?.write(offset, data);
        if kill {
            kill_set_id(node);
        }
        let size = node.attributes.size.max(offset + data.len() as u64);
        touch(node);
        resize(node, size);
        Ok(())
    }

    pub(super) fn allocate_range(
        &self,
        node: NodeId,
        offset: u64,
        len: u64,
        what: Allocate,
    ) -> Result<()> {
        let mut state = self.lock();
        let node = state.node(node)?;
        let keep_size = match what {
            Allocate::Reserve { keep_size } => keep_size,
            Allocate::PunchHole => {
                node.file()?.cut(offset, offset + len);
                true
            }
            Allocate::ZeroRange { keep_size } => {
                node.file()?.cut(offset, offset + len);
                keep_size
            }
        };
        let size = node.attributes.size;
        touch(node);
        resize(node, if keep_size { size } else { size.max(offset + len) });
        Ok(())
    }

    pub(super) fn put_xattr(
        &self,
        node: NodeId,
        name: &[u8],
        value: &[u8],
        how: XattrWrite,
    ) -> Result<()> {
        let mut state = self.lock();
        let node = state.node(node)?;
        match (how, node.xattrs.contains_key(name)) {
            (XattrWrite::Create, true) => return fail(libc::EEXIST),
            (XattrWrite::Replace, false) => return fail(libc::ENODATA),
            _ => {}
        }
        if name == acl::ACCESS {
            node.attributes.mode = acl::mode_of(value, node.attributes.mode);
        }
        node.xattrs.insert(name.to_vec(), value.to_vec());
        node.attributes.changed = now();
        Ok(())
    }
}

impl State {
    /// `node` loses a name. `directory`: whether it must be one.
    fn drop_name(&mut self, node: NodeId, directory: Option<bool>) -> Result<()> {
        let node = self.node(node)?;
        match (&node.content, directory) {
            (Content::Directory(_), Some(false)) => return fail(libc::EISDIR),
            (Content::Directory(directory), _) if !directory.is_empty() => {
                return fail(libc::ENOTEMPTY);
            }
            (Content::Directory(_), _) => node.attributes.links = 0,
            (_, Some(true)) => return fail(libc::ENOTDIR),
            _ => node.attributes.links -= 1,
        }
        node.attributes.changed = now();
        Ok(())
    }

    /// `node` went from one directory to another.
    fn moved(&mut self, node: NodeId, from: NodeId, to: NodeId) -> Result<()> {
        let moved = self.node(node)?;
        moved.attributes.changed = now();
        if moved.is_directory() && from != to {
            moved.directory()?.replace(b"..", to);
            self.node(from)?.attributes.links -= 1;
            self.node(to)?.attributes.links += 1;
        }
        Ok(())
    }
}

/// Content changed.
fn touch(node: &mut Node) {
    let now = now();
    node.attributes.modified = now;
    node.attributes.changed = now;
    if let Content::Directory(directory) = &node.content {
        node.attributes.size = directory.names.len() as u64;
    }
}

fn resize(node: &mut Node, size: u64) {
    node.attributes.size = size;
    // Counting all is too slow for long files.
    if let Content::File(extents) = &node.content {
        let stored = if extents.0.len() < 64 { extents.stored() } else { size };
        node.attributes.sectors = stored.div_ceil(512);
    }
}

fn kill_set_id(node: &mut Node) {
    node.attributes.mode &= !libc::S_ISUID;
    if node.attributes.mode & libc::S_IXGRP != 0 {
        node.attributes.mode &= !libc::S_ISGID;
    }
}
