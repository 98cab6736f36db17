//! What a seed stands for: a pool, and a list of steps.
//!
//! Invariant: a step says all about itself; one whose object is not there when its turn comes is passed
//! over, so that a plan with steps taken out is a plan.

use serde::{Deserialize, Serialize};

/// The pool a plan begins with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Setup {
    /// Name of the layout ([`crate::disks::LAYOUTS`]).
    pub layout: String,
    /// log2 of the sector size.
    pub ashift: u64,
    /// Size of a disk in MiB.
    pub size_mib: u64,
    /// Properties of the root filesystem.
    pub properties: Vec<(String, u64)>,
    /// The root filesystem is encrypted.
    pub encrypted: bool,
    /// The feature `block_cloning` is enabled.
    pub cloning: bool,
    /// MiB that are written before anything is recorded.
    pub ballast_mib: u64,
}

impl Setup {
    /// Blocks may be shared. Their tables may make freeing dear, which is done over several groups then.
    pub fn shares_blocks(&self) -> bool {
        self.cloning || self.properties.iter().any(|(name, on)| name == "dedup" && *on != 0)
    }
}

/// A pool and what is done to it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// What clock and random numbers of the pool follow from.
    pub seed: u64,
    /// The pool.
    pub setup: Setup,
    /// What is done.
    pub steps: Vec<Step>,
}

/// What is wrong with a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Trouble {
    /// Reads fail.
    Reads,
    /// Writes fail.
    Writes,
    /// It does not answer.
    Hangs,
    /// It is gone.
    Gone,
    /// It says it wrote and did not.
    Loses,
    /// The file below it has no room.
    NoRoom,
    /// It does not answer; what was written gets there when it is well again.
    Late,
}

impl Trouble {
    /// Nobody can read the leaf.
    pub fn hides(self) -> bool {
        matches!(self, Self::Reads | Self::Hangs | Self::Gone | Self::Late)
    }
}

/// Something done. Numbers choose among what there is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Step {
    // Files of filesystem `set`.
    Create {
        set: u8,
        name: u8,
    },
    Write {
        set: u8,
        file: u8,
        at: u32,
        len: u32,
        fill: u32,
        squeezable: bool,
    },
    Append {
        set: u8,
        file: u8,
        len: u32,
        fill: u32,
    },
    Truncate {
        set: u8,
        file: u8,
        len: u32,
    },
    Punch {
        set: u8,
        file: u8,
        at: u32,
        len: u32,
    },
    /// Makes it longer with nothing (`fallocate`).
    Lengthen {
        set: u8,
        file: u8,
        len: u32,
    },
    /// Its times become now.
    Touch {
        set: u8,
        file: u8,
    },
    /// From now on it may only be appended to, or is as ever.
    AppendOnly {
        set: u8,
        file: u8,
        on: bool,
    },
    Rename {
        set: u8,
        file: u8,
        to: u8,
        exchange: bool,
    },
    Unlink {
        set: u8,
        file: u8,
    },
    Directory {
        set: u8,
        name: u8,
    },
    RemoveDirectory {
        set: u8,
        name: u8,
    },
    Link {
        set: u8,
        file: u8,
        to: u8,
    },
    Xattr {
        set: u8,
        file: u8,
        name: u8,
        len: u16,
        fill: u32,
    },
    Copy {
        set: u8,
        from: u8,
        to: u8,
        at: u32,
        to_at: u32,
        len: u32,
    },
    Fsync {
        set: u8,
        file: u8,
    },
    SyncFilesystem {
        set: u8,
    },
    /// Writes and `fsync`s again and again, without a group in between.
    Burst {
        set: u8,
        file: u8,
        at: u32,
        len: u32,
        times: u8,
        fill: u32,
    },
    /// Writes new files until there is no room; `fsync`s each if it says so.
    Fill {
        set: u8,
        len: u32,
        most: u8,
        fill: u32,
        sync: bool,
    },
    Group,
    // Orders.
    NewFilesystem {
        below: u8,
        name: u8,
        properties: Vec<(String, u64)>,
    },
    Destroy {
        set: u8,
        recursive: bool,
    },
    Snapshot {
        set: u8,
        name: u8,
        recursive: bool,
    },
    DestroySnapshot {
        snapshot: u8,
    },
    DestroySnapshots {
        set: u8,
        name: u8,
    },
    RenameSnapshot {
        snapshot: u8,
        name: u8,
    },
    Clone {
        snapshot: u8,
        name: u8,
    },
    Promote {
        set: u8,
    },
    Rollback {
        set: u8,
    },
    RenameFilesystem {
        set: u8,
        below: u8,
        name: u8,
    },
    Set {
        set: u8,
        property: String,
        value: u64,
    },
    Hold {
        snapshot: u8,
    },
    Release {
        snapshot: u8,
    },
    Comment {
        text: u8,
    },
    AddLog,
    AddDisk,
    RemoveLog,
    Checkpoint,
    DiscardCheckpoint,
    /// A scrub or resilver begins, pauses, goes on or is given up (`what`); then so many groups, if it
    /// works.
    Scan {
        what: u8,
        groups: u8,
    },
    /// A leaf rests, is replaced and comes back, or has another beside it for a while (`what`).
    Members {
        what: u8,
        which: u8,
        fill: u32,
    },
    /// A hot spare stands in for a leaf; then that comes back, or leaves for good (`stays`).
    Spared {
        which: u8,
        stays: bool,
        fill: u32,
    },
    /// One device of every mirror becomes a pool of its own, which is judged, and comes back. `cut`: power is lost
    /// so many thousandths into that; 0: it is not. `manner` as for `Cut`.
    Split {
        cut: u16,
        manner: u8,
        seed: u32,
        fill: u32,
    },
    /// A top-level vdev begins to leave, or goes on; then so many groups, and it comes to its end (`end` 0
    /// or 1; 1: it is added again), is given up (2), or is left where it is.
    Evacuate {
        which: u8,
        groups: u8,
        end: u8,
        fill: u32,
    },
    // The pool's life.
    Export,
    /// The process dies: nothing on the disks is lost.
    Kill {
        unmounted: u8,
    },
    /// Power is lost right after an event so many thousandths of this life ago. `manner`: unflushed
    /// writes are lost (0), kept (1), each kept, lost or torn (2). `unmounted`: what is not opened in
    /// the next life, as a bit mask. `stale`: the spare leaf has not got the last events, so many
    /// thousandths.
    Cut {
        back: u16,
        manner: u8,
        seed: u32,
        unmounted: u8,
        stale: u16,
    },
    /// As a cut, judged on a copy: this life goes on.
    Look {
        back: u16,
        manner: u8,
        seed: u32,
    },
    /// While the pool is imported, between finding it and holding its devices, another host writes and
    /// dies; `open`: that has it open already when it is found.
    Race {
        fill: u32,
        open: bool,
    },
    /// The process dies, and the pool goes back to its checkpoint; power is lost so many thousandths of that before
    /// it is done. `manner` as for `Cut`.
    Back {
        cut: u16,
        manner: u8,
        seed: u32,
    },
    /// The process dies, and so many reads fail while the pool is opened and mounted, after so many.
    Blink {
        skip: u16,
        reads: u16,
    },
    // Faults.
    Leaf {
        which: u8,
        trouble: Trouble,
    },
    /// All leaves are well again; `zpool clear` if it says so.
    Well {
        clear: bool,
    },
    /// Bytes of the spare leaf change by themselves.
    Rot {
        which: u8,
        seed: u32,
        places: u8,
    },
    /// Sectors of one label of any leaf change by themselves, uberblocks too (`label` 0 to 3), or those
    /// of all labels of a spare leaf (4).
    RotLabel {
        which: u8,
        label: u8,
        seed: u32,
    },
    /// All devices of the pool fail while files are changed. In the end they are well again (0), or
    /// lost first what was not flushed (1), or the process dies (2), or power fails (3).
    Dark {
        trouble: Trouble,
        fill: u32,
        end: u8,
    },
    /// So many changes of the metadata into it, an order fails.
    Fails {
        order: Box<Step>,
        at: u8,
    },
    // Two at a time.
    /// The second is done while the first is under way: between looking and changing.
    Beside {
        first: Box<Step>,
        second: Box<Step>,
    },
    /// Files are changed while the group that has the order is written.
    During {
        order: Box<Step>,
        steps: Vec<Step>,
    },
    /// A group is written while an fsync is about to send its write number `writes` to the disks;
    /// then the process dies, if the group did not wait for it.
    Overtaken {
        set: u8,
        file: u8,
        fill: u32,
        writes: u8,
    },
    /// Blocks of level `level` of a file are damaged in every copy.
    RotFile {
        set: u8,
        file: u8,
        level: u8,
    },
    /// A snapshot is sent and received as another filesystem of the pool. `since`: only what is not there yet.
    /// `forms`: bits of [`crate::travel`]. The stream is cut off after so many thousandths of it (1000: it is
    /// not); when so many of it (`at`) have been received, `steps` are done.
    Transfer {
        snapshot: u8,
        to: u8,
        since: bool,
        forms: u8,
        cut: u16,
        at: u16,
        steps: Vec<Step>,
    },
    /// What was received in part goes on, is cut off again, or is given up (`end` 0).
    Resume {
        which: u8,
        cut: u16,
        end: u8,
    },
    /// Reads everything and compares.
    Read,
}

impl Plan {
    /// As text: one line for the pool, one for each step.
    pub fn to_text(&self) -> String {
        let line = |value: serde_json::Result<String>| value.unwrap_or_default() + "\n";
        let mut text = line(serde_json::to_string(&(self.seed, &self.setup)));
        for step in &self.steps {
            text.push_str(&line(serde_json::to_string(step)));
        }
        text
    }

    /// Of text. Lines that begin with `#` say something to people.
    ///
    /// # Errors
    /// With the line that is no step.
    pub fn of_text(text: &str) -> Result<Self, String> {
        let lines = text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
        let mut lines = lines.map(|line| (line, line));
        let wrong = |line: &str, error: serde_json::Error| format!("'{line}': {error}");
        let (_, first) = lines.next().ok_or("an empty plan")?;
        let (seed, setup) = serde_json::from_str(first).map_err(|error| wrong(first, error))?;
        let step = |(_, line): (&str, &str)| serde_json::from_str(line).map_err(|e| wrong(line, e));
        Ok(Self { seed, setup, steps: lines.map(step).collect::<Result<_, _>>()? })
    }
}
