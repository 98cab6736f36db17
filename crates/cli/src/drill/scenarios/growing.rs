//! More room.
//!
//! Invariant: as in `super`.

use super::super::stage::{Stage, device, is_well};

/// Bytes of the bigger disks.
const BIGGER: u64 = 256 << 20;

/// Two more disks, then bigger ones, disk by disk.
pub fn grow(stage: &mut Stage) -> Result<(), String> {
    stage.tell("A mirror of two small disks is nearly full.");
    stage.types("zpool create -R $R test mirror $D/disk0 $D/disk1")?;
    stage.fill("test", 48)?;
    let size = |stage: &Stage| stage.bench().report("test").map_or(0, |report| report.root.space);
    let before = size(stage);
    stage.tell("Another mirror beside it makes it twice as large, at once.");
    for disk in ["disk2", "disk3"] {
        stage.happens(&format!("a small disk is bought: {disk}"), |bench| {
            bench.make_disk(disk, super::SIZE)
        })?;
    }
    stage.types("zpool add test mirror $D/disk2 $D/disk3")?;
    stage.types("zpool list -v test")?;
    let after = size(stage);
    stage.check("the pool is twice as large", after >= before.saturating_mul(2) && before > 0);
    stage.tell("Or the small disks are replaced by bigger ones, one after the other.");
    for (old, new) in [("disk0", "disk4"), ("disk1", "disk5")] {
        stage.happens(&format!("a bigger disk is bought: {new}"), |bench| {
            bench.make_disk(new, BIGGER)
        })?;
        stage.types(&format!("zpool replace -w test $D/{old} $D/{new}"))?;
        stage.becomes(&format!("{new} has the place of {old}, and the pool is ONLINE"), |report| {
            is_well(report) && device(report, new).is_some() && device(report, old).is_none()
        });
    }
    stage.tell(
        "What is behind the old end of bigger disks waits under EXPANDSZ until somebody asks.",
    );
    stage.types("zpool list -v test")?;
    let before = size(stage);
    let waits = stage.bench().report("test").map_or(0, |report| report.root.expandable);
    stage.check("the pool could be larger", waits > 0);
    stage.types("zpool online -e test $D/disk5")?;
    stage.types("zpool list -v test")?;
    let after = size(stage);
    stage.check("the pool is larger by what waited", waits > 0 && after == before + waits);
    stage.tell("With autoexpand it asks nobody: the other two disks are replaced as well.");
    stage.types("zpool set autoexpand=on test")?;
    for (old, new) in [("disk2", "disk6"), ("disk3", "disk7")] {
        stage.happens(&format!("a bigger disk is bought: {new}"), |bench| {
            bench.make_disk(new, BIGGER)
        })?;
        stage.types(&format!("zpool replace -w test $D/{old} $D/{new}"))?;
    }
    stage.becomes("all disks are big, and so is the pool", |report| {
        is_well(report) && report.root.space > after && report.root.expandable == 0
    });
    stage.types("zpool list -v test")?;
    stage.types("zpool scrub -w test")?;
    stage.becomes("a scrub finds no errors", |report| report.error_count == 0);
    stage.all_there("test");
    Ok(())
}
