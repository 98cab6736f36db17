//! Stands in until the vdev room lands: every read answers with an error.
#![allow(missing_docs, reason = "replaced when the vdev room lands")]

use bytes::Bytes;
use cenote_format::Txg;

#[derive(Debug, Clone, thiserror::Error)]
#[error("the vdev room is not built yet")]
pub struct VdevError;

#[derive(Debug, Clone, Copy)]
pub struct BlockRead {
    pub vdev: u32,
    pub offset: u64,
    pub size: u64,
    pub birth: Txg,
}

pub struct Recovered {
    pub data: Bytes,
}

pub struct VdevTree;

impl VdevTree {
    pub fn is_readable(&self, _: u32) -> bool {
        true
    }
    pub fn min_allocation(&self, _: u32) -> Option<u64> {
        None
    }
    pub fn read_batch(&self, reads: &[BlockRead]) -> Vec<Result<Bytes, VdevError>> {
        reads.iter().map(|_| Err(VdevError)).collect()
    }
    pub fn read_recover(
        &self,
        _: &BlockRead,
        _: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Result<Recovered, VdevError> {
        Err(VdevError)
    }
}

pub fn decompress(id: u8, _: &[u8], _: &mut [u8]) -> Result<(), crate::Error> {
    Err(crate::Error::unsupported(format!("compression {id} is not built yet")))
}
