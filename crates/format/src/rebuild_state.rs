//! How far the sequential rebuild of a top-level vdev is.
//!
//! Chapter 08, section 11: 12 words in the ZAP of the vdev. Invariant: a decoded state gives back the words it
//! came from, but for those of a phase nobody knows.

use crate::{Error, Result, Txg};

/// Words of the record.
pub const WORDS: usize = 12;

/// Where a rebuild stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u64)]
pub enum RebuildPhase {
    /// There never was one.
    #[default]
    None = 0,
    /// It goes on.
    Active = 1,
    /// It was given up.
    Cancelled = 2,
    /// It came to its end.
    Complete = 3,
}

/// Entry `org.openzfs:vdev_rebuild` of the ZAP of a top-level vdev.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RebuildState {
    /// Where it stands.
    pub phase: RebuildPhase,
    /// Everything before this byte of the vdev is done.
    pub last_offset: u64,
    /// Blocks born after this are lacking.
    pub min_txg: Txg,
    /// End of the groups whose blocks are lacking.
    pub max_txg: Txg,
    /// Seconds since 1970.
    pub start_time: u64,
    /// Seconds since 1970.
    pub end_time: u64,
    /// Milliseconds it worked.
    pub milliseconds: u64,
    /// Bytes looked at.
    pub scanned: u64,
    /// Bytes read.
    pub issued: u64,
    /// Bytes written.
    pub rebuilt: u64,
    /// Bytes there are to do, about.
    pub estimated: u64,
    /// What could not be rebuilt.
    pub errors: u64,
}

impl RebuildState {
    /// From the words of its entry.
    ///
    /// # Errors
    /// If there are too few.
    pub fn from_words(words: &[u64]) -> Result<Self> {
        let Some(&[phase, last_offset, min, max, start_time, end_time, milliseconds, rest @ ..]) =
            words.first_chunk::<WORDS>()
        else {
            return Err(Error::truncated("rebuild state"));
        };
        let [scanned, issued, rebuilt, estimated, errors] = rest;
        let phase = match phase {
            1 => RebuildPhase::Active,
            2 => RebuildPhase::Cancelled,
            3 => RebuildPhase::Complete,
            _ => RebuildPhase::None,
        };
        let (min_txg, max_txg) = (Txg(min), Txg(max));
        Ok(Self {
            phase,
            last_offset,
            min_txg,
            max_txg,
            start_time,
            end_time,
            milliseconds,
            scanned,
            issued,
            rebuilt,
            estimated,
            errors,
        })
    }

    /// The words of its entry.
    pub fn to_words(&self) -> [u64; WORDS] {
        [
            self.phase as u64,
            self.last_offset,
            self.min_txg.0,
            self.max_txg.0,
            self.start_time,
            self.end_time,
            self.milliseconds,
            self.scanned,
            self.issued,
            self.rebuilt,
            self.estimated,
            self.errors,
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_there_and_back() {
        let words = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];
        let state = RebuildState::from_words(&words).unwrap();
        assert_eq!((state.phase, state.max_txg, state.errors), (RebuildPhase::Active, Txg(4), 12));
        assert_eq!(state.to_words(), words);
        assert!(RebuildState::from_words(&words[..11]).is_err());
        let unknown = RebuildState::from_words(&[9; 12]).unwrap();
        assert_eq!(unknown.phase, RebuildPhase::None);
    }
}
