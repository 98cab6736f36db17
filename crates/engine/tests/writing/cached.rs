//! What stays in memory of what was written.

use cenote_engine::object::{NewObject, Object};
use cenote_format::ObjectType;

use super::{layout, make, noise, nothing};

/// Bytes of a block.
const BLOCK: u64 = 128 << 10;
/// Blocks of the object.
const COUNT: u64 = 32;

#[test]
fn of_scattered_blocks_only_the_newest_stay() {
    let directory = tempfile::tempdir().unwrap();
    let live = make("cached", layout("stripe", directory.path()), nothing);
    let head = live.pool().catalog().head(&live.pool().catalog().root().unwrap()).unwrap();
    let dataset = live.open_dataset(&head).unwrap();
    let set = dataset.set();
    let weight = || live.pool().io().pipe.cache().weight();
    let write = |file: &Object, order: &mut dyn Iterator<Item = u64>, seed: u64| {
        for id in order {
            let tx = live.begin().unwrap();
            file.write(&tx, id * BLOCK, &noise(BLOCK as usize, seed * COUNT + id + 1)).unwrap();
        }
        live.sync().unwrap();
    };
    let tx = live.begin().unwrap();
    let new = NewObject::new(ObjectType::PLAIN_FILE, BLOCK);
    let file = set.create_object(&tx, &new).unwrap();
    drop(tx);
    let before = weight();
    write(&file, &mut (0..COUNT), 0);
    let streamed = weight() - before;
    assert!(streamed < COUNT / 2 * BLOCK, "a stream left {streamed} bytes");
    // Seven and the count have no factor in common.
    let mut scattered = (0..COUNT).map(|step| step * 7 % COUNT);
    write(&file, &mut scattered, 1);
    let kept = weight() - before;
    assert!(kept >= COUNT * BLOCK, "only {kept} bytes are kept");
    for seed in 2..6 {
        write(&file, &mut (0..COUNT).map(|step| step * 7 % COUNT), seed);
    }
    let later = weight() - before;
    assert!(later < kept + COUNT / 2 * BLOCK, "{kept} bytes became {later}");
    for id in 0..COUNT {
        let read = file.read_vec(id * BLOCK, BLOCK as usize).unwrap();
        assert!(read == noise(BLOCK as usize, 5 * COUNT + id + 1), "block {id}");
    }
}
