//! Pools made by the real OpenZFS module, read by the built `cenote` binary: every file of every
//! dataset must agree with the manifest made where the pool was made.
//!
//! Fixtures are `tests/fixtures/NAME` and, where present, `../shared/pools/NAME`. The trees are
//! listed by `tests/manifest.py`, the same script that listed the originals.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on has failed")]

#[allow(dead_code, reason = "others use the rest")]
#[path = "../../../engine/tests/hostile/bench.rs"]
mod bench;
#[allow(dead_code, reason = "others use the rest")]
#[path = "../../../engine/tests/hostile/image.rs"]
mod image;
mod loops;
mod old;
mod pools;
#[allow(dead_code, reason = "others use the rest")]
#[path = "../../../engine/tests/hostile/tally.rs"]
mod tally;
#[allow(dead_code, reason = "others use the rest")]
#[path = "../../../engine/tests/hostile/walk.rs"]
mod walk;

use pools::{Damage, Fixture, fixtures};

/// Every pool, undamaged, copied out without mounting.
#[test]
fn copied_trees_agree_with_their_manifests() {
    for fixture in fixtures() {
        let pool = fixture.unpack("copy");
        pool.check_copies(&fixture, "as it is");
    }
}

/// As many devices as the redundancy allows are taken away.
#[test]
fn trees_agree_with_devices_missing() {
    for fixture in fixtures() {
        for (index, victims) in fixture.expendable().into_iter().enumerate() {
            let pool = fixture.unpack(&format!("missing{index}"));
            pool.damage(&victims, Damage::Remove);
            pool.check_copies(&fixture, &format!("without {victims:?}"));
        }
    }
}

/// As many devices as the redundancy allows hold noise where their data was.
#[test]
fn trees_agree_with_devices_overwritten() {
    for fixture in fixtures() {
        for (index, victims) in fixture.expendable().into_iter().enumerate() {
            let pool = fixture.unpack(&format!("noise{index}"));
            pool.damage(&victims, Damage::Noise);
            pool.check_copies(&fixture, &format!("with noise on {victims:?}"));
        }
    }
}

/// Volumes hash as recorded.
#[test]
fn volumes_hash_as_recorded() {
    let mut seen = 0;
    for fixture in fixtures() {
        let Some(expected) = fixture.volume_hash() else { continue };
        let pool = fixture.unpack("volume");
        assert_eq!(pool.hash_volume(&fixture, "vol"), expected, "{}", fixture.name);
        seen += 1;
    }
    assert!(seen > 0, "no fixture has a volume");
}

/// Mounted through FUSE where that is possible, with every snapshot that has a manifest.
#[test]
fn mounted_trees_agree_with_their_manifests() {
    if let Err(reason) = pools::can_mount() {
        eprintln!("skipped: {reason}");
        return;
    }
    for fixture in fixtures() {
        let pool = fixture.unpack("mount");
        pool.check_mounted(&fixture);
    }
}

/// The fixtures are there at all.
#[test]
fn there_are_fixtures() {
    let names: Vec<String> = fixtures().into_iter().map(|f: Fixture| f.name).collect();
    assert!(names.len() >= 8, "{names:?}");
}
