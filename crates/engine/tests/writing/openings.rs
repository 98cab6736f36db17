//! Opening pools that something was cut off in, or that others left: at a checkpoint, with a new guid, with features
//! nobody here knows, without what older software does not keep.
//!
//! Invariant: after a power cut at any moment a plain import finds a state that is whole.

use std::sync::Arc;

use cenote_device::{Keep, SimDevice};
use cenote_engine::pool::assemble::assemble;
use cenote_engine::pool::discover::{Opener, ScanOptions, scan};
use cenote_engine::pool::group::{LivePool, WriteOptions};
use cenote_engine::pool::{OpenOptions, Pool};
use cenote_engine::zap::{self, Zap};
use cenote_engine::{ErrorKind, Result};
use cenote_format::ObjectId;
use cenote_format::config::VdevKind;

use super::log::head;
use super::suspended::{Disks, object, stored};
use super::{census, noise};

/// The pool on these disks, opened with `options`.
fn open(disks: &Disks, options: OpenOptions) -> Result<Arc<LivePool>> {
    let opener: Arc<dyn Opener> = Arc::new(disks.clone());
    let pools = assemble(&scan(&opener, &ScanOptions::new(vec!["/sim".into()])));
    let options = OpenOptions { devices: Some(opener), ..options };
    LivePool::open(&pools[0], &options, WriteOptions::default())
}

/// The disks as a power cut right before event `order` would have left them.
fn cut(disks: &Disks, order: u64) -> Disks {
    let cut = |disk: &Arc<SimDevice>| Arc::new(disk.after_crash(order, &mut |_| Keep::All));
    Disks(disks.0.iter().map(|(path, disk)| (path.clone(), cut(disk))).collect())
}

#[test]
fn a_cut_while_a_pool_goes_back_to_its_checkpoint_leaves_one_of_both() {
    let (disks, live) = Disks::create(VdevKind::Mirror, 2);
    let object = object(&live);
    let (old, new) = (noise(2 << 20, 1), noise(2 << 20, 2));
    object.write(&live.begin().unwrap(), 0, &old).unwrap();
    // A log that the checkpoint has, and that goes on after it.
    let log = head(&live).log().unwrap().clone();
    log.append_later_write(&live.gate().begin_now().unwrap(), object.id().0, 0, 4096);
    log.commit(object.id().0).unwrap();
    live.sync().unwrap();
    live.take_checkpoint().unwrap();
    object.write(&live.begin().unwrap(), 0, &new).unwrap();
    log.append_later_write(&live.gate().begin_now().unwrap(), object.id().0, 4096, 4096);
    log.commit(object.id().0).unwrap();
    live.sync().unwrap();
    live.sync().unwrap();
    let id = object.id();
    drop((object, log));
    live.abandon();
    drop(live);

    disks.0.values().for_each(|disk| disk.record());
    let first = SimDevice::newest_order();
    let back = || open(&disks, OpenOptions { checkpoint: true, ..OpenOptions::default() }).unwrap();
    let live = back();
    let filler = super::suspended::object(&live);
    for round in 0..4 {
        // What came after the checkpoint is written over.
        filler.write(&live.begin().unwrap(), round << 22, &noise(4 << 20, round)).unwrap();
        live.sync().unwrap();
    }
    drop(filler);
    live.abandon();
    drop(live);
    let last = SimDevice::newest_order();
    let (mut before, mut after) = (0, 0);
    for order in (first..=last + 1).step_by(((last - first) / 40).max(1) as usize) {
        let left = cut(&disks, order);
        let live = open(&left, OpenOptions::default())
            .unwrap_or_else(|error| panic!("{order} of {first} to {last}: {error}"));
        census(live.pool());
        let found = stored(&live, id, 2 << 20);
        live.sync().unwrap();
        census(live.pool());
        assert!(found == old || found == new, "{order}: neither state");
        *(if found == old { &mut after } else { &mut before }) += 1;
        live.export().unwrap();
    }
    assert!(before > 0 && after > 20, "{before} {after}");
}

#[test]
fn a_cut_in_a_change_of_guid_leaves_a_pool_that_opens() {
    let (disks, live) = Disks::create(VdevKind::Mirror, 2);
    let object = object(&live);
    object.write(&live.begin().unwrap(), 0, &[3; 4096]).unwrap();
    live.sync().unwrap();
    disks.0.values().for_each(|disk| disk.record());
    let first = SimDevice::newest_order();
    live.reguid(None).unwrap();
    let last = SimDevice::newest_order();
    let id = object.id();
    drop(object);
    live.abandon();
    drop(live);
    for order in first..=last + 1 {
        let left = cut(&disks, order);
        let opener: Arc<dyn Opener> = Arc::new(left.clone());
        let pools = assemble(&scan(&opener, &ScanOptions::new(vec!["/sim".into()])));
        // Where one device has labels of the new guid only, it is told as another pool.
        let opened = pools.iter().find_map(|pool| {
            let options = OpenOptions { devices: Some(opener.clone()), ..OpenOptions::default() };
            LivePool::open(pool, &options, WriteOptions::default()).ok()
        });
        let live = opened.unwrap_or_else(|| panic!("{order} of {first} to {last}"));
        assert_eq!(stored(&live, id, 4096), [3; 4096]);
        live.export().unwrap();
    }
}

/// The object that the pool's directory has under `name`.
fn listed(pool: &Pool, name: &str) -> Option<ObjectId> {
    let mos = pool.mos();
    Zap::open(mos.object(ObjectId(1)).unwrap()).unwrap().lookup_u64(name).unwrap().map(ObjectId)
}

#[test]
fn what_keeps_something_of_all_writing_is_not_written_without_it() {
    let (disks, live) = Disks::create(VdevKind::File, 1);
    let features = listed(live.pool(), "features_for_write").unwrap();
    live.change(move |_, change| {
        zap::insert_u64(&change.mos.object(features)?, change.tx, "com.example:counts_all", 1)
    })
    .unwrap();
    live.export().unwrap();
    drop(live);
    let error = open(&disks, OpenOptions::default()).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("com.example:counts_all"), "{error}");
    let opener: Arc<dyn Opener> = Arc::new(disks.clone());
    let pools = assemble(&scan(&opener, &ScanOptions::new(vec!["/sim".into()])));
    Pool::open(&pools[0], &OpenOptions::default()).unwrap();
}

#[test]
fn vdevs_get_the_zaps_that_older_software_knows_nothing_of() {
    const MAP: &str = "com.delphix:vdev_zap_map";
    let (disks, live) = Disks::create(VdevKind::Mirror, 2);
    live.change(|_, change| {
        zap::remove(&change.mos.object(ObjectId(1))?, change.tx, MAP.as_bytes()).map(drop)
    })
    .unwrap();
    live.abandon();
    drop(live);
    let live = disks.reopen();
    let map = listed(live.pool(), MAP).unwrap();
    let mos = live.pool().mos();
    let zaps = Zap::open(mos.object(map).unwrap()).unwrap();
    assert_eq!(zaps.count().unwrap(), 3);
    let config = live.pool().config();
    assert!(config.has_per_vdev_zaps);
    let top = &config.vdev_tree.as_ref().unwrap().children()[0];
    let own = [top.top_zap, top.children()[0].leaf_zap, top.children()[1].leaf_zap];
    for zap in own {
        let zap = zap.unwrap();
        assert!(zaps.lookup(zap::int_name(zap.0).as_bytes()).unwrap().is_some(), "{zap}");
    }
    // What is kept there is.
    live.allocator().flush_all();
    live.sync().unwrap();
    live.export().unwrap();
    drop((zaps, mos, live));
    let live = disks.reopen();
    census(live.pool());
    assert_eq!(listed(live.pool(), MAP), Some(map));
    live.export().unwrap();
}
