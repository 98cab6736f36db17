//! Which bytes of a block are encrypted and which are only authenticated.
//!
//! Chapter 02, sections 8.4 to 8.7. Invariant: works on the stored bytes in the order they were
//! written; ranges never leave the block, however its dnodes lie about their sizes.

use std::ops::Range;

use cenote_format::blkptr::SIZE as POINTER;
use cenote_format::bytes::ByteOrder;
use cenote_format::dnode::{CORE, FLAG_SPILL, SLOT};
use cenote_format::{BlockPointer, ObjectType, objset};

/// The authenticated and the encrypted parts of a block.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Sealed {
    /// Additional authenticated data, in order.
    pub authenticated: Vec<u8>,
    /// Encrypted ranges of the block, in order: together one message.
    pub encrypted: Vec<Range<usize>>,
}

/// Decodes a pointer whose words are in `order`.
fn pointer(data: &[u8], order: ByteOrder) -> BlockPointer {
    let mut bp = BlockPointer::HOLE;
    for (index, word) in bp.words.iter_mut().enumerate() {
        *word = order.u64(data, index * 8).unwrap_or(0);
    }
    bp
}

/// What of a pointer enters a MAC: properties and MAC, always little-endian.
fn push_pointer(out: &mut Vec<u8>, bp: &BlockPointer, version: u64) {
    const DEDUP: u64 = 1 << 62;
    const CHECKSUM: u64 = 0xff << 40;
    const PSIZE: u64 = 0xffff << 16;
    const BYTE_ORDER: u64 = 1 << 63;
    const COMPRESSION: u64 = 0x7f << 32;
    let mut prop = bp.prop() & !(DEDUP | CHECKSUM);
    if version == 0 {
        prop &= !PSIZE;
    } else if bp.is_hole() {
        prop = 0;
    } else if bp.level().0 != 0 {
        prop &= !(BYTE_ORDER | COMPRESSION | PSIZE);
    }
    out.extend_from_slice(&prop.to_le_bytes());
    if bp.is_hole() || bp.object_type() == ObjectType::OBJSET || !bp.is_crypt() {
        out.extend_from_slice(&[0; 16]);
    } else {
        out.extend_from_slice(&bp.mac());
    }
    if version != 0 {
        out.extend_from_slice(&[0; 8]);
    }
}

/// The 64-byte core of a dnode with its changeable fields masked.
fn push_core(out: &mut Vec<u8>, dnode: &[u8]) {
    let start = out.len();
    out.extend_from_slice(dnode.get(..CORE).unwrap_or(&[]));
    if let Some(flags) = out.get_mut(start + 7) {
        *flags &= FLAG_SPILL;
    }
    if let Some(used) = out.get_mut(start + 24..start + 32) {
        used.fill(0);
    }
}

/// The parts of a block of dnodes.
pub fn dnode_block(data: &[u8], order: ByteOrder, version: u64) -> Sealed {
    let mut sealed = Sealed::default();
    let mut at = 0;
    while let Some(rest) = data.get(at..).filter(|rest| rest.len() >= SLOT) {
        let byte = |index: usize| rest.get(index).copied().unwrap_or(0);
        let slots = if byte(0) == 0 { 1 } else { usize::from(byte(12)) + 1 };
        let size = (slots * SLOT).min(rest.len());
        let pointers = usize::from(byte(3)).min(3);
        let has_spill = byte(7) & FLAG_SPILL != 0;
        let bonus_start = CORE + pointers * POINTER;
        let bonus_end = (if has_spill { size - POINTER } else { size }).max(bonus_start);
        push_core(&mut sealed.authenticated, rest);
        for index in 0..pointers {
            let raw = rest.get(CORE + index * POINTER..).unwrap_or(&[]);
            push_pointer(&mut sealed.authenticated, &pointer(raw, order), version);
        }
        if has_spill {
            let raw = rest.get(bonus_end..).unwrap_or(&[]);
            push_pointer(&mut sealed.authenticated, &pointer(raw, order), version);
        }
        let bonus_len = order.u16(rest, 10).unwrap_or(0);
        if byte(0) != 0 && ObjectType(byte(4)).is_encrypted() && bonus_len != 0 {
            sealed.encrypted.push(at + bonus_start..(at + bonus_end).min(data.len()));
        } else {
            let bonus = rest.get(bonus_start..bonus_end).unwrap_or(&[]);
            sealed.authenticated.extend_from_slice(bonus);
        }
        at += slots * SLOT;
    }
    sealed
}

/// What a MAC of an object set is made over for one dnode in it: core and pointers, no bonus.
fn push_dnode(out: &mut Vec<u8>, dnode: &[u8], version: u64) {
    push_core(out, dnode);
    let byte = |index: usize| dnode.get(index).copied().unwrap_or(0);
    for index in 0..usize::from(byte(3)).min(3) {
        let raw = dnode.get(CORE + index * POINTER..).unwrap_or(&[]);
        push_pointer(out, &pointer(raw, ByteOrder::Little), version);
    }
    if byte(7) & FLAG_SPILL != 0 {
        let raw = dnode.get(SLOT - POINTER..).unwrap_or(&[]);
        push_pointer(out, &pointer(raw, ByteOrder::Little), version);
    }
}

/// What the two MACs of an object-set block are made over.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ObjectSetMessages {
    /// For the portable MAC: what survives a raw send.
    pub portable: Vec<u8>,
    /// For the local MAC: flags and accounting. `None`: that MAC is 32 zero bytes.
    pub local: Option<Vec<u8>>,
}

/// The messages of a little-endian object-set block (section 8.7); `None` if it is too short.
pub fn object_set(block: &[u8], version: u64) -> Option<ObjectSetMessages> {
    let kind = ByteOrder::Little.u64(block, objset::KIND_AT)?;
    let flags = ByteOrder::Little.u64(block, objset::FLAGS_AT)?;
    // The type alone enters big-endian; no flag is portable.
    let mut portable = kind.to_be_bytes().to_vec();
    portable.extend_from_slice(&0_u64.to_le_bytes());
    push_dnode(&mut portable, block.get(..SLOT)?, version);
    let accounting = objset::ACCOUNTING_AT
        .into_iter()
        .filter_map(|at| block.get(at..at + SLOT))
        .filter(|dnode| dnode.first().is_some_and(|object_type| *object_type != 0));
    let mut local = flags.to_le_bytes().to_vec();
    let mut any = false;
    for dnode in accounting {
        push_dnode(&mut local, dnode, version);
        any = true;
    }
    let complete = flags & objset::FLAG_USERACCOUNTING_COMPLETE != 0;
    Some(ObjectSetMessages { portable, local: (any && complete).then_some(local) })
}

/// What the MAC of an indirect block is made over (plain SHA-512).
pub fn indirect_block(data: &[u8], order: ByteOrder, version: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(data.len() / 4);
    for raw in data.chunks_exact(POINTER) {
        push_pointer(&mut out, &pointer(raw, order), version);
    }
    out
}
