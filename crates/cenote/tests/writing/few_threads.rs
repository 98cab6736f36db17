//! A pool whose process may not start threads.
//!
//! Invariant: it gets slower, is not suspended, and lives on.

use std::fs::File;
use std::io::Write;
use std::time::{Duration, Instant};

use super::little_memory::{Group, import_into};
use super::{Bench, noise};

/// Who writes at once.
const WRITERS: u32 = 60;
/// Threads that may be started besides those of a pool that rests.
const MORE: u64 = 3;
/// In which idle threads leave.
const IDLE: Duration = Duration::from_secs(12);

#[test]
fn a_pool_with_few_threads_goes_on() {
    let Some((bench, devices)) = Bench::mounting(1) else { return };
    let files = [("pids", "pids.max"), ("", "pids.max")];
    let Some(group) = Group::limited("threads", &files, "max") else { return };
    bench.create(&[&devices[0]]);
    let pid = import_into(&group, &bench);
    std::thread::sleep(IDLE);
    let current = std::fs::read_to_string(group.file("pids.current")).unwrap();
    let most = current.trim().parse::<u64>().unwrap() + MORE;
    std::fs::write(group.file("pids.max"), most.to_string()).unwrap();

    let place = |writer: u32| bench.at("mnt/tank").join(format!("w{writer}"));
    let begin = Instant::now();
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let path = place(writer);
            scope.spawn(move || {
                let mut file = File::create(path).unwrap();
                file.write_all(&noise(100_000, writer)).unwrap();
                file.sync_all().unwrap();
            });
        }
        // On a busy machine not all of them have their answer in time.
        for _ in 0..20 {
            scope.spawn(|| drop(bench.output(&["zpool", "status", "tank"])));
        }
    });
    let took = begin.elapsed();
    assert!(took < Duration::from_secs(40), "{took:?}");
    let log = std::fs::read_to_string(bench.at("run/tank.log")).unwrap();
    assert!(!log.contains("suspended"), "{log}");
    // Where none at all can be started who looks has no answer, but the pool lives.
    let current = std::fs::read_to_string(group.file("pids.current")).unwrap();
    std::fs::write(group.file("pids.max"), current).unwrap();
    std::thread::scope(|scope| {
        (0..8).for_each(|_| drop(scope.spawn(|| bench.output(&["zpool", "list", "tank"]))));
    });
    std::fs::write(group.file("pids.max"), "max").unwrap();
    bench.cenote(&["zpool", "list", "tank"]);
    assert_eq!(std::fs::read_to_string(bench.at("run/tank.pid")).unwrap(), pid);
    for writer in 0..WRITERS {
        assert!(std::fs::read(place(writer)).unwrap() == noise(100_000, writer), "w{writer}");
    }
    bench.cenote(&["zpool", "export", "tank"]);
    bench.zdb();
}
