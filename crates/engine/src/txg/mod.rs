//! Transaction groups: which group a change belongs to, and how much may wait to be written.
//!
//! Invariant: a group that is being written gets no new changes: [`Gate::close`] returns only when
//! every [`Tx`] of the group it closes is gone. At most two groups are dirty: the open one and the
//! one being written. Whoever holds a [`Tx`] must not wait for a group.

mod dirty;
mod gate;
mod interrupt;
mod promised;

pub use dirty::{DirtyDatasets, DirtyMark};
pub use gate::{Gate, GateFigures, Suspension, Tx};
pub use interrupt::Interrupt;
pub(crate) use interrupt::wait;
pub use promised::{Account, Costs, Promised, Purpose, Reservation, StoredSize};
