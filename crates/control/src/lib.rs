//! What the command line and a pool process say to each other, and how it looks on the screen.
//!
//! Requests and responses, the client and the server of the control socket, how a pool process is begun
//! and how devices are looked at, reports, property tables, text and JSON. Invariant: no engine inside;
//! everything here works on published reports.
#![forbid(unsafe_code)]

pub mod begin;
pub mod budget;
pub mod changes;
pub mod client;
pub mod compatibility;
pub mod device_names;
pub mod events;
pub mod faults;
pub mod following;
pub mod frame;
pub mod json;
mod left_behind;
pub mod look;
pub mod mount_options;
pub mod mounted_places;
pub mod peer;
pub mod plan;
pub mod principal;
pub mod program;
pub mod properties;
pub mod protocol;
pub mod remarks;
pub mod replies;
pub mod report;
pub mod run_directory;
pub mod secret;
pub mod server;
pub mod terminal;
pub mod text;
mod threads;

// What both sides know of the format: names and values, no bytes.
pub use cenote_format::label::allocatable;
pub use cenote_format::{delegation, feature, property};
