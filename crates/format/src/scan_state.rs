//! How far a scrub, a resilver or an error scrub is.
//!
//! Chapter 03, section 15; chapter 06, section 3.6. Both are arrays of words in the MOS directory.
//! Invariant: a decoded state gives back the words it came from.

use crate::bptree::BlockBookmark;
use crate::{Error, ObjectId, Result, Txg};

/// Visit the current dataset again.
pub const FLAG_VISIT_AGAIN: u64 = 1;
/// The scrub is paused.
pub const FLAG_SCRUB_PAUSED: u64 = 2;
/// What [`ErrorScrubState::flags`] is while it is paused (chapter 08); 0 else.
pub const ERROR_SCRUB_PAUSED: u64 = 1;

/// What a scan is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanFunction {
    /// Nothing.
    None,
    /// Verify everything.
    Scrub,
    /// Rebuild what devices lack.
    Resilver,
    /// Verify what the error log lists.
    ErrorScrub,
    /// A number this version does not know.
    Other(u64),
}

impl From<u64> for ScanFunction {
    fn from(raw: u64) -> Self {
        match raw {
            0 => Self::None,
            1 => Self::Scrub,
            2 => Self::Resilver,
            3 => Self::ErrorScrub,
            other => Self::Other(other),
        }
    }
}

impl From<ScanFunction> for u64 {
    fn from(function: ScanFunction) -> Self {
        match function {
            ScanFunction::None => 0,
            ScanFunction::Scrub => 1,
            ScanFunction::Resilver => 2,
            ScanFunction::ErrorScrub => 3,
            ScanFunction::Other(other) => other,
        }
    }
}

/// Where a scan stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScanPhase {
    /// None was ever started.
    None,
    /// Running.
    Scanning,
    /// Done.
    Finished,
    /// Stopped by request.
    Cancelled,
    /// An error scrub is running.
    ErrorScrubbing,
    /// A number this version does not know.
    Other(u64),
}

impl From<u64> for ScanPhase {
    fn from(raw: u64) -> Self {
        match raw {
            0 => Self::None,
            1 => Self::Scanning,
            2 => Self::Finished,
            3 => Self::Cancelled,
            4 => Self::ErrorScrubbing,
            other => Self::Other(other),
        }
    }
}

impl From<ScanPhase> for u64 {
    fn from(phase: ScanPhase) -> Self {
        match phase {
            ScanPhase::None => 0,
            ScanPhase::Scanning => 1,
            ScanPhase::Finished => 2,
            ScanPhase::Cancelled => 3,
            ScanPhase::ErrorScrubbing => 4,
            ScanPhase::Other(other) => other,
        }
    }
}

/// MOS key `scan`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanState {
    /// What it is for.
    pub function: ScanFunction,
    /// Where it stands.
    pub phase: ScanPhase,
    /// ZAP of datasets still to visit; 0 when not running.
    pub queue: ObjectId,
    /// Blocks born after this are visited.
    pub min_txg: Txg,
    /// Blocks born up to this are visited.
    pub max_txg: Txg,
    /// The same for the dataset being visited.
    pub current_min_txg: Txg,
    /// The same for the dataset being visited.
    pub current_max_txg: Txg,
    /// Seconds since 1970.
    pub start_time: u64,
    /// Seconds since 1970.
    pub end_time: u64,
    /// Bytes to examine.
    pub to_examine: u64,
    /// Bytes examined.
    pub examined: u64,
    /// Bytes that did not need reading.
    pub skipped: u64,
    /// Bytes repaired.
    pub processed: u64,
    /// Errors met.
    pub errors: u64,
    /// Greatest dedup class to visit.
    pub dedup_class_max: u64,
    /// Place in the dedup table: class, type, checksum, cursor.
    pub dedup_bookmark: [u64; 4],
    /// Place in the pool.
    pub bookmark: BlockBookmark,
    /// `FLAG_*` bits.
    pub flags: u64,
}

impl ScanState {
    /// From the words of its MOS entry: 24, or 25 from an old bug that moved the flags.
    pub fn from_words(words: &[u64]) -> Result<Self> {
        let bad = || Error::new("scan state", format!("{} words", words.len()));
        let Some(
            &[
                function,
                phase,
                queue,
                min_txg,
                max_txg,
                current_min_txg,
                current_max_txg,
                start_time,
                end_time,
                to_examine,
                examined,
                skipped,
                processed,
                errors,
                dedup_class_max,
                class,
                kind,
                checksum,
                cursor,
                objset,
                object,
                level,
                block,
                flags,
            ],
        ) = words.first_chunk::<24>()
        else {
            return Err(bad());
        };
        let flags = words.get(24).copied().unwrap_or(flags);
        Ok(Self {
            function: function.into(),
            phase: phase.into(),
            queue: ObjectId(queue),
            min_txg: Txg(min_txg),
            max_txg: Txg(max_txg),
            current_min_txg: Txg(current_min_txg),
            current_max_txg: Txg(current_max_txg),
            start_time,
            end_time,
            to_examine,
            examined,
            skipped,
            processed,
            errors,
            dedup_class_max,
            dedup_bookmark: [class, kind, checksum, cursor],
            bookmark: BlockBookmark::from_words([objset, object, level, block]),
            flags,
        })
    }

    /// The 24 words of its MOS entry.
    pub fn to_words(&self) -> Vec<u64> {
        let mut words = vec![
            self.function.into(),
            self.phase.into(),
            self.queue.0,
            self.min_txg.0,
            self.max_txg.0,
            self.current_min_txg.0,
            self.current_max_txg.0,
            self.start_time,
            self.end_time,
            self.to_examine,
            self.examined,
            self.skipped,
            self.processed,
            self.errors,
            self.dedup_class_max,
        ];
        words.extend(self.dedup_bookmark);
        words.extend(self.bookmark.to_words());
        words.push(self.flags);
        words
    }

    /// The scrub is paused.
    pub fn is_paused(&self) -> bool {
        self.flags & FLAG_SCRUB_PAUSED != 0
    }
}

/// MOS key `error_scrub`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorScrubState {
    /// What it is for.
    pub function: ScanFunction,
    /// Where it stands.
    pub phase: ScanPhase,
    /// Place in the error log.
    pub cursor: u64,
    /// Seconds since 1970.
    pub start_time: u64,
    /// Seconds since 1970.
    pub end_time: u64,
    /// Blocks to examine.
    pub to_examine: u64,
    /// Blocks examined.
    pub examined: u64,
    /// Errors met.
    pub errors: u64,
    /// [`ERROR_SCRUB_PAUSED`], or 0; earlier versions of this program wrote 2 for paused.
    pub flags: u64,
}

impl ErrorScrubState {
    /// The words of its MOS entry.
    pub fn to_words(&self) -> [u64; 9] {
        [
            self.function.into(),
            self.phase.into(),
            self.cursor,
            self.start_time,
            self.end_time,
            self.to_examine,
            self.examined,
            self.errors,
            self.flags,
        ]
    }

    /// It works, or would if it did not pause.
    pub fn is_active(&self) -> bool {
        self.phase == ScanPhase::ErrorScrubbing
    }

    /// It is paused.
    pub fn is_paused(&self) -> bool {
        self.flags != 0
    }

    /// From the words of its MOS entry.
    pub fn from_words(words: &[u64]) -> Result<Self> {
        let Some(
            &[function, phase, cursor, start_time, end_time, to_examine, examined, errors, flags],
        ) = words.first_chunk::<9>()
        else {
            return Err(Error::truncated("error scrub state"));
        };
        let (function, phase) = (function.into(), phase.into());
        Ok(Self {
            function,
            phase,
            cursor,
            start_time,
            end_time,
            to_examine,
            examined,
            errors,
            flags,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finished_scrub_of_chapter_03() {
        let (start, end) = (1_795_198_204, 1_795_198_205);
        let mut words =
            vec![1, 2, 0, 0, 738, 1, 738, start, end, 14_621_696, 14_363_648, 0, 0, 0, 1];
        words.extend([2, 0, 8, 77, u64::MAX, 0, 0, 0, 0]);
        let state = ScanState::from_words(&words).unwrap();
        assert_eq!((state.function, state.phase), (ScanFunction::Scrub, ScanPhase::Finished));
        assert_eq!((state.max_txg, state.end_time, state.is_paused()), (Txg(738), end, false));
        assert_eq!(state.bookmark.objset, u64::MAX);
        assert_eq!(state.to_words(), words);
        words.push(2);
        assert!(ScanState::from_words(&words).unwrap().is_paused());
        assert!(ScanState::from_words(&words[..23]).is_err());
    }

    #[test]
    fn error_scrub() {
        let state = ErrorScrubState::from_words(&[3, 4, 5, 6, 7, 8, 9, 10, 11]).unwrap();
        assert_eq!(
            (state.function, state.phase),
            (ScanFunction::ErrorScrub, ScanPhase::ErrorScrubbing)
        );
        assert_eq!((state.errors, state.flags), (10, 11));
        assert_eq!(state.to_words(), [3, 4, 5, 6, 7, 8, 9, 10, 11]);
        assert!(state.is_active() && state.is_paused());
        // As the module of 2.3.2 wrote one that is paused.
        let paused = ErrorScrubState::from_words(&[3, 4, 0, 6, 0, 8, 0, 0, 1]).unwrap();
        assert!(paused.is_paused());
        assert!(!ErrorScrubState { flags: 0, ..paused }.is_paused());
        assert!(ErrorScrubState::from_words(&[0; 8]).is_err());
    }
}
