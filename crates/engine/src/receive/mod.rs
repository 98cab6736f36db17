//! Receiving a snapshot that comes as a stream of changes: into a new head, or into a clone that takes the
//! place of a head at the end.
//!
//! Chapter 07, sections 12 to 14. Invariant: until [`Landing::end`] has returned nobody sees anything of the
//! stream; a receive that is given up before leaves what it was to go into as it was (and, if it is
//! resumable, what it has got, from where it can go on).

mod apply;
mod begin;
mod correct;
mod data;
mod end;
mod objects;
mod raw;

use std::sync::Arc;

use cenote_format::objset::ObjsetKind;
use cenote_format::{Guid, ObjectId, property};

use crate::Result;
use crate::dataset::DatasetKind;
use crate::dataset::change::{MosChange, NewKeys, PropertyInput, ResumeFacts};
use crate::keys::ReceivedSeals;
use crate::object::Object;
use crate::pool::change::{Encryption, SentRoot};
use crate::pool::group::{LiveDataset, LivePool};

pub use apply::{next_record, skip};
pub use correct::{Corrected, correct};
pub use end::{destroy_interrupted, give_up_partial};
pub use objects::ObjectFacts;

/// Name of the clone that takes what is received into a head that is there.
pub const TEMPORARY: &str = "%recv";

/// What a stream says of itself before its records.
#[derive(Clone, Debug)]
pub struct StreamFacts {
    /// Filesystem or volume.
    pub kind: ObjsetKind,
    /// Guid of the snapshot it starts from; 0: a full stream.
    pub from: Guid,
    /// Guid of the snapshot it leads to.
    pub to: Guid,
    /// Its name as the sender has it.
    pub name: String,
    /// When that was taken, in seconds since 1970.
    pub creation_time: u64,
    /// Short names of the features that its blocks and objects need.
    pub features: Vec<&'static str>,
    /// Blocks may have more than 128 KiB.
    pub large_blocks: bool,
    /// Objects may have more than one slot.
    pub large_dnodes: bool,
    /// There may be embedded blocks.
    pub embedded: bool,
    /// There may be compressed blocks.
    pub compressed: bool,
    /// Names are matched without regard to case.
    pub case_insensitive: bool,
    /// Objects say whether they have a spill block.
    pub tells_spills: bool,
    /// It goes on where one was cut off: number of the object, and offset in bytes.
    pub resumed: Option<(u64, u64)>,
    /// Its blocks are sealed.
    pub raw: Option<RawFacts>,
    /// Blocks are left out, for the snapshots of these guids.
    pub redacted: Option<Vec<u64>>,
    /// What it starts from lacks blocks that were left out for these.
    pub redacted_from: Option<Vec<u64>>,
}

/// What a raw stream says of keys.
#[derive(Clone, Debug)]
pub struct RawFacts {
    /// The keys of the dataset, wrapped as the sender has them.
    keys: NewKeys,
    /// The portable MAC of the object set.
    portable: [u8; 32],
    /// The last block of the array of dnodes.
    last_dnode_block: u64,
    /// Checksum id of that array.
    checksum: u8,
    /// Compression id of that array.
    compression: u8,
    /// The set of initialisation vectors of the snapshot.
    ivset: u64,
    /// That of the snapshot it starts from; 0: not told.
    from_ivset: u64,
}

impl StreamFacts {
    /// What it becomes.
    pub fn dataset_kind(&self) -> DatasetKind {
        match self.kind {
            ObjsetKind::Zvol => DatasetKind::Volume,
            _ => DatasetKind::Filesystem,
        }
    }

    fn resume_facts(&self) -> ResumeFacts {
        ResumeFacts {
            from: self.from,
            to: self.to,
            name: self.name.clone(),
            large_blocks: self.large_blocks,
            embedded: self.embedded,
            compressed: self.compressed,
            raw: self.raw.is_some(),
            redacted_from: self.redacted_from.clone(),
        }
    }
}

/// Where a stream is to go.
#[derive(Clone, Debug, Default)]
pub struct ReceiveOrder {
    /// Filesystem or volume.
    pub dataset: String,
    /// What the snapshot is called, without the dataset.
    pub snapshot: String,
    /// Snapshot that a new dataset is cloned from.
    pub origin: Option<String>,
    /// What is newer than the source of an incremental stream goes; a full stream takes the place of what
    /// is there.
    pub force: bool,
    /// What was received stays if the stream is cut off.
    pub resumable: bool,
    /// How a new dataset is encrypted, unless it comes raw or is a clone. `keylocation` of one with a key of its
    /// own is among the local values.
    pub encryption: Encryption,
    /// Who makes a new dataset.
    pub creator: Option<u32>,
    /// Limits on numbers of filesystems and snapshots do not count.
    pub beyond_limits: bool,
    /// Local values of properties that a new dataset begins with, checked already.
    pub local: Vec<PropertyInput>,
    /// Values that came with the stream: they take the place of all that were received before. `None`: the
    /// stream says nothing of properties.
    pub received: Option<Vec<PropertyInput>>,
    /// Properties whose received values stay, if none came.
    pub kept: Vec<String>,
    /// Properties whose received values do not count: they are inherited, unless there is a local value.
    pub excluded: Vec<String>,
    /// Properties that are inherited all the same, whatever their values are.
    pub inherited: Vec<String>,
    /// Values of the snapshot that came with the stream.
    pub of_snapshot: Vec<PropertyInput>,
    /// Tags the snapshot is held with.
    pub holds: Vec<String>,
    /// Of what comes raw: which encryption root it has where it comes from, if that is known.
    pub root: Option<SentRoot>,
}

impl ReceiveOrder {
    /// Stores the values that came with the stream of `dataset`; the names of those that cannot be had here.
    fn store_received(
        &self,
        change: &MosChange<'_>,
        dataset: ObjectId,
        kind: DatasetKind,
    ) -> Result<Vec<String>> {
        let can_inherit = |name: &str| {
            let native = property::dataset(name);
            native.is_none_or(|native| native.is_inheritable() && !native.is_read_only())
        };
        let is_named =
            |name: &String| [&self.excluded, &self.inherited].iter().any(|all| all.contains(name));
        let is_out = |name: &String| is_named(name) && !can_inherit(name);
        let mut refused = Vec::new();
        if let Some(mut received) = self.received.clone() {
            received.retain(|input| !is_out(&input.name));
            refused = change.replace_received(dataset, kind, &received, &self.kept)?;
        }
        for name in self.inherited.iter().filter(|name| can_inherit(name)) {
            change.inherit_property(dataset, name, false)?;
        }
        for name in self.excluded.iter().filter(|name| can_inherit(name)) {
            // A local value hides the received one as it is.
            if !change.has_local_value(dataset, name)? {
                change.inherit_property(dataset, name, false)?;
            }
        }
        Ok(refused)
    }
}

/// What a received head takes the place of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    /// Nothing: it has its name already.
    Itself,
    /// A head, from this snapshot of it on.
    Head { head: ObjectId, from: Option<ObjectId> },
}

/// A receive under way.
pub struct Landing {
    live: Arc<LivePool>,
    facts: StreamFacts,
    order: ReceiveOrder,
    /// What is filled.
    filled: Arc<LiveDataset>,
    target: Target,
    /// The object that was changed last.
    current: Option<Object>,
    /// Of a raw stream: what it says of keys, and what came sealed.
    raw: Option<(RawFacts, Arc<ReceivedSeals>)>,
    /// Of a raw stream: an object, and its last block.
    reaches: Option<(u64, u64)>,
    /// Bytes of streams received before this one, and in it.
    bytes: u64,
    /// Nothing is to be given up any more.
    is_over: bool,
    /// Properties that came with the stream and cannot be had here.
    refused: Vec<String>,
}
