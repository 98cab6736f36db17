//! Taking the arguments of a request apart.
//!
//! Invariant: nothing is read beyond the bytes that are there; what is missing is a typed error.

use zerocopy::FromBytes;

/// Why a request could not be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadRequest {
    /// There is no whole header.
    #[error("request of {0} bytes has no header")]
    NoHeader(usize),
    /// The header's length is not the number of bytes read.
    #[error("request says {said} bytes, read {read}")]
    Length {
        /// Length in the header, in bytes.
        said: u32,
        /// Length read, in bytes.
        read: usize,
    },
    /// The arguments are too short or malformed.
    #[error("request {opcode} has malformed arguments")]
    Arguments {
        /// Request number.
        opcode: u32,
    },
}

/// The structure at the start of `bytes`, and what follows it.
pub(super) fn fixed<T: FromBytes>(opcode: u32, bytes: &[u8]) -> Result<(T, &[u8]), BadRequest> {
    T::read_from_prefix(bytes).map_err(|_| BadRequest::Arguments { opcode })
}

/// The name at the start of `bytes`, which a zero byte must end, and what follows the zero.
pub(super) fn terminated(opcode: u32, bytes: &[u8]) -> Result<(&[u8], &[u8]), BadRequest> {
    let end = bytes.iter().position(|&byte| byte == 0);
    match end.and_then(|end| bytes.split_at_checked(end)) {
        Some((name, rest)) if !name.is_empty() => Ok((name, rest.get(1..).unwrap_or_default())),
        _ => Err(BadRequest::Arguments { opcode }),
    }
}

/// The name at the start of `bytes`.
pub(super) fn name(opcode: u32, bytes: &[u8]) -> Result<&[u8], BadRequest> {
    terminated(opcode, bytes).map(|(name, _)| name)
}
