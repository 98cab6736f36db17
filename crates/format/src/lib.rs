//! Every on-disk and in-stream structure of ZFS as typed values.
//!
//! Invariant: nothing here does I/O, panics, or trusts a byte. Whatever the input, a decoder returns
//! a value or a [`Error`] that names the structure and the reason.
//!
//! Metadata blocks reach these decoders in little-endian form: the engine swaps blocks written by
//! big-endian hosts right after decompression (see [`byteswap`]). Structures that announce their
//! own byte order (labels, uberblocks, gang headers, intent-log blocks, nvlists, system attributes)
//! are decoded in either.
#![forbid(unsafe_code)]
#![deny(clippy::indexing_slicing)]

pub mod acl;
pub mod blkptr;
pub mod blkptr_build;
pub mod bookmark;
pub mod bpobj;
pub mod bptree;
pub mod brt;
pub mod bytes;
pub mod byteswap;
pub mod config;
pub mod crypto_key;
pub mod ddt;
pub mod deadlist;
pub mod delegation;
pub mod directory_entry;
pub mod dnode;
pub mod dsl_dataset;
pub mod dsl_directory;
pub mod error;
pub mod error_log;
pub mod feature;
pub mod fuid;
pub mod history;
pub mod ids;
pub mod indirect_mapping;
pub mod l2arc;
pub mod label;
pub mod master_node;
pub mod nvlist;
pub mod object_type;
pub mod objset;
pub mod pflags;
pub mod posix_acl;
pub mod property;
pub mod rebuild_state;
pub mod sa;
pub mod scan_state;
pub mod send_stream;
pub mod space_map;
pub mod uberblock;
pub mod zap;
pub mod zil;
pub mod znode;

pub use blkptr::{BlockPointer, Dva};
pub use blkptr_build::StoredBlock;
pub use config::{PoolConfig, PoolState, VdevConfig, VdevKind};
pub use dnode::Dnode;
pub use error::{Error, Result};
pub use ids::{Guid, Level, ObjectId, Txg};
pub use nvlist::NvList;
pub use object_type::ObjectType;
pub use objset::Objset;
pub use uberblock::Uberblock;
