//! The write side of a mounted filesystem.
//!
//! Every change takes the same steps:
//! 1. it reserves the space it may need and passes the throttle (`admit`);
//! 2. it locks its files, in ascending order of their objects;
//! 3. it reads the blocks that it changes only in part;
//! 4. it begins a transaction, which never waits, and writes everything in it.
//!
//! Invariants: a change is in one transaction group, or is one of several that each leave the
//! filesystem whole; nobody waits for a transaction group while holding a lock; changes of one object
//! are made in ascending groups, because a transaction begins only under the object's lock.
//!
//! Order of locks: rename lock, files by object, delete queue, transaction, attribute layouts.

mod access_times;
mod accessed;
mod acl;
mod attributes;
mod copy;
mod data;
mod delete_queue;
mod extended;
mod file_flags;
mod followers;
mod log;
mod names;
mod namespace;
mod nfsv4;
mod nodes;
mod object;

mod quota;
mod rename;
mod replay;
mod set_attributes;
mod xattr;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use cenote_engine::txg::{Gate, Purpose, Reservation, Tx};
use cenote_format::zil::Payload;
use cenote_format::{BlockPointer, ObjectId};
use parking_lot::{Mutex, RwLock};

pub use file_flags::file_flags;
pub use log::Intents;
pub use nfsv4::{AclInherit, AclMode};
pub use nodes::{GuardedFile, Node};
pub use quota::{Quota, QuotaKind, put_first_quotas};

pub(crate) use attributes::Layouts;
pub(crate) use object::{NewFile, make_file, new_flags, salt};

use crate::attributes::Facts;
use crate::error::{EINTR, ENOTCONN, EOPNOTSUPP, EROFS, RETRY};
use crate::tree::{Attributes, Errno, Result};
use crate::view::{File, View};
use crate::xattr::Rules;
use access_times::Noted;
use attributes::AttributeChange;
use delete_queue::DeleteQueue;
use nodes::Nodes;
use quota::Quotas;

/// Longest wait for a transaction group where there is no intent log.
const SYNC_PATIENCE: Duration = Duration::from_secs(600);
/// Bytes a change of names or attributes is counted as.
const SMALL_CHANGE: u64 = 128 << 10;

/// Makes changes survive a crash: the intent log.
pub trait Durability: Send + Sync {
    /// Everything done to `object` survives a crash once this returns.
    fn commit(&self, object: u64) -> Result<()>;
    /// Everything done survives a crash once this returns.
    fn sync_all(&self) -> Result<()>;
}

/// Is told of every change, inside its transaction and under the locks of its files, so that one
/// file's changes come in their order. Must not wait for a transaction group.
pub trait ChangeLog: Send + Sync {
    /// A change of `object` as the intent log has it.
    fn note(&self, tx: &Tx, object: u64, payload: Payload) -> Result<()>;
    /// Data was written to `object`.
    fn note_write(&self, tx: &Tx, object: u64, offset: u64, data: &[u8]);
    /// A change was made that no record can tell.
    fn note_whole(&self, tx: &Tx);
    /// `object` has no name any more.
    fn forget(&self, object: u64);
}

/// Says whether there is space for a change.
pub trait SpaceCheck: Send + Sync {
    /// Reserves `blocks` blocks of `size` bytes for a change about to be made; ENOSPC or EDQUOT if they
    /// do not fit into the dataset. May wait for transaction groups.
    fn reserve(&self, blocks: u64, size: u64, purpose: Purpose) -> Result<Reservation>;
    /// The same without waiting; none where that would have to be.
    fn reserve_at_once(&self, blocks: u64, size: u64, purpose: Purpose) -> Option<Reservation>;

    /// Blocks that one transaction group may free: what they cost in tables of shared blocks must be there.
    fn most_frees(&self) -> u64;

    /// Returns when a group may free `blocks` more, which is done next. May wait for transaction groups.
    fn admit_frees(&self, blocks: u64) -> Result<()>;
}

/// How access times are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessTimes {
    /// Reads leave them as they are (`atime=off`).
    Never,
    /// A read sets them where they are older than the last change, or than a day (`relatime=on`).
    Relative,
    /// Every read sets them.
    Always,
}

/// Property `sync`: when changes survive a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum SyncMode {
    /// When a program asks for it: `fsync` and its like.
    #[default]
    Standard,
    /// Every change, before it is answered.
    Always,
    /// Nothing sooner than its transaction group: `fsync` returns at once.
    Disabled,
}

/// Properties that decide how files are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteProperties {
    /// Property `recordsize` in bytes.
    pub record_size: u64,
    /// Property `dnodesize` in 512-byte slots (1 to 32).
    pub slots: u8,
    /// Properties `atime` and `relatime`.
    pub access_times: AccessTimes,
    /// Property `sync`.
    pub sync_mode: SyncMode,
    /// Feature `project_quota` is enabled: new files have a project id.
    pub projects: bool,
    /// Property `aclmode`.
    pub acl_mode: AclMode,
    /// Property `aclinherit`.
    pub acl_inherit: AclInherit,
}

impl Default for WriteProperties {
    fn default() -> Self {
        let record_size = 128 << 10;
        Self {
            record_size,
            slots: 1,
            access_times: AccessTimes::Always,
            sync_mode: SyncMode::Standard,
            projects: true,
            acl_mode: AclMode::default(),
            acl_inherit: AclInherit::default(),
        }
    }
}

/// How many of these blocks, from the first on, files may share; `None`: they may share no blocks.
pub type Cloning = Box<dyn Fn(&[BlockPointer]) -> Option<usize> + Send + Sync>;

/// What a writable filesystem is mounted with.
pub struct WriteOptions {
    /// Where changes begin.
    pub gate: Arc<Gate>,
    /// How files are written.
    pub properties: WriteProperties,
    /// The intent log; without it, fsync waits for a transaction group.
    pub durability: Option<Arc<dyn Durability>>,
    /// Is told of changes.
    pub log: Option<Arc<dyn ChangeLog>>,
    /// Says whether there is space; without it there always is.
    pub space: Option<Arc<dyn SpaceCheck>>,
    /// Says which blocks files may share now; without it they never share any.
    pub cloning: Option<Cloning>,
}

/// Changes the files of one object set.
pub struct FilesystemWriter {
    view: Arc<View>,
    rules: Rules,
    long_names: bool,
    gate: Arc<Gate>,
    properties: RwLock<WriteProperties>,
    /// Stands before the property: what the mount was told.
    access_times: RwLock<Option<AccessTimes>>,
    durability: Option<Arc<dyn Durability>>,
    log: Option<Arc<dyn ChangeLog>>,
    space: Option<Arc<dyn SpaceCheck>>,
    cloning: Option<Cloning>,
    nodes: Nodes,
    noted: Noted,
    layouts: Layouts,
    queue: DeleteQueue,
    quotas: Quotas,
    /// Held while a directory gets another parent.
    renames: Mutex<()>,
    replaying: AtomicBool,
    closed: AtomicBool,
}

/// The change was made and stays: it does not matter if the process that waited for more was killed.
fn unless_killed(done: Result<()>) -> Result<()> {
    match done {
        Err(error) if error.code == EINTR => Ok(()),
        done => done,
    }
}

impl FilesystemWriter {
    /// Opens `view`, whose object set must be live, for changes.
    pub fn open(
        view: Arc<View>,
        rules: Rules,
        long_names: bool,
        options: WriteOptions,
    ) -> Result<Self> {
        if !view.objects().is_live() {
            return Err(Errno::new(EROFS, "the dataset was opened for reading only"));
        }
        if view.version() < cenote_format::master_node::NEWEST_VERSION {
            let version = view.version();
            let reason = format!("a filesystem of ZPL version {version} can only be read");
            return Err(Errno::new(EOPNOTSUPP, reason));
        }
        Ok(Self {
            layouts: Layouts::open(&view)?,
            queue: DeleteQueue::open(&view)?,
            quotas: Quotas::open(&view)?,
            view,
            rules,
            long_names,
            gate: options.gate,
            properties: RwLock::new(options.properties),
            access_times: RwLock::new(None),
            durability: options.durability,
            log: options.log,
            space: options.space,
            cloning: options.cloning,
            nodes: Nodes::default(),
            noted: Noted::default(),
            renames: Mutex::new(()),
            replaying: AtomicBool::new(false),
            closed: AtomicBool::new(false),
        })
    }

    /// How files are written now.
    pub fn properties(&self) -> WriteProperties {
        *self.properties.read()
    }

    /// A property was changed.
    pub fn set_properties(&self, properties: WriteProperties) {
        *self.properties.write() = properties;
    }

    /// Access times are kept like this, whatever the properties say; `None`: as they say.
    pub fn force_access_times(&self, access_times: Option<AccessTimes>) {
        *self.access_times.write() = access_times;
    }

    /// Reserves space for `bytes`, to be held until the change is made, and slows down if the disks
    /// do not keep up. The caller must hold no lock.
    fn admit(&self, bytes: u64) -> Result<Reservation> {
        self.admit_for(bytes.div_ceil(SMALL_CHANGE), SMALL_CHANGE, Purpose::Grow)
    }

    /// As [`Self::admit`] for a change that frees space in the end, or keeps up what is there.
    fn admit_freeing(&self) -> Result<Reservation> {
        self.admit_for(1, SMALL_CHANGE, Purpose::Spare)
    }

    /// Blocks to be freed in one transaction group at most, `most` or fewer.
    fn frees_at_once(&self, most: u64) -> u64 {
        self.space.as_ref().map_or(most, |space| space.most_frees().min(most)).max(1)
    }

    /// Blocks are about to be freed; no lock and no transaction is held.
    fn admit_frees(&self, blocks: u64) -> Result<()> {
        self.space.as_ref().map_or(Ok(()), |space| space.admit_frees(blocks))
    }

    fn admit_for(&self, blocks: u64, size: u64, purpose: Purpose) -> Result<Reservation> {
        let purpose = if self.is_replaying() { Purpose::Replay } else { purpose };
        let reservation = match &self.space {
            Some(space) => space.reserve(blocks, size, purpose)?,
            None => Reservation::none(),
        };
        self.gate.throttle()?;
        Ok(reservation)
    }

    /// Whether the intent log is being replayed: what it tells of was admitted before.
    fn is_replaying(&self) -> bool {
        self.replaying.load(Relaxed)
    }

    /// The replay of the intent log begins or ends.
    pub fn set_replaying(&self, replaying: bool) {
        self.replaying.store(replaying, Relaxed);
    }

    /// The filesystem is not served any more: nothing is changed from now on, whoever still has it open.
    pub fn close(&self) {
        self.closed.store(true, Relaxed);
    }

    /// Begins a change; the locks of its files are held.
    fn begin(&self) -> Result<Tx> {
        if self.closed.load(Relaxed) {
            return Err(Errno::new(ENOTCONN, "it was unmounted"));
        }
        Ok(self.gate.begin_now()?)
    }

    /// The node of an object.
    pub fn node(&self, id: ObjectId) -> Result<Arc<Node>> {
        self.nodes.get(id, || self.view.file(id))
    }

    /// `stat`.
    pub fn attributes(&self, node: &Node) -> Result<Attributes> {
        let state = node.read()?;
        // Space is that of the newest dnode.
        let dnode = self.view.objects().dnode(node.id())?;
        let mut attributes = state.file.facts.attributes(self.view.node(node.id()), &dnode);
        attributes.accessed = node.accessed.get().unwrap_or(attributes.accessed);
        Ok(attributes)
    }

    /// Makes the object's attributes say what `facts` say, and makes `more` changes.
    fn store(
        &self,
        tx: &Tx,
        file: &mut File,
        facts: &Facts,
        more: &[AttributeChange<'_>],
    ) -> Result<()> {
        self.layouts.store(&self.view, tx, file, facts, more)
    }

    /// Notes a change in the log, if there is one.
    fn note(&self, tx: &Tx, object: ObjectId, payload: impl FnOnce() -> Payload) -> Result<()> {
        match &self.log {
            Some(log) => log.note(tx, object.0, payload()),
            None => Ok(()),
        }
    }

    /// Notes a change no record can tell.
    fn note_whole(&self, tx: &Tx) {
        if let Some(log) = &self.log {
            log.note_whole(tx);
        }
    }

    /// Tells the log that an object has no name any more.
    fn note_unnamed(&self, object: ObjectId) {
        if let Some(log) = &self.log {
            log.forget(object.0);
        }
    }

    /// Runs a change that has to be begun anew where it says so.
    fn retrying<T>(&self, mut change: impl FnMut() -> Result<T>) -> Result<T> {
        loop {
            match change() {
                Err(error) if error.code == RETRY => continue,
                result => return result,
            }
        }
    }

    /// Ends a change, of `object` alone or of several files: with `sync=always` it survives a crash
    /// once this returns.
    pub fn sync_if_always(&self, object: Option<ObjectId>) -> Result<()> {
        if self.properties().sync_mode != SyncMode::Always {
            return Ok(());
        }
        let synced = match (object, &self.durability) {
            (Some(object), _) => self.sync(object),
            (None, Some(durability)) => durability.sync_all(),
            (None, None) => self.wait_for_group(),
        };
        unless_killed(synced)
    }

    /// Makes what was done to `object` survive a crash, if the property `sync` lets it.
    pub fn sync(&self, object: ObjectId) -> Result<()> {
        if self.properties().sync_mode == SyncMode::Disabled {
            return Ok(());
        }
        match &self.durability {
            Some(durability) => durability.commit(object.0),
            None => self.wait_for_group(),
        }
    }

    /// Makes everything survive a crash.
    pub fn sync_all(&self) -> Result<()> {
        self.store_access_times();
        if self.properties().sync_mode == SyncMode::Disabled {
            return Ok(());
        }
        match &self.durability {
            Some(durability) => durability.sync_all(),
            None => self.wait_for_group(),
        }
    }

    /// Whether the pool's devices fail, so that changes wait or are refused.
    pub fn is_suspended(&self) -> bool {
        self.gate.suspension().is_some()
    }

    fn wait_for_group(&self) -> Result<()> {
        let open = self.gate.figures().open;
        Ok(self.gate.wait_synced(open, SYNC_PATIENCE)?)
    }
}
