//! The alloc room: which addresses are free, who gets them, and how that is recorded.
//!
//! Chapter 03, sections 8 to 11. Space maps are objects, which are known only above: [`SpaceSource`]
//! and [`SpaceStore`] say what is needed of them. Invariant: an address is handed out once until it
//! is freed, and again only when no state of the pool that could still be opened refers to it.

mod agree;
mod allocator;
mod checkpoint;
mod condense;
mod dirty_time_log;
mod figures;
mod free;
pub(crate) mod geometry;
pub(crate) mod histogram;
mod indirect;
pub(crate) mod logs;
mod map;
mod metaslab;
mod open;
mod ranges;
mod remove;
mod removing;
mod reuse;
mod state;
mod store;
mod sweep;
mod sync;
#[cfg(test)]
pub(crate) mod tests;
mod top;

pub use allocator::{AllocRequest, Allocator, Dvas};
pub use condense::{Obsolete, count_obsolete, destroy_obsolete};
pub use dirty_time_log::{destroy_missed, read_missed, write_missed};
pub use figures::{Figures, TopFigures, slop};
pub use logs::Logged;
pub use open::{NewVdev, VdevToInit, check_writable};
pub use remove::destroy_listed_maps;
pub use reuse::Held;
pub use store::{
    CHECKPOINT, DIRECTORY, HISTOGRAM, LOGS, NewSpaceObject, OBSOLETE_COUNTS, PRECISE, SpaceSource,
    SpaceStore, TWO_WORDS,
};
pub(crate) use store::{CHECKPOINT_MAP, LOG_ZAP, UNFLUSHED};
pub use sweep::{Occupied, Swept};
