//! The doors by which served filesystems are reached.
//!
//! Invariant: a door only translates: what a file is and who may read it is decided by the
//! [`Tree`](cenote_posix::tree::Tree) it serves and, for permissions, by the kernel.

pub mod fuse;
