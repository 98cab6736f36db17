//! Live sets against a model: bytes, holes, object numbers, two groups at once.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use cenote_format::config::{VdevConfig, VdevKind};
use cenote_format::objset::ObjsetKind;
use cenote_format::{ObjectId, ObjectType, Txg};
use proptest::prelude::*;

use super::*;
use crate::ErrorKind;
use crate::pipe::Pipe;
use crate::txg::Tx;
use crate::vdev::{LeafOpener, LeafUnavailable, VdevTree};

struct NoLeaves;

impl LeafOpener for NoLeaves {
    fn open(
        &self,
        _config: &VdevConfig,
    ) -> std::result::Result<Arc<dyn cenote_device::Device>, LeafUnavailable> {
        Err(LeafUnavailable::open_failed("none"))
    }
}

pub(crate) fn empty_set(kind: ObjsetKind) -> ObjectSet {
    let root = VdevConfig::placeholder(VdevKind::Root, 0);
    let tree = VdevTree::build(&root, Arc::new(NoLeaves)).unwrap();
    let pipe = Pipe::new(Arc::new(tree), 8 << 20);
    let io = Arc::new(PoolIo { pipe, prefetcher: crate::pipe::Prefetcher::new(0) });
    ObjectSet::new_live(&io, ReadContext { objset: 5, ..ReadContext::default() }, kind)
}

#[test]
fn objects_are_made_changed_and_freed() {
    let set = empty_set(ObjsetKind::Zfs);
    let tx = Tx::detached(Txg(7));
    let new = NewObject::new(ObjectType::PLAIN_FILE, 1024)
        .with_bonus(ObjectType::SYSTEM_ATTRIBUTES, vec![1, 2, 3]);
    let master = set.claim_object(&tx, ObjectId(1), &new).unwrap();
    assert_eq!(set.claim_object(&tx, ObjectId(1), &new).err().unwrap().kind(), ErrorKind::Exists);
    let file = set.create_object(&tx, &new).unwrap();
    assert_ne!(file.id(), master.id());
    assert_eq!(set.object(file.id()).unwrap().dnode().bonus(), [1, 2, 3]);
    file.set_bonus(&tx, ObjectType::SYSTEM_ATTRIBUTES, &[9; 100]).unwrap();
    assert_eq!(set.object(file.id()).unwrap().dnode().bonus(), [9; 100]);
    file.set_spill(&tx, Some(Bytes::from(vec![5; 512]))).unwrap();
    assert_eq!(file.spill().unwrap().unwrap(), vec![5; 512]);
    assert!(file.set_bonus(&tx, ObjectType::SYSTEM_ATTRIBUTES, &[9; 300]).is_err());
    file.set_spill(&tx, None).unwrap();
    assert_eq!(file.spill().unwrap(), None);
    file.set_bonus(&tx, ObjectType::SYSTEM_ATTRIBUTES, &[9; 300]).unwrap();
    set.free_object(&tx, file.id()).unwrap();
    assert_eq!(set.object(file.id()).err().unwrap().kind(), ErrorKind::NotFound);
    assert!(file.write(&tx, 0, b"x").is_err());
    let numbers: std::collections::BTreeSet<u64> =
        (0..100).map(|_| set.create_object(&tx, &new).unwrap().id().0).collect();
    assert_eq!(numbers.len(), 100);
    assert!(!numbers.contains(&1) && !numbers.contains(&0));
    let large = NewObject { slots: 16, ..new };
    for _ in 0..5 {
        let id = set.create_object(&tx, &large).unwrap().id().0;
        assert!(id % 32 <= 16 && !numbers.contains(&id), "{id}");
    }
}

#[test]
fn block_size_changes_keep_the_content() {
    let set = empty_set(ObjsetKind::Zfs);
    let tx = Tx::detached(Txg(7));
    let file = set.create_object(&tx, &NewObject::new(ObjectType::PLAIN_FILE, 512)).unwrap();
    file.write(&tx, 3, b"abc").unwrap();
    file.set_block_size(&tx, 4096).unwrap();
    assert_eq!(file.block_size(), 4096);
    let mut expected = vec![0; 4096];
    expected[3..6].copy_from_slice(b"abc");
    assert_eq!(file.read_block(0).unwrap(), expected);
    file.write(&tx, 4096, b"next").unwrap();
    assert!(file.set_block_size(&tx, 8192).is_err());
}

#[derive(Debug, Clone)]
enum Step {
    Write(u64, usize),
    Free(u64, u64),
    FreeToEnd(u64),
    NextGroup,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0u64..40_000, 1usize..9_000).prop_map(|(at, len)| Step::Write(at, len)),
        2 => (0u64..40_000, 1u64..20_000).prop_map(|(at, len)| Step::Free(at, len)),
        1 => (0u64..40_000).prop_map(Step::FreeToEnd),
        1 => Just(Step::NextGroup),
    ];
    prop::collection::vec(step, 1..24)
}

proptest! {
    #[test]
    fn reads_see_every_change(steps in steps()) {
        let set = empty_set(ObjsetKind::Zfs);
        let mut txg = 7;
        let tx = Tx::detached(Txg(txg));
        let file = set.create_object(&tx, &NewObject::new(ObjectType::PLAIN_FILE, 2048)).unwrap();
        let mut model = vec![0u8; 64 << 10];
        let mut stored: BTreeMap<u64, ()> = BTreeMap::new();
        for (number, step) in steps.into_iter().enumerate() {
            let tx = Tx::detached(Txg(txg));
            match step {
                Step::Write(at, len) => {
                    let data = vec![number as u8 + 1; len];
                    file.write(&tx, at, &data).unwrap();
                    model[at as usize..at as usize + len].copy_from_slice(&data);
                    for id in at / 2048..=(at + len as u64 - 1) / 2048 {
                        stored.insert(id, ());
                    }
                }
                Step::Free(at, len) => {
                    file.free_range(&tx, at, len).unwrap();
                    model[at as usize..(at + len) as usize].fill(0);
                    stored.retain(|id, _| id * 2048 < at || (id + 1) * 2048 > at + len);
                }
                Step::FreeToEnd(at) => {
                    file.free_range(&tx, at, u64::MAX).unwrap();
                    model[at as usize..].fill(0);
                    stored.retain(|id, _| id * 2048 < at);
                }
                Step::NextGroup => txg += 1,
            }
            prop_assert_eq!(&file.read_vec(0, model.len()).unwrap(), &model);
            let last = file.block_count();
            for id in 0..32 {
                let data = stored.keys().copied().find(|&stored| stored >= id);
                prop_assert_eq!(file.next_data_block(id).unwrap(), data);
                let hole = (id..last).find(|id| !stored.contains_key(id));
                prop_assert_eq!(file.next_hole_block(id).unwrap(), hole, "from {}", id);
            }
        }
    }
}
