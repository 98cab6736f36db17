//! The header of a cache device.
//!
//! Invariant: decoding accepts either byte order and never trusts the addresses it finds; whatever
//! does not fit, the cache's contents are disposable. Chapter 01, section 17.3.

use crate::bytes::{ByteOrder, put};
use crate::{Error, Guid, Result};

/// Physical byte offset of the header on the device.
pub const OFFSET: u64 = crate::label::DATA_START;
/// Magic number: "ZFSCACHE".
pub const MAGIC: u64 = 0x5a46_5343_4143_4845;
/// The only version there is.
pub const VERSION: u64 = 1;
/// Bytes with a meaning; the rest of the header is zero up to its trailer.
pub const SIZE: usize = 232;

/// Bytes of the header block, trailer included, on a device of `ashift`.
pub fn header_len(ashift: u64) -> usize {
    1 << ashift.clamp(9, 16)
}

/// Where a log block of the cache lies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogPointer {
    /// Physical byte offset on the device.
    pub address: u64,
    /// Allocated bytes of the buffers the log block describes.
    pub payload_asize: u64,
    /// Physical byte offset of the first such buffer.
    pub payload_start: u64,
    /// Sizes, compression, checksum kind of the log block.
    pub properties: u64,
    /// Checksum of the log block.
    pub checksum: [u64; 4],
}

/// The header of a cache device. Offsets are physical bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheHeader {
    /// Byte order it was written in.
    pub order: ByteOrder,
    /// Format version.
    pub version: u64,
    /// Pool the cached blocks belong to.
    pub pool_guid: Guid,
    /// The cache device.
    pub vdev_guid: Guid,
    /// Entries of a log block; 0 when the contents are not persistent.
    pub log_entries: u64,
    /// Eviction has come this far.
    pub evicted: u64,
    /// Bit 0: the device has not been filled once yet.
    pub flags: u64,
    /// First byte of the cache area.
    pub start: u64,
    /// End of the cache area.
    pub end: u64,
    /// The two newest log blocks.
    pub logs: [LogPointer; 2],
    /// Allocated bytes of all log blocks.
    pub log_asize: u64,
    /// Number of log blocks.
    pub log_count: u64,
    /// When the device was last trimmed.
    pub trim_time: u64,
    /// State of that trim.
    pub trim_state: u64,
}

impl CacheHeader {
    /// Decodes a header.
    pub fn decode(data: &[u8]) -> Result<Self> {
        const NAME: &str = "cache device header";
        let magic = ByteOrder::Little.u64(data, 0).ok_or_else(|| Error::truncated(NAME))?;
        let order = if magic == MAGIC {
            ByteOrder::Little
        } else if magic.swap_bytes() == MAGIC {
            ByteOrder::Big
        } else {
            return Err(Error::new(NAME, "wrong magic number"));
        };
        let word = |index: usize| order.u64(data, index * 8).ok_or_else(|| Error::truncated(NAME));
        let log = |first: usize| -> Result<LogPointer> {
            Ok(LogPointer {
                address: word(first)?,
                payload_asize: word(first + 1)?,
                payload_start: word(first + 2)?,
                properties: word(first + 3)?,
                checksum: [word(first + 4)?, word(first + 5)?, word(first + 6)?, word(first + 7)?],
            })
        };
        Ok(Self {
            order,
            version: word(1)?,
            pool_guid: Guid(word(2)?),
            vdev_guid: Guid(word(3)?),
            log_entries: word(4)?,
            evicted: word(5)?,
            flags: word(6)?,
            start: word(7)?,
            end: word(8)?,
            logs: [log(9)?, log(17)?],
            log_asize: word(25)?,
            log_count: word(26)?,
            trim_time: word(27)?,
            trim_state: word(28)?,
        })
    }

    /// The bytes with a meaning, in the header's own order.
    pub fn encode(&self) -> [u8; SIZE] {
        let mut words = vec![
            MAGIC,
            self.version,
            self.pool_guid.0,
            self.vdev_guid.0,
            self.log_entries,
            self.evicted,
            self.flags,
            self.start,
            self.end,
        ];
        for log in &self.logs {
            words.extend([log.address, log.payload_asize, log.payload_start, log.properties]);
            words.extend(log.checksum);
        }
        words.extend([self.log_asize, self.log_count, self.trim_time, self.trim_state]);
        let mut out = [0; SIZE];
        for (i, word) in words.iter().enumerate() {
            let bytes = match self.order {
                ByteOrder::Little => word.to_le_bytes(),
                ByteOrder::Big => word.to_be_bytes(),
            };
            let _ = put(&mut out, i * 8, &bytes);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn either_order_survives() {
        let mut raw = Vec::new();
        raw.extend(MAGIC.to_le_bytes());
        (1u64..29).for_each(|word| raw.extend((word << 32 | 7).to_le_bytes()));
        let header = CacheHeader::decode(&raw).unwrap();
        assert_eq!(header.logs[1].checksum[3], 24 << 32 | 7);
        assert_eq!(header.trim_state, 28 << 32 | 7);
        assert_eq!(header.encode()[..], raw[..]);
        crate::bytes::swap_elements::<8>(&mut raw);
        let big = CacheHeader::decode(&raw).unwrap();
        assert_eq!(big.end, header.end);
        assert_eq!(big.encode()[..], raw[..]);
        assert!(CacheHeader::decode(&raw[..SIZE - 1]).is_err());
        assert_eq!((header_len(0), header_len(12)), (512, 4096));
    }
}
