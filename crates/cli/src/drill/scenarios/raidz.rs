//! One parity, two disks gone.
//!
//! Invariant: as in `super`.

use cenote_control::report::VdevState;

use super::super::breaking::{plug, unplug};
use super::super::stage::{Stage, is_well};

/// Beyond the redundancy, and back.
pub fn one_too_many(stage: &mut Stage) -> Result<(), String> {
    stage.tell("A raidz1 of four disks can do without one of them, and no more.");
    stage.types("zpool create -R $R test raidz1 $D/disk0 $D/disk1 $D/disk2 $D/disk3")?;
    stage.fill("test", 24)?;
    stage.happens("disk3 is gone", |bench| unplug(bench, "disk3"))?;
    stage.write("test", 100_000, true)?;
    stage.becomes("the pool is DEGRADED and goes on", |report| {
        report.state == VdevState::Degraded && !report.suspended
    });
    stage.all_there("test");
    stage.types("zpool sync test")?;
    stage.happens("disk1 is gone, too: one too many", |bench| unplug(bench, "disk1"))?;
    // Whoever syncs waits until the disks are back: in the background.
    let writes = "head -c 300000 /dev/urandom > $R/test/meanwhile; zpool sync test";
    let waiting = stage.bench().shell(&format!("{{ {writes}; }} >/dev/null 2>&1")).spawn();
    let mut waiting = waiting.map_err(|error| format!("sh: {error}"))?;
    stage.becomes("the pool is suspended, and still answers", |report| report.suspended);
    stage.types("zpool status test")?;
    stage.tell(
        "Nothing that was acknowledged is lost: it waits. One of the two has to come back; with the \
         same content, in whatever port.",
    );
    stage.happens("disk1 is plugged in again", |bench| plug(bench, "disk1"))?;
    stage.types("zpool clear test")?;
    stage.becomes("the pool goes on", |report| !report.suspended);
    // It ends by itself now; how does not matter.
    drop(waiting.wait());
    stage.all_there("test");
    stage.happens("disk3 as well", |bench| plug(bench, "disk3"))?;
    stage.becomes("both get what they missed, and the pool is ONLINE", is_well);
    stage.types("zpool clear test")?;
    stage.types("zpool scrub -w test")?;
    stage.types("zpool status test")?;
    stage.becomes("a scrub finds no errors", |report| {
        report.error_count == 0 && report.scan.as_ref().is_some_and(|scan| scan.errors == 0)
    });
    stage.all_there("test");
    Ok(())
}
