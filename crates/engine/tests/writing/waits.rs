//! What the writer of groups waits for, counted.
//!
//! Invariant: a group waits once for its blocks and flushes twice, before its uberblock and after it,
//! however many datasets it writes and however often it writes its own metadata anew.

use std::sync::Arc;

use cenote_device::SimEvent;
use cenote_engine::dataset::change::NewDataset;
use cenote_engine::object::{NewObject, Object};
use cenote_engine::pool::group::LivePool;
use cenote_format::ObjectType;
use cenote_format::config::VdevKind;
use cenote_format::objset::ObjsetKind;

use super::suspended::Disks;
use super::{census, noise, nothing};

/// An object in each of `count` new filesystems.
pub(super) fn objects(live: &Arc<LivePool>, count: usize) -> Vec<Object> {
    let parent = live.pool().catalog().root().unwrap().id;
    let made = live.change(move |live, change| {
        for number in 0..count {
            let name = format!("d{number}");
            let new = NewDataset { parent, name: &name, ..NewDataset::default() };
            live.make_dataset(change, &new, ObjsetKind::Zfs, nothing)?;
        }
        Ok(())
    });
    made.unwrap();
    let object = |number| {
        let dataset = live.pool().catalog().dataset_named(&format!("tank/d{number}")).unwrap();
        let set = live.open_dataset(&dataset).unwrap();
        let tx = live.begin().unwrap();
        let new = NewObject::new(ObjectType::OTHER_U64, 4096);
        set.set().create_object(&tx, &new).unwrap()
    };
    (0..count).map(object).collect()
}

#[test]
fn a_group_waits_once_however_many_datasets_are_dirty() {
    for count in [1, 20] {
        let (disks, live) = Disks::create(VdevKind::Mirror, 2);
        let objects = objects(&live, count);
        for round in 0..5 {
            // The last rounds are counted: the first ones also write labels and free what was made.
            let counted = round > 1;
            let disk = disks.disk(0);
            live.sync().unwrap();
            disk.record();
            let (waits, synced) = (live.write_waits(), live.gate().figures().synced);
            {
                let tx = live.begin().unwrap();
                for (seed, object) in (round..).zip(&objects) {
                    object.write(&tx, 0, &noise(40 << 10, seed)).unwrap();
                }
            }
            live.sync().unwrap();
            if !counted {
                continue;
            }
            let groups = live.gate().figures().synced.0 - synced.0;
            let flushes = disk.recorded();
            let flushes = flushes.iter().filter(|done| matches!(done.event, SimEvent::Flush));
            assert_eq!(live.write_waits() - waits, groups, "{count} datasets, {groups} groups");
            assert_eq!(flushes.count() as u64, 2 * groups, "{count} datasets, {groups} groups");
        }
        census(live.pool());
        live.export().unwrap();
    }
}
