//! Files and volumes: what every door (FUSE first) calls.
//!
//! Invariant: nothing here knows a transport; errors carry the errno a system call would give.
#![forbid(unsafe_code)]

pub mod tree;
