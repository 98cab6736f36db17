//! RAID-Z vdevs are spread over one device more in a pool in use.
//!
//! Invariant: at every moment, also after a crash, everything written is there and nothing leaks, in our
//! own census and in `zdb`'s.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cenote_device::{Health, SimDevice};
use cenote_engine::object::NewObject;
use cenote_engine::pool::OpenOptions;
use cenote_engine::pool::change::{Newcomer, create};
use cenote_engine::pool::discover::Opener;
use cenote_engine::pool::group::{LivePool, WriteOptions};
use cenote_engine::vdev::{AllocationClass, LeafUnavailable};
use cenote_engine::{ErrorKind, Result};
use cenote_format::config::{VdevConfig, VdevKind};
use cenote_format::{Guid, ObjectType};

use super::evacuation::Files;
use super::log::{head, try_reopen};
use super::suspended::Disks;
use super::{SIZE, census, devices, leaf, noise, nothing, open_leaf, plan, top};

/// Runs a tool of OpenZFS 2.3, where that is unpacked: the one installed does not know the feature.
const NEWER_TOOL: &str = "/opt/openzfs-2.3/run";

/// So that an expansion takes many groups.
pub(super) fn slowly() -> WriteOptions {
    WriteOptions { copied_at_once: Some(4 << 20), ..WriteOptions::default() }
}

pub(super) fn pool(name: &str, directory: &Path, (parity, count): (u64, usize)) -> Arc<LivePool> {
    let tops = vec![(
        top(VdevKind::Raidz, Some(parity), devices(directory, count)),
        AllocationClass::Normal,
    )];
    let mut plan = plan(name, tops);
    plan.features.push("raidz_expansion".into());
    create(plan, Arc::new(open_leaf), &OpenOptions::default(), slowly(), nothing).unwrap()
}

pub(super) fn reopen(directory: &Path, write: WriteOptions) -> Arc<LivePool> {
    // What an expansion ends with, a scrub, may still be reading by the pool before.
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        match try_reopen(directory, write) {
            Err(error) if error.kind() == ErrorKind::Busy && Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(20));
            }
            opened => return opened.unwrap(),
        }
    }
}

fn raidz(live: &LivePool) -> Guid {
    live.vdevs().topology().tops()[0].guid
}

/// Attaches a new file to the pool's first vdev.
pub(super) fn attach(live: &LivePool, directory: &Path, name: &str) -> Result<()> {
    let path = directory.join(name);
    std::fs::File::create(&path).unwrap().set_len(SIZE).unwrap();
    let newcomer = Newcomer {
        beside: raidz(live),
        leaf: leaf(&path),
        replaces: false,
        goes_back: false,
        sequential: false,
    };
    live.take_in(newcomer, Arc::new(open_leaf))
}

/// What OpenZFS 2.3 finds wrong.
pub(super) fn zdb(directory: &Path, name: &str) {
    let mut command = Command::new(NEWER_TOOL);
    // It ends when it is done (`tests/oracles`).
    command.envs(std::env::var_os("ZDB_PRELOAD").map(|it| ("LD_PRELOAD", it)));
    let command = command.args(["zdb", "-e", "-bcc", "-p"]).arg(directory).arg(name);
    let Ok(output) = command.output() else {
        eprintln!("skipped: OpenZFS 2.3 is not there");
        return;
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("No leaks"), "{text}");
    assert!(!text.contains("error") && !text.contains("mismatch"), "{text}");
}

pub(super) fn is_expanding(live: &LivePool) -> bool {
    live.vdevs().expanding().is_some()
}

pub(super) fn until(what: &str, done: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn size(live: &LivePool) -> u64 {
    live.allocator().figures().tops.iter().map(|top| top.size).sum()
}

#[test]
fn raidz_grows_by_one_device_after_another_while_files_change() {
    for (parity, count) in [(1, 3), (2, 3), (3, 5)] {
        let directory = tempfile::tempdir().unwrap();
        let name = format!("wide{parity}");
        let live = pool(&name, directory.path(), (parity, count));
        let mut files = Files::new();
        let dataset = head(&live);
        let set = dataset.set();
        for _ in 0..3 {
            files.write(&live, set, 25);
            live.sync().unwrap();
            files.churn(&live, set, 8);
        }
        live.sync().unwrap();
        for round in 0..2 {
            let before = size(&live);
            attach(&live, directory.path(), &format!("more{round}")).unwrap();
            let again = attach(&live, directory.path(), "other").unwrap_err();
            let early = !is_expanding(&live);
            assert!(early || again.reason() == "raidz expansion in progress", "{again}");
            std::fs::remove_file(directory.path().join("other")).unwrap();
            assert!(live.take_checkpoint().is_err() || !is_expanding(&live));
            let mut groups = 0;
            while is_expanding(&live) {
                files.churn(&live, set, 3);
                files.write(&live, set, 2);
                live.sync().unwrap();
                if groups % 8 == 0 {
                    let _held = live.allocator().hold_all();
                    census(live.pool());
                    files.check(&live);
                }
                groups += 1;
            }
            assert!(groups > 0);
            live.sync().unwrap();
            assert!(size(&live) > before, "{} {before}", size(&live));
            census(live.pool());
            files.check(&live);
            // New blocks are as wide as the vdev.
            files.write(&live, set, 20);
            (0..4).for_each(|_| live.sync().unwrap());
            files.write(&live, set, 20);
            files.churn(&live, set, 20);
            live.sync().unwrap();
            files.check(&live);
        }
        assert_eq!(live.vdevs().topology().tops()[0].raidz_expand_txgs.as_ref().unwrap().len(), 2);
        drop(dataset);
        live.export().unwrap();
        drop(live);
        zdb(directory.path(), &name);
        let live = reopen(directory.path(), slowly());
        files.check(&live);
        census(live.pool());
        live.export().unwrap();
    }
}

/// Groups that are under way when an expansion ends are laid out as before: that is what their blocks cost, and what
/// has to be promised for them (the engine compares both).
#[test]
fn what_is_written_when_an_expansion_ends_costs_what_was_promised() {
    let directory = tempfile::tempdir().unwrap();
    let live = pool("promised", directory.path(), (1, 3));
    let dataset = head(&live);
    attach(&live, directory.path(), "more").unwrap();
    until("the expansion ends", || live.sync().is_ok() && !is_expanding(&live));
    for number in 0..5 {
        let mebibyte = noise(1 << 20, number);
        let tx = live.begin().unwrap();
        let file = NewObject::new(ObjectType::OTHER_U64, 128 << 10);
        let file = dataset.set().create_object(&tx, &file).unwrap();
        drop(tx);
        for at in 0..12 {
            file.write(&live.begin().unwrap(), at << 20, &mebibyte).unwrap();
        }
        live.sync().unwrap();
    }
    drop(dataset);
    live.export().unwrap();
}

#[test]
fn an_expansion_goes_on_where_the_pool_was_left() {
    let directory = tempfile::tempdir().unwrap();
    let mut live = pool("left", directory.path(), (1, 3));
    let mut files = Files::new();
    {
        let dataset = head(&live);
        files.write(&live, dataset.set(), 60);
        live.sync().unwrap();
    }
    attach(&live, directory.path(), "more").unwrap();
    let mut left = 0;
    for moment in 0..40 {
        let moved = live.pool().uberblock().reflow.offset();
        let wanted = moved + 1;
        if !is_expanding(&live) {
            break;
        }
        until("something is moved", || {
            !is_expanding(&live) || live.pool().uberblock().reflow.offset() >= wanted
        });
        left += 1;
        if moment % 2 == 0 {
            live.abandon();
        } else {
            live.export().unwrap();
        }
        drop(live);
        if moment < 2 || moment == 5 {
            zdb(directory.path(), "left");
        }
        live = reopen(directory.path(), slowly());
        files.check(&live);
        let dataset = head(&live);
        files.churn(&live, dataset.set(), 5);
        files.write(&live, dataset.set(), 2);
        live.sync().unwrap();
    }
    assert!(left > 3, "{left}");
    until("the expansion ends", || !is_expanding(&live));
    live.sync().unwrap();
    files.check(&live);
    census(live.pool());
    live.export().unwrap();
    drop(live);
    zdb(directory.path(), "left");
}

#[test]
fn what_cannot_be_expanded_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let tops = super::layout("raidz1", directory.path());
    let old = super::make("old", tops, nothing);
    let error = attach(&old, directory.path(), "more").unwrap_err();
    let words = "raidz_expansion feature must be enabled in order to attach a device to raidz";
    assert_eq!((error.kind(), error.reason()), (ErrorKind::Unsupported, words));
    old.export().unwrap();

    let directory = tempfile::tempdir().unwrap();
    let live = pool("refused", directory.path(), (1, 3));
    let before = live.vdevs().topology().root().clone();
    let path = directory.path().join("small");
    std::fs::File::create(&path).unwrap().set_len(SIZE / 2).unwrap();
    let beside = raidz(&live);
    let newcomer = |path: &Path| Newcomer {
        beside,
        leaf: leaf(path),
        replaces: false,
        goes_back: false,
        sequential: false,
    };
    let error = live.take_in(newcomer(&path), Arc::new(open_leaf)).unwrap_err();
    assert_eq!(error.reason(), "device is too small");
    let gone = directory.path().join("gone");
    assert!(live.take_in(newcomer(&gone), Arc::new(open_leaf)).is_err());
    let child = live.vdevs().topology().tops()[0].children()[0].guid;
    let beside_child = Newcomer { beside: child, ..newcomer(&path) };
    let error = live.take_in(beside_child, Arc::new(open_leaf)).unwrap_err();
    assert_eq!(error.reason(), "can only attach to mirrors and top-level disks");
    live.offline(child, true).unwrap();
    let error = attach(&live, directory.path(), "more").unwrap_err();
    assert_eq!(error.reason(), "raidz vdev has devices that are are offline or being replaced");
    live.online(child).unwrap();
    until("the device is whole", || {
        live.sync().unwrap();
        live.vdevs().missed().is_empty()
    });
    live.take_checkpoint().unwrap();
    assert_eq!(attach(&live, directory.path(), "more").unwrap_err().reason(), "checkpoint exists");
    live.discard_checkpoint().unwrap();
    assert_eq!(live.vdevs().topology().root().guid_sum(), before.guid_sum());
    // An order that fails in its middle leaves nothing behind.
    until("the checkpoint is gone", || {
        live.sync().unwrap();
        live.pool().space().unwrap().checkpoint.is_none()
    });
    for step in 1..60 {
        live.fail_order_at(step);
        let done = attach(&live, directory.path(), "more");
        live.fail_order_at(0);
        if done.is_ok() {
            break;
        }
        assert_eq!(live.vdevs().topology().root().guid_sum(), before.guid_sum(), "step {step}");
    }
    until("the expansion ends", || !is_expanding(&live));
    live.export().unwrap();
    drop(live);
    zdb(directory.path(), "refused");
}

#[test]
fn an_expansion_waits_for_a_device_that_is_away() {
    for moment in 0..6_u64 {
        let (mut disks, live) = Disks::create_with(VdevKind::Raidz, 3, 1);
        live.enable_features(&["raidz_expansion".to_owned()]).unwrap();
        let mut files = Files::new();
        let dataset = head(&live);
        let set = dataset.set();
        files.write(&live, set, 40);
        live.sync().unwrap();
        let path = std::path::PathBuf::from("/sim/more");
        let disk = Arc::new(SimDevice::new("/sim/more".to_owned(), 96 << 20));
        disks.0.insert(path.clone(), disk.clone());
        let all = disks.clone();
        let opener = move |leaf: &VdevConfig| {
            let path = leaf.path.clone().unwrap();
            Opener::open(&all, Path::new(&path))
                .map_err(|error| LeafUnavailable::open_failed(error.to_string()))
        };
        let leaf = leaf(&path);
        let beside = raidz(&live);
        let newcomer =
            Newcomer { beside, leaf, replaces: false, goes_back: false, sequential: false };
        let away = if moment % 2 == 0 { disk } else { disks.0.values().nth(1).unwrap().clone() };
        live.take_in(newcomer, Arc::new(opener)).unwrap();
        let wanted = [0, 1, 1, 30 << 20, 60 << 20, 90 << 20][moment as usize];
        until("it has begun", || {
            !is_expanding(&live) || live.pool().uberblock().reflow.offset() >= wanted
        });
        away.set_health(Health::Gone);
        files.write(&live, set, 10);
        files.churn(&live, set, 10);
        live.sync().unwrap();
        until("it is noticed", || live.is_expansion_stuck() || !is_expanding(&live));
        let moved = live.pool().uberblock().reflow;
        files.write(&live, set, 10);
        files.churn(&live, set, 10);
        (0..3).for_each(|_| live.sync().unwrap());
        assert_eq!(live.pool().uberblock().reflow, moved);
        files.check(&live);
        away.heal();
        live.look_again().unwrap();
        until("the device has everything", || {
            live.look_again().unwrap();
            live.vdevs().missed().is_empty()
        });
        until("the expansion ends", || {
            live.sync().unwrap();
            !is_expanding(&live)
        });
        live.sync().unwrap();
        files.check(&live);
        census(live.pool());
        drop(dataset);
        live.export().unwrap();
        drop(live);
        let live = disks.reopen();
        files.check(&live);
        census(live.pool());
        live.export().unwrap();
    }
}
