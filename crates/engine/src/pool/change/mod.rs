//! Changing a pool and its datasets: each order of `zpool` and `zfs`, all or nothing.
//!
//! Invariant: what changes the metadata runs as one task of the thread that writes groups
//! ([`LivePool::change`](super::group::LivePool::change)), which looks everything up again: what an order saw
//! of the pool before may be old, but never wrong.

mod add;
mod checkpoint;
mod create;
mod ending;
mod evacuate;
mod events;
mod examine;
mod expand;
mod growth;
mod keys;
mod making;
mod members;
mod opening;
mod orders;
mod own;
mod program;
mod properties;
mod remove;
mod replacements;
mod sent_roots;
mod snapshots;
mod spares;
mod split;

pub use add::Additions;
pub use create::{NewPoolPlan, create};
pub use keys::Encryption;
pub use members::Newcomer;
pub use orders::{DatasetOrders, Fill, NewNamed, Parents};
pub use program::{ProgramGroup, ProgramStep};
pub use sent_roots::SentRoot;
pub use split::{SplitPlan, legs};
