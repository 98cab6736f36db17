//! Faults on purpose (`zinject`, `cenote drill`), as they cross the control socket.
//!
//! Invariant: a chance is counted in millionths, a time in microseconds, a place in bytes.

use serde::{Deserialize, Serialize};

/// All chances there are: it happens always.
pub const ALWAYS: u32 = 1_000_000;

/// What a process can be asked to die at: adding a vdev, attaching (also by replacing), detaching, removing, splitting.
pub const FUNCTIONS: [&str; 5] = [
    "spa_vdev_add",
    "spa_vdev_attach",
    "spa_vdev_detach",
    "spa_vdev_remove",
    "spa_vdev_split_mirror",
];

/// What a device is asked when a fault may happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum FaultAt {
    Read,
    Write,
    Flush,
    Any,
}

/// What happens then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FaultKind {
    /// It fails with EIO.
    Io,
    /// The device is gone.
    Gone,
    /// Wrong bytes are read.
    Garbage,
    /// One bit is read wrong.
    BitRead,
    /// One bit is written wrong.
    BitWritten,
    /// Only the first part is written.
    Torn,
    /// Nothing is written, and that is not told.
    Lost,
    /// What is written waits in a memory that a power loss empties, until a flush.
    Held,
    /// It takes longer.
    Slow {
        /// How long.
        microseconds: u64,
        /// How many are at work at once.
        lanes: u32,
    },
}

/// A fault of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceFault {
    /// Its path, the end of that, its name or guid.
    pub device: String,
    /// What it is asked.
    pub at: FaultAt,
    /// What happens.
    pub kind: FaultKind,
    /// How often, of [`ALWAYS`] times.
    pub chance: u32,
    /// Only to what touches these bytes of the device: the first, and the one behind the last.
    pub range: Option<(u64, u64)>,
}

/// How reading a block of an object fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BlockFault {
    /// No device gives it.
    Io,
    /// Its bytes are not those that were written.
    Checksum,
    /// Its MAC does not fit.
    Decrypt,
    /// It cannot be decompressed.
    Decompress,
}

/// A fault of what an object holds: reading it fails.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectFault {
    /// Number of the dataset (0: the meta object set), or its name.
    pub dataset: String,
    /// The object.
    pub object: u64,
    /// Level of its blocks.
    pub level: u8,
    /// First block and the one behind the last; `None`: all.
    pub blocks: Option<(u64, u64)>,
    /// How it fails.
    pub kind: BlockFault,
    /// The copies that fail, as bits by the order of their addresses; 0: whatever copies there are.
    pub copies: u8,
    /// How often, of [`ALWAYS`] times.
    pub chance: u32,
}

/// What is to happen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FaultOrder {
    /// To a device.
    Device(DeviceFault),
    /// To an object.
    Object(ObjectFault),
    /// The pool's process dies when it does this, before any of it counts: the name of OpenZFS's function, one of
    /// [`FUNCTIONS`].
    Death(String),
}

/// A fault that may happen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultReport {
    /// Its number.
    pub id: u64,
    /// Guid of the device; 0 for every other fault.
    pub guid: u64,
    /// What was asked for. A device is named by its path.
    pub order: FaultOrder,
    /// How often it happened.
    pub happened: u64,
}
