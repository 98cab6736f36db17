//! Positions in the order of a ZAP's entries, as directory offsets keep them.
//!
//! Chapter 04, section 16. Invariant: the 64-bit form is the one OpenZFS hands out, so a position
//! stays good across a change of implementation.

use super::HashWidth;

/// A serialized position: entries are visited in ascending (hash, collision differentiator).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cursor(pub u64);

impl Cursor {
    /// Before the first entry.
    pub const START: Self = Self(0);
    /// After the last entry.
    pub const END: Self = Self(u64::MAX);

    /// The position of the entry with `hash` and collision differentiator `cd`.
    pub fn at(hash: u64, cd: u32, width: HashWidth) -> Self {
        let low = width.cut(hash) >> (64 - width.bits());
        Self(low | (u64::from(cd) << width.bits()))
    }

    /// The position right after that entry.
    pub fn after(hash: u64, cd: u32, width: HashWidth) -> Self {
        // A differentiator at its limit has no successor; the next hash follows it.
        match cd.checked_add(1).filter(|next| *next < width.differentiator_limit()) {
            Some(next) => Self::at(hash, next, width),
            None => match width.cut(hash).checked_add(1 << (64 - width.bits())) {
                Some(next) => Self::at(next, 0, width),
                None => Self::END,
            },
        }
    }

    /// The smallest (hash, collision differentiator) not yet visited; `None` at the end.
    pub fn position(self, width: HashWidth) -> Option<(u64, u32)> {
        if self == Self::END {
            return None;
        }
        let hash = self.0 << (64 - width.bits());
        // A differentiator no entry can have is a damaged position: start its hash over.
        let cd = u32::try_from(self.0 >> width.bits()).unwrap_or(u32::MAX);
        Some((hash, if cd >= width.differentiator_limit() { 0 } else { cd }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_survive_the_trip() {
        let width = HashWidth::Bits28;
        let cursor = Cursor::at(0xe29bfcc000000000, 3, width);
        assert_eq!(cursor.0, 0x0e29bfcc | (3 << 28));
        assert_eq!(cursor.position(width), Some((0xe29bfcc000000000, 3)));
        assert_eq!(Cursor::after(0xe29bfcc000000000, 3, width).0, 0x0e29bfcc | (4 << 28));
        let wide = HashWidth::Bits48;
        let cursor = Cursor::at(0xe29bfcca23880000, 7, wide);
        assert_eq!(cursor.0, 0xe29bfcca2388 | (7 << 48));
        assert_eq!(cursor.position(wide), Some((0xe29bfcca23880000, 7)));
        assert_eq!(Cursor::START.position(wide), Some((0, 0)));
        assert_eq!(Cursor::END.position(wide), None);
        assert_eq!(Cursor::after(0xffff_ffff_ffff_0000, 0xffff, wide), Cursor::END);
    }
}
