//! Blocks of removed vdevs.

use cenote_format::config::{IndirectObjects, VdevKind};
use cenote_format::indirect_mapping::{MappingEntry, MappingHeader};
use cenote_format::space_map::{Action, Record, SpaceMapHeader, records};
use cenote_format::{Dva, ObjectId, ObjectType, Txg};

use super::rig::{ALL, Rig, disk};
use crate::alloc::store::OBSOLETE_MAP;
use crate::alloc::{HISTOGRAM, NewSpaceObject, OBSOLETE_COUNTS, SpaceSource, SpaceStore};
use crate::vdev::AllocationClass::Normal;

fn at(vdev: u32, offset: u64, asize: u64) -> Dva {
    Dva { vdev, offset, asize, gang: false }
}

/// Vdev 1 is removed: its first mebibyte lies in two pieces on vdev 0.
fn removed(features: &[&str]) -> (Rig, [Dva; 2]) {
    let mut rig = Rig::new(features, &[disk(1 << 30), disk(1 << 30)]);
    rig.allocator.set_passive(1, true);
    let first = rig.allocate(512 << 10).unwrap()[0];
    rig.allocate(4096).unwrap();
    let second = rig.allocate(512 << 10).unwrap()[0];
    rig.sync();
    let entry = |source, destination| MappingEntry { source, destination };
    let entries = [entry(0, first), entry(512 << 10, second)];
    let header = MappingHeader {
        max_offset: 1 << 20,
        bytes_mapped: 1 << 20,
        entries: 2,
        counts: Some(ObjectId(99)),
    };
    let mapping = rig
        .store
        .create(&NewSpaceObject {
            object_type: ObjectType(0xc3),
            block_size: 131_072,
            indirect_shift: 17,
            bonus_type: ObjectType(0xc3),
            bonus: header.encode(),
        })
        .unwrap();
    let data: Vec<u8> = entries.iter().flat_map(MappingEntry::encode).collect();
    rig.store.write(mapping, 0, &data).unwrap();
    rig.tops[1].kind = VdevKind::Indirect;
    let births = ObjectId(0);
    rig.tops[1].indirect = Some(IndirectObjects { mapping, births, previous: None });
    rig.reopen();
    (rig, [first, second])
}

#[test]
fn pieces_are_freed_where_they_lie() {
    let features = [ALL, &[OBSOLETE_COUNTS]].concat();
    let (mut rig, [first, second]) = removed(&features);
    let before = rig.allocator.figures().allocated(Normal);
    rig.allocator.free(&at(1, 256 << 10, 512 << 10), Txg(0), rig.txg).unwrap();
    assert!(rig.allocator.free(&at(1, 300 << 10, 4096), Txg(0), rig.txg).is_err());
    assert!(rig.allocator.free(&at(1, 2 << 20, 4096), Txg(0), rig.txg).is_err());
    assert!(rig.allocator.sync_done(rig.txg).is_err());
    rig.sync();
    assert_eq!(before - rig.allocator.figures().allocated(Normal), 512 << 10);
    rig.sync();
    rig.sync();
    let halves = [(first.offset + (256 << 10), 256 << 10), (second.offset, 256 << 10)];
    for (offset, length) in halves {
        assert!(rig.allocator.is_free(&at(0, offset, length)).unwrap());
    }
    assert!(!rig.allocator.is_free(&at(0, first.offset, 4096)).unwrap());
    rig.allocator.free(&at(1, 0, 4096), Txg(0), rig.txg).unwrap();
    rig.sync();
    rig.reopen();
    rig.allocator.free(&at(1, 1020 << 10, 4096), Txg(0), rig.txg).unwrap();
    rig.sync();
    let zap = rig.tops[1].top_zap.unwrap();
    let map = ObjectId(rig.store.zap_number(zap, OBSOLETE_MAP).unwrap().unwrap());
    let header = SpaceMapHeader::decode(&rig.store.bonus(map).unwrap()).unwrap();
    assert_eq!(header.allocated, (512 << 10) + 8192);
    let data = rig.store.read(map, 0, header.length as usize).unwrap();
    let mut found = Vec::new();
    for record in records(&data) {
        if let Record::Segment(segment) = record.unwrap() {
            assert_eq!(segment.action, Action::Allocate);
            found.push(segment.bytes(0, 0).unwrap());
        }
    }
    assert_eq!(found, [(256 << 10, 512 << 10), (0, 4096), (1020 << 10, 4096)]);
    let memory = rig.store.0.lock();
    let maps = memory.objects.values().filter(|object| object.bonus.len() == 320).count();
    assert_eq!(memory.features[HISTOGRAM], maps as i64);
    assert_eq!(memory.features[OBSOLETE_COUNTS], 1);
}

#[test]
fn a_vdev_that_goes_takes_nothing_and_leaves_nothing_behind() {
    let mut rig = Rig::new(ALL, &[disk(1 << 30), disk(1 << 30)]);
    rig.allocator.set_passive(0, true);
    let [copied, forgotten] = [rig.allocate(8192).unwrap()[0], rig.allocate(4096).unwrap()[0]];
    assert_eq!((copied.vdev, forgotten.vdev), (1, 1));
    rig.allocator.set_passive(0, false);
    rig.sync();
    rig.allocator.begin_removing(1);
    rig.allocator.set_passive(1, false);
    let entry = |of: Dva| {
        let destination = rig.allocate(of.asize).unwrap()[0];
        assert_eq!(destination.vdev, 0);
        MappingEntry { source: of.offset, destination }
    };
    let behind = |rig: &Rig| rig.allocator.left_behind().unwrap().map(|(start, end)| end - start);
    assert_eq!(behind(&rig), Some(12288));
    rig.allocator.note_moved(&[entry(copied)]).unwrap();
    assert_eq!(behind(&rig), Some(12288));
    rig.allocator.note_moved(&[entry(forgotten)]).unwrap();
    assert_eq!(behind(&rig), None);
}

#[test]
fn without_the_feature_nothing_is_noted() {
    let (mut rig, _) = removed(ALL);
    rig.allocator.free(&at(1, 0, 1 << 20), Txg(0), rig.txg).unwrap();
    rig.sync();
    assert_eq!(rig.allocator.figures().allocated(Normal), 4096);
    let zap = rig.tops[1].top_zap.unwrap();
    assert_eq!(rig.store.zap_number(zap, OBSOLETE_MAP).unwrap(), None);
}
