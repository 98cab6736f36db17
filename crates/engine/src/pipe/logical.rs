//! From stored bytes to logical bytes: decrypt, decompress, bring into little-endian order.
//!
//! Invariant: the result has exactly the pointer's logical size; with the keys of an encrypted
//! dataset at hand, whatever is given out of it matched its MAC.

use bytes::Bytes;
use cenote_codec::compress::{self, Algorithm};
use cenote_format::blkptr::MAX_BLOCK;
use cenote_format::object_type::SwapClass;
use cenote_format::{BlockPointer, ObjectType, byteswap};

use super::ReadContext;
use crate::{Error, ErrorKind, Result};

/// Compression id of blocks stored as they are.
const COMPRESSION_OFF: u8 = 2;

/// Logical bytes of a block whose stored, verified bytes are `raw`.
pub(super) fn decode(bp: &BlockPointer, raw: Bytes, context: &ReadContext) -> Result<Bytes> {
    let raw = open(bp, raw, context)?;
    let data = if bp.compression() == COMPRESSION_OFF {
        if (raw.len() as u64) < bp.lsize() {
            return Err(Error::corrupt(format!(
                "uncompressed block stores {} of {} bytes",
                raw.len(),
                bp.lsize()
            )));
        }
        raw.slice(..logical_size(bp)?)
    } else {
        expand(bp, &raw)?
    };
    let decryptor = context.decryptor.as_ref();
    if let (Some(decryptor), true) = (decryptor, bp.level().0 > 0) {
        decryptor.authenticate_indirect(bp, &data)?;
    }
    let block = in_little_endian(bp, data);
    if let Some(decryptor) = decryptor
        && bp.level().0 == 0
        && bp.object_type() == ObjectType::OBJSET
    {
        decryptor.authenticate_object_set(&block)?;
    }
    Ok(block)
}

/// Logical bytes of an embedded pointer.
pub(super) fn embedded(bp: &BlockPointer) -> Result<Bytes> {
    if bp.is_redacted() {
        let reason = "the block was left out when the dataset was received (redacted)";
        return Err(Error::new(ErrorKind::Redacted, reason));
    }
    let payload = bp
        .embedded_payload()
        .ok_or_else(|| Error::corrupt("embedded pointer with more bytes than it can hold"))?;
    let data = if bp.compression() == COMPRESSION_OFF {
        let mut payload = payload;
        payload.resize(logical_size(bp)?, 0);
        Bytes::from(payload)
    } else {
        expand(bp, &payload)?
    };
    Ok(in_little_endian(bp, data))
}

fn logical_size(bp: &BlockPointer) -> Result<usize> {
    if bp.lsize() > MAX_BLOCK {
        return Err(Error::corrupt(format!("logical size {} above 16 MiB", bp.lsize())));
    }
    usize::try_from(bp.lsize()).map_err(|_| Error::corrupt("logical size too large"))
}

fn open(bp: &BlockPointer, raw: Bytes, context: &ReadContext) -> Result<Bytes> {
    if context.decryptor.is_some() && !bp.is_crypt() {
        let reason = "authentication failed: a block without a MAC in an encrypted dataset";
        return Err(Error::new(ErrorKind::Checksum, reason).forged());
    }
    if bp.is_encrypted() {
        let Some(decryptor) = &context.decryptor else {
            if context.sealed && bp.object_type() == ObjectType::DNODE {
                return Ok(raw);
            }
            let advice = "load it with 'zfs load-key'";
            let reason = "the dataset's encryption key is not loaded";
            return Err(Error::new(ErrorKind::KeyNotLoaded, reason).with_advice(advice));
        };
        let mut data = raw.to_vec();
        decryptor.decrypt(bp, &mut data)?;
        return Ok(Bytes::from(data));
    }
    let here = bp.is_authenticated() && bp.object_type() != ObjectType::OBJSET;
    if let (true, Some(decryptor)) = (here, &context.decryptor) {
        decryptor.authenticate(bp, &raw)?;
    }
    Ok(raw)
}

fn expand(bp: &BlockPointer, raw: &[u8]) -> Result<Bytes> {
    let algorithm = Algorithm::from_id(bp.compression())
        .ok_or_else(|| Error::corrupt(format!("compression id {}", bp.compression())))?;
    let mut out = vec![0; logical_size(bp)?];
    compress::decompress(algorithm, raw, &mut out)
        .map_err(|error| Error::corrupt(error.to_string()))?;
    Ok(Bytes::from(out))
}

fn in_little_endian(bp: &BlockPointer, data: Bytes) -> Bytes {
    let plain_bytes = bp.level().0 == 0 && bp.object_type().swap_class() == SwapClass::U8;
    if bp.is_little_endian() || plain_bytes {
        return data;
    }
    let mut data = data.to_vec();
    byteswap::block(&mut data, bp.object_type(), bp.level().0);
    Bytes::from(data)
}
