//! The vdev room: a tree of devices that turns (top-level vdev, offset, size, birth) into bytes.
//!
//! Chapter 03, sections 1 to 7. Below is pure geometry ([`raidz`], [`draid`]) and the [`Topology`], a
//! value that says what there is and how that can change; above them the
//! [`VdevTree`] of open devices: [`VdevTree::read_batch`] and [`VdevTree::write_batch`] for many
//! blocks at once, [`VdevTree::read_recover`] for one block whose first reading was wrong,
//! [`WriteQueue`] for blocks that come one by one. Invariant: nothing here
//! trusts a configuration or an address from disk; what does not fit is a [`VdevError`], never a
//! panic or a wrong read.

mod batch;
mod build;
mod candidates;
mod difference;
pub mod draid;
mod draid_table;
mod error;
mod examine;
mod expansion;
mod extent;
mod flush;
mod gather;
mod growth;
mod handle;
mod health;
mod inject;
mod injected;
pub mod layout;
mod leaf;
mod leaving;
mod missed;
mod parity;
mod patience;
mod permutation;
mod placed;
mod plan;
mod precedence;
mod probe;
pub mod raidz;
mod read;
mod rebuild;
mod recover;
mod reflow;
mod reports;
mod rewrite;
mod sides;
mod source;
mod state;
mod stats;
mod status;
#[cfg(test)]
mod tests;
mod topology;
mod tree;
mod write;
mod write_queue;

pub use cenote_format::label::allocatable;
pub use error::VdevError;
pub use examine::Examined;
pub use expansion::Moving;
pub use flush::LeafWrite;
pub use gather::Reading;
pub use growth::METASLABS_MAX;
pub use handle::VdevHandle;
pub use health::{ERROR_LIMIT, FIRST_PAUSE, LONGEST_PAUSE, WINDOW};
pub use inject::{ALWAYS, DeviceFault, FaultAt, FaultKind};
pub use injected::Injected;
pub(crate) use leaf::join_touching;
pub use leaf::{BOOT_START, DATA_START, LeafOpener, LeafUnavailable, SMALLEST_DEVICE};
pub use missed::Missed;
pub use read::BlockRead;
pub use recover::{MAX_CANDIDATE_BYTES, MAX_CANDIDATES, Recovered, Repair};
pub use sides::Stretch;
pub use state::{Aux, Condition, VdevState};
pub use stats::{LATENCY_BUCKETS, SIZE_BUCKETS, VdevStats};
pub use status::VdevStatus;
pub use topology::{AllocationClass, Detached, Leg, Split, Topology};
pub use tree::{LeafDevice, VdevTree};
pub use write::BlockWrite;
pub use write_queue::WriteQueue;
