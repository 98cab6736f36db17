//! Steps that end a life of the pool, and what happens to its devices.
//!
//! Invariant: whatever is done to leaves within the redundancy, nothing acknowledged is lost; what a
//! judge found is what the next life begins with.

use std::path::Path;

use cenote_device::{Device, Keep, Recorded, SimEvent};
use cenote_engine::ErrorKind;
use cenote_engine::cache::BlockKey;
use cenote_engine::vdev::BlockWrite;
use cenote_format::label::{LABEL_SIZE, label_offset};
use cenote_format::{BlockPointer, ObjectId};

use crate::disks::{Disks, NAME, open_with};
use crate::model::Model;
use crate::plan::Trouble;
use crate::random::{Random, bytes};
use crate::run::{Runner, Verdict};

/// One in so many cuts is judged by `zdb` too.
const JUDGED_BY_ZDB: u64 = 300;

/// What a power cut leaves of unflushed writes, in the manner `manner`.
fn keep(manner: u8, random: &mut Random, recorded: &Recorded) -> Keep {
    let SimEvent::Write { data, .. } = &recorded.event else { return Keep::All };
    let sectors = (data.len() / 512) as u64;
    match manner {
        0 => Keep::Nothing,
        1 => Keep::All,
        _ => match random.below(4) {
            0 => Keep::Nothing,
            1 => Keep::First(random.below(sectors + 1) as usize * 512),
            2 => Keep::AllBut(random.below(sectors + 1) as usize * 512),
            _ => Keep::All,
        },
    }
}

impl Runner {
    /// The order of the event so many thousandths of this life ago, and one more; a leaf `ails` there.
    fn moment(&self, back: u16, ails: bool) -> u64 {
        let orders = self.disks.orders();
        let skipped = orders.len() * usize::from(back.min(1000)) / 1000;
        let at = orders.len().saturating_sub(skipped);
        let order = orders.get(at.saturating_sub(1)).map_or(u64::MAX, |order| order + 1);
        // A leaf that rested or came lacked something in the midst of that: no other may ail there.
        let order = match ails || !self.troubles.is_empty() {
            true => order.max(self.whole_since.saturating_add(1)),
            false => order,
        };
        let (opened, hidden) = &self.opened;
        let is_seen = |path: &String| !self.troubles.get(path).is_some_and(|now| now.hides());
        if hidden.iter().any(is_seen) { order.max(opened.saturating_add(1)) } else { order }
    }

    pub(crate) fn cut_disks(&self, order: u64, manner: u8, seed: u32, stale: u16) -> Disks {
        let mut random = Random::new(seed.into());
        let behind = if stale == 0 { order } else { self.moment(stale, false).min(order) };
        let order_of = |path: &Path| {
            let spare = self.spare.iter().any(|spare| Path::new(spare) == path);
            if spare { behind } else { order }
        };
        self.disks.cut(&order_of, &mut |recorded| keep(manner, &mut random, recorded))
    }

    /// Ends this life right after the event before `order`; what is left is judged, and begins another.
    pub(crate) fn end_life(&mut self, left: Disks, order: u64, unmounted: u8) -> Verdict {
        self.tally.cuts += 1;
        let model = self.judged(&left, order)?;
        self.model = model;
        self.next_life(left, unmounted)
    }

    /// The model of what `left` holds.
    fn judged(&self, left: &Disks, order: u64) -> Verdict<Model> {
        let judge = self.judge(left.copy(), order);
        judge.disks.ail(&self.troubles);
        let number = self.seed.wrapping_add(self.tally.cuts.into());
        if number % JUDGED_BY_ZDB == 7 && !judge.spared && self.model.damaged.is_empty() {
            judge.zdb()?;
        }
        judge.judge()
    }

    /// The process dies; the disks keep everything that was sent to them.
    pub(crate) fn cut_now(&mut self, unmounted: u8, manner: u8, seed: u32) -> Verdict {
        let left = self.cut_disks(u64::MAX, manner, seed, 0);
        self.end_life(left, u64::MAX, unmounted)
    }

    pub(crate) fn cut(
        &mut self,
        back: u16,
        manner: u8,
        seed: u32,
        unmounted: u8,
        stale: u16,
    ) -> Verdict {
        let order = self.moment(back, stale > 0);
        let left = self.cut_disks(order, manner, seed, stale);
        self.rotten |= stale > 0 || order <= self.clean_since;
        if back > 0 {
            // At that moment nobody may have missed anything yet, or some copies are missing.
            self.rotten |= !self.missed.is_empty();
            self.missed.clear();
        }
        self.end_life(left, order, unmounted)
    }

    pub(crate) fn look(&mut self, back: u16, manner: u8, seed: u32) -> Verdict {
        let order = self.moment(back, false);
        let left = self.cut_disks(order, manner, seed, 0);
        self.tally.cuts += 1;
        self.judged(&left, order).map(drop)
    }

    /// Another host writes while this one imports.
    pub(crate) fn race(&mut self, fill: u32, open: bool) -> Verdict {
        self.tally.cuts += 1;
        let left = self.disks.copy();
        self.model = self.judged(&left, u64::MAX)?;
        // What this host sees before it holds the devices.
        let before = left.copy();
        self.next_life(left, 0)?;
        let before = if open { self.disks.copy() } else { before };
        // The other one: it does something that is on the disks when it dies.
        let Some((_, file)) = self.file(0, fill as u8) else { return Ok(()) };
        if self.write_at(0, file, 0, &bytes(50_000, fill, false))? {
            self.fsync(0, file)?;
        }
        if fill & 3 != 0 {
            self.group()?;
        }
        let left = self.disks.clone();
        self.model = self.judged(&left, u64::MAX)?;
        left.record();
        before.ail(&self.troubles);
        let (found, devices) = left.turning(&before).map_err(|error| error.to_string())?;
        let live = match open_with(&found, devices) {
            Ok(live) => live,
            // It looks again.
            Err(error) if matches!(error.kind(), ErrorKind::Outdated | ErrorKind::Busy) => {
                let again = left.open();
                again.map_err(|error| format!("the pool does not open after a race: {error}"))?
            }
            Err(error) => return Err(format!("the pool found before does not open: {error}")),
        };
        self.begin_life(live, 0)?;
        self.read_all()
    }

    /// The process dies, and the pool is opened as of its checkpoint; power is lost before that is done, or after.
    pub(crate) fn back(&mut self, cut: u16, manner: u8, seed: u32) -> Verdict {
        let Some(kept) = self.kept.clone().filter(|_| self.state().checkpoint) else {
            return self.pass();
        };
        self.tally.cuts += 1;
        let left = self.disks.copy();
        let newest = self.judged(&left, u64::MAX)?;
        left.record();
        left.ail(&self.troubles);
        let live = left.open_checkpoint().map_err(|error| format!("back to it: {error}"))?;
        live.sync().map_err(|error| format!("back at it: {error}"))?;
        live.abandon();
        drop(live);
        let orders = left.orders();
        let at = orders.len().saturating_sub(orders.len() * usize::from(cut.min(1000)) / 1000);
        let order = orders.get(at).copied().unwrap_or(u64::MAX);
        let mut random = Random::new(seed.into());
        let left = left.cut(&|_| order, &mut |recorded| keep(manner, &mut random, recorded));
        // Nobody knows which copies are right that came after it.
        self.rotten = true;
        self.missed.clear();
        let damaged = self.model.damaged.union(&kept.damaged).copied().collect();
        let appends = self.model.appends || kept.appends;
        self.model = Model { damaged, appends, ..kept };
        match self.judged(&left, u64::MAX) {
            Ok(found) => {
                self.model = found;
                self.kept = None;
            }
            Err(reason) => {
                self.model = newest;
                self.model = self.judged(&left, u64::MAX).map_err(|other| {
                    format!("neither at its checkpoint ({reason}) nor as before ({other})")
                })?;
            }
        }
        self.next_life(left, 0)
    }

    pub(crate) fn trouble(&mut self, which: u8, trouble: Trouble) -> Verdict {
        if self.spare.is_empty() {
            return self.pass();
        }
        self.tally.faults += 1;
        let path = self.spare[which as usize % self.spare.len()].clone();
        self.rotten |= trouble == Trouble::Loses;
        self.newest = self.newest_blocks();
        self.troubles.insert(path, trouble);
        self.ail();
        Ok(())
    }

    pub(crate) fn well(&mut self, clear: bool) -> Verdict {
        self.troubles.clear();
        self.ail();
        if clear {
            let vdevs = self.live.vdevs();
            vdevs.reopen();
            vdevs.clear(None);
            self.live.retry_now();
        }
        self.group()?;
        self.status()
    }

    /// Bytes of a spare leaf change: anywhere, its labels too.
    pub(crate) fn rot(&mut self, which: u8, seed: u32, places: u8) -> Verdict {
        if self.spare.is_empty() {
            return self.pass();
        }
        self.tally.faults += 1;
        self.rotten = true;
        let path = self.spare[which as usize % self.spare.len()].clone();
        let Some(disk) = self.disks.at(&path) else { return Ok(()) };
        let mut random = Random::new(seed.into());
        let written: Vec<(u64, Vec<u8>)> = disk.written();
        for _ in 0..places {
            let Some((at, piece)) = written.get(random.below(written.len() as u64) as usize) else {
                break;
            };
            let start = random.below(piece.len() as u64 / 512) * 512;
            let noise = bytes(512, random.number() as u32, false);
            // A leaf that does not take writes does not rot either.
            let _ = disk.write(at + start, &noise);
        }
        Ok(())
    }

    /// Sectors of one label of a leaf change by themselves, or of all labels of a spare one.
    pub(crate) fn rot_label(&mut self, which: u8, label: u8, seed: u32) -> Verdict {
        let leaves: Vec<String> = self.disks.leaves();
        let (path, labels) = match label {
            0..=3 => (&leaves[which as usize % leaves.len()], vec![u64::from(label)]),
            _ if self.spare.is_empty() => return self.pass(),
            _ => (&self.spare[which as usize % self.spare.len()], (0..4).collect()),
        };
        // Four labels are enough for one that is damaged.
        if self.damaged_labels.get(path).is_some_and(|known| *known != labels) {
            return self.pass();
        }
        self.damaged_labels.insert(path.clone(), labels.clone());
        self.tally.faults += 1;
        self.rotten |= labels.len() > 1;
        self.rotten_labels = true;
        let Some(disk) = self.disks.at(path) else { return Ok(()) };
        let mut random = Random::new(seed.into());
        for label in labels {
            let Some(start) = label_offset(disk.size(), label as usize) else { continue };
            for _ in 0..12 {
                let noise = bytes(512, random.number() as u32, false);
                let _ = disk.write(start + random.below(LABEL_SIZE / 512) * 512, &noise);
            }
        }
        Ok(())
    }

    /// Damages a block of a file in all copies.
    pub(crate) fn rot_file(&mut self, set: u8, file: u8, level: u8) -> Verdict {
        let (name, set) = self.set(set);
        let Some((_, file)) = self.file(set, file) else { return self.pass() };
        if self.setup.shares_blocks() {
            return self.pass();
        }
        self.group()?;
        let node = self.model.sets[&set].files[file].node;
        let tree = self.tree(&name, set)?;
        let object = tree.head().objects().object(ObjectId(node));
        let object = object.map_err(|error| format!("object {node}: {error}"))?;
        let Ok(pointer) = object.pointer(level, 0) else { return self.pass() };
        if object.dnode().levels <= level || pointer.is_hole() || pointer.is_embedded() {
            return self.pass();
        }
        self.tally.faults += 1;
        self.model.damaged.insert(node);
        self.overwrite(&pointer);
        // What was decoded is forgotten with this life.
        self.cut_now(0, 1, 0)
    }

    fn overwrite(&self, pointer: &BlockPointer) {
        let noise = bytes(pointer.psize() as usize, pointer.physical_birth().0 as u32, false);
        let writes: Vec<BlockWrite> = pointer
            .dvas()
            .map(|dva| BlockWrite {
                sides: None,
                vdev: dva.vdev,
                offset: dva.offset,
                data: noise.clone().into(),
                birth: pointer.physical_birth(),
            })
            .collect();
        let vdevs = self.live.vdevs();
        vdevs.write_batch(&writes);
        let _ = vdevs.flush();
        if let Some(key) = BlockKey::of(pointer) {
            self.live.pool().io().pipe.cache().remove(&key);
        }
    }

    /// The first filesystem is always there.
    pub(crate) fn is_root(name: &str) -> bool {
        name == NAME
    }
}
