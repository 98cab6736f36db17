//! The value of a directory entry: object number and file type in one word.
//!
//! Chapter 05, section 9.

use crate::ObjectId;

/// Object numbers have 48 bits.
const OBJECT_MASK: u64 = (1 << 48) - 1;

/// File type bits of a mode.
pub const TYPE_MASK: u32 = 0o170000;
/// A fifo.
pub const FIFO: u8 = 1;
/// A character device.
pub const CHARACTER_DEVICE: u8 = 2;
/// A directory.
pub const DIRECTORY: u8 = 4;
/// A block device.
pub const BLOCK_DEVICE: u8 = 6;
/// A regular file.
pub const REGULAR: u8 = 8;
/// A symbolic link.
pub const SYMLINK: u8 = 10;
/// A socket.
pub const SOCKET: u8 = 12;

/// What a name in a directory stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryValue {
    /// The object.
    pub object: ObjectId,
    /// File type (bits 12 to 15 of the mode, the DT_* numbers); 0 in ZPL version 1.
    pub kind: u8,
}

impl EntryValue {
    /// From the stored word; the unused bits 48 to 59 are ignored.
    pub fn decode(word: u64) -> Self {
        Self { object: ObjectId(word & OBJECT_MASK), kind: (word >> 60) as u8 }
    }

    /// The stored word.
    pub fn encode(self) -> u64 {
        self.object.0 & OBJECT_MASK | u64::from(self.kind & 15) << 60
    }
}

/// File type number of a mode.
pub fn kind_of_mode(mode: u32) -> u8 {
    ((mode & TYPE_MASK) >> 12) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_of_chapter_05() {
        for (word, object, kind) in [
            (0x4000_0000_0000_0002, 2, DIRECTORY),
            (0x8000_0000_0000_0007, 7, REGULAR),
            (0xa000_0000_0000_0008, 8, SYMLINK),
        ] {
            let value = EntryValue { object: ObjectId(object), kind };
            assert_eq!(EntryValue::decode(word), value);
            assert_eq!(value.encode(), word);
        }
        assert_eq!(EntryValue::decode(0x8abc_0000_0000_0007).object, ObjectId(7));
        assert_eq!(kind_of_mode(0o140777), SOCKET);
    }
}
