//! The token of a receive that was cut off, with which the sender can go on.
//!
//! Chapter 07, section 10. Invariant: a token that decodes encodes the same list; its lengths are
//! bounded before anything is expanded.

use std::fmt::Write as _;

use cenote_codec::checksum::{WordOrder, fletcher4};
use cenote_codec::compress::{Algorithm, Method, compress, decompress};
use cenote_format::bytes::ByteOrder;
use cenote_format::dsl_dataset::{KEY_REDACTED_DATASETS, resume};
use cenote_format::nvlist::{Encoding, NvList, Value};

use super::{Catalog, Dataset, Table};
use crate::{Error, ErrorKind, Result};

/// Version of the token's form.
const VERSION: &str = "1";
/// Compression level of the packed list.
const LEVEL: u8 = 6;
/// Longest packed list that is believed, in bytes.
const PACKED_MAX: usize = 1 << 20;
/// Where a receive into an existing filesystem keeps what it has got.
pub(super) const TEMPORARY: &str = "%recv";

/// The token of a list.
pub fn encode(list: &NvList) -> Result<String> {
    let packed = list.encode(Encoding::Native(ByteOrder::Little))?;
    let mut compressed = vec![0; packed.len() + 64];
    let length = compress(Method::Gzip(LEVEL), &packed, &mut compressed);
    let length = length.ok_or_else(|| Error::invalid("the resume token does not compress"))?;
    compressed.truncate(length);
    let [sum, ..] = fletcher4(&compressed, WordOrder::Little);
    let mut token = format!("{VERSION}-{sum:x}-{:x}-", packed.len());
    for byte in &compressed {
        let _ = write!(token, "{byte:02x}");
    }
    Ok(token)
}

/// The list in a token.
pub fn decode(token: &str) -> Result<NvList> {
    let bad = |why: &str| Error::invalid(format!("the resume token is damaged: {why}"));
    let mut parts = token.trim().splitn(4, '-');
    let mut part = || parts.next().ok_or_else(|| bad("it has too few parts"));
    if part()? != VERSION {
        return Err(Error::unsupported("the resume token is of an unknown version"));
    }
    let sum = u64::from_str_radix(part()?, 16).map_err(|_| bad("its checksum is no number"))?;
    let length = usize::from_str_radix(part()?, 16).map_err(|_| bad("its size is no number"))?;
    if length > PACKED_MAX {
        return Err(bad("it is too long"));
    }
    let digits = part()?.as_bytes();
    if !digits.len().is_multiple_of(2) {
        return Err(bad("it is cut off"));
    }
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let byte = |pair: &[u8]| match *pair {
        [high, low] => u8::try_from(digit(high)? << 4 | digit(low)?).ok(),
        _ => None,
    };
    let compressed: Option<Vec<u8>> = digits.chunks_exact(2).map(byte).collect();
    let compressed = compressed.ok_or_else(|| bad("it has other characters than digits"))?;
    let [computed, ..] = fletcher4(&compressed, WordOrder::Little);
    if computed != sum {
        return Err(bad("its checksum does not match"));
    }
    let mut packed = vec![0; length];
    decompress(Algorithm::Gzip(LEVEL), &compressed, &mut packed)
        .map_err(|error| bad(&error.to_string()))?;
    Ok(NvList::decode(&packed)?)
}

/// What the extension fields of a half-received dataset say.
fn state(table: &Table) -> Result<NvList> {
    let mut list = NvList::new();
    let numbers = [
        ("fromguid", resume::FROM_GUID),
        ("object", resume::OBJECT),
        ("offset", resume::OFFSET),
        ("bytes", resume::BYTES),
        ("toguid", resume::TO_GUID),
    ];
    for (name, key) in numbers {
        if let Some(number) = table.number(key)? {
            list.push(name, Value::Uint64(number));
        }
    }
    if let Some(text) = table.text(resume::TO_NAME)? {
        list.push("toname", Value::String(text.into_bytes().into_boxed_slice()));
    }
    let flags = [
        ("largeblockok", resume::LARGE_BLOCK),
        ("embedok", resume::EMBED),
        ("compressok", resume::COMPRESS),
        ("rawok", resume::RAW),
    ];
    for (name, key) in flags {
        if table.value(key)?.is_some() {
            list.push(name, Value::Boolean);
        }
    }
    for (name, key) in
        [("redact_snaps", KEY_REDACTED_DATASETS), ("book_redact_snaps", resume::REDACT_SNAPSHOTS)]
    {
        if let Some(guids) = table.numbers_of(key)? {
            list.push(name, Value::Uint64Array(guids));
        }
    }
    Ok(list)
}

impl Catalog {
    /// The token with which a receive into `head` can go on; `None` if none was cut off.
    pub fn resume_token(&self, head: &Dataset) -> Result<Option<String>> {
        Ok(self.resume_token_in(head)?.0)
    }

    /// The same, and the head beside this one that is being filled, if there is one: groups write the token there.
    pub(super) fn resume_token_in(
        &self,
        head: &Dataset,
    ) -> Result<(Option<String>, Option<Dataset>)> {
        if let Some(state) = self.own_state(head)? {
            return Ok((Some(encode(&state)?), None));
        }
        let Some(temporary) = self.temporary(head)? else { return Ok((None, None)) };
        let state = self.own_state(&temporary)?;
        Ok((state.as_ref().map(encode).transpose()?, Some(temporary)))
    }

    /// The head that a receive into `head` fills and was cut off, itself or beside it, and what its token says.
    pub fn received_in_part(&self, head: &Dataset) -> Result<Option<(Dataset, NvList)>> {
        if let Some(state) = self.own_state(head)? {
            return Ok(Some((head.clone(), state)));
        }
        let Some(temporary) = self.temporary(head)? else { return Ok(None) };
        Ok(self.own_state(&temporary)?.map(|state| (temporary, state)))
    }

    /// The head beside this one that a receive fills, if there is one.
    fn temporary(&self, head: &Dataset) -> Result<Option<Dataset>> {
        match self.child(&head.directory, TEMPORARY).and_then(|directory| self.head(&directory)) {
            Ok(temporary) => Ok(Some(temporary)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn own_state(&self, head: &Dataset) -> Result<Option<NvList>> {
        // What a finished receive leaves behind does not count.
        if !head.phys.is_inconsistent() {
            return Ok(None);
        }
        self.extension(head.id, head.extended, |table| match table.number(resume::TO_GUID)? {
            Some(_) => state(table).map(Some),
            None => Ok(None),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Vector S4 of chapter 07.
    const TOKEN: &str = "1-dfe811226-f0-789c636064000310a500c4ec50360710e72765a526973030b040946\
        0caa7a515a796806498e0f26c48f2499525a9c540fa43111356fd25f9e9a599290c0cb7af9e5264f78d6ad0409\
        2e704cbe725e6a602e902fdb462876243a8331824a0fa61ee4ecd4d4a4dc9cf069bcf8d249e9c9f5b50945a5c0\
        c94820300710c1c9d";

    #[test]
    fn vector_s4() {
        let list = decode(TOKEN).unwrap();
        assert_eq!(list.u64("object"), Some(4));
        assert_eq!(list.u64("offset"), Some(131_072));
        assert!(list.string("toname").is_some() && list.flag("compressok"));
        // Another deflater packs it otherwise, but to the same list.
        let again = encode(&list).unwrap();
        assert!(again.starts_with("1-") && again.contains("-f0-789c"));
        assert_eq!(decode(&again).unwrap(), list);
    }

    #[test]
    fn damage_is_an_error() {
        let cut = &TOKEN[..TOKEN.len() - 8];
        let flipped = TOKEN.replacen("789c63", "789c64", 1);
        for bad in ["", "1", "1-2-3", "1-x-1-00", "1-0-fffffffff-00", "1-0-1-0", cut, &flipped] {
            assert!(decode(bad).is_err(), "{bad}");
        }
        assert_eq!(decode("2-0-0-").unwrap_err().kind(), ErrorKind::Unsupported);
    }
}
