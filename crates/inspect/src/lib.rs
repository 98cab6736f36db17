//! What opens devices itself, without a pool process: `zdb`, `cenote ls`, `cat`, `cp`, `tree`, and
//! answering what commands ask of devices.
//!
//! Invariant: nothing is written to a device, but where `zpool labelclear` asks for it.
#![forbid(unsafe_code)]

mod cache_file;
mod clear_labels;
mod disks;
mod importable;
mod in_use;
pub mod look;
pub mod offline;
pub mod zdb;
