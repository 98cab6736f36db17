//! Stands in until decompression is called directly.
#![allow(missing_docs, reason = "goes away with its last user")]

pub use crate::vdev::{BlockRead, Recovered, VdevError, VdevTree};

pub fn decompress(id: u8, _: &[u8], _: &mut [u8]) -> Result<(), crate::Error> {
    Err(crate::Error::unsupported(format!("compression {id} is not built yet")))
}
