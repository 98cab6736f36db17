//! The bytes of a file in memory: stored extents, and holes between them.
//!
//! Invariant: extents do not overlap, and none is empty.

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};
use cenote_posix::tree::{Pieces, Seek};

/// What is written is kept in pieces that do not cross multiples of this.
const CHUNK: u64 = 128 << 10;

/// Stored extents by offset; the rest are holes.
#[derive(Default)]
pub struct Extents(pub BTreeMap<u64, Bytes>);

impl Extents {
    /// No extent crosses `at` any more.
    fn split(&mut self, at: u64) {
        let Some((&start, data)) = self.0.range_mut(..at).next_back() else { return };
        if start + (data.len() as u64) > at {
            let tail = data.split_off((at - start) as usize);
            self.0.insert(at, tail);
        }
    }

    /// Makes a hole.
    pub fn cut(&mut self, from: u64, to: u64) {
        self.split(from);
        self.split(to);
        let inside: Vec<u64> = self.0.range(from..to).map(|(&start, _)| start).collect();
        inside.iter().for_each(|start| drop(self.0.remove(start)));
    }

    pub fn write(&mut self, mut at: u64, mut data: &[u8]) {
        while !data.is_empty() {
            let start = at / CHUNK * CHUNK;
            let (now, rest) = data.split_at(data.len().min((start + CHUNK - at) as usize));
            self.split(start);
            self.split(start + CHUNK);
            let first = self.0.remove(&start).unwrap_or_default();
            let mut buffer = first.try_into_mut().unwrap_or_else(|data| BytesMut::from(&*data));
            let more: Vec<u64> = self.0.range(start..start + CHUNK).map(|(&at, _)| at).collect();
            for at in more {
                let data = self.0.remove(&at).unwrap();
                buffer.resize((at - start) as usize, 0);
                buffer.extend_from_slice(&data);
            }
            let from = (at - start) as usize;
            if buffer.len() < from {
                buffer.resize(from, 0);
            }
            let over = (buffer.len() - from).min(now.len());
            buffer[from..from + over].copy_from_slice(&now[..over]);
            buffer.extend_from_slice(&now[over..]);
            self.0.insert(start, buffer.freeze());
            at += now.len() as u64;
            data = rest;
        }
    }

    /// The bytes from `offset` to `end`.
    pub fn read(&self, offset: u64, end: u64) -> Pieces {
        static ZEROS: [u8; 1 << 20] = [0; 1 << 20];
        let mut at = offset;
        let mut pieces = Pieces::new();
        while at < end {
            let before = self.0.range(..=at).next_back();
            if let Some((&start, data)) = before
                && at - start < data.len() as u64
            {
                let from = (at - start) as usize;
                let to = data.len().min(from + (end - at) as usize);
                pieces.push(data.slice(from..to));
                at += (to - from) as u64;
                continue;
            }
            let next = self.0.range(at..).next().map_or(end, |(&start, _)| start.min(end));
            let zeros = (next - at).min(ZEROS.len() as u64);
            pieces.push(Bytes::from_static(&ZEROS[..zeros as usize]));
            at += zeros;
        }
        pieces
    }

    pub fn seek(&self, offset: u64, size: u64, what: Seek) -> Option<u64> {
        if offset >= size {
            return None;
        }
        let mut at = offset;
        let inside = |at: u64| {
            let before = self.0.range(..=at).next_back();
            before.map(|(start, data)| start + data.len() as u64).filter(|&end| at < end)
        };
        match what {
            Seek::Data if inside(at).is_some() => Some(at),
            Seek::Data => self.0.range(at..).next().map(|(&start, _)| start),
            Seek::Hole => {
                while let Some(end) = inside(at) {
                    at = end;
                }
                Some(at.min(size))
            }
        }
    }

    /// Bytes stored.
    pub fn stored(&self) -> u64 {
        self.0.values().map(|data| data.len() as u64).sum()
    }
}
