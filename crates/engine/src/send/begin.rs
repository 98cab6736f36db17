//! How a stream begins: its first record, and the list that comes with it.
//!
//! Chapter 07, sections 4, 8 and 10. Invariant: nothing secret is in the list; keys are as wrapped as on disk.

use cenote_format::Guid;
use cenote_format::bytes::ByteOrder;
use cenote_format::crypto_key as names;
use cenote_format::dsl_dataset::FLAG_CASE_INSENSITIVE;
use cenote_format::nvlist::{Encoding, NvList, Value};
use cenote_format::send_stream::{Begin, BeginFlags, Features, HeaderKind};

use super::since::Since;
use super::source::Resume;
use crate::Result;
use crate::dataset::{Catalog, Dataset, KeyObject};
use crate::object::ObjectSet;

/// The first record of a stream of `to`.
pub(super) fn begin(
    catalog: &Catalog,
    to: &Dataset,
    set: &ObjectSet,
    since: Option<&Since>,
    features: Features,
) -> Result<Begin> {
    let head = catalog.dataset_phys(to.directory.phys.head_dataset)?;
    let ignores_case = (head.flags | to.phys.flags) & FLAG_CASE_INSENSITIVE != 0;
    let mut flags = BeginFlags::FREE_RECORDS | BeginFlags::SPILL_BLOCK;
    flags.set(BeginFlags::CLONE, since.is_some_and(|since| since.is_origin));
    flags.set(BeginFlags::CASE_INSENSITIVE, ignores_case);
    Ok(Begin {
        kind: HeaderKind::Substream,
        features,
        creation_time: to.phys.creation_time,
        objset_kind: u32::try_from(set.kind().raw()).unwrap_or(0),
        flags,
        to_guid: to.phys.guid,
        from_guid: since.map_or(Guid(0), |since| since.guid),
        to_name: to.name.to_string().into_bytes().into(),
        payload_len: 0,
    })
}

/// The list that comes with it, packed; empty where there is nothing to say. `lacking`: for which snapshots blocks
/// were left out of what it goes on from.
pub(super) fn payload(
    lacking: Option<&[u64]>,
    resume: Option<Resume>,
    key: Option<NvList>,
) -> Result<Vec<u8>> {
    let mut list = NvList::new();
    if let Some(guids) = lacking {
        list.push("redact_from_snaps", Value::Uint64Array(guids.to_vec()));
    }
    if let Some(resume) = resume {
        list.push("resume_object", resume.object);
        list.push("resume_offset", resume.offset);
    }
    if let Some(key) = key {
        list.push("crypt_keydata", key);
    }
    if list.is_empty() {
        return Ok(Vec::new());
    }
    Ok(list.encode(Encoding::Native(ByteOrder::Little))?)
}

/// The same list of a stream that leaves out blocks for these snapshots.
pub(super) fn redacted_payload(payload: &[u8], guids: &[u64]) -> Result<Vec<u8>> {
    let mut list = NvList::new();
    list.push("redact_snaps", Value::Uint64Array(guids.to_vec()));
    if !payload.is_empty() {
        for pair in &NvList::decode(payload)? {
            list.push(&pair.name, pair.value.clone());
        }
    }
    Ok(list.encode(Encoding::Native(ByteOrder::Little))?)
}

/// The wrapped keys of a raw stream, and the shape of the array of dnodes.
pub(super) fn key_data(key: &KeyObject, set: &ObjectSet, to_ivset: u64, from_ivset: u64) -> NvList {
    let bytes = |bytes: &[u8]| Value::Uint8Array(bytes.to_vec());
    let (wrapped, header) = (&key.wrapped, set.header());
    let meta = &header.meta_dnode;
    let mut list = NvList::new();
    list.push(names::SUITE, wrapped.suite.id());
    list.push(names::GUID, wrapped.guid);
    list.push(names::VERSION, wrapped.version);
    list.push(names::MASTER_KEY, bytes(&wrapped.master));
    list.push(names::HMAC_KEY, bytes(&wrapped.hmac));
    list.push(names::IV, bytes(&wrapped.iv));
    list.push(names::MAC, bytes(&wrapped.mac));
    list.push("portable_mac", bytes(&header.portable_mac));
    list.push(names::KEY_FORMAT, key.format.raw());
    list.push(names::PBKDF2_ITERATIONS, key.iterations);
    list.push(names::PBKDF2_SALT, key.salt);
    list.push("mdn_checksum", u64::from(meta.checksum));
    list.push("mdn_compress", u64::from(meta.compression));
    list.push("mdn_nlevels", u64::from(meta.levels));
    list.push("mdn_blksz", meta.block_size());
    list.push("mdn_indblkshift", u64::from(meta.indirect_shift));
    list.push("mdn_nblkptr", meta.pointers.len() as u64);
    list.push("mdn_maxblkid", meta.max_block_id);
    list.push("to_ivset_guid", to_ivset);
    list.push("from_ivset_guid", from_ivset);
    list
}
