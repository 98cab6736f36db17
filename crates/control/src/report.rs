//! What a pool process publishes: plain values that cross the control socket.
//!
//! Invariant: a report is a snapshot. It holds no handle to the engine, and rendering one needs
//! nothing but the report. Numbers are exact (bytes, counts, unix seconds); text is made from them
//! in `text` and `json`.

mod status;

use serde::{Deserialize, Serialize};

pub use status::PoolStatus;

/// Where the value of a property comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Source {
    /// The property has no source (`-`): it is computed or was fixed at creation.
    #[default]
    None,
    /// Nobody set it.
    Default,
    /// Set by a mount option or at import, for this mount only.
    Temporary,
    /// Set on this very dataset or pool.
    Local,
    /// Came with a received stream.
    Received,
    /// Set on the named ancestor.
    Inherited(String),
}

/// One property of a pool or dataset.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Property {
    /// Full name (`used`, `com.example:note`, `userquota@1000`).
    pub name: String,
    /// Exact value as `get -p` prints it; `-` where the property does not apply.
    pub value: String,
    /// Where it was set.
    pub source: Source,
    /// The value that came with a received stream, if one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub received: Option<String>,
}

/// Properties in the order of listings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Properties(pub Vec<Property>);

impl Properties {
    /// The property called `name`.
    pub fn get(&self, name: &str) -> Option<&Property> {
        self.0.iter().find(|property| property.name == name)
    }

    /// Its exact value, unless it does not apply.
    pub fn value(&self, name: &str) -> Option<&str> {
        self.get(name).map(|property| property.value.as_str()).filter(|value| *value != "-")
    }

    /// Its exact value as a number.
    pub fn number(&self, name: &str) -> Option<u64> {
        self.value(name)?.parse().ok()
    }

    /// Adds a property at the end, or replaces the one of that name.
    pub fn set(&mut self, name: &str, value: impl Into<String>, source: Source) {
        let value = value.into();
        match self.0.iter_mut().find(|property| property.name == name) {
            Some(property) => (property.value, property.source) = (value, source),
            None => {
                let name = name.to_owned();
                self.0.push(Property { name, value, source, received: None });
            }
        }
    }
}

/// What one user, group or project uses of a filesystem, and may use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageRecord {
    /// `user`, `group` or `project`.
    pub kind: String,
    /// Number of the user, group or project.
    pub id: u64,
    /// Bytes used.
    pub used: u64,
    /// Most bytes, if limited.
    pub quota: Option<u64>,
    /// Objects owned, where they are counted.
    pub objects: Option<u64>,
    /// Most objects, if limited.
    pub object_quota: Option<u64>,
}

/// State of a pool or device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum VdevState {
    /// Not opened yet.
    Closed,
    /// Taken offline by the administrator.
    Offline,
    /// Pulled out.
    Removed,
    /// Could not be opened.
    CannotOpen,
    /// Given up because of errors.
    Faulted,
    /// Works with less redundancy than it should have.
    Degraded,
    /// Works.
    #[default]
    Online,
}

/// Why a device is in its state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // each name is the reason; the words are in `text::words`
pub enum VdevReason {
    #[default]
    None,
    OpenFailed,
    CorruptData,
    NoReplicas,
    BadGuidSum,
    TooSmall,
    BadLabel,
    VersionNewer,
    VersionOlder,
    UnsupportedFeature,
    Spared,
    ErrorsExceeded,
    IoFailure,
    BadLog,
    External,
    SplitPool,
    BadAshift,
    ExternalPersistent,
    Active,
    ChildrenOffline,
    AshiftTooBig,
}

/// What a top-level device is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum VdevClass {
    /// Ordinary data.
    #[default]
    Normal,
    /// Dedup tables.
    Dedup,
    /// Metadata and small blocks.
    Special,
    /// Intent log.
    Log,
    /// Second-level cache.
    Cache,
    /// Hot spare.
    Spare,
}

/// How far an initialize or trim of a leaf is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Activity {
    /// Where it stands.
    pub state: ActivityState,
    /// Bytes done.
    pub done: u64,
    /// Bytes to do.
    pub total: u64,
    /// Unix seconds of the last change of state.
    pub time: i64,
}

/// Where an initialize or trim stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum ActivityState {
    Active,
    Canceled,
    Suspended,
    Complete,
}

/// Operations counted since the pool was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IoCounters {
    /// Reads issued.
    pub reads: u64,
    /// Writes issued.
    pub writes: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub write_bytes: u64,
}

/// Reads or writes of a device in more detail.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IoDetail {
    /// Sum of the time they took, in nanoseconds.
    pub wait_nanoseconds: u64,
    /// Entry `n`: how many took from 2^n nanoseconds up to twice that. May end early.
    pub waits: Vec<u64>,
    /// Entry `n`: how many were of 2^n bytes up to twice that. May end early.
    pub sizes: Vec<u64>,
    /// Sent to the device and not answered.
    pub active: u64,
}

/// One device of the tree.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VdevReport {
    /// Name of an inner device (`mirror-0`, `draid2:4d:11c:1s-0`) or of a distributed spare
    /// (`draid2-0-0`); the root has the pool's name. Leaves with a path are named after it.
    pub name: String,
    /// On-disk type: `root`, `mirror`, `raidz`, `draid`, `disk`, `file`, `replacing`, `spare`,
    /// `dspare`, `indirect`, `hole`, `missing`.
    pub kind: String,
    /// Path of a leaf.
    pub path: Option<String>,
    /// Whether the leaf is a whole disk that ZFS partitioned (its name loses the partition).
    pub whole_disk: bool,
    /// Guid.
    pub guid: u64,
    /// What the top-level device this belongs to is for.
    pub class: VdevClass,
    /// State.
    pub state: VdevState,
    /// Why.
    pub reason: VdevReason,
    /// The device was missing when the pool was opened: shown by guid, with `was PATH`.
    pub not_present: bool,
    /// A hot spare that stands in somewhere; holds the pool that uses it.
    pub spare_used_by: Option<String>,
    /// Failed reads.
    pub read_errors: u64,
    /// Failed writes.
    pub write_errors: u64,
    /// Checksum errors.
    pub checksum_errors: u64,
    /// Operations that took very long.
    pub slow_operations: u64,
    /// Bytes allocated (top-level devices and the root).
    pub allocated: u64,
    /// Bytes that can be allocated from; zero below the top level.
    pub space: u64,
    /// `space` corrected for parity.
    pub deflated_space: u64,
    /// Smallest device that could replace this one, in bytes.
    pub replacement_size: u64,
    /// Size of the leaf itself in bytes.
    pub physical_size: u64,
    /// Bytes of the device between its labels.
    #[serde(default)]
    pub allocatable: u64,
    /// How many of its devices may be lost (raidz and draid).
    #[serde(default)]
    pub parity: u64,
    /// Bytes the device could grow by.
    pub expandable: u64,
    /// Fragmentation of the free space in percent, where known.
    pub fragmentation: Option<u64>,
    /// Bytes held by the pool checkpoint.
    pub checkpoint_space: u64,
    /// No new data goes here.
    pub non_allocating: bool,
    /// Data is being moved away.
    pub removing: bool,
    /// Bytes of memory its mapping takes if it is removed, about (top-level devices that hold data).
    #[serde(default)]
    pub mapping_estimate: Option<u64>,
    /// Part of the resilver that runs now.
    pub resilvering: bool,
    /// Waits for the next resilver.
    pub awaiting_resilver: bool,
    /// How many transaction groups it missed writes of.
    #[serde(default)]
    pub missed: u64,
    /// log2 of the block size the leaf was built with.
    pub configured_ashift: u64,
    /// log2 of the block size the device would like.
    pub physical_ashift: u64,
    /// Initialize, if one ever ran.
    pub initialize: Option<Activity>,
    /// Trim, if one ever ran.
    pub trim: Option<Activity>,
    /// Whether the device can be trimmed.
    pub trim_supported: bool,
    /// Operations done.
    pub counters: IoCounters,
    /// Its reads.
    #[serde(default)]
    pub reads: IoDetail,
    /// Its writes.
    #[serde(default)]
    pub writes: IoDetail,
    /// Devices below.
    pub children: Vec<VdevReport>,
}

impl VdevReport {
    /// Whether nothing is below this device.
    pub fn is_leaf(&self) -> bool {
        self.children.is_empty()
    }
}

/// What is being or was last scanned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum ScanFunction {
    Scrub,
    Resilver,
    ErrorScrub,
}

/// Where a scan stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum ScanState {
    Scanning,
    Finished,
    Canceled,
}

/// The scrub or resilver that runs, or the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScanReport {
    /// What.
    pub function: ScanFunction,
    /// Where it stands.
    pub state: ScanState,
    /// Unix seconds.
    pub start_time: i64,
    /// Unix seconds; zero while it runs.
    pub end_time: i64,
    /// Bytes in all.
    pub to_examine: u64,
    /// Bytes found so far.
    pub examined: u64,
    /// Bytes that needed no look.
    pub skipped: u64,
    /// Bytes repaired (scrub) or rebuilt (resilver).
    pub processed: u64,
    /// Errors that could not be repaired.
    pub errors: u64,
    /// Bytes found since the pool was opened.
    pub pass_examined: u64,
    /// Bytes read and verified in all.
    pub issued: u64,
    /// Bytes read and verified since the pool was opened.
    pub pass_issued: u64,
    /// Unix seconds when this pass began.
    pub pass_start: i64,
    /// Unix seconds of the pause; zero if not paused.
    pub paused: i64,
    /// Seconds this pass was paused for.
    pub spent_paused: u64,
    /// Bytes read and verified per second, lately, where that is known.
    #[serde(default)]
    pub recent_rate: Option<u64>,
}

/// The sequential rebuild of a top-level device that runs, or the last one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RebuildReport {
    /// Index of the top-level device.
    pub vdev: u64,
    /// Name of that (`mirror-0`).
    pub name: String,
    /// Where it stands.
    pub state: ScanState,
    /// Unix seconds.
    pub start_time: i64,
    /// Unix seconds; zero while it runs.
    pub end_time: i64,
    /// Milliseconds it worked.
    pub milliseconds: u64,
    /// Bytes in all, about.
    pub estimated: u64,
    /// Bytes looked at.
    pub scanned: u64,
    /// Bytes read.
    pub issued: u64,
    /// Bytes written.
    pub rebuilt: u64,
    /// What could not be rebuilt.
    pub errors: u64,
    /// Milliseconds of this pass.
    pub pass_milliseconds: u64,
    /// Bytes looked at in this pass.
    pub pass_scanned: u64,
    /// Bytes read in this pass.
    pub pass_issued: u64,
}

/// A device removal that runs, or the last one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemovalReport {
    /// Where it stands.
    pub state: ScanState,
    /// Index of the top-level device.
    pub vdev: u64,
    /// What it is called while it can still be shown (`mirror`, a path), else `indirect-1`.
    pub name: String,
    /// Unix seconds.
    pub start_time: i64,
    /// Unix seconds; zero while it runs.
    pub end_time: i64,
    /// Bytes to copy.
    pub to_copy: u64,
    /// Bytes copied.
    pub copied: u64,
    /// Bytes of memory the mapping takes.
    pub mapping_memory: u64,
}

/// A raidz expansion that runs, or the last one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpansionReport {
    /// Where it stands.
    pub state: ScanState,
    /// Name of the raidz (`raidz1-0`).
    pub name: String,
    /// Index of the top-level device.
    pub vdev: u64,
    /// Unix seconds.
    pub start_time: i64,
    /// Unix seconds; zero while it runs.
    pub end_time: i64,
    /// Bytes to move.
    pub to_reflow: u64,
    /// Bytes moved.
    pub reflowed: u64,
    /// A member is missing: the expansion waits.
    pub waiting_for_resilver: bool,
}

/// The checkpoint of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointReport {
    /// It is being discarded.
    pub discarding: bool,
    /// Unix seconds.
    pub start_time: i64,
    /// Bytes it holds.
    pub space: u64,
}

/// One row of the dedup histogram: blocks whose reference count is in `[refcount, 2 * refcount)`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DedupBucket {
    /// Least reference count of the row.
    pub refcount: u64,
    /// Unique blocks.
    pub blocks: u64,
    /// Their logical, physical and allocated bytes.
    pub sizes: [u64; 3],
    /// References to them.
    pub referenced_blocks: u64,
    /// Logical, physical and allocated bytes as if never shared.
    pub referenced_sizes: [u64; 3],
}

/// Dedup tables of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DedupReport {
    /// Entries.
    pub entries: u64,
    /// Bytes they take on disk.
    pub disk_bytes: u64,
    /// Bytes they take in memory.
    pub memory_bytes: u64,
    /// Rows that are not empty, by rising reference count.
    pub histogram: Vec<DedupBucket>,
}

impl DedupReport {
    /// All rows added up.
    pub fn total(&self) -> DedupBucket {
        let mut total = DedupBucket::default();
        for row in &self.histogram {
            total.blocks = total.blocks.saturating_add(row.blocks);
            total.referenced_blocks = total.referenced_blocks.saturating_add(row.referenced_blocks);
            for (sum, size) in total.sizes.iter_mut().zip(row.sizes) {
                *sum = sum.saturating_add(size);
            }
            for (sum, size) in total.referenced_sizes.iter_mut().zip(row.referenced_sizes) {
                *sum = sum.saturating_add(size);
            }
        }
        total
    }
}

/// An older state of a pool that was opened instead of its newest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GoneBack {
    /// When it was written, in seconds since 1970.
    pub as_of: i64,
    /// Seconds of changes after it that are left out.
    pub lost: u64,
}

/// An intent log that could not be replayed and is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnreplayedLog {
    /// Name of the dataset.
    pub dataset: String,
    /// Why.
    pub reason: String,
}

/// What a job is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobState {
    /// It works.
    Working,
    /// Somebody asked it to pause.
    Paused,
    /// What is left cannot be done for now.
    Stuck,
}

/// Long work of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobReport {
    /// `freeing` or `discarding checkpoint`.
    pub name: String,
    /// What it is doing.
    pub state: JobState,
    /// Bytes done since it was begun, or since the pool was opened.
    pub done: u64,
    /// Bytes left to do.
    pub left: u64,
    /// Bytes per second, lately.
    pub rate: u64,
    /// Seconds still needed at this rate; `None` while it cannot be told.
    pub remaining: Option<u64>,
    /// Why something could not be done.
    pub trouble: Option<String>,
}

/// Everything `zpool list`, `status`, `get` and `iostat` show about one pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolReport {
    /// Name.
    pub name: String,
    /// Guid.
    pub guid: u64,
    /// State of the root device; `suspended` overrides what is shown.
    pub state: VdevState,
    /// I/O is suspended.
    pub suspended: bool,
    /// What is wrong, if anything.
    pub status: PoolStatus,
    /// Damage by an old release that the pool has; 0: none.
    #[serde(default)]
    pub errata: u32,
    /// Another host had it last and did not export it, and it is only read here.
    #[serde(default)]
    pub is_of_another_host: bool,
    /// What keeps a pool from being written that was not to be opened for reading only.
    pub read_only_because: Option<String>,
    /// Datasets whose intent log could not be replayed and is kept.
    #[serde(default)]
    pub unreplayed: Vec<UnreplayedLog>,
    /// Long work of the pool that is not done.
    #[serde(default)]
    pub jobs: Vec<JobReport>,
    /// An older state was opened than the newest.
    pub gone_back: Option<GoneBack>,
    /// Transaction group of the snapshot.
    pub txg: u64,
    /// On-disk version of the pool (5000: feature flags).
    pub pool_version: u64,
    /// On-disk version of its filesystems.
    pub filesystem_version: u64,
    /// Scrub or resilver.
    pub scan: Option<ScanReport>,
    /// Scrub of the error log.
    #[serde(default)]
    pub error_scrub: Option<ScanReport>,
    /// Sequential rebuilds, one of each top-level device that ever had one.
    #[serde(default)]
    pub rebuilds: Vec<RebuildReport>,
    /// Device removal.
    pub removal: Option<RemovalReport>,
    /// Checkpoint.
    pub checkpoint: Option<CheckpointReport>,
    /// Raidz expansion.
    pub expansion: Option<ExpansionReport>,
    /// The devices: the root with its top-level devices (data, special, dedup and log).
    pub root: VdevReport,
    /// Second-level cache devices.
    pub caches: Vec<VdevReport>,
    /// Hot spares.
    pub spares: Vec<VdevReport>,
    /// Known data errors.
    pub error_count: u64,
    /// How many of those may be readable when devices are back.
    #[serde(default)]
    pub passing_errors: u64,
    /// Where those are.
    #[serde(default)]
    pub passing: Vec<String>,
    /// Transaction groups whose data may be on no device that is there.
    #[serde(default)]
    pub out_of_reach: u64,
    /// Their files, as `status -v` names them; may be shorter than the count.
    pub errors: Vec<String>,
    /// Dedup tables, if the pool has entries.
    pub dedup: Option<DedupReport>,
    /// Pool properties and features, exact values, in listing order.
    pub properties: Properties,
    /// Unix nanoseconds since the pool was opened, for rates.
    pub uptime_nanoseconds: u64,
}

/// What a dataset is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum DatasetKind {
    /// Files.
    #[default]
    Filesystem,
    /// A block device.
    Volume,
    /// A snapshot of either.
    Snapshot,
    /// A bookmark.
    Bookmark,
}

impl DatasetKind {
    /// The word of the `type` property.
    pub fn word(self) -> &'static str {
        match self {
            DatasetKind::Filesystem => "filesystem",
            DatasetKind::Volume => "volume",
            DatasetKind::Snapshot => "snapshot",
            DatasetKind::Bookmark => "bookmark",
        }
    }
}

/// Everything `zfs list`, `get` and `mount` show about one dataset.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatasetReport {
    /// Full name.
    pub name: String,
    /// What it is.
    pub kind: DatasetKind,
    /// Transaction group it was created in (orders snapshots).
    pub createtxg: u64,
    /// Where it is mounted now (filesystems only).
    pub mounted_at: Option<String>,
    /// The properties that apply and were asked for, exact values, in listing order; user
    /// properties after the native ones.
    pub properties: Properties,
}

/// One entry of the pool history.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryRecord {
    /// Unix seconds.
    pub time: i64,
    /// The command line, of records made by commands.
    pub command: Option<String>,
    /// Name of the ioctl, of records made by those.
    pub ioctl: Option<String>,
    /// Name of the internal event.
    pub internal_name: Option<String>,
    /// What the internal event says about itself.
    pub internal_text: Option<String>,
    /// Number of the internal event, in records of old pools.
    pub internal_number: Option<u64>,
    /// Dataset the event is about and its number.
    pub dataset: Option<(String, u64)>,
    /// Transaction group of an internal event.
    pub txg: Option<u64>,
    /// How long the ioctl took, in nanoseconds.
    pub elapsed_nanoseconds: Option<u64>,
    /// Input of an ioctl, printed as `name: value` lines.
    pub input: Option<String>,
    /// Output of an ioctl, printed as `name: value` lines.
    pub output: Option<String>,
    /// Error number of an ioctl.
    pub error_number: Option<i64>,
    /// User who ran the command.
    pub who: Option<u64>,
    /// Name of that user on the machine of who asks, if it could be told.
    pub user: Option<String>,
    /// Host it ran on.
    pub host: Option<String>,
    /// Zone it ran in.
    pub zone: Option<String>,
}

/// A device of a pool that could be imported.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImportVdev {
    /// Name as listed.
    pub name: String,
    /// State word (`ONLINE`).
    pub state: String,
    /// Why it is in that state (`cannot open`).
    pub reason: Option<String>,
    /// Devices below.
    pub children: Vec<ImportVdev>,
}

/// A pool that could be imported. Texts may have several lines.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImportReport {
    /// Name it has on its devices.
    pub name: String,
    /// Guid.
    pub guid: u64,
    /// State word of the pool.
    pub state: String,
    /// It was destroyed.
    pub destroyed: bool,
    /// What follows `status:`.
    pub status: Option<String>,
    /// What follows `action:`.
    pub action: String,
    /// Its `comment` property.
    pub comment: Option<String>,
    /// An extra sentence after the comment.
    pub note: Option<String>,
    /// Identifier of the article about the status (`ZFS-8000-2Q`).
    pub article: Option<String>,
    /// The root, named like the pool, with the data devices.
    pub root: ImportVdev,
    /// Names of the cache devices.
    pub caches: Vec<String>,
    /// Names of the spares.
    pub spares: Vec<String>,
    /// Devices for dedup tables.
    pub dedup: Vec<ImportVdev>,
    /// Devices for metadata and small blocks.
    pub special: Vec<ImportVdev>,
    /// Devices for the intent log.
    pub logs: Vec<ImportVdev>,
    /// More devices belong to the pool, but it is not known which.
    pub incomplete: bool,
    /// It can be opened, at least for reading.
    pub importable: bool,
    /// Why it cannot be opened, in more words than `zpool` has.
    pub reason: Option<String>,
    /// Another host uses it, or it cannot be told whether one does: nothing makes up for that.
    pub in_use_elsewhere: bool,
    /// The state that was looked at: transaction group, unix seconds, number of the activity write.
    pub newest: Option<(u64, u64, u64)>,
    /// Another host used it last and did not export it: its name, id and unix seconds.
    pub last_host: Option<(String, u64, i64)>,
}
