//! Blocks that carry their own checksum in a trailer (chapter 02, section 6.4).
//!
//! The trailer is 40 bytes: a magic number and four checksum words. The checksum covers the region
//! with the *verifier*, a value the reader knows beforehand, in the place of the checksum words, so
//! a block found at the wrong place does not verify. The order of the magic's bytes tells the byte
//! order of the whole structure.
//!
//! Invariant: verification never modifies or copies the block, and every offset is checked against
//! the block's length before it is used.

use super::{Algorithm, Fletcher2, Fletcher4, WordOrder, Words, sha, truncate};

/// Bytes of a trailer.
pub const TRAILER_SIZE: usize = 40;

const MAGIC: u64 = 0x0210_da7a_b10c_7a11;
const MAGIC_SIZE: usize = 8;
/// Where a `zilog2` block keeps the number of its bytes in use.
const ZILOG2_USED: usize = 136;
/// Where a `zilog2` block has its trailer.
const ZILOG2_TRAILER: usize = 144;
/// The used part of a `zilog2` block is rounded up to this before it is summed.
const ZILOG2_UNIT: u64 = 4096;

/// How many of the four words in a trailer are checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// All four.
    Full,
    /// The first two: the pointer to the block has X=1. The other two hold the MAC of an encrypted
    /// intent-log block, and are zero in a gang header (chapter 02, section 6.5).
    Truncated,
}

/// Why a self-checksummed block is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EmbeddedError {
    /// The algorithm keeps its checksum in the block pointer.
    #[error("checksum algorithm {} has no trailer", .0.name())]
    NotEmbedded(Algorithm),
    /// The block cannot hold a trailer, or is not a multiple of 16 bytes.
    #[error("a block of {0} bytes cannot hold a checksum trailer")]
    Length(usize),
    /// There is no trailer: nothing of this kind was ever written here.
    #[error("no checksum trailer: magic is {0:#018x}")]
    Magic(u64),
    /// An intent-log block claims to use more bytes than it has.
    #[error("intent-log block of {length} bytes claims to use {used}")]
    Used {
        /// Bytes the block says are in use.
        used: u64,
        /// Bytes of the block.
        length: usize,
    },
    /// The checksum is wrong: the block is damaged, torn, or belongs elsewhere.
    #[error("trailer checksum is {stored:016x?}, should be {computed:016x?}")]
    Mismatch {
        /// What the trailer holds.
        stored: Words,
        /// What it should hold.
        computed: Words,
    },
}

/// Verifies the self-checksummed block `data` and tells the byte order it was written in.
///
/// The verifier, chapter 02, section 6.4: for a label structure its absolute byte offset on the
/// device and three zeros; for a gang header (vdev, byte offset of DVA 0, physical birth, 0); for
/// an intent-log block the checksum words of the pointer that names it.
pub fn verify_embedded(
    data: &[u8],
    algorithm: Algorithm,
    verifier: &Words,
    width: Width,
) -> Result<WordOrder, EmbeddedError> {
    let trailer = locate(algorithm, data.len())?;
    let order = magic_order(data, trailer)?;
    let region = region(data, algorithm, order)?;
    let computed = sum(region, algorithm, trailer, verifier, order)?;
    let stored = order.words(&bytes_at(data, trailer + MAGIC_SIZE)?);
    let good = match width {
        Width::Full => stored == computed,
        Width::Truncated => truncate(algorithm, computed) == [stored[0], stored[1]],
    };
    if good { Ok(order) } else { Err(EmbeddedError::Mismatch { stored, computed }) }
}

/// Writes magic and checksum into the trailer of `data`.
///
/// With [`Width::Truncated`] the last two words of the trailer stay as they are in `data`: the
/// caller has put the MAC there (intent log), or zeros (gang header). For `zilog2` the number of
/// bytes in use must already be in place.
pub fn seal_embedded(
    data: &mut [u8],
    algorithm: Algorithm,
    verifier: &Words,
    order: WordOrder,
    width: Width,
) -> Result<(), EmbeddedError> {
    let trailer = locate(algorithm, data.len())?;
    put_at(data, trailer, order.bytes(MAGIC))?;
    let region = region(data, algorithm, order)?;
    let words = sum(region, algorithm, trailer, verifier, order)?;
    match width {
        Width::Full => put_at(data, trailer + MAGIC_SIZE, order.word_bytes(&words)),
        Width::Truncated => {
            let [first, second] = truncate(algorithm, words);
            put_at(data, trailer + MAGIC_SIZE, order.bytes(first))?;
            put_at(data, trailer + MAGIC_SIZE + 8, order.bytes(second))
        }
    }
}

fn bytes_at<const N: usize>(data: &[u8], offset: usize) -> Result<[u8; N], EmbeddedError> {
    let bytes = data.get(offset..).and_then(|rest| rest.first_chunk());
    bytes.copied().ok_or(EmbeddedError::Length(data.len()))
}

fn put_at<const N: usize>(
    data: &mut [u8],
    offset: usize,
    bytes: [u8; N],
) -> Result<(), EmbeddedError> {
    let length = data.len();
    let place = data.get_mut(offset..).and_then(|rest| rest.first_chunk_mut());
    *place.ok_or(EmbeddedError::Length(length))? = bytes;
    Ok(())
}

/// Offset of the trailer in a block of `length` bytes.
fn locate(algorithm: Algorithm, length: usize) -> Result<usize, EmbeddedError> {
    let bad = EmbeddedError::Length(length);
    let trailer = match algorithm {
        Algorithm::Label | Algorithm::GangHeader | Algorithm::Zilog => {
            length.checked_sub(TRAILER_SIZE).ok_or(bad)?
        }
        Algorithm::Zilog2 if length >= ZILOG2_TRAILER + TRAILER_SIZE => ZILOG2_TRAILER,
        Algorithm::Zilog2 => return Err(bad),
        _ => return Err(EmbeddedError::NotEmbedded(algorithm)),
    };
    // Keeps words and pairs of words whole on both sides of the checksum.
    if length.is_multiple_of(16) { Ok(trailer) } else { Err(bad) }
}

fn magic_order(data: &[u8], trailer: usize) -> Result<WordOrder, EmbeddedError> {
    let bytes = bytes_at(data, trailer)?;
    [WordOrder::Little, WordOrder::Big]
        .into_iter()
        .find(|order| order.u64(bytes) == MAGIC)
        .ok_or(EmbeddedError::Magic(u64::from_le_bytes(bytes)))
}

/// The bytes the checksum covers: the block from its start, trailer included.
fn region(data: &[u8], algorithm: Algorithm, order: WordOrder) -> Result<&[u8], EmbeddedError> {
    if algorithm != Algorithm::Zilog2 {
        return Ok(data);
    }
    let used = order.u64(bytes_at(data, ZILOG2_USED)?);
    used.checked_next_multiple_of(ZILOG2_UNIT)
        .filter(|_| used > 0)
        .and_then(|rounded| data.get(..usize::try_from(rounded).ok()?))
        .ok_or(EmbeddedError::Used { used, length: data.len() })
}

/// The checksum of `region` with `verifier` in place of the trailer's words.
fn sum(
    region: &[u8],
    algorithm: Algorithm,
    trailer: usize,
    verifier: &Words,
    order: WordOrder,
) -> Result<Words, EmbeddedError> {
    let verifier = order.word_bytes(verifier);
    let before = region.get(..trailer + MAGIC_SIZE).ok_or(EmbeddedError::Length(region.len()))?;
    let after = region.get(trailer + TRAILER_SIZE..).ok_or(EmbeddedError::Length(region.len()))?;
    let parts = [before, &verifier[..], after];
    Ok(match algorithm {
        Algorithm::Label | Algorithm::GangHeader => sha::sha256_parts(&parts),
        Algorithm::Zilog => {
            let mut state = Fletcher2::new(order);
            parts.iter().for_each(|part| state.update(part));
            state.words()
        }
        Algorithm::Zilog2 => {
            let mut state = Fletcher4::new(order);
            parts.iter().for_each(|part| state.update(part));
            state.words()
        }
        _ => return Err(EmbeddedError::NotEmbedded(algorithm)),
    })
}
