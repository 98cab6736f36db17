//! The workloads: small stories, each about one thing, that go through most of the writer.
//!
//! Invariant: each gives its story after the pool was exported; what they do is the same in every
//! run, apart from the threads of some and the times of background work.

pub mod blocks;
pub mod datasets;
pub mod devices;
pub mod expansion;
pub mod mixed;
pub mod names;
pub mod prompt;
pub mod sealed;
