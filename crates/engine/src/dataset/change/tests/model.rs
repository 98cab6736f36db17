//! Random histories of datasets against sets of blocks: who refers to what, what is free.

use std::collections::{BTreeMap, BTreeSet};

use cenote_format::ObjectType;
use cenote_format::bpobj::BpobjHeader;
use cenote_format::dsl_directory::DslDirectory;

use super::*;

/// Bytes of every block.
const SIZE: u64 = 4096;

struct Taken {
    id: ObjectId,
    name: String,
    txg: u64,
    has: BTreeSet<u64>,
}

/// A bookmark: what its snapshot had.
struct Marked {
    name: String,
    txg: u64,
    had: BTreeSet<u64>,
}

struct Chain {
    made: MadeDataset,
    has: BTreeSet<u64>,
    /// What the snapshot it was cloned of has.
    origin: Option<(ObjectId, BTreeSet<u64>)>,
    snapshots: Vec<Taken>,
    bookmarks: Vec<Marked>,
}

struct Model {
    world: World,
    txg: u64,
    seed: u64,
    births: BTreeMap<u64, u64>,
    chains: Vec<Chain>,
    names: u64,
}

impl Model {
    fn new(features: &[&str], seed: u64) -> Self {
        let world = World::new(features);
        let made = world.filesystem(5, "first");
        let chain = Chain {
            made,
            has: BTreeSet::new(),
            origin: None,
            snapshots: Vec::new(),
            bookmarks: Vec::new(),
        };
        Self { world, txg: 5, seed, births: BTreeMap::new(), chains: vec![chain], names: 0 }
    }

    fn below(&mut self, end: usize) -> usize {
        self.seed = self.seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.seed >> 33) % end.max(1) as u64) as usize
    }

    fn block(&self, number: u64) -> BlockPointer {
        block(number, self.births[&number])
    }

    fn some_of(&mut self, set: &BTreeSet<u64>, most: usize) -> Vec<u64> {
        let count = self.below(most + 1);
        let all: Vec<u64> = set.iter().copied().collect();
        let picked: BTreeSet<u64> = (0..count)
            .filter(|_| !all.is_empty())
            .map(|_| self.below(all.len()))
            .map(|index| all[index])
            .collect();
        picked.into_iter().collect()
    }

    fn write(&mut self, chain: usize, born: usize, killed: Vec<u64>) {
        let first = self.births.len() as u64;
        let born: Vec<u64> = (first..first + born as u64).collect();
        for number in &born {
            self.births.insert(*number, self.txg);
        }
        let pointers = |numbers: &[u64]| -> Vec<BlockPointer> {
            numbers.iter().map(|number| self.block(*number)).collect()
        };
        let head = self.chains[chain].made.dataset;
        self.world.write(self.txg, head, &pointers(&born), &pointers(&killed)).unwrap();
        let has = &mut self.chains[chain].has;
        has.extend(born);
        killed.iter().for_each(|number| assert!(has.remove(number)));
    }

    fn name(&mut self) -> String {
        self.names += 1;
        format!("n{}", self.names)
    }

    fn is_origin(&self, snapshot: ObjectId) -> bool {
        self.chains.iter().any(|chain| chain.origin.as_ref().is_some_and(|o| o.0 == snapshot))
    }

    fn step(&mut self) {
        self.txg += 1;
        let txg = self.txg;
        let chain = self.below(self.chains.len());
        match self.below(18) {
            0..=4 => {
                let (born, has) = (self.below(5), self.chains[chain].has.clone());
                let killed = self.some_of(&has, 4);
                self.write(chain, born, killed);
            }
            5..=7 => self.snapshot(chain),
            8 => self.destroy_snapshot(chain),
            9 => self.destroy_several(chain),
            10 => self.clone_of(chain),
            11 => self.destroy(chain),
            12 => self.bookmark(chain),
            13 => {
                if !self.chains[chain].bookmarks.is_empty() {
                    let index = self.below(self.chains[chain].bookmarks.len());
                    let bookmark = self.chains[chain].bookmarks.remove(index);
                    let head = self.chains[chain].made.dataset;
                    let name = &bookmark.name;
                    self.world.change(txg, |c| c.destroy_bookmark(head, name)).unwrap();
                }
            }
            14 => self.promote(chain),
            15 => self.rollback(chain),
            _ => {
                let budget = self.below(12) as u64;
                self.world
                    .change(txg, |c| {
                        c.process_async_destroy(&mut FreeingPass::default(), Budget::blocks(budget))
                    })
                    .unwrap();
            }
        }
    }

    fn snapshot(&mut self, chain: usize) {
        let name = self.name();
        let chain = &mut self.chains[chain];
        let head = chain.made.dataset;
        let make = |change: &MosChange<'_>| change.create_snapshot(head, &name, &[]);
        let id = self.world.change(self.txg, make).unwrap();
        chain.snapshots.push(Taken { id, name, txg: self.txg, has: chain.has.clone() });
    }

    fn destroy_snapshot(&mut self, chain: usize) {
        if self.chains[chain].snapshots.is_empty() {
            return;
        }
        let index = self.below(self.chains[chain].snapshots.len());
        let id = self.chains[chain].snapshots[index].id;
        let destroyed = self.world.change(self.txg, |c| c.destroy_snapshot(id, false));
        assert_eq!(destroyed.is_err(), self.is_origin(id), "{destroyed:?}");
        if destroyed.is_ok() {
            self.chains[chain].snapshots.remove(index);
        }
    }

    /// In one order, whose steps find in memory what the ones before left of the deadlists.
    fn destroy_several(&mut self, chain: usize) {
        let first = self.below(self.chains[chain].snapshots.len().max(1));
        let most = self.below(5);
        let some = self.chains[chain].snapshots.iter().skip(first).take(most).map(|one| one.id);
        let ids: Vec<ObjectId> = some.filter(|id| !self.is_origin(*id)).collect();
        let each = |c: &MosChange<'_>| {
            c.keeping_deadlists(|| ids.iter().try_for_each(|id| c.destroy_snapshot(*id, false)))
        };
        self.world.change(self.txg, each).unwrap();
        self.chains[chain].snapshots.retain(|one| !ids.contains(&one.id));
    }

    fn clone_of(&mut self, chain: usize) {
        if self.chains[chain].snapshots.is_empty() || self.chains.len() > 6 {
            return;
        }
        let index = self.below(self.chains[chain].snapshots.len());
        let from = &self.chains[chain].snapshots[index];
        let (origin, has) = (from.id, from.has.clone());
        let name = self.name();
        let parent = self.chains[chain].made.directory;
        let new = NewDataset { parent, name: &name, origin: Some(origin), ..NewDataset::default() };
        let made = self.world.change(self.txg, |change| change.create_dataset(&new)).unwrap();
        self.chains.push(Chain {
            made,
            has: has.clone(),
            origin: Some((origin, has)),
            snapshots: Vec::new(),
            bookmarks: Vec::new(),
        });
    }

    fn destroy(&mut self, chain: usize) {
        let made = self.chains[chain].made;
        let busy = self.world.change(self.txg, |c| c.check_destroy_head(made.dataset)).is_err();
        if busy || chain == 0 {
            return;
        }
        let has_livelist = |change: &MosChange<'_>| change.livelist(made.directory);
        if self.world.change(self.txg, has_livelist).unwrap().is_none() {
            // There is no tree to walk in this pool: the blocks go one by one.
            let all = self.chains[chain].has.iter().copied().collect();
            self.write(chain, 0, all);
        }
        self.world.change(self.txg, |change| change.destroy_head(made.dataset)).unwrap();
        self.chains.remove(chain);
    }

    /// Sets of what a promotion moves: the parent's snapshots up to the origin.
    fn promote(&mut self, chain: usize) {
        let Some((origin, _)) = self.chains[chain].origin.clone() else { return };
        let clone = self.chains[chain].made.dataset;
        self.world.change(self.txg, |change| change.promote(clone)).unwrap();
        let owner = |c: &Chain| c.snapshots.iter().any(|snapshot| snapshot.id == origin);
        let parent = self.chains.iter().position(owner).unwrap();
        let at = self.chains[parent].snapshots.iter().position(|s| s.id == origin).unwrap();
        let mut moved: Vec<Taken> = self.chains[parent].snapshots.drain(..=at).collect();
        let (txg, has) = (moved[at].txg, moved[at].has.clone());
        let marks = std::mem::take(&mut self.chains[parent].bookmarks);
        let (mut marks, stay): (Vec<Marked>, Vec<Marked>) =
            marks.into_iter().partition(|mark| mark.txg <= txg);
        self.chains[parent].bookmarks = stay;
        let before = self.chains[parent].origin.replace((origin, has));
        let clone = &mut self.chains[chain];
        moved.append(&mut clone.snapshots);
        clone.snapshots = moved;
        marks.append(&mut clone.bookmarks);
        clone.bookmarks = marks;
        clone.origin = before;
    }

    fn rollback(&mut self, chain: usize) {
        if self.chains[chain].snapshots.is_empty() {
            return;
        }
        let made = self.chains[chain].made;
        let newest = self.chains[chain].snapshots.last().unwrap().txg;
        let marked = self.chains[chain].bookmarks.iter().any(|mark| mark.txg > newest);
        let refused = self.world.change(self.txg, |c| c.check_rollback(made.dataset)).is_err();
        assert_eq!(refused, marked);
        if refused {
            return;
        }
        let clone = self.world.change(self.txg, |c| c.begin_rollback(made.dataset)).unwrap();
        self.world.audit(self.txg);
        let directory = self.world.change(self.txg, |c| c.dataset(clone)).unwrap().directory;
        let last = self.chains[chain].snapshots.last().unwrap();
        let (id, kept) = (last.id, last.has.clone());
        let had = std::mem::replace(&mut self.chains[chain].has, kept.clone());
        self.chains.push(Chain {
            made: MadeDataset { directory, dataset: clone },
            has: had,
            origin: Some((id, kept)),
            snapshots: Vec::new(),
            bookmarks: Vec::new(),
        });
        self.check();
        self.destroy(self.chains.len() - 1);
    }

    fn bookmark(&mut self, chain: usize) {
        let name = self.name();
        if self.chains[chain].snapshots.is_empty() {
            return;
        }
        let index = self.below(self.chains[chain].snapshots.len());
        let chain = &mut self.chains[chain];
        let from = &chain.snapshots[index];
        let make = |change: &MosChange<'_>| {
            if !change.is_enabled("bookmark_written")? {
                return Ok(false);
            }
            change.create_bookmark(chain.made.dataset, &name, from.id).map(|()| true)
        };
        if self.world.change(self.txg, make).unwrap() {
            chain.bookmarks.push(Marked { name, txg: from.txg, had: from.has.clone() });
        }
    }

    fn check(&self) {
        self.world.audit(self.txg);
        self.chains.iter().for_each(|chain| self.check_chain(chain));
        let freed = self.world.hooks.freed.lock();
        let mut numbers = BTreeSet::new();
        for pointer in freed.iter() {
            let number = pointer.words[1] / 8;
            assert!(numbers.insert(number), "block {number} is freed twice");
            for chain in &self.chains {
                assert!(!chain.has.contains(&number), "block {number} is in a head");
                let kept = chain.snapshots.iter().find(|s| s.has.contains(&number));
                assert!(kept.is_none(), "block {number} is in snapshot {}", kept.unwrap().name);
            }
        }
    }

    fn check_chain(&self, chain: &Chain) {
        let empty = BTreeSet::new();
        let inherited = chain.origin.as_ref().map_or(&empty, |origin| &origin.1);
        let phys = self.world.change(self.txg, |c| c.dataset(chain.made.dataset)).unwrap();
        let previous = chain.snapshots.last().map_or(inherited, |snapshot| &snapshot.has);
        let bytes = |count: usize| count as u64 * SIZE;
        assert_eq!(phys.referenced_bytes, bytes(chain.has.len()));
        assert_eq!(phys.unique_bytes, bytes(chain.has.difference(previous).count()));

        let directory: DslDirectory =
            self.world.change(self.txg, |c| c.directory(chain.made.directory)).unwrap();
        let own = bytes(chain.has.difference(inherited).count());
        assert_eq!(directory.used_breakdown.head, own);
        let taken: BTreeSet<u64> =
            chain.snapshots.iter().flat_map(|s| s.has.iter().copied()).collect();
        let only = taken.iter().filter(|n| !chain.has.contains(n) && !inherited.contains(n));
        assert_eq!(directory.used_breakdown.snapshots, bytes(only.count()));

        for (index, snapshot) in chain.snapshots.iter().enumerate() {
            let phys = self.world.change(self.txg, |c| c.dataset(snapshot.id)).unwrap();
            let before = index.checked_sub(1).map_or(inherited, |i| &chain.snapshots[i].has);
            let after = chain.snapshots.get(index + 1).map_or(&chain.has, |next| &next.has);
            let unique = snapshot.has.iter().filter(|n| !before.contains(n) && !after.contains(n));
            assert_eq!(phys.unique_bytes, bytes(unique.count()), "snapshot {}", snapshot.name);
            assert_eq!(phys.referenced_bytes, bytes(snapshot.has.len()));
        }
        let marks = self.world.change(self.txg, |c| c.bookmarks(chain.made.dataset)).unwrap();
        assert_eq!(marks.len(), chain.bookmarks.len());
        for (name, bookmark) in marks {
            let marked = chain.bookmarks.iter().find(|marked| marked.name == name).unwrap();
            let later = chain.snapshots.iter().find(|snapshot| snapshot.txg > marked.txg);
            let after = later.map_or(&chain.has, |snapshot| &snapshot.has);
            let freed = bookmark.details.unwrap().freed_before_next.used;
            assert_eq!(freed, bytes(marked.had.difference(after).count()), "bookmark {name}");
        }
    }

    /// Gives every deadlist the form it has in pools before version 26.
    fn age(&mut self, bonus_len: usize) {
        let (world, txg) = (&self.world, self.txg);
        for chain in &mut self.chains {
            // There were no such bookmarks then.
            for bookmark in chain.bookmarks.drain(..) {
                let head = chain.made.dataset;
                world.change(txg, |c| c.destroy_bookmark(head, &bookmark.name)).unwrap();
            }
        }
        let origin = |change: &MosChange<'_>| {
            let empty = change.empty_snapshot()?;
            Ok([empty, change.dataset(empty)?.next_snapshot])
        };
        let mut all = world.change(txg, origin).unwrap().to_vec();
        for chain in &self.chains {
            all.push(chain.made.dataset);
            all.extend(chain.snapshots.iter().map(|snapshot| snapshot.id));
        }
        for id in all {
            world.change(txg, |change| age(change, id, bonus_len)).unwrap();
        }
    }

    /// In the end exactly what nobody refers to is free.
    fn finish(&mut self) {
        self.txg += 1;
        let done = self
            .world
            .change(self.txg, |c| {
                c.process_async_destroy(&mut FreeingPass::default(), Budget::blocks(u64::MAX))
            })
            .unwrap();
        assert!(done.finished);
        self.check();
        let mut kept: BTreeSet<u64> = BTreeSet::new();
        for chain in &self.chains {
            kept.extend(&chain.has);
            chain.snapshots.iter().for_each(|snapshot| kept.extend(&snapshot.has));
        }
        let freed: BTreeSet<u64> =
            self.world.hooks.freed.lock().iter().map(|bp| bp.words[1] / 8).collect();
        let leaked: Vec<u64> = self
            .births
            .keys()
            .copied()
            .filter(|n| !kept.contains(n) && !freed.contains(n))
            .collect();
        assert_eq!(leaked, [], "leaked");
        let free = self.world.change(self.txg, |c| c.hidden_directory("$FREE")).unwrap();
        let free = self.world.change(self.txg, |c| c.directory(free)).unwrap();
        assert_eq!(free.used_bytes, 0);
    }
}

fn age(change: &MosChange<'_>, dataset: ObjectId, bonus_len: usize) -> Result<()> {
    let deadlist = change.dataset(dataset)?.deadlist;
    let bonus = BpobjHeader::new(bonus_len).encode();
    let list = change.new_object(ObjectType::BPOBJ, 128 << 10, ObjectType::BPOBJ_HEADER, bonus)?;
    let mut entries = Vec::new();
    for part in change.deadlist_entries(deadlist)?.0.values().copied() {
        change.drain_list(part, &mut u64::MAX.clone(), &mut |pointer, _| {
            entries.push((*pointer, false));
            Ok(())
        })?;
    }
    change.append_to_list(list, &entries)?;
    change.free_deadlist(deadlist)?;
    change.alter_dataset(dataset, |phys| phys.deadlist = list)
}

/// Histories that go on in a pool from before version 26, of which the deadlists are plain lists with bonuses
/// of `bonus_len` bytes.
fn run_upgraded(features: &[&str], bonus_len: usize, seeds: std::ops::Range<u64>) {
    for seed in seeds {
        let mut model = Model::new(features, seed);
        for _ in 0..60 {
            model.step();
        }
        model.age(bonus_len);
        for _ in 0..100 {
            model.check();
            model.step();
        }
        model.finish();
    }
}

fn run(features: &[&str], seeds: std::ops::Range<u64>) {
    for seed in seeds {
        let mut model = Model::new(features, seed);
        for _ in 0..150 {
            model.step();
            model.check();
        }
        model.finish();
    }
}

#[test]
fn random_histories_with_all_features() {
    run(FEATURES, 0..12);
}

#[test]
fn random_histories_without_features() {
    run(&[], 100..106);
}

#[test]
fn random_histories_of_pools_from_before_version_26() {
    run_upgraded(FEATURES, 32, 200..206);
    run_upgraded(&[], 32, 206..210);
    run_upgraded(FEATURES, 16, 210..212);
}
