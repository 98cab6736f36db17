//! Files and volumes: what every door calls.
//!
//! Invariant: nothing here knows a transport; errors carry the errno a system call would give.
#![forbid(unsafe_code)]

pub mod access;
pub mod attributes;
pub mod control_directory;
pub mod create;
pub mod dataset_files;
pub mod difference;
pub mod directory;
pub mod error;
pub mod filesystem;
pub mod live;
mod open_directories;
pub mod paths;
pub mod stream;
pub mod tree;
pub mod view;
pub mod volume;
pub mod write;
pub mod xattr;

pub use control_directory::{
    Snapshot, SnapshotAdmin, SnapshotDirectory, SnapshotIdentity, SnapshotSource,
};
pub use filesystem::{Filesystem, FilesystemOptions};
pub use view::View;
pub use volume::{Volume, VolumeWriteOptions};
pub use write::{
    AccessTimes, ChangeLog, Durability, FilesystemWriter, Intents, SpaceCheck, WriteOptions,
    WriteProperties,
};
pub use xattr::{AclType, XattrMode};
