//! Tests of the allocator on metadata in memory.

mod allocate;
mod model;
mod record;
mod rig;
