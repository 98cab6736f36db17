//! Pools: finding them on devices, judging what can be opened, and opening them.
//!
//! Invariant: labels are hints until the pool's own metadata agrees with them.

pub mod activity;
mod apart;
pub mod assemble;
mod behind;
pub mod cachefile;
pub mod change;
pub mod choose;
pub mod discover;
pub mod features;
pub mod found_labels;
pub mod group;
pub mod history;
pub mod host;
pub mod import_status;
pub mod importable;
pub mod in_use;
mod injecting;
pub mod inspect;
pub mod labels;
pub mod leaves;
pub mod metadata;
pub mod naming;
pub mod open;
pub mod open_options;
pub mod packed;
pub mod parallel;
pub mod properties;
pub(crate) mod removed;
pub mod search;
pub mod space;
pub mod space_maps;
pub mod supported;
#[cfg(test)]
pub(crate) mod testing;
mod trust;
pub mod validate;

pub use open::{GoneBack, Pool};
pub use open_options::{OpenOptions, Rewind};
