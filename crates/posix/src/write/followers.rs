//! Hidden directories and files of extended attributes follow their file to its owner and project.
//!
//! Invariant: space is counted for whom the hidden files say, so they say what their file does; the
//! first of them change with it, the rest of very many soon after.

use cenote_engine::txg::{Purpose, Reservation, Tx};
use cenote_format::{ObjectId, pflags};

use super::nodes::Node;
use super::{FilesystemWriter, SMALL_CHANGE};
use crate::attributes::Facts;
use crate::directory::entry_value;
use crate::error::ESTALE;
use crate::tree::Result;
use crate::view::File;

/// Hidden files changed in one transaction.
const AT_ONCE: usize = 256;
/// Hidden files counted as one small change.
const IN_CHANGE: u64 = 8;

fn owners(facts: &Facts) -> (u32, u32, u64) {
    (facts.uid, facts.gid, facts.project)
}

impl FilesystemWriter {
    /// Reserves space for a change of a file that hidden files may follow.
    pub(super) fn admit_followed(&self, node: &Node, purpose: Purpose) -> Result<Reservation> {
        let count = match self.view.xattr_directory(&node.read()?.file)? {
            Some(directory) => self.view.directories.zap(&directory.object)?.count()? + 1,
            None => 0,
        };
        let blocks = count.min(AT_ONCE as u64).div_ceil(IN_CHANGE);
        self.admit_for(1 + blocks, SMALL_CHANGE, purpose)
    }

    /// What follows a file that is about to say `facts`, read before the transaction begins: those that
    /// change in the same one, and those that come later.
    pub(super) fn followers(
        &self,
        file: &File,
        facts: &Facts,
    ) -> Result<(Vec<File>, Vec<ObjectId>)> {
        if owners(&file.facts) == owners(facts) {
            return Ok(Default::default());
        }
        let Some(directory) = self.view.xattr_directory(file)? else {
            return Ok(Default::default());
        };
        let mut later = Vec::new();
        for entry in self.view.directories.zap(&directory.object)?.entries() {
            let entry = entry?;
            later.push(entry_value(entry.name(), &entry.value)?.object);
        }
        let parent = directory.object.id();
        let mut now = vec![directory];
        now.extend(self.hidden_files(parent, later.drain(..later.len().min(AT_ONCE)))?);
        Ok((now, later))
    }

    /// Those of `ids` that are hidden files in `parent`: the others are gone, and their numbers may be
    /// other files'.
    pub(super) fn hidden_files(
        &self,
        parent: ObjectId,
        ids: impl Iterator<Item = ObjectId>,
    ) -> Result<Vec<File>> {
        let mut found = Vec::new();
        for id in ids {
            match self.view.file(id) {
                Ok(file) if file.facts.flags & pflags::XATTR == 0 => {}
                Ok(file) if file.facts.parent != parent.0 => {}
                Ok(file) => found.push(file),
                Err(error) if error.code == ESTALE => {}
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    /// Lets the first of them follow. Before the file itself changes: if this has to be begun anew, they are
    /// found again.
    pub(super) fn follow(&self, tx: &Tx, owner: &Facts, files: &mut [File]) -> Result<()> {
        for file in files {
            let (uid, gid, project) = owners(owner);
            let flags = file.facts.flags | owner.flags & pflags::PROJECT;
            let facts = Facts { uid, gid, project, flags, ..file.facts };
            self.add_project(tx, file, &facts)?;
            self.store(tx, file, &facts, &[])?;
        }
        Ok(())
    }

    /// Lets the rest follow the file `id`, which has changed.
    pub(super) fn follow_later(&self, id: ObjectId, later: &[ObjectId]) -> Result<()> {
        for ids in later.chunks(AT_ONCE) {
            self.retrying(|| {
                let node = self.node(id)?;
                let _reservation = self.admit_followed(&node, Purpose::Spare)?;
                let state = node.write()?;
                let Some(directory) = self.view.xattr_directory(&state.file)? else {
                    return Ok(());
                };
                let parent = directory.object.id();
                let mut files = self.hidden_files(parent, ids.iter().copied())?;
                let tx = self.begin()?;
                self.follow(&tx, &state.file.facts, &mut files)?;
                self.note_whole(&tx);
                Ok(())
            })?;
        }
        Ok(())
    }
}
