//! Zstandard (chapter 02, section 7.7): an 8-byte header, then one frame without its magic number.
//!
//! Invariant: decoding is single-pass straight into the caller's block, whose length bounds both
//! what is written and the window; the decoder's own memory is a fixed-size context.

use std::cell::RefCell;

use zstd::zstd_safe::{CCtx, CParameter, DCtx, DParameter, FrameFormat};

use super::DecompressError;

const HEADER: usize = 8;
/// Version of Zstandard written into the header, which readers ignore. All releases of OpenZFS up
/// to 2.1 at least wrote this one.
const VERSION: u32 = 10405;

/// A compression level, as the byte that stands for it on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Level(u8);

impl Level {
    /// zstd-3, what `compression=zstd` means.
    pub const DEFAULT: Self = Self(3);

    /// The level a stored byte stands for; `None` for values no reader accepts.
    pub fn from_id(id: u8) -> Option<Self> {
        matches!(id, 1..=19 | 103..=123).then_some(Self(id))
    }

    /// The byte on disk and in the property's upper bits.
    pub fn id(self) -> u8 {
        self.0
    }

    /// The level in Zstandard's own counting: 1 to 19, or negative for the fast levels.
    pub fn number(self) -> i32 {
        match self.0 {
            level @ ..=19 => i32::from(level),
            level @ ..=112 => 102 - i32::from(level),
            level @ ..=121 => (111 - i32::from(level)) * 10,
            122 => -500,
            _ => -1000,
        }
    }

    /// The level with this number in Zstandard's counting, if the format can name it.
    pub fn from_number(number: i32) -> Option<Self> {
        (1..=123).filter_map(Self::from_id).find(|level| level.number() == number)
    }
}

/// The 8 bytes before a frame.
pub(super) struct Header {
    length: usize,
    pub(super) level: Level,
}

impl Header {
    pub(super) fn parse(source: &[u8]) -> Result<Self, DecompressError> {
        let bad = |reason| DecompressError::new("zstd", reason);
        let Some(&[l0, l1, l2, l3, b4, b5, _, b7]) = source.first_chunk::<HEADER>() else {
            return Err(bad("shorter than its header"));
        };
        // Level and version are packed one way or, by old big-endian hosts, the other. Versions
        // are below 65536, so the byte that is zero tells which.
        let level = match (b4, b5) {
            (level, 0) => level,
            (0, _) => b7,
            _ => return Err(bad("version out of range")),
        };
        Ok(Self {
            length: u32::from_be_bytes([l0, l1, l2, l3]) as usize,
            level: Level::from_id(level).ok_or_else(|| bad("unknown level"))?,
        })
    }
}

pub(super) fn decompress(source: &[u8], destination: &mut [u8]) -> Result<(), DecompressError> {
    thread_local! {
        static CONTEXT: RefCell<Option<DCtx<'static>>> = const { RefCell::new(None) };
    }
    let bad = |reason| DecompressError::new("zstd", reason);
    let header = Header::parse(source)?;
    let frame = source
        .get(HEADER..)
        .and_then(|rest| rest.get(..header.length))
        .ok_or_else(|| bad("longer than the stored bytes"))?;
    CONTEXT.with_borrow_mut(|context| {
        let context = match context {
            Some(context) => context,
            None => {
                let mut new = DCtx::try_create().ok_or_else(|| bad("out of memory"))?;
                new.set_parameter(DParameter::Format(FrameFormat::Magicless))
                    .map_err(|_| bad("this build lacks frames without magic"))?;
                context.insert(new)
            }
        };
        match context.decompress(destination, frame) {
            Ok(written) if written == destination.len() => Ok(()),
            Ok(_) => Err(bad("expands to less than the block")),
            Err(_) => Err(bad("not a frame of the right size")),
        }
    })
}

pub(super) fn compress(source: &[u8], destination: &mut [u8], level: Level) -> Option<usize> {
    thread_local! {
        static CONTEXT: RefCell<Option<CCtx<'static>>> = const { RefCell::new(None) };
    }
    let (header, frame) = destination.split_first_chunk_mut::<HEADER>()?;
    let written = CONTEXT.with_borrow_mut(|context| {
        let context = match context {
            Some(context) => context,
            None => {
                let mut new = CCtx::try_create()?;
                for parameter in [
                    CParameter::Format(FrameFormat::Magicless),
                    CParameter::ContentSizeFlag(false),
                    CParameter::ChecksumFlag(false),
                ] {
                    new.set_parameter(parameter).ok()?;
                }
                context.insert(new)
            }
        };
        context.set_parameter(CParameter::CompressionLevel(level.number())).ok()?;
        context.compress2(frame, source).ok()
    })?;
    let [l0, l1, l2, l3] = u32::try_from(written).ok()?.to_be_bytes();
    let [_, v1, v2, v3] = VERSION.to_be_bytes();
    *header = [l0, l1, l2, l3, level.id(), v1, v2, v3];
    Some(HEADER + written)
}
