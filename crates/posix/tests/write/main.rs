//! Changing files through [`cenote_posix::tree::Tree`], on object sets that live in memory.

// A test ends at the first surprise, in helpers too.
#![allow(clippy::unwrap_used)]

mod consistent;
mod data_model;
mod name_model;
mod replayed;
mod rig;
mod rules;
