//! Devices that are away while a pool is written, and what is remembered of it.
//!
//! Invariant: everything is read right from the devices that were there, nothing is counted against
//! a device for what it is known to have missed, and what it missed is on the disks.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use cenote_device::Keep;
use cenote_engine::check::{CheckOptions, Verify, check as check_pool};
use cenote_engine::object::{NewObject, ObjectSet};
use cenote_engine::pool::group::LivePool;
use cenote_engine::vdev::{VdevState, VdevStatus};
use cenote_format::config::VdevKind;
use cenote_format::{ObjectId, ObjectType};

use super::log::{Target, head, reopen};
use super::suspended::{Disks, object};
use super::{census, layout, make, noise, nothing, zdb};

/// Checksum, read and write errors of all leaves.
fn errors(live: &LivePool) -> u64 {
    fn sum(status: &VdevStatus) -> u64 {
        let stats = &status.stats;
        let own = stats.checksum_errors + stats.read_errors + stats.write_errors;
        own + status.children.iter().map(sum).sum::<u64>()
    }
    sum(&live.vdevs().status().unwrap())
}

/// Writes an object of `len` bytes in a group of its own.
fn write(live: &Arc<LivePool>, len: usize, seed: u64) -> (ObjectId, Vec<u8>) {
    let dataset = head(live);
    let data = noise(len, seed);
    let id = {
        let tx = live.begin().unwrap();
        let new = NewObject::new(ObjectType::OTHER_U64, 128 << 10);
        let object = dataset.set().create_object(&tx, &new).unwrap();
        object.write(&tx, 0, &data).unwrap();
        object.id()
    };
    live.sync().unwrap();
    (id, data)
}

fn check(live: &LivePool, files: &[(ObjectId, Vec<u8>)]) {
    let catalog = live.pool().catalog();
    let head = catalog.head(&catalog.root().unwrap()).unwrap();
    let set = ObjectSet::open(live.pool().io(), head.phys.pointer, head.id.0, None).unwrap();
    for (id, data) in files {
        assert!(set.object(*id).unwrap().read_vec(0, data.len()).unwrap() == *data, "object {id}");
    }
}

fn swap(directory: &Path, from: &str, to: &str) {
    std::fs::rename(directory.join(from), directory.join(to)).unwrap();
}

#[test]
fn what_a_lost_device_missed_is_on_the_disks() {
    for (kind, lost) in [("mirror", "d1"), ("raidz1", "d0")] {
        let directory = tempfile::tempdir().unwrap();
        let away = tempfile::tempdir().unwrap();
        let hidden = away.path().join(lost);
        let live = make(kind, layout(kind, directory.path()), nothing);
        let mut files = vec![write(&live, 2 << 20, 1)];
        live.export().unwrap();
        drop(live);

        std::fs::copy(directory.path().join(lost), &hidden).unwrap();
        std::fs::remove_file(directory.path().join(lost)).unwrap();
        let live = reopen(directory.path());
        assert_eq!(live.vdevs().condition().state, VdevState::Degraded);
        let first = live.pool().uberblock().txg.0 + 1;
        for seed in 2..5 {
            files.push(write(&live, 1 << 20, seed));
        }
        let last = live.pool().uberblock().txg.0;
        let missed = live.vdevs().missed();
        assert_eq!(missed.len(), 1, "{kind}: {missed:?}");
        assert!((first..=last).all(|txg| missed[0].1.iter().any(|range| range.contains(&txg))));
        live.export().unwrap();
        drop(live);

        // Back again, with what it held then.
        std::fs::copy(&hidden, directory.path().join(lost)).unwrap();
        let live = reopen(directory.path());
        assert_eq!(live.vdevs().condition().state, VdevState::Degraded);
        live.vdevs().clear(None);
        assert_eq!(live.vdevs().condition().state, VdevState::Degraded);
        let known = live.vdevs().missed();
        assert_eq!(known.len(), 1, "{kind}: {known:?}");
        assert_eq!(known[0].0, missed[0].0);
        assert!((first..=last).all(|txg| known[0].1.iter().any(|range| range.contains(&txg))));
        check(&live, &files);
        census(live.pool());
        assert_eq!(errors(&live), 0, "{kind}");
        files.push(write(&live, 1 << 20, 9));
        // What it misses is kept, and not more.
        assert_eq!(live.vdevs().missed(), known);
        check(&live, &files);
        live.export().unwrap();
        drop(live);
        // zdb reads the stale copies as we do: whatever it finds right.
        zdb(directory.path(), kind);
        swap(directory.path(), lost, "other");
        let live = reopen(directory.path());
        check(&live, &files);
        live.export().unwrap();
    }
}

/// Bytes healed on all leaves.
fn healed(live: &LivePool) -> u64 {
    fn sum(status: &VdevStatus) -> u64 {
        status.stats.healed + status.children.iter().map(sum).sum::<u64>()
    }
    sum(&live.vdevs().status().unwrap())
}

/// Findings of a census that reads every copy.
fn findings(live: &LivePool) -> u64 {
    let options =
        CheckOptions { verify: Verify::Everything, every_copy: true, ..CheckOptions::default() };
    let report = check_pool(live.pool(), &options, &mut |_| ControlFlow::Continue(())).unwrap();
    report.findings_total
}

/// Fills the data area of `path` with noise.
fn spoil(path: &Path) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::options().write(true).open(path).unwrap();
    let length = file.metadata().unwrap().len();
    let (start, end) = (4 << 20, length - (1 << 20));
    let junk = noise(1 << 20, 77);
    for offset in (start..end).step_by(junk.len()) {
        file.write_all_at(&junk[..junk.len().min((end - offset) as usize)], offset).unwrap();
    }
    file.sync_all().unwrap();
}

#[test]
fn a_spoiled_side_is_healed_by_reading() {
    for (kind, spoiled) in [("mirror", "d0"), ("raidz1", "d1"), ("raidz2", "d3")] {
        let directory = tempfile::tempdir().unwrap();
        let live = make(kind, layout(kind, directory.path()), nothing);
        let files: Vec<_> = (1..4).map(|seed| write(&live, 3 << 20, seed)).collect();
        live.export().unwrap();
        drop(live);
        spoil(&directory.path().join(spoiled));
        let live = reopen(directory.path());
        // What reads meet is healed; what other sides gave instead, when every copy is read.
        check(&live, &files);
        let by_files = healed(&live);
        assert!(by_files > 0, "{kind}");
        findings(&live);
        assert!(healed(&live) > by_files, "{kind}");
        assert_eq!(findings(&live), 0, "{kind}");
        live.export().unwrap();
        drop(live);
        let live = reopen(directory.path());
        census(live.pool());
        assert!(errors(&live) == 0, "{kind}");
        live.export().unwrap();
        drop(live);
        zdb(directory.path(), kind);
        if kind == "mirror" {
            // The healed side alone holds everything.
            std::fs::remove_file(directory.path().join("d1")).unwrap();
            let live = reopen(directory.path());
            check(&live, &files);
            census(live.pool());
            live.export().unwrap();
        }
    }
}

/// One side of a mirror comes back as it was before the last synchronous write, which is in the
/// intent log and beside it; then the other side is lost.
#[test]
fn what_a_side_missed_of_the_log_is_made_good_or_noted() {
    for gone in [false, true] {
        let (disks, live) = Disks::create(VdevKind::Mirror, 2);
        let data = noise(200_000, 5);
        let file = object(&live);
        let (small, large) = (file.id(), object(&live).id());
        live.sync().unwrap();
        let dataset = head(&live);
        let (set, log) = (dataset.set(), dataset.log().unwrap());
        // The first one waits for a group that knows of the log.
        let tx = live.begin().unwrap();
        log.append_later_write(&tx, small.0, 0, 10);
        drop(tx);
        log.commit(small.0).unwrap();
        live.sync().unwrap();
        let synced = live.pool().uberblock().txg;
        let old = disks.disk(1).after_crash(u64::MAX, &mut |_| Keep::All);
        for (id, length) in [(small, 3000), (large, data.len())] {
            let tx = live.begin().unwrap();
            set.object(id).unwrap().write(&tx, 0, &data[..length]).unwrap();
            log.append_later_write(&tx, id.0, 0, length as u64);
            drop(tx);
            log.commit(id.0).unwrap();
        }
        drop((file, dataset));
        assert_eq!(live.abandon(), synced);
        drop(live);

        // It is stale, or it is away while the log is claimed and stale afterwards.
        let mut before = disks.clone();
        let path = before.0.keys().nth(1).unwrap().clone();
        match gone {
            true => drop(before.0.remove(&path)),
            false => drop(
                before.0.insert(path.clone(), Arc::new(old.after_crash(0, &mut |_| Keep::All))),
            ),
        }
        let live = before.reopen();
        live.sync().unwrap();
        let missed = live.vdevs().missed();
        live.abandon();
        drop(live);
        if gone {
            assert_eq!(missed.len(), 1, "{missed:?}");
            before.0.insert(path, Arc::new(old));
            let live = before.reopen();
            assert_eq!(live.vdevs().condition().state, VdevState::Degraded);
            assert_eq!(live.vdevs().missed(), missed);
            live.abandon();
            continue;
        }
        // Everything is on the side that was stale.
        let first = before.0.keys().next().unwrap().clone();
        before.0.remove(&first);
        let live = before.reopen();
        let dataset = head(&live);
        let (set, log) = (dataset.set(), dataset.log().unwrap());
        let target = Target { live: &live, set, log, names: Default::default() };
        let replayed = log.replay(&dataset.log_reader(), &target).unwrap();
        assert!(replayed.failure.is_none(), "{replayed:?}");
        for (id, length) in [(small, 3000), (large, data.len())] {
            assert!(set.object(id).unwrap().read_vec(0, length).unwrap() == data[..length]);
        }
        drop(dataset);
        live.abandon();
    }
}
