//! Where the labels of a device lie and what is in them.
//!
//! Invariant: offsets here are bytes from the start of the device, and every block a label is made of
//! is inside its 256 KiB. Checksums are the codec's work: blocks encoded here carry a zero trailer.
//! Chapter 01, sections 2 to 5.

use crate::nvlist::{Encoding, NvList};
use crate::{Error, Result};

/// Labels on a device: two at its start, two at its end.
pub const LABELS: usize = 4;
/// Bytes of one label.
pub const LABEL_SIZE: u64 = 256 << 10;
/// Bytes before the allocatable area of a leaf: two labels and the boot area.
pub const DATA_START: u64 = 4 << 20;
/// Bytes at the end of a leaf that hold the last two labels.
pub const TAIL_SIZE: u64 = 2 * LABEL_SIZE;
/// First byte of the boot area, also the scratch space of RAID-Z expansion.
pub const BOOT_AREA_START: u64 = 2 * LABEL_SIZE;
/// Bytes of the boot area.
pub const BOOT_AREA_SIZE: u64 = DATA_START - BOOT_AREA_START;
/// Smallest device OpenZFS accepts, in bytes.
pub const MIN_DEVICE_SIZE: u64 = 64 << 20;

/// Boot environment block: offset inside the label.
pub const BOOT_ENV_OFFSET: u64 = 0x2000;
/// Bytes of the boot environment block, trailer included.
pub const BOOT_ENV_SIZE: usize = 8 << 10;
/// Config block: offset inside the label.
pub const CONFIG_OFFSET: u64 = 0x4000;
/// Bytes of the config block, trailer included.
pub const CONFIG_SIZE: usize = 112 << 10;
/// Uberblock ring: offset inside the label.
pub const RING_OFFSET: u64 = 0x20000;
/// Bytes of the uberblock ring.
pub const RING_SIZE: u64 = 128 << 10;
/// Bytes of the checksum trailer that ends every checksummed block of a label.
pub const TRAILER_SIZE: usize = 40;
/// Smallest and largest logarithm of a ring slot's size.
pub const SLOT_SHIFTS: std::ops::RangeInclusive<u32> = 10..=13;

/// Allocatable bytes of a device of `size` bytes (chapter 03, section 1).
pub fn allocatable(size: u64) -> u64 {
    (size & !0x3_ffff).saturating_sub(0x48_0000)
}

/// A device's size rounded down to whole labels: the part ZFS uses.
pub fn usable_size(device_size: u64) -> u64 {
    device_size & !(LABEL_SIZE - 1)
}

/// First byte of label `index` (0 to 3) on a device of `device_size` bytes; `None` if the device is
/// too small to hold four labels and the boot area.
pub fn label_offset(device_size: u64, index: usize) -> Option<u64> {
    let size = usable_size(device_size);
    if size < DATA_START + TAIL_SIZE {
        return None;
    }
    match index {
        0 => Some(0),
        1 => Some(LABEL_SIZE),
        2 => Some(size - 2 * LABEL_SIZE),
        3 => Some(size - LABEL_SIZE),
        _ => None,
    }
}

/// Allocatable bytes of a leaf on a device of `device_size` bytes.
pub fn leaf_asize(device_size: u64) -> u64 {
    usable_size(device_size).saturating_sub(DATA_START + TAIL_SIZE)
}

/// Logarithm of a ring slot's size for a top-level vdev of `ashift`.
pub fn slot_shift(ashift: u64) -> u32 {
    ashift.clamp(u64::from(*SLOT_SHIFTS.start()), u64::from(*SLOT_SHIFTS.end())) as u32
}

/// Slots of a ring whose slots are `1 << shift` bytes.
pub fn slot_count(shift: u32) -> u64 {
    RING_SIZE >> shift
}

/// Offset inside the label of slot `slot`; `None` beyond the ring.
pub fn slot_offset(shift: u32, slot: u64) -> Option<u64> {
    (slot < slot_count(shift)).then(|| RING_OFFSET + (slot << shift))
}

/// The slot a sync of `txg` writes. With multihost the last slot is left to activity writes; while
/// RAID-Z expansion has its data in the scratch space, the neighbouring slot is used (section 8.2).
pub fn sync_slot(shift: u32, txg: u64, multihost: bool, scratch_valid: bool) -> u64 {
    let slots = slot_count(shift) - u64::from(multihost);
    txg.saturating_sub(u64::from(scratch_valid)) % slots.max(1)
}

/// Decodes the list in a config block (its checksum is not looked at). A blank block is an error.
pub fn decode_config(block: &[u8]) -> Result<NvList> {
    let list = NvList::decode(block)?;
    // Zeros happen to be an empty list in the native encoding.
    if list.is_empty() { Err(Error::new("label config", "empty")) } else { Ok(list) }
}

/// The config block of a label: the packed list, zeros, and room for the trailer. Fails when the
/// config does not fit.
pub fn encode_config(config: &NvList) -> Result<Vec<u8>> {
    padded("label config", config.encode(Encoding::Xdr)?, CONFIG_SIZE)
}

fn padded(structure: &'static str, mut block: Vec<u8>, size: usize) -> Result<Vec<u8>> {
    if block.len() > size - TRAILER_SIZE {
        return Err(Error::new(structure, format!("{} bytes do not fit its block", block.len())));
    }
    block.resize(size, 0);
    Ok(block)
}

/// What the boot environment block holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BootEnv {
    /// Raw text (a GRUB environment); empty for a block of zeros.
    Text(Vec<u8>),
    /// Named values.
    List(NvList),
    /// The one-line form FreeBSD's loader used before the block had versions.
    Legacy(Vec<u8>),
}

impl BootEnv {
    /// Decodes a boot environment block. Chapter 01, section 5.
    pub fn decode(block: &[u8]) -> Result<Self> {
        let version = crate::bytes::ByteOrder::Big.u64(block, 0);
        let version = version.ok_or_else(|| Error::truncated("boot environment"))?;
        let end = block.len().min(BOOT_ENV_SIZE).saturating_sub(TRAILER_SIZE);
        let payload = block.get(8..end).unwrap_or_default();
        if version == 0 {
            return Ok(Self::Text(until_nul(payload).to_vec()));
        }
        if version == 1
            && let Ok(list) = NvList::decode(payload)
        {
            return Ok(Self::List(list));
        }
        if block.first() == Some(&0) {
            let mut empty = NvList::new();
            empty.push("version", 1);
            return Ok(Self::List(empty));
        }
        Ok(Self::Legacy(until_nul(block.get(..end).unwrap_or_default()).to_vec()))
    }

    /// The block, with room for the trailer. The legacy form is written as text.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let (version, payload) = match self {
            Self::Text(text) | Self::Legacy(text) => (0u64, text.clone()),
            Self::List(list) => (1, list.encode(Encoding::Xdr)?),
        };
        let mut block = version.to_be_bytes().to_vec();
        block.extend(payload);
        padded("boot environment", block, BOOT_ENV_SIZE)
    }
}

fn until_nul(text: &[u8]) -> &[u8] {
    text.split(|byte| *byte == 0).next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_lie_at_both_ends() {
        let size = (256 << 20) + 12345;
        let offsets: Vec<_> = (0..5).map(|i| label_offset(size, i)).collect();
        let end = 256 << 20;
        assert_eq!(
            offsets,
            [Some(0), Some(0x40000), Some(end - 0x80000), Some(end - 0x40000), None]
        );
        assert_eq!(leaf_asize(size), 263_716_864);
        assert_eq!(leaf_asize(100 << 20), 100_139_008);
        assert_eq!(label_offset(1 << 20, 0), None);
    }

    #[test]
    fn slots_follow_the_ashift() {
        let counts: Vec<_> = [9, 10, 12, 13, 16].map(|a| slot_count(slot_shift(a))).into();
        assert_eq!(counts, [128, 128, 32, 16, 16]);
        assert_eq!(slot_offset(10, 87), Some(0x35c00));
        assert_eq!(slot_offset(13, 16), None);
        assert_eq!(sync_slot(10, 130, false, false), 2);
        assert_eq!(sync_slot(10, 127, true, false), 0);
        assert_eq!(sync_slot(10, 130, false, true), 1);
    }

    #[test]
    fn a_config_fills_its_block() {
        let mut list = NvList::new();
        list.push("name", "tank");
        let block = encode_config(&list).unwrap();
        assert_eq!(block.len(), CONFIG_SIZE);
        assert_eq!(decode_config(&block).unwrap(), list);
        assert!(decode_config(&vec![0; CONFIG_SIZE]).is_err());
        list.push("comment", "x".repeat(CONFIG_SIZE).as_str());
        assert!(encode_config(&list).is_err());
    }

    #[test]
    fn boot_environments_of_every_kind() {
        let zeros = vec![0; BOOT_ENV_SIZE];
        assert_eq!(BootEnv::decode(&zeros).unwrap(), BootEnv::Text(Vec::new()));
        let packed = hex::decode(concat!(
            "0000000000000001",
            "0101000000000000",
            "00000001",
            "000000240000002000000007",
            "76657273696f6e00",
            "0000000800000001",
            "0000000000000001",
            "000000380000003800000010",
            "667265656273643a626f6f746f6e6365",
            "0000000900000001",
            "0000000e",
            "7a66733a74652f524f4f542f783a0000",
            "0000000000000000"
        ))
        .unwrap();
        let mut block = packed.clone();
        block.resize(BOOT_ENV_SIZE, 0);
        let decoded = BootEnv::decode(&block).unwrap();
        assert_eq!(decoded.encode().unwrap(), block);
        match decoded {
            BootEnv::List(list) => {
                assert_eq!(list.string("freebsd:bootonce"), Some("zfs:te/ROOT/x:"));
            }
            other => panic!("{other:?}"),
        }
        let mut legacy = b"zfs:tank/ROOT/x:".to_vec();
        legacy.resize(BOOT_ENV_SIZE, 0);
        assert_eq!(
            BootEnv::decode(&legacy).unwrap(),
            BootEnv::Legacy(b"zfs:tank/ROOT/x:".to_vec())
        );
        assert!(BootEnv::decode(&[0; 7]).is_err());
    }
}
