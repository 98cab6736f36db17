//! Files without names: the delete queue, and freeing.
//!
//! Chapter 05, section 9. Invariant: a file whose link count is 0 stands in the queue until its
//! object is freed, in the same transaction, so that a crash leaves nothing behind for good.

use std::sync::Arc;

use cenote_engine::object::Object;
use cenote_engine::txg::Tx;
use cenote_engine::zap::{self, Zap, int_name};
use cenote_format::{ObjectId, master_node, pflags};
use parking_lot::{Mutex, MutexGuard};

use super::data::empty_end;
use super::nodes::Node;
use super::{FilesystemWriter, SYNC_PATIENCE};
use crate::directory::entry_value;
use crate::error::{EIO, ESTALE};
use crate::tree::{Errno, Result};
use crate::view::{File, View};

/// Blocks freed in one transaction group at most.
const BLOCKS_AT_ONCE: u64 = 1 << 19;
/// Extended attributes freed in one transaction at most.
const XATTRS_AT_ONCE: usize = 256;

/// The delete queue.
pub struct DeleteQueue {
    object: Object,
    lock: Mutex<()>,
}

/// The queue, locked: taken before a transaction begins.
pub struct DeleteQueueGuard<'a> {
    object: &'a Object,
    _guard: MutexGuard<'a, ()>,
}

/// An entry of a directory of extended attributes.
struct Attribute {
    name: Vec<u8>,
    /// The object, if it is an attribute of that directory.
    own: Option<ObjectId>,
}

impl DeleteQueue {
    /// Opens the queue the master node names.
    pub fn open(view: &View) -> Result<Self> {
        let master = Zap::open(view.objects().object(master_node::OBJECT)?)?;
        let number = master.lookup(master_node::DELETE_QUEUE)?.and_then(|value| value.as_u64());
        let none = || Errno::new(EIO, "the master node names no delete queue");
        let object = view.objects().object(ObjectId(number.ok_or_else(none)?))?;
        Ok(Self { object, lock: Mutex::new(()) })
    }

    /// Locks the queue to put this object into it or take it out. What that needs is read now: in a transaction,
    /// who could not go on would leave half a change. No transaction may be held.
    ///
    /// # Errors
    /// The queue cannot be read.
    pub fn ready(&self, id: ObjectId) -> Result<DeleteQueueGuard<'_>> {
        let guard = self.lock.lock();
        zap::ready_to_change(&self.object, int_name(id.0).as_str())?;
        Ok(DeleteQueueGuard { object: &self.object, _guard: guard })
    }
}

impl DeleteQueueGuard<'_> {
    /// Puts an object into the queue.
    pub fn add(&self, tx: &Tx, id: ObjectId) -> Result<()> {
        Ok(zap::update_u64(self.object, tx, int_name(id.0).as_str(), id.0)?)
    }

    /// Takes an object out of the queue.
    pub fn remove(&self, tx: &Tx, id: ObjectId) -> Result<()> {
        Ok(zap::remove(self.object, tx, int_name(id.0).as_str())?)
    }
}

impl FilesystemWriter {
    /// Nobody refers to the file any more: it goes if it has no names.
    pub fn forget(&self, id: ObjectId) {
        let result = self.node(id).and_then(|node| self.free_if_unnamed(&node));
        match result {
            Err(error) if error.code != ESTALE => {
                // It stays in the queue, which the next mount goes through.
                tracing::warn!("object {id} without names was not freed: {error}");
            }
            _ => {}
        }
    }

    fn free_if_unnamed(&self, node: &Arc<Node>) -> Result<()> {
        if node.read()?.file.facts.links != 0 {
            return Ok(());
        }
        self.free_most(node)?;
        while self.free_some_xattrs(node)? {}
        let _reservation = self.admit_freeing()?;
        let mut state = node.write()?;
        if state.file.facts.links != 0 {
            return Ok(());
        }
        // Of what is damaged nothing is freed: it stays in the queue.
        state.file.object.need_to_free_all()?;
        let id = node.id();
        let directory = self.xattr_directory_of(&state.file)?;
        let xattrs = match &directory {
            Some(directory) => self.xattrs_to_free(directory, usize::MAX)?,
            None => Vec::new(),
        };
        let queue = self.queue.ready(id)?;
        let tx = self.begin()?;
        if let Some(directory) = directory {
            self.free_xattrs(&tx, &directory, xattrs)?;
            if directory.object.id() != id {
                self.free_object(&tx, directory.object.id())?;
            }
        }
        self.free_object(&tx, id)?;
        queue.remove(&tx, id)?;
        state.set_gone();
        self.nodes.remove(id);
        Ok(())
    }

    /// Frees an object that was found good ([`cenote_engine::object::Object::need_to_free_all`]).
    fn free_object(&self, tx: &Tx, id: ObjectId) -> Result<()> {
        self.view.directories.close(id);
        Ok(self.view.objects().free_readable(tx, id)?)
    }

    /// Frees all but the beginning of a large file, from its end on, over several groups. What is left
    /// may be freed at once.
    fn free_most(&self, node: &Arc<Node>) -> Result<()> {
        loop {
            let at_once = self.frees_at_once(BLOCKS_AT_ONCE);
            let blocks = match &node.read()?.file {
                file if file.facts.links == 0 => file.object.block_count(),
                _ => return Ok(()),
            };
            self.admit_frees(blocks.min(at_once))?;
            if blocks <= at_once {
                return Ok(());
            }
            let _reservation = self.admit_freeing()?;
            let state = node.write()?;
            let object = &state.file.object;
            let count = object.block_count();
            if count <= at_once || state.file.facts.links != 0 {
                // Somebody was faster: look again.
                continue;
            }
            let empty = empty_end(object, count, at_once)?;
            let start = count - if empty == 0 { at_once } else { empty };
            let start = start.saturating_mul(object.block_size());
            let base = object.base_to_free(start, u64::MAX)?;
            let tx = self.begin()?;
            object.free_over(&tx, start, u64::MAX, base)?;
            let txg = tx.txg();
            drop((tx, state));
            if empty == 0 {
                self.gate.wait_synced(txg, SYNC_PATIENCE)?;
            }
        }
    }

    /// Whether there may be more to free.
    fn free_some_xattrs(&self, node: &Arc<Node>) -> Result<bool> {
        let _reservation = self.admit_freeing()?;
        let state = node.write()?;
        let Some(directory) = self.xattr_directory_of(&state.file)? else { return Ok(false) };
        let count = self.view.directories.zap(&directory.object)?.count()?;
        if count <= XATTRS_AT_ONCE as u64 || state.file.facts.links != 0 {
            return Ok(false);
        }
        let xattrs = self.xattrs_to_free(&directory, XATTRS_AT_ONCE)?;
        let tx = self.begin()?;
        self.free_xattrs(&tx, &directory, xattrs)?;
        Ok(true)
    }

    /// The directory of a file's extended attributes; the file itself where it is one.
    fn xattr_directory_of(&self, file: &File) -> Result<Option<File>> {
        if file.facts.is_directory() && file.facts.flags & pflags::XATTR != 0 {
            let (object, changed_bonus) = (file.object.clone(), file.changed_bonus.clone());
            return Ok(Some(File { object, facts: file.facts, changed_bonus }));
        }
        self.view.xattr_directory(file)
    }

    /// Up to `limit` entries of a directory of extended attributes, with those objects that are its own,
    /// whose block trees can be read. Of others only the name is left: their numbers may be other files' by now.
    fn xattrs_to_free(&self, directory: &File, limit: usize) -> Result<Vec<Attribute>> {
        directory.object.need_to_free_all()?;
        // Not the ZAP that is open: its blocks must be there when they change.
        let zap = Zap::open(directory.object.clone())?;
        let mut entries = Vec::new();
        for entry in zap.entries().take(limit) {
            let entry = entry?;
            let id = entry_value(entry.name(), &entry.value)?.object;
            let own = self.hidden_files(directory.object.id(), [id].into_iter())?.pop();
            if let Some(file) = &own {
                file.object.need_to_free_all()?;
            }
            entries.push(Attribute { name: entry.name().to_vec(), own: own.map(|_| id) });
        }
        Ok(entries)
    }

    /// Frees extended attributes. The name first: none may be left of an object that is free.
    fn free_xattrs(&self, tx: &Tx, directory: &File, entries: Vec<Attribute>) -> Result<()> {
        for Attribute { name, own } in entries {
            self.remove_entry(tx, directory, &name)?;
            if let Some(id) = own {
                self.free_object(tx, id)?;
            }
        }
        Ok(())
    }

    /// How many files wait in the delete queue: those that are open, and those that are being
    /// freed.
    pub fn queued(&self) -> Result<u64> {
        Ok(Zap::open(self.queue.object.clone())?.count()?)
    }

    /// Frees what the delete queue names: files that lost their last name before a crash.
    pub fn drain(&self) -> Result<()> {
        let mut numbers = Vec::new();
        for entry in Zap::open(self.queue.object.clone())?.entries() {
            if let Some(number) = entry?.value.as_u64() {
                numbers.push(ObjectId(number));
            }
        }
        for id in numbers {
            match self.node(id) {
                Ok(node) => {
                    // A directory of extended attributes is queued with the links it had.
                    if let Err(error) = self.free_if_unnamed(&node) {
                        tracing::warn!("object {id} of the delete queue was not freed: {error}");
                    }
                }
                Err(error) if error.code == ESTALE => {
                    let _reservation = self.admit_freeing()?;
                    let queue = self.queue.ready(id)?;
                    let tx = self.begin()?;
                    queue.remove(&tx, id)?;
                }
                Err(error) => tracing::warn!("object {id} of the delete queue: {error}"),
            }
        }
        Ok(())
    }
}
