//! Checked reads and writes of integers in byte slices.
//!
//! Invariant: no index is ever out of bounds; a missing byte is `None`, never a panic.

/// Byte order of a structure that announces its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum ByteOrder {
    /// Least significant byte first.
    #[default]
    Little,
    /// Most significant byte first.
    Big,
}

impl ByteOrder {
    /// The 16-bit integer at byte `offset`, if the slice holds it.
    pub fn u16(self, data: &[u8], offset: usize) -> Option<u16> {
        let raw = array(data, offset)?;
        Some(match self {
            Self::Little => u16::from_le_bytes(raw),
            Self::Big => u16::from_be_bytes(raw),
        })
    }

    /// The 32-bit integer at byte `offset`, if the slice holds it.
    pub fn u32(self, data: &[u8], offset: usize) -> Option<u32> {
        let raw = array(data, offset)?;
        Some(match self {
            Self::Little => u32::from_le_bytes(raw),
            Self::Big => u32::from_be_bytes(raw),
        })
    }

    /// The 64-bit integer at byte `offset`, if the slice holds it.
    pub fn u64(self, data: &[u8], offset: usize) -> Option<u64> {
        let raw = array(data, offset)?;
        Some(match self {
            Self::Little => u64::from_le_bytes(raw),
            Self::Big => u64::from_be_bytes(raw),
        })
    }
}

/// The `N` bytes at `offset`, if the slice holds them.
pub fn array<const N: usize>(data: &[u8], offset: usize) -> Option<[u8; N]> {
    data.get(offset..offset.checked_add(N)?)?.try_into().ok()
}

/// `len` bytes at `offset`, if the slice holds them.
pub fn slice(data: &[u8], offset: usize, len: usize) -> Option<&[u8]> {
    data.get(offset..offset.checked_add(len)?)
}

/// Little-endian `u16` at `offset`.
pub fn le16(data: &[u8], offset: usize) -> Option<u16> {
    ByteOrder::Little.u16(data, offset)
}

/// Little-endian `u32` at `offset`.
pub fn le32(data: &[u8], offset: usize) -> Option<u32> {
    ByteOrder::Little.u32(data, offset)
}

/// Little-endian `u64` at `offset`.
pub fn le64(data: &[u8], offset: usize) -> Option<u64> {
    ByteOrder::Little.u64(data, offset)
}

/// Writes `bytes` at `offset`; `None` (and nothing written) if they do not fit.
#[must_use]
pub fn put(data: &mut [u8], offset: usize, bytes: &[u8]) -> Option<()> {
    data.get_mut(offset..offset.checked_add(bytes.len())?)?.copy_from_slice(bytes);
    Some(())
}

/// Writes a little-endian `u64` at `offset`; `None` if it does not fit.
#[must_use]
pub fn put_le64(data: &mut [u8], offset: usize, value: u64) -> Option<()> {
    put(data, offset, &value.to_le_bytes())
}

/// Reverses the bytes of every whole `N`-byte element of `data`; a ragged tail stays as it is.
pub fn swap_elements<const N: usize>(data: &mut [u8]) {
    for element in data.chunks_exact_mut(N) {
        element.reverse();
    }
}

/// The `N` little-endian 64-bit words at the start of `data`, if it holds them.
pub fn le_words<const N: usize>(data: &[u8]) -> Option<[u64; N]> {
    let mut words = [0; N];
    for (word, raw) in words.iter_mut().zip(data.get(..N.checked_mul(8)?)?.chunks_exact(8)) {
        *word = u64::from_le_bytes(raw.try_into().ok()?);
    }
    Some(words)
}

/// `words` as little-endian bytes.
pub fn words_to_le(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}
