//! Structures of files: system attributes, znodes, access lists. The first byte chooses which.
#![no_main]

use cenote_format::acl::{self, LegacyAcl};
use cenote_format::bytes::ByteOrder;
use cenote_format::nvlist::NvList;
use cenote_format::posix_acl::PosixAcl;
use cenote_format::sa::{Attribute, AttributeTable};
use cenote_format::znode::Znode;
use cenote_format::{directory_entry, fuid};

fn access_lists(data: &[u8]) {
    let count = data.len() / 9;
    if let Ok(entries) = acl::decode(data, count) {
        let again = acl::decode(&acl::encode(&entries), count).unwrap();
        assert_eq!(format!("{again:?}"), format!("{entries:?}"));
        let _ = (acl::mode(&entries, 1, 2), acl::is_trivial(&entries));
    }
    if let Ok(entries) = acl::decode_v0(data, data.len() / 12) {
        let _ = acl::mode(&entries, 0, 0);
    }
    let _ = (acl::decode(data, usize::MAX), acl::decode_v0(data, usize::MAX));
    if let Ok(list) = LegacyAcl::decode(data) {
        let _ = (list.encode(), list.entries(&list.embedded), list.entries(data));
    }
    if let Ok(list) = PosixAcl::decode(data) {
        assert_eq!(PosixAcl::decode(&list.encode()).unwrap().encode(), list.encode());
        let _ = (list.mode(), list.is_equivalent_to_mode());
    }
}

fn system_attributes(data: &[u8]) {
    let Some((layout, buffer)) = data.split_at_checked(usize::from(data[0] & 31) + 1) else {
        return;
    };
    let known = [
        Attribute::Mode,
        Attribute::Size,
        Attribute::Parent,
        Attribute::AclEntries,
        Attribute::XattrList,
    ];
    let numbers: Vec<u16> = layout[1..].iter().map(|byte| u16::from(*byte & 31)).collect();
    let registry =
        cenote_format::sa::Attribute::ALL.iter().enumerate().map(|(number, attribute)| {
            let registration = attribute.default_registration().encode() & !0xffff;
            (attribute.name().as_bytes(), registration | number as u64)
        });
    let Ok(table) = AttributeTable::new(registry, [(2, numbers)]) else { return };
    let Ok(view) = table.view(buffer) else { return };
    for (number, value) in view.iter().flatten() {
        let _ = table.name(number);
        assert!(value.len() <= buffer.len());
    }
    for attribute in known {
        let _ = (view.raw(attribute), view.value(attribute), view.word(attribute));
        let _ = view.pair(attribute);
        if let Ok(Some(value)) = view.value(attribute) {
            let _ = NvList::decode(&value);
        }
    }
}

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Some((&choice, data)) = input.split_first().filter(|(_, data)| !data.is_empty()) else {
        return;
    };
    match choice % 3 {
        0 => access_lists(data),
        1 => system_attributes(data),
        _ => {
            if let Ok(znode) = Znode::decode(data) {
                let _ = (znode.encode(), znode.tail_target(data));
            }
            if let Some(word) = ByteOrder::Little.u64(data, 0) {
                let _ = directory_entry::EntryValue::decode(word).encode();
                assert_eq!(fuid::Fuid::decode(word).encode(), word);
            }
        }
    }
});
