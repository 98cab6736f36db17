//! What the pool says of itself while devices go away, come back, come back with what they held long
//! ago, or empty: everything from a seed.
//!
//! Invariant: if anything acknowledged cannot be read, the pool does not call itself well, and says
//! so before somebody reads it; when the devices are back, nothing is called lost.

use std::path::PathBuf;
use std::sync::Arc;

use cenote_device::{Health, Keep, SimDevice};
use cenote_engine::object::{NewObject, ObjectSet};
use cenote_engine::pool::group::LivePool;
use cenote_engine::vdev::VdevState;
use cenote_format::config::VdevKind;
use cenote_format::{ObjectId, ObjectType};

use super::log::head;
use super::noise;
use super::suspended::Disks;

/// The same disk as it is now, for later.
pub(super) fn copy(disk: &SimDevice) -> Arc<SimDevice> {
    Arc::new(disk.after_crash(u64::MAX, &mut |_| Keep::All))
}

/// Exports the pool if that is asked for and can be done, or stops where it is.
fn end(live: &Arc<LivePool>, export: bool) {
    if export && live.vdevs().out_of_reach().is_empty() {
        live.export().unwrap();
    } else {
        live.abandon();
    }
}

struct World {
    name: String,
    disks: Disks,
    paths: Vec<PathBuf>,
    /// Devices that may be lost.
    parity: usize,
    live: Option<Arc<LivePool>>,
    files: Vec<(ObjectId, Vec<u8>)>,
    away: Vec<usize>,
    /// Disks whose place is taken by another content: what they held when that began.
    hidden: Vec<(usize, Arc<SimDevice>)>,
    /// Disks as they were once, and how many files there were.
    old: Vec<(usize, Arc<SimDevice>, usize)>,
}

impl World {
    fn new(kind: VdevKind, count: usize, parity: usize, seed: u64) -> Self {
        let (disks, live) = Disks::create_with(kind, count, parity as u64);
        let paths = disks.0.keys().cloned().collect();
        let name = format!("{kind:?} of {count}, seed {seed}");
        let (live, files) = (Some(live), Vec::new());
        let (away, hidden, old) = (Vec::new(), Vec::new(), Vec::new());
        Self { name, disks, paths, parity, live, files, away, hidden, old }
    }

    fn live(&self) -> &Arc<LivePool> {
        self.live.as_ref().unwrap()
    }

    /// Writes go through: nothing that is needed for them is out of reach.
    fn writable(&self) -> bool {
        self.away.len() <= self.parity
            && self.live().vdevs().out_of_reach().is_empty()
            && self.hidden.len() + self.away.len() <= self.parity
    }

    fn write(&mut self, seed: u64) {
        let live = self.live().clone();
        let dataset = head(&live);
        let data = noise(300_000, seed);
        let id = {
            let tx = live.begin().unwrap();
            let new = NewObject::new(ObjectType::OTHER_U64, 128 << 10);
            let object = dataset.set().create_object(&tx, &new).unwrap();
            object.write(&tx, 0, &data).unwrap();
            object.id()
        };
        drop(dataset);
        live.sync().unwrap();
        self.files.push((id, data));
    }

    /// How many files cannot be read, from the disks.
    fn unreadable(&self) -> usize {
        let live = self.live();
        let catalog = live.pool().catalog();
        let set = || {
            let head = catalog.head(&catalog.root()?)?;
            ObjectSet::open(live.pool().io(), head.phys.pointer, head.id.0, None)
        };
        let Ok(set) = set() else { return self.files.len() };
        let bad = |(id, data): &&(ObjectId, Vec<u8>)| {
            let read = set.object(*id).and_then(|object| object.read_vec(0, data.len()));
            if let Ok(found) = &read {
                assert!(found == data, "{}: object {id} has wrong bytes", self.name);
            }
            read.is_err()
        };
        self.files.iter().filter(bad).count()
    }

    /// Ends the process, with or without an export, and opens the pool again if that works.
    fn reopen(&mut self, export: bool) -> bool {
        let live = self.live.take().unwrap();
        end(&live, export);
        drop(live);
        self.open()
    }

    fn open(&mut self) -> bool {
        let present = self.paths.iter().enumerate().filter(|(n, _)| !self.away.contains(n));
        let present = present.map(|(_, path)| (path.clone(), self.disks.0[path].clone())).collect();
        self.live = Disks(present).try_reopen().ok();
        self.live.is_some()
    }

    fn judge(&self, step: &str) {
        let vdevs = self.live().vdevs();
        let (state, reach) = (vdevs.condition().state, vdevs.out_of_reach());
        let faults = |live: &Arc<LivePool>| {
            let pipe = &live.pool().io().pipe;
            (pipe.faults().lost().len(), pipe.passing_faults().len())
        };
        let known = faults(self.live());
        let bad = self.unreadable();
        let (lost, passing) = faults(self.live());
        let what = format!("{}, {step}: {bad} files cannot be read", self.name);
        if bad > 0 {
            assert!(state != VdevState::Online, "{what}, the pool is online");
            // A disk of old that is alone is all there is to know.
            let alone = self.away.len() + self.hidden.len() == self.paths.len();
            let told = !reach.is_empty() || known != (0, 0);
            assert!(told || alone, "{what}, and nobody said so before");
            assert!(lost + passing > 0 || alone, "{what}, and it is not noted");
        }
        if self.hidden.is_empty() {
            assert_eq!(lost, 0, "{what}, called lost");
        }
        if self.away.is_empty() && self.hidden.is_empty() {
            assert_eq!((bad, passing), (0, 0), "{what} with all devices there");
        }
        let missed = vdevs.missed();
        assert!(missed.is_empty() || state != VdevState::Online, "{what}, missed {missed:?}");
    }

    /// All devices as they would be had none been exchanged.
    fn restore(&mut self) {
        self.away.clear();
        for (number, disk) in std::mem::take(&mut self.hidden) {
            self.disks.0.insert(self.paths[number].clone(), disk);
        }
        self.disks.0.values().for_each(|disk| disk.heal());
    }
}

/// One story.
fn story(kind: VdevKind, count: usize, parity: usize, seed: u64) {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut below = move |bound: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as usize % bound
    };
    let mut world = World::new(kind, count, parity, seed);
    world.write(1);
    for step in 0..12 {
        let number = below(count);
        let here = !world.away.contains(&number) && world.hidden.iter().all(|h| h.0 != number);
        let what = match below(9) {
            0..=2 if world.writable() => {
                world.write(seed * 100 + step);
                "write"
            }
            3 | 4 if here && world.away.len() < parity => {
                world.disks.disk(number).set_health(Health::Gone);
                world.away.push(number);
                // Somebody must notice.
                let _ = world.unreadable();
                if world.writable() {
                    world.write(seed * 100 + 50 + step);
                }
                "a disk goes"
            }
            5 if !world.away.is_empty() => {
                let back = world.away.swap_remove(0);
                world.disks.disk(back).heal();
                world.live().vdevs().reopen();
                // One that was away when the pool was opened is found by the next import.
                if world.live().vdevs().has_away() && !world.reopen(below(2) == 0) {
                    world.restore();
                    assert!(world.open(), "{}: not to be opened with all devices", world.name);
                }
                "a disk is back"
            }
            6 => {
                world.live().vdevs().reopen();
                world.live().vdevs().clear(None);
                "clear"
            }
            7 if here && world.hidden.is_empty() && world.live().vdevs().missed().is_empty() => {
                let disk = copy(world.disks.disk(number));
                let files = world.files.len();
                world.old.push((number, disk, files));
                "a disk is copied"
            }
            _ => {
                let kill = below(2) == 0;
                let old = world.old.iter().position(|(number, _, files)| {
                    files + 2 <= world.files.len() && !world.away.contains(number)
                });
                let exchange = old.filter(|_| world.hidden.is_empty() && below(2) == 0);
                let live = world.live.take().unwrap();
                end(&live, !kill);
                drop(live);
                if let Some(index) = exchange {
                    let (number, disk, _) = world.old.swap_remove(index);
                    let path = world.paths[number].clone();
                    let disk = if below(4) == 0 {
                        Arc::new(SimDevice::new("empty", 96 << 20))
                    } else {
                        disk
                    };
                    let before = world.disks.0.insert(path, disk).unwrap();
                    world.hidden.push((number, before));
                }
                if !world.open() {
                    // That it cannot be opened says it.
                    world.restore();
                    assert!(world.open(), "{}: not to be opened with all devices", world.name);
                }
                "opened again"
            }
        };
        world.judge(what);
        // What is told of one reading is not to hide the next one.
        if below(3) == 0 && !world.reopen(below(2) == 0) {
            world.restore();
            assert!(world.open(), "{}: not to be opened with all devices", world.name);
        }
        world.judge("looked at again");
    }
    end(world.live(), true);
    drop(world.live.take());
    let exchanged = !world.hidden.is_empty();
    world.restore();
    // What was written beside an exchanged disk is on the others only.
    assert!(world.open() || exchanged, "{}: not to be opened at the end", world.name);
    if world.live.is_some() {
        world.judge("at the end");
        let _ = world.live.take().unwrap().export();
    }
}

#[test]
fn the_pool_never_flatters_and_never_cries_wolf() {
    let seeds: u64 = std::env::var("HONEST_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(2);
    let start: u64 = std::env::var("HONEST_START").ok().and_then(|n| n.parse().ok()).unwrap_or(1);
    for seed in start..start + seeds {
        story(VdevKind::Mirror, 2, 1, seed);
        story(VdevKind::Mirror, 3, 2, seed);
        story(VdevKind::Raidz, 3, 1, seed);
        story(VdevKind::Raidz, 5, 2, seed);
    }
}
