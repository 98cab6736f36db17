//! Power cuts at every moment of small workloads on whole pools of simulated disks.
//!
//! Invariant: whatever of the unflushed writes survives a cut, the pool opens, nothing in it leaks or
//! fails its checksum, what was acknowledged as durable is there, and nothing else than what was
//! done is.
//!
//! `CUT_SECONDS=100000` tries every moment of each workload in every manner, `CUT_THREADS=n` in n threads;
//! `CUT_ONLY=n` only the moment after event n; `CUT_JUDGED=n` has one in n judged by zdb, not one in 32.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

#[path = "../write/consistent.rs"]
mod consistent;
mod datasets;
mod enumerate;
mod judge;
mod late_name;
#[allow(dead_code, reason = "others use the rest")]
mod pool;
mod story;
mod work;
mod workloads;

use cenote_engine::dataset::change::PropertyInput;
use cenote_format::config::VdevKind;

use enumerate::enumerate;
use pool::Disks;
use story::Story;
use workloads::{blocks, datasets as sets, devices, expansion, mixed, names, prompt, sealed};

/// As in the program: freed memory is used again instead of given back.
#[global_allocator]
static MEMORY: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Seconds for the widest workload on each layout, and for each of the others.
const LONG: u64 = 9;
const SHORT: u64 = 6;

/// A small generator: the same numbers in every run.
pub struct Random(pub u64);

impl Random {
    /// The next number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit.max(1)
    }
}

fn number(name: &str, value: u64) -> PropertyInput {
    PropertyInput::number(name, value)
}

fn run(name: &str, disks: Disks, seconds: u64, work: impl FnOnce(&Disks) -> Story) {
    let story = work(&disks);
    enumerate(name, &disks, &story, seconds);
}

#[test]
fn a_single_disk() {
    run("mixed on a disk", Disks::new("disk"), LONG, mixed::run);
}

#[test]
fn a_mirror() {
    run("mixed on a mirror", Disks::new("mirror"), LONG, mixed::run);
}

#[test]
fn raidz() {
    run("mixed on raidz1", Disks::new("raidz1"), LONG, mixed::run);
}

#[test]
fn shared_blocks() {
    let records = number("recordsize", blocks::RECORD as u64);
    let disks = Disks::new("disk").with(&["block_cloning"], &[records]);
    run("shared blocks on a disk", disks, SHORT, blocks::run);
}

#[test]
fn deduplicated_blocks() {
    let properties = [number("recordsize", blocks::RECORD as u64), number("dedup", 1)];
    let disks = Disks::new("special").with(&[], &properties);
    run("dedup on classes of vdevs", disks, SHORT, blocks::run);
}

#[test]
fn copied_blocks() {
    let records = number("recordsize", blocks::RECORD as u64);
    let disks = Disks::new("raidz2").with(&[], &[records]);
    run("blocks on raidz2", disks, SHORT, blocks::run);
}

#[test]
fn names_of_files() {
    run("names on draid1", Disks::new("draid1"), SHORT, names::run);
}

#[test]
fn synced_writes() {
    let disks = Disks::new("log").with(&[], &[number("sync", 1)]);
    run("sync=always with a log", disks, SHORT, |disks| prompt::run(disks, true));
}

#[test]
fn placed_writes() {
    run("fsync of threads on a disk", Disks::new("disk"), SHORT, |disks| prompt::run(disks, false));
}

#[test]
fn an_encrypted_filesystem() {
    let disks = Disks::new("mirror").with(&["encryption"], &[]);
    run("encrypted on a mirror", disks, SHORT, sealed::run);
}

#[test]
fn snapshots_and_clones() {
    let disks = Disks::new("raidz1").with(&["zpool_checkpoint"], &[]);
    run("clones on raidz1", disks, SHORT, sets::run);
}

#[test]
fn devices_that_come_and_go() {
    let mut disks = Disks::new("mirror");
    for name in devices::BLANK {
        disks = disks.and(name);
    }
    run("devices at a mirror", disks, SHORT, |disks| devices::run(disks, VdevKind::Mirror));
}

#[test]
fn raidz_that_is_expanded() {
    let disks = Disks::new("raidz1").with(&["raidz_expansion"], &[]).and(expansion::BLANK);
    run("an expansion of raidz1", disks, SHORT, expansion::run);
}
