//! Changes of parts of blocks over what was read before their transaction began.
//!
//! Invariant: what was read stays true while groups get to the disks and blocks leave the cache; nothing
//! is read once the transaction has begun.

use std::sync::Arc;

use cenote_engine::object::{NewObject, Object};
use cenote_engine::pool::group::LivePool;
use cenote_format::ObjectType;
use cenote_format::config::VdevKind;

use super::log::head;
use super::suspended::{Disks, stored};
use super::{census, noise};

/// Bytes of a block.
const BLOCK: usize = 16 << 10;

struct Case {
    disks: Disks,
    live: Arc<LivePool>,
    object: Object,
    model: Vec<u8>,
}

impl Case {
    /// An object of `length` bytes that are in the open group.
    fn new(length: usize) -> Self {
        let (disks, live) = Disks::create(VdevKind::File, 1);
        let dataset = head(&live);
        let new = NewObject::new(ObjectType::OTHER_U64, BLOCK as u64);
        let tx = live.begin().unwrap();
        let object = dataset.set().create_object(&tx, &new).unwrap();
        let model = noise(length, 1);
        object.write(&tx, 0, &model).unwrap();
        drop(tx);
        Self { disks, live, object, model }
    }

    /// Everything gets to the disks and out of the cache.
    fn settle(&self) {
        self.live.sync().unwrap();
        let cache = self.live.pool().io().pipe.cache();
        let limit = cache.limit();
        cache.set_limit(0);
        cache.set_limit(limit);
    }

    /// Does `change` without reading anything, then checks what came of it.
    fn check(mut self, change: impl FnOnce(&LivePool, &Object), model: impl FnOnce(&mut Vec<u8>)) {
        let before = self.disks.disk(0).counts().0;
        change(&self.live, &self.object);
        assert_eq!(self.disks.disk(0).counts().0, before, "something was read");
        model(&mut self.model);
        let length = self.model.len();
        assert!(self.object.read_vec(0, length).unwrap() == self.model);
        self.live.sync().unwrap();
        assert!(stored(&self.live, self.object.id(), length) == self.model);
        census(self.live.pool());
        self.live.export().unwrap();
    }
}

#[test]
fn what_was_read_for_a_change_outlives_group_and_cache() {
    // Read while its group is open, while it is on the disks, and while a later group changes it.
    for age in 0..3 {
        let prepared = |length: usize| {
            let case = Case::new(length);
            if age > 0 {
                case.settle();
            }
            if age > 1 {
                let tx = case.live.begin().unwrap();
                case.object.write(&tx, 0, &case.model[..BLOCK / 2]).unwrap();
            }
            case
        };
        let at = 5 * BLOCK - 100;
        let case = prepared(8 * BLOCK);
        let base = case.object.base_to_write(at as u64, 200).unwrap();
        case.settle();
        let data = noise(200, 2);
        let write = |live: &LivePool, object: &Object| {
            let tx = live.begin().unwrap();
            object.write_over(&tx, at as u64, &data, base).unwrap();
        };
        case.check(write, |model| model[at..at + 200].copy_from_slice(&data));

        let (from, to) = (BLOCK + 10, 3 * BLOCK + 20);
        let case = prepared(8 * BLOCK);
        let base = case.object.base_to_free(from as u64, (to - from) as u64).unwrap();
        case.settle();
        let free = |live: &LivePool, object: &Object| {
            let tx = live.begin().unwrap();
            object.free_over(&tx, from as u64, (to - from) as u64, base).unwrap();
        };
        case.check(free, |model| model[from..to].fill(0));

        let case = prepared(BLOCK);
        let mut base = case.object.base_to_resize().unwrap();
        case.settle();
        let grow = |live: &LivePool, object: &Object| {
            let tx = live.begin().unwrap();
            object.resize_over(&tx, 4 * BLOCK as u64, &mut base).unwrap();
            object.write_over(&tx, 2 * BLOCK as u64, &data, base).unwrap();
        };
        case.check(grow, |model| {
            model.resize(2 * BLOCK, 0);
            model.extend_from_slice(&data);
        });
    }
}

#[test]
fn what_a_transaction_has_freed_does_not_come_back() {
    let case = Case::new(BLOCK);
    case.settle();
    let base = case.object.base_to_write(10, 10).unwrap();
    let change = |live: &LivePool, object: &Object| {
        let tx = live.begin().unwrap();
        object.free_range(&tx, 0, u64::MAX).unwrap();
        object.write_over(&tx, 10, &[7; 10], base).unwrap();
    };
    case.check(change, |model| {
        model.fill(0);
        model[10..20].fill(7);
    });
}
