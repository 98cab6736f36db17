//! The fixed fields of a header, read in either byte order and written little-endian.
//!
//! Invariant: no field is read or written beyond the header; an offset outside of it reads as zero.

use super::HEADER;
use crate::bytes::{ByteOrder, array, put};

/// A header to be read.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a> {
    pub(super) data: &'a [u8; HEADER],
    pub(super) order: ByteOrder,
}

impl Fields<'_> {
    pub(super) fn u8(&self, at: usize) -> u8 {
        self.data.get(at).copied().unwrap_or(0)
    }

    pub(super) fn u32(&self, at: usize) -> u32 {
        self.order.u32(self.data, at).unwrap_or(0)
    }

    pub(super) fn u64(&self, at: usize) -> u64 {
        self.order.u64(self.data, at).unwrap_or(0)
    }

    pub(super) fn words(&self, at: usize) -> [u64; 4] {
        [self.u64(at), self.u64(at + 8), self.u64(at + 16), self.u64(at + 24)]
    }

    /// Bytes, which have no order.
    pub(super) fn bytes<const N: usize>(&self, at: usize) -> [u8; N] {
        array(self.data, at).unwrap_or([0; N])
    }
}

/// A header to be written.
pub(super) struct Out(pub(super) [u8; HEADER]);

impl Out {
    /// A header of records of type `kind`.
    pub(super) fn new(kind: u32) -> Self {
        let mut out = Self([0; HEADER]);
        out.u32(0, kind);
        out
    }

    pub(super) fn u8(&mut self, at: usize, value: u8) {
        self.bytes(at, &[value]);
    }

    pub(super) fn u32(&mut self, at: usize, value: u32) {
        self.bytes(at, &value.to_le_bytes());
    }

    pub(super) fn u64(&mut self, at: usize, value: u64) {
        self.bytes(at, &value.to_le_bytes());
    }

    pub(super) fn words(&mut self, at: usize, words: [u64; 4]) {
        for (place, word) in (at..).step_by(8).zip(words) {
            self.u64(place, word);
        }
    }

    pub(super) fn bytes(&mut self, at: usize, bytes: &[u8]) {
        // Offsets are the constants of the format, all of them inside the header.
        let _ = put(&mut self.0, at, bytes);
    }
}
