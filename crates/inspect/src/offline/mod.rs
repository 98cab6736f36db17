//! Reading pools straight from their devices: no mount, no pool process, no root.
//!
//! Invariant: nothing is written to a device.

pub mod below;
pub mod command;
pub mod copy;
pub mod pool;
pub mod target;
pub mod walk;
