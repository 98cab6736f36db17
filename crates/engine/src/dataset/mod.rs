//! Datasets of a pool, as they lie in its meta object set: directories, heads, snapshots, clones,
//! bookmarks, holds, properties and space.
//!
//! Invariant: a [`Catalog`] only reads, and sees the pool as of the meta object set it was opened
//! over; whatever changes datasets is in [`change`].

mod accounting;
mod allowance;
mod catalog;
pub mod change;
mod charge;
mod computed;
mod deadlist;
pub mod dedup_log;
mod directory;
mod facts;
mod inventory;
mod kept;
mod key_object;
mod name;
mod names;
mod objset;
mod permissions;
mod promises;
mod properties;
pub mod resume_token;
mod shared_map;
mod side_by_side;
mod snapshots;
mod space;
mod survey;
mod table;
mod written;

pub use accounting::{Principal, PrincipalUsage};
pub use allowance::{Allowance, DirectoryLimits, available_below};
pub use catalog::{Catalog, Dataset};
pub use charge::charge_owners;
pub use computed::are_same_snapshots;
pub use directory::{Directory, is_hidden};
pub use facts::DatasetFacts;
pub use inventory::{Entry, Inventory, Known, Usage};
pub use kept::{Kept, KeptSnapshots};
pub use key_object::KeyObject;
pub use name::{DEPTH_MAX, DatasetName, NAME_MAX, Suffix, check_new_name};
pub use names::Names;
pub(crate) use objset::is_foreign;
pub use objset::{DatasetKind, Keys, NoKeys};
pub use promises::{Answer, DirectoryFacts, HeadFacts, HeadLimits, Left, PoolRoom, Promises, Want};
pub use properties::{Listed, PropertyReader, PropertyValue, Source, Surroundings, Value};
pub(crate) use side_by_side::SideBySide;
pub use space::PoolCapacity;
pub use survey::InventoryReader;
pub use table::Table;
pub use written::{Changed, Written};
