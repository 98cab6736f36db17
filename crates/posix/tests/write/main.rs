//! Changing files through [`cenote_posix::tree::Tree`], on object sets that live in memory; crowded
//! directories on a pool.

// A test ends at the first surprise, in helpers too.
#![allow(clippy::unwrap_used)]

mod access_times;
mod consistent;
mod crowded;
mod data_model;
mod frees;
mod full;
mod log_faults;
mod name_model;
mod noted;
mod owners;
#[allow(dead_code, reason = "others use the rest")]
#[path = "../crashes/pool.rs"]
mod pool;
mod replayed;
mod rig;
mod rules;
mod slow_reads;
mod snapshots;
mod unread_names;
mod xattr_records;
