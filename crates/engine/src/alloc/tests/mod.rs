//! Tests of the allocator on metadata in memory.

mod allocate;
mod indirect;
mod model;
mod record;
pub(crate) mod rig;
mod threads;
