//! What mirrors are for.
//!
//! Invariant: as in `super`.

use cenote_control::report::VdevState;

use super::super::breaking::{plug, unplug, zero};
use super::super::stage::{Stage, device, is_well};

/// One is lost and replaced.
pub fn replaced(stage: &mut Stage) -> Result<(), String> {
    stage.tell("Two disks hold the same. First a pool, and something in it.");
    stage.types("zpool create -R $R test mirror $D/disk0 $D/disk1")?;
    stage.fill("test", 24)?;
    stage.types("zpool status test")?;
    stage.happens("disk1 is gone: its cable fell out", |bench| unplug(bench, "disk1"))?;
    stage.write("test", 100_000, true)?;
    stage.types("zpool status test")?;
    stage.becomes("the pool is DEGRADED, and says which disk is gone", |report| {
        let gone = device(report, "disk1").is_some_and(|disk| disk.state != VdevState::Online);
        report.state == VdevState::Degraded && gone
    });
    stage.all_there("test");
    stage.tell(
        "Nothing is lost, but the next disk that fails takes everything along. A new disk takes the \
         place of the lost one; -w waits until it has everything.",
    );
    stage.types("zpool replace -w test $D/disk1 $D/disk2")?;
    stage.types("zpool status test")?;
    stage.becomes("the pool is ONLINE with disk0 and disk2", |report| {
        is_well(report) && device(report, "disk2").is_some() && device(report, "disk1").is_none()
    });
    stage.types("zpool scrub -w test")?;
    stage.becomes("a scrub finds nothing wrong", |report| {
        report.scan.as_ref().is_some_and(|scan| scan.errors == 0 && scan.processed == 0)
    });
    stage.all_there("test");
    Ok(())
}

/// One is written over.
pub fn zeroed(stage: &mut Stage) -> Result<(), String> {
    stage.tell("Somebody mistakes one disk for another, and writes zeros over all of it.");
    stage.types("zpool create -R $R test mirror $D/disk0 $D/disk1")?;
    stage.fill("test", 24)?;
    stage.types("zpool export test")?;
    stage.happens("dd if=/dev/zero of=disk0", |bench| zero(bench, "disk0"))?;
    stage.types("zpool import -d $D -R $R test")?;
    stage.types("zpool status test")?;
    stage.becomes("the pool is DEGRADED: disk0 has no label any more", |report| {
        report.state == VdevState::Degraded
    });
    stage.all_there("test");
    stage.tell("The disk itself is well. It takes its own place again.");
    let guid = stage.bench().report("test").and_then(|report| {
        let lost = report.root.children.iter().flat_map(|mirror| &mirror.children);
        let mut lost = lost.filter(|disk| disk.state != VdevState::Online);
        lost.next().map(|disk| disk.guid)
    });
    let name = guid.map_or_else(|| "$D/disk0".to_owned(), |guid| guid.to_string());
    stage.types(&format!("zpool replace -w -f test {name} $D/disk0"))?;
    stage.types("zpool status test")?;
    stage.becomes("the pool is ONLINE", is_well);
    stage.types("zpool scrub -w test")?;
    stage.becomes("a scrub finds nothing wrong", |report| {
        report.scan.as_ref().is_some_and(|scan| scan.errors == 0 && scan.processed == 0)
    });
    stage.all_there("test");
    Ok(())
}

/// Another one waits for that.
pub fn spare(stage: &mut Stage) -> Result<(), String> {
    stage.tell("A third disk waits in case one of the mirror is lost.");
    stage.types("zpool create -R $R test mirror $D/disk0 $D/disk1 spare $D/disk2")?;
    stage.fill("test", 12)?;
    stage.happens("disk1 is gone", |bench| unplug(bench, "disk1"))?;
    stage.write("test", 100_000, true)?;
    stage.tell("For ten seconds it could come back. Then the spare steps in by itself.");
    stage.becomes("the spare is in use, and has everything", |report| {
        let stands_in = device(report, "spare-1").is_some();
        let resilvered = report.scan.as_ref().is_some_and(|scan| scan.end_time > 0);
        stands_in && resilvered
    });
    stage.types("zpool status test")?;
    stage.happens("disk1 is plugged in again", |bench| plug(bench, "disk1"))?;
    stage.becomes("disk1 got what it missed, and the spare went back", |report| {
        is_well(report) && device(report, "spare-1").is_none()
    });
    stage.types("zpool status test")?;
    stage.all_there("test");
    Ok(())
}
