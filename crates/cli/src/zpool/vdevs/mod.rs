//! Devices on the command line of `zpool create` and `zpool add`: grammar, devices, checks, layouts.
//!
//! Invariant: what comes out is a complete plan; a word that is refused is named.

pub mod devices;
pub mod grammar;
pub mod layout;
pub mod replication;
