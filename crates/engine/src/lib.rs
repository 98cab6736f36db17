//! The storage engine: jobs, vdevs, cache, pipeline, objects, ZAPs, datasets, keys, pools, checks.
//!
//! Invariant: a room uses only the rooms listed before it in `docs/architecture.md`. Whatever lies
//! on the disks, the answer is a value that its checksum vouches for, or an [`Error`] that names
//! the place and the reason.
#![forbid(unsafe_code)]

pub mod alloc;
pub mod cache;
pub mod check;
pub mod dataset;
pub mod error;
pub mod events;
pub mod intent;
pub mod job;
pub mod keys;
pub mod object;
pub mod pipe;
pub mod pool;
pub mod receive;
pub mod send;
pub mod stream;
pub mod txg;
pub mod vdev;
pub mod walk;
pub mod zap;

pub use cenote_device::environment;
pub use error::{Error, ErrorKind, Place, Result};
