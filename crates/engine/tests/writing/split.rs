//! A device of every mirror becomes a pool of its own.
//!
//! Invariant: both pools hold all that was written before; a crash at any write leaves the old one with all of it.

use std::collections::BTreeSet;
use std::sync::Arc;

use cenote_device::SimDevice;
use cenote_engine::ErrorKind;
use cenote_engine::pool::OpenOptions;
use cenote_engine::pool::assemble::{PoolCandidate, assemble};
use cenote_engine::pool::change::SplitPlan;
use cenote_engine::pool::discover::{Opener, ScanOptions, scan};
use cenote_engine::pool::group::{LivePool, WriteOptions};
use cenote_engine::vdev::VdevState;
use cenote_format::Guid;
use cenote_format::config::{PoolState, VdevKind};

use super::census;
use super::scan::{copies_are_right, write};
use super::suspended::Disks;

fn guid_of(live: &LivePool, path: &str) -> Guid {
    let vdevs = live.vdevs();
    let found = vdevs.topology().root().devices().find(|leaf| leaf.path.as_deref() == Some(path));
    found.unwrap().guid
}

fn split(live: &Arc<LivePool>, devices: Vec<Guid>) -> cenote_engine::Result<()> {
    let plan = SplitPlan { name: "other".into(), devices, properties: Vec::new() };
    live.split(plan, &OpenOptions::default(), WriteOptions::default())
}

fn pools(disks: &Disks) -> Vec<PoolCandidate> {
    let opener: Arc<dyn Opener> = Arc::new(disks.clone());
    assemble(&scan(&opener, &ScanOptions::new(vec!["/sim".into()])))
}

fn try_open(disks: &Disks, name: &str) -> cenote_engine::Result<Arc<LivePool>> {
    let pools = pools(disks);
    let own = pools.iter().find(|pool| pool.name == name).unwrap();
    let options = OpenOptions { devices: Some(Arc::new(disks.clone())), ..OpenOptions::default() };
    LivePool::open(own, &options, WriteOptions::default())
}

fn open(disks: &Disks, name: &str) -> Arc<LivePool> {
    try_open(disks, name).unwrap()
}

#[test]
fn both_pools_hold_everything() {
    let (disks, live) = Disks::create(VdevKind::Mirror, 3);
    write(&live, 8, 1);
    let second = guid_of(&live, "/sim/1");
    split(&live, vec![second]).unwrap();
    assert!(live.vdevs().topology().find(second).is_none());
    write(&live, 4, 50);
    assert!(copies_are_right(&live));
    live.export().unwrap();
    drop(live);
    let names: Vec<String> = pools(&disks).into_iter().map(|pool| pool.name).collect();
    assert!(names.contains(&"tank".to_owned()) && names.contains(&"other".to_owned()), "{names:?}");
    for (name, devices) in [("tank", 2), ("other", 1)] {
        let live = open(&disks, name);
        assert_eq!(live.vdevs().topology().root().devices().count(), devices);
        assert_eq!(live.vdevs().condition().state, VdevState::Online);
        write(&live, 4, 90);
        assert!(copies_are_right(&live));
        live.export().unwrap();
        census(live.pool());
        drop(live);
        let live = open(&disks, name);
        assert!(live.pool().config().split_guid.is_none());
        live.export().unwrap();
    }
}

#[test]
fn a_pair_becomes_two_disks() {
    let (disks, live) = Disks::create(VdevKind::Mirror, 2);
    write(&live, 4, 1);
    split(&live, Vec::new()).unwrap();
    let kinds = |live: &LivePool| -> Vec<VdevKind> {
        live.vdevs().topology().root().walk().map(|node| node.kind).collect()
    };
    assert_eq!(kinds(&live), [VdevKind::Root, VdevKind::File]);
    live.export().unwrap();
    drop(live);
    for name in ["other", "tank"] {
        let live = open(&disks, name);
        assert_eq!(kinds(&live), [VdevKind::Root, VdevKind::File]);
        write(&live, 2, 5);
        assert!(copies_are_right(&live));
        live.export().unwrap();
        census(live.pool());
    }
}

#[test]
fn what_cannot_be_split_is_refused() {
    let (_, live) = Disks::create(VdevKind::Raidz, 3);
    let error = split(&live, Vec::new()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    live.export().unwrap();
    let (_, live) = Disks::create(VdevKind::Mirror, 3);
    let [one, two] = ["/sim/0", "/sim/1"].map(|path| guid_of(&live, path));
    assert_eq!(split(&live, vec![one, two]).unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(split(&live, vec![Guid(7)]).unwrap_err().kind(), ErrorKind::Unsupported);
    live.offline(two, true).unwrap();
    assert_eq!(split(&live, vec![two]).unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!(live.vdevs().topology().root().devices().count(), 3);
    live.export().unwrap();
}

#[test]
fn a_crash_leaves_the_old_pool_whole_or_both() {
    let (disks, live) = Disks::create(VdevKind::Mirror, 2);
    write(&live, 2, 1);
    disks.0.values().for_each(|disk| disk.record());
    let first = SimDevice::newest_order();
    split(&live, Vec::new()).unwrap();
    let last = SimDevice::newest_order();
    let (mut alone, mut both) = (0, 0);
    let spread = (first..=last).step_by(((last - first) / 24).max(1) as usize);
    // Towards the end the new pool is exported, and the old one does not know yet that the devices have left.
    let moments: BTreeSet<u64> = spread.chain(last.saturating_sub(40).max(first)..=last).collect();
    for order in moments {
        let cut = |disk: &Arc<SimDevice>| {
            Arc::new(disk.after_crash(order, &mut |_| cenote_device::Keep::All))
        };
        let after = Disks(disks.0.iter().map(|(path, disk)| (path.clone(), cut(disk))).collect());
        let found = pools(&after);
        let other = found.iter().find(|pool| pool.name == "other");
        let has_other = other.is_some();
        let is_exported = other.is_some_and(|other| other.state == PoolState::Exported);
        let live = open(&after, "tank");
        live.sync().unwrap();
        assert!(copies_are_right(&live), "{order}");
        let devices = live.vdevs().topology().root().devices().count();
        live.export().unwrap();
        census(live.pool());
        drop(live);
        match (devices, has_other) {
            (2, false) => alone += 1,
            (1 | 2, true) => {
                // Between its first labels and its first uberblock it is no pool yet, as in OpenZFS.
                let Ok(live) = try_open(&after, "other") else { continue };
                both += 1;
                assert!(devices == 1 || !is_exported, "{order}: the device is in both pools");
                assert!(copies_are_right(&live), "{order}");
                live.export().unwrap();
                census(live.pool());
            }
            odd => panic!("{order}: {odd:?}"),
        }
    }
    assert!(alone > 0 && both > 0, "{alone} {both}");
    live.export().unwrap();
}
