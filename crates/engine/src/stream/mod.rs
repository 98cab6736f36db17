//! Send streams as a sequence of records with their running checksum: [`StreamReader`] and [`StreamWriter`].
//!
//! Chapter 07, sections 1 and 2; the records themselves are `format/send_stream`. What is sent and what is done
//! with what is received is decided above.
//!
//! Invariant: every record that is given was summed, and what stands in the stream is what was summed; every
//! record that is written carries the sum. A reader holds one record in memory.

mod read;
#[cfg(test)]
mod tests;
mod write;

pub use read::{Item, ReadError, StreamReader};
pub use write::StreamWriter;
