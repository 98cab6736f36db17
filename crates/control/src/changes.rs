//! The table of orders: what can be asked of a pool beside looking at it, with all arguments.
//!
//! What each needs, does, logs and says is in its file of the pool process (`process/service/orders`).
//! Invariant: an order is complete and parsed: names are well-formed, values are as they are
//! stored. What depends on the state of the pool (does it exist, does it fit) is for the pool
//! process to say.

use serde::{Deserialize, Serialize};

use crate::faults::FaultOrder;
use crate::plan::{NewKey, PropertySetting, VdevPlan};

/// An order with the command line that gave it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ChangeRequest {
    /// Goes to the history when the order is carried out.
    pub command: Option<String>,
    /// What to do.
    pub change: Change,
}

/// What to set of a dataset.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DatasetSettings {
    /// Filesystem, volume or snapshot.
    pub dataset: String,
    /// In order.
    pub properties: Vec<PropertySetting>,
}

/// What to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Change {
    /// `zfs mount`; tells how far it is, if several are mounted.
    Mount(MountRequest),
    /// `zfs unmount`.
    Unmount(UnmountRequest),
    /// `zfs load-key`; brings a descriptor to read the key from.
    LoadKey(LoadKeyRequest),
    /// `zfs unload-key`, of this encryption root.
    UnloadKey(String),
    /// `zfs create`.
    CreateDataset(NewDataset),
    /// `zfs destroy`.
    Destroy(DestroyRequest),
    /// `zfs rename`.
    Rename(RenameRequest),
    /// `zfs set`.
    SetProperties {
        /// What to set of which dataset.
        datasets: Vec<DatasetSettings>,
        /// Mount, unmount and remount as the new values demand.
        mount: bool,
    },
    /// `zfs inherit`.
    Inherit {
        /// Filesystems, volumes or snapshots.
        datasets: Vec<String>,
        /// Full name.
        property: String,
        /// Go back to the received value (`-S`).
        received: bool,
    },
    /// `zfs snapshot`: all or none, in one transaction group.
    Snapshot {
        /// Full names; two of the same dataset are never among them.
        names: Vec<String>,
        /// User properties of all of them.
        properties: Vec<PropertySetting>,
    },
    /// `zfs clone`.
    Clone {
        /// Full name of the snapshot.
        origin: String,
        /// What becomes of it; nothing about a volume's size or keys.
        new: NewDataset,
    },
    /// `zfs promote`: a clone changes places with what it was cloned from.
    Promote(String),
    /// `zfs rollback`.
    Rollback {
        /// The snapshot to go back to.
        snapshot: String,
        /// What is destroyed before (`-r`, `-R`): snapshots, bookmarks and clones, what depends on
        /// others before them.
        newer: Vec<String>,
        /// Unmount clones that are in use (`-f`).
        force: bool,
    },
    /// `zfs receive`; brings a descriptor to read the stream from.
    Receive(Box<ReceiveRequest>),
    /// `zfs receive -A`: what was received in part into this filesystem or volume goes.
    AbortReceive(String),
    /// `zfs send`; brings a descriptor to write the stream to.
    Send(Box<SendRequest>),
    /// `zfs diff`.
    Diff(Box<DiffRequest>),
    /// `zfs program`.
    Program(Box<ProgramRequest>),
    /// `zfs hold`.
    Hold {
        /// Full names of snapshots.
        snapshots: Vec<String>,
        /// Name of the hold.
        tag: String,
    },
    /// `zfs release`.
    Release {
        /// Full names of snapshots.
        snapshots: Vec<String>,
        /// Name of the hold.
        tag: String,
    },
    /// `zfs redact`.
    Redact(RedactRequest),
    /// `zfs bookmark`.
    Bookmark {
        /// Full name of a snapshot or bookmark.
        from: String,
        /// Full name of the new bookmark.
        to: String,
    },
    /// `zfs allow`.
    Allow {
        /// Filesystem or volume.
        dataset: String,
        /// What to give.
        grants: Vec<Grant>,
    },
    /// `zfs unallow`.
    Unallow {
        /// Filesystem or volume.
        dataset: String,
        /// What to take; without permissions: all of that key.
        grants: Vec<Grant>,
        /// From everything below, too (`-r`).
        recursive: bool,
    },
    /// `zfs change-key`.
    ChangeKey {
        /// Encryption root, or a dataset that becomes one.
        dataset: String,
        /// The new key; `None`: inherit the parent's (`-i`).
        key: Option<NewKey>,
    },
    /// `zpool set`.
    SetPoolProperty(PropertySetting),
    /// `zpool upgrade` and `zpool set feature@x=enabled`: enable these (short names, dependencies
    /// first).
    EnableFeatures(Vec<String>),
    /// `zpool add`.
    AddVdevs(Vec<VdevPlan>),
    /// `zpool remove`: takes a device out of the pool; its path, the end of that, its name or guid.
    RemoveVdev(String),
    /// `zpool remove -s`: the removal under way is given up.
    CancelRemoval,
    /// `zpool attach`.
    AttachVdev {
        /// The device it comes beside: its path, the end of that, its name or guid.
        beside: String,
        /// The new device.
        device: VdevPlan,
        /// It gets everything in the order of the disks (`-s`).
        sequential: bool,
    },
    /// `zpool replace`.
    ReplaceVdev {
        /// The device that goes: its path, the end of that, its name or guid.
        old: String,
        /// What takes its place.
        device: VdevPlan,
        /// It gets everything in the order of the disks (`-s`).
        sequential: bool,
    },
    /// `zpool detach`: its path, the end of that, its name or guid.
    DetachVdev(String),
    /// `zpool offline`.
    OfflineVdev {
        /// Its path, the end of that, its name or guid.
        device: String,
        /// Only until the pool is imported again (`-t`).
        temporary: bool,
        /// It counts as faulty (`-f`).
        faulty: bool,
    },
    /// `zpool online`.
    OnlineVdev {
        /// Its path, the end of that, its name or guid.
        device: String,
        /// All of it is used, if it has grown (`-e`).
        expand: bool,
    },
    /// `zpool reopen`: looks for devices that came back or grew.
    Reopen,
    /// `zpool split`.
    SplitPool(SplitRequest),
    /// `zpool reguid`: a new guid, this one (`-g`) or a random one.
    Reguid(Option<u64>),
    /// `zpool checkpoint`.
    Checkpoint {
        /// The checkpoint there is goes (`-d`).
        discard: bool,
    },
    /// `zpool scrub` and `zpool resilver`.
    Scan(ScanRequest),
    /// `zpool initialize` and `zpool trim`.
    Sweep(SweepRequest),
    /// `zpool clear`: sets error counters to zero, of one device (path or guid) or of all, and lets
    /// a suspended pool try to go on.
    Clear(Option<String>),
    /// `zpool sync`: everything done before is on the disks when this is answered.
    Sync,
    /// `zpool export`: unmounts, and closes the pool; the process ends.
    Export {
        /// Even if filesystems are in use.
        force: bool,
    },
    /// `zpool destroy`; the process ends.
    DestroyPool {
        /// Even if filesystems are in use.
        force: bool,
    },
    /// `zinject`: from now on this may happen, until it is forgotten or the pool is closed.
    Inject(FaultOrder),
    /// `zinject -c`: this fault, or all, happen no more.
    ForgetFaults(Option<u64>),
    /// `zinject -A`: a device counts as if it had had too many errors, until somebody trusts it again.
    CountAsBad {
        /// Its path, the end of that, its name or guid.
        device: String,
        /// It is not used any more.
        faulted: bool,
    },
    /// Nothing but an entry in the history.
    Log,
}

impl Change {
    /// How many descriptors come with it: what a new key is read from is the last.
    pub fn descriptors(&self) -> usize {
        let brings = matches!(self, Change::LoadKey(_) | Change::Receive(_) | Change::Send(_));
        let own = usize::from(brings);
        own + usize::from(self.has_new_key())
    }

    /// Whether it makes an encryption root, or gives one another key.
    pub fn has_new_key(&self) -> bool {
        match self {
            Change::CreateDataset(new) | Change::Clone { new, .. } => new.key.is_some(),
            Change::ChangeKey { key, .. } => key.is_some(),
            Change::Receive(request) => request.key.is_some(),
            _ => false,
        }
    }

    /// That key. Its secret is no part of the message.
    pub fn new_key(&mut self) -> Option<&mut NewKey> {
        match self {
            Change::CreateDataset(new) | Change::Clone { new, .. } => new.key.as_mut(),
            Change::ChangeKey { key, .. } => key.as_mut(),
            Change::Receive(request) => request.key.as_mut(),
            _ => None,
        }
    }
}

/// What `zfs mount` asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountRequest {
    /// One filesystem, or `None` for all that should be mounted (`-a`).
    pub dataset: Option<String>,
    /// With `dataset`: those below it too (`-R`).
    pub recursive: bool,
    /// Temporary mount options (`-o`), as `ro` or `noatime`.
    pub options: Vec<String>,
    /// Mount over what lies there (`-O`).
    pub overlay: bool,
    /// Mount even what is redacted or was forcibly unmounted (`-f`).
    pub force: bool,
    /// With `dataset`: at this directory, which exists, whatever its `mountpoint` says (mount(8)).
    pub at: Option<String>,
    /// For this user, who is not root, and only where a user may mount something. Nobody says so of himself:
    /// the pool process knows who asks.
    #[serde(skip)]
    pub on_behalf: Option<u32>,
}

/// What `zfs unmount` asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnmountRequest {
    /// One filesystem, or `None` for all (`-a`).
    pub dataset: Option<String>,
    /// Even if it is in use (`-f`).
    pub force: bool,
    /// Unload keys that are no longer needed (`-u`).
    pub unload_keys: bool,
}

/// What `zfs load-key` asks for. The client has read the key from where `keylocation` says; the request
/// brings a descriptor to read it from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadKeyRequest {
    /// Encryption root.
    pub dataset: String,
    /// Only check it (`-n`).
    pub check_only: bool,
}

/// How the names of datasets that are received come from those that were sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReceivedNames {
    /// The target stands for the filesystem or volume that was sent.
    #[default]
    Exact,
    /// All but the sender's pool is put below the target (`-d`).
    WithoutPool,
    /// The last part of the name is put below the target (`-e`).
    LastPart,
}

/// What `zfs receive` asks for.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ReceiveRequest {
    /// Filesystem, volume or snapshot.
    pub target: String,
    /// What is put below the target.
    pub names: ReceivedNames,
    /// Say what is received (`-v`).
    pub verbose: bool,
    /// Receive nothing (`-n`).
    pub dry_run: bool,
    /// Keep what was received if the stream is cut off (`-s`).
    pub resumable: bool,
    /// Take the target back to where the stream starts; destroy what the sender destroyed (`-F`).
    pub force: bool,
    /// Mount nothing (`-u`).
    pub keep_unmounted: bool,
    /// Leave out holds (`-h`).
    pub skip_holds: bool,
    /// Set instead of what the stream says (`-o`).
    pub properties: Vec<PropertySetting>,
    /// Inherited instead of what the stream says (`-x`).
    pub excluded: Vec<String>,
    /// Snapshot that a new dataset is cloned from (`-o origin=`).
    pub origin: Option<String>,
    /// Key, if a new dataset becomes an encryption root (`-o encryption=on`).
    pub key: Option<NewKey>,
    /// Damaged blocks of the target, a snapshot, are made right (`-c`).
    pub corrective: bool,
}

/// What `zfs redact` asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RedactRequest {
    /// Full name of the snapshot.
    pub snapshot: String,
    /// Full name of the bookmark that keeps what is left out.
    pub bookmark: String,
    /// Full names of snapshots of clones of it.
    pub kept: Vec<String>,
}

/// What `zfs send` asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SendRequest {
    /// Full name of the snapshot, or of what was received in part; nothing with a token.
    pub snapshot: String,
    /// What was received in part is sent (`-S`).
    pub saved: bool,
    /// Where a receive was cut off (`-t`).
    pub token: Option<String>,
    /// Full name of the bookmark that says what is left out (`--redact`).
    pub redaction: Option<String>,
    /// Full name of the snapshot or bookmark that it goes on from (`-i`, `-I`).
    pub from: Option<String>,
    /// All snapshots between are sent too (`-I`).
    pub intermediates: bool,
    /// What is below is sent too, with all properties (`-R`).
    pub recursive: bool,
    /// Below, what has no such snapshot is left out (`--skip-missing`).
    pub skip_missing: bool,
    /// With all that is below them: not sent (`-X`).
    pub excluded: Vec<String>,
    /// With properties (`-p`).
    pub properties: bool,
    /// Only those that were received (`-b`).
    pub backup: bool,
    /// With holds (`-h`).
    pub holds: bool,
    /// As it is encrypted on the disks (`-w`).
    pub raw: bool,
    /// Blocks above 128 KiB as they are (`-L`).
    pub large_blocks: bool,
    /// Blocks in pointers as they are (`-e`).
    pub embedded: bool,
    /// Blocks as they are compressed (`-c`).
    pub compressed: bool,
    /// Send nothing (`-n`).
    pub dry_run: bool,
    /// Say how much it will be, and how far it is (`-v`).
    pub verbose: bool,
    /// In the form for programs (`-P`).
    pub parsable: bool,
}

/// What `zfs diff` asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiffRequest {
    /// Full name of the snapshot.
    pub from: String,
    /// Full name of the later snapshot, or of a filesystem as it is now.
    pub to: String,
    /// Say what kind of file each is (`-F`).
    pub classify: bool,
    /// Nothing but tabs between what is told (`-H`).
    pub scripted: bool,
    /// Say when each was changed (`-t`).
    pub times: bool,
    /// Odd bytes in names as they are (`-h`).
    pub plain: bool,
}

/// A channel program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramRequest {
    /// Its text.
    pub text: Vec<u8>,
    /// What it is given.
    pub arguments: Vec<String>,
    /// Instructions it may carry out; `None`: as many as most need.
    pub instructions: Option<u64>,
    /// Bytes it may use; `None`: as many as most need.
    pub memory: Option<u64>,
    /// It only looks (`-n`).
    pub looks_only: bool,
    /// What it returns is shown as JSON (`-j`).
    pub json: bool,
}

/// A pool that is to be split off.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SplitRequest {
    /// Its name.
    pub name: String,
    /// Devices that leave: paths, ends of those, names or guids; of the other mirrors the last.
    pub devices: Vec<String>,
    /// Properties of the new pool.
    pub properties: Vec<PropertySetting>,
}

/// What is wanted of the initializing or trimming of devices.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SweepRequest {
    /// It is about trimming, else about initializing.
    pub trim: bool,
    /// Each by its path, the end of that, its name or guid; none: all devices of the pool.
    pub devices: Vec<String>,
    /// What is to become of it.
    pub action: SweepAction,
}

/// What is to become of the initializing or trimming of devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SweepAction {
    /// It begins, or goes on if it was suspended.
    Begin {
        /// Bytes a second at most (`-r`).
        rate: Option<u64>,
    },
    /// It pauses (`-s`).
    Suspend,
    /// It is given up (`-c`).
    Cancel,
    /// It counts as never begun (`-u`).
    Forget,
}

/// What is wanted of the scrub or resilver of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ScanRequest {
    /// A scrub begins, or goes on if it pauses.
    Scrub,
    /// The same, of what was written since the last one began (`-C`).
    ScrubNew,
    /// What the error log lists is read again (`-e`), or that goes on if it pauses.
    ErrorScrub,
    /// What devices missed is written to them.
    Resilver,
    /// The scrub pauses (`-p`).
    Pause,
    /// The scrub is given up (`-s`).
    Stop,
}

/// Permissions that stand on a dataset under one key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// To whom, and where, as pools name it: `ul$1000` (chapter 06, section 18).
    pub key: String,
    /// Permissions, or permission sets where the key says so.
    pub permissions: Vec<String>,
}

/// What `zfs create` asks for.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct NewDataset {
    /// Full name.
    pub name: String,
    /// Size of a volume in bytes; `None`: a filesystem. `volblocksize` and `refreservation` are
    /// among the properties.
    pub volume_size: Option<u64>,
    /// Properties to set at once.
    pub properties: Vec<PropertySetting>,
    /// Key, if it becomes an encryption root.
    pub key: Option<NewKey>,
    /// Create missing parents, and do not mind if it is there (`-p`).
    pub parents: bool,
    /// Mount it (not `-u`).
    pub mount: bool,
}

/// What `zfs destroy` asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DestroyRequest {
    /// Full names of filesystems, volumes, snapshots or bookmarks, what depends on others before them.
    pub names: Vec<String>,
    /// Unmount even what is in use (`-f`).
    pub force: bool,
    /// Snapshots that are held or cloned go when they can (`-d`).
    pub defer: bool,
}

/// What `zfs rename` asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RenameRequest {
    /// Full name.
    pub from: String,
    /// Full name.
    pub to: String,
    /// Create missing parents (`-p`).
    pub parents: bool,
    /// Do not remount (`-u`).
    pub keep_mounts: bool,
    /// Unmount even what is in use (`-f`).
    pub force: bool,
    /// The snapshots of that name of everything below, too (`-r`).
    pub recursive: bool,
}
