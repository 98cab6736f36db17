//! Structures of the pool and its datasets. The first byte chooses which; the rest is the structure.
#![no_main]

use cenote_format::config::PoolConfig;
use cenote_format::nvlist::{Encoding, NvList};
use cenote_format::*;

/// What was decoded and written again reads as the same.
macro_rules! same {
    ($first:expr, $second:expr) => {
        assert_eq!(format!("{:?}", $first), format!("{:?}", $second))
    };
}

fn words(data: &[u8]) -> Vec<u64> {
    data.as_chunks().0.iter().map(|raw| u64::from_le_bytes(*raw)).collect()
}

fn lists(data: &[u8]) {
    let Ok((list, encoding, used)) = NvList::decode_prefix(data) else { return };
    assert!(used <= data.len());
    for other in [encoding, Encoding::Xdr] {
        if let Ok(bytes) = list.encode(other) {
            same!(NvList::decode(&bytes).unwrap(), list);
        }
    }
    if let Ok(config) = PoolConfig::from_nvlist(list) {
        for top in config.vdev_tree.iter() {
            let _ = (top.walk().count(), top.devices().count(), top.guid_sum());
            let _ = top.to_nvlist();
        }
        let _ = label::encode_config(&config.to_nvlist());
    }
}

fn pointers(data: &[u8]) {
    for bp in BlockPointer::decode_all(data) {
        assert_eq!(BlockPointer::decode(&bp.encode()).unwrap(), bp);
        let _ = (format!("{bp:?}"), bp.validate(), bp.embedded_payload(), bp.dvas().count());
        let _ = (bp.lsize(), bp.psize(), bp.fill(), bp.mac(), bp.iv(), bp.is_encrypted());
        let _ = ddt::Key::of(&bp);
        let _ = bpobj::stored(&bp, true);
    }
}

fn dnodes(data: &[u8]) {
    for (slot, dnode) in dnode::dnodes_in_block(data) {
        assert!(slot < data.len() as u64);
        let Ok(dnode) = dnode else { continue };
        let bytes = dnode.encode().unwrap();
        same!(Dnode::decode(&bytes).unwrap().unwrap(), dnode);
        let _ = (dnode.bonus(), dnode.block_size(), dnode.used_bytes(), dnode.max_offset());
    }
    if let Ok(set) = Objset::decode(data) {
        let bytes = set.encode().unwrap();
        same!(Objset::decode(&bytes).unwrap(), set);
    }
}

fn space(data: &[u8]) {
    let _ = space_map::SpaceMapHeader::decode(data);
    for record in space_map::records(data).flatten() {
        if let space_map::Record::Segment(segment) = record {
            for shift in [0, 9, 63, 255] {
                let _ = segment.bytes(1 << 40, shift);
            }
        }
    }
    let _ = indirect_mapping::MappingHeader::decode(data);
    let count = u64::from(data.first().copied().unwrap_or(0));
    if let Ok(mapping) = indirect_mapping::Mapping::decode(data, count) {
        for entry in mapping.entries() {
            for (offset, length) in [(entry.source_end() - 512, 1024), (u64::MAX - 1, 512), (0, 0)]
            {
                let _ = mapping.lookup(offset, length);
            }
        }
    }
    if let Ok(births) = indirect_mapping::decode_births(data, count) {
        let _ = indirect_mapping::birth_of(&births, 1 << 30);
    }
    let _ = indirect_mapping::RemovalState::from_words(&words(data));
    let _ = indirect_mapping::Condensing::from_words(&words(data));
}

fn datasets(data: &[u8]) {
    if let Ok(directory) = dsl_directory::DslDirectory::decode(data) {
        let bytes = directory.encode();
        same!(dsl_directory::DslDirectory::decode(&bytes).unwrap(), directory);
    }
    if let Ok(dataset) = dsl_dataset::DslDataset::decode(data) {
        let bytes = dataset.encode();
        same!(dsl_dataset::DslDataset::decode(&bytes).unwrap(), dataset);
    }
    let _ = deadlist::decode_header(data);
    let _ = deadlist::parse_integer_key(data);
    if let Ok(object) = bpobj::BpobjHeader::decode(data) {
        let bytes = object.encode();
        same!(bpobj::BpobjHeader::decode(&bytes).unwrap(), object);
    }
    if let Ok(bookmark) = bookmark::Bookmark::from_words(&words(data)) {
        same!(bookmark::Bookmark::from_words(&bookmark.to_words()).unwrap(), bookmark);
    }
    let _ = bookmark::RedactionHeader::decode(data).map(|header| header.encode());
    let _ = bookmark::RedactionEntry::decode(data).map(|entry| entry.encode());
    let _ = delegation::Key::parse(data).map(|key| key.name());
    let _ = error_log::parse(data).map(|key| error_log::name(&key));
    let _ = error_log::HeadKey::parse(data).map(|key| key.name());
    let _ = bptree::BptreeHeader::decode(data).map(|header| header.encode());
    let _ = bptree::BptreeEntry::decode(data).map(|entry| entry.encode());
    let _ = words(data).first().map(|word| crypto_key::KeyFormat::from_raw(*word));
}

fn tables(data: &[u8]) {
    for flat in [false, true] {
        if let Ok(value) = ddt::Value::decode(data, flat) {
            same!(ddt::Value::decode(&value.encode(), flat).unwrap(), value);
            let _ = value.references();
        }
    }
    let _ = ddt::histogram(&words(data));
    let _ = ddt::LogHeader::decode(data);
    let _ = ddt::log_entries(data).count();
    if let Ok(header) = brt::BrtHeader::decode(data) {
        let _ = (header.encode(), header.counters(data));
    }
    if let Ok(value) = zap::Value::of_bytes(data)
        && let Ok(count) = brt::reference_count(&value)
    {
        same!(brt::reference_value(count, &value).unwrap(), value);
    }
    let _ = l2arc::CacheHeader::decode(data).map(|header| header.encode());
    let _ = scan_state::ScanState::from_words(&words(data)).map(|state| state.to_words());
    let _ = scan_state::ErrorScrubState::from_words(&words(data));
    for record in history::records(data).flatten() {
        let _ = NvList::decode(record);
    }
    if let Ok(header) = history::HistoryHeader::decode(data) {
        for (start, end) in header.ranges() {
            let _ = header.spans(start, end.wrapping_sub(start));
            let _ = header.physical(end);
        }
        let _ = header.spans(u64::MAX, u64::MAX);
    }
}

fn uberblocks(data: &[u8]) {
    let Ok(first) = Uberblock::decode(data) else { return };
    same!(Uberblock::decode(&first.encode()).unwrap(), first);
    let _ = (first.activity_interval(), first.activity_sequence(), first.reflow.offset());
    let _ = first.compare_recency(&first);
    let _ = label::BootEnv::decode(data).map(|env| env.encode());
    let _ = label::decode_config(data);
}

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Some((&choice, data)) = input.split_first() else { return };
    match choice % 9 {
        0 | 8 => lists(data),
        1 => pointers(data),
        2 => dnodes(data),
        3 => space(data),
        4 => datasets(data),
        5 => tables(data),
        6 => uberblocks(data),
        _ => {
            // Swapping twice is nothing where the swap does not depend on the contents.
            let Some(([kind, level], data)) = data.split_first_chunk() else { return };
            let mut swapped = data.to_vec();
            byteswap::block(&mut swapped, ObjectType(*kind), level % 4);
            assert_eq!(swapped.len(), data.len());
        }
    }
});
