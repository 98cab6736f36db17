//! Turning a block written by a big-endian host into little-endian form, in place.
//!
//! Chapter 04, section 6. The class of the object type decides; system attributes and the values
//! of fat ZAPs announce or fix their own order and are left alone.

use crate::bytes::{ByteOrder, swap_elements};
use crate::object_type::SwapClass;
use crate::{ObjectType, dnode};

/// Swaps a whole block of `object_type` at `level`.
pub fn block(data: &mut [u8], object_type: ObjectType, level: u8) {
    if level > 0 {
        swap_elements::<8>(data);
    } else {
        by_class(data, object_type.swap_class());
    }
}

fn by_class(data: &mut [u8], class: SwapClass) {
    match class {
        SwapClass::U8 => {}
        SwapClass::U16 => swap_elements::<2>(data),
        SwapClass::U32 => swap_elements::<4>(data),
        SwapClass::U64 => swap_elements::<8>(data),
        SwapClass::Zap => zap(data),
        SwapClass::Dnode => dnode_block(data),
        SwapClass::Objset => objset(data),
        SwapClass::Znode => znode(data),
        SwapClass::OldAcl => old_aces(data),
        SwapClass::Acl => aces(data),
    }
}

fn range(data: &mut [u8], start: usize, len: usize) -> Option<&mut [u8]> {
    data.get_mut(start..start.checked_add(len)?)
}

fn swap_at<const N: usize>(data: &mut [u8], at: usize) {
    if let Some(field) = range(data, at, N) {
        field.reverse();
    }
}

fn dnode_block(data: &mut [u8]) {
    let mut at = 0;
    while let Some(rest) = data.get_mut(at..).filter(|rest| rest.len() >= dnode::SLOT) {
        let slots = usize::try_from(dnode::Dnode::slots_at(rest)).unwrap_or(1);
        let len = (slots * dnode::SLOT).min(rest.len());
        if let Some(one) = rest.get_mut(..len) {
            one_dnode(one);
        }
        at += slots * dnode::SLOT;
    }
}

fn one_dnode(data: &mut [u8]) {
    let byte = |data: &[u8], at: usize| data.get(at).copied().unwrap_or(0);
    if byte(data, 0) == 0 {
        data.fill(0);
        return;
    }
    let (pointer_count, bonus_type, flags) = (byte(data, 3), byte(data, 4), byte(data, 7));
    swap_at::<2>(data, 8);
    swap_at::<2>(data, 10);
    swap_at::<8>(data, 16);
    swap_at::<8>(data, 24);
    let pointers = usize::from(pointer_count.min(3)) * crate::blkptr::SIZE;
    if let Some(area) = range(data, dnode::CORE, pointers) {
        swap_elements::<8>(area);
    }
    let spill = if flags & dnode::FLAG_SPILL != 0 { crate::blkptr::SIZE } else { 0 };
    let end = data.len().saturating_sub(spill);
    if let Some(bonus) = data.get_mut(dnode::CORE + pointers..end) {
        by_class(bonus, ObjectType(bonus_type).swap_class());
    }
    if let Some(spill) = data.get_mut(end..) {
        swap_elements::<8>(spill);
    }
}

fn objset(data: &mut [u8]) {
    if let Some(meta) = range(data, 0, dnode::SLOT) {
        one_dnode(meta);
    }
    // The intent-log header, the kind and the flags.
    if let Some(words) = range(data, 512, 192 + 16) {
        swap_elements::<8>(words);
    }
    for at in [1024, 1536, 2048] {
        if let Some(accounting) = range(data, at, dnode::SLOT) {
            one_dnode(accounting);
        }
    }
}

const MICRO: u64 = 0x8000_0000_0000_0003;
const LEAF: u64 = 0x8000_0000_0000_0000;

fn zap(data: &mut [u8]) {
    match ByteOrder::Big.u64(data, 0) {
        Some(MICRO) => {
            let (header, chunks) = data.split_at_mut(data.len().min(64));
            if let Some(words) = header.get_mut(..24) {
                swap_elements::<8>(words);
            }
            for chunk in chunks.chunks_exact_mut(64) {
                swap_at::<8>(chunk, 0);
                swap_at::<4>(chunk, 8);
            }
        }
        Some(LEAF) => zap_leaf(data),
        _ => swap_elements::<8>(data),
    }
}

fn zap_leaf(data: &mut [u8]) {
    for at in [0, 8, 16] {
        swap_at::<8>(data, at);
    }
    swap_at::<4>(data, 24);
    for at in [28, 30, 32, 34] {
        swap_at::<2>(data, at);
    }
    let hash_bytes = data.len() / 16;
    if let Some(hash) = range(data, 48, hash_bytes) {
        swap_elements::<2>(hash);
    }
    let Some(chunks) = data.get_mut(48 + hash_bytes..) else { return };
    for chunk in chunks.chunks_exact_mut(24) {
        match chunk.first() {
            Some(252) => {
                for at in [2, 4, 6, 8, 10] {
                    swap_at::<2>(chunk, at);
                }
                swap_at::<4>(chunk, 12);
                swap_at::<8>(chunk, 16);
            }
            Some(_) => swap_at::<2>(chunk, 22),
            None => {}
        }
    }
}

/// Legacy znode: words to byte 176, the ACL header, then the embedded entries by version.
fn znode(data: &mut [u8]) {
    if data.len() < 264 {
        return;
    }
    if let Some(words) = range(data, 0, 176) {
        swap_elements::<8>(words);
    }
    swap_at::<8>(data, 176);
    swap_at::<4>(data, 184);
    swap_at::<2>(data, 188);
    swap_at::<2>(data, 190);
    let version = crate::bytes::le16(data, 188).unwrap_or(0);
    if let Some(entries) = range(data, 192, 72) {
        if version == 0 { old_aces(entries) } else { aces(entries) }
    }
}

fn old_aces(data: &mut [u8]) {
    for entry in data.chunks_exact_mut(12) {
        for at in [0, 4] {
            swap_at::<4>(entry, at);
        }
        for at in [8, 10] {
            swap_at::<2>(entry, at);
        }
    }
}

/// Swaps version-1 ACL entries, whose length depends on their type and flags.
pub fn aces(data: &mut [u8]) {
    let mut at = 0;
    while at + 8 <= data.len() {
        swap_at::<2>(data, at);
        swap_at::<2>(data, at + 2);
        swap_at::<4>(data, at + 4);
        let kind = crate::bytes::le16(data, at).unwrap_or(0);
        let flags = crate::bytes::le16(data, at + 2).unwrap_or(0);
        let abstract_who = matches!(flags & 0x7040, 0x1000 | 0x2040 | 0x4000);
        let len = match kind {
            5..=8 => 48,
            0 | 1 if abstract_who => 8,
            _ => 16,
        };
        if len >= 16 {
            swap_at::<8>(data, at + 8);
        }
        at += len;
    }
}
