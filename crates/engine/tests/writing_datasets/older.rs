//! Pools that were made before version 26 and upgraded: their deadlists are plain lists.
//!
//! Invariant: they are written like any other; `zdb` finds neither leaks nor wrong sums in them.

use cenote_engine::Result;
use cenote_engine::dataset::Table;
use cenote_engine::dataset::change::{MosChange, NewDataset};
use cenote_engine::object::NewObject;
use cenote_format::bpobj::BpobjHeader;
use cenote_format::{ObjectId, ObjectType};

use super::World;

/// Gives the deadlist of a dataset the old form.
fn age(change: &MosChange<'_>, dataset: ObjectId) -> Result<()> {
    let mut phys = change.dataset(dataset)?;
    let new = NewObject::new(ObjectType::BPOBJ, 128 << 10)
        .with_bonus(ObjectType::BPOBJ_HEADER, BpobjHeader::new(32).encode());
    let list = change.mos.create_object(change.tx, &new)?.id();
    for (_, part) in Table::open(change.mos, phys.deadlist)?.unwrap().numbers()? {
        let (part, mut entries) = (ObjectId(part), Vec::new());
        let mut budget = u64::MAX;
        change.drain_list(part, &mut budget, &mut |pointer, _| {
            entries.push((*pointer, false));
            Ok(())
        })?;
        change.append_to_list(list, &entries)?;
        change.mos.free_object(change.tx, part)?;
    }
    change.mos.free_object(change.tx, phys.deadlist)?;
    phys.deadlist = list;
    change.mos.object(dataset)?.set_bonus(change.tx, ObjectType::DSL_DATASET, &phys.encode())
}

#[test]
fn plain_deadlists_are_kept_up() {
    let world = World::new(&["empty_bpobj"]);
    world.filesystem("a");
    let object = world.write("p/a", 1, 400_000);
    world.snapshot("p/a", "one");
    world.overwrite("p/a", object, 100_000, 2, 50_000);
    world.snapshot("p/a", "two");
    world.overwrite("p/a", object, 200_000, 3, 50_000);
    world.live.sync().unwrap();
    world.close("p/a");
    let [head, one, two] = ["p/a", "p/a@one", "p/a@two"].map(|name| world.id(name));
    world.change(move |change| [head, one, two].iter().try_for_each(|id| age(change, *id)));
    world.census();
    world.overwrite("p/a", object, 0, 4, 50_000);
    world.overwrite("p/a", object, 110_000, 5, 20_000);
    world.census();
    let parent = world.live.pool().catalog().root().unwrap().id;
    world.change(move |change| {
        let new = NewDataset { parent, name: "c", origin: Some(two), ..NewDataset::default() };
        change.create_dataset(&new).map(|_| ())
    });
    world.overwrite("p/c", object, 300_000, 6, 50_000);
    world.snapshot("p/a", "three");
    world.overwrite("p/a", object, 0, 7, 100_000);
    world.census();
    world.close("p/c");
    world.close("p/a");
    let clone = world.id("p/c");
    world.change(move |change| change.promote(clone));
    world.census();
    world.change(move |change| change.promote(head));
    world.change(move |change| change.destroy_head(clone));
    world.census();
    world.change(move |change| change.destroy_snapshot(two, false));
    world.census();
    world.change(move |change| change.rollback(head));
    world.census();
    world.overwrite("p/a", object, 0, 8, 60_000);
    world.live.sync().unwrap();
    world.close("p/a");
    world.change(move |change| change.destroy_snapshot(one, false));
    world.census();
    world.survey("a pool that was upgraded");
    world.finish();
}
