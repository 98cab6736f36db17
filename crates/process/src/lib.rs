//! The process of a pool: it opens or creates it, takes orders, answers lookers, holds the mounts.
//!
//! Invariant: a process has one pool, and a pool one process.
#![forbid(unsafe_code)]

mod beginning;
mod lock_holder;
mod log;
mod memory;
mod opening;
mod planned;
mod program;
mod service;
mod whole_disks;

pub use beginning::run;
