//! Random histories against a simple model.

use std::collections::BTreeMap;

use cenote_format::config::VdevKind;
use cenote_format::{Dva, Txg};
use proptest::prelude::*;

use super::rig::{ALL, NO_LOGS, Rig, Shape, disk};
use crate::ErrorKind;
use crate::alloc::AllocRequest;

#[derive(Debug, Clone)]
enum Step {
    Allocate { sectors: u64, copies: u8, ahead: u64 },
    Free { which: usize },
    Unalloc,
    Pass,
    Sync,
    Reopen,
    FlushAll,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (1..300u64, 1..4u8, 0..2u64)
            .prop_map(|(sectors, copies, ahead)| Step::Allocate { sectors, copies, ahead }),
        8 => any::<usize>().prop_map(|which| Step::Free { which }),
        2 => Just(Step::Unalloc),
        2 => Just(Step::Pass),
        4 => Just(Step::Sync),
        1 => Just(Step::Reopen),
        1 => Just(Step::FlushAll),
    ]
}

/// What is in use, and since when it is not.
#[derive(Default)]
struct Model {
    /// Length and group of birth by vdev and offset.
    used: BTreeMap<(u32, u64), (u64, Txg)>,
    /// The same of what was freed, with the group that freed it.
    waiting: Vec<(Dva, Txg)>,
}

impl Model {
    fn overlaps(&self, dva: &Dva) -> bool {
        let end = dva.offset + dva.asize;
        let used = self.used.range(..(dva.vdev, end)).next_back();
        let used = used
            .is_some_and(|((vdev, at), (length, _))| *vdev == dva.vdev && at + length > dva.offset);
        used || self.waiting.iter().any(|(other, _)| {
            other.vdev == dva.vdev && other.offset < end && other.offset + other.asize > dva.offset
        })
    }
}

/// The allocator, and what it must say.
struct Run {
    rig: Rig,
    model: Model,
    /// The next pass of the group being written.
    pass: u32,
}

impl Run {
    fn step(&mut self, step: Step) {
        match step {
            Step::Allocate { sectors, copies, ahead } => self.allocate(sectors, copies, ahead),
            Step::Free { which } => self.free(which),
            Step::Unalloc => {
                let dva = self.rig.allocate(4096);
                if let Ok(dvas) = dva {
                    assert!(!self.model.overlaps(&dvas[0]));
                    self.rig.allocator.unalloc(&dvas[0], self.rig.txg).unwrap();
                }
            }
            Step::Pass => {
                self.rig.allocator.sync(&mut self.rig.store, self.rig.txg, self.pass).unwrap();
                self.pass += 1;
            }
            Step::Sync => self.sync(),
            Step::Reopen => self.reopen(),
            Step::FlushAll => self.rig.allocator.flush_all(),
        }
    }

    fn allocate(&mut self, sectors: u64, copies: u8, ahead: u64) {
        let txg = Txg(self.rig.txg.0 + ahead);
        let request = AllocRequest { copies, ..AllocRequest::new(sectors << 12, txg) };
        match self.rig.allocator.allocate(&request) {
            Ok(dvas) => {
                assert_eq!(dvas.len(), usize::from(copies));
                for dva in dvas {
                    assert!(!self.model.overlaps(&dva), "{dva:?}");
                    self.model.used.insert((dva.vdev, dva.offset), (dva.asize, txg));
                }
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::NoSpace),
        }
    }

    fn free(&mut self, which: usize) {
        let place = which % self.model.used.len().max(1);
        let Some((at, (asize, born))) = self.model.used.iter().nth(place) else { return };
        let dva = Dva { vdev: at.0, offset: at.1, asize: *asize, gang: false };
        let txg = self.rig.txg.max(*born);
        self.model.used.remove(&(dva.vdev, dva.offset));
        self.rig.allocator.free(&dva, Txg(0), txg).unwrap();
        assert!(self.rig.allocator.free(&dva, Txg(0), txg).is_err());
        self.model.waiting.push((dva, txg));
    }

    /// Writes the group, and compares what the allocator, and one that opens what it wrote, say.
    fn sync(&mut self) {
        let Self { rig, model, pass } = self;
        while rig.allocator.sync(&mut rig.store, rig.txg, *pass).unwrap() {
            *pass += 1;
        }
        rig.allocator.sync_done(rig.txg).unwrap();
        let done = rig.txg;
        model.waiting.retain(|(_, freed)| freed.0 + 2 > done.0);
        rig.txg.0 += 1;
        *pass = 1;
        let unborn = |born: &Txg| *born > done;
        let recorded = model.used.values().filter(|(_, born)| !unborn(born));
        let freed = model.waiting.iter().filter(|(_, freed)| *freed > done);
        let expected = recorded.map(|(length, _)| length).sum::<u64>()
            + freed.map(|(dva, _)| dva.asize).sum::<u64>();
        let figures = rig.allocator.figures();
        let allocated: u64 = figures.tops.iter().map(|top| top.allocated).sum();
        // What was born and freed after this group is in neither.
        assert!(allocated <= expected, "{allocated} {expected}");
        let reopened = rig.reopened(&rig.store).unwrap();
        let read: u64 = reopened.figures().tops.iter().map(|top| top.allocated).sum();
        assert_eq!(read, allocated);
        let free: u64 =
            Rig::free_space(&reopened).values().flatten().map(|(from, to)| to - from).sum();
        let size: u64 = figures.tops.iter().map(|top| top.size).sum();
        assert_eq!(free, size - allocated);
    }

    /// Opens what was written: what was not recorded is lost, and what waited is free.
    fn reopen(&mut self) {
        if self.pass > 1 {
            return;
        }
        let Self { rig, model, .. } = self;
        let open = rig.txg;
        model.used.retain(|_, (_, born)| *born < open);
        for (dva, freed) in std::mem::take(&mut model.waiting) {
            if freed >= open && !rig.reopened(&rig.store).unwrap().is_free(&dva).unwrap() {
                model.used.insert((dva.vdev, dva.offset), (dva.asize, Txg(0)));
            }
        }
        rig.reopen();
    }
}

fn run(features: &[&str], shapes: &[Shape], steps: Vec<Step>) {
    let mut run = Run { rig: Rig::new(features, shapes), model: Model::default(), pass: 1 };
    steps.into_iter().for_each(|step| run.step(step));
    let free = Rig::free_space(&run.rig.allocator);
    for ((vdev, offset), (length, _)) in &run.model.used {
        let hit = free[vdev].iter().any(|(from, to)| *from < offset + length && to > offset);
        assert!(!hit, "{vdev}:{offset:#x}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn histories_with_logs(steps in prop::collection::vec(step(), 1..250)) {
        run(ALL, &[disk(64 << 20), disk(160 << 20)], steps);
    }

    #[test]
    fn histories_without_logs(steps in prop::collection::vec(step(), 1..250)) {
        run(NO_LOGS, &[disk(64 << 20)], steps);
    }

    #[test]
    fn histories_on_draid(steps in prop::collection::vec(step(), 1..120)) {
        let draid = Shape { kind: VdevKind::Draid, children: 4, ..disk(384 << 20) };
        run(ALL, &[draid], steps);
    }
}
