//! Changes to an image, decoded from fuzzer input.
//!
//! Each change is a record of 14 bytes: operation, block (u16), position (u24), value (u64), all
//! little-endian. Invariant: any input is a valid list; a change never lands outside of its block.

use crate::image::FlatImage;

/// Bytes of one record.
pub const RECORD: usize = 14;
/// Most changes that are applied.
const MOST: usize = 24;

/// Numbers that readers trip over.
const ODD: [u64; 16] = [
    0,
    1,
    u64::MAX,
    1 << 63,
    i64::MAX as u64,
    1 << 60,
    1 << 48,
    (1 << 48) - 1,
    1 << 32,
    u32::MAX as u64,
    1 << 31,
    1 << 24,
    0xffff,
    0x8000,
    128 << 10,
    512,
];

/// Applies the changes `input` asks for.
pub fn apply(images: &mut Vec<FlatImage>, input: &[u8]) {
    for record in input.chunks_exact(RECORD).take(MOST) {
        let number = |from: usize, len: usize| {
            record[from..from + len]
                .iter()
                .rev()
                .fold(0u64, |sum, byte| sum << 8 | u64::from(*byte))
        };
        let (operation, value) = (record[0], number(6, 8));
        let blocks: usize = images.iter().map(|image| image.extents.len()).sum();
        if blocks == 0 {
            return;
        }
        // The pieces of all devices, counted through.
        let from = {
            let (image, index) = locate(images, value as u16 as usize % blocks);
            image.extents[index].clone()
        };
        let (image, index) = locate(images, number(1, 2) as usize % blocks);
        let extent = &image.extents[index];
        // What is used, and a little of what is not.
        let room = (extent.used.len() + 64).min(extent.len);
        let position = number(3, 3) as usize % room.max(1);
        let word = position & !7;
        match operation % 11 {
            0 => image.patch(index, position, &value.to_le_bytes()[..1]),
            1 => image.patch(index, position & !1, &value.to_le_bytes()[..2]),
            2 => image.patch(index, position & !3, &value.to_le_bytes()[..4]),
            3 => image.patch(index, word, &value.to_le_bytes()),
            4 => image.patch(index, word, &ODD[value as usize % ODD.len()].to_le_bytes()),
            5 => {
                let flipped = extent.bytes(position, 1)[0] ^ 1 << (value % 8);
                image.patch(index, position, &[flipped]);
            }
            6 => {
                let old = extent.bytes(word, 8);
                let old = u64::from_le_bytes(old.try_into().unwrap_or_default());
                let near = old.wrapping_add((value as i8) as u64);
                image.patch(index, word, &near.to_le_bytes());
            }
            // A device is gone, or says nothing that can be believed.
            9 => {
                images.remove(value as usize % images.len());
            }
            10 => {
                let noise = value.to_le_bytes().repeat(extent.len / 8);
                image.patch(index, 0, &noise);
            }
            operation => {
                // A pointer, a dnode or a word from elsewhere.
                let unit = [128, 512][usize::from(operation - 7)];
                let start = ((value >> 16) as usize % from.used.len().max(1)) & !(unit - 1);
                let bytes = from.bytes(start, unit);
                image.patch(index, position & !(unit - 1), &bytes);
            }
        }
    }
}

/// Piece `number` of all devices: its device and its index there.
fn locate(images: &mut [FlatImage], mut number: usize) -> (&mut FlatImage, usize) {
    let mut device = 0;
    while let Some(image) = images.get(device)
        && number >= image.extents.len()
    {
        number -= image.extents.len();
        device += 1;
    }
    (&mut images[device], number)
}
