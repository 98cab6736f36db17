//! `zpool`, `zfs`, `zed`, `zinject`, `cenote drill`, `cenote snap`, `cenote replicate` and the helpers of mount(8): parsing, asking the processes of pools, printing.
//!
//! Invariant: no engine and no device inside; what is shown was said by a pool process, or by a process
//! that looked at devices.

mod datasets;
mod drill;
mod getopt;
mod keys;
mod leftovers;
pub mod mount_helper;
mod policy;
mod replicate;
mod settings;
mod usage;
mod version;
mod zed;
mod zfs;
mod zinject;
mod zpool;

pub use drill::run as run_drill;
pub use policy::run as run_snap;
pub use replicate::run as run_replicate;
pub use version::userland;
pub use zed::run as run_zed;
pub use zfs::run as run_zfs;
pub use zinject::run as run_zinject;
pub use zpool::run as run_zpool;
