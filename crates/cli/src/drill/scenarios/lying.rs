//! Hardware that lies.
//!
//! Invariant: as in `super`.

use cenote_control::faults::{ALWAYS, FaultAt, FaultKind};

use super::super::stage::{Stage, device, is_well};

/// Bits that are read wrong harm nothing.
pub fn scrub_of_death(stage: &mut Stage) -> Result<(), String> {
    stage.tell(
        "They say that a scrub with bad memory destroys a pool: every block is read wrong, and the \
         scrub 'repairs' all of it. Let us see. A lone disk, and every read of it has a bit wrong.",
    );
    stage.types("zpool create -R $R test $D/disk0")?;
    stage.fill("test", 24)?;
    stage.types("zpool export test")?;
    stage.types("zpool import -d $D -R $R test")?;
    stage.happens("from now on one of three reads of disk0 has a wrong bit", |bench| {
        bench.inject("disk0", FaultAt::Read, FaultKind::BitRead, ALWAYS / 3).map(|_| ())
    })?;
    stage.types("zpool scrub -w test")?;
    stage.types("zpool status test")?;
    stage.becomes("checksum errors are counted", |report| {
        device(report, "disk0").is_some_and(|disk| disk.checksum_errors > 0)
    });
    stage.happens("the memory is exchanged", |bench| bench.make_well("disk0"))?;
    stage.types("zpool clear test")?;
    stage.types("zpool scrub -w test")?;
    stage.types("zpool status test")?;
    stage.becomes(
        "a scrub finds nothing wrong: nothing was written that did not verify",
        |report| {
            let clean = report.scan.as_ref().is_some_and(|scan| scan.errors == 0);
            clean && report.error_count == 0 && is_well(report)
        },
    );
    stage.all_there("test");
    Ok(())
}

/// Bits that are written wrong, and writes that get there in part.
pub fn torn(stage: &mut Stage) -> Result<(), String> {
    stage.tell("One half of a mirror writes half of what it is given, or twists a bit of it.");
    stage.types("zpool create -R $R test mirror $D/disk0 $D/disk1")?;
    stage.happens("disk1 tears a third of its writes, and twists another", |bench| {
        bench.inject("disk1", FaultAt::Write, FaultKind::Torn, ALWAYS / 3)?;
        bench.inject("disk1", FaultAt::Write, FaultKind::BitWritten, ALWAYS / 3).map(|_| ())
    })?;
    stage.fill("test", 24)?;
    stage.types("zpool sync test")?;
    stage.happens("its firmware is mended", |bench| bench.make_well("disk1"))?;
    stage.types("zpool scrub -w test")?;
    stage.types("zpool status test")?;
    stage.becomes("the scrub repaired what disk1 has wrong, from disk0", |report| {
        let repaired = report.scan.as_ref().is_some_and(|scan| scan.processed > 0);
        repaired && device(report, "disk1").is_some_and(|disk| disk.checksum_errors > 0)
    });
    stage.types("zpool clear test")?;
    stage.types("zpool scrub -w test")?;
    stage.becomes("and another finds nothing", |report| {
        let clean = report.scan.as_ref();
        clean.is_some_and(|scan| scan.errors == 0 && scan.processed == 0) && is_well(report)
    });
    stage.all_there("test");
    Ok(())
}

/// What was synced is there.
pub fn power(stage: &mut Stage) -> Result<(), String> {
    stage.tell(
        "Both disks have a cache that forgets when the power fails. What a program was told is safe \
         (fsync) has to be there afterwards.",
    );
    stage.types("zpool create -R $R test mirror $D/disk0 $D/disk1")?;
    stage.fill("test", 8)?;
    stage.types("zpool sync test")?;
    stage.happens("both disks hold what is written until a flush", |bench| {
        for disk in ["disk0", "disk1"] {
            bench.inject(disk, FaultAt::Write, FaultKind::Held, ALWAYS)?;
        }
        Ok(())
    })?;
    for _ in 0..20 {
        stage.write("test", 200_000, true)?;
    }
    stage.happens("the power fails", |bench| bench.power_off())?;
    stage.types("zpool import -d $D -R $R test")?;
    stage.types("zpool status test")?;
    stage.all_there("test");
    stage.types("zpool scrub -w test")?;
    stage.becomes("a scrub finds nothing wrong", |report| {
        report.error_count == 0 && report.scan.as_ref().is_some_and(|scan| scan.errors == 0)
    });
    Ok(())
}
