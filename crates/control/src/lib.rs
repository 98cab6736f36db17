//! What the command line and a pool process say to each other, and how it looks on the screen.
//!
//! Requests and responses, the client and the server of the control socket, reports, property
//! tables, text and JSON. Invariant: no engine inside; everything here works on published reports.
#![forbid(unsafe_code)]

pub mod changes;
pub mod client;
pub mod json;
pub mod plan;
pub mod properties;
pub mod protocol;
pub mod report;
pub mod run_directory;
pub mod server;
pub mod text;
